"""Workers on this machine: forks of a server without threads, which end with their pool and with the pool's process."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dataprep_assets.errors import OutOfMemoryError
from dataprep_assets.execution import processes
from dataprep_assets.execution.processes import WorkerPool
from dataprep_assets.execution.run_task import FinishedTask, Task, TaskId
from dataprep_assets.stores.files import private_files
from dataprep_assets_tests.execution.job_tasks import (
    exhaust_memory,
    quote,
    read_core_limit,
    read_environment,
    read_process,
)

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")


def results(pool: WorkerPool, function: Callable[..., Any], *arguments: Any, count: int = 1) -> list[Any]:
    """Run a task `count` times and return the results."""
    with pool:
        for number in range(count):
            pool.submit(Task(TaskId(f"p-{number}"), function, arguments))
        ends = [event for event in pool.events() if isinstance(event, FinishedTask)]
    assert [end.error for end in ends] == [None] * count
    return [end.result for end in ends]


def run_script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run a script from a file, as a user does, in a process without a fork server."""
    (folder / "script.py").write_text(textwrap.dedent(text))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}
    command = [sys.executable, str(folder / "script.py")]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


def is_alive(pid: int) -> bool:
    """Return whether a process with this id exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def await_ends(pids: list[int]) -> None:
    """Wait until these processes have ended."""
    deadline = time.monotonic() + 60
    while alive := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.02)


def test_each_pool_has_its_own_workers_with_the_current_environment_and_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOLD", "before")
    ((first, *_),) = results(WorkerPool(1), read_process)
    monkeypatch.setenv("TOLD", "now")
    monkeypatch.chdir(tmp_path)
    old = os.umask(0o027)
    try:
        ((second, threads, folder, umask),) = results(WorkerPool(1), read_process)
    finally:
        os.umask(old)
    assert first != second
    assert (threads, folder, umask) == (1, str(tmp_path), 0o027)
    assert results(WorkerPool(1), read_environment, "TOLD") == ["now"]
    assert results(WorkerPool(1, {"TOLD": "settings"}), read_environment, "TOLD") == ["settings"]
    monkeypatch.delenv("TOLD")
    assert results(WorkerPool(1), read_environment, "TOLD") == [""]
    await_ends([first, second])


def test_a_busy_worker_ends_when_its_pool_is_closed() -> None:
    with WorkerPool(1) as pool:
        pool.submit(Task(TaskId("p-0"), time.sleep, (60.0,)))
        (pid,) = pool.pids
    assert not is_alive(pid)


def test_a_pool_survives_the_end_of_the_thread_that_started_the_server() -> None:
    thread = threading.Thread(target=lambda: results(WorkerPool(1), os.getpid))
    with WorkerPool(1) as pool:
        pool.submit(Task(TaskId("p-0"), time.sleep, (0.3,)))
        thread.start()
        thread.join()
        (pid,) = pool.pids
        assert [event.error for event in pool.events() if isinstance(event, FinishedTask)] == [None]
        assert pool.pids == [pid]


PRELOADED = """
import sys
from functools import partial
from pathlib import Path
from dataprep_assets.execution.processes import WorkerPool
from dataprep_assets.execution.run_task import FinishedTask, Task, TaskId
from dataprep_assets_tests.execution import job_tasks

# no guard: workers do not import this file
with open(sys.argv[0] + ".runs", "a") as runs:
    runs.write("run\\n")
with WorkerPool(2, {{}}, partial(job_tasks.{prepare}, Path({folder!r}))) as pool:
    for number in range(2):
        pool.submit(Task(TaskId(str(number)), job_tasks.read_prepared, (0.5,)))
    for event in pool.events():
        if isinstance(event, FinishedTask):
            print(*event.result, flush=True)
"""


@on_linux
@pytest.mark.parametrize(
    ("prepare", "is_shared"), [("prepare", True), ("prepare_with_a_thread", False), ("fail", False)]
)
def test_data_for_workers_is_loaded_once_unless_loading_leaves_a_thread(
    tmp_path: Path, prepare: str, is_shared: bool
) -> None:
    (notes := tmp_path / "notes").mkdir()
    done = run_script(tmp_path, PRELOADED.format(prepare=prepare, folder=str(notes)))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "script.py.runs").read_text() == "run\n"
    found = [line.split() for line in done.stdout.splitlines()]
    loaders = {path.name for path in notes.iterdir()}
    assert len(loaders) == (prepare != "fail")
    # All workers are forks of one server, which has one thread. The server has loaded the data, unless loading fails or
    # leaves a thread.
    assert {(server, loader) for _, server, loader, _ in found} == {
        (server, server if is_shared else "-") for server in {line[1] for line in found}
    }
    assert len({line[1] for line in found}) == 1
    assert {threads for *_, threads in found} == {"1"}
    await_ends([int(line[0]) for line in found])


KILLED = """
import os, signal
from dataprep_assets.execution.processes import WorkerPool
from dataprep_assets.execution.run_task import Task, TaskId
from dataprep_assets_tests.execution import job_tasks

with WorkerPool(2) as pool:
    for number in range(2):
        pool.submit(Task(TaskId(str(number)), job_tasks.hang_in_a_library, ()))
    print(*pool.pids, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@on_linux
def test_workers_end_with_a_killed_process_even_inside_a_library(tmp_path: Path) -> None:
    done = run_script(tmp_path, KILLED)
    assert done.returncode == -signal.SIGKILL
    assert done.stderr == ""
    await_ends([int(pid) for pid in done.stdout.split()])


@on_linux
def test_tasks_continue_without_a_killed_server() -> None:
    with WorkerPool(2) as pool:
        for number in range(2):
            pool.submit(Task(TaskId(f"p-{number}"), read_prepared_parent, (0.5,)))
        pids = pool.pids
        server = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(server, signal.SIGKILL)
        ends = [event.result for event in pool.events() if isinstance(event, FinishedTask)]
    assert sorted(ends) == sorted(pids)
    await_ends(pids)
    ((pid, *_),) = results(WorkerPool(1), read_process)
    assert pid not in pids


def read_prepared_parent(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


@on_linux
def test_workers_for_sensitive_data_write_private_files_and_have_no_standard_error() -> None:
    with private_files():
        pool = WorkerPool(2)
        found = results(pool, read_streams, count=2)
    assert found == [("/dev/null", "/dev/null", 0o077)] * 2
    ((_, _, umask),) = results(WorkerPool(1), read_streams)
    assert umask != 0o077


def read_streams() -> tuple[str, str, int]:
    mask = os.umask(0o077)
    os.umask(mask)
    return os.readlink("/proc/self/fd/1"), os.readlink("/proc/self/fd/2"), mask & 0o077


def test_a_temporary_folder_with_a_long_path_does_not_break_the_servers_socket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (long := tmp_path / ("x" * 120)).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    assert results(WorkerPool(1), abs, -3) == [3]
    assert processes._start_method() == "spawn"


def test_a_users_function_may_start_processes() -> None:
    assert results(WorkerPool(1), start_a_process) == [0]


def start_a_process() -> int | None:
    import multiprocessing

    process = multiprocessing.get_context("fork").Process(target=abs, args=(-1,))
    process.start()
    process.join()
    return process.exitcode


def test_a_worker_leaves_no_core_dump_and_reports_exhausted_memory() -> None:
    with WorkerPool(1) as pool:
        pool.submit(Task(TaskId("core"), read_core_limit, ()))
        pool.submit(Task(TaskId("train-00003"), exhaust_memory, ()))
        ends = {str(event.task.id): event for event in pool.events() if isinstance(event, FinishedTask)}
    assert ends["core"].result == (0, 0)
    assert isinstance(ends["train-00003"].error, OutOfMemoryError)
    assert "train-00003: out of memory" in str(ends["train-00003"].error)


@pytest.mark.parametrize("sensitive", [True, False])
def test_for_sensitive_data_the_message_of_a_library_is_withheld(sensitive: bool) -> None:
    with private_files(sensitive), WorkerPool(1) as pool:
        pool.submit(Task(TaskId("train-00003"), quote, ("the text of a note",)))
        (error,) = (event.error for event in pool.events() if isinstance(event, FinishedTask))
    assert str(error).startswith("train-00003: ValueError")
    assert ("the text of a note" in str(error)) == (not sensitive)
    assert ("job_tasks.py:" in str(error)) == sensitive


@pytest.mark.parametrize("sensitive", [True, False])
def test_for_sensitive_data_file_names_are_withheld(sensitive: bool) -> None:
    for opened in (os.stat, pq.ParquetFile):
        with private_files(sensitive), WorkerPool(1) as pool:
            pool.submit(Task(TaskId("2020-01"), opened, ("/nowhere/MRN-483920.jsonl",)))
            (error,) = (event.error for event in pool.events() if isinstance(event, FinishedTask))
        assert str(error).startswith("2020-01: ")
        assert "No such file" in str(error)
        assert ("MRN-483920" in str(error)) == (not sensitive)
