"""A product that nobody made for too long is seen among the checks; Dagster's own policy says the same."""

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.loader import LoadingContextForTest

from dataprep_assets.engine.card.products import find_products
from dataprep_assets.orchestration.sensors.freshness import FRESH, judge_freshness, was_just_materialized
from dataprep_assets.pipelines.corpus.component import TokenizedCorpus
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets_tests.orchestration.notice_board import NoticeBoard, notice_board
from dataprep_assets_tests.project import sample_attributes

SENSOR = "notices_freshness"
REPORT = dg.AssetKey(["notices", "report"])
WINDOW = timedelta(hours=36)


def told(board: NoticeBoard) -> dg.AssetCheckEvaluation | None:
    """The latest evaluation of the report's freshness."""
    key = dg.AssetCheckKey(REPORT, FRESH)
    record = board.instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)
    return record.event.asset_check_evaluation if record is not None and record.event is not None else None


def reported(board: NoticeBoard) -> Any:
    """A tick whose events are reported as the daemon does."""
    tick = board.tick(SENSOR)
    for event in tick.asset_events:
        board.instance.report_runless_asset_event(event)
    return tick


def test_a_window_is_judged_by_the_last_materialization() -> None:
    assert judge_freshness(0.0, 36 * 3600 - 1, WINDOW).passed
    late = judge_freshness(0.0, 36 * 3600, WINDOW)
    assert (late.passed, late.warning) == (False, True)
    assert late.summary == (
        "Last built at 1970-01-01 00:00 UTC, more than 36 h ago. Launch its job, or find out why no run was launched."
    )
    assert judge_freshness(None, 0.0, timedelta(days=2)).summary == "Never built; it should be built every 2 days."


def test_nothing_is_evaluated_in_the_second_of_the_materialization() -> None:
    """A database that keeps whole seconds would put the evaluation before it."""
    assert [was_just_materialized(10.4, now) for now in (10.4, 10.9, 11.0)] == [True, True, False]
    assert not was_just_materialized(None, 10.0)


def test_the_products_have_policy_and_check(tmp_path: Path) -> None:
    with notice_board(tmp_path, automation={"freshness": "36h"}) as board:
        assert [spec.name for spec in find_products(board.specs)] == ["report"]
        graph = board.definitions.get_repository_def().asset_graph
        policies = {key: graph.get(key).freshness_policy for key in graph.materializable_asset_keys}
        assert policies.pop(REPORT) == dg.FreshnessPolicy.time_window(fail_window=WINDOW)
        assert set(policies.values()) == {None}
        assert dg.AssetCheckKey(REPORT, FRESH) in graph.asset_check_keys


def test_views_are_the_products_of_a_corpus() -> None:
    corpus = CorpusDeclaration.model_validate(sample_attributes(views=["nanogpt", "olmo"]))
    assert [spec.name for spec in find_products(TokenizedCorpus(corpus).specs)] == ["nanogpt_bins", "olmo_bins"]


def test_a_stale_product_is_told_once_and_a_rerun_makes_it_fresh(tmp_path: Path) -> None:
    with notice_board(tmp_path, automation={"freshness": "60s"}) as board:
        never = reported(board)
        assert never.skip_message == "0 of 1 product is fresh; notices/report is not"
        evaluation = told(board)
        assert evaluation is not None
        assert (evaluation.passed, evaluation.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert board.tick(SENSOR).asset_events == []  # it was said
        assert board.materialize()
        time.sleep(1.1)  # an evaluation in the same second would count as one from before
        assert len(reported(board).asset_events) == 1
        made = told(board)
        assert made is not None
        assert made.passed
        fresh = board.tick(SENSOR)
        assert (fresh.asset_events, fresh.skip_message) == ([], "1 of 1 product is fresh")


def shown(board: NoticeBoard) -> bool:
    """Whether the UI shows the last evaluation as one of the last materialization."""
    key = dg.AssetCheckKey(REPORT, FRESH)
    record = board.instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
    return asyncio.run(record.targets_latest_materialization(LoadingContextForTest(board.instance)))


def test_a_product_that_is_made_again_is_told_again(tmp_path: Path) -> None:
    with notice_board(tmp_path, automation={"freshness": "36h"}) as board:
        board.materialize()
        job = board.definitions.resolve_implicit_global_asset_job_def()
        for _ in range(2):
            assert (
                job.get_subset(asset_selection={REPORT}, asset_check_selection=set())
                .execute_in_process(instance=board.instance, raise_on_error=False)
                .success
            )
            time.sleep(1.1)  # an evaluation in the same second would count as one from before
            assert len(reported(board).asset_events) == 1
            assert shown(board)
            assert board.tick(SENSOR).asset_events == []


def test_time_alone_makes_it_stale_without_a_run(tmp_path: Path) -> None:
    with notice_board(tmp_path, automation={"freshness": "36h"}) as board:
        made = dg.AssetMaterialization(REPORT)
        board.instance.report_runless_asset_event(made)
        assert reported(board).skip_message == "1 of 1 product is fresh"
        entry = board.instance.get_asset_records([REPORT])[0].asset_entry
        assert entry.last_materialization_record is not None
        at = entry.last_materialization_record.timestamp
        assert not judge_freshness(at, at + 36 * 3600, WINDOW).passed
        assert board.instance.get_runs() == []
