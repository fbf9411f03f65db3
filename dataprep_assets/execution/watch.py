"""Enforcement of the bounds on processes (`bounds`): processes are sampled, and terminated if they exceed a limit.

A process cannot watch itself, because a running library call blocks all Python threads, and a process that the kernel
ends cannot report anything. Therefore workers are watched by a thread of the process that started them (`Watch`). A
command is watched by the process that was started (`run_bounded`). It does its work in a fork of that process, which at
this point has loaded no library and has no other thread.

The measured amounts are a process's private memory (resident, without pages of files) and its CPU time since its last
progress. Only Linux is supported; processes on other systems have no such bound.
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

from dataprep_assets.bounds import Bounds, disable_core_dumps, report_to

CAN_WATCH = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
# Number of seconds between two samples. A process may exceed its bound unnoticed for this long.
_SAMPLE_SECONDS = 0.1
_BOARD_BYTES = 4096
_FORWARDED_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP}
if CAN_WATCH:
    _PAGE, _TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


def die_with_parent(parent: int, signal_number: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when its parent (the process with this id) ends; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != parent:
        os._exit(1)  # the parent died before prctl took effect


def measure_process(pid: int) -> tuple[int, float, int] | None:
    """Return a process's private memory in bytes, its CPU seconds and the tick of its start; None if it has ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm, open(f"/proc/{pid}/stat", "rb") as stat:
            _, resident, shared, *_ = statm.read().split()
            # The program's name is in parentheses and may contain spaces and parentheses. Of the fields after the name,
            # counted from 0, 11 and 12 are the user and system time (fields 14 and 15 in proc(5)), and 19 is the start
            # time.
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return (int(resident) - int(shared)) * _PAGE, (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[19])


@dataclass
class _WatchedProcess:
    """A process with its current row, its CPU seconds when it reached this row, and the tick of its start."""

    where: str = ""
    since: float | None = None
    start: int | None = None


class Watch:
    """Watch over running processes, in a separate thread that ends with `close`."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._lock, self._closed = threading.Lock(), threading.Event()
        # Both dictionaries have process ids as keys. The second has the reasons why processes were terminated, which
        # `end` returns.
        self._at_work: dict[int, _WatchedProcess] = {}
        self._exceeded: dict[int, str] = {}
        self._thread: threading.Thread | None = None

    def begin(self, pid: int) -> None:
        """Watch a process until `end`."""
        if not CAN_WATCH:
            return
        with self._lock:
            self._at_work[pid] = _WatchedProcess()
        if self._thread is None:
            self._thread = threading.Thread(target=self._measure_processes, name="dataprep-watch", daemon=True)
            self._thread.start()

    def note_progress(self, pid: int, position: str = "") -> None:
        """Record that a process made progress and is now at `position`."""
        if (process := self._at_work.get(pid)) is not None:
            process.where, process.since = position or process.where, None

    def end(self, pid: int) -> str | None:
        """Stop watching a process. If it was terminated, return its position, its usage and the exceeded limit."""
        with self._lock:
            self._at_work.pop(pid, None)
            return self._exceeded.pop(pid, None)

    def close(self) -> None:
        """Stop watching all processes."""
        self._closed.set()

    def _measure_processes(self) -> None:
        while not self._closed.wait(_SAMPLE_SECONDS):
            with self._lock:
                for pid, process in self._at_work.items():
                    if pid not in self._exceeded and (reason := _explain_end(self._bounds, pid, process)) is not None:
                        self._exceeded[pid] = reason
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)


def _explain_end(bounds: Bounds, pid: int, process: _WatchedProcess) -> str | None:
    """Return a process's position and usage if it exceeds a limit; None if it does not, or has ended."""
    if (usage := measure_process(pid)) is None:
        return None
    memory, seconds, start = usage
    process.start = process.start or start
    if process.start != start:  # the process has ended, and a new process has its id
        return None
    # Count the CPU time from the first sample after the last progress, because the CPU time at the progress itself is
    # unknown.
    process.since = seconds if process.since is None else process.since
    reason = bounds.describe_exceeded_bound(memory, seconds - process.since)
    return reason and (f"{process.where}: {reason}" if process.where else reason)


@dataclass
class _Heartbeat:
    """Shared memory through which a command reports its position (a counter and a text) to the watching process."""

    memory: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, _BOARD_BYTES))

    def write(self, position: str) -> None:
        text = position.encode("utf-8", "replace")[: _BOARD_BYTES - 16]
        count = int.from_bytes(self.memory[:8], "little") + 1
        self.memory[8 : 16 + len(text)] = len(text).to_bytes(8, "little") + text
        # Write the counter last, so that a reader that sees a new counter also sees its text. Until then, a reader may
        # see a mixture of two texts, which is harmless because the text is only displayed.
        self.memory[:8] = count.to_bytes(8, "little")

    def read(self) -> tuple[bytes, str]:
        length = int.from_bytes(self.memory[8:16], "little")
        return self.memory[:8], self.memory[16 : 16 + length].decode("utf-8", "replace")


def read_process_start() -> float:
    """Return the start of this process in seconds of `time.monotonic`, or the current time if `/proc` is missing."""
    if not CAN_WATCH:
        return time.monotonic()
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age


def run_bounded(work: Callable[[], int], bounds: Bounds, complain: Callable[[str], None], *, is_retry: bool) -> int:
    """Run a command's work in a fork of this process, enforce the bounds, and return the exit code.

    Args:
        work: The work; returns the exit code.
        bounds: The limits of the work.
        complain: Called with a sentence if the work exceeds its bounds or is killed.
        is_retry: Whether the work may be retried once, with a report of each row, because finished parts are kept.
    """
    if not CAN_WATCH:
        return work()
    for reports_each_row in (False, True) if is_retry else (False,):
        board = _Heartbeat()
        # Block signals before the fork, so that none is lost before `_wait_for_end` forwards it to the child.
        old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED_SIGNALS | {signal.SIGCHLD})
        parent = os.getpid()
        if not (pid := os.fork()):
            die_with_parent(parent)
            _leave_group()
            disable_core_dumps()
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
            with report_to(board.write, reports_each_row=reports_each_row):
                return work()
        # Set the group here as well as in the child, because either process may run first.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        code, reason, interrupted = _wait_for_end(pid, board, bounds)
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        if reason is None:
            if code == -signal.SIGKILL:
                complain("killed, probably by the kernel because memory ran out. Finished artifacts are kept")
                return 128 + signal.SIGKILL
            if code < 0:  # end with the same signal as the child
                signal.signal(-code, signal.SIG_DFL)
                os.kill(parent, -code)
            return code
        if not is_retry or reports_each_row or interrupted:
            break
        complain(f"{reason}. Retrying once under closer observation")
    complain(f"{reason}. Finished artifacts are kept")
    return 1


def _leave_group() -> None:
    """Move this process to its own group, so that the terminal's keys send no signals to processes that it starts.

    Upon Ctrl-C, processes of Dagster and of libraries would print tracebacks. Only this process should receive it; it
    terminates the processes that it started.
    """
    os.setpgid(0, 0)
    # Ignore the signals with which the kernel stops a background group that reads from the terminal, or that writes to
    # it if `tostop` is set.
    for number in (signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)


def _wait_for_end(pid: int, board: _Heartbeat, bounds: Bounds) -> tuple[int, str | None, bool]:
    """Wait for the end of a process.

    Return its exit code (negative for a signal), the reason if this function terminated it, and whether it was
    interrupted. Signals are forwarded to it. A second Ctrl-C immediately kills it and its group.
    """
    process, count, reason, interrupted, killed = _WatchedProcess(), b"", None, False, False
    # Do not treat an ignored SIGINT as Ctrl-C, because a shell without job control starts its `&` processes with SIGINT
    # ignored.
    listens = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    while True:
        signal_info = signal.sigtimedwait(_FORWARDED_SIGNALS | {signal.SIGCHLD}, _SAMPLE_SECONDS)
        ended_pid, status = os.waitpid(pid, os.WNOHANG)
        if ended_pid:
            return (128 + signal.SIGINT if killed else os.waitstatus_to_exitcode(status)), reason, interrupted
        if signal_info is not None and signal_info.si_signo != signal.SIGCHLD:
            by_ctrl_c = listens and signal_info.si_signo == signal.SIGINT
            killed = killed or (interrupted and by_ctrl_c)
            interrupted = interrupted or by_ctrl_c
            _forward_signal(signal.SIGKILL if killed else signal.Signals(signal_info.si_signo), pid)
        now, process.where = board.read()
        if now != count:
            count, process.since = now, None
        if reason is None and (reason := _explain_end(bounds, pid, process)) is not None:
            _forward_signal(signal.SIGKILL, pid)


def _forward_signal(signal_number: signal.Signals, pid: int) -> None:
    """Forward a signal to the process that does the work, or to its group if the signal must stop all processes."""
    with contextlib.suppress(ProcessLookupError):
        # On Ctrl-Z, also stop this process, because the shell waits for it.
        if signal_number == signal.SIGTSTP:
            os.killpg(pid, signal.SIGSTOP)
            try:
                # Send SIGTSTP instead of SIGSTOP, because the kernel ignores SIGTSTP if no shell could continue this
                # process.
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal_number})
                os.kill(os.getpid(), signal_number)
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal_number})
            finally:
                os.killpg(pid, signal.SIGCONT)
        elif signal_number == signal.SIGKILL:
            os.killpg(pid, signal_number)
        else:
            os.kill(pid, signal_number)
