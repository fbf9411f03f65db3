"""A running `dataprep ui` over a project as `dataprep init` makes one, by another name than ours, that a test fills.

with site(folder, scratch_project(folder / "project")) as made:
    made.declare("mine", "TokenizedCorpus", sample_attributes(dataset="mine"))
    made.reload()
    made.launch_job("build_mine")
"""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import dagster as dg

from dataprep_assets.project_template import write_project
from dataprep_assets_tests import forked
from dataprep_assets_tests.fakes.eager_daemon import make_eager_environment
from dataprep_assets_tests.servers import end, free_port, wait_until

LOCATION = "night_corpora"
"""The name of the project, of its package and of its code location."""
_THEIRS = """import dagster as dg


@dg.asset(group_name="theirs")
def model() -> int:
    return 1
"""
_FREED_KEY = "free_slots_after_run_end_seconds"
_FREED = f"{_FREED_KEY}: 60"
"""The seconds after which the resources of a killed run are free, short because a test waits for them."""
_RELOAD = """mutation($name: String!) { reloadRepositoryLocation(repositoryLocationName: $name) { __typename
  ... on WorkspaceLocationEntry { loadStatus locationOrLoadError { __typename ... on PythonError { message } } } } }"""
_LAUNCH = """mutation($params: ExecutionParams!) { launchRun(executionParams: $params) { __typename
  ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  ... on RunConfigValidationInvalid { errors { message } } } }"""
_RUNS = "query { runsOrError(limit: 100) { ... on Runs { results { runId jobName status tags { key value } } } } }"
_ASSETS = "{ assetNodes { assetKey { path } groupName isPartitioned partitionStats { numPartitions numMaterialized } "
_ASSETS += "assetMaterializations(limit: 1) { runId } } }"
_CHECKS = """{ assetNodes { groupName assetKey { path } assetChecksOrError { ... on AssetChecks { checks { name blocking
  executionForLatestMaterialization { status evaluation { description severity } } } } } } }"""
_BACKFILLS = "query { partitionBackfillsOrError(limit: 20) { ... on PartitionBackfills { results { id status } } } }"
_TICKS = """query($sensor: SensorSelector!) { sensorOrError(sensorSelector: $sensor) { ... on Sensor {
  sensorState { ticks(limit: 100) { status skipReason runIds } } } } }"""
_SENSOR = """query($sensor: SensorSelector!) { sensorOrError(sensorSelector: $sensor) { ... on Sensor {
  sensorState { id } } } }"""
_STOP = "mutation($id: String) { stopSensor(id: $id) { __typename } }"
_REPOSITORY = {"repositoryLocationName": LOCATION, "repositoryName": "__repository__"}


@dataclass
class ServedProject:
    """A running webserver and daemon, the project that they show, and their instance.

    Attributes:
        url: The address of the webserver.
        root: The folder of artifacts.
        pictures: The folder of screenshots: DATAPREP_PICTURES, if that is set.
        project: A test may add to its `defs`.
        environment: The environment of the server and its runs.
    """

    url: str
    root: Path
    pictures: Path
    project: Path
    environment: Mapping[str, str]

    def query(self, text: str, **variables: Any) -> Any:
        """Return the data of a GraphQL query or mutation, sent like the UI does."""
        request = urllib.request.Request(
            f"{self.url}/graphql",
            json.dumps({"query": text, "variables": variables}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            value = json.load(response)
        assert "errors" not in value, value["errors"]
        return value["data"]

    @property
    def defs(self) -> Path:
        """The folder of the declarations; in a scratch project, a test may add to it."""
        return self.project / LOCATION / "defs"

    def declare(self, name: str, component: str, attributes: Mapping[str, Any]) -> Path:
        """Write `defs/<name>/defs.yaml`, and return its folder.

        The UI shows it after `reload`, or after a click on "Reload".
        """
        folder = self.defs / name
        folder.mkdir(parents=True, exist_ok=True)
        declaration = {"type": f"dataprep_assets.components.{component}", "attributes": attributes}
        (folder / "defs.yaml").write_text(json.dumps(declaration, indent=1))
        return folder

    def reload(self) -> None:
        """Reload the code location, as "Reload" in the UI does."""
        entry = self.query(_RELOAD, name=LOCATION)["reloadRepositoryLocation"]
        assert entry["locationOrLoadError"]["__typename"] == "RepositoryLocation", entry

    def launch_job(self, job: str) -> str:
        """Launch a job as the UI's Launchpad does, and return the id of its run."""
        selector = {**_REPOSITORY, "jobName": job}
        launched = self.query(_LAUNCH, params={"selector": selector, "runConfigData": {}, "mode": "default"})
        assert launched["launchRun"]["__typename"] == "LaunchRunSuccess", launched
        return str(launched["launchRun"]["run"]["runId"])

    def runs(self) -> list[dict[str, Any]]:
        """Return the latest runs, newest first: id, name of the job, status, tags."""
        found = self.query(_RUNS)["runsOrError"]["results"]
        return [{**run, "tags": {tag["key"]: tag["value"] for tag in run["tags"]}} for run in found]

    def runs_with(self, tag: str, value: str) -> list[str]:
        """Return the ids of the latest runs that have a tag, newest first."""
        return [run["runId"] for run in self.runs() if run["tags"].get(tag) == value]

    @property
    def groups(self) -> set[str]:
        """The groups of assets in the UI."""
        return {node["groupName"] for node in self.query("{ assetNodes { groupName } }")["assetNodes"]}

    def backfills(self) -> dict[str, str]:
        """Return the latest backfills: id → status."""
        found = self.query(_BACKFILLS)["partitionBackfillsOrError"]["results"]
        return {backfill["id"]: backfill["status"] for backfill in found}

    def ticks(self, sensor: str) -> list[dict[str, Any]]:
        """Return the latest ticks of a sensor, newest first: status, skipReason, runIds."""
        selector = {**_REPOSITORY, "sensorName": sensor}
        ticks: list[dict[str, Any]] = self.query(_TICKS, sensor=selector)["sensorOrError"]["sensorState"]["ticks"]
        return ticks

    def all_materialized(self, dataset: str) -> bool:
        """Return whether every asset of a dataset is materialized, each in all its partitions."""
        nodes = [node for node in self.query(_ASSETS)["assetNodes"] if node["groupName"] == dataset]
        for node in nodes:
            stats = node["partitionStats"]
            if node["isPartitioned"] and not 0 < stats["numPartitions"] <= stats["numMaterialized"]:
                return False
            if not node["assetMaterializations"]:
                return False
        return bool(nodes)

    def checks(self, dataset: str) -> dict[str, str]:
        """Return `asset: check` of a dataset → its latest status in the UI; "" if there is none for the current
        artifact.
        """
        found = {}
        for node in self.query(_CHECKS)["assetNodes"]:
            if node["groupName"] == dataset:
                for check in node["assetChecksOrError"].get("checks", ()):
                    latest = check["executionForLatestMaterialization"]
                    found[f"{'/'.join(node['assetKey']['path'])}: {check['name']}"] = latest["status"] if latest else ""
        return found

    def stop_sensor(self, sensor: str) -> None:
        """Switch a sensor off, as its page does."""
        selector = {**_REPOSITORY, "sensorName": sensor}
        found = self.query(_SENSOR, sensor=selector)["sensorOrError"]["sensorState"]["id"]
        stopped = self.query(_STOP, id=found)["stopSensor"]
        assert stopped["__typename"] == "StopSensorMutationResult", stopped

    def command(self, *arguments: str, seconds: float = 300) -> None:
        """Run `dataprep` with these arguments, on the same instance and artifacts; it must succeed within the
        seconds.
        """
        words = ["-m", "dataprep_assets.cli", *arguments]
        forked.run(words, env=self.environment, check=True, cwd=self.project, timeout=seconds)

    def wait_for_run(self, run_id: str, seconds: float = 300) -> str:
        """Wait until a run has ended, and return its status."""
        text = "query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
        status = ""

        def ended() -> bool:
            nonlocal status
            status = self.query(text, id=run_id)["runOrError"]["status"]
            return status in ("SUCCESS", "FAILURE", "CANCELED")

        wait_until(ended, seconds, every=0.3)
        return status

    @contextmanager
    def instance(self) -> Iterator[dg.DagsterInstance]:
        """Return the instance, opened in this process."""
        home = self.environment["DAGSTER_HOME"]
        with mock.patch.dict(os.environ, self.environment), dg.DagsterInstance.from_config(home) as instance:
            yield instance


def scratch_project(parent: Path) -> Path:
    """Create a project without a dataset below a folder, with a third-party asset next to the future datasets."""
    project = parent / LOCATION
    write_project(project)
    shutil.rmtree(project / LOCATION / "defs" / "sample_corpus")
    (project / LOCATION / "defs" / "theirs.py").write_text(_THEIRS)
    return project


@contextmanager
def site(folder: Path, project: Path) -> Iterator[ServedProject]:
    """Run `dataprep ui` over a project, with its own home, and end it afterwards.

    Args:
        folder: Gets `home`, `artifacts` and `server.log`.
        project: The project to serve.
    """
    home, root = folder / "home", folder / "artifacts"
    home.mkdir(parents=True)
    settings = (project / ".dagster" / "dagster.yaml").read_text()
    assert _FREED in settings
    (home / "dagster.yaml").write_text(settings.replace(_FREED, f"{_FREED_KEY}: 5"))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("DAGSTER_", "DATAPREP_"))},
        "DAGSTER_HOME": str(home),
        "DATAPREP_ROOT": str(root),
        "DATAPREP_CACHE": str(folder / "cache"),
        "DAGSTER_DISABLE_TELEMETRY": "yes",
        **make_eager_environment(folder / "eager"),
    }
    port = free_port()
    with open(folder / "server.log", "wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "dataprep_assets.cli", "ui", "--port", str(port)],
            env=environment,
            cwd=project,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        pictures = Path(os.environ.get("DATAPREP_PICTURES", folder))
        made = ServedProject(f"http://127.0.0.1:{port}", root, pictures, project, environment)
        try:
            wait_until(lambda: server.poll() is not None or _serves(made), 300)
            assert server.poll() is None, (folder / "server.log").read_text()[-3000:]
            yield made
        finally:
            end(server)


def _serves(made: ServedProject) -> bool:
    text = "{ workspaceOrError { ... on Workspace { locationEntries { loadStatus } } } }"
    try:
        entries = made.query(text)["workspaceOrError"]["locationEntries"]
    except OSError:
        return False
    return bool(entries) and all(entry["loadStatus"] == "LOADED" for entry in entries)
