"""What the jobs of `test_jobs` do in their workers, and a job that notes what the loop asks of it."""

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
    """A partition that takes so many seconds, fails with an error, or was made before."""

    partition: str
    seconds: float = 0.0
    error: str = ""
    reused: bool = False
    source_bytes: int = 100

    @property
    def artifact(self) -> Artifact:
        """Its artifact."""
        return Artifact(dataset="d", name="pieces", partition=self.partition)


def work(piece: Piece) -> tuple[Receipt, bool]:
    """A worker's task: all of a partition."""
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
            report_work(source_bytes=piece.source_bytes // 4, tokens=10)
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
    """A worker's task: nothing for a while."""
    time.sleep(seconds)
    return seconds


def wait_the_first_time(mark: Path, seconds: float) -> int:
    """A worker's task: wait, unless the file `mark` says that another worker did so before. Its process."""
    if not mark.exists():
        mark.touch()
        time.sleep(seconds)
    return os.getpid()


def die_the_first_time(mark: Path, code: int | None) -> int:
    """A worker's task that ends its first worker, with an exit code or by a signal. The parent of the other one."""
    if mark.exists():
        return os.getppid()
    mark.touch()
    die() if code is None else os._exit(code)
    raise AssertionError("alive")


def die() -> None:
    """A worker's task that ends its worker."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class NotedJob:
    """Looks first, then in its turn submits so many pieces; `notes` is shared by the jobs of a test."""

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
        """Nothing is held."""

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
    """A worker's task: an environment variable."""
    return os.environ.get(name, "")


def read_process() -> tuple[int, int, str, int]:
    """A worker's task: its process, its number of threads, its folder and its umask."""
    mask = os.umask(0o077)
    os.umask(mask)
    return os.getpid(), len(os.listdir("/proc/self/task")), os.getcwd(), mask


_prepared: list[int] = []


def prepare(folder: Path) -> None:
    """What workers would load: it notes which process did."""
    _prepared.append(os.getpid())
    (folder / str(os.getpid())).touch()


def prepare_with_a_thread(folder: Path) -> None:
    """As `prepare`, by a library that leaves a thread behind."""
    prepare(folder)
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def fail(folder: Path) -> None:
    """What cannot be loaded."""
    raise ValueError(f"not a tokenizer: {folder}")


def read_prepared(seconds: float) -> tuple[int, int, str, int]:
    """A worker's task: its process, its parent, who prepared it, and the number of its parent's threads."""
    time.sleep(seconds)
    parent = os.getppid()
    return os.getpid(), parent, str(_prepared[0] if _prepared else "-"), len(os.listdir(f"/proc/{parent}/task"))


def hang_in_a_library() -> None:
    """A worker's task that runs no Python for a long time."""
    re.match("(a|a)*b", "a" * 60)


def core_limit() -> tuple[int, int]:
    """How large a core dump of the worker may be."""
    import resource

    return resource.getrlimit(resource.RLIMIT_CORE)


def quote(text: str) -> None:
    """Fail as a library does that quotes what it was given."""
    raise ValueError(f"cannot read {text!r}")


def exhaust() -> int:
    """Ask for more memory than there is."""
    return len(bytearray(1 << 62))
