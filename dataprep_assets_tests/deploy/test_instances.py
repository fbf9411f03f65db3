"""Every dagster.yaml in deploy/ starts as an instance with the limits that the assets' pools need."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import dagster as dg
import pytest
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._daemon.run_coordinator import QueuedRunCoordinatorDaemon

from dataprep_assets import open_project
from dataprep_assets.definitions import defs
from dataprep_assets.orchestration.runs.dataset_runs import describe_run_in_progress
from dataprep_assets.orchestration.runs.planning import add_planning
from dataprep_assets.orchestration.runs.runs import POOLS, end_lost_runs, limit_pools
from dataprep_assets_tests import forked
from dataprep_assets_tests.deploy.cluster import DEPLOY
from dataprep_assets_tests.deploy.postgres import run_postgres
from dataprep_assets_tests.orchestration.notice_board import make_notice_board
from dataprep_assets_tests.project import project, sample_attributes
from dataprep_assets_tests.servers import wait_until

ENDLESS = ("-m", "dataprep_assets_tests.orchestration.endless_run")


@contextmanager
def open_instance(name: str, home: Path, environment: dict[str, str]) -> Iterator[dg.DagsterInstance]:
    """Return the instance of `deploy/<name>/dagster.yaml` in its own home."""
    home.mkdir()
    shutil.copy(DEPLOY / name / "dagster.yaml", home)
    places = {"DAGSTER_HOME": str(home)}
    with mock.patch.dict(os.environ, places | environment), dg.DagsterInstance.from_config(str(home)) as found:
        yield found


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    pytest.importorskip("dagster_postgres", reason="the extra `k8s` (with dagster-postgres) is not installed")
    folder = tmp_path_factory.mktemp("compose")
    with run_postgres() as environment:
        places = {"DAGSTER_COMPUTE_LOGS": str(folder / "logs"), "DAGSTER_LOCAL_STORAGE": str(folder / "storage")}
        yield environment | places


def test_the_local_instance_recovers_and_limits_runs(tmp_path: Path) -> None:
    with open_instance("local", tmp_path / "home", {}) as found:
        assert found.run_monitoring_enabled
        assert found.run_monitoring_settings["free_slots_after_run_end_seconds"] > 0
        assert found.run_retries_max_retries == 2
        assert found.run_retries_retry_on_asset_or_op_failure is False, "a bad file does not heal by itself"
        assert found.get_concurrency_config().pool_config.default_pool_limit == 1
        assert not found.telemetry_enabled


def test_the_team_instance_is_on_postgres_and_recovers_only_from_crashes(
    tmp_path: Path, database: dict[str, str]
) -> None:
    with open_instance("compose", tmp_path / "home", database) as found:
        assert type(found.event_log_storage).__name__ == "PostgresEventLogStorage"
        assert type(found.run_storage).__name__ == "PostgresRunStorage"
        assert type(found.run_coordinator).__name__ == "QueuedRunCoordinator"
        assert found.run_monitoring_settings["free_slots_after_run_end_seconds"] > 0
        assert found.run_retries_max_retries == 3
        assert found.run_retries_retry_on_asset_or_op_failure is False
        limits = found.get_concurrency_config()
        assert limits.pool_config.default_pool_limit == 1
        assert limits.run_queue_config is not None
        assert limits.run_queue_config.max_concurrent_runs == 8
        run = found.create_run_for_job(dg.JobDefinition(name="nothing", graph_def=dg.GraphDefinition(name="nothing")))
        assert found.get_run_by_id(run.run_id) is not None


def count_started(instance: dg.DagsterInstance, pool: str) -> int:
    """Return how many of three queued runs of a pool Dagster's daemon would start now."""

    @dg.op(pool=pool)
    def work() -> None: ...

    @dg.job
    def batch() -> None:
        work()

    origin = RemoteJobOrigin(RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("location"), "repository"), "batch")
    for _ in range(3):
        instance.create_run_for_job(batch, status=dg.DagsterRunStatus.QUEUED, remote_job_origin=origin)
    daemon = QueuedRunCoordinatorDaemon(interval_seconds=5)
    return len(daemon._get_runs_to_dequeue(instance, instance.get_concurrency_config(), None))


def test_a_pool_limit_of_one_holds_for_the_first_runs_in_a_fresh_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    with open_project().instance() as found:
        assert {pool.name: pool.limit for pool in found.event_log_storage.get_pool_limits()} == dict.fromkeys(
            POOLS.values(), 1
        )
        assert count_started(found, POOLS["cpu"]) == 1
        found.event_log_storage.set_concurrency_slots(POOLS["network"], 5)
    with open_project().instance() as found:
        assert found.event_log_storage.get_concurrency_info(POOLS["network"]).slot_count == 5, "an operator's stays"


def test_a_pool_limit_of_one_holds_for_the_first_runs_on_a_fresh_postgres(
    tmp_path: Path, database: dict[str, str]
) -> None:
    with open_instance("compose", tmp_path / "home", database) as found:
        for pool in POOLS.values():  # like the service `pools`, whose exact command `test_services` runs
            found.event_log_storage.set_concurrency_slots(pool, 1)
        assert count_started(found, POOLS["cpu"]) == 1


def test_the_run_of_a_killed_command_is_ended_and_blocks_nothing(tmp_path: Path) -> None:
    """Dagster watches only the processes of its own launcher, and a command's run belongs to none."""
    with make_notice_board(tmp_path) as board:
        repository = add_planning(board.definitions).get_repository_def()
    with open_instance("local", tmp_path / "home", {}) as found:
        limit_pools(found)
        environment = {**os.environ, "DAGSTER_HOME": str(tmp_path / "home")}
        running = forked.start([*ENDLESS, str(tmp_path)], env=environment)
        try:
            wait_until(lambda: (tmp_path / "at_work").exists(), 240)
            (run,) = found.get_runs()
            assert end_lost_runs(found) == [], "it is at work"
            assert describe_run_in_progress(found, "notices") == f"run {run.run_id[:8]} of notices is started"
            assert count_started(found, POOLS["network"]) == 0, "it has the pool"
        finally:
            running.kill()
            running.wait()
        repository.get_sensor_def("end_lost_runs").evaluate_tick(dg.build_sensor_context(found))
        ended = found.get_run_by_id(run.run_id)
        assert ended is not None
        assert ended.status == dg.DagsterRunStatus.FAILURE
        (failure,) = found.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
        assert "was killed" in (failure.get_dagster_event().message or "")
        assert describe_run_in_progress(found, "notices") is None
        assert count_started(found, POOLS["network"]) == 1
        assert end_lost_runs(found) == []
        assert list((tmp_path / "home").rglob("dataprep_runs/*")) == []


def test_the_limited_pools_are_the_assets_pools(tmp_path: Path) -> None:
    with project(sample_attributes(), tmp_path / "project") as made:
        pools = {
            node.pool for node in made.definitions.resolve_all_job_defs()[0].all_node_defs if hasattr(node, "pool")
        }
    assert set(POOLS.values()) <= pools


def test_a_run_starts_no_process_per_step_that_could_outlive_it() -> None:
    job = defs().resolve_implicit_global_asset_job_def()
    assert job.executor_def is dg.in_process_executor
