"""The services of `deploy/compose` as processes of one machine: Postgres, code location, daemon, webserver, and runs.

The instance is `deploy/compose/dagster.yaml` unchanged. Commands and health checks are those of compose, except for
ports and folders.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import dagster as dg
import yaml

from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.orchestration.runs.runs import POOLS
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets_tests.deploy.location import DECLARATION
from dataprep_assets_tests.deploy.postgres import find_binaries, run_postgres
from dataprep_assets_tests.servers import free_port, free_ports

DEPLOY = Path(__file__).parents[2] / "deploy"
SCRIPTS = Path(sys.executable).parent
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((DEPLOY / "compose" / "docker-compose.yaml").read_text())[
    "services"
]
_LAUNCH = """
mutation($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message stack }
  }
}
"""


@dataclass
class Cluster:
    """A running deployment.

    `environment` is the environment of its processes, `project` their working directory; `corpus` is its only dataset,
    if it has one.
    """

    folder: Path
    environment: dict[str, str]
    code_port: int
    web_port: int
    corpus: Any = None
    project: Path = DEPLOY.parent
    services: dict[str, dict[str, Any]] = field(default_factory=lambda: SERVICES)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The folder of artifacts."""
        return Path(self.environment["DATAPREP_ROOT"])

    @contextmanager
    def instance(self) -> Iterator[dg.DagsterInstance]:
        """Return the instance, opened in this process."""
        home = self.environment["DAGSTER_HOME"]
        with mock.patch.dict(os.environ, self.environment), dg.DagsterInstance.from_config(home) as instance:
            yield instance

    def start(self, name: str, *command: str) -> None:
        """Start a process as a service that writes its output to a file of its name."""
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(SCRIPTS / command[0]), *command[1:]],
                env=self.environment,
                cwd=self.project,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def words(self, command: Sequence[str], **others: str) -> list[str]:
        """Return a compose command with this machine's ports and folders, and with the replacements in `others`."""
        here = {
            "0.0.0.0": "127.0.0.1",
            "4000": str(self.code_port),
            "3000": str(self.web_port),
            "/opt/dagster/home/workspace.yaml": str(self.folder / "home" / "workspace.yaml"),
            **others,
        }
        return [here.get(word, word).replace(":3000/", f":{self.web_port}/") for word in command]

    def start_code(self, module: str | None = None) -> None:
        """Start the code location as compose does, or with a different module."""
        command = self.words(self.services["code_location"]["command"])
        if module is not None:
            command[command.index("-m") + 1] = module
        self.start("code", *command)
        self.wait(lambda: _is_healthy(self.code_port), 180, "code location")

    def start_web(self) -> None:
        """Start the webserver as compose does."""
        self.start("web", *self.words(self.services["webserver"]["command"]))
        self.wait(lambda: is_serving(self.web_port), 180, "webserver")

    def start_daemon(self) -> None:
        """Start the daemon as compose does."""
        self.start("daemon", *self.words(self.services["daemon"]["command"]))

    def healthy(self, service: str) -> bool:
        """Return the result of compose's own health check of a service."""
        kind, *test = self.services[service]["healthcheck"]["test"]
        assert kind == "CMD"
        environment = self.environment | {
            "PATH": f"{SCRIPTS}:{find_binaries()}:{os.environ['PATH']}",
            "PGHOST": self.environment["DAGSTER_PG_HOST"],
            "PGPORT": self.environment["DAGSTER_PG_PORT"],
        }
        return subprocess.run(self.words(test), env=environment, capture_output=True, timeout=120).returncode == 0

    def kill(self, name: str) -> None:
        """Kill -9 a service without its children."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def lose(self, name: str) -> None:
        """Kill -9 a service and its children, as the end of a container does."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def graphql(self, query: str, variables: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a query to the webserver and return the data of its answer."""
        body = json.dumps({"query": query, "variables": variables or {}}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.web_port}/graphql", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            answer = json.load(response)
        if "errors" in answer:
            raise RuntimeError(json.dumps(answer["errors"])[:2000])
        data: dict[str, Any] = answer["data"]
        return data

    def backfill(
        self, keys: Sequence[dg.AssetKey], partitions: Sequence[str], tags: dict[str, str] | None = None
    ) -> str:
        """Launch a backfill as the UI does, and return its id."""
        params = {
            "assetSelection": [{"path": list(key.path)} for key in keys],
            "partitionNames": list(partitions),
            "tags": [{"key": k, "value": v} for k, v in (tags or {}).items()],
        }
        found = self.graphql(_LAUNCH, {"params": params})["launchPartitionBackfill"]
        if found["__typename"] != "LaunchBackfillSuccess":
            raise RuntimeError(json.dumps(found)[:2000])
        backfill: str = found["backfillId"]
        return backfill

    def wait(self, ready: Callable[[], bool], seconds: float, what: str) -> float:
        """Wait until `ready` and return the seconds; raise RuntimeError with the services' last output after
        the limit.
        """
        started = time.monotonic()
        while not ready():
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended with {process.returncode}: {self.last_words()}")
            if time.monotonic() - started > seconds:
                raise RuntimeError(f"{what}: not within {seconds} s: {self.last_words()}")
            time.sleep(0.25)
        return time.monotonic() - started

    def last_words(self) -> str:
        """Return the end of every service's output."""
        return "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')[-1500:]}" for p in self.folder.glob("*.log"))

    def stop(self) -> None:
        """End every process that was started, including runs, which are found by this cluster's DAGSTER_HOME."""
        for process in self.processes.values():
            process.terminate()
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and any(p.poll() is None for p in self.processes.values()):
            time.sleep(0.05)
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self.processes.values():
            process.wait()

    def pids(self) -> list[int]:
        """Return the process ids of this cluster, identified by their environment."""
        mark = f"DAGSTER_HOME={self.environment['DAGSTER_HOME']}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found


def is_serving(port: int) -> bool:
    """Return whether a webserver answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def run_ray_cluster(running: Cluster, cpus: int) -> Iterator[None]:
    """Run a Ray cluster on this machine, as if operated separately, for the runs of this deployment."""
    port = free_port()
    # Use a short path, because Ray creates its sockets there, and a socket's path has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="dp-ray-", ignore_cleanup_errors=True) as home:
        options = [f"--temp-dir={home}", f"--num-cpus={cpus}", "--object-store-memory=100000000"]
        options += ["--include-dashboard=false", "--disable-usage-stats", "--dashboard-agent-listen-port=0"]
        options += ["--include-log-monitor=false"]  # no driver prints the output of workers
        running.environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        running.start(
            "ray", "ray", "start", "--head", "--block", f"--port={port}", *options, "--node-ip-address=127.0.0.1"
        )
        running.wait(lambda: is_listening(port), 120, "Ray")
        running.environment |= {"DATAPREP_ENGINE": "ray", "RAY_ADDRESS": f"127.0.0.1:{port}"}
        yield


def is_listening(port: int) -> bool:
    """Return whether a process listens on a port of the loopback interface."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def create_deployment(folder: Path, project: Path = DEPLOY.parent, **variables: str) -> Iterator[Cluster]:
    """Yield Postgres with the instance of a project's `deploy/compose`, without services; remove all of it
    afterwards.
    """
    compose = project / "deploy" / "compose"
    with run_postgres() as database:
        home = folder / "home"
        home.mkdir(parents=True)
        shutil.copy(compose / "dagster.yaml", home)
        code_port, web_port = free_ports(2)
        (location,) = yaml.safe_load((compose / "workspace.yaml").read_text())["load_from"]
        location["grpc_server"] |= {"host": "127.0.0.1", "port": code_port}
        (home / "workspace.yaml").write_text(json.dumps({"load_from": [location]}))
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("DAGSTER_", "DATAPREP_", "RAY_"))},
            **database,
            "DAGSTER_HOME": str(home),
            "DAGSTER_COMPUTE_LOGS": str(folder / "compute_logs"),
            "DAGSTER_LOCAL_STORAGE": str(folder / "storage"),
            "DAGSTER_EVENT_BATCH_SIZE": "1000",
            "DATAPREP_ROOT": str(folder / "artifacts"),
            "DATAPREP_CACHE": str(folder / "cache"),
            **variables,
        }
        services = yaml.safe_load((compose / "docker-compose.yaml").read_text())["services"]
        running = Cluster(folder, environment, code_port, web_port, project=project, services=services)
        try:
            yield running
        finally:
            running.stop()


@contextmanager
def run_cluster(
    folder: Path, attributes: dict[str, Any], *, cpu_runs: int = 2, ray_cpus: int | None = None
) -> Iterator[Cluster]:
    """Yield a running deployment with `cpu_runs` concurrent runs of token bins; remove it afterwards.

    With `ray_cpus`, the shards of the runs are tasks of a Ray cluster with this number of CPUs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    declaration = folder / "corpus.json"
    declaration.write_text(json.dumps(attributes))
    with ExitStack() as stack, create_deployment(folder, **{DECLARATION: str(declaration)}) as running:
        running.corpus = validate_declaration(CorpusDeclaration, attributes, declaration)
        with running.instance() as instance:
            for pool in POOLS.values():
                instance.event_log_storage.set_concurrency_slots(pool, cpu_runs)
        if ray_cpus is not None:
            stack.enter_context(run_ray_cluster(running, ray_cpus))
        running.start_code("dataprep_assets_tests.deploy.location")
        running.start_web()
        running.start_daemon()
        yield running


def _is_healthy(port: int) -> bool:
    from dagster._grpc.client import DagsterGrpcClient

    return DagsterGrpcClient(port=port, host="127.0.0.1").health_check_query() == "SERVING"
