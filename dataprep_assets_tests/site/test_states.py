"""The state of a dataset shows the decisions of `dataprep status` and the records of Dagster."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dataprep_assets.engine.checks.results import UnpassedCheck
from dataprep_assets.errors import SourceError
from dataprep_assets.orchestration.partitions import DATASET
from dataprep_assets.orchestration.runs.planning import PLANNER
from dataprep_assets.site.overview import describe_overview
from dataprep_assets.site.pages import PageEnvironment
from dataprep_assets.site.states import DatasetState, summarize_datasets
from dataprep_assets.site.stored import StoredDataset
from dataprep_assets_tests.engine.notices_dataset import NoticesDataset
from dataprep_assets_tests.orchestration.notice_board import NoticeBoard, make_notice_board

UNREACHABLE = "the bucket cannot be reached"
POLITE = ("notices", "is_polite")


@pytest.fixture
def board(tmp_path: Path) -> Iterator[NoticeBoard]:
    # Use an instance on disk, because in memory all runs share one sequence of event ids.
    with make_notice_board(tmp_path, home=tmp_path / "home") as made:
        add_card(made)
        yield made


def add_card(board: NoticeBoard) -> StoredDataset:
    """Give the board a data card, which counts its documents, and return its dataset."""
    dataset = NoticesDataset(board.declaration)
    board.specs = dataset.specs
    return StoredDataset(dataset, board.store)


def summarize(board: NoticeBoard, **changes: Any) -> DatasetState:
    board.declaration = board.declaration.model_copy(update=changes)
    (state,) = summarize_datasets([add_card(board)], board.instance)
    return state


def render(*states: DatasetState) -> str:
    return describe_overview(states, {}).render(PageEnvironment())


def test_a_dataset_that_never_ran_is_never_built(board: NoticeBoard) -> None:
    state = summarize(board)
    assert (state.state, state.level, state.last_build, state.passed) == ("never built", "never built", None, 0)
    assert "Needs attention" not in render(state)


def test_an_artifact_built_by_anyone_is_up_to_date(board: NoticeBoard) -> None:
    assert board.materialize()
    state = summarize(board)
    assert (state.state, state.level, state.to_build, dict(state.not_passed)) == ("up to date", "up to date", 0, {})
    assert state.passed == 3
    assert state.last_build is not None
    assert state.last_build.dagster_run.run_id == board.instance.get_run_records()[0].dagster_run.run_id
    assert state.last_success == state.last_build
    # A different instance has no record of the build, as after a build by the command, so the page must not claim that
    # the dataset was never built.
    with dg.DagsterInstance.ephemeral() as other:
        (elsewhere,) = summarize_datasets([add_card(board)], other)
    assert (elsewhere.state, elsewhere.last_build) == ("up to date", None)
    assert "never" not in render(elsewhere)


def test_a_stale_artifact_is_shown_with_the_reason_of_status(board: NoticeBoard) -> None:
    assert board.materialize()
    board.say("n-1", "another")
    state = summarize(board)
    assert state.to_build > 0
    assert (state.state, state.level) == (f"{state.to_build} to build", "out of date")
    assert "notices/notices/n-1" in state.why
    assert "dataprep run notices<" in render(state)


def test_a_failed_check_is_shown_until_it_passes(board: NoticeBoard) -> None:
    board.say("n-1", "LEAVE")
    board.materialize()
    state = summarize(board)
    assert state.not_passed[POLITE] == UnpassedCheck("shouted")
    assert state.level == "warned"
    page = render(state)
    assert "notices: is_polite" in page
    assert 'data-dagster="assets/notices/notices?view=checks&amp;checkDetail=is_polite"' in page
    board.say("n-1", "please leave")
    assert board.materialize()
    assert POLITE not in summarize(board).not_passed


def test_a_planning_run_is_not_the_last_build(board: NoticeBoard) -> None:
    (board.declaration.folder / "n-2.txt").unlink()
    assert not board.run(board.specs[0], partitions=["n-2"]).success
    (failed,) = board.instance.get_run_records()
    tags = {"dagster/sensor_name": PLANNER, DATASET: "notices"}
    board.say("n-2", "it is there again")
    assert board.run(board.specs[0], partitions=["n-2"], tags=tags).success
    state = summarize(board)
    assert state.last_build is not None
    assert state.last_build.dagster_run.run_id == failed.dagster_run.run_id
    assert (state.level, state.last_success) == ("failed", None)
    page = render(state)
    assert "last run: failure" in page
    assert [problem.what for problem in describe_overview([state], {}).facts["problems"]] == ["run failed"]
    assert f'data-dagster="runs/{failed.dagster_run.run_id}"' in page


def test_the_last_success_is_before_a_failed_run(board: NoticeBoard) -> None:
    assert board.materialize()
    (success,) = board.instance.get_run_records()
    (board.declaration.folder / "n-2.txt").unlink()
    assert not board.run(board.specs[0], partitions=["n-2"]).success
    state = summarize(board)
    assert state.has_failed_run
    assert state.last_success is not None
    assert state.last_success.dagster_run.run_id == success.dagster_run.run_id


def test_an_accepted_failure_needs_no_attention(board: NoticeBoard) -> None:
    board.declaration = board.declaration.model_copy(update={"accept": {"is_polite": "the guard shouts"}})
    add_card(board)
    board.say("n-1", "LEAVE")
    assert board.materialize()
    assert summarize(board).level == "up to date"


def test_an_unreadable_store_is_unknown(board: NoticeBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> bool:
        raise SourceError(UNREACHABLE)

    monkeypatch.setattr("dataprep_assets.site.stored.is_never_built", unreachable)
    state = summarize(board)
    assert (state.state, state.level, state.why) == ("unknown", "unknown", UNREACHABLE)
    assert UNREACHABLE in render(state)


def test_freshness_equals_dagsters(tmp_path: Path) -> None:
    automation = {"freshness": "36h"}
    with make_notice_board(tmp_path, automation=automation) as board:
        assert board.declaration.automation is not None
        assert board.declaration.automation.window == timedelta(hours=36)
        state = summarize(board)
    assert state.freshness == "UNKNOWN"
    assert "freshness: unknown" in render(state)


def test_a_sensitive_dataset_shows_no_small_count(tmp_path: Path) -> None:
    with make_notice_board(tmp_path, sensitive=True) as board:
        add_card(board)
        board.say("n-1", "LEAVE")
        board.materialize()
        state = summarize(board)
        assert "1 of 3" not in state.not_passed[POLITE].sentence
        assert "shouted" not in render(state)
