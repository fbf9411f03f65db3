"""Rows of a task file: JSON Lines, parsed strictly, with the line of every defect.

LF, CR LF and a lone CR end a line, as in the trainer's loaders, which read these files in Python's text mode. A line
whose only defect is its line ending is still a row. Defects name keys and never show a row's text.
"""

import codecs
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataprep_assets.bounds import load_untrusted_json

_MAX_DEPTH = 64
"""Maximum number of levels of arrays and objects in a row, far below the limit of Python's parser."""
_LINE = re.compile(rb"([^\r\n]*)(\r\n|\n|\r|\Z)")


@dataclass(frozen=True, slots=True)
class Defect:
    """A defect of a line: its 1-based number and a description. If `is_harmless` is true, the line is still a row."""

    line: int
    detail: str
    is_harmless: bool = False


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One JSON object with its 1-based line number."""

    line: int
    value: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TaskRows:
    """A task file: its rows and defects in file order, its size and SHA-256."""

    rows: tuple[TaskRow, ...]
    defects: tuple[Defect, ...]
    bytes: int
    sha256: str


def read_rows(path: Path) -> TaskRows:
    """Read a task file. Raises OSError if it cannot be read; defects of its content are part of the result."""
    return parse_rows(path.read_bytes())


def parse_rows(data: bytes) -> TaskRows:
    """Return the rows and defects of a task file's bytes. Task files are small, so all rows are in memory."""
    rows: list[TaskRow] = []
    defects: list[Defect] = []
    for line, byte, raw, end in _read_lines(data):
        if end != b"\n":
            detail = "the line end is not LF" if end else "the last line has no line end"
            defects.append(Defect(line, detail, is_harmless=True))
        try:
            rows.append(TaskRow(line, _parse_object(raw, byte)))
        except ValueError as error:
            defects.append(Defect(line, str(error)))
    return TaskRows(rows=tuple(rows), defects=tuple(defects), bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def _read_lines(data: bytes) -> Iterator[tuple[int, int, bytes, bytes]]:
    """Yield number, byte offset, content and end of each line."""
    line, position = 0, 0
    while position < len(data):
        match = _LINE.match(data, position)
        assert match is not None  # the pattern matches at every position
        line += 1
        yield line, position, match[1], match[2]
        position = match.end()


def _parse_object(raw: bytes, byte: int) -> Mapping[str, Any]:
    """Return the object of a line that begins at `byte`. Raises ValueError without the row's text in the message."""
    if byte == 0 and raw.startswith(codecs.BOM_UTF8):
        raise ValueError("the file starts with a byte order mark")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not valid UTF-8 at byte {byte + error.start} of the file") from None
    if not text.strip():
        raise ValueError("the line is blank")
    try:
        value = load_untrusted_json(text, object_pairs_hook=_require_unique_keys, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"invalid JSON at column {error.colno}: {error.msg}") from None
    except _RowError:
        raise
    except ValueError:
        # Python's parser raises ValueError without a position for an integer of more than 4,300 digits.
        # `load_untrusted_json` raises ValueError for JSON that is nested too deeply.
        raise ValueError("nested too deeply, or a number is too long") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    if _is_deeper(value, _MAX_DEPTH):
        raise ValueError("nested too deeply")
    # Only an escape can produce a lone surrogate, because the line itself is UTF-8.
    if "\\u" in text and _has_lone_surrogate(value):
        raise ValueError("half of a surrogate pair, which no tokenizer can encode")
    return value


class _RowError(ValueError):
    """Defect of a row, raised by the hooks of the JSON parser."""


def _require_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise _RowError("a key occurs twice in an object")
    return value


def _refuse_constant(name: str) -> float:
    raise _RowError(f"{name} is not a JSON number")


def _is_deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [c for v in level for c in (v.values() if isinstance(v, dict) else v if isinstance(v, list) else ())]
        if not level:
            return False
    return True


def _has_lone_surrogate(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
