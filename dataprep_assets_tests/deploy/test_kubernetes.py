"""The chart's values give the pods we want: Dagster's own launcher makes the Job, Kubernetes' own schema judges it.

The chart itself is not on this project's package index, so its templates are not rendered here; the keys used are
compared with those that the chart's schema (`helm/dagster/schema` of Dagster 1.13) has.
"""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from dataprep_assets.orchestration.pools import POOLS
from dataprep_assets.resources import environment
from dataprep_assets.stores.connect import GcsPlace, S3Place
from dataprep_assets_tests.deploy.cluster import DEPLOY
from dataprep_assets_tests.fakes.places import Places, places

pytest.importorskip("dagster_k8s", reason="the extra `k8s` is not installed")
validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")

FOLDER = DEPLOY / "kubernetes"
VERSION = "1.33"
PLACES = ("gke-gcs", "r2")
CUSTOM = {"ray.io/v1", "cloud.google.com/v1", "networking.gke.io/v1"}
"""Kinds of operators, which no schema of Kubernetes has."""
DEPLOYMENT = {
    *("image", "env", "envConfigMaps", "envSecrets", "podSecurityContext", "securityContext", "resources"),
    *("volumes", "volumeMounts"),
}
CHART: dict[str, set[str]] = {
    "": {
        *("global", "postgresql", "generatePostgresqlPasswordSecret", "dagsterWebserver", "dagsterDaemon", "ingress"),
        *("additionalInstanceConfig", "telemetry", "runLauncher", "dagster-user-deployments", "serviceAccount"),
        "computeLogManager",
    },
    "global": {"postgresqlSecretName"},
    "postgresql": {
        *("enabled", "postgresqlHost", "postgresqlUsername", "postgresqlDatabase", "postgresqlScheme", "service"),
    },
    "dagsterWebserver": DEPLOYMENT | {"nameOverride", "service", "enableReadOnly", "workspace"},
    "dagsterWebserver.workspace": {"enabled", "servers"},
    "dagsterDaemon": DEPLOYMENT | {"runCoordinator", "runMonitoring", "runRetries"},
    "dagsterDaemon.runCoordinator": {"enabled", "type", "config"},
    "dagsterDaemon.runCoordinator.config.queuedRunCoordinator": {
        *("maxConcurrentRuns", "dequeueUseThreads", "dequeueNumWorkers", "tagConcurrencyLimits"),
    },
    "dagsterDaemon.runMonitoring": {
        *("enabled", "startTimeoutSeconds", "cancelTimeoutSeconds", "maxResumeRunAttempts", "pollIntervalSeconds"),
        "freeSlotsAfterRunEndSeconds",
    },
    "runLauncher.config.k8sRunLauncher": {"imagePullPolicy", "failPodOnRunFailure", "runK8sConfig"},
    "runLauncher.config.k8sRunLauncher.runK8sConfig": {
        *("containerConfig", "podSpecConfig", "podTemplateSpecMetadata", "jobSpecConfig", "jobMetadata"),
    },
    "computeLogManager": {"type", "config"},
    "computeLogManager.config": {"gcsComputeLogManager", "s3ComputeLogManager"},
    "computeLogManager.config.gcsComputeLogManager": {
        *("bucket", "localDir", "prefix", "jsonCredentialsEnvvar", "uploadInterval"),
    },
    "computeLogManager.config.s3ComputeLogManager": {
        *("bucket", "localDir", "prefix", "useSsl", "verify", "verifyCertPath", "endpointUrl", "skipEmptyFiles"),
        *("uploadInterval", "uploadExtraArgs", "showUrlOnly", "region"),
    },
    "dagster-user-deployments": {"enabled", "enableSubchart", "deployments"},
    "dagster-user-deployments.deployments.0": DEPLOYMENT
    | {"name", "dagsterApiGrpcArgs", "port", "includeConfigInLaunchedRuns"},
    "ingress": {"enabled", "annotations", "dagsterWebserver"},
    "serviceAccount": {"create", "name", "annotations"},
}
"""Keys of the chart's values, of the sections that are set here."""


def merged(*names: str) -> dict[str, Any]:
    """Values as helm merges files: maps deeply, everything else replaced."""

    def merge(under: Any, over: Any) -> Any:
        if isinstance(under, dict) and isinstance(over, dict):
            return under | {key: merge(under.get(key), value) for key, value in over.items()}
        return copy.deepcopy(over)

    found: dict[str, Any] = {}
    for name in names:
        found = merge(found, yaml.safe_load((FOLDER / f"{name}.yaml").read_text()))
    return found


def at(values: Any, path: str) -> Any:
    """What lies below a dotted path; None where there is nothing."""
    for step in filter(None, path.split(".")):
        values = values[int(step)] if isinstance(values, list) else (values or {}).get(step)
    return values


def run_job(values: dict[str, Any], folder: Path, tags: dict[str, str]) -> dict[str, Any]:
    """The Job manifest of a run, made by Dagster's launcher as the chart would configure it."""
    import kubernetes
    from dagster_k8s import K8sRunLauncher
    from dagster_k8s.container_context import K8sContainerContext
    from dagster_k8s.job import UserDefinedDagsterK8sConfig, construct_dagster_k8s_job

    (folder / "kubeconfig").write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "c",
                "users": [{"name": "u", "user": {}}],
            }
        )
    )
    given = at(values, "runLauncher.config.k8sRunLauncher")
    snake = {
        "containerConfig": "container_config",
        "podSpecConfig": "pod_spec_config",
        "podTemplateSpecMetadata": "pod_template_spec_metadata",
        "jobSpecConfig": "job_spec_config",
    }
    launcher = K8sRunLauncher(
        service_account_name="dagster",
        instance_config_map="dagster-instance",
        postgres_password_secret=at(values, "global.postgresqlSecretName"),
        dagster_home="/opt/dagster/dagster_home",
        load_incluster_config=False,
        kubeconfig_file=str(folder / "kubeconfig"),
        image_pull_policy=given["imagePullPolicy"],
        fail_pod_on_run_failure=given["failPodOnRunFailure"],
        run_k8s_config={snake[key]: value for key, value in given["runK8sConfig"].items()},
    )
    (code,) = at(values, "dagster-user-deployments.deployments")
    of_code = K8sContainerContext(
        env_config_maps=[source["name"] for source in code["envConfigMaps"]],
        env_secrets=[source["name"] for source in code["envSecrets"]],
        volumes=code["volumes"],
        volume_mounts=code["volumeMounts"],
        run_k8s_config=UserDefinedDagsterK8sConfig.from_dict(
            {"container_config": {"env": [{"name": k, "value": v} for k, v in code["env"].items()]}}
        ),
    )
    run = dg.DagsterRun(job_name="__ASSET_JOB", run_id="0" * 32, tags=tags)
    context = launcher.get_container_context_for_run(run)
    context = K8sContainerContext.create_for_run(run, launcher, include_run_tags=False).merge(of_code).merge(context)
    image = f"{code['image']['repository']}:{code['image']['tag']}"
    job = construct_dagster_k8s_job(
        context.get_k8s_job_config(job_image=image, run_launcher=launcher),
        args=["dagster", "api", "execute_run"],
        job_name="dagster-run",
        component="run_worker",
        user_defined_k8s_config=context.run_k8s_config,
    )
    manifest: dict[str, Any] = kubernetes.client.ApiClient().sanitize_for_serialization(job)
    return manifest


@pytest.mark.parametrize("place", PLACES)
def test_every_key_is_one_that_the_chart_has(place: str) -> None:
    values = merged("values", place)
    for path, known in CHART.items():
        section = at(values, path)
        assert set(section or ()) <= known, path


@pytest.mark.parametrize("place", PLACES)
def test_a_backfill_batch_is_a_valid_job_with_scratch_secrets_and_no_root(place: str, tmp_path: Path) -> None:
    job = run_job(merged("values", place), tmp_path, {})
    validator.validate(job, VERSION, strict=True)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["serviceAccountName"] == "dagster"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["resources"]["requests"]["cpu"] == "8"
    assert {"name": "DATAPREP_WORKERS", "value": "8"} in container["env"], "as many workers as the pod has cores"
    assert {"configMapRef": {"name": "dataprep-environment"}} in container["envFrom"]
    assert {"secretRef": {"name": "dataprep-credentials"}} in container["envFrom"]
    scratch = next(v for v in pod["volumes"] if v["name"] == "scratch")
    assert "emptyDir" in scratch
    assert {"name": "scratch", "mountPath": "/scratch"} in container["volumeMounts"]
    assert pod["nodeSelector"]
    assert job["spec"]["ttlSecondsAfterFinished"] == 3600


@pytest.mark.parametrize("name", ["snapshot", "token_bins", "combined_bins"])
def test_a_tag_gives_one_backfill_other_resources(name: str, tmp_path: Path) -> None:
    tags = yaml.safe_load((FOLDER / "run-tags.yaml").read_text())
    job = run_job(merged("values", "r2"), tmp_path, {"dagster-k8s/config": json.dumps(tags[name])})
    validator.validate(job, VERSION, strict=True)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    wanted = tags[name]["container_config"]["resources"]["requests"]
    assert container["resources"]["requests"] | wanted == container["resources"]["requests"]
    if workers := tags[name]["container_config"].get("env"):
        assert container["env"][-1] == workers[0]
        assert workers[0]["value"] == wanted["cpu"]


@pytest.mark.parametrize(
    "path", [*sorted(FOLDER.glob("environment-*.yaml")), DEPLOY / "ray" / "raycluster.yaml"], ids=lambda p: p.name
)
def test_manifests_are_valid_and_hold_no_secret(path: Path) -> None:
    manifests = [m for m in yaml.safe_load_all(path.read_text()) if m]
    assert len(manifests) >= 2
    for manifest in manifests:
        assert manifest["kind"] != "Secret"
        if manifest["apiVersion"] not in CUSTOM:
            validator.validate(manifest, VERSION, strict=True)


def test_the_pods_of_ray_are_valid_and_its_ports_are_not_open_to_all() -> None:
    cluster, policy = yaml.safe_load_all((DEPLOY / "ray" / "raycluster.yaml").read_text())
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    for group in groups:
        validator.validate(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, "spec": group["template"]["spec"]},
            VERSION,
            strict=True,
        )
        (container,) = group["template"]["spec"]["containers"]
        settings = {variable["name"]: variable for variable in container["env"]}
        assert settings["RAY_AUTH_MODE"]["value"] == "token"
        assert "valueFrom" in settings.get("RAY_AUTH_TOKEN", {}) or "envFrom" in container
        assert settings["RAY_USAGE_STATS_ENABLED"]["value"] == "0"
    assert groups[0]["rayStartParams"]["num-cpus"] == "0"
    assert groups[0]["rayStartParams"]["dashboard-host"] == "127.0.0.1"
    assert policy["kind"] == "NetworkPolicy"
    assert policy["spec"]["podSelector"]["matchLabels"] == {"ray.io/cluster": cluster["metadata"]["name"]}


def test_the_ray_of_the_cluster_is_the_ray_of_the_constraints() -> None:
    cluster = next(yaml.safe_load_all((DEPLOY / "ray" / "raycluster.yaml").read_text()))
    pinned = dict(
        line.split("==") for line in (DEPLOY.parent / "constraints.txt").read_text().splitlines() if "==" in line
    )
    if "ray" not in pinned:
        pytest.skip("constraints.txt does not pin ray yet")
    assert cluster["spec"]["rayVersion"] == pinned["ray"]


@pytest.mark.parametrize("name", ["environment-gcs", "environment-r2"])
def test_the_environment_names_a_storage_that_the_project_knows(name: str) -> None:
    data = next(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()))["data"]
    assert data["DATAPREP_STORAGE"] in environment.KINDS
    for variable in data:
        # boto3's own, for the compute log manager
        known = (environment.__doc__ or "") + "DATAPREP_STORAGE"
        assert variable in known or variable in ("AWS_REQUEST_CHECKSUM_CALCULATION", "AWS_RESPONSE_CHECKSUM_VALIDATION")


@pytest.mark.parametrize("place", PLACES)
def test_the_webserver_is_behind_a_login(place: str) -> None:
    values = merged("values", place)
    environment = {"gke-gcs": "environment-gcs", "r2": "environment-r2"}[place]
    manifests = {m["kind"]: m for m in yaml.safe_load_all((FOLDER / f"{environment}.yaml").read_text()) if m}
    assert at(values, "dagsterWebserver.service.type") == "ClusterIP"
    assert "NetworkPolicy" in manifests
    if place == "r2":
        assert at(values, "ingress.enabled") is False
        proxy = next(
            m
            for m in yaml.safe_load_all((FOLDER / f"{environment}.yaml").read_text())
            if "default.conf" in m.get("data", {})
        )
        assert "auth_basic_user_file" in proxy["data"]["default.conf"]
        backend = manifests["Ingress"]["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["name"]
        assert backend == "dagster-proxy"
    else:
        assert manifests["BackendConfig"]["spec"]["iap"]["enabled"] is True
        annotation = json.loads(at(values, "dagsterWebserver.service.annotations")["cloud.google.com/backend-config"])
        assert annotation["default"] == manifests["BackendConfig"]["metadata"]["name"]


def test_what_the_chart_puts_into_dagster_yaml_is_an_instance() -> None:
    from dagster._config import process_config
    from dagster._core.instance.config import dagster_instance_config_schema

    values = merged("values", "r2")
    extra = values["additionalInstanceConfig"]
    monitoring = at(values, "dagsterDaemon.runMonitoring")
    snake = {
        "enabled": "enabled",
        "startTimeoutSeconds": "start_timeout_seconds",
        "cancelTimeoutSeconds": "cancel_timeout_seconds",
        "maxResumeRunAttempts": "max_resume_run_attempts",
        "pollIntervalSeconds": "poll_interval_seconds",
        "freeSlotsAfterRunEndSeconds": "free_slots_after_run_end_seconds",
    }
    config = extra | {"run_monitoring": {snake[key]: value for key, value in monitoring.items()}}
    outcome = process_config(dagster_instance_config_schema(), config)
    assert outcome.success, outcome.errors
    assert at(values, "dagsterDaemon.runRetries.enabled") is False, "the chart would write run_retries a second time"
    text = (FOLDER / "values.yaml").read_text()
    assert POOLS["network"] in text


@pytest.fixture(scope="module")
def buckets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with places(tmp_path_factory.mktemp("buckets")) as found:
        yield found


def compute_logs(values: dict[str, Any], local_dir: Path) -> dict[str, Any]:
    """The `compute_logs` of dagster.yaml, as the chart's template writes them."""
    kind = at(values, "computeLogManager.type")
    package = {"GCSComputeLogManager": "dagster_gcp.gcs", "S3ComputeLogManager": "dagster_aws.s3"}[kind]
    (config,) = at(values, "computeLogManager.config").values()
    snake = {re.sub("([A-Z])", lambda found: "_" + found[1].lower(), key): value for key, value in config.items()}
    snake["local_dir"] = str(local_dir)
    return {"module": f"{package}.compute_log_manager", "class": kind, "config": snake}


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_what_a_run_printed_is_kept_in_the_bucket_and_read_by_the_webserver(
    place: str, tmp_path: Path, buckets: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dagster_gcp" if place == "gke-gcs" else "dagster_aws")
    values = merged("values", place)
    found = buckets.new("gcs" if place == "gke-gcs" else "moto")
    of_runs = next(yaml.safe_load_all((FOLDER / f"environment-{place.removeprefix('gke-')}.yaml").read_text()))["data"]
    config = at(values, "computeLogManager.config")[
        "gcsComputeLogManager" if place == "gke-gcs" else "s3ComputeLogManager"
    ]
    assert config["bucket"] == of_runs["DATAPREP_BUCKET"]
    assert config["prefix"] != of_runs["DATAPREP_ROOT"]
    assert config["uploadInterval"] <= 60, "without it nothing is seen before the step ends"
    assert isinstance(found, GcsPlace | S3Place)
    config["bucket"] = found.bucket
    if isinstance(found, S3Place):
        assert config["endpointUrl"] == of_runs["DATAPREP_ENDPOINT_URL"]
        config |= {"endpointUrl": found.endpoint_url, "region": found.region}
        credentials = {"AWS_ACCESS_KEY_ID": found.access_key_id, "AWS_SECRET_ACCESS_KEY": found.secret_access_key}
        for name, value in (credentials | of_runs).items():
            if name.startswith("AWS_"):
                monkeypatch.setenv(name, str(value))
    key = ["0" * 32, "compute_logs", "abc"]
    for name in ("run", "webserver"):
        (tmp_path / name).mkdir()
        yaml_of_instance = {"compute_logs": compute_logs(values, tmp_path / name / "logs")}
        (tmp_path / name / "dagster.yaml").write_text(json.dumps(yaml_of_instance))
    with dg.DagsterInstance.from_config(str(tmp_path / "run")) as run, run.compute_log_manager.capture_logs(key):
        print("printed by a step", flush=True)
    with dg.DagsterInstance.from_config(str(tmp_path / "webserver")) as webserver:
        read = webserver.compute_log_manager.get_log_data(key)
    assert b"printed by a step" in (read.stdout or b"")
