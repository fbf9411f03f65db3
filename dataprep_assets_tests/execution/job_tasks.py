"""Worker tasks of the jobs in `test_jobs`, and a job that records the calls of the loop."""

import os
import re
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from dataprep_assets.errors import BadRecordError
from dataprep_assets.execution.jobs import Outcome, TaskJob
from dataprep_assets.execution.run_task import FinishedTask, Pool, Task, TaskId, report_work
from dataprep_assets.integrity.artifacts import Artifact
from dataprep_assets.integrity.receipt import Receipt


@dataclass(frozen=True)
class Piece:
    """A partition that takes a number of seconds, fails with an error, or already exists.

    Its task reports `reported_bytes` in four parts.
    """

    partition: str
    seconds: float = 0.0
    error: str = ""
    reused: bool = False
    source_bytes: int = 100
    reported_bytes: int = 100

    @property
    def artifact(self) -> Artifact:
        """The artifact of the partition."""
        return Artifact(dataset="d", name="pieces", partition=self.partition)


def work(piece: Piece) -> tuple[Receipt, bool]:
    """Build all of a partition, as the task of a worker."""
    time.sleep(piece.seconds)
    if piece.error == "bad record":
        raise BadRecordError(f"{piece.partition}.jsonl: row 3, byte 12: not JSON")
    if piece.error == "bug":
        raise ZeroDivisionError("by zero")
    if piece.error == "killed":
        die()
    if piece.error.startswith("killed once "):
        die_the_first_time(Path(piece.error.removeprefix("killed once ")), None)
    if not piece.reused:
        for _ in range(4):
            report_work(source_bytes=piece.reported_bytes // 4, tokens=10)
    artifact = piece.artifact
    receipt = Receipt(
        dataset=artifact.dataset,
        artifact=artifact.name,
        partition=artifact.partition,
        key="0" * 64,
        inputs={},
        files=(),
    )
    return receipt, piece.reused


def wait(seconds: float) -> float:
    """Wait without working, as the task of a worker."""
    time.sleep(seconds)
    return seconds


def wait_the_first_time(mark: Path, seconds: float) -> int:
    """Wait, unless the file `mark` shows that another worker did so before, and return the process id."""
    if not mark.exists():
        mark.touch()
        time.sleep(seconds)
    return os.getpid()


def die_the_first_time(mark: Path, code: int | None) -> int:
    """End the first worker with an exit code or a signal; in the second worker, return its parent's process id."""
    if mark.exists():
        return os.getppid()
    mark.touch()
    die() if code is None else os._exit(code)
    raise AssertionError("alive")


def die() -> None:
    """End the worker."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class NotedJob:
    """A job that looks for its result first and submits its pieces in its turn; all jobs of a test share `notes`."""

    partition: str
    notes: list[tuple[str, str]]
    looks: float = 0.0
    pieces: int = 0
    seconds: float = 0.0
    dies: bool = False
    source_bytes: int = 0
    max_outstanding: list[int] = field(default_factory=list)

    def first_task(self) -> Task:
        return Task(TaskId(self.partition, "look"), wait, (self.looks,))

    def handle_end(self, end: FinishedTask, pool: Pool) -> Outcome | None:
        self.notes.append((str(end.task.id.step), self.partition))
        if end.task.id.step == "look":
            return None
        self.pieces -= 1
        return Outcome(partition=self.partition) if self.pieces == 0 else None

    def release(self) -> None:
        """Release nothing, because the job holds nothing."""

    def take_turn(self, pool: Pool) -> Outcome | None:
        self.max_outstanding.append(pool.outstanding)
        self.notes.append(("turn", self.partition))
        for piece in range(self.pieces):
            function, arguments = (die, ()) if self.dies else (wait, (self.seconds,))
            pool.submit(Task(TaskId(self.partition, "encode", piece), function, arguments))
        return None if self.pieces else Outcome(partition=self.partition)


class PlacedJob(TaskJob):
    """A job of one task whose artifact is a directory below `folder`."""

    def __init__(self, piece: Piece, folder: Path) -> None:
        super().__init__(piece, work)
        self.directory = folder / piece.partition


def read_environment(name: str) -> str:
    """Return an environment variable of the worker."""
    return os.environ.get(name, "")


def read_process() -> tuple[int, int, str, int]:
    """Return the worker's process id, its number of threads, its folder and its umask."""
    mask = os.umask(0o077)
    os.umask(mask)
    return os.getpid(), len(os.listdir("/proc/self/task")), os.getcwd(), mask


_prepared: list[int] = []


def prepare(folder: Path) -> None:
    """Record the process that loads the data of the workers."""
    _prepared.append(os.getpid())
    (folder / str(os.getpid())).touch()


def prepare_with_a_thread(folder: Path) -> None:
    """Load like `prepare`, with a library that leaves a thread running."""
    prepare(folder)
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def fail(folder: Path) -> None:
    """Raise, as an import that fails."""
    raise ValueError(f"not a tokenizer: {folder}")


def read_prepared(seconds: float) -> tuple[int, int, str, int]:
    """Return the process id, the parent's id, the preparing process, and the parent's number of threads."""
    time.sleep(seconds)
    parent = os.getppid()
    return os.getpid(), parent, str(_prepared[0] if _prepared else "-"), len(os.listdir(f"/proc/{parent}/task"))


def hang_in_a_library() -> None:
    """Stay in a library call for a long time without running Python code."""
    re.match("(a|a)*b", "a" * 60)


def read_core_limit() -> tuple[int, int]:
    """Return the maximum size of the worker's core dump."""
    import resource

    return resource.getrlimit(resource.RLIMIT_CORE)


def quote(text: str) -> None:
    """Fail with a message that quotes the input, as libraries do."""
    raise ValueError(f"cannot read {text!r}")


def exhaust_memory() -> int:
    """Request more memory than the machine has."""
    return len(bytearray(1 << 62))
