"""The rendered deployment at work: its webserver, daemon and code location, and the pods of runs that Dagster launches.

Everything is a process of this machine, with the commands, variables and user of the manifests, on a real Postgres and
an S3 server. The launcher's Kubernetes API is a fake that runs the Jobs it receives.
"""

import json
import os
import shutil
import signal
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import dagster as dg
import pytest
import yaml

from dataprep_assets.project_template import write_project
from dataprep_assets_tests.confined import is_available
from dataprep_assets_tests.deploy.chart import KUBERNETES, has_token, render, write_kubeconfig
from dataprep_assets_tests.deploy.cluster import Cluster
from dataprep_assets_tests.deploy.pods import Node
from dataprep_assets_tests.deploy.postgres import PASSWORD, run_postgres
from dataprep_assets_tests.deploy.tiny_corpus import make_attributes, write_corpus
from dataprep_assets_tests.fakes.buckets import new_bucket, new_client
from dataprep_assets_tests.fakes.kubernetes_api import KubernetesApi, kubernetes_api
from dataprep_assets_tests.fakes.swift_server import KEY_ID, SECRET
from dataprep_assets_tests.servers import free_ports

validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
pytest.importorskip("dagster_k8s", reason="the extra `k8s` is not installed")
pytest.importorskip("dagster_aws", reason="the extra `r2` is not installed")
pytestmark = pytest.mark.slow

KEYS = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET}
LAUNCH = """mutation($params: ExecutionParams!) {launchPipelineExecution(executionParams: $params) {
  __typename ... on LaunchRunSuccess {run {runId}} ... on PythonError {message}}}"""
LOCATIONS = "{workspaceOrError {... on Workspace {locationEntries {locationOrLoadError {__typename}}}}}"
ENDS = (signal.SIGKILL, signal.SIGTERM)
"""The fate of the pods of the first runs: one node is lost, another is drained. Later pods are left alone."""


@dataclass
class Deployment:
    """A running deployment of processes."""

    node: Node
    services: Mapping[str, Mapping[str, Any]]
    api: KubernetesApi
    cluster: Cluster
    bucket: str
    s3: Any

    @contextmanager
    def instance(self) -> Iterator[dg.DagsterInstance]:
        """Return the rendered instance, opened in this process."""
        home = str(self.node.folder / "home")
        with mock.patch.dict(os.environ, {"DAGSTER_PG_PASSWORD": PASSWORD}), dg.DagsterInstance.from_config(home) as it:
            yield it

    def start_services(self) -> None:
        """Start the pods of Deployments one by one: on a new database, a pod that creates the same table second
        fails.
        """
        for name, pod in self.services.items():
            if name not in self.node.processes or self.node.processes[name].poll() is not None:
                self.node.start(name, pod)

    def wait(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until `ready`; raise RuntimeError with the pods' last output after the limit."""
        deadline = time.monotonic() + seconds
        while not ready():
            self.start_services()
            if time.monotonic() > deadline:
                logs = {p.name: p.read_text(errors="replace")[-1500:] for p in self.node.folder.glob("*.log")}
                raise RuntimeError(f"{what}: not within {seconds} s: {json.dumps(logs, indent=1)}")
            time.sleep(0.1)


def make_overlay(database: dict[str, str], code_port: int, endpoint: str, bucket: str, home: Path) -> str:
    """Return this machine's values: addresses, a bucket, and a daemon that polls every second."""
    local_dir = str(home.parent / "tmp" / "compute-logs")
    logs = {"bucket": bucket, "endpointUrl": endpoint, "region": "us-east-1", "localDir": local_dir}
    launcher = {"loadInclusterConfig": False, "kubeconfigFile": "~/kubeconfig"}
    servers = [{"host": "127.0.0.1", "port": code_port, "name": "dataprep_assets"}]
    values = {
        "global": {"dagsterHome": str(home)},
        "postgresql": {"postgresqlHost": "127.0.0.1", "service": {"port": int(database["DAGSTER_PG_PORT"])}},
        "dagsterWebserver": {"workspace": {"servers": servers}},
        "dagsterDaemon": {"runMonitoring": {"pollIntervalSeconds": 1}},
        "computeLogManager": {"config": {"s3ComputeLogManager": logs}},
        "runLauncher": {"config": {"k8sRunLauncher": launcher}},
    }
    return yaml.safe_dump(values)


@pytest.fixture(scope="module")
def deployment(moto: str) -> Iterator[Deployment]:
    bucket = new_bucket(moto)
    with ExitStack() as stack:
        # Use a short path, because a socket's path has at most 107 characters.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dp-k8s-", ignore_cleanup_errors=True)))
        for name in ("home", "workspace", "scratch", "tmp", "account", "data"):
            (folder / name).mkdir()
        write_project(project := folder / "night_shift")
        shutil.rmtree(project / "night_shift" / "defs" / "sample_corpus")
        (project / ".dataprep").symlink_to(folder / "data")
        declared = make_attributes(write_corpus(folder / "corpus", 4), 2, views=[])
        declaration = {"type": "dataprep_assets.components.TokenizedCorpus", "attributes": declared}
        (project / "night_shift" / "defs" / "tiny").mkdir()
        (project / "night_shift" / "defs" / "tiny" / "defs.yaml").write_text(yaml.safe_dump(declaration))
        database = stack.enter_context(run_postgres())
        code_port, web_port = free_ports(2)
        started: list[Node] = []
        pods = stack.enter_context(
            kubernetes_api(lambda job: started[0].start(job["metadata"]["name"], job["spec"]["template"]["spec"]))
        )
        here = folder / "values.yaml"
        write_kubeconfig(folder / "account", pods.url)
        here.write_text(make_overlay(database, code_port, moto, bucket, folder / "home"))
        rendered = render("r2", here)
        (folder / "home" / "dagster.yaml").write_text(rendered.instance)
        workspace = rendered.get("ConfigMap", "dagster-workspace-yaml")["data"]["workspace.yaml"]
        (folder / "workspace" / "workspace.yaml").write_text(workspace)
        replaced = {
            "/dagster-workspace": str(folder / "workspace"),
            "/scratch": str(folder / "scratch"),
            "0.0.0.0": "127.0.0.1",
            "3000": str(web_port),
            "4000": str(code_port),
            "dataprep_assets.definitions": "night_shift.definitions",
            "my-dataprep-bucket": bucket,
            "https://ACCOUNT.r2.cloudflarestorage.com": moto,
        }
        secrets = {
            "dagster-postgresql": {"postgresql-password": PASSWORD},
            "dataprep-credentials": KEYS,
            "dagster-logs": KEYS,
        }
        node = Node(rendered, folder, replaced, secrets, project)
        started.append(node)
        stack.callback(node.stop)
        services = {name: pod["spec"] for name, pod in rendered.templates().items() if name != "dagster-proxy"}
        cluster = Cluster(folder, {}, code_port, web_port)
        made = Deployment(node, services, pods, cluster, bucket, new_client(moto))
        probe = rendered.templates()["dagster-webserver"]["spec"]["containers"][0]["readinessProbe"]["httpGet"]
        url = f"http://127.0.0.1:{probe['port']}{probe['path']}".replace(":3000", f":{web_port}")
        made.wait(lambda: _is_answering(url), 120, "the webserver's probe")
        yield made


def _is_answering(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_runs_survive_a_lost_and_a_drained_node(deployment: Deployment) -> None:
    assert "K8sRunLauncher" in (deployment.node.folder / "home" / "dagster.yaml").read_text()
    selector = {
        "repositoryName": "__repository__",
        "repositoryLocationName": "dataprep_assets",
        "pipelineName": "__ASSET_JOB",
        "assetSelection": [{"path": ["tiny", name]} for name in ("manifest", "engine_certificate")],
        "assetCheckSelection": [],
    }
    deployment.wait(lambda: _loaded(deployment), 120, "the code location")
    asked = {"params": {"selector": selector, "runConfigData": {}, "mode": "default"}}
    launched = deployment.cluster.graphql(LAUNCH, asked)["launchPipelineExecution"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    runs = [launched["run"]["runId"]]
    with deployment.instance() as instance:
        for end in ENDS:
            _end_pod(deployment, instance, runs[-1], end)
            failed = instance.get_run_by_id(runs[-1])
            assert failed is not None
            assert failed.status == dg.DagsterRunStatus.FAILURE

            def retried(parent: str = runs[-1]) -> bool:
                retries = instance.get_runs(dg.RunsFilter(tags={"dagster/parent_run_id": parent}))
                runs.extend(run.run_id for run in retries)
                return bool(retries)

            deployment.wait(retried, 60, f"a retry after {end.name}")
        deployment.wait(lambda: _status(instance, runs[-1]).value in ("SUCCESS", "FAILURE"), 120, "the last run")
        assert _status(instance, runs[-1]) == dg.DagsterRunStatus.SUCCESS
    # Exclude the runs of sensors, which plan the dataset and write the pages.
    requested = {run.run_id for run in instance.get_runs() if "dagster/sensor_name" in run.tags}
    jobs = [name for name in deployment.api.jobs if name.removeprefix("dagster-run-") not in requested]
    assert [f"dagster-run-{run}" for run in runs] == jobs
    assert not has_token(deployment.api.jobs[f"dagster-run-{runs[-1]}"]["spec"]["template"]["spec"])
    for job in deployment.api.jobs.values():
        validator.validate(job, KUBERNETES, strict=True)
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert container["resources"]["requests"]["cpu"] == "8"
    found = deployment.s3.list_objects_v2(Bucket=deployment.bucket)["Contents"]
    keys = {entry["Key"] for entry in found}
    assert "artifacts/tiny/manifest/receipt.json" in keys
    site = [f"artifacts/.site/{path}" for path in ("index.html", "datasets/tiny/index.html", "history/tiny.json")]

    def list_keys() -> set[str]:
        found = deployment.s3.list_objects_v2(Bucket=deployment.bucket, Prefix="artifacts/.site/")
        return {entry["Key"] for entry in found.get("Contents", ())}

    deployment.wait(lambda: {*site} <= list_keys(), 240, "the site, which a sensor requests")
    page = deployment.s3.get_object(Bucket=deployment.bucket, Key=site[1])["Body"].read().decode()
    url = f"http://127.0.0.1:{deployment.cluster.web_port}/site/datasets/tiny/"
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Host": "dagster.example"}), timeout=60) as answer:
        assert answer.read().decode() == page
    logs = {key.split("/")[2] for key in keys if key.startswith("compute-logs/storage/")}
    assert runs[-1] in logs, sorted(keys)


def test_the_webserver_is_the_guarded_one(deployment: Deployment) -> None:
    answers = {}
    for host in ("dagster.example", "elsewhere.example"):
        url = f"http://127.0.0.1:{deployment.cluster.web_port}/graphql"
        asked = urllib.request.Request(
            url, b'{"query": "{version}"}', {"Content-Type": "application/json", "Host": host}
        )
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                answers[host] = answer.status
        except urllib.error.HTTPError as refused:
            answers[host] = refused.code
    assert answers == {"dagster.example": 200, "elsewhere.example": 403}


def test_nothing_writes_to_the_image_or_the_home(deployment: Deployment) -> None:
    if not is_available():
        pytest.skip("no Landlock of version 3: this kernel cannot keep a process from writing")
    assert {p.name for p in (deployment.node.folder / "home").iterdir()} == {"dagster.yaml"}
    for log in deployment.node.folder.glob("*.log"):
        text = log.read_text(errors="replace")
        assert "Permission denied" not in text, log.name
        assert "Read-only file system" not in text, log.name


def _loaded(deployment: Deployment) -> bool:
    entries = deployment.cluster.graphql(LOCATIONS)["workspaceOrError"]["locationEntries"]
    if all((entry["locationOrLoadError"] or {}).get("__typename") == "RepositoryLocation" for entry in entries):
        return True
    deployment.cluster.graphql("mutation {reloadWorkspace {__typename}}")
    return False


def _status(instance: dg.DagsterInstance, run: str) -> dg.DagsterRunStatus:
    found = instance.get_run_by_id(run)
    assert found is not None
    return found.status


def _end_pod(deployment: Deployment, instance: dg.DagsterInstance, run: str, end: signal.Signals) -> None:
    deployment.wait(lambda: _status(instance, run) == dg.DagsterRunStatus.STARTED, 120, "the run's start")
    pod = deployment.node.processes[f"dagster-run-{run}"]
    os.killpg(pod.pid, end)
    deployment.wait(lambda: pod.poll() is not None, 60, f"the pod's end by {end.name}")
    deployment.wait(lambda: _status(instance, run) == dg.DagsterRunStatus.FAILURE, 60, "the run's failure")
