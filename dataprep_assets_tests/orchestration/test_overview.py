"""The overview page of all datasets shows the decisions of `dataprep status` and the records of Dagster."""

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from dataprep_assets.code_location import definitions_of
from dataprep_assets.engine.card.card import build_data_card_spec
from dataprep_assets.engine.card.contents import CardSubject
from dataprep_assets.engine.checks.results import UnpassedCheck
from dataprep_assets.errors import SourceError
from dataprep_assets.orchestration.overview import (
    DATASETS,
    DatasetState,
    build_overview,
    build_page,
    summarize_datasets,
)
from dataprep_assets.orchestration.partitions import DATASET
from dataprep_assets.orchestration.runs.planning import PLANNER
from dataprep_assets.project_template import write_project
from dataprep_assets_tests.engine.notices import make_notices_specs
from dataprep_assets_tests.orchestration.notice_board import NoticeBoard, make_notice_board

NUMBERS = ["to build", "checks failed", "checks warned"]
POLITE = (dg.AssetKey(["notices", "notices"]), "is_polite")


@pytest.fixture
def board(tmp_path: Path) -> Iterator[NoticeBoard]:
    # Use an instance on disk, because in memory all runs share one sequence of event ids.
    with make_notice_board(tmp_path, home=tmp_path / "home") as made:
        yield add_card(made)


def add_card(board: NoticeBoard) -> NoticeBoard:
    """Return the board with a data card, which counts its documents."""
    specs = make_notices_specs(board.declaration)
    card = CardSubject(
        declaration=board.declaration,
        specs=specs,
        products=[spec for spec in specs if spec.name == "board"],
        counted=[],
        sources=lambda _store, _receipts: [],
    )
    board.specs = [*specs, build_data_card_spec(card)]
    return board


def definitions(board: NoticeBoard) -> dg.Definitions:
    page_of = build_overview(lambda: every, lambda: {"notices": (board.specs, board.store)})
    every = dg.Definitions.merge(board.definitions, page_of)
    return every


def render_page(board: NoticeBoard) -> DatasetState:
    specs = list(board.definitions.resolve_all_asset_specs())
    (state,) = summarize_datasets({"notices": (board.specs, board.store)}, board.instance, specs)
    return state


def markdown(shown: dict[str, dg.MetadataValue], name: str) -> str:
    return str(shown[name].value)


def test_a_dataset_that_never_ran_is_on_the_page(board: NoticeBoard) -> None:
    state = render_page(board)
    assert (state.state, state.last_build, state.passed) == ("never run", None, 0)
    shown = build_page([state], {})
    assert list(shown) == [*NUMBERS, "all datasets", "details"]
    assert markdown(shown, "details") == "- **[notices](/assets/notices)**: never run"


def test_an_artifact_built_by_anyone_is_up_to_date(board: NoticeBoard) -> None:
    assert board.materialize()
    state = render_page(board)
    assert (state.state, state.to_build, dict(state.not_passed)) == ("up to date", 0, {})
    assert state.passed == 3
    assert state.last_build is not None
    assert state.last_build.dagster_run.run_id == board.instance.get_run_records()[0].dagster_run.run_id
    assert not state.is_broken
    # A different instance has no record of the build, as after a build by the command, so the page must not claim that
    # the dataset was never built.
    with dg.DagsterInstance.ephemeral() as other:
        (elsewhere,) = summarize_datasets({"notices": (board.specs, board.store)}, other)
    assert (elsewhere.state, elsewhere.last_build) == ("up to date", None)
    assert "never" not in markdown(build_page([elsewhere], {}), "details")


def test_a_stale_artifact_is_shown_with_the_reason_of_status(board: NoticeBoard) -> None:
    assert board.materialize()
    board.say("n-1", "another")
    state = render_page(board)
    assert state.to_build > 0
    assert state.state == f"{state.to_build} to build"
    assert "notices/notices/n-1" in state.why


def test_a_failed_check_is_shown_until_it_passes(board: NoticeBoard) -> None:
    board.say("n-1", "LEAVE")
    board.materialize()
    state = render_page(board)
    assert POLITE in state.not_passed
    assert state.not_passed[POLITE] == UnpassedCheck("shouted")
    assert state.is_broken
    text = markdown(build_page([state], {}), "needs attention 1")
    assert "[notices/is\\_polite](/assets/notices/notices?view=checks&checkDetail=is_polite)" in text
    board.say("n-1", "please leave")
    assert board.materialize()
    assert POLITE not in render_page(board).not_passed


def test_a_planning_run_is_not_the_last_build(board: NoticeBoard) -> None:
    (board.declaration.folder / "n-2.txt").unlink()
    assert not board.run(board.specs[0], partitions=["n-2"]).success
    (failed,) = board.instance.get_run_records()
    tags = {"dagster/sensor_name": PLANNER, DATASET: "notices"}
    board.say("n-2", "it is there again")
    assert board.run(board.specs[0], partitions=["n-2"], tags=tags).success
    state = render_page(board)
    assert state.last_build is not None
    assert state.last_build.dagster_run.run_id == failed.dagster_run.run_id
    assert state.is_broken
    assert "last build [failure " in markdown(build_page([state], {}), "needs attention 1")


def test_an_accepted_failure_needs_no_attention(board: NoticeBoard) -> None:
    board.declaration = board.declaration.model_copy(update={"accept": {"is_polite": "the guard shouts"}})
    add_card(board)
    board.say("n-1", "LEAVE")
    assert board.materialize()
    assert list(build_page([render_page(board)], {})) == [*NUMBERS, "all datasets", "details"]


def test_an_unreadable_store_is_shown(board: NoticeBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> bool:
        raise SourceError("the bucket cannot be reached")

    monkeypatch.setattr("dataprep_assets.orchestration.overview.is_never_built", unreachable)
    state = render_page(board)
    assert (state.state, state.why) == ("unknown", "the bucket cannot be reached")
    assert "the bucket cannot be reached" in markdown(build_page([state], {}), "needs attention 1")


def test_freshness_equals_dagsters(board: NoticeBoard) -> None:
    policy = dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=36))
    specs = [dg.AssetSpec(["notices", "board"], freshness_policy=policy)]
    (state,) = summarize_datasets({"notices": (board.specs, board.store)}, board.instance, specs)
    assert state.freshness == "UNKNOWN"


def test_a_sensitive_dataset_shows_no_small_count(tmp_path: Path) -> None:
    with make_notice_board(tmp_path, sensitive=True) as board:
        add_card(board)
        board.say("n-1", "LEAVE")
        board.materialize()
        state = render_page(board)
        assert POLITE in state.not_passed
        assert "1 of 3" not in state.not_passed[POLITE].sentence


def test_datasets_that_need_attention_come_first_and_are_expanded() -> None:
    results = {
        (dg.AssetKey(["b", "train", "bins"]), f"c{at}"): UnpassedCheck("a | <b> *c*" * 40, True) for at in range(30)
    }
    states = [
        DatasetState(dataset="a_long_name", state="up to date", passed=30),
        DatasetState(dataset="b", state="2 to build", to_build=2, not_passed=results),
        DatasetState(dataset="c", state="up to date", not_passed={(dg.AssetKey(["c"]), "x"): UnpassedCheck("odd")}),
    ]
    shown = build_page(states, {dg.AssetKey(["e", "cannot_be_loaded"]): "defs.yaml:3: splits: <wrong>"})
    assert list(shown) == [
        "cannot be loaded",
        *NUMBERS,
        "needs attention 1",
        "needs attention 2",
        "all datasets",
        "details",
    ]
    assert [shown[name].value for name in NUMBERS] == [2, 30, 1]
    assert markdown(shown, "cannot be loaded") == (
        "- [e](/assets/e/cannot_be_loaded): defs.yaml:3: splits: \\<wrong\\>"
    )
    text = markdown(shown, "needs attention 1")
    assert len(text) < 1_000, "the UI keeps longer Markdown behind a click"
    assert r"a \| \<b\> \*c\*" in text
    assert f"and {30 - text.count('- failed')} more" in text
    rows = [record.data for record in shown["all datasets"].value.records]  # type: ignore[union-attr]
    assert [str(row["dataset"]).replace("\u200b", "") for row in rows] == ["b", "c", "a_long_name"]


def test_an_invalid_declaration_is_listed_with_the_others(tmp_path: Path) -> None:
    write_project(root := tmp_path / "night_shift")
    folder = root / "night_shift" / "defs"
    (folder / "bad").mkdir()
    (folder / "bad" / "defs.yaml").write_text(
        "type: dataprep_assets.components.TokenizedCorpus\nattributes: {spilts: 1}\n"
    )
    sys.path.insert(0, str(root))
    try:
        job = definitions_of(root).resolve_implicit_global_asset_job_def()
        with dg.DagsterInstance.ephemeral() as instance:
            assert job.execute_in_process(asset_selection=[DATASETS], instance=instance).success
            event = instance.get_latest_materialization_event(DATASETS)
    finally:
        sys.path.remove(str(root))
    assert event is not None
    assert event.asset_materialization is not None
    shown = dict(event.asset_materialization.metadata)
    assert "[bad](/assets/bad/cannot_be_loaded)" in markdown(shown, "cannot be loaded")
    assert "defs.yaml:2: dataset: missing" in markdown(shown, "cannot be loaded").replace("\u200b", "")
    assert "never run" in markdown(shown, "details")


def test_the_sensor_rebuilds_the_page_only_after_a_run_ended(board: NoticeBoard) -> None:
    every = definitions(board)
    (sensor,) = every.sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    job = every.resolve_implicit_global_asset_job_def()

    def tick(cursor: str | None) -> tuple[object, str | None]:
        with dg.build_sensor_context(board.instance, cursor=cursor) as context:
            return sensor(context), context.cursor

    first, cursor = tick(None)
    assert isinstance(first, dg.RunRequest)
    assert first.asset_selection == [DATASETS]
    assert job.execute_in_process(asset_selection=[DATASETS], instance=board.instance).success
    assert isinstance(tick(cursor)[0], dg.SkipReason), "its own run changes nothing"
    board.materialize()
    assert isinstance(tick(cursor)[0], dg.RunRequest)
