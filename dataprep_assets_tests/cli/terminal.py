"""A process in its own terminal: the output that a user sees, and the keys that the user presses."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

CTRL_C, CTRL_Z = b"\x03", b"\x1a"
_SECONDS = 120.0
"""The limit of every wait in seconds; the test fails after it."""


class Terminal:
    """A command that runs in the foreground of a pseudo-terminal and ends with the `with` block."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], columns: int = 100) -> None:
        """Start the command.

        `environment` is its whole environment, without COLUMNS, so that it asks the terminal for its width.
        """
        self.seen = ""
        self._pid, self._descriptor = pty.fork()
        if not self._pid:
            with contextlib.suppress(OSError):
                os.execve(command[0], list(command), {"TERM": "xterm-256color", **environment})
            os._exit(127)
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._descriptor)

    def press(self, keys: bytes) -> None:
        """Press these keys."""
        os.write(self._descriptor, keys)

    def see(self, text: str) -> None:
        """Wait until this text is on the terminal."""
        for _ in self._reads():
            if text in self.seen:
                return
        raise AssertionError(f"{text!r} was not shown: {self.seen!r}")

    def end(self) -> int:
        """Wait until the command ends, and return its exit code."""
        for _ in self._reads():
            pass
        pid, self._pid = self._pid, 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _reads(self) -> Iterator[None]:
        """Read the output in steps of a tenth of a second until the terminal is closed or the time is up."""
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end:
            yield
            if select.select([self._descriptor], [], [], 0.1)[0]:
                try:
                    written = os.read(self._descriptor, 1 << 16)
                except OSError:  # Linux reports this error once no process has the terminal open
                    return
                self.seen += written.decode("utf-8", "replace")
        raise AssertionError(f"it did not end: {self.seen!r}")
