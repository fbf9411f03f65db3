"""Output of a step to the user who started the command: its progress and its messages.

A terminal shows the progress on a live line, and a pipe gets occasional plain lines. During a step Dagster redirects
descriptors 1 and 2 to its compute log. Another process shows that log with a delay, and on a busy machine without its
end. Therefore progress and messages use separate descriptors.

Entry points: `show_progress` encloses the runs of a command, and `show_notebook_progress` the runs in a notebook.
Inside them, `show_step` and `clear_step` show and erase the current step, and `list_progress_sinks` returns the sinks
of a step. `print_line` prints a line inside `write_printed_lines`.
"""

import contextlib
import io
import os
import sys
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dataprep_assets.execution.progress import Progress, Sink
from dataprep_assets.screen import read_width, wrap_line
from dataprep_assets.table import format_share

LINE_SECONDS = 15.0
_DRAW_SECONDS = 0.2
_BAR_COLUMNS = 24
_NOTEBOOK_COLUMNS = 130
_TEXT_COLUMNS = 80
"""Width of the text next to the bar: `99.0% ETA 12.3 min 1,234,567,890 of ~2,345,678,901 tokens 0.50 M tokens/s`."""
_CTRL_C_COLUMNS = 3
"""Columns at the end of the line for `^C`, which would otherwise begin another row that is not erased."""
_STYLES = {"red": "31", "yellow": "33", "green": "32", "dim": "2"}


class StepLine:
    """Last line of a terminal, which shows the progress of the current step until the step ends."""

    def __init__(self, console: Console) -> None:
        self.console, self.label = console, ""
        self._live: Live | None = None

    def draw(self, row: RenderableType) -> None:
        """Show `row` in place of the previous one."""
        with contextlib.suppress(OSError):  # the terminal was closed, but the step continues
            # Set the width explicitly, because rich would query the standard descriptors, which are redirected inside a
            # step.
            columns = os.get_terminal_size(self.console.file.fileno()).columns or 80
            self.console.width = max(1, columns - _CTRL_C_COLUMNS)
            if self._live is None:
                # Disable rich's own refresh thread, because `update` already redraws the line whenever the counts
                # change.
                self._live = Live(
                    console=self.console,
                    auto_refresh=False,
                    transient=True,
                    redirect_stdout=False,
                    redirect_stderr=False,
                )
                self._live.start()
            self._live.update(row, refresh=True)

    def erase(self) -> None:
        """Erase the line; the next `draw` shows it again."""
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.stop()
            self._live = None


class NotebookLine(StepLine):
    """Progress line below a notebook cell; IPython's kernel sends it, so redirected descriptors do not affect it."""

    def __init__(self) -> None:
        # Write to memory, because rich itself would send each drawing to the notebook as a new output.
        super().__init__(
            Console(
                file=io.StringIO(),
                width=_NOTEBOOK_COLUMNS,
                highlight=False,
                color_system=None,
                force_jupyter=False,
                force_terminal=False,
            )
        )
        self._display: Any = None

    def draw(self, row: RenderableType) -> None:
        with self.console.capture() as capture:
            self.console.print(row)
        self._show(capture.get().rstrip())

    def erase(self) -> None:
        if self._display is not None:
            self._show("")

    def _show(self, text: str) -> None:
        from IPython.display import display

        data = {"text/plain": text}
        if self._display is None:
            self._display = display(data, raw=True, display_id=True)
        else:
            self._display.update(data, raw=True)


def _is_in_notebook() -> bool:
    """Return whether this process is a notebook kernel, without importing IPython."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


@dataclass(frozen=True)
class _Watcher:
    """Progress output of a command: a stream, and its last line if it is a terminal that can move its cursor."""

    stream: TextIO
    line: StepLine | None


_current_watcher: ContextVar[_Watcher | None] = ContextVar("watched", default=None)
_print_stream: ContextVar[TextIO | None] = ContextVar("heard", default=None)


@contextlib.contextmanager
def show_progress(stream: TextIO) -> Iterator[None]:
    """Show the progress of this process's steps on `stream` (a terminal, pipe or file) inside this context."""
    with _separate_stream(stream) as own_stream:
        if own_stream is None:
            yield
            return
        # Let only the stream decide whether it is a terminal, because FORCE_COLOR would put escape codes into a pipe.
        console = Console(
            file=own_stream, force_terminal=own_stream.isatty(), highlight=False, markup=False, emoji=False
        )
        has_line = console.is_terminal and not console.is_dumb_terminal
        with _show_watcher(_Watcher(own_stream, StepLine(console) if has_line else None)):
            yield


@contextlib.contextmanager
def show_notebook_progress() -> Iterator[None]:
    """Show the progress of steps below the notebook cell inside this context; outside of a notebook do nothing."""
    if not _is_in_notebook():
        yield
        return
    with _show_watcher(_Watcher(sys.stderr, NotebookLine())):
        yield


@contextlib.contextmanager
def _show_watcher(watcher: _Watcher) -> Iterator[None]:
    with _set_variable(_current_watcher, watcher):
        try:
            yield
        finally:
            clear_step()


@contextlib.contextmanager
def write_printed_lines(stream: TextIO) -> Iterator[None]:
    """Write the lines of `print_line` to `stream` immediately inside this context, even during a step."""
    with _separate_stream(stream) as own_stream:
        if own_stream is None:
            yield
            return
        with _set_variable(_print_stream, own_stream):
            yield


@contextlib.contextmanager
def _separate_stream(stream: TextIO) -> Iterator[TextIO | None]:
    """Yield the stream on a separate descriptor; None if it is closed or in memory, where no redirection affects it."""
    try:
        stream.flush()
        descriptor = os.dup(stream.fileno())
    except (OSError, ValueError):
        yield None
        return
    own_stream = os.fdopen(descriptor, "w", encoding="utf-8", errors="replace")
    try:
        yield own_stream
    finally:
        with contextlib.suppress(OSError):  # the pipe was closed before the rest was written
            own_stream.close()


@contextlib.contextmanager
def _set_variable(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def show_step(label: str, words: str = "") -> None:
    """Show the current step and `words` on a terminal; later, its progress appears after `label`."""
    if (watcher := _current_watcher.get()) is not None and watcher.line is not None:
        watcher.line.label = label
        watcher.line.draw(Text(f"  {label}  {words}".rstrip(), no_wrap=True, overflow="ellipsis"))


def clear_step() -> None:
    """Erase the output of `show_step` and the step's progress."""
    if (watcher := _current_watcher.get()) is not None and watcher.line is not None:
        watcher.line.label = ""
        watcher.line.erase()


def print_line(line: str, style: str = "") -> None:
    """Print a line to the stream of `write_printed_lines`, else to standard output.

    On a terminal the line is wrapped at words, and has the `style` unless NO_COLOR is set.
    """
    stream = _print_stream.get()
    if stream is None:
        print(line, flush=True)
        return
    with contextlib.suppress(OSError):  # the reader closed the pipe, but the step continues
        text = "\n".join(wrap_line(line, read_width(stream)))
        if style and stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
            text = f"\x1b[{_STYLES[style]}m{text}\x1b[0m"
        print(text, file=stream, flush=True)


def list_progress_sinks(title: str) -> list[Sink]:
    """Return the sinks that show the progress of the step `title` to the user; none outside of `show_progress`."""
    if (watcher := _current_watcher.get()) is None:
        return []
    return [LineSink(watcher.stream, title) if watcher.line is None else TerminalSink(watcher.line, title)]


class TerminalSink:
    """Sink that shows the progress of a step on the last line of a terminal."""

    def __init__(self, line: StepLine, title: str) -> None:
        self._line, self._title, self._last_draw_time = line, title, 0.0

    def show(self, progress: Progress) -> None:
        if time.monotonic() - self._last_draw_time >= _DRAW_SECONDS:
            self._last_draw_time = time.monotonic()
            self._line.draw(self._build_row(progress))

    def close(self, progress: Progress) -> None:
        self._line.erase()

    def _build_row(self, progress: Progress) -> Table:
        name = f"  {self._line.label or self._title}"
        words = [format_share(progress.fraction), f"ETA {progress.time_left}", progress.amount, progress.rate]
        room = self._line.console.width - len(name) - 1
        bar = min(_BAR_COLUMNS, room - _TEXT_COLUMNS - 1)
        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_column(width=len(name), no_wrap=True)
        cells: list[RenderableType] = [name]
        if bar >= _BAR_COLUMNS // 4:  # a narrow terminal has room only for the text
            row.add_column(width=bar)
            cells.append(ProgressBar(total=1.0, completed=progress.fraction, width=bar))
            room -= bar + 1
        width = max(1, room - 1)
        row.add_column(width=width, no_wrap=True, overflow="ellipsis")
        words = [word for word in words if word]
        # Omit whole values at the end, because a truncated number would be misread.
        while len(words) > 1 and len("  ".join(words)) > width:
            words.pop()
        row.add_row(*cells, "  ".join(words))
        return row


class LineSink:
    """Sink that writes a plain line every `LINE_SECONDS`, and a last line if any was written."""

    def __init__(self, stream: TextIO, title: str) -> None:
        self._stream, self._title = stream, title
        # Start the interval with the step, so that a short step writes no line.
        self._last_write_time, self._has_written = time.monotonic(), False

    def show(self, progress: Progress) -> None:
        if time.monotonic() - self._last_write_time >= LINE_SECONDS:
            self._last_write_time, self._has_written = time.monotonic(), True
            self._write(progress)

    def close(self, progress: Progress) -> None:
        if self._has_written:
            self._write(progress)

    def _write(self, progress: Progress) -> None:
        with contextlib.suppress(OSError):  # the reader closed the pipe, but the step continues
            self._stream.write(f"    {self._title}: {progress.format_line().strip()}\n")
            self._stream.flush()
