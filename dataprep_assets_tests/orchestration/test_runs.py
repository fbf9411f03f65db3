"""A dataset materialized in this process: its runs in order, and what of its checks holds up the next command."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from dataprep_assets.graph.status import Stale, stale
from dataprep_assets.orchestration.keys import DATASET
from dataprep_assets.orchestration.recorded import failed_checks
from dataprep_assets.orchestration.timeline import LOCATION, STEP
from dataprep_assets_tests.graph.notices import notices_specs
from dataprep_assets_tests.orchestration.notice_board import NoticeBoard, notice_board

NOTICES = ("notices", "notices")


@pytest.fixture
def board(tmp_path: Path) -> Iterator[NoticeBoard]:
    with notice_board(tmp_path) as made:
        yield made


def behind(board: NoticeBoard) -> list[Stale]:
    """What `dataprep run` asks first: nothing when nothing has to be done."""
    return list(stale(board.specs, board.store, failed_checks(board.specs, board.recorded)))


def severity(board: NoticeBoard, name: str) -> dg.AssetCheckSeverity:
    """Of the latest evaluation of a check of the notices, which failed."""
    key = dg.AssetCheckKey(dg.AssetKey(NOTICES), name)
    record = board.instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
    assert record.event is not None
    assert record.event.dagster_event is not None
    evaluation = record.event.dagster_event.asset_check_evaluation_data
    assert not evaluation.passed
    return evaluation.severity


def test_all_runs_in_order_leave_nothing_to_do(board: NoticeBoard, capsys: pytest.CaptureFixture[str]) -> None:
    assert board.materialize()
    assert capsys.readouterr().out.splitlines() == ["  3 of 3 notices …", "  the board …"]
    assert behind(board) == []
    assert (board.store.local(board.declaration.artifact("board")) / "board.txt").read_text().count("\n") == 3


def test_runs_say_what_they_make_and_of_which_code_location_they_are(board: NoticeBoard) -> None:
    assert board.materialize()
    runs = board.instance.get_runs()[::-1]
    assert [run.tags[STEP] for run in runs] == ["notices", "board, report"]
    for run in runs:
        assert run.tags[DATASET] == "notices"
        assert run.tags["dagster/max_retries"] == "0"
        assert run.remote_job_origin is not None
        assert (run.remote_job_origin.location_name, run.remote_job_origin.job_name) == (LOCATION, run.job_name)
    assert runs[0].tags["dagster/asset_partition_range_end"] == "n-2"


def test_a_failed_run_ends_it_and_says_why(board: NoticeBoard, capsys: pytest.CaptureFixture[str]) -> None:
    (board.declaration.folder / "n-1.txt").unlink()
    assert not board.materialize()
    printed = capsys.readouterr()
    assert printed.out.splitlines() == ["  3 of 3 notices …", "    failed"]
    assert "n-1.txt: is not there" in printed.err
    assert board.store.receipt(board.declaration.artifact("board")) is None


def test_a_blocking_check_that_failed_holds_up_what_follows_and_is_told(
    board: NoticeBoard, capsys: pytest.CaptureFixture[str]
) -> None:
    board.say("n-1", "")
    assert not board.materialize()
    printed = capsys.readouterr()
    assert printed.out.splitlines()[1:] == [
        "    failed",
        "    check has_words: 1 of 3 notices fails, first n-1: 0 words",
    ]
    assert printed.err == "", "said once"
    assert severity(board, "has_words") == dg.AssetCheckSeverity.ERROR
    assert failed_checks(board.specs, board.recorded) == {NOTICES: ["has_words"]}
    assert str(behind(board)[0]) == "notices/notices: its blocking check has_words failed"
    board.say("n-1", "now it says something")
    assert board.materialize()
    assert failed_checks(board.specs, board.recorded) == {}


def test_a_warning_of_a_blocking_check_holds_up_nothing_and_the_next_run_has_nothing_to_do(
    board: NoticeBoard,
) -> None:
    board.say("n-2", " ")
    assert board.materialize()
    assert severity(board, "has_words") == dg.AssetCheckSeverity.WARN
    assert failed_checks(board.specs, board.recorded) == {}
    assert behind(board) == []


def test_a_failure_of_a_check_that_does_not_block_holds_up_nothing(board: NoticeBoard) -> None:
    board.say("n-0", "NO ENTRY")
    assert board.materialize()
    assert severity(board, "is_polite") == dg.AssetCheckSeverity.ERROR
    assert failed_checks(board.specs, board.recorded) == {}
    assert behind(board) == []


def test_checks_without_a_result_count_only_where_asked(board: NoticeBoard) -> None:
    assert failed_checks(board.specs, board.recorded) == {}
    assert failed_checks(board.specs, board.recorded, never_ran=True) == {NOTICES: ["has_words"]}
    assert board.materialize()
    assert failed_checks(board.specs, board.recorded, never_ran=True) == {}


def accepting(board: NoticeBoard, **accept: str) -> NoticeBoard:
    """The same dataset whose declaration accepts failures of these checks, name → why."""
    declaration = board.declaration.model_copy(update={"accept": accept})
    return replace(board, declaration=declaration, specs=notices_specs(declaration))


def test_an_accepted_failure_passes_with_its_reason_and_once_asked_for_again(board: NoticeBoard) -> None:
    board.say("n-0", "NO ENTRY")
    assert board.materialize()
    accepted = accepting(board, is_polite="signs are loud")
    assert failed_checks(accepted.specs, board.recorded) == {}, "it holds up nothing"
    assert failed_checks(accepted.specs, board.recorded, never_ran=True) == {NOTICES: ["is_polite"]}
    assert accepted.materialize()
    assert failed_checks(accepted.specs, board.recorded, never_ran=True) == {}
    key = dg.AssetCheckKey(dg.AssetKey(NOTICES), "is_polite")
    record = board.instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
    assert record.event is not None
    assert record.event.dagster_event is not None
    evaluation = record.event.dagster_event.asset_check_evaluation_data
    assert evaluation.passed
    assert str(evaluation.description).startswith("Accepted: signs are loud. 1 of 3 notices fails, first n-0: shouted")
    assert evaluation.metadata["accepted"].value == "signs are loud"
    for changed in (accepting(board, is_polite="another reason"), board):
        assert failed_checks(changed.specs, board.recorded, never_ran=True) == {NOTICES: ["is_polite"]}


def test_a_blocking_check_is_not_accepted(board: NoticeBoard) -> None:
    board.say("n-1", "")
    accepted = accepting(board, has_words="silence is golden")
    assert not accepted.materialize()
    assert failed_checks(accepted.specs, board.recorded) == {NOTICES: ["has_words"]}
