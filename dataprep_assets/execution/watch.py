"""Holds processes to their bounds (`bounds`): samples what they take, and ends what takes more.

A process cannot watch itself: a library that is at work lets no thread of Python run, and what the kernel ends says
nothing. So workers are watched by a thread of the process that started them (`Watch`), and a command by the process
that was started (`run_bounded`), which does its work in a fork: a process that has loaded nothing yet and has no
thread.

What is measured is the memory that a process alone has (resident, without pages of files), and the CPU time since it
last got on. Only on Linux: elsewhere processes have no such bound.
"""

import contextlib
import ctypes
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dataprep_assets.bounds import Bounds, told_to
from dataprep_assets.execution.run_task import without_core

CAN_WATCH = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
# Seconds between two looks: for so long a process may have more than its bound.
_SAMPLE_SECONDS = 0.1
_BOARD_BYTES = 4096
_PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP}
if CAN_WATCH:
    _PAGE, _TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when its parent, the process with this id, has gone (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os._exit(1)  # the parent died before prctl took effect


def measure_process(pid: int) -> tuple[int, float, int] | None:
    """Bytes of memory that a process alone has, its CPU seconds, and the tick of its start; None if it has ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm, open(f"/proc/{pid}/stat", "rb") as stat:
            _, resident, shared, *_ = statm.read().split()
            # behind the program's name, which is in brackets and may hold blanks and brackets: 11 and 12 are then user
            # and system time (fields 14 and 15 in proc(5)), and 19 is the start
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return (int(resident) - int(shared)) * _PAGE, (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[19])


@dataclass
class _AtWork:
    """A process and its place: the row that it was last at, its CPU seconds there, and the tick of its start."""

    where: str = ""
    since: float | None = None
    start: int | None = None


class Watch:
    """Watches processes while they are at work, in a thread of its own that ends with `close`."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._lock, self._closed = threading.Lock(), threading.Event()
        # by process id: what is watched, and why what was ended had to be, until `end` asks for it
        self._at_work: dict[int, _AtWork] = {}
        self._exceeded: dict[int, str] = {}
        self._thread: threading.Thread | None = None

    def begin(self, pid: int) -> None:
        """Watch a process until `end`."""
        if not CAN_WATCH:
            return
        with self._lock:
            self._at_work[pid] = _AtWork()
        if self._thread is None:
            self._thread = threading.Thread(target=self._sample, name="dataprep-watch", daemon=True)
            self._thread.start()

    def note_progress(self, pid: int, where: str = "") -> None:
        """A process is getting on, and is `where` it says."""
        if (found := self._at_work.get(pid)) is not None:
            found.where, found.since = where or found.where, None

    def end(self, pid: int) -> str | None:
        """Watch a process no more; if it was ended, return where it was, what it took, and which limit that exceeds."""
        with self._lock:
            self._at_work.pop(pid, None)
            return self._exceeded.pop(pid, None)

    def close(self) -> None:
        """Watch nothing any more."""
        self._closed.set()

    def _sample(self) -> None:
        while not self._closed.wait(_SAMPLE_SECONDS):
            with self._lock:
                for pid, process in self._at_work.items():
                    if pid not in self._exceeded and (why := _why(self._bounds, pid, process)) is not None:
                        self._exceeded[pid] = why
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)


def _why(bounds: Bounds, pid: int, process: _AtWork) -> str | None:
    """Return where a process is and what it took, if that is too much."""
    if (found := measure_process(pid)) is None:
        return None
    memory, seconds, start = found
    process.start = process.start or start
    if process.start != start:  # it has ended, and its number is another process's
        return None
    # counted from the first look after it got on
    process.since = seconds if process.since is None else process.since
    why = bounds.exceeded(memory, seconds - process.since)
    return why and (f"{process.where}: {why}" if process.where else why)


@dataclass
class _Heartbeat:
    """Shared memory through which a command reports its position (a counter and a text) to the watching process."""

    memory: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, _BOARD_BYTES))

    def write(self, where: str) -> None:
        text = where.encode("utf-8", "replace")[: _BOARD_BYTES - 16]
        count = int.from_bytes(self.memory[:8], "little") + 1
        self.memory[8 : 16 + len(text)] = len(text).to_bytes(8, "little") + text
        # Last: whoever sees a new count finds its text. Between the two lines a text may be mixed, which is only shown.
        self.memory[:8] = count.to_bytes(8, "little")

    def read(self) -> tuple[bytes, str]:
        length = int.from_bytes(self.memory[8:16], "little")
        return self.memory[:8], self.memory[16 : 16 + length].decode("utf-8", "replace")


def process_start() -> float:
    """Return the start of this process in seconds of `time.monotonic`, or the current time if `/proc` is missing."""
    if not CAN_WATCH:
        return time.monotonic()
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age


def run_bounded(work: Callable[[], int], bounds: Bounds, complain: Callable[[str], None], *, again: bool) -> int:
    """Do a command's work in a fork of this process, and hold it to the bounds; return its exit code.

    Args:
        work: What to do; returns the exit code.
        bounds: What it may take.
        complain: Called with a sentence if it exceeds that.
        again: Whether it may be tried once more, closely, because what it finished is kept and not done twice.
    """
    if not CAN_WATCH:
        return work()
    for closely in (False, True) if again else (False,):
        board = _Heartbeat()
        # Before the fork: from then on signals are for `_until_it_ends`, which passes them on to the work.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON | {signal.SIGCHLD})
        parent = os.getpid()
        if not (pid := os.fork()):
            die_with_parent(parent)
            _leave_group()
            without_core()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            with told_to(board.write, closely=closely):
                return work()
        with contextlib.suppress(OSError):  # as the child does: whoever is first
            os.setpgid(pid, pid)
        code, why, interrupted = _until_it_ends(pid, board, bounds)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if why is None:
            if code == -signal.SIGKILL:
                complain("killed, probably by the kernel because memory ran out. Finished artifacts are kept")
                return 128 + signal.SIGKILL
            if code < 0:  # end as it ended
                signal.signal(-code, signal.SIG_DFL)
                os.kill(parent, -code)
            return code
        if not again or closely or interrupted:
            break
        complain(f"{why}. Retrying once under closer observation")
    complain(f"{why}. Finished artifacts are kept")
    return 1


def _leave_group() -> None:
    """Give this process a group of its own, so that what it starts does not get the signals of the terminal's keys.

    Of Ctrl-C, processes of Dagster and of libraries would print stacks. Only this process is to hear of it, and ends
    those that it started.
    """
    os.setpgid(0, 0)
    # the kernel would stop a group in the background that reads from the terminal, or of one with `tostop` that writes
    for number in (signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)


def _until_it_ends(pid: int, board: _Heartbeat, bounds: Bounds) -> tuple[int, str | None, bool]:
    """Wait for the end of a process; return its exit code (negative for a signal), if this ended it, why, and whether
    it was interrupted.

    Signals are passed on to it; a second Ctrl-C ends it and its group at once.
    """
    process, count, why, interrupted, killed = _AtWork(), b"", None, False, False
    listens = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN  # not where a shell without jobs began it by `&`
    while True:
        told = signal.sigtimedwait(_PASSED_ON | {signal.SIGCHLD}, _SAMPLE_SECONDS)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return (128 + signal.SIGINT if killed else os.waitstatus_to_exitcode(status)), why, interrupted
        if told is not None and told.si_signo != signal.SIGCHLD:
            by_ctrl_c = listens and told.si_signo == signal.SIGINT
            killed = killed or (interrupted and by_ctrl_c)
            interrupted = interrupted or by_ctrl_c
            _pass_on(signal.SIGKILL if killed else signal.Signals(told.si_signo), pid)
        now, process.where = board.read()
        if now != count:
            count, process.since = now, None
        if why is None and (why := _why(bounds, pid, process)) is not None:
            _pass_on(signal.SIGKILL, pid)


def _pass_on(sent: signal.Signals, pid: int) -> None:
    """Pass a signal on to the work: to its process, or to its group where all have to stop."""
    with contextlib.suppress(ProcessLookupError):
        if sent == signal.SIGTSTP:  # Ctrl-Z: this process stops with them, as the shell waits for it
            os.killpg(pid, signal.SIGSTOP)
            try:
                # not SIGSTOP: the kernel leaves out a process that no shell could continue
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {sent})
                os.kill(os.getpid(), sent)
                signal.pthread_sigmask(signal.SIG_BLOCK, {sent})
            finally:
                os.killpg(pid, signal.SIGCONT)
        elif sent == signal.SIGKILL:
            os.killpg(pid, sent)
        else:
            os.kill(pid, sent)
