"""What whoever started the command hears of a step: progress (a live line on a terminal, occasional plain lines in a
pipe), and lines of its own.

During a step Dagster redirects descriptors 1 and 2 to its compute log, and another process shows what is written there:
later, and on a busy machine not its end. So both are written on descriptors of their own.

Entry points: `watched` around the runs of a command, and `watching`, which gives the sinks of a step inside it;
`heard`, and `say` inside it.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TextIO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from dataprep_assets.execution.progress import Progress, Sink

LINE_SECONDS = 15.0
_DRAW_SECONDS = 0.2
_BAR_COLUMNS = 24
_WORD_COLUMNS = 80
"""Room for the words beside the bar: `99.0%  ETA 12.3 min  1,234,567,890 of ~2,345,678,901 tokens  0.50 M tokens/s`."""
_watched: ContextVar[TextIO | None] = ContextVar("watched", default=None)
_heard: ContextVar[TextIO | None] = ContextVar("heard", default=None)


def watched(stream: TextIO) -> contextlib.AbstractContextManager[None]:
    """Inside, steps that run in this process also show their progress on `stream`, a terminal, pipe or file."""
    return _given_to(_watched, stream)


def heard(stream: TextIO) -> contextlib.AbstractContextManager[None]:
    """Inside, what is said goes to `stream` at once, also what a step says that runs in this process."""
    return _given_to(_heard, stream)


@contextlib.contextmanager
def _given_to(variable: ContextVar[TextIO | None], stream: TextIO) -> Iterator[None]:
    try:
        stream.flush()
        descriptor = os.dup(stream.fileno())
    except (OSError, ValueError):  # closed, or in memory, which nobody redirects
        yield
        return
    own = os.fdopen(descriptor, "w", encoding="utf-8", errors="replace")
    token = variable.set(own)
    try:
        yield
    finally:
        variable.reset(token)
        with contextlib.suppress(OSError):  # a closed pipe did not take the rest
            own.close()


def say(line: str) -> None:
    """Print a line; inside of `heard` to its stream."""
    stream = _heard.get()
    if stream is None:
        print(line, flush=True)
        return
    with contextlib.suppress(OSError):  # the reader closed the pipe: the step goes on
        print(line, file=stream, flush=True)


def watching(what: str) -> list[Sink]:
    """The sinks that show the step `what` to whoever started the command; none outside of `watched`."""
    if (stream := _watched.get()) is None:
        return []
    # decided by the stream only: FORCE_COLOR would put escape codes into a pipe
    console = Console(file=stream, force_terminal=stream.isatty(), highlight=False, markup=False, emoji=False)
    if console.is_terminal and not console.is_dumb_terminal:
        return [TerminalSink(console, what)]
    return [LineSink(stream, what)]


class TerminalSink:
    """Shows one live line on a terminal, and erases it at the end."""

    def __init__(self, console: Console, what: str) -> None:
        self._console, self._what, self._drawn = console, what, 0.0
        self._live: Live | None = None

    def show(self, progress: Progress) -> None:
        if time.monotonic() - self._drawn < _DRAW_SECONDS:
            return
        self._drawn = time.monotonic()
        with contextlib.suppress(OSError):  # the terminal was closed: the step goes on
            # as wide as this terminal is now: rich asks the standard descriptors, which lead elsewhere inside of a step
            self._console.width = os.get_terminal_size(self._console.file.fileno()).columns or 80
            if self._live is None:
                # drawn here, in the step's own thread, so that a line is never older than the counts
                self._live = Live(
                    console=self._console,
                    auto_refresh=False,
                    transient=True,
                    redirect_stdout=False,
                    redirect_stderr=False,
                )
                self._live.start()
            self._live.update(self._row(progress), refresh=True)

    def close(self, progress: Progress) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.stop()
            self._live = None

    def _row(self, progress: Progress) -> Table:
        name = f"    {self._what}"
        words = [f"{progress.fraction:.1%}", f"ETA {progress.time_left}", progress.amount, progress.rate]
        room = self._console.width - len(name) - 1
        bar = min(_BAR_COLUMNS, room - _WORD_COLUMNS - 1)
        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_column(width=len(name), no_wrap=True)
        cells: list[RenderableType] = [name]
        if bar >= _BAR_COLUMNS // 4:  # a narrow terminal has room for the words alone
            row.add_column(width=bar)
            cells.append(ProgressBar(total=1.0, completed=progress.fraction, width=bar))
            room -= bar + 1
        row.add_column(width=max(1, room - 1), no_wrap=True, overflow="ellipsis")
        row.add_row(*cells, "  ".join(words))
        return row


class LineSink:
    """Writes a plain line every `LINE_SECONDS`, and a last one if there was any."""

    def __init__(self, stream: TextIO, what: str) -> None:
        self._stream, self._what = stream, what
        # counted from the beginning of the step: a short one writes no line
        self._written, self._any = time.monotonic(), False

    def show(self, progress: Progress) -> None:
        if time.monotonic() - self._written >= LINE_SECONDS:
            self._written, self._any = time.monotonic(), True
            self._write(progress)

    def close(self, progress: Progress) -> None:
        if self._any:
            self._write(progress)

    def _write(self, progress: Progress) -> None:
        with contextlib.suppress(OSError):  # the reader closed the pipe: the step goes on
            self._stream.write(f"    {self._what}: {progress.line().strip()}\n")
            self._stream.flush()
