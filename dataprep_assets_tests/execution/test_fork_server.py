"""Workers that are forks of one process: it loads what they need once, and never forks beside a thread."""

import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from dataprep_assets.execution.processes import WorkerPool
from dataprep_assets.execution.tasks import Finished, Task, TaskId
from dataprep_assets.stores.private import private_files
from dataprep_assets_tests.execution.job_tasks import (
    die_the_first_time,
    told_prepared,
    wait,
    wait_the_first_time,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")

MARK = "DATAPREP_TESTS_PREPARED"


def load(folder: Path) -> None:
    """What workers would load: it notes who did."""
    os.environ[MARK] = str(os.getpid())
    (folder / str(os.getpid())).touch()


def load_and_start_a_thread(folder: Path) -> None:
    """As `load`, by a library that leaves a thread behind."""
    load(folder)
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def fail() -> None:
    """What cannot be loaded."""
    raise ValueError("not a tokenizer")


def alive(pid: int) -> bool:
    """Whether there is a process of this number that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def parent(pid: int) -> int:
    """The number of a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def asked(pool: WorkerPool, count: int = 2) -> list[tuple[int, int, str]]:
    """Process, its parent, and who prepared it, of the workers that do `count` tasks at a time."""
    for number in range(count):
        pool.submit(Task(TaskId(f"p-{number}"), told_prepared, (MARK, 0.5)))
    ends = [event for event in pool.events() if isinstance(event, Finished)]
    assert [end.error for end in ends] == [None] * count
    return sorted(end.result for end in ends)


def test_what_workers_need_is_loaded_once_and_they_are_kept(tmp_path: Path) -> None:
    with WorkerPool(3, {"TOLD": "forks"}, partial(load, tmp_path)) as pool:
        found = asked(pool, 3)
    (server,) = tmp_path.iterdir()
    assert {(above, by) for _, above, by in found} == {(int(server.name), server.name)}
    assert len({pid for pid, _, _ in found}) == 3
    with WorkerPool(3, {"TOLD": "forks"}) as pool:  # the next pool needs nothing in particular
        assert {pid for pid, _, _ in asked(pool, 3)} == {pid for pid, _, _ in found}
    with WorkerPool(1, {"TOLD": "others"}):
        pass
    assert not any(map(alive, [int(server.name), *(pid for pid, _, _ in found)]))  # this pool's workers are others


def test_beside_a_thread_there_is_no_fork(tmp_path: Path) -> None:
    with WorkerPool(2, {"TOLD": "threads"}, partial(load_and_start_a_thread, tmp_path)) as pool:
        found = asked(pool)
    (server,) = tmp_path.iterdir()
    assert {(above, by) for _, above, by in found} == {(os.getpid(), "")}
    assert not alive(int(server.name))


def test_what_cannot_be_loaded_is_left_to_the_workers() -> None:
    with WorkerPool(2, {"TOLD": "failure"}, fail) as pool:
        assert {by for _, _, by in asked(pool)} == {""}


def test_one_worker_needs_no_server(tmp_path: Path) -> None:
    with WorkerPool(1, {"TOLD": "one"}, partial(load, tmp_path)) as pool:
        ((_, above, _),) = asked(pool, 1)
    assert above == os.getpid()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("code", "how"), [(3, "exit code 3"), (None, "killed by signal 9")])
def test_the_task_of_a_fork_that_ended_is_done_by_another_fork(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, code: int | None, how: str
) -> None:
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    with WorkerPool(2, {"TOLD": how}, partial(load, prepared)) as pool:
        pool.submit(Task(TaskId("train-00000"), wait, (1,)))
        pool.submit(Task(TaskId("train-00001"), die_the_first_time, (tmp_path / "mark", code)))
        ends = {str(event.task.id): event.result for event in pool.events() if isinstance(event, Finished)}
        pids = pool.pids
    (server,) = prepared.iterdir()
    assert ends == {"train-00000": 1, "train-00001": int(server.name)}
    (said,) = caplog.messages
    assert said.startswith(f"train-00001: its worker process died ({how}")
    with WorkerPool(1, {"TOLD": "others"}):
        pass
    assert not any(map(alive, [*pids, int(server.name)]))


def test_tasks_go_on_without_a_server_that_is_killed(tmp_path: Path) -> None:
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    with WorkerPool(2, {"TOLD": "killed"}, partial(load, prepared)) as pool:
        for number in range(2):
            pool.submit(Task(TaskId(f"train-{number:05d}"), wait_the_first_time, (tmp_path / str(number), 600)))
        pids = pool.pids
        (server,) = prepared.iterdir()
        while len(list(tmp_path.iterdir())) < 3:
            time.sleep(0.01)
        os.kill(int(server.name), signal.SIGKILL)
        ends = [event.result for event in pool.events() if isinstance(event, Finished)]
        assert sorted(ends) == sorted(pool.pids)
        assert {parent(pid) for pid in ends} == {os.getpid()}
    deadline = time.monotonic() + 60
    while any(map(alive, pids)) and time.monotonic() < deadline:  # nobody waits for them but the system
        time.sleep(0.02)
    assert not any(map(alive, pids))


def test_workers_for_sensitive_data_are_forks_without_standard_error(tmp_path: Path) -> None:
    with private_files(), WorkerPool(2, {"TOLD": "private"}, partial(load, tmp_path)) as pool:
        found = asked(pool)
        (server,) = tmp_path.iterdir()
        for pid, above, _ in found:
            assert above == int(server.name)
            assert os.readlink(f"/proc/{pid}/fd/2") == "/dev/null"
