"""Lines for a terminal: wrapped at words, paths relative to the working directory, and a line while a command loads.

Standard output and standard error of a command go through `wrap_output`. Files and pipes get unchanged lines.

Imports no library, because a command shows its first line before it loads anything.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import TextIOBase
from pathlib import Path
from typing import TextIO
from unicodedata import east_asian_width

MAX_LINES = 30
"""Maximum number of lines that a run prints after its steps."""
LAYOUT_COLUMNS = 80
"""Width for which tables are laid out when the output is not a terminal."""
_ERASE = "\r\x1b[2K"
_INDENT = 4
_WORD = re.compile(r" *(?:[^ `]*`[^`]{1,48}`[^ ]*|[\d.,]+ (?:s|ms|min|h|B|[kMGT]B)(?![^\s.,;:)])|[^ ]+(?: …$)?)")
"""A word with the spaces before it. A short command in backquotes is one word, and so is a number with its unit."""
_DATA = frozenset(("--json", "--csv"))
"""Options whose output is data, which is never wrapped."""
_AT_ONCE = frozenset(("init", "ui"))
"""Commands that print at once, or start another program."""
_WITHOUT_WAITING = _DATA | {"--quiet", "--help", "-h", "--version"}
_OWN_LAYOUT = frozenset(("run",))
"""Commands that redraw some of their lines, and arrange all of them."""


def read_width(stream: TextIO) -> int | None:
    """Return the width of a terminal in columns (`COLUMNS`, else its own); None for any other stream."""
    try:
        if not stream.isatty():
            return None
        setting = os.environ.get("COLUMNS", "")
        return int(setting) if setting.isdigit() and int(setting) else os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # the stream is closed, or the size of its terminal is unknown
        return None


def wrap_line(line: str, width: int | None) -> list[str]:
    """Return a line as rows of at most `width` columns, broken at spaces; a `width` of None gives a single row.

    Further rows are indented below the last column of a table row, or else by four spaces more than the line. A short
    command in backquotes is not broken. A longer word, such as a path, gets its own row and overflows it.
    """
    if width is None or _count_cells(line) <= width or "\x1b" in line or "\r" in line:
        return [line]
    columns = [gap.end() for gap in re.finditer(r"(?<=\S) {2,}(?=\S)", line) if gap.end() < width]
    last_column = columns[-1] if columns else 0
    indent = len(line) - len(line.lstrip(" ")) + _INDENT
    # Indent below the last column only if it is wide enough: a narrow column would have one word per line, and a word
    # that does not fit needs the whole line.
    if (
        width - last_column >= width // 3
        and max((_count_cells(word.strip()) for word in _WORD.findall(line[last_column:])), default=0)
        <= width - last_column
    ):
        indent = last_column or indent
    rows, row = [], ""
    for word in _WORD.findall(line):
        if row.strip() and _count_cells(row) + _count_cells(word) > width:
            rows.append(row)
            row = " " * indent + word.lstrip(" ")
        else:
            row += word
    return [*rows, row]


def count_rows(line: str, width: int | None) -> int:
    """Return how many rows of a terminal a line takes, overflowing words included; a line may have line breaks."""
    lines = line.split("\n")
    if width is None:
        return len(lines)
    return sum(max(1, -(-_count_cells(row) // width)) for line in lines for row in wrap_line(line, width))


def _count_cells(text: str) -> int:
    return len(text) if text.isascii() else sum(2 if east_asian_width(sign) in "WF" else 1 for sign in text)


def print_lines(lines: Sequence[str], stream: TextIO | None = None) -> None:
    """Print lines to a stream (default: standard output), wrapped if the stream is a terminal."""
    stream = sys.stdout if stream is None else stream
    stop_waiting()
    width = read_width(stream)
    for line in lines:
        for part in line.split("\n"):
            print("\n".join(wrap_line(part, width)), file=stream)


def print_error(text: str) -> None:
    """Print lines on standard error, after flushing standard output."""
    sys.stdout.flush()
    print_lines(text.splitlines(), sys.stderr)


@dataclass(frozen=True, kw_only=True)
class Section:
    """Lines of a command's output, printed after an empty line.

    Attributes:
        lines: The lines, the most important ones first.
        end: The lines after them, which are always printed.
    """

    lines: Sequence[str]
    end: Sequence[str] = ()

    @property
    def all_lines(self) -> list[str]:
        """All lines in their order."""
        return [*self.lines, *self.end]


def shorten_sections(
    sections: Sequence[Section], more: str, *, width: int | None = None, max_rows: int = MAX_LINES
) -> list[list[str]]:
    """Return the sections' lines with at most `max_rows` rows in total, including an empty line before each section.

    The sections with the most rows lose the last of their `lines`. The next line has the number of these lines and the
    command `more`, which prints them.
    """
    heights = [[count_rows(line, width) for line in section.lines] for section in sections]
    end_heights = [sum(count_rows(line, width) for line in section.end) for section in sections]
    line_counts = [len(section.lines) for section in sections]

    def format_ending(index: int) -> str:
        return f"  and {len(sections[index].lines) - line_counts[index]:,} more: {more}"

    def measure(index: int) -> int:
        is_cut = line_counts[index] < len(sections[index].lines)
        rows = sum(heights[index][: line_counts[index]]) + end_heights[index]
        return rows + (count_rows(format_ending(index), width) if is_cut else 0)

    while sum(measure(index) + 1 for index in range(len(sections)) if sections[index].all_lines) > max_rows:
        section = max(range(len(sections)), key=lambda index: measure(index) if line_counts[index] > 1 else 0)
        if line_counts[section] <= 1:
            break
        # The line about the hidden lines also takes a row, so it must replace at least two lines.
        is_whole = line_counts[section] == len(sections[section].lines)
        line_counts[section] -= 2 if is_whole and line_counts[section] > 2 else 1
    return [
        [
            *section.lines[: line_counts[index]],
            *([format_ending(index)] if line_counts[index] < len(section.lines) else []),
            *section.end,
        ]
        for index, section in enumerate(sections)
    ]


def shorten_paths(text: str, root: Path) -> str:
    """Return a text in which paths below the working directory, or below its project, are relative paths.

    Args:
        text: A line with any number of absolute paths.
        root: The folder of the project.
    """
    directory = Path.cwd()
    bases = {directory: ""}
    if root != directory and directory.is_relative_to(root):
        bases[root] = f"{os.path.relpath(root, directory)}/"
    for base, short in bases.items():
        if base != Path("/"):
            # Replace only the beginning of a path, because a longer path may contain `base` in its middle. Keep the
            # path in `NAME=path`, because that setting may be used in a different working directory.
            text = re.sub(rf"(?<![^\s'\"=(\[,])(?<![A-Z]=){re.escape(str(base))}/", short.replace("\\", r"\\"), text)
    return text


_has_waiting_line = False


def show_waiting(text: str) -> None:
    """Show on a terminal what a command does before its first output; the line replaces the previous such line."""
    global _has_waiting_line
    width = read_width(sys.stderr)
    if width is None or os.environ.get("TERM") == "dumb":
        return
    # Return the cursor to the start of the line, so that unexpected output overwrites the text.
    sys.stderr.write(f"{_ERASE}{text[: width - 1]}\r")
    sys.stderr.flush()
    _has_waiting_line = True


def stop_waiting() -> None:
    """Erase the line of `show_waiting`."""
    global _has_waiting_line
    if _has_waiting_line:
        _has_waiting_line = False
        sys.stderr.write(_ERASE)
        sys.stderr.flush()


def is_waited_for(words: Sequence[str]) -> bool:
    """Return whether the command with these arguments shows a line while it loads.

    Such a line must not disturb a pager, which reads standard output and draws on the terminal, or be mixed with data.
    """
    if not words or words[0] in _AT_ONCE or not _WITHOUT_WAITING.isdisjoint(words):
        return False
    return "run" in words or read_width(sys.stdout) is not None


def list_named_datasets(words: Sequence[str]) -> str:
    """Return the names that follow `run` on a command line, up to the first option; empty if there are none."""
    names = []
    for word in words[words.index("run") + 1 :] if "run" in words else ():
        if word.startswith("-"):
            break
        names.append(word)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


class _WrappedOutput(TextIOBase):
    """A terminal whose lines are wrapped once they are complete."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal, self._line = terminal, ""

    def write(self, text: str) -> int:
        stop_waiting()
        *lines, self._line = (self._line + text).split("\n")
        width = read_width(self._terminal)
        for line in lines:
            self._terminal.write("\n".join(wrap_line(line, width)) + "\n")
        return len(text)

    def flush(self) -> None:
        self._terminal.write(self._line)
        self._line = ""
        self._terminal.flush()

    def isatty(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._terminal.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._terminal.encoding


@contextmanager
def wrap_output(words: Sequence[str]) -> Iterator[None]:
    """Wrap the lines that the command with these arguments prints to a terminal."""
    if not (_OWN_LAYOUT | _DATA).isdisjoint(words):
        yield
        return
    stdout, err = (
        _WrappedOutput(stream) if stream is not None and stream.isatty() else stream
        for stream in (sys.stdout, sys.stderr)
    )
    with redirect_stdout(stdout), redirect_stderr(err):
        try:
            yield
        finally:
            for stream in (stdout, err):
                if isinstance(stream, _WrappedOutput):
                    stream.flush()
