"""A product that was not built for too long fails a check, in agreement with Dagster's own policy."""

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
from dataprep_assets_tests.orchestration.notice_board import NoticeBoard, make_notice_board
from dataprep_assets_tests.project import sample_attributes

SENSOR = "notices_freshness"
REPORT = dg.AssetKey(["notices", "report"])
WINDOW = timedelta(hours=36)


def read_freshness(board: NoticeBoard) -> dg.AssetCheckEvaluation | None:
    """Return the latest evaluation of the report's freshness."""
    key = dg.AssetCheckKey(REPORT, FRESH)
    record = board.instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)
    return record.event.asset_check_evaluation if record is not None and record.event is not None else None


def run_tick(board: NoticeBoard) -> Any:
    """Run a tick and report its events as the daemon does."""
    tick = board.tick(SENSOR)
    for event in tick.asset_events:
        board.instance.report_runless_asset_event(event)
    return tick


def test_the_age_is_measured_from_the_last_materialization() -> None:
    assert judge_freshness(0.0, 36 * 3600 - 1, WINDOW).passed
    late = judge_freshness(0.0, 36 * 3600, WINDOW)
    assert (late.passed, late.warning) == (False, True)
    assert late.summary == (
        "Last built at 1970-01-01 00:00 UTC, more than 36 h ago. Launch its job, or find out why no run was launched."
    )
    assert judge_freshness(None, 0.0, timedelta(days=2)).summary == "Never built; it should be built every 2 days."


def test_nothing_is_evaluated_in_the_second_of_the_materialization() -> None:
    """A database that stores whole seconds would order the evaluation before the materialization."""
    assert [was_just_materialized(10.4, now) for now in (10.4, 10.9, 11.0)] == [True, True, False]
    assert not was_just_materialized(None, 10.0)


def test_products_have_a_policy_and_a_check(tmp_path: Path) -> None:
    with make_notice_board(tmp_path, automation={"freshness": "36h"}) as board:
        assert [spec.name for spec in find_products(board.specs)] == ["report"]
        graph = board.definitions.get_repository_def().asset_graph
        policies = {key: graph.get(key).freshness_policy for key in graph.materializable_asset_keys}
        assert policies.pop(REPORT) == dg.FreshnessPolicy.time_window(fail_window=WINDOW)
        assert set(policies.values()) == {None}
        assert dg.AssetCheckKey(REPORT, FRESH) in graph.asset_check_keys


def test_views_are_the_products_of_a_corpus() -> None:
    corpus = CorpusDeclaration.model_validate(sample_attributes(views=["nanogpt", "olmo"]))
    assert [spec.name for spec in find_products(TokenizedCorpus(corpus).specs)] == ["nanogpt_bins", "olmo_bins"]


def test_a_stale_product_is_reported_once_and_a_rerun_makes_it_fresh(tmp_path: Path) -> None:
    with make_notice_board(tmp_path, automation={"freshness": "60s"}) as board:
        never = run_tick(board)
        assert never.skip_message == "0 of 1 product is fresh; notices/report is not"
        evaluation = read_freshness(board)
        assert evaluation is not None
        assert (evaluation.passed, evaluation.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert board.tick(SENSOR).asset_events == []  # the stale product was already reported
        assert board.materialize()
        time.sleep(1.1)  # an evaluation in the same second would count as an earlier one
        assert len(run_tick(board).asset_events) == 1
        made = read_freshness(board)
        assert made is not None
        assert made.passed
        fresh = board.tick(SENSOR)
        assert (fresh.asset_events, fresh.skip_message) == ([], "1 of 1 product is fresh")


def is_shown(board: NoticeBoard) -> bool:
    """Return whether the UI shows the last evaluation as one of the last materialization."""
    key = dg.AssetCheckKey(REPORT, FRESH)
    record = board.instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
    return asyncio.run(record.targets_latest_materialization(LoadingContextForTest(board.instance)))


def test_a_rebuilt_product_is_reported_again(tmp_path: Path) -> None:
    with make_notice_board(tmp_path, automation={"freshness": "36h"}) as board:
        board.materialize()
        job = board.definitions.resolve_implicit_global_asset_job_def()
        for _ in range(2):
            assert (
                job.get_subset(asset_selection={REPORT}, asset_check_selection=set())
                .execute_in_process(instance=board.instance, raise_on_error=False)
                .success
            )
            time.sleep(1.1)  # an evaluation in the same second would count as an earlier one
            assert len(run_tick(board).asset_events) == 1
            assert is_shown(board)
            assert board.tick(SENSOR).asset_events == []


def test_a_product_becomes_stale_over_time_without_a_run(tmp_path: Path) -> None:
    with make_notice_board(tmp_path, automation={"freshness": "36h"}) as board:
        made = dg.AssetMaterialization(REPORT)
        board.instance.report_runless_asset_event(made)
        assert run_tick(board).skip_message == "1 of 1 product is fresh"
        entry = board.instance.get_asset_records([REPORT])[0].asset_entry
        assert entry.last_materialization_record is not None
        at = entry.last_materialization_record.timestamp
        assert not judge_freshness(at, at + 36 * 3600, WINDOW).passed
        assert board.instance.get_runs() == []
