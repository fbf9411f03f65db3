"""The chart with our values: helm renders it, Dagster's launcher creates a run's Job from it, and schemas validate
both.
"""

import copy
import json
import os
import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from unittest import mock

import dagster as dg
import pytest
import yaml

from dataprep_assets.orchestration.runs.runs import POOLS
from dataprep_assets.orchestration.sensors.automation import UI
from dataprep_assets.resources import environment
from dataprep_assets.site.folder import SITE
from dataprep_assets.stores.connect import KINDS, GcsAddress, S3Address
from dataprep_assets.webserver.guard import explain_refusal, list_hosts
from dataprep_assets_tests.deploy.chart import (
    DEPLOY,
    ENVIRONMENTS,
    FOLDER,
    KUBERNETES,
    OPERATORS,
    PLACES,
    Rendered,
    find_chart,
    has_token,
    make_run_job,
    read_literals,
    render,
)
from dataprep_assets_tests.deploy.network import Pod, is_allowed
from dataprep_assets_tests.fakes.places import Places

pytest.importorskip("dagster_k8s", reason="the extra `k8s` is not installed")
validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")

RAY = DEPLOY / "ray" / "raycluster.yaml"
CREDENTIALS = {"secretRef": {"name": "dataprep-credentials"}}
WITHOUT_DEFAULTS = {"apiVersion", "retryOnAssetOrOpFailure", "cancelTimeoutSeconds", "customRunCoordinator"}
"""Keys that the chart's templates read although its values omit them."""
DATABASE = {"dagster-postgresql": {"postgresql-password": ""}}
WORDS = ("password", "secret", "token", "access_key")


@pytest.fixture(params=PLACES)
def deployment(request: pytest.FixtureRequest) -> Rendered:
    """Return all manifests of a place."""
    return render(request.param)


@pytest.fixture
def job(deployment: Rendered, tmp_path: Path) -> dict[str, Any]:
    """Return the Job of one of its runs."""
    return make_run_job(deployment, tmp_path)


def read_ray() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the Ray cluster and its NetworkPolicy."""
    cluster, policy = yaml.safe_load_all(RAY.read_text())
    return cluster, policy


def read_ray_templates() -> dict[str, dict[str, Any]]:
    """Return the pods of the Ray cluster, by group."""
    spec = read_ray()[0]["spec"]
    return {"head": spec["headGroupSpec"]["template"]} | {
        g["groupName"]: g["template"] for g in spec["workerGroupSpecs"]
    }


def find_value(values: Any, path: str) -> Any:
    """Return the value below a dotted path; None if there is none."""
    for step in filter(None, path.split(".")):
        values = (values or {}).get(step)
    return values


def find_unknown_keys(values: Mapping[str, Any], defaults: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Return the set keys for which the chart has no default; an empty default accepts any key."""
    for key, value in values.items():
        default = defaults.get(key)
        if key not in defaults and key not in WITHOUT_DEFAULTS:
            yield f"{path}{key}"
        elif isinstance(value, dict) and isinstance(default, dict) and default:
            yield from find_unknown_keys(value, default, f"{path}{key}.")


def find_violations(pod: Mapping[str, Any]) -> list[str]:
    """Return the violations of the restricted Pod Security profile in a pod, and writable root file systems."""
    found = []
    above = pod.get("securityContext") or {}
    if above.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        found.append("seccomp")
    if above.get("runAsNonRoot") is not True or not above.get("runAsUser"):
        found.append("root")
    for volume in pod.get("volumes") or ():
        if not set(volume) & {"configMap", "emptyDir", "secret", "projected", "persistentVolumeClaim", "ephemeral"}:
            found.append(f"volume {volume['name']}")
    for container in [*(pod.get("initContainers") or ()), *pod["containers"]]:
        own, name = container.get("securityContext") or {}, container["name"]
        found += [f"{name}: root"] * (own.get("runAsNonRoot") is False or own.get("runAsUser") == 0)
        found += [f"{name}: privileges"] * (
            own.get("allowPrivilegeEscalation") is not False or bool(own.get("privileged"))
        )
        found += [f"{name}: capabilities"] * (own.get("capabilities") != {"drop": ["ALL"]})
        found += [f"{name}: writable root"] * (own.get("readOnlyRootFilesystem") is not True)
        found += [f"{name}: no limit of memory"] * (
            "memory" not in (container.get("resources") or {}).get("limits", {})
        )
    return found


@pytest.mark.parametrize("place", PLACES)
def test_the_chart_has_every_key_that_we_set(place: str) -> None:
    defaults = yaml.safe_load((find_chart() / "values.yaml").read_text())
    user_code = yaml.safe_load((find_chart() / "charts" / "dagster-user-deployments" / "values.yaml").read_text())
    defaults["dagster-user-deployments"] |= user_code
    (an_example,) = user_code["deployments"]
    for name in ("values", place):
        values = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
        assert list(find_unknown_keys(values, defaults)) == []
        for deployment in find_value(values, "dagster-user-deployments.deployments") or ():
            assert set(deployment) <= {*an_example, "resources", "podSecurityContext", "securityContext"}


def test_every_manifest_is_valid(deployment: Rendered, job: dict[str, Any]) -> None:
    for manifest in (*deployment.manifests, job):
        if manifest["apiVersion"] not in OPERATORS:
            validator.validate(manifest, KUBERNETES, strict=True)
    assert len(deployment.templates()) >= 3


def test_a_run_has_the_cores_and_memory_of_a_batch(deployment: Rendered, job: dict[str, Any]) -> None:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    requests, limits = container["resources"]["requests"], container["resources"]["limits"]
    (scratch,) = (v for v in job["spec"]["template"]["spec"]["volumes"] if v["name"] == "scratch")
    if "ephemeral" in scratch:
        claim = scratch["ephemeral"]["volumeClaimTemplate"]["spec"]
        assert claim["resources"]["requests"] == {"storage": "200Gi"}
        assert deployment.get("StorageClass", claim["storageClassName"])["volumeBindingMode"] == "WaitForFirstConsumer"
    else:
        assert (requests.pop("ephemeral-storage"), limits.pop("ephemeral-storage")) == ("100Gi", "200Gi")
    assert (requests["cpu"], requests["memory"]) == ("8", "8Gi")
    assert limits["memory"] == "12Gi"
    assert read_literals(container)["DATAPREP_WORKERS"] == container["resources"]["requests"]["cpu"]
    assert deployment.code_location["resources"]["requests"]["cpu"] == "250m"
    assert job["spec"]["template"]["spec"]["nodeSelector"]
    assert job["spec"]["ttlSecondsAfterFinished"] == 3600


def test_a_run_has_the_settings_of_the_code_location_and_its_own_size(
    deployment: Rendered, job: dict[str, Any]
) -> None:
    (container,), location = job["spec"]["template"]["spec"]["containers"], deployment.code_location
    assert container["image"] == location["image"]
    code = deployment.code["spec"]
    pod = job["spec"]["template"]["spec"]
    assert {"configMapRef": {"name": "dataprep-environment"}} in container["envFrom"]
    for source in container["envFrom"]:
        assert source in location["envFrom"]
    theirs = read_literals(location)
    assert {k: v for k, v in read_literals(container).items() if k in theirs} == {
        k: v for k, v in theirs.items() if k != "DAGSTER_CURRENT_IMAGE"
    }
    mounts = {m["mountPath"] for m in container["volumeMounts"]}
    assert mounts == {m["mountPath"] for m in location["volumeMounts"]}
    assert [v["name"] for v in pod["volumes"] if {"emptyDir", "ephemeral"} & set(v)] == [
        v["name"] for v in code["volumes"]
    ]
    assert {v["name"] for v in pod["volumes"]} == {m["name"] for m in container["volumeMounts"]}


@pytest.mark.parametrize("name", ["snapshot", "token_bins", "combined_bins"])
def test_a_tag_gives_one_backfill_other_resources(name: str, tmp_path: Path) -> None:
    tags = yaml.safe_load((FOLDER / "run-tags.yaml").read_text())
    job = make_run_job(render("r2"), tmp_path, {"dagster-k8s/config": json.dumps(tags[name])})
    validator.validate(job, KUBERNETES, strict=True)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    wanted = tags[name]["container_config"]["resources"]
    for kind in ("requests", "limits"):
        assert container["resources"][kind] | wanted[kind] == container["resources"][kind]
    if tags[name]["container_config"].get("env"):
        assert read_literals(container)["DATAPREP_WORKERS"] == wanted["requests"]["cpu"]
    assert find_violations(job["spec"]["template"]["spec"]) == []


def test_every_pod_that_uses_the_bucket_has_access(deployment: Rendered, job: dict[str, Any], request: Any) -> None:
    templates = deployment.templates()
    pods = [
        job["spec"]["template"]["spec"],
        deployment.code["spec"],
        templates["dagster-webserver"]["spec"],
    ]
    identities = {"gke-gcs": "iam.gke.io/gcp-service-account", "eks-s3": "eks.amazonaws.com/role-arn"}
    (place,) = (name for name in PLACES if name in request.node.name)
    for pod in (*pods, read_ray_templates()["shards"]["spec"]):
        account = deployment.get("ServiceAccount", pod["serviceAccountName"])
        if place in identities:
            identity = account["metadata"]["annotations"][identities[place]].removeprefix("arn:aws:iam::ACCOUNT:role/")
            assert identity.partition("@")[0] == ("dagster-logs" if pod is pods[2] else "dataprep")
    if place not in identities:
        for pod in pods[:2]:
            assert CREDENTIALS in pod["containers"][0]["envFrom"]
        assert {"secretRef": {"name": "dagster-logs"}} in pods[2]["containers"][0]["envFrom"]


def test_only_the_daemon_may_create_pods(deployment: Rendered, job: dict[str, Any]) -> None:
    bound = {s["name"] for binding in deployment.of("RoleBinding") for s in binding["subjects"]}
    assert bound == {"dagster"}
    assert deployment.templates()["dagster-daemon"]["spec"]["serviceAccountName"] == "dagster"
    assert job["spec"]["template"]["spec"]["serviceAccountName"] not in bound
    code = deployment.code["spec"]
    assert code["serviceAccountName"] not in bound
    verbs = {
        r: set(rule["verbs"]) for role in deployment.of("Role") for rule in role["rules"] for r in rule["resources"]
    }
    assert {"create", "delete", "get"} <= verbs["jobs"]


def test_probes_use_the_served_port(deployment: Rendered) -> None:
    (web,) = deployment.templates()["dagster-webserver"]["spec"]["containers"]
    served = int(web["command"][-1].partition(" -p ")[2].split()[0])
    assert {p["containerPort"] for p in web["ports"]} == {served}
    assert {p["port"] for p in deployment.get("Service", "dagster-webserver")["spec"]["ports"]} == {served}
    for kind in ("readinessProbe", "livenessProbe"):
        assert web[kind]["httpGet"] == {"path": "/server_info", "port": served}
    code = deployment.code_location
    grpc = code["args"][code["args"].index("-p") + 1]
    assert code["readinessProbe"]["exec"]["command"][-2:] == ["-p", grpc]
    servers = yaml.safe_load(deployment.get("ConfigMap", "dagster-workspace-yaml")["data"]["workspace.yaml"])
    (server,) = (entry["grpc_server"] for entry in servers["load_from"])
    service = deployment.get("Service", server["host"])
    assert [str(server["port"]), *(str(p["port"]) for p in service["spec"]["ports"])] == [grpc, grpc]


def test_no_pod_runs_as_root_or_writes_to_its_image(deployment: Rendered, job: dict[str, Any]) -> None:
    pods = {name: template["spec"] for name, template in deployment.templates().items()}
    pods |= {"run": job["spec"]["template"]["spec"]}
    pods |= {f"ray {name}": template["spec"] for name, template in read_ray_templates().items()}
    assert {name: found for name, pod in pods.items() if (found := find_violations(pod))} == {}


def test_only_pods_that_create_pods_have_the_token_of_their_account(deployment: Rendered, job: dict[str, Any]) -> None:
    pods = {name: template["spec"] for name, template in deployment.templates().items()}
    pods |= {"run": job["spec"]["template"]["spec"]}
    assert {name for name, pod in pods.items() if has_token(pod)} == {"dagster-daemon", "dagster-webserver"}
    for account in deployment.of("ServiceAccount"):
        assert account["automountServiceAccountToken"] is False, "a pod that says nothing gets none, as Ray's workers"
    assert "automountServiceAccountToken" not in read_ray_templates()["shards"]["spec"]
    code = copy.deepcopy(pods["dagster-dagster-user-deployments-dataprep-assets"])
    code["containers"][0]["volumeMounts"].pop()
    assert has_token(code), "the chart mounts it where nothing else is"


def test_the_guard_accepts_the_host_names_that_lead_to_it(deployment: Rendered) -> None:
    (web,) = deployment.templates()["dagster-webserver"]["spec"]["containers"]
    (ingress,) = deployment.of("Ingress")
    named = {rule["host"] for rule in ingress["spec"]["rules"]}
    assert named <= set(list_hosts(read_literals(web)))
    for name in named:
        scope = {"type": "http", "method": "GET", "path": "/runs", "headers": [(b"host", name.encode())]}
        assert explain_refusal(scope, list_hosts(read_literals(web))) is None
        assert explain_refusal(scope, list_hosts({})) is not None, "without the variable, no one would see a page"


def test_temporary_logs_are_on_a_volume(deployment: Rendered, job: dict[str, Any]) -> None:
    local_dir = yaml.safe_load(deployment.instance)["compute_logs"]["config"]["local_dir"]
    for pod in (job["spec"]["template"]["spec"], deployment.templates()["dagster-webserver"]["spec"]):
        empty = {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
        folders = {m["mountPath"] for m in pod["containers"][0]["volumeMounts"] if m["name"] in empty}
        assert folders & {str(folder) for folder in Path(local_dir).parents}


def test_pages_are_written_on_a_volume_and_read_from_the_bucket_by_the_webserver(
    deployment: Rendered, job: dict[str, Any]
) -> None:
    dockerfile = (DEPLOY / "compose" / "Dockerfile").read_text()
    ((target, link),) = re.findall(r"^RUN ln -s (\S+) /opt/dataprep/(\S+)$", dockerfile, re.M)
    assert SITE.parts[0] == link
    mounts = {m["mountPath"]: m for m in job["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]}
    assert mounts[target]["name"] == "scratch"
    assert not mounts[target].get("readOnly")
    (web,) = deployment.templates()["dagster-webserver"]["spec"]["containers"]
    names = [source.get("secretRef", {}).get("name") for source in web["envFrom"]]
    values = deployment.environment(web, {name: {} for name in names if name} | DATABASE)
    assert (values["DATAPREP_BUCKET"], values["DATAPREP_ROOT"]) == ("my-dataprep-bucket", "artifacts")
    assert "dataprep-credentials" not in names


def test_violations_of_the_profile_are_detected(job: dict[str, Any]) -> None:
    pod = copy.deepcopy(job["spec"]["template"]["spec"])
    del pod["securityContext"]["seccompProfile"], pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"]
    pod["containers"][0]["securityContext"]["capabilities"]["add"] = ["SYS_ADMIN"]
    pod["volumes"].append({"name": "node", "hostPath": {"path": "/"}})
    assert find_violations(pod) == ["seccomp", "volume node", "dagster: capabilities", "dagster: writable root"]


def test_the_password_and_the_keys_come_from_secrets(deployment: Rendered, job: dict[str, Any]) -> None:
    assert list(deployment.of("Secret")) == []
    containers = [c for t in deployment.templates().values() for c in t["spec"]["containers"]]
    for container in (*containers, *job["spec"]["template"]["spec"]["containers"]):
        for name, value in read_literals(container).items():
            assert not any(word in name.lower() for word in WORDS), (name, value)
        if container["image"].startswith("registry.example"):
            (password,) = (v for v in container["env"] if v["name"] == "DAGSTER_PG_PASSWORD")
            assert password["valueFrom"]["secretKeyRef"] == {"name": "dagster-postgresql", "key": "postgresql-password"}
    for manifest in deployment.of("ConfigMap"):
        for name in manifest.get("data", ()):
            assert not any(word in name.lower() for word in WORDS), name
    postgres = yaml.safe_load(deployment.instance)["run_storage"]["config"]["postgres_db"]
    assert postgres["password"] == {"env": "DAGSTER_PG_PASSWORD"}


def test_kubernetes_does_not_restart_a_lost_pod_because_dagster_retries_the_run(
    deployment: Rendered, job: dict[str, Any]
) -> None:
    assert job["spec"]["backoffLimit"] == 0
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    annotations = job["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    instance = yaml.safe_load(deployment.instance)
    assert instance["run_retries"] == {"enabled": True, "max_retries": 5, "retry_on_asset_or_op_failure": False}
    assert instance["run_monitoring"]["enabled"] is True
    assert instance["run_monitoring"]["max_resume_run_attempts"] == 0
    assert 0 < instance["run_monitoring"]["free_slots_after_run_end_seconds"] <= 60


def test_the_pools_and_the_queue_are_limited(deployment: Rendered) -> None:
    from dagster._core.instance.config import validate_concurrency_config

    instance = yaml.safe_load(deployment.instance)
    validate_concurrency_config(instance)  # the webserver and the daemon exit if this raises
    assert instance["concurrency"]["runs"]["max_concurrent_runs"] == 32
    assert instance["concurrency"]["pools"] == {"default_limit": 16, "granularity": "run"}
    text = (FOLDER / "values.yaml").read_text()
    assert all(pool in text for pool in POOLS.values())


def test_every_pod_of_our_image_has_the_password_of_a_private_registry(tmp_path: Path) -> None:
    rendered = render("r2", FOLDER / "private-registry.yaml")
    pods = {name: template["spec"] for name, template in rendered.templates().items() if name != "dagster-proxy"}
    pods["run"] = make_run_job(rendered, tmp_path)["spec"]["template"]["spec"]
    assert len(pods) == 4
    assert all(pod.get("imagePullSecrets") == [{"name": "registry"}] for pod in pods.values())
    for manifest in rendered.manifests:
        if manifest["apiVersion"] not in OPERATORS:
            validator.validate(manifest, KUBERNETES, strict=True)


def test_ticks_do_not_fill_the_database(deployment: Rendered) -> None:
    kept = yaml.safe_load(deployment.instance)["retention"]
    assert kept["sensor"]["purge_after_days"] == {"skipped": 7, "success": 30, "failure": 90, "started": 90}
    assert kept["schedule"]["purge_after_days"] == 30


def test_the_network_allows_only_the_launcher_and_ray(deployment: Rendered, job: dict[str, Any]) -> None:
    templates = deployment.templates()
    policies = [*deployment.of("NetworkPolicy"), read_ray()[1]]
    daemon, web = (Pod(templates[f"dagster-{name}"]["metadata"]["labels"]) for name in ("daemon", "webserver"))
    code = Pod(deployment.code["metadata"]["labels"])
    run = Pod(job["spec"]["template"]["metadata"]["labels"])
    cluster = {"ray.io/cluster": read_ray()[0]["metadata"]["name"]}
    head, worker = (Pod(cluster | {"ray.io/node-type": kind}) for kind in ("head", "worker"))
    operator = Pod({"app.kubernetes.io/name": "kuberay-operator"}, "kuberay-system")
    stranger, neighbor = Pod({"app": "anything"}), Pod(run.labels, "elsewhere")
    spoken = [(daemon, code, 4000), (web, code, 4000), (run, head, 10001), (worker, head, 6379), (head, worker, 30_000)]
    spoken += [(worker, worker, 30_001), (operator, head, 8265)]
    front = deployment.get("NetworkPolicy", "dagster-webserver")
    if "ipBlock" in front["spec"]["ingress"][0]["from"][0]:
        block = ip_network(front["spec"]["ingress"][0]["from"][0]["ipBlock"]["cidr"])
        balancer, elsewhere = Pod({}, address=str(block[7])), Pod({}, address="198.51.100.7")
        assert not is_allowed(policies, elsewhere, web, 3000)
    else:
        balancer = Pod(templates["dagster-proxy"]["metadata"]["labels"])
    for source, target, port in [*spoken, (balancer, web, 3000)]:
        assert is_allowed(policies, source, target, port), (source, target, port)
    for source in (stranger, neighbor):
        for target, port in ((web, 3000), (code, 4000), (head, 10001), (head, 6379), (run, 8080), (daemon, 8080)):
            assert not is_allowed(policies, source, target, port), (source, target, port)
    assert not is_allowed(policies, run, code, 4000)
    assert not is_allowed(policies, run, head, 6379)


@pytest.mark.parametrize(
    "path", [*sorted(FOLDER.glob("environment-*.yaml")), FOLDER / "network.yaml", RAY], ids=lambda p: p.name
)
def test_manifests_are_valid_and_contain_no_secret(path: Path) -> None:
    manifests = [m for m in yaml.safe_load_all(path.read_text()) if m]
    assert len(manifests) >= 2
    for manifest in manifests:
        assert manifest["kind"] != "Secret"
        if manifest["apiVersion"] not in OPERATORS:
            validator.validate(manifest, KUBERNETES, strict=True)


def test_the_pods_of_ray_are_valid_and_their_ports_are_restricted() -> None:
    cluster, policy = read_ray()
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    for group in groups:
        validator.validate(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, "spec": group["template"]["spec"]},
            KUBERNETES,
            strict=True,
        )
        (container,) = group["template"]["spec"]["containers"]
        settings = {variable["name"]: variable for variable in container["env"]}
        assert settings["RAY_AUTH_MODE"]["value"] == "token"
        assert "valueFrom" in settings.get("RAY_AUTH_TOKEN", {}) or "envFrom" in container
        assert settings["RAY_USAGE_STATS_ENABLED"]["value"] == "0"
    assert groups[0]["rayStartParams"]["num-cpus"] == "0"
    assert groups[0]["rayStartParams"]["dashboard-host"] == "127.0.0.1"
    assert policy["spec"]["podSelector"]["matchLabels"] == {"ray.io/cluster": cluster["metadata"]["name"]}


def test_the_cluster_runs_the_ray_version_of_the_constraints() -> None:
    pinned = dict(
        line.split("==") for line in (DEPLOY.parent / "constraints.txt").read_text().splitlines() if "==" in line
    )
    if "ray" not in pinned:
        pytest.skip("constraints.txt does not pin ray yet")
    assert read_ray()[0]["spec"]["rayVersion"] == pinned["ray"]


@pytest.mark.parametrize("name", sorted(ENVIRONMENTS.values()))
def test_the_environment_names_a_storage_that_the_project_supports(name: str) -> None:
    data = next(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()))["data"]
    assert data["DATAPREP_STORAGE"] in KINDS
    for variable in data:
        # The compute log manager needs boto3's own variables.
        known = f"{environment.__doc__} DATAPREP_STORAGE {UI}"
        of_boto3 = ("AWS_REQUEST_CHECKSUM_CALCULATION", "AWS_RESPONSE_CHECKSUM_VALIDATION", "AWS_REGION")
        assert variable in known or variable in of_boto3


def test_the_webserver_requires_a_login(deployment: Rendered) -> None:
    service = deployment.get("Service", "dagster-webserver")
    assert service["spec"]["type"] == "ClusterIP"
    (ingress,) = deployment.of("Ingress")
    backend = ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    if backend["name"] == "dagster-proxy":
        assert "auth_basic_user_file" in deployment.get("ConfigMap", "dagster-proxy")["data"]["default.conf"]
    elif ingress["spec"].get("ingressClassName") == "alb":
        said = {name.rpartition("/")[2]: value for name, value in ingress["metadata"]["annotations"].items()}
        assert json.loads(said["listen-ports"]) == [{"HTTPS": 443}], "no door without TLS"
        assert (said["auth-type"], said["auth-on-unauthenticated-request"]) == ("cognito", "authenticate")
        assert set(json.loads(said["auth-idp-cognito"])) == {"userPoolARN", "userPoolClientID", "userPoolDomain"}
        assert (said["target-type"], said["healthcheck-path"]) == ("ip", "/server_info")
    else:
        (front,) = deployment.of("BackendConfig")
        assert backend == {"name": "dagster-webserver", "port": {"number": 3000}}
        assert front["spec"]["iap"]["enabled"] is True
        assert front["spec"]["healthCheck"]["port"] == 3000
        annotation = json.loads(service["metadata"]["annotations"]["cloud.google.com/backend-config"])
        assert annotation["default"] == front["metadata"]["name"]


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_the_output_of_a_run_is_stored_in_the_bucket_and_read_by_the_webserver(
    place: str, tmp_path: Path, servers: Places
) -> None:
    pytest.importorskip("dagster_gcp" if place == "gke-gcs" else "dagster_aws")
    rendered = render(place)
    logs = yaml.safe_load(rendered.instance)["compute_logs"]
    of_runs = rendered.get("ConfigMap", "dataprep-environment")["data"]
    found, config = servers.new("gcs" if place == "gke-gcs" else "moto"), logs["config"]
    assert config["bucket"] == of_runs["DATAPREP_BUCKET"]
    assert config["prefix"] != of_runs["DATAPREP_ROOT"]
    assert config["upload_interval"] <= 60, "without it nothing is seen before the step ends"
    assert isinstance(found, GcsAddress | S3Address)
    config["bucket"] = found.bucket
    variables = {name: value for name, value in of_runs.items() if name.startswith("AWS_")}
    if isinstance(found, S3Address):
        assert config.get("endpoint_url") == of_runs.get("DATAPREP_ENDPOINT_URL")
        assert config["region"] in ("auto", of_runs.get("AWS_REGION"))
        config |= {"endpoint_url": found.endpoint_url, "region": found.region}
        variables |= {"AWS_ACCESS_KEY_ID": found.access_key_id, "AWS_SECRET_ACCESS_KEY": found.secret_access_key}
    key = ["0" * 32, "compute_logs", "abc"]
    for name in ("run", "webserver"):
        (tmp_path / name).mkdir()
        mine = logs | {"config": config | {"local_dir": str(tmp_path / name / "logs")}}
        (tmp_path / name / "dagster.yaml").write_text(json.dumps({"compute_logs": mine}))
    with mock.patch.dict(os.environ, variables):
        with dg.DagsterInstance.from_config(str(tmp_path / "run")) as run, run.compute_log_manager.capture_logs(key):
            print("printed by a step", flush=True)
        with dg.DagsterInstance.from_config(str(tmp_path / "webserver")) as webserver:
            read = webserver.compute_log_manager.get_log_data(key)
    assert b"printed by a step" in (read.stdout or b"")
