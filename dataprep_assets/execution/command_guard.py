"""Guard process: it runs one command, and terminates the command when the requesting process has exited.

It is run as a file and uses only the standard library. Its standard input is one line of JSON, followed by a pipe that
closes when the requesting process ends. Its answer is JSON on its standard output.

On Linux the guard becomes the parent of every orphan of the command, so no process of the command outlives the guard.
On other systems the guard terminates the command's process group.
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
"""Time between SIGTERM, upon which `srun` cancels its job, and SIGKILL."""
_POLL_SECONDS = 0.05
_KEPT_BYTES = 8192


def main() -> None:
    """Run the requested command and report how it ended."""
    request = json.loads(_read_line(0))
    if _LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # Each signal writes a byte to this pipe. The byte wakes `select` when a process of the command has ended, or when
    # this process was sent a signal to terminate.
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    try:
        process = subprocess.Popen(
            request["words"],
            cwd=request["folder"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if request["quoted"] else subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_guard if _LINUX else None,  # safe because this process has only one thread
        )
    except OSError as error:
        _send_answer(refused=error.strerror or str(error))
        return
    errors = _ErrorTail(process)
    requester_has_ended = _wait_for_end(process, errors, woken, time.monotonic() + request["seconds"])
    code = process.returncode
    _end_processes(process, woken)
    if requester_has_ended:
        shutil.rmtree(request["scratch"], ignore_errors=True)
        return
    _send_answer(code=code, errors=errors.text())


def _read_line(descriptor: int) -> bytes:
    """Read the first line and nothing beyond it from a descriptor."""
    line = b""
    while not line.endswith(b"\n") and (chunk := os.read(descriptor, 65536)):
        line += chunk
    return line


def _send_answer(**ended: Any) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(ended).encode())


def _die_with_guard() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _ErrorTail:
    """The end of a command's standard error, read continuously so that the command never blocks on a full pipe."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.ends = [] if process.stderr is None else [process.stderr.fileno()]
        self._kept = b""
        for end in self.ends:
            os.set_blocking(end, False)

    def read(self) -> bool:
        """Read the available output once; return whether there was any."""
        for end in self.ends:
            try:
                chunk = os.read(end, 65536)
            except BlockingIOError:
                return False
            if not chunk:
                self.ends = []
            self._kept = (self._kept + chunk)[-_KEPT_BYTES:]
            return bool(chunk)
        return False

    def text(self) -> str:
        """Return the kept output, without waiting for the pipe's end, because a surviving child may keep it open."""
        while self.read():
            pass
        return self._kept.decode(errors="replace")


def _wait_for_end(process: "subprocess.Popen[bytes]", errors: _ErrorTail, woken: int, limit: float) -> bool:
    """Wait for the command to end, up to the time limit; return whether the requesting process ended first."""
    while process.poll() is None and (remaining := limit - time.monotonic()) > 0:
        ready, _, _ = select.select([0, woken, *errors.ends], [], [], min(remaining, 3600.0))
        if woken in ready:
            os.read(woken, 4096)
        if errors.ends and errors.ends[0] in ready:
            errors.read()
        if 0 in ready:
            return True
    return False


def _end_processes(process: "subprocess.Popen[bytes]", woken: int) -> None:
    """Terminate all remaining processes of the command, and wait for them."""
    sent_sigterm, limit = False, time.monotonic() + _GRACE_SECONDS
    while _has_processes(process):
        if not sent_sigterm:
            _send_signal(process, signal.SIGTERM)
            sent_sigterm = True
        elif time.monotonic() > limit:
            _send_signal(process, signal.SIGKILL)
        select.select([woken], [], [], _POLL_SECONDS)
        with contextlib.suppress(BlockingIOError):
            os.read(woken, 4096)


def _has_processes(process: "subprocess.Popen[bytes]") -> bool:
    """Return whether any process of the command is still running; reap the processes that have ended."""
    if _LINUX:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            return True  # `waitpid` raised no error, so a child is still running
        return False
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _send_signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    if not _LINUX:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        return
    for pid in _list_descendants():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _list_descendants() -> list[int]:
    """Return the ids of all descendants of this process."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The program's name may contain spaces and parentheses. The state and the parent's id follow its last
            # closing parenthesis.
            parent = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    descendants, parents = [], [os.getpid()]
    while parents:
        child_ids = children.get(parents.pop(), [])
        descendants += child_ids
        parents += child_ids
    return descendants


if __name__ == "__main__":
    main()
