"""A fork server: one process loads what every worker needs, then forks into them.

Loading a tokenizer takes a second and more of a core, and a quarter of a GB. Forks begin with it and share its memory,
of which they write next to nothing.

A fork of a process in which a library has started a thread can hang forever, so the server counts its threads before
each fork and refuses if there is more than one; the worker is then a new interpreter. Only on Linux: elsewhere threads
cannot be counted, and system libraries do not survive a fork.
"""

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any, NoReturn

_POLL_SECONDS = 0.01


def can_fork() -> bool:
    """Whether this system has what a fork server needs."""
    return sys.platform == "linux"


class ForkServer:
    """Starts a process that prepares itself, and asks it for forks of itself.

    Its forks end with it, and it ends with the thread that started it.
    """

    def __init__(self, start: Callable[[int], "subprocess.Popen[bytes]"], prepare: Callable[[], object]) -> None:
        """Start it.

        Args:
            start: Starts a process that calls `serve_forks` with the file descriptor that is given to it.
            prepare: What it calls once before it forks: a picklable function, such as one that fills a cache. An error
                of it is left to the workers, who meet it themselves.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = start(theirs.fileno())
        self._channel: Connection[Any, Any] = Connection(ours.detach())
        # Forks that nobody has waited for yet. When none is left, and no more will be asked for, the server goes.
        self._alive: set[int] = set()
        self._is_open = True
        with contextlib.suppress(OSError):  # it died: the first fork says so
            self._channel.send(prepare)

    def fork(self, handle: int) -> "ForkedProcess | None":
        """A fork of the server that serves the socket `handle`; None if the server has died or must not fork.

        Waits until the server is prepared.
        """
        try:
            self._channel.send(("fork", 0))
            send_handle(self._channel, handle, self._process.pid)
            pid = self._channel.recv()
        except (EOFError, OSError):
            return None
        if pid is None:
            return None
        self._alive.add(pid)
        return ForkedProcess(self, pid)

    def ended(self, pid: int, seconds: float) -> int | None:
        """The exit code of a fork, negative for a signal; None if it has not ended within `seconds`."""
        try:
            self._channel.send(("wait", (pid, seconds)))
            code: int | None = self._channel.recv()
        except (EOFError, OSError):
            code = -signal.SIGKILL  # the kernel ends forks with their server
        if code is not None:
            self._alive.discard(pid)
            self._end_unless_needed()
        return code

    def close(self) -> None:
        """Fork no more. The server ends when none of its forks lives, because the kernel ends them with it."""
        self._is_open = False
        self._end_unless_needed()

    def _end_unless_needed(self) -> None:
        if not self._is_open and not self._alive:
            self._channel.close()
            self._process.kill()
            self._process.wait()


class ForkedProcess:
    """A fork of a server, with the part of the interface of `subprocess.Popen` that a pool needs."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid, self._server = pid, server
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code; None while it lives."""
        if self._code is None:
            self._code = self._server.ended(self.pid, 0)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended; raises `subprocess.TimeoutExpired` after that many seconds."""
        if self._code is None:
            self._code = self._server.ended(self.pid, float("inf") if timeout is None else timeout)
        if self._code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return self._code

    def kill(self) -> None:
        """Kill it if it lives. Its number cannot be another process's: the server keeps it until it is waited for."""
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def serve_forks(handle: int, serve: Callable[[int, int], None]) -> None:
    """A fork server's whole life: prepare, then fork and wait as asked, until the socket `handle` closes.

    Args:
        handle: The socket of a `ForkServer`.
        serve: What a fork does with its own socket and the number of this process.
    """
    channel: Connection[Any, Any] = Connection(handle)
    with contextlib.suppress(EOFError):
        with contextlib.suppress(Exception):
            channel.recv()()
        gc.collect()
        gc.freeze()  # a collection in a fork would write to, and so copy, every page with an object
        while True:
            asked, of = channel.recv()
            channel.send(_forked(channel, serve) if asked == "fork" else _waited(*of))


def _forked(channel: "Connection[Any, Any]", serve: Callable[[int, int], None]) -> int | None:
    handle, server = recv_handle(channel), os.getpid()
    try:
        if len(list(Path("/proc/self/task").iterdir())) > 1:
            return None
        pid = os.fork()
        if not pid:
            _life(channel, serve, handle, server)
        return pid
    finally:
        # the fork has its own: as long as the server held one, too, the pool would not see the fork's socket close
        os.close(handle)


def _life(channel: "Connection[Any, Any]", serve: Callable[[int, int], None], handle: int, server: int) -> NoReturn:
    code = 1
    try:
        # the server's: as long as a fork held it, the pool would not see the server's socket close
        channel.close()
        serve(handle, server)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # what the server would do at its end is not this process's to do


def _waited(pid: int, seconds: float) -> int | None:
    limit = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= limit:
            return None
        # `waitpid` has no time limit: it waits for ever or not at all
        time.sleep(_POLL_SECONDS)
