"""`dataprep ui`: the project in the browser, protected by the guard of `dataprep_assets.webserver`.

It starts Dagster's code server, webserver and daemon as separate processes, like `dagster dev`, but with the guard.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.errors import ConfigError, DataprepError
from dataprep_assets.execution.watch import die_with_parent
from dataprep_assets.stores.locks import open_own_file

if TYPE_CHECKING:
    from dataprep_assets.cli.support.health import Health

_LOOK_SECONDS = 0.5
_ASK_SECONDS = 5.0
"""Seconds between two checks for problems."""
_END_SECONDS = 10.0
"""Seconds that a service may take to end. Runs end properly even if the code server that waits for them is killed."""
_DAEMON = "from importlib.metadata import entry_points as e; e(group='console_scripts')['dagster-daemon'].load()()"
"""Starts the command `dagster-daemon` of this Python environment, independent of PATH."""


def command(
    host: Annotated[
        str,
        typer.Option(help="Listen on this address. Other machines can reach the UI at any address except loopback."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Listen on this port.")] = 3000,
) -> int:
    """Start the Dagster UI and daemon for this project (like `dg dev`)."""
    import yaml  # type: ignore[import-untyped]

    from dataprep_assets.cli.support.health import Health

    # Set a handler for SIGINT too, because a process that a shell script starts in the background ignores SIGINT by
    # default.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    open_project = project.current_project()
    project_paths = open_project.project
    _require_free(host, port)
    print("Starting Dagster's UI …", flush=True)
    with open_project.instance():
        pass  # opening the instance sets the limits of its pools before the first run
    # Add the project to the module path, because the project may not be installed.
    defs_folder = str(project_paths.defs.parents[project_paths.defs_module.count(".")])
    path = os.pathsep.join([defs_folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"PYTHONPATH": path, "DAGSTER_HOME": str(open_project.home)}
    code = ["-m", project_paths.target_module, "-d", str(project_paths.root), "--location-name", project_paths.location]
    # Name the log after the port, so that two servers, which cannot share a port, do not overwrite each other's log.
    log = open_project.home / f"ui-{port}.log"
    print(f"log of Dagster's processes: {log}", flush=True)
    # Put the socket in a folder that only the owner can open, because the gRPC server requires no password.
    with (
        tempfile.TemporaryDirectory(prefix="dataprep-ui-") as folder,
        _start_services(environment, project_paths.root, log) as services,
    ):
        socket, workspace = Path(folder, "code"), Path(folder, "workspace.yaml")
        served = {"location_name": project_paths.location, "host": "localhost", "socket": str(socket)}
        workspace.write_text(yaml.safe_dump({"load_from": [{"grpc_server": served}]}))
        start = ["-m", "dagster", "code-server", "start", "--use-python-environment-entry-point"]
        services.start("code server", *start, "--log-level", "warning", "-s", str(socket), *code)
        while not socket.exists():  # the code server creates the socket after it has loaded the code
            services.check_running()
        workspace_option = ["-w", str(workspace)]
        services.start("webserver", "-m", "dataprep_assets.webserver", "-h", host, "-p", str(port), *workspace_option)
        services.start("daemon", "-c", _DAEMON, "run", *workspace_option)
        _report_until_end(Health(host, port), services, log)
    return 0


def _report_until_end(health: "Health", services: "_Services", log: Path) -> None:
    """Print the address once it answers, then each new problem, until a service ends or Ctrl-C is pressed."""
    previous_problems: set[str] | None = None
    while True:
        if (problems := health.problems()) is not None:
            if previous_problems is None:
                print(f"Serving at {health.url}; press Ctrl-C to stop", flush=True)
            for problem in problems:
                if previous_problems is None or problem not in previous_problems:
                    print(f"ui: {problem}; see {log}", file=sys.stderr)
            previous_problems = set(problems)
        checked_at = time.monotonic()
        services.check_running()
        while previous_problems is not None and time.monotonic() - checked_at < _ASK_SECONDS:
            services.check_running()


def _require_free(host: str, port: int) -> None:
    """Raise ConfigError if the port is not available, before the services start, which takes half a minute."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as tried:
            # Allow a port in TIME_WAIT, because the webserver can also listen on it.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
    except OSError as error:
        raise ConfigError(
            f"ui: cannot listen on {host}:{port}: {error.strerror}. Stop the process using it, or choose another --port"
        ) from None


@contextmanager
def _start_services(environment: Mapping[str, str], folder: Path, log: Path) -> "Iterator[_Services]":
    """Yield the services, which work in a folder and are stopped after the block.

    Ctrl-C and SIGTERM end the block with a message of one line. The output of the services overwrites the log.
    """
    with open(log, "wb", opener=partial(open_own_file, mode=0o600)) as output:
        os.fchmod(output.fileno(), 0o600)  # an existing log keeps its old permissions when it is opened
        services = _Services({**os.environ, **environment}, folder, output)
        try:
            yield services
        except KeyboardInterrupt:
            pass
        finally:
            services.end()
    # Start a new line, because the terminal prints `^C` on the current line.
    print("\n" * sys.stdout.isatty() + "Stopped the UI", flush=True)


class _Services:
    """Child processes that run until the command ends."""

    def __init__(self, environment: Mapping[str, str], folder: Path, log: BinaryIO) -> None:
        # Dagster's commands load `.env` from their working directory, so they are started in the project's folder.
        self._environment, self._folder, self._log = environment, folder, log
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> None:
        """Start Python with these arguments in a separate session, because this process handles Ctrl-C."""
        self._running[name] = subprocess.Popen(
            [sys.executable, *arguments],
            env=self._environment,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGTERM),
        )

    def check_running(self) -> None:
        """Wait briefly; raise DataprepError if a service has ended."""
        time.sleep(_LOOK_SECONDS)
        for name, process in self._running.items():
            if (code := process.poll()) is not None:
                raise DataprepError(f"ui: the {name} ended with exit code {code}; see {self._log.name}")

    def end(self) -> None:
        """Stop the services in reverse order; kill a service that exceeds the time limit, or at a second Ctrl-C."""
        for name, process in reversed(self._running.items()):
            process.terminate()
            try:
                process.wait(_END_SECONDS)
            except (KeyboardInterrupt, subprocess.TimeoutExpired):
                process.kill()
                process.wait()
                print(
                    f"ui: the {name} was killed, because it had not stopped yet; current runs continue",
                    file=sys.stderr,
                )
