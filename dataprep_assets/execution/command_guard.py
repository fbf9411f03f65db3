"""The guard of a command: a process that runs it, and ends it when the process that asked for it has gone.

It is run as a file, with the standard library alone. Its standard input is a line of JSON, then a pipe that closes when
the asking process ends; its answer is JSON on its standard output. On Linux it is the parent of every orphan that the
command leaves, so nothing of it outlives the guard; elsewhere of its process group.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_GRACE_SECONDS = 5.0
"""Between SIGTERM, upon which `srun` cancels its job, and SIGKILL."""
_LOOK_SECONDS = 0.05
_KEPT_BYTES = 8192


def main() -> None:
    """Serve one command."""
    asked = json.loads(_line(0))
    if _LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # a byte arrives for each signal: that a child has ended, or that this process should
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    for one in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(one, lambda *_: None)
    try:
        process = subprocess.Popen(
            asked["words"],
            cwd=asked["folder"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if asked["quoted"] else subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_guard if _LINUX else None,  # this process has no thread
        )
    except OSError as error:
        _answer(refused=error.strerror or str(error))
        return
    errors = _Errors(process)
    gone = _awaited(process, errors, woken, time.monotonic() + asked["seconds"])
    code = process.returncode
    _end(process, woken)
    if gone:
        shutil.rmtree(asked["scratch"], ignore_errors=True)
        return
    _answer(code=code, errors=errors.text())


def _line(descriptor: int) -> bytes:
    """The first line; byte by byte is not too slow for one, and nothing behind it is read."""
    found = b""
    while not found.endswith(b"\n") and (more := os.read(descriptor, 65536)):
        found += more
    return found


def _answer(**ended: Any) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(ended).encode())


def _die_with_guard() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _Errors:
    """The end of a command's standard error, read as it comes, so that the command never waits."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.ends = [] if process.stderr is None else [process.stderr.fileno()]
        self._kept = b""
        for end in self.ends:
            os.set_blocking(end, False)

    def read(self) -> bool:
        """Read what is there; returns whether there was something."""
        for end in self.ends:
            try:
                more = os.read(end, 65536)
            except BlockingIOError:
                return False
            if not more:
                self.ends = []
            self._kept = (self._kept + more)[-_KEPT_BYTES:]
            return bool(more)
        return False

    def text(self) -> str:
        """Return what is kept of it; a helper that is left may hold the pipe open, so its end is not waited for."""
        while self.read():
            pass
        return self._kept.decode(errors="replace")


def _awaited(process: "subprocess.Popen[bytes]", errors: _Errors, woken: int, limit: float) -> bool:
    """Wait until the command ends, or its time, or the process that asked; returns whether the latter has gone."""
    while process.poll() is None and (left := limit - time.monotonic()) > 0:
        ready, _, _ = select.select([0, woken, *errors.ends], [], [], min(left, 3600.0))
        if woken in ready:
            os.read(woken, 4096)
        if errors.ends and errors.ends[0] in ready:
            errors.read()
        if 0 in ready:
            return True
    return False


def _end(process: "subprocess.Popen[bytes]", woken: int) -> None:
    """End whatever is left of the command, and wait for it."""
    asked, limit = False, time.monotonic() + _GRACE_SECONDS
    while _are_left(process):
        if not asked:
            _signal(process, signal.SIGTERM)
            asked = True
        elif time.monotonic() > limit:
            _signal(process, signal.SIGKILL)
        select.select([woken], [], [], _LOOK_SECONDS)
        with contextlib.suppress(BlockingIOError):
            os.read(woken, 4096)


def _are_left(process: "subprocess.Popen[bytes]") -> bool:
    """Return whether anything that the command started lives; what has ended is waited for."""
    if _LINUX:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            return True  # a child that has not ended
        return False
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    if not _LINUX:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        return
    for pid in _descendants():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _descendants() -> list[int]:
    """Every process that has this one among its parents."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # behind the program's name, which may hold blanks and brackets: the state, then the parent
            parent = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found, left = [], [os.getpid()]
    while left:
        more = children.get(left.pop(), [])
        found += more
        left += more
    return found


if __name__ == "__main__":
    main()
