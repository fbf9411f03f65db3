"""Send the own process a signal at a chosen write point.

`armed` copies this module as `sitecustomize.py` to the path of a real run.

A write point is a system call that is about to change something below the root: opening for write, a raw write, rename,
link, remove, mkdir, rmdir, fsync, copy_file_range. At the chosen point the process gets the signal before the call or,
for a raw write, in the middle of it. Every point is logged, so an undisturbed run shows how many there are.

The plan is `kill_plan.json` next to the copy: root, log, role (parent, worker, or run: a worker with its parent),
number of the point (0: never), signal, and the maximum number of processes to hit, each at its own point of this
number.
"""

import builtins
import io
import itertools
import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_IN_DIRECTORY = {"os.remove", "os.mkdir", "os.rmdir"}
"""Audit events whose first argument is a path, relative to the directory of the last argument if that is not -1."""


class _Points:
    """The write points of this process, which ends at the chosen one."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.root, self.at, self.signal = plan["root"], plan["at"], plan["signal"]
        # Count the fork server as a worker, because its forks are workers that continue its count.
        self.role = "worker" if any("multiprocessing.forkserver" in a for a in sys.orig_argv) else "parent"
        self.takes_parent = plan["role"] == "run"
        self.armed = self.role == ("worker" if self.takes_parent else plan["role"])
        log = Path(plan["log"])
        self.hits = [log.with_name(f".hit{number}-{log.name}") for number in range(plan.get("hits", 1))]
        self.log = os.open(plan["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()

    @contextmanager
    def due(self, what: str, path: str) -> Iterator[bool]:
        """Count and log a point, and yield whether it is the chosen one.

        No other thread passes a point within the block.
        """
        if self.root not in path:
            yield False
            return
        with self._lock:
            number = next(self._numbers)
            os.write(self.log, f"{self.role} {os.getpid()} {number} {what} {path}\n".encode())
            if is_chosen := self.armed and number == self.at and self._is_one_of_the_hit():
                yield True
        if not is_chosen:
            yield False

    def _is_one_of_the_hit(self) -> bool:
        for hit in self.hits:
            try:
                os.close(os.open(hit, os.O_CREAT | os.O_EXCL))
                return True
            except FileExistsError:
                continue
        return False

    def hit(self) -> None:
        """Send the signal to this process."""
        if self.takes_parent and (run := multiprocessing.parent_process()) is not None and run.pid is not None:
            os.kill(run.pid, self.signal)
        os.kill(os.getpid(), self.signal)

    def count_point(self, what: str, path: str) -> None:
        """Count a point that cannot be interrupted in the middle."""
        with self.due(what, path) as is_chosen:
            if is_chosen:
                self.hit()


class _TornFile(io.FileIO):
    """A raw file in which the process dies half-way through a write."""

    points: _Points

    def write(self, data: Any) -> int:  # type: ignore[override]
        with self.points.due("write", str(self.name)) as is_chosen:
            if is_chosen:
                super().write(bytes(data)[: len(data) // 2])
                self.points.hit()
        return super().write(data)


def _install(points: _Points) -> None:
    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, str | bytes | os.PathLike) and flags & _WRITE_FLAGS:
                points.count_point("open", os.fsdecode(path))
        elif event in ("os.rename", "os.link"):
            points.count_point(event, f"{os.fsdecode(arguments[0])} {os.fsdecode(arguments[1])}")
        elif event in _IN_DIRECTORY:
            path, handle = os.fsdecode(arguments[0]), arguments[-1]
            points.count_point(event, path if handle == -1 else f"{name_of(handle)}/{path}")

    def name_of(handle: int) -> str:
        return os.readlink(f"/proc/self/fd/{handle}")

    fsync, copy, plain_open = os.fsync, os.copy_file_range, builtins.open

    def counted_fsync(handle: int) -> None:
        points.count_point("fsync", name_of(handle))
        fsync(handle)

    def counted_copy(source: int, target: int, *more: Any, **named: Any) -> int:
        points.count_point("copy_file_range", name_of(target))
        return copy(source, target, *more, **named)

    def torn_open(file: Any, mode: str = "r", buffering: int = -1, *more: Any, **named: Any) -> Any:
        if mode == "wb" and buffering == 0:
            return _TornFile(os.fspath(file), "wb")
        return plain_open(file, mode, buffering, *more, **named)

    _TornFile.points = points
    os.fsync, os.copy_file_range, builtins.open = counted_fsync, counted_copy, torn_open  # type: ignore[assignment]
    sys.addaudithook(hook)


if (_plan := Path(__file__).with_name("kill_plan.json")).exists():
    _install(_Points(json.loads(_plan.read_bytes())))
