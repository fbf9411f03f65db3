"""The compose file is valid, publishes only the proxies, on loopback, and gives credentials only to user code."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from dataprep_assets.orchestration.runs.runs import POOLS
from dataprep_assets.resources import environment
from dataprep_assets.site.folder import SITE
from dataprep_assets.stores import connect
from dataprep_assets_tests.deploy.cluster import DEPLOY

FOLDER = DEPLOY / "compose"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "docker-compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROXIES = {"proxy", "viewers_proxy"}
OURS = {"code_location", "webserver", "daemon", "pools", "viewer"}
NOT_ROOT = {
    "postgres": "postgres",
    **dict.fromkeys(("code_location", "webserver", "daemon", "pools", "viewer"), "10001:10001"),
}
"""The proxies' image has its own user, as its name indicates."""
OF_COMPOSE = {
    "DAGSTER_PG_PASSWORD",
    "DATAPREP_TAG",
    "DATAPREP_BIND",
    "DATAPREP_PORT",
    "DATAPREP_VIEWERS_PORT",
    "DATAPREP_SOURCES",
    "DATAPREP_UI_HOSTS",
}
"""Variables in `.env` that compose itself reads."""
KEYS = {
    *("image", "restart", "init", "read_only", "tmpfs", "cap_drop", "security_opt", "environment", "networks"),
    *("volumes", "healthcheck", "build", "command", "depends_on", "ports", "profiles", "shm_size", "env_file", "user"),
}
"""Keys of the Compose specification that we use; an unlisted key counts as a typing error until it is looked up."""


def read_example() -> dict[str, str]:
    """Return the variables of env.example, including those that are commented out."""
    lines = (FOLDER / "env.example").read_text().splitlines()
    return dict(found.groups() for line in lines if (found := re.fullmatch(r"#?([A-Z][A-Z0-9_]*)=(.*)", line)))


def test_docker_compose_accepts_the_file_and_env_reaches_only_user_code(tmp_path: Path) -> None:
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("no docker-compose on PATH (Debian's 1.29 needs no engine for `config`)")
    folder = Path(shutil.copytree(FOLDER, tmp_path / "deploy" / "compose"))
    given = {name: f"value-of-{name.lower()}" for name in read_example() if name not in OF_COMPOSE}
    command = [program, "-f", "docker-compose.yaml", "config"]
    environment = {"PATH": os.environ["PATH"]}

    def config(text: str) -> subprocess.CompletedProcess[str]:
        (folder / ".env").write_text(text)
        return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)

    lines = [f"{name}={value}" for name, value in given.items()]
    ended = config("\n".join(["DAGSTER_PG_PASSWORD=only-for-tests", *lines]) + "\n")
    assert ended.returncode == 0, ended.stderr
    services = yaml.safe_load(ended.stdout)["services"]
    assert set(services) >= OURS - {"viewer"} | {"proxy", "postgres"}
    for name, service in services.items():
        seen = {key for key in given if key in service.get("environment", {})}
        assert seen == (set(given) if name == "code_location" else set()), name
    assert services["code_location"]["environment"].items() >= given.items(), "nothing of compose is before it"
    without = config((FOLDER / "env.example").read_text())
    assert without.returncode != 0, "a database without a password must not start"


def test_the_example_names_every_documented_variable() -> None:
    texts = [environment.__doc__ or "", connect.__doc__ or "", (DEPLOY.parent / "README.md").read_text()]
    texts += [path.read_text() for path in (DEPLOY / "storage").iterdir()]
    named = {
        name
        for text in texts
        for name in re.findall(
            r"\b(?:DATAPREP|R2_DATASET|DATASET|GOOGLE|HF|AWS|RAY)_[A-Z0-9_]*[A-Z0-9]\b|\b[A-Z_]+_KEY\b", text
        )
        if not name.startswith("_")  # exclude the end of `…_SECRET_ACCESS_KEY`
    }
    assert len(named) > 15
    # The example omits AWS_PROFILE, because profiles are in a file of the home directory, and AWS_ENDPOINT_URL, because
    # it is an alternative to DATAPREP_ENDPOINT_URL.
    elsewhere = {"AWS_PROFILE", "AWS_ENDPOINT_URL"}
    assert named - elsewhere <= read_example().keys()


def test_every_service_is_complete() -> None:
    for name, service in SERVICES.items():
        assert service.keys() <= KEYS, name
        assert service["image"], name
        for volume in service.get("volumes", []):
            source = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", volume).split(":")[0]
            assert source in COMPOSE["volumes"] or (FOLDER / source).exists() or source.endswith("htpasswd"), volume
        assert set(service["networks"]) <= COMPOSE["networks"].keys(), name
        for other, condition in _conditions(service):
            assert other in SERVICES, (name, other)
            assert condition != "service_healthy" or "healthcheck" in SERVICES[other], (name, other)


def _conditions(service: dict[str, Any]) -> list[tuple[str, str]]:
    wanted = service.get("depends_on", [])
    if isinstance(wanted, list):
        return [(name, "service_started") for name in wanted]
    return [(name, how["condition"]) for name, how in wanted.items()]


def test_only_the_proxies_are_published_and_only_on_loopback() -> None:
    assert {name for name, service in SERVICES.items() if "ports" in service} == PROXIES
    for name in PROXIES:
        (port,) = SERVICES[name]["ports"]
        assert port.startswith("${DATAPREP_BIND:-127.0.0.1}:"), port
    assert COMPOSE["networks"]["records"]["internal"] is True
    assert SERVICES["postgres"]["networks"] == ["records"]


def test_only_webservers_daemon_and_pools_can_reach_user_code() -> None:
    """Its gRPC server executes every request without a password."""
    assert {name for name, service in SERVICES.items() if "code" in service["networks"]} == OURS
    reached = set(SERVICES["code_location"]["networks"])
    assert {name for name, service in SERVICES.items() if reached & set(service["networks"])} == OURS | {"postgres"}
    assert all(SERVICES[name]["networks"] == ["edge"] for name in PROXIES)


def test_every_webserver_is_behind_the_guard() -> None:
    for name in ("webserver", "viewer"):
        assert SERVICES[name]["command"][:3] == ["python", "-m", "dataprep_assets.webserver"]
        assert SERVICES[name]["environment"]["DATAPREP_UI_HOSTS"] == "${DATAPREP_UI_HOSTS:-}"
        assert SERVICES[name]["environment"].items() >= COMPOSE["x-dagster"]["environment"].items()
    # The Helm chart of Kubernetes has its own command, so the image replaces the program that this command starts.
    assert "exec /opt/venv/bin/python -m dataprep_assets.webserver" in (FOLDER / "dagster-webserver").read_text()
    assert read_image_environment()["PATH"].startswith("/opt/guard:")


def test_no_file_contains_credentials() -> None:
    assert [name for name, service in SERVICES.items() if "env_file" in service] == ["code_location"]
    ignored = (DEPLOY.parent / ".gitignore").read_text().splitlines()
    assert {"deploy/compose/.env", "deploy/compose/proxy/htpasswd"} <= set(ignored)
    assert (FOLDER / "credentials" / ".gitignore").read_text().splitlines()[1:] == ["*", "!.gitignore"]
    for path in FOLDER.rglob("*"):
        if path.is_file():
            for key, value in re.findall(
                r"^\s*#?(\w*(?:PASSWORD|SECRET|TOKEN)\w*)\s*[:=][ \t]*(\S*)", path.read_text(), re.M
            ):
                assert value == "" or value.startswith(("${", "{env:")), f"{path.name}: {key}"


def test_our_containers_have_no_unused_privileges() -> None:
    assert {name: service["user"] for name, service in SERVICES.items() if "user" in service} == NOT_ROOT
    assert {service["image"].split(":")[0] for name, service in SERVICES.items() if name not in NOT_ROOT} == {
        "nginxinc/nginx-unprivileged"
    }
    for name, service in SERVICES.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], f"{name}: seccomp stays Docker's own"
    dockerfile = (FOLDER / "Dockerfile").read_text()
    assert re.search(r"^USER 10001:10001$", dockerfile, re.M)
    assert dockerfile.index("USER 10001") < dockerfile.rindex("CMD")
    assert all("--require-hashes" in line or "-e ." in line for line in dockerfile.split("\n") if "pip install" in line)
    assert dockerfile.count("--no-deps") == dockerfile.count("pip install") == 3
    assert re.findall(r"^FROM (\S+)", dockerfile, re.M) == ["${BASE}", "${BASE}"]


def test_third_party_images_are_pinned_by_digest() -> None:
    (base,) = re.findall(r"^ARG BASE=(.+)$", (FOLDER / "Dockerfile").read_text(), re.M)
    proxies = re.findall(r"image: (nginx.+)$", (DEPLOY / "kubernetes" / "environment-r2.yaml").read_text(), re.M)
    images = {service["image"] for service in SERVICES.values() if not service["image"].startswith("dataprep-assets:")}
    assert len(images | {base, *proxies}) == 3, "one nginx, one Postgres, one Python"
    for image in (*images, base, *proxies):
        assert re.fullmatch(r"[a-z/-]+:[\w.-]+@sha256:[0-9a-f]{64}", image), image


def test_files_that_the_image_copies_exist_and_are_not_ignored() -> None:
    root = DEPLOY.parent
    allowed = {line[1:] for line in (FOLDER / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    copied = re.findall(r"^COPY (?!--from)(?:--\S+ )?(.+) \S+$", (FOLDER / "Dockerfile").read_text(), re.M)
    sources = [source for line in copied for source in line.split()]
    assert len(sources) > 6
    for source in sources:
        assert (root / source).exists(), source
        assert source in allowed, source


def test_every_long_running_service_has_a_health_check() -> None:
    assert {name for name, service in SERVICES.items() if "healthcheck" not in service} == {"pools"}


def test_every_asset_pool_is_limited_before_the_first_run() -> None:
    shell, option, script = SERVICES["pools"]["command"]
    assert (shell, option) == ("sh", "-ec")
    limited = re.findall(r"^dagster instance concurrency set (\w+) \d+$", script, re.M)
    assert sorted(limited) == sorted(POOLS.values())


def test_the_code_location_has_one_name_everywhere() -> None:
    root = DEPLOY.parent
    (compose,) = yaml.safe_load((FOLDER / "workspace.yaml").read_text())["load_from"]
    (plain,) = yaml.safe_load((root / "workspace.yaml").read_text())["load_from"]
    declared = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["dg"]["project"]["code_location_name"]
    assert compose["grpc_server"]["location_name"] == plain["python_module"]["location_name"] == declared
    command = SERVICES["code_location"]["command"]
    assert command[command.index("--location-name") + 1] == declared
    (of_image,) = re.findall(r"^CMD (.*)$", (FOLDER / "Dockerfile").read_text(), re.M)
    assert json.loads(of_image) == command


def read_image_environment() -> dict[str, str]:
    """Return the variables that the image sets."""
    found = re.search(r"^ENV PATH=(?:.*\\\n)*.*", (FOLDER / "Dockerfile").read_text(), re.M)
    assert found is not None
    return dict(re.findall(r"(\w+)=(\S+)", found[0]))


def test_a_bucket_has_the_given_prefix_and_no_folder_of_the_image(tmp_path: Path) -> None:
    pytest.importorskip("dagster_aws")
    bucket = {"DATAPREP_STORAGE": "r2", "R2_DATASET_BUCKET_NAME": "b", "R2_DATASET_ACCOUNT_ID": "a" * 32}
    keys = {"R2_DATASET_WRITE_ACCESS_KEY_ID": "k", "R2_DATASET_WRITE_SECRET_ACCESS_KEY": "s"}
    wanted = {"": "", "corpora/a": "corpora/a"}
    for given, prefix in wanted.items():
        variables = read_image_environment() | bucket | keys | {"DATASET_BINS_PATH": given, "DATAPREP_ROOT": ""}
        assert environment.build_storage(tmp_path, variables).model_dump()["prefix"] == prefix


def test_artifacts_and_copies_of_the_image_are_on_the_volume(tmp_path: Path) -> None:
    link, place = re.findall(r"^RUN ln -s (\S+) /opt/dataprep/(\S+)$", (FOLDER / "Dockerfile").read_text(), re.M)[0]
    # The webservers serve the pages of the datasets, which runs write below the same link.
    assert SITE.parts[0] == place
    for name in ("code_location", "webserver", "viewer"):
        assert "data:" + link in SERVICES[name]["volumes"]
    (tmp_path / "data").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / place).symlink_to(tmp_path / "data")
    storage = environment.build_storage(tmp_path / "project", read_image_environment())
    assert Path(storage.root).resolve() == tmp_path / "data" / "artifacts"
    assert Path(storage.cache or "").resolve() == tmp_path / "data" / "cache"


def test_only_the_second_webserver_is_read_only_and_viewers_cannot_report() -> None:
    assert "--read-only" in SERVICES["viewer"]["command"]
    assert "--read-only" not in SERVICES["webserver"]["command"]
    assert SERVICES["viewer"]["profiles"] == SERVICES["viewers_proxy"]["profiles"] == ["viewers"]
    for service, site in (("proxy", "operators"), ("viewers_proxy", "viewers")):
        assert "auth_basic_user_file /etc/nginx/htpasswd;" in (FOLDER / "proxy" / f"{site}.conf").read_text()
        assert "./proxy/htpasswd:/etc/nginx/htpasswd:ro" in SERVICES[service]["volumes"]
