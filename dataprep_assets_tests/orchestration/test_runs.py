"""A dataset built in this process: its messages, and the check results that make the next command build or check."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
import sqlalchemy

from dataprep_assets.engine.staleness.decide import Decision
from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.orchestration.partitions import DATASET
from dataprep_assets.orchestration.runs.runs import RunEnd, raise_interruptions
from dataprep_assets_tests.engine.notices import make_notices_specs
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.orchestration.notice_board import NoticeBoard, make_notice_board

NOTICES = ("notices", "notices")


@pytest.fixture
def board(tmp_path: Path) -> Iterator[NoticeBoard]:
    with make_notice_board(tmp_path) as made:
        yield made


def find_pending(board: NoticeBoard) -> list[Decision]:
    """Return the work that `dataprep run` finds first; empty if everything is up to date."""
    return list(find_stale(board.specs, board.store))


def read_severity(board: NoticeBoard, name: str) -> dg.AssetCheckSeverity:
    """Return the severity of the latest evaluation of a check of the notices, which failed."""
    key = dg.AssetCheckKey(dg.AssetKey(NOTICES), name)
    record = board.instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
    assert record.event is not None
    assert record.event.dagster_event is not None
    evaluation = record.event.dagster_event.asset_check_evaluation_data
    assert not evaluation.passed
    return evaluation.severity


def test_building_all_artifacts_in_order_leaves_no_work(board: NoticeBoard) -> None:
    assert board.materialize()
    assert find_pending(board) == []
    assert (board.store.local(board.declaration.artifact("board")) / "board.txt").read_text().count("\n") == 3
    (run,) = board.instance.get_runs()
    assert run.tags[DATASET] == "notices"
    assert run.tags["dagster/max_retries"] == "0"


def test_a_failed_step_blocks_downstream_artifacts_with_the_reason(board: NoticeBoard) -> None:
    (board.declaration.folder / "n-1.txt").unlink()
    result = board.executed()
    assert (result.ended, result.checks) == (RunEnd.FAILED, ())
    (failure,) = result.failures
    assert failure.where == "notices/notices"
    assert failure.why.startswith("1 of 3 notices failed")
    assert "n-1.txt: is not there" in failure.why
    assert board.store.receipt(board.declaration.artifact("board")) is None


def test_a_failed_blocking_check_blocks_downstream_artifacts_and_is_reported(board: NoticeBoard) -> None:
    board.say("n-1", "")
    result = board.executed()
    assert result.ended == RunEnd.FAILED
    assert result.checks == ("check has_words: 1 of 3 notices fails; the first is n-1: 0 words",)
    assert result.failures == (), "said once"
    assert read_severity(board, "has_words") == dg.AssetCheckSeverity.ERROR
    assert str(find_pending(board)[0]) == "notices/notices/n-1: its blocking check has_words failed: 0 words"
    board.say("n-1", "now it says something")
    assert board.materialize()
    assert find_pending(board) == []


def test_an_artifact_that_failed_its_check_is_rebuilt_once_and_then_needs_a_person(board: NoticeBoard) -> None:
    board.say("n-1", "")
    notice = board.declaration.artifact("notices", "n-1")

    def made() -> str | None:
        return board.store.receipt_versions([notice])[0]

    assert not board.materialize()
    first = made()
    assert not board.materialize()
    second = made()
    assert second != first, "it is built again"
    result = board.executed()
    assert result.ended == RunEnd.FAILED
    assert made() == second, "but once"
    (told,) = result.checks
    assert_names(told, board.store.location(notice))
    assert "after a rebuild: 0 words" in str(find_pending(board)[0])
    (board.store.directory(notice) / "receipt.json").unlink()
    assert not board.materialize()
    assert made() is not None, "whoever deletes it has it built once more"
    board.say("n-1", "now it says something")
    assert board.materialize()
    assert find_pending(board) == []


def test_a_run_does_not_repeat_passed_checks_unless_it_only_checks(board: NoticeBoard) -> None:
    assert board.materialize()
    verdicts = {path: path.read_bytes() for path in (board.store.root / "notices" / ".findings").rglob("n-*.json")}
    assert len(verdicts) == 3
    board.say("n-1", "another word")
    assert board.materialize()
    changed = [path.stem for path, before in verdicts.items() if path.read_bytes() != before]
    assert changed == ["n-1"]
    checks = board.definitions.resolve_implicit_global_asset_job_def().get_subset(
        asset_check_selection={dg.AssetCheckKey(dg.AssetKey(NOTICES), "has_words")}, asset_selection=set()
    )
    assert checks.execute_in_process(instance=board.instance).success
    assert all(path.read_bytes() != before for path, before in verdicts.items())


def test_a_warning_of_a_blocking_check_blocks_nothing_and_the_next_run_is_a_no_op(
    board: NoticeBoard,
) -> None:
    board.say("n-2", " ")
    assert board.materialize()
    assert read_severity(board, "has_words") == dg.AssetCheckSeverity.WARN
    assert board.left("not evaluated") == set()
    assert find_pending(board) == []


def test_a_failure_of_a_non_blocking_check_blocks_nothing(board: NoticeBoard) -> None:
    board.say("n-0", "NO ENTRY")
    assert board.materialize()
    assert read_severity(board, "is_polite") == dg.AssetCheckSeverity.ERROR
    assert board.left("not evaluated") == set()
    assert find_pending(board) == []


def test_blocking_checks_without_a_result_are_evaluated(board: NoticeBoard) -> None:
    assert board.left("not evaluated") == {"notices"}
    assert board.materialize()
    assert board.left("not evaluated") == set()


def accept_failures(board: NoticeBoard, **accept: str) -> NoticeBoard:
    """Return the dataset with a declaration that accepts failures of these checks, name → reason."""
    declaration = board.declaration.model_copy(update={"accept": accept})
    return replace(board, declaration=declaration, specs=make_notices_specs(declaration))


def test_an_accepted_failure_passes_with_its_reason_and_is_checked_again_only_on_request(board: NoticeBoard) -> None:
    board.say("n-0", "NO ENTRY")
    assert board.materialize()
    accepted = accept_failures(board, is_polite="signs are loud")
    assert find_pending(accepted) == [], "it holds up nothing"
    assert accepted.left("not evaluated") == {"notices"}
    assert accepted.materialize()
    assert accepted.left("not evaluated") == set()
    key = dg.AssetCheckKey(dg.AssetKey(NOTICES), "is_polite")
    record = board.instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
    assert record.event is not None
    assert record.event.dagster_event is not None
    evaluation = record.event.dagster_event.asset_check_evaluation_data
    assert evaluation.passed
    assert str(evaluation.description).startswith(
        "Accepted: signs are loud. 1 of 3 notices fails (0 checked now, 3 before); the first is n-0"
    )
    assert evaluation.metadata["accepted"].value == "signs are loud"
    for changed in (accept_failures(board, is_polite="another reason"), board):
        assert changed.left("not evaluated") == {"notices"}


def test_a_failure_of_a_blocking_check_cannot_be_accepted(board: NoticeBoard) -> None:
    board.say("n-1", "")
    accepted = accept_failures(board, has_words="silence is golden")
    assert not accepted.materialize()
    assert accepted.left("not evaluated") == {"notices"}


def test_a_run_whose_end_could_not_be_recorded_is_ended_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_notice_board(tmp_path, home=tmp_path / "home") as board:
        store, stored = board.instance.event_log_storage, list[object]()
        before = store.store_event

        def full(event: dg.EventLogEntry) -> None:
            stored.append(event)
            if len(stored) > 6:
                raise OSError("database or disk is full")
            before(event)

        with monkeypatch.context() as patch:
            patch.setattr(store, "store_event", full)
            with raises(OSError, "disk is full"):
                board.executed()
        (lost,) = board.instance.get_runs()
        assert lost.status == dg.DagsterRunStatus.STARTED
        assert board.materialize()
        ended = board.instance.get_run_by_id(lost.run_id)
        assert ended is not None
        assert ended.status == dg.DagsterRunStatus.FAILURE
        assert list((tmp_path / "home").rglob("dataprep_runs/*")) == []


def test_a_run_of_assets_is_tagged_with_its_dataset(board: NoticeBoard) -> None:
    assert board.run(board.specs[0], partitions=["n-1"]).success
    (run,) = board.instance.get_runs()
    assert run.tags[DATASET] == "notices"


def test_an_interrupt_that_a_finalizer_swallows_is_raised_again(capfd: pytest.CaptureFixture[str]) -> None:
    class Finalized:
        def __del__(self) -> None:
            # Dagster's handler for Ctrl-C may raise this error anywhere in Python code.
            raise dg.DagsterExecutionInterruptedError

    def interrupted() -> None:
        with raise_interruptions():
            Finalized()
            time.sleep(60)
            raise AssertionError("not interrupted")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert capfd.readouterr().err == "", "no stack"


def test_an_interrupt_while_a_connection_closes_prints_no_traceback(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.NullPool)

    def interrupt(connection: object) -> None:
        raise dg.DagsterExecutionInterruptedError

    connection = engine.connect()
    monkeypatch.setattr(engine.dialect, "do_close", interrupt)
    with raise_interruptions(), pytest.raises(dg.DagsterExecutionInterruptedError):
        connection.close()
    assert not [record for record in caplog.records if record.exc_info]
