"""Where the progress of a step is shown: a line in the run's log now and then, a live line where a person watches."""

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TextIO

import dagster as dg

__all__ = ["LogSink", "TerminalSink", "sinks_of", "watched"]

LOG_SECONDS = 15.0
_DRAW_SECONDS = 0.2
_watched: ContextVar[bool] = ContextVar("watched", default=False)


@contextlib.contextmanager
def watched(yes: bool = True) -> Iterator[None]:
    """Steps that run inside, in this process, also draw on the terminal: a person watches."""
    token = _watched.set(yes)
    try:
        yield
    finally:
        _watched.reset(token)


class LogSink:
    """One line in the run's log every `LOG_SECONDS`, and the last one always."""

    def __init__(self, context: dg.AssetExecutionContext, what: str) -> None:
        self._log, self._what = context.log.info, what
        self._logged = time.monotonic()

    def show(self, line: Callable[[], str]) -> None:
        if time.monotonic() - self._logged >= LOG_SECONDS:
            self._logged = time.monotonic()
            self._log(f"{self._what}: {line()}")

    def close(self, line: str | None) -> None:
        if line is not None:
            self._log(f"{self._what}: {line}")


class TerminalSink:
    """One live line on the terminal, wiped at the end."""

    def __init__(self, what: str) -> None:
        self._what, self._drawn = what, 0.0
        self._terminal: TextIO | None = None
        # not stderr: Dagster sends a step's output to its compute log
        with contextlib.suppress(OSError):
            self._terminal = open("/dev/tty", "w")  # noqa: SIM115 - closed by `close`

    def show(self, line: Callable[[], str]) -> None:
        if self._terminal is not None and time.monotonic() - self._drawn >= _DRAW_SECONDS:
            self._drawn = time.monotonic()
            self._terminal.write(f"\r\x1b[2K    {self._what}: {line()}")
            self._terminal.flush()

    def close(self, line: str | None) -> None:
        if self._terminal is not None:
            self._terminal.write("\r\x1b[2K")
            self._terminal.close()
            self._terminal = None


def sinks_of(context: dg.AssetExecutionContext) -> list[LogSink | TerminalSink]:
    """Where the progress of a step is shown."""
    what = "/".join(context.asset_key.path)
    return [LogSink(context, what), *([TerminalSink(what)] if _watched.get() else [])]
