"""Run Python programs in processes of their own, forked from one that has already imported their modules.

Starting Python and importing Dagster takes three seconds of CPU, and the tests need it hundreds of times. A forked
program is a full process: it has its own environment, working folder, output and exit code, and can be killed. It has
the hash seed of its parent, and `/proc/<pid>/environ` shows the parent's environment. A test about either, or about how
Python starts, must start Python itself. The fork server of a program's workers is forked from the same process, because
it imports half of the same modules.

Entry points: `run`, `start`, `fork_workers`.
"""

import atexit
import fcntl
import gc
import importlib
import io
import json
import multiprocessing.forkserver
import multiprocessing.util
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from dataprep_assets import pipelines
from dataprep_assets_tests.session.storages import keep_what_storages_make, make_databases

CHECKOUT = Path(__file__).parents[1]
_PRELOADED = (
    "dagster",
    "dagster.components",
    "dagster_dg_cli.cli",
    "dagster._core.execution.execute_in_process",
    "dagster._core.storage.local_compute_log_manager",
    "dagster._core.storage.sqlite_storage",
    "jinja2",
    "numpy",
    "packaging.licenses",
    "pyarrow.acero",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "tokenizers",
    "upath.core",
    "dataprep_assets.cli",
    "dataprep_assets.cli.support.steps",
    "dataprep_assets.code_location",
    "dataprep_assets.curation.text_arrays.split_texts",
    "dataprep_assets.engine.staleness.rebuild",
    "dataprep_assets.library.dataset",
    "dataprep_assets.orchestration.runs.runs",
    "dataprep_assets.orchestration.build",
    "dataprep_assets.orchestration.runs.terminal",
    *(f"{wing.name}.component" for wing in pkgutil.iter_modules(pipelines.__path__, f"{pipelines.__name__}.")),
)


class Forked:
    """A started program, with its exit code once it has ended."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self.pid = int(channel.recv(64))
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, negative for a signal.

        Raises subprocess.TimeoutExpired if the program has not ended in time.
        """
        if self.returncode is None:
            self._channel.settimeout(timeout)
            try:
                said = self._channel.recv(64)
            except TimeoutError as error:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0) from error
            self.returncode = os.waitstatus_to_exitcode(int(said))
            self._channel.close()
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code; None while the program runs."""
        try:
            return self.wait(0.001)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        """Send the program a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the program."""
        self.send_signal(signal.SIGKILL)


def start(
    arguments: Sequence[object],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    stdout: int = subprocess.DEVNULL,
    stderr: int = subprocess.DEVNULL,
    own_session: bool = False,
    site: Path | None = None,
) -> Forked:
    """Start a program.

    Args:
        arguments: Python's own: `-m module …` or `-c code …`.
        env: The environment; None means this process's.
        cwd: The working folder; None means this process's.
        stdout: A file descriptor, or subprocess.DEVNULL.
        stderr: A file descriptor, or subprocess.DEVNULL.
        own_session: Whether the program leads a session, so that its whole group can be killed.
        site: A folder of installed packages whose entry points are found like those of this environment.
    """
    null = os.open(os.devnull, os.O_RDWR)
    asked = {
        "arguments": [str(one) for one in arguments],
        "environment": dict(os.environ if env is None else env),
        "folder": str(cwd or Path.cwd()),
        "own_session": own_session,
    }
    try:
        return _ask(_get_server(site), asked, [null if one == subprocess.DEVNULL else one for one in (stdout, stderr)])
    finally:
        os.close(null)


def _ask(server: str, asked: Mapping[str, Any], handles: Sequence[int]) -> Forked:
    """Make the process at this socket fork a program, which gets the handles: its output, and those in `passed`."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel.connect(server)
    with tempfile.TemporaryFile() as request:  # use a file, because an environment may exceed the size of a packet
        request.write(json.dumps(asked).encode())
        request.flush()
        socket.send_fds(channel, [b"start"], [request.fileno(), *handles])
        return Forked(channel)


def run(
    arguments: Sequence[object],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    timeout: float = 300,
    check: bool = False,
    site: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program until it ends, like `subprocess.run` with captured text; `start` describes the arguments.

    After `timeout` seconds it is killed, and subprocess.TimeoutExpired is raised.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        program = start(arguments, env=env, cwd=cwd, stdout=out.fileno(), stderr=err.fileno(), site=site)
        try:
            code = program.wait(timeout)
        finally:
            program.kill()
        out.seek(0)
        err.seek(0)
        done = subprocess.CompletedProcess([str(a) for a in arguments], code, out.read().decode(), err.read().decode())
    if check:
        done.check_returncode()
    return done


@cache
def _get_server(site: Path | None) -> str:
    """Return the socket of the process that forks, which starts with this process's first program and ends with this
    process.

    Each `site` has its own server, because a process reads entry points only once.
    """
    folder = tempfile.TemporaryDirectory(prefix="forked-")
    path = f"{folder.name}/socket"
    ours, theirs = os.pipe()
    code = f"from dataprep_assets_tests.forked import serve; serve({path!r}, {theirs}, {os.getpid()})"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, filter(None, [CHECKOUT, site])))},
        cwd=CHECKOUT,
        pass_fds=[theirs],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    os.close(theirs)
    if os.read(ours, 1) != b"1":
        raise RuntimeError(f"the process that forks did not start: exit code {process.wait()}")
    os.close(ours)

    def end() -> None:
        process.kill()
        process.wait()
        folder.cleanup()

    atexit.register(end)
    return path


def serve(path: str, ready: int, parent: int) -> None:
    """Fork a program for each connection until the parent has ended."""
    for name in _PRELOADED:
        importlib.import_module(name)
    keep_what_storages_make()
    make_databases()
    importlib.import_module("dagster").DagsterInstance.ephemeral().dispose()
    # Convert a list, which makes pyarrow import pandas (if installed), so that programs need not import it again.
    importlib.import_module("pyarrow").array([0])
    gc.freeze()  # a garbage collection in a program would touch, and so copy, every page of this process
    # Let the kernel discard the exit codes of children, because the process that waits for a program reports its end.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(16)
        os.write(ready, b"1")
        os.close(ready)
        # Poll the parent, because a signal from the kernel (PR_SET_PDEATHSIG) would already be sent at the end of the
        # thread that started this process.
        listener.settimeout(2)
        while os.getppid() == parent:
            try:
                channel, _ = listener.accept()
            except TimeoutError:
                continue
            if os.fork() == 0:
                listener.close()
                channel.setblocking(True)
                _keep(channel, path)
            channel.close()


def _keep(channel: socket.socket, server: str) -> None:
    """Start one program and report its process id and its exit, or serve as the fork server of a program's workers."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, handles, _, _ = socket.recv_fds(channel, 16, 8)
    with open(handles[0], "rb") as file:
        asked = json.loads(os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0))
    if asked.get("passed"):
        channel.send(str(os.getpid()).encode())
        channel.close()
        _run_program(asked, handles[1:])
    number = os.fork()
    if number == 0:
        channel.close()
        _fork_workers(lambda: server)
        _run_program(asked, handles[1:])
    for handle in handles[1:]:
        os.close(handle)
    channel.send(str(number).encode())
    _, status = os.waitpid(number, 0)
    try:
        channel.send(str(status).encode())
    finally:
        os._exit(0)


def fork_workers() -> None:
    """Let the fork server of this process's workers be forked too.

    Its workers then need not import libraries again: a fork server itself imports only what its first task needs.
    """
    _fork_workers(lambda: _get_server(None))


def _fork_workers(get_server: Callable[[], str]) -> None:
    multiprocessing.util.spawnv_passfds = partial(_spawn, get_server, multiprocessing.util.spawnv_passfds)
    multiprocessing.forkserver.os = _OtherChildren()


def _spawn(
    get_server: Callable[[], str],
    spawn: Callable[..., int],
    path: Any,
    arguments: Sequence[Any],
    passed: Sequence[int],
) -> int:
    """Start a multiprocessing process with some open files from the forked fork server, and return its process id."""
    words = [os.fsdecode(one) for one in arguments]
    if "multiprocessing.forkserver" not in words[-1]:
        return spawn(path, arguments, passed)
    asked = {
        "arguments": words[-2:],
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "own_session": False,
        "passed": sorted(passed),
    }
    return _ask(get_server(), asked, [1, 2, *sorted(passed)]).pid


class _OtherChildren:
    """A replacement of the module `os` for a fork server that is not a child of this process."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def waitpid(self, number: int, options: int) -> tuple[int, int]:
        """Return whether a child has ended, as `os.waitpid` does; for a process that is no child, the code is 0."""
        try:
            return os.waitpid(number, options)
        except ChildProcessError:
            return (0, 0) if _is_running(number) else (number, 0)


def _is_running(number: int) -> bool:
    """Return whether a process runs; one that has ended, and that its parent has not waited for yet, does not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _run_program(asked: Mapping[str, Any], handles: Sequence[int]) -> None:
    """Become the program, as Python would: set its paths, arguments and output, run it, and exit."""
    if asked["own_session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    numbers = [1, 2, *asked.get("passed", [])]
    # Move all handles to high numbers first, because a handle may have the number that a different handle must get.
    for given, number in zip([fcntl.fcntl(one, fcntl.F_DUPFD, 100) for one in handles], numbers, strict=True):
        os.dup2(given, number)
        os.close(given)
    for one in set(handles) - set(numbers):
        os.close(one)
    raw = [io.BufferedWriter(io.FileIO(number, "wb", closefd=False)) for number in (1, 2)]
    sys.stdout = io.TextIOWrapper(raw[0], "utf-8")
    sys.stderr = io.TextIOWrapper(raw[1], "utf-8", "backslashreplace", line_buffering=True)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    kind, what, *rest = asked["arguments"]
    sys.path[:] = [asked["folder"] if kind == "-m" else "", *entries, *(e for e in sys.path[1:] if e not in entries)]
    # Import further modules from the program's own path, which may name a different checkout; loaded modules are kept.
    for package in (sys.modules["dataprep_assets"], sys.modules["dataprep_assets_tests"]):
        found = [str(Path(entry, package.__name__)) for entry in sys.path if Path(entry, package.__name__).is_dir()]
        package.__path__[:] = list(dict.fromkeys([*found, *package.__path__]))
    sys.argv, sys.orig_argv = [kind, *rest], [sys.executable, *asked["arguments"]]
    code = 0
    try:
        sys.modules.pop("sitecustomize", None)
        if any(Path(entry, "sitecustomize.py").is_file() for entry in entries):
            importlib.import_module("sitecustomize")
        if kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code & 0xFF)
