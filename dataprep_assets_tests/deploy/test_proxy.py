"""The proxy of deploy/compose, a real nginx in front of real webservers: it requires a password, and viewers change
nothing.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dataprep_assets_tests.deploy.cluster import DEPLOY, SERVICES, is_serving
from dataprep_assets_tests.servers import end, free_port

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")

CHECK = '{"query": "{version}"}'
REPORT = "/report_asset_materialization/sample/manifest"
LIMIT = json.dumps({"query": 'mutation{setConcurrencyLimit(concurrencyKey: "dataprep_cpu", limit: 3)}'})
PASSWORD = "only-for-tests"


@contextmanager
def run_webserver(folder: Path, *options: str) -> Iterator[int]:
    """Run a webserver on the loopback interface and yield its port."""
    (folder / "home").mkdir(parents=True)
    (folder / "home" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    port = free_port()
    served = [*SERVICES["webserver"]["command"][1:3], "-h", "127.0.0.1", "-p", str(port), "--empty-workspace"]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, *served, *options],
            env={"DAGSTER_HOME": str(folder / "home"), "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + 180
        while not is_serving(port):
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, "the webserver did not start"
            time.sleep(0.2)
        yield port
    finally:
        end(process)


@contextmanager
def run_proxy(folder: Path, site: str, upstream: str, port: int) -> Iterator[int]:
    """Run nginx with `proxy/<site>.conf`, its upstream replaced by a loopback port, and yield its own port."""
    listen = free_port()
    text = (DEPLOY / "compose" / "proxy" / f"{site}.conf").read_text()
    assert f"http://{upstream}:3000" in text
    text = text.replace(f"http://{upstream}:3000", f"http://127.0.0.1:{port}")
    text = text.replace("listen 8080", f"listen 127.0.0.1:{listen}").replace(
        "/etc/nginx/htpasswd", f"{folder}/htpasswd"
    )
    hashed = subprocess.run(["openssl", "passwd", "-apr1", PASSWORD], check=True, capture_output=True, text=True).stdout
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "htpasswd").write_text(f"ada:{hashed}")
    temporary = " ".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    # Run a single process, because a worker of a different user could not read the tests' folders.
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{ access_log off; {temporary}\n{text}\n}}\n"
    )
    process = subprocess.Popen(
        ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")], stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 180
        while request_status(listen, "/server_info") is None:
            assert process.poll() is None, (folder / "error.log").read_text()[-2000:]
            assert time.monotonic() < deadline, "nginx did not start"
            time.sleep(0.1)
        yield listen
    finally:
        end(process)


def request_status(port: int, path: str, body: str | None = None, password: str | None = None) -> int | None:
    """Return the status of an answer; None while nothing listens."""
    return send(port, path, body, password)[0]


def send(port: int, path: str, body: str | None = None, password: str | None = None) -> tuple[int | None, str]:
    """Send a request, a POST if it has a body, and return `(status, body)`."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", body.encode() if body else None, {"Content-Type": "application/json"}
    )
    if password:
        request.add_header("Authorization", "Basic " + base64.b64encode(f"ada:{password}".encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except (urllib.error.URLError, OSError):
        return None, ""


def is_healthy(service: str, port: int) -> bool:
    """Return the result of compose's own health check of a proxy."""
    kind, *test = SERVICES[service]["healthcheck"]["test"]
    assert kind == "CMD"
    if shutil.which(test[0]) is None:
        pytest.skip(f"no {test[0]} on this machine")
    return subprocess.run([word.replace(":8080/", f":{port}/") for word in test]).returncode == 0


@pytest.fixture(scope="module")
def needs_nginx() -> None:
    if shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin") is None or shutil.which("openssl") is None:
        pytest.skip("no nginx (or no openssl) on this machine")
    assert sys.platform == "linux"


@pytest.mark.slow
def test_operators_need_the_password_for_everything(needs_nginx: None, tmp_path: Path) -> None:
    with (
        run_webserver(tmp_path / "web") as behind,
        run_proxy(tmp_path / "nginx", "operators", "webserver", behind) as port,
    ):
        for path, body in (("/", None), ("/graphql", CHECK), (REPORT, "{}"), ("/server_info", None)):
            assert request_status(port, path, body) == 401, path
            assert request_status(port, path, body, "guessed") == 401, path
        assert is_healthy("proxy", port), "without a password"
        assert not is_healthy("proxy", free_port())
        assert send(port, "/graphql", CHECK, PASSWORD)[0] == 200
        assert request_status(port, REPORT, "{}", PASSWORD) == 200
        assert json.loads(send(port, "/graphql", LIMIT, PASSWORD)[1])["data"] == {"setConcurrencyLimit": True}


@pytest.mark.slow
def test_viewers_can_read_and_change_nothing(needs_nginx: None, tmp_path: Path) -> None:
    server = run_webserver(tmp_path / "web", "--read-only")
    with server as behind, run_proxy(tmp_path / "nginx", "viewers", "viewer", behind) as port:
        assert is_healthy("viewers_proxy", port), "without a password"
        for path, body in (("/", None), ("/graphql", CHECK), ("/server_info", None)):
            assert request_status(port, path, body) == 401, path
            assert request_status(port, path, body, "guessed") == 401, path
        assert request_status(port, "/graphql", CHECK, PASSWORD) == 200
        assert request_status(port, REPORT, "{}", PASSWORD) == 401
        refused = json.loads(send(port, "/graphql", LIMIT, PASSWORD)[1])
        assert refused["data"] is None
        assert "UnauthorizedError" in refused["errors"][0]["message"]
