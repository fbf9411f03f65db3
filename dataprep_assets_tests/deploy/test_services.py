"""The services of a user's own project in compose, as `dataprep init --deploy compose` writes them.

Compose's own commands start them: the tests reload a new dataset, run health checks, use the Launchpad, and read logs.
"""

import json
import os
import shutil
import subprocess
import urllib.request
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
from dataprep_assets_tests.deploy.cluster import SCRIPTS, Cluster, create_deployment, is_listening
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.project import sample_attributes
from dataprep_assets_tests.samples import SAMPLE, shrink
from dataprep_assets_tests.servers import free_port

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
SENSOR = {
    "repositoryName": "__repository__",
    "repositoryLocationName": LOCATION,
    "sensorName": "datasets_sensor",
}
"""The sensor of the page of all datasets."""
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
_SENSOR = """query($selector: SensorSelector!) {
  sensorOrError(sensorSelector: $selector) {... on Sensor {id sensorState {status}}}}"""
_STOP_SENSOR = """mutation($id: String) {stopSensor(id: $id) {
  ... on StopSensorMutationResult {instigationState {status}}}}"""
_RESET_SENSOR = """mutation($selector: SensorSelector!) {resetSensor(sensorSelector: $selector) {
  ... on Sensor {sensorState {status}}}}"""
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
        for service in ("code_location", "webserver", "daemon"):
            assert not running.healthy(service), f"{service}, before it was started"
        running.start_code()
        port = free_port()
        server = ("dagster", "api", "grpc", "-h", "127.0.0.1", "-p", str(port))
        running.start("training", *server, "-f", str(project / "downstream.py"), "--location-name", "training")
        running.wait(lambda: is_listening(port), 180, "the second code location")
        workspace = folder / "cluster" / "home" / "workspace.yaml"
        second = {"grpc_server": {"host": "127.0.0.1", "port": port, "location_name": "training"}}
        workspace.write_text(json.dumps({"load_from": [*json.loads(workspace.read_text())["load_from"], second]}))
        running.start_web()
        # Stop the sensor, which would start a run after the runs of every test. One test resets it.
        (found,) = running.graphql(_SENSOR, {"selector": SENSOR}).values()
        assert found["sensorState"]["status"] == "RUNNING"
        stopped = running.graphql(_STOP_SENSOR, {"id": found["id"]})["stopSensor"]
        assert stopped["instigationState"]["status"] == "STOPPED"
        running.start_daemon()
        yield running


def _set_pools(running: Cluster) -> None:
    """Run the exact command of the service `pools`."""
    environment = running.environment | {"PATH": f"{SCRIPTS}:{os.environ['PATH']}"}
    subprocess.run(running.services["pools"]["command"], env=environment, check=True, capture_output=True)


def _validate(running: Cluster, key: dg.AssetKey, location: str, config: dict[str, Any]) -> dict[str, Any]:
    """Validate the config of a run as the Launchpad does, and return the selector of its job."""
    selector = {
        "repositoryName": "__repository__",
        "repositoryLocationName": location,
        "pipelineName": "__ASSET_JOB",
        "assetSelection": [{"path": list(key.path)}],
        "assetCheckSelection": [],
    }
    valid = running.graphql(_VALID, {"selector": selector, "config": config})["isPipelineConfigValid"]
    assert valid == {"__typename": "PipelineConfigValidationValid"}
    return selector


def _launch(running: Cluster, key: dg.AssetKey, location: str, config: dict[str, Any]) -> str:
    """Launch a run as the Launchpad does, and return its id."""
    return _launch_selected(running, _validate(running, key, location, config), config)


def _launch_job(running: Cluster) -> str:
    """Launch the job of the dataset, and return the id of its run."""
    selector = {"repositoryName": "__repository__", "repositoryLocationName": LOCATION, "pipelineName": JOB}
    return _launch_selected(running, selector, {})


def _launch_selected(running: Cluster, selector: dict[str, Any], config: dict[str, Any]) -> str:
    params = {"selector": selector, "runConfigData": config, "mode": "default"}
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


def test_the_launchpad_accepts_a_run_without_config_and_launches_one_with_it_and_the_output_opens(
    services: Cluster,
) -> None:
    _validate(services, MANIFEST, LOCATION, {})  # the job of the dataset is launched without config
    config = {"loggers": {"console": {"config": {"log_level": "DEBUG"}}}}
    run = _launch(services, MANIFEST, LOCATION, config)
    assert _wait_for_end(services, run) == dg.DagsterRunStatus.SUCCESS
    events = services.graphql(_CAPTURED, {"run": run})["runOrError"]["eventConnection"]["events"]
    (captured,) = {event["fileKey"] for event in events if event and "fileKey" in event}
    logs = services.graphql(_LOGS, {"key": [run, "compute_logs", captured]})["capturedLogs"]
    assert "STEP_SUCCESS" in logs["stderr"], "as the run's page shows it, by the level that the config asked for"


@pytest.fixture(scope="module")
def lost_run(services: Cluster) -> dg.DagsterRun:
    """Return a run of the dataset's job that was lost with its code location after its first step began."""
    with services.instance() as instance:
        run = _launch_job(services)
        lock = Path(instance.storage_directory()) / "dataprep_runs" / run
        services.wait(lock.exists, 180, "the run's first step")
        services.lose("code")
        assert not _find_run(instance, run).is_finished
        services.start_code()
        return _find_run(instance, run)


@pytest.fixture(scope="module")
def retry(services: Cluster, lost_run: dg.DagsterRun) -> dg.DagsterRun:
    """Return the run that retried the lost one, after its end."""
    with services.instance() as instance:
        retries = dg.RunsFilter(tags={"dagster/parent_run_id": lost_run.run_id})
        services.wait(lambda: bool(instance.get_runs(retries)), 240, "its retry")
        (found,) = instance.get_runs(retries)
        _wait_for_end(services, found.run_id)
        return _find_run(instance, found.run_id)


def test_a_run_lost_with_its_code_location_is_ended_and_retried_when_that_is_back(
    services: Cluster, lost_run: dg.DagsterRun, retry: dg.DagsterRun
) -> None:
    """No process is left to report it, so it would block its pool and the queue forever."""
    assert _wait_for_end(services, lost_run.run_id) == dg.DagsterRunStatus.FAILURE
    with services.instance() as instance:
        (failure,) = instance.all_logs(lost_run.run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
    assert_names(failure.get_dagster_event().message or "", "killed")
    assert retry.status == dg.DagsterRunStatus.SUCCESS, services.last_words()


def test_the_job_of_a_dataset_builds_all_of_it_and_its_run_names_the_location(
    services: Cluster, retry: dg.DagsterRun
) -> None:
    assert retry.job_name == JOB
    assert retry.status == dg.DagsterRunStatus.SUCCESS, services.last_words()
    assert (services.root / "sample_corpus" / "data_card" / "receipt.json").exists()
    with services.instance() as instance:
        assert {run.tags["dagster/code_location"] for run in instance.get_runs()} <= {LOCATION, "training"}
        (record,) = instance.get_run_records(dg.RunsFilter(run_ids=[retry.run_id]))

        def is_rebuilt() -> bool:
            event = instance.get_latest_materialization_event(DATASETS)
            return event is not None and event.timestamp > (record.end_time or 0.0)

        (reset,) = services.graphql(_RESET_SENSOR, {"selector": SENSOR}).values()
        assert reset["sensorState"]["status"] == "RUNNING"
        services.wait(is_rebuilt, 180, "the page of all datasets, by its sensor")
    with urllib.request.urlopen(f"http://127.0.0.1:{services.web_port}/site/index.html", timeout=60) as page:
        assert b"sample_corpus" in page.read()


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
