"""Workers that outlive their pool: kept for the next one, told the environment of now, and never taken when dead."""

import os
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dataprep_assets.errors import OutOfMemoryError
from dataprep_assets.execution.processes import WorkerPool
from dataprep_assets.execution.tasks import Finished, Task, TaskId
from dataprep_assets.stores.private import private_files
from dataprep_assets_tests.execution.job_tasks import core_limit, exhaust, quote, told_environment, told_last


def asked(count: int = 1, environment: dict[str, str] | None = None) -> list[tuple[int, str]]:
    """Process and environment variable of the worker of each of `count` tasks."""
    with WorkerPool(count, environment) as pool:
        for number in range(count):
            pool.submit(Task(TaskId(f"p-{number}"), told_environment, ("TOLD", 0.3 if count > 1 else 0.0)))
        ends = [event for event in pool.events() if isinstance(event, Finished)]
    assert [end.error for end in ends] == [None] * count
    return sorted(end.result for end in ends)


def test_the_next_pool_takes_the_workers_of_the_last_with_the_environment_of_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOLD", "before")
    first = asked(2)
    monkeypatch.setenv("TOLD", "now")
    second = asked(2)
    assert [told for _, told in first + second] == ["before"] * 2 + ["now"] * 2
    assert {pid for pid, _ in first} == {pid for pid, _ in second}
    monkeypatch.delenv("TOLD")
    ((pid, told),) = asked()
    assert told == ""
    assert pid in {pid for pid, _ in first}


def test_a_worker_that_died_while_it_was_kept_is_not_taken() -> None:
    ((pid, _),) = asked()
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    ((other, _),) = asked()
    assert other != pid


def test_a_worker_started_in_another_way_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ((plain, _),) = asked()
    ((settings, _),) = asked(environment={"OMP_NUM_THREADS": "1"})
    assert settings != plain
    with private_files():
        ((private, _),) = asked(environment={"OMP_NUM_THREADS": "1"})
        assert private != settings
        monkeypatch.chdir(tmp_path)
        ((elsewhere, _),) = asked(environment={"OMP_NUM_THREADS": "1"})
        assert elsewhere != private


def test_a_thread_has_workers_of_its_own() -> None:
    """The kernel ends a worker with the thread that started it."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(pid for pid, _ in asked()))
    thread.start()
    thread.join()
    ((mine, _),) = asked()
    assert found != [mine]
    ((again, _),) = asked()
    assert again == mine


def test_a_worker_that_is_at_work_when_its_pool_is_left_ends() -> None:
    with WorkerPool(1) as pool:
        pool.submit(Task(TaskId("p-0"), told_environment, ("TOLD", 60.0)))
        (pid,) = pool.pids
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_worker_that_has_a_users_module_is_not_kept() -> None:
    with WorkerPool(1) as pool:
        pool.submit(Task(TaskId("p-0"), told_last, ("TOLD", 0.0)))
        pool.submit(Task(TaskId("p-1"), told_last, ("TOLD", 0.0)))
        first, second = (event.result[0] for event in pool.events() if isinstance(event, Finished))
    assert first == second
    ((other, _),) = asked()
    assert other != first


def test_a_worker_leaves_no_core_and_says_when_memory_ran_out() -> None:
    with WorkerPool(1) as pool:
        pool.submit(Task(TaskId("core"), core_limit, ()))
        pool.submit(Task(TaskId("train-00003"), exhaust, ()))
        ends = {str(event.task.id): event for event in pool.events() if isinstance(event, Finished)}
    assert ends["core"].result == (0, 0)
    assert isinstance(ends["train-00003"].error, OutOfMemoryError)
    assert "train-00003: out of memory" in str(ends["train-00003"].error)


@pytest.mark.parametrize("sensitive", [True, False])
def test_of_sensitive_data_a_librarys_message_is_withheld(sensitive: bool) -> None:
    with private_files(sensitive), WorkerPool(1) as pool:
        pool.submit(Task(TaskId("train-00003"), quote, ("the text of a note",)))
        (error,) = (event.error for event in pool.events() if isinstance(event, Finished))
    assert str(error).startswith("train-00003: ValueError")
    assert ("the text of a note" in str(error)) == (not sensitive)
    assert ("job_tasks.py:" in str(error)) == sensitive


@pytest.mark.parametrize("sensitive", [True, False])
def test_of_sensitive_data_no_name_of_a_file_is_told(sensitive: bool) -> None:
    for opened in (os.stat, pq.ParquetFile):
        with private_files(sensitive), WorkerPool(1) as pool:
            pool.submit(Task(TaskId("2020-01"), opened, ("/nowhere/MRN-483920.jsonl",)))
            (error,) = (event.error for event in pool.events() if isinstance(event, Finished))
        assert str(error).startswith("2020-01: ")
        assert "No such file" in str(error)
        assert ("MRN-483920" in str(error)) == (not sensitive)


def test_a_worker_whose_parent_is_gone_before_it_read_the_answer_ends_without_a_word() -> None:
    """The kernel resets such a connection: a killed run left the stack of its worker."""
    here, there = socket.socketpair()
    with here, there:
        command = (
            f"from dataprep_assets.execution.processes import serve; serve({there.fileno()}, {os.getpid()}, False)"
        )
        worker = subprocess.Popen(
            [sys.executable, "-c", command], pass_fds=[there.fileno()], stderr=subprocess.PIPE, text=True
        )
        there.close()
        channel: Connection[Any, Any] = Connection(here.detach())
        channel.send(Task(TaskId("a"), os.getppid, ()))
        assert channel.poll(60)
        channel.close()
        _, said = worker.communicate(timeout=60)
    assert (worker.returncode, said) == (0, "")
