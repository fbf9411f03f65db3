"""The compose file is valid, publishes the proxies alone, on loopback, and gives credentials to user code alone."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dataprep_assets_tests.deploy.cluster import DEPLOY
from resources import environment

FOLDER = DEPLOY / "compose"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "docker-compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROXIES = {"proxy", "viewers_proxy"}
OURS = {"code_location", "webserver", "daemon", "pools", "viewer"}
CREDENTIALS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"}
KEYS = {
    *("image", "restart", "init", "read_only", "tmpfs", "cap_drop", "security_opt", "environment", "networks"),
    *("volumes", "healthcheck", "build", "command", "depends_on", "ports", "profiles", "shm_size"),
}
"""Keys of the Compose specification that are used here; another one is a typing error until somebody looks it up."""


def test_docker_compose_accepts_it(tmp_path: Path) -> None:
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("no docker-compose on PATH (Debian's 1.29 needs no engine for `config`)")
    environment = {**os.environ, "DAGSTER_PG_PASSWORD": "only-for-tests"}
    command = [program, "--project-directory", str(FOLDER), "-f", str(FOLDER / "docker-compose.yaml"), "config"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert set(yaml.safe_load(ended.stdout)["services"]) >= OURS - {"viewer"} | {"proxy", "postgres"}
    without = subprocess.run(
        command, env={k: v for k, v in os.environ.items() if k != "DAGSTER_PG_PASSWORD"}, capture_output=True, text=True
    )
    assert without.returncode != 0, "a database without a password must not start"


def test_every_service_is_whole() -> None:
    for name, service in SERVICES.items():
        assert service.keys() <= KEYS, name
        assert service["image"], name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
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


def test_the_proxies_alone_are_published_and_on_loopback() -> None:
    assert {name for name, service in SERVICES.items() if "ports" in service} == PROXIES
    for name in PROXIES:
        (port,) = SERVICES[name]["ports"]
        assert port.startswith("${DATAPREP_BIND:-127.0.0.1}:"), port
    assert COMPOSE["networks"]["records"]["internal"] is True
    assert SERVICES["postgres"]["networks"] == ["records"]


def test_credentials_reach_user_code_alone_and_stand_in_no_file() -> None:
    for name, service in SERVICES.items():
        given = CREDENTIALS & service.get("environment", {}).keys()
        assert given == (CREDENTIALS if name == "code_location" else set()), name
    for path in FOLDER.rglob("*"):
        if path.is_file():
            for key, value in re.findall(
                r"^\s*#?(\w*(?:PASSWORD|SECRET|TOKEN)\w*)\s*[:=][ \t]*(\S*)", path.read_text(), re.M
            ):
                assert value == "" or value.startswith(("${", "{env:")), f"{path.name}: {key}"


def test_containers_of_ours_have_no_rights_they_do_not_use() -> None:
    for name in OURS:
        assert SERVICES[name]["read_only"] is True
        assert SERVICES[name]["cap_drop"] == ["ALL"]
    dockerfile = (FOLDER / "Dockerfile").read_text()
    assert re.search(r"^USER 10001:10001$", dockerfile, re.M)
    assert dockerfile.index("USER 10001") < dockerfile.rindex("CMD")
    assert "-c constraints.txt" in dockerfile
    assert all("-slim" in line for line in dockerfile.splitlines() if line.startswith("FROM python"))


def test_what_the_image_copies_is_there_and_let_through() -> None:
    root = DEPLOY.parent
    allowed = {line[1:] for line in (FOLDER / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    copied = re.findall(r"^COPY (?!--from)(?:--\S+ )?(.+) \S+$", (FOLDER / "Dockerfile").read_text(), re.M)
    sources = [source for line in copied for source in line.split()]
    assert len(sources) > 6
    for source in sources:
        assert (root / source).exists(), source
        assert source in allowed, source


def test_variables_of_the_storage_are_those_that_the_project_reads() -> None:
    known = (environment.__doc__ or "") + "DATAPREP_STORAGE DATAPREP_WORKERS DATAPREP_ENGINE"
    for name in SERVICES["code_location"]["environment"]:
        assert not name.startswith("DATAPREP_") or name in known, name


def test_only_the_second_webserver_is_read_only_and_reports_are_closed_to_viewers() -> None:
    assert "--read-only" in SERVICES["viewer"]["command"]
    assert "--read-only" not in SERVICES["webserver"]["command"]
    assert SERVICES["viewer"]["profiles"] == SERVICES["viewers_proxy"]["profiles"] == ["viewers"]
    assert "auth_basic_user_file" in (FOLDER / "proxy" / "operators.conf").read_text()
