"""The services of a user's own project in compose, as `dataprep init --deploy compose` writes them.

Compose's own commands start them: the tests reload a new dataset, run health checks, use the Launchpad, and read logs.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._daemon.controller import all_daemons_healthy

from dataprep_assets.orchestration.partitions import asset_key
from dataprep_assets.orchestration.runs.runs import POOLS
from dataprep_assets.pipelines.corpus.component import TokenizedCorpus
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.project_template import write_project
from dataprep_assets.project_template.deployment import DeployTarget, write_deployment
from dataprep_assets.site.asset import DATASETS
from dataprep_assets_tests.deploy.cluster import SCRIPTS, Cluster, create_deployment
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.project import sample_attributes
from dataprep_assets_tests.samples import SAMPLE, shrink

pytest.importorskip("dagster_postgres", reason="the extra `k8s` (with dagster-postgres) is not installed")
pytestmark = pytest.mark.slow

MANIFEST = asset_key(
    TokenizedCorpus(CorpusDeclaration.model_validate(sample_attributes(dataset="sample_corpus"))).spec("manifest")
)
DOWNSTREAM = f"""
from pathlib import Path

import dagster as dg

from dataprep_assets.integrity.artifacts import ArtifactHandle
from dataprep_assets.resources import build_resources


# made in another code location
upstream = dg.AssetSpec({list(MANIFEST.path)!r}).with_io_manager_key("artifacts")


@dg.asset(ins={{"manifest": dg.AssetIn(upstream.key)}})
def trained(manifest: ArtifactHandle) -> dg.MaterializeResult:
    lines = manifest.read("manifest.jsonl")
    return dg.MaterializeResult(metadata={{"content": manifest.receipt.content, "bytes": len(lines)}})


defs = dg.Definitions(assets=[upstream, trained], resources=build_resources(Path(__file__).parent))
"""
JOB = "build_sample_corpus"
LOCATION = "night_corpora"
_ASSETS = "{assetsOrError {... on AssetConnection {nodes {key {path}}}}}"
_RELOAD = """mutation {reloadRepositoryLocation(repositoryLocationName: "night_corpora") {
  __typename ... on WorkspaceLocationEntry {locationOrLoadError {__typename ... on PythonError {message}}}}}"""
_VALID = """query($selector: PipelineSelector!, $config: RunConfigData!) {
  isPipelineConfigValid(pipeline: $selector, mode: "default", runConfigData: $config) {
    __typename ... on PipelineConfigValidationInvalid {errors {message}} ... on InvalidSubsetError {message}}}"""
_LAUNCH = """mutation($params: ExecutionParams!) {launchPipelineExecution(executionParams: $params) {
  __typename ... on LaunchRunSuccess {run {runId}} ... on PythonError {message}
  ... on RunConfigValidationInvalid {errors {message}}}}"""
_LOGS = """query($key: [String!]!) {capturedLogs(logKey: $key) {stdout stderr}}"""
_CAPTURED = """query($run: ID!) {runOrError(runId: $run) {... on Run {status eventConnection {events {
  ... on LogsCapturedEvent {fileKey} ... on MessageEvent {message}}}}}}"""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run all services over a new project with one dataset, and a second code location."""
    folder = tmp_path_factory.mktemp("services")
    project = folder / "night-corpora"
    shrink(project / write_project(project) / "defs" / "sample_corpus" / "defs.yaml")
    write_deployment(project, DeployTarget.COMPOSE)
    (project / "downstream.py").write_text(DOWNSTREAM)
    with create_deployment(folder / "cluster", project, PYTHONPATH=str(project)) as running:
        _set_pools(running)
        assert not running.healthy("webserver")
        assert not running.healthy("daemon"), "before it was started"
        running.start_code()
        workspace = folder / "cluster" / "home" / "workspace.yaml"
        second = {"python_file": {"relative_path": str(project / "downstream.py"), "location_name": "training"}}
        workspace.write_text(json.dumps({"load_from": [*json.loads(workspace.read_text())["load_from"], second]}))
        running.start_web()
        running.start_daemon()
        yield running


def _set_pools(running: Cluster) -> None:
    """Run the exact command of the service `pools`."""
    environment = running.environment | {"PATH": f"{SCRIPTS}:{os.environ['PATH']}"}
    subprocess.run(running.services["pools"]["command"], env=environment, check=True, capture_output=True)


def _launch(running: Cluster, key: dg.AssetKey, location: str, config: dict[str, Any]) -> str:
    """Launch a run as the Launchpad does, and return its id."""
    selector = {
        "repositoryName": "__repository__",
        "repositoryLocationName": location,
        "pipelineName": "__ASSET_JOB",
        "assetSelection": [{"path": list(key.path)}],
        "assetCheckSelection": [],
    }
    valid = running.graphql(_VALID, {"selector": selector, "config": config})["isPipelineConfigValid"]
    assert valid == {"__typename": "PipelineConfigValidationValid"}
    params = {"selector": selector, "runConfigData": config, "mode": "default"}
    launched = running.graphql(_LAUNCH, {"params": params})["launchPipelineExecution"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    run: str = launched["run"]["runId"]
    return run


def _launch_job(running: Cluster) -> str:
    """Launch the job of the dataset, and return the id of its run."""
    selector = {"repositoryName": "__repository__", "repositoryLocationName": LOCATION, "pipelineName": JOB}
    params = {"selector": selector, "runConfigData": {}, "mode": "default"}
    launched = running.graphql(_LAUNCH, {"params": params})["launchPipelineExecution"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    run: str = launched["run"]["runId"]
    return run


def _find_run(instance: dg.DagsterInstance, run: str) -> dg.DagsterRun:
    found = instance.get_run_by_id(run)
    assert found is not None
    return found


def _wait_for_end(running: Cluster, run: str) -> dg.DagsterRunStatus:
    with running.instance() as instance:
        running.wait(lambda: _find_run(instance, run).is_finished, 180, "the run")
        return _find_run(instance, run).status


def test_every_pool_is_limited_before_the_first_run_on_a_fresh_postgres(services: Cluster) -> None:
    with services.instance() as instance:
        limits = {pool.name: pool.limit for pool in instance.event_log_storage.get_pool_limits()}
    assert limits == {POOLS["cpu"]: 1, POOLS["network"]: 2}


def test_the_health_checks_of_compose_detect_running_services(services: Cluster) -> None:
    with services.instance() as instance:
        services.wait(lambda: all_daemons_healthy(instance), 120, "the daemon's heartbeats")
    assert services.healthy("daemon")
    assert services.healthy("postgres")
    assert services.healthy("code_location")
    assert services.healthy("webserver")
    elsewhere = Cluster(services.folder, services.environment, services.code_port + 1, services.code_port)
    assert not elsewhere.healthy("code_location")
    assert not elsewhere.healthy("webserver")


def test_a_new_folder_in_defs_is_loaded_after_a_reload(services: Cluster) -> None:
    def datasets() -> set[str]:
        nodes = services.graphql(_ASSETS)["assetsOrError"]["nodes"]
        return {node["key"]["path"][0] for node in nodes} - {"trained", "datasets"}

    assert datasets() == {"sample_corpus"}
    code = services.services["code_location"]
    (mounted,) = (volume for volume in code["volumes"] if "/defs:" in volume)
    defs = services.project / "deploy" / "compose" / mounted.partition(":")[0]
    shutil.copytree(SAMPLE.parent / "sample_tasks", defs / "sample_tasks")
    assert datasets() == {"sample_corpus"}, "not by itself"
    reloaded = services.graphql(_RELOAD)["reloadRepositoryLocation"]
    assert reloaded["locationOrLoadError"]["__typename"] == "RepositoryLocation", reloaded
    assert datasets() == {"sample_corpus", "sample_tasks"}
    # Exclude the daemon's log, because the daemon of a fresh instance warns about its own cursors.
    for log in ("code.log", "web.log"):
        assert "warning" not in (services.folder / log).read_text().lower(), log


def test_the_launchpad_launches_with_and_without_config_and_the_output_opens(services: Cluster) -> None:
    run = _launch(services, MANIFEST, LOCATION, {})
    assert _wait_for_end(services, run) == dg.DagsterRunStatus.SUCCESS
    config = {"loggers": {"console": {"config": {"log_level": "DEBUG"}}}}
    run = _launch(services, MANIFEST, LOCATION, config)
    assert _wait_for_end(services, run) == dg.DagsterRunStatus.SUCCESS
    events = services.graphql(_CAPTURED, {"run": run})["runOrError"]["eventConnection"]["events"]
    (captured,) = {event["fileKey"] for event in events if event and "fileKey" in event}
    logs = services.graphql(_LOGS, {"key": [run, "compute_logs", captured]})["capturedLogs"]
    assert "STEP_SUCCESS" in logs["stderr"], "as the run's page shows it, by the level that the config asked for"


def test_the_job_of_a_dataset_builds_all_of_it_and_its_run_names_the_location(services: Cluster) -> None:
    run = _launch_job(services)
    assert _wait_for_end(services, run) == dg.DagsterRunStatus.SUCCESS, services.last_words()
    assert (services.root / "sample_corpus" / "data_card" / "receipt.json").exists()
    with services.instance() as instance:
        assert {run.tags["dagster/code_location"] for run in instance.get_runs()} <= {LOCATION, "training"}
        (record,) = instance.get_run_records(dg.RunsFilter(run_ids=[run]))

        def made_again() -> bool:
            event = instance.get_latest_materialization_event(DATASETS)
            return event is not None and event.timestamp > (record.end_time or 0.0)

        services.wait(made_again, 180, "the page of all datasets, by its sensor")


def test_a_run_lost_with_its_code_location_is_ended_and_retried_when_that_is_back(
    services: Cluster,
) -> None:
    """No process is left to report it, so it would block its pool and the queue forever."""
    with services.instance() as instance:
        run = _launch_job(services)
        lock = Path(instance.storage_directory()) / "dataprep_runs" / run
        services.wait(lock.exists, 180, "the run's first step")
        services.lose("code")
        assert not _find_run(instance, run).is_finished
        services.start_code()
        assert _wait_for_end(services, run) == dg.DagsterRunStatus.FAILURE
        (failure,) = instance.all_logs(run, of_type=dg.DagsterEventType.RUN_FAILURE)
        assert_names(failure.get_dagster_event().message or "", "killed")

        def again() -> list[dg.DagsterRun]:
            return [*instance.get_runs(dg.RunsFilter(tags={"dagster/parent_run_id": run}))]

        services.wait(lambda: bool(again()), 120, "its retry")
        assert _wait_for_end(services, again()[0].run_id) == dg.DagsterRunStatus.SUCCESS, services.last_words()


def test_an_asset_of_another_code_location_reads_the_handle(services: Cluster) -> None:
    artifacts = Path(services.environment["DATAPREP_ROOT"])
    receipt = json.loads((artifacts / "sample_corpus" / "manifest" / "receipt.json").read_bytes())
    run = _launch(services, dg.AssetKey("trained"), "training", {})
    assert _wait_for_end(services, run) == dg.DagsterRunStatus.SUCCESS, services.last_words()
    with services.instance() as instance:
        event = instance.get_latest_materialization_event(dg.AssetKey("trained"))
    assert event is not None
    assert event.asset_materialization is not None
    metadata = {name: value.value for name, value in event.asset_materialization.metadata.items()}
    assert metadata["content"]
    size = next(record["bytes"] for record in receipt["files"] if record["path"] == "manifest.jsonl")
    assert metadata["bytes"] == size
