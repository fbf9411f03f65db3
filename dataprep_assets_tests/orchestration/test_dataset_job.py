"""The job of a dataset: one launch makes all of it, in its own run or by a backfill, and says when there is nothing."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dataprep_assets.orchestration import dataset_job
from dataprep_assets.orchestration.dataset_job import CONTINUES
from dataprep_assets.orchestration.instance_records import InstanceRecords
from dataprep_assets.orchestration.keys import DATASET, job_name
from dataprep_assets.orchestration.needed import needed, up_to_date
from dataprep_assets_tests.orchestration.notice_board import NoticeBoard, notice_board
from dataprep_assets_tests.project import failure_of, project, sample_attributes


@pytest.fixture
def board(tmp_path: Path) -> Iterator[NoticeBoard]:
    with notice_board(tmp_path) as made:
        yield made


def build(board: NoticeBoard) -> dg.ExecuteInProcessResult:
    """One launch of the job, as a run worker does it: with the repository that it is a job of."""
    job = board.definitions.get_repository_def().get_job(job_name("notices"))
    return job.execute_in_process(instance=board.instance, raise_on_error=False)


def outcome(result: dg.ExecuteInProcessResult) -> str:
    """What the job says of itself."""
    assert result.success, failure_of(result)
    (output,) = [event for event in result.all_node_events if event.is_successful_output]
    return str(output.step_output_data.metadata["outcome"].value)


def test_a_small_dataset_is_made_by_the_jobs_own_run_and_then_there_is_nothing_to_do(board: NoticeBoard) -> None:
    assert not up_to_date(board.specs, board.store, board.recorded)
    assert outcome(build(board)) == "notices: made and checked"
    assert up_to_date(board.specs, board.store, board.recorded)
    assert len(board.instance.get_materialized_partitions(dg.AssetKey(["notices", "notices"]))) == 3
    runs = board.instance.get_runs_count()
    assert outcome(build(board)) == "notices: all is up to date and green, nothing to do"
    assert board.instance.get_runs_count() == runs + 1
    assert board.instance.get_backfills() == []


def test_a_failure_is_the_jobs_own_in_the_words_of_what_failed_and_the_next_launch_repairs(board: NoticeBoard) -> None:
    board.say("n-1", "")
    result = build(board)
    assert not result.success
    (failure,) = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    assert failure.user_failure_data is not None
    said = failure.user_failure_data.description or ""
    assert "check has_words: 1 of 3 notices fails, first n-1: 0 words" in said
    assert said.startswith("notices: ")
    board.say("n-1", "mended")
    assert outcome(build(board)) == "notices: made and checked"


def test_of_a_large_dataset_a_backfill_makes_what_is_not_current(
    board: NoticeBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_job, "MOST_IN_A_RUN", 2)
    said = outcome(build(board))
    (backfill,) = board.instance.get_backfills()
    assert f"backfill {backfill.backfill_id} makes 3 assets (5 partitions)" in said
    assert backfill.tags == {DATASET: "notices"}
    assert backfill.title == "build_notices"
    data = backfill.get_asset_backfill_data(board.definitions.get_repository_def().asset_graph)
    assert set(data.target_subset.get_partitions_subset(dg.AssetKey(["notices", "notices"])).get_partition_keys()) == {
        "n-0",
        "n-1",
        "n-2",
    }


@pytest.fixture(params=["pods", "pools of steps"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance where no asset may be made by the process of the job's run."""
    config: dict[str, Any] = {"telemetry": {"enabled": False}}
    if request.param == "pods":  # a run without a pod of its own would be taken for lost
        pytest.importorskip("dagster_k8s", reason="the extra `k8s` is not installed")
        cluster = {"name": "none", "cluster": {"server": "https://127.0.0.1:1"}}
        context = {"name": "none", "context": {"cluster": "none", "user": "none"}}
        kubeconfig = {"clusters": [cluster], "contexts": [context], "current-context": "none"}
        (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig | {"users": [{"name": "none", "user": {}}]}))
        names = dict.fromkeys(("service_account_name", "instance_config_map", "postgres_password_secret"), "dagster")
        where = {"load_incluster_config": False, "kubeconfig_file": str(tmp_path / "kubeconfig"), "job_image": "none"}
        settings = {**names, **where, "dagster_home": "/opt/dagster/home"}
        config["run_launcher"] = {"module": "dagster_k8s", "class": "K8sRunLauncher", "config": settings}
    else:  # a step inside the job's own would wait for the pool for ever
        config["concurrency"] = {"pools": {"default_limit": 1, "granularity": "op"}}
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text(json.dumps(config))
    with dg.DagsterInstance.from_config(str(home)) as made:
        yield made


def test_where_runs_have_their_own_place_a_backfill_makes_a_small_dataset_too(
    board: NoticeBoard, elsewhere: dg.DagsterInstance
) -> None:
    there = replace(board, instance=elsewhere)
    said = outcome(build(there))
    (backfill,) = elsewhere.get_backfills()
    assert said == (
        f"notices: backfill {backfill.backfill_id} makes 3 assets (5 partitions); watch it under Runs, Backfills"
    )
    assert CONTINUES not in backfill.tags
    assert elsewhere.get_runs_count() == 1, "the job's own"
    assert elsewhere.get_materialized_partitions(dg.AssetKey(["notices", "notices"])) == set()


def test_where_runs_have_their_own_place_a_new_dataset_is_planned_first_and_then_continued(
    elsewhere: dg.DagsterInstance, tmp_path: Path
) -> None:
    with project(sample_attributes(), tmp_path / "corpus") as made:
        job = made.definitions.get_repository_def().get_job(job_name("corpus"))
        said = outcome(job.execute_in_process(instance=elsewhere, raise_on_error=False))
        (backfill,) = elsewhere.get_backfills()
        assert said.endswith("Backfills; the job is launched again when it has succeeded")
        assert backfill.tags[CONTINUES] == "true"
        assert set(backfill.asset_selection or ()) == {made.key("manifest"), made.key("engine_certificate")}


def test_what_is_needed_is_the_range_that_is_not_current_and_all_that_is_made_of_it(board: NoticeBoard) -> None:
    notices, report_of = board.specs[0], board.specs[1:]
    assert needed(board.specs, board.store, board.recorded)[notices] == ("n-0", "n-1", "n-2")
    assert board.materialize()
    assert needed(board.specs, board.store, board.recorded) == {}
    board.say("n-1", "another")
    found = needed(board.specs, board.store, board.recorded)
    assert found[notices] == ("n-1",)
    assert set(found) == {notices, *report_of}


def test_what_another_instance_made_is_shown_by_this_one(board: NoticeBoard) -> None:
    assert board.materialize()
    with dg.DagsterInstance.ephemeral() as other:
        assert not up_to_date(board.specs, board.store, InstanceRecords(other))
        assert set(needed(board.specs, board.store, InstanceRecords(other))) == set(board.specs)
