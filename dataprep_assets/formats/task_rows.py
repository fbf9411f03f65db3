"""Rows of a task file: JSON lines read strictly, with the line and byte of every defect.

The trainer's loaders read these files in Python's text mode, where LF, CR LF and a lone CR all end a line; so they do
here. Everything that a loader would tolerate or misread is a defect here: a byte order mark, carriage returns, blank
lines, a last line without its end, bytes that are not UTF-8, invalid JSON, NaN and infinities, values that are not
objects, duplicate keys, halves of surrogate pairs. Rows that are still readable are returned with their defects, so
that one defect does not hide others.

Defects name keys and never show a row's text. Source: Rongite/Synthetic_Data_for_ZO,
`PromptZO/MeZO/large_models/tasks.py`, the `load_jsonl` of each dataset class.
"""

import codecs
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

DefectKind = Literal[
    "bom",
    "not_utf8",
    "carriage_return",
    "unterminated",
    "blank",
    "bad_json",
    "cut_short",
    "not_an_object",
    "constant",
    "duplicate_key",
    "lone_surrogate",
]
_DEPTH = 64
"""Most levels of arrays and objects in a row; far fewer than Python's own parser accepts, so that it never fails."""
_LINE = re.compile(rb"([^\r\n]*)(\r\n|\n|\r|\Z)")


@dataclass(frozen=True, slots=True)
class Defect:
    """What is wrong with a line: 1-based line, byte offset of the line in the file, kind, and a few words."""

    line: int
    byte: int
    kind: DefectKind
    detail: str

    def __str__(self) -> str:
        return f"line {self.line} (byte {self.byte}) {self.detail}"


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One object, with its 1-based line and the byte offset of that line."""

    line: int
    byte: int
    value: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TaskRows:
    """A task file as read: its rows and defects in file order, its number of lines, its size and SHA-256."""

    rows: tuple[TaskRow, ...]
    defects: tuple[Defect, ...]
    lines: int
    bytes: int
    sha256: str

    def of_kind(self, *kinds: DefectKind) -> list[Defect]:
        """The defects of these kinds."""
        return [d for d in self.defects if d.kind in kinds]


def read_rows(path: Path) -> TaskRows:
    """Read a task file. Raises OSError if it cannot be read; whatever its content, defects are part of the result."""
    return parse_rows(path.read_bytes())


def parse_rows(data: bytes) -> TaskRows:
    """The rows and defects of a task file's bytes. Task files are small: all of it is held in memory."""
    rows: list[TaskRow] = []
    defects: list[Defect] = []
    lines = 0
    for line, byte, raw, end in _lines(data):
        lines = line
        value = _judge(line, byte, raw, end, defects)
        if value is not None:
            rows.append(TaskRow(line, byte, value))
    return TaskRows(
        rows=tuple(rows),
        defects=tuple(defects),
        lines=lines,
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def _lines(data: bytes) -> Iterator[tuple[int, int, bytes, bytes]]:
    """Number, byte offset, content and end of each line."""
    line, position = 0, 0
    while position < len(data):
        found = _LINE.match(data, position)
        assert found is not None  # the pattern matches anywhere
        line += 1
        yield line, position, found[1], found[2]
        position = found.end()


def _judge(line: int, byte: int, raw: bytes, end: bytes, defects: list[Defect]) -> Mapping[str, Any] | None:
    """The object of one line, or None; appends the line's defects to `defects`."""

    def bad(kind: DefectKind, detail: str) -> None:
        defects.append(Defect(line, byte, kind, detail))

    start = byte
    if byte == 0 and raw.startswith(codecs.BOM_UTF8):
        bad("bom", "starts with a byte order mark")
        raw, start = raw[len(codecs.BOM_UTF8) :], len(codecs.BOM_UTF8)
    if b"\r" in end:
        bad("carriage_return", "ends with CR LF instead of LF" if end == b"\r\n" else "ends with CR instead of LF")
    if not end:
        bad("unterminated", "is the last and has no line end")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        bad("not_utf8", f"is not UTF-8 at byte {start + error.start} of the file")
        return None
    if not text.strip():
        bad("blank", "is blank")
        return None
    repeated: list[str] = []
    constants: list[str] = []
    try:
        value = _parse(text, repeated, constants)
    except RecursionError:
        bad("bad_json", "is nested too deeply")
        return None
    except json.JSONDecodeError as error:
        # what ends too early, in a last line without its end, was cut and not mistyped
        if not end and (error.pos >= len(text.rstrip()) or "Unterminated" in error.msg):
            bad("cut_short", "is the last and is cut short")
        else:
            bad("bad_json", f"is not JSON at column {error.colno}: {error.msg}")
        return None
    except ValueError:
        # an integer of more than 4,300 digits, which Python does not convert
        bad("bad_json", "is not JSON: a number is too long")
        return None
    if not isinstance(value, dict):
        bad("not_an_object", f"is {_json_type(value)}, not an object")
        return None
    if _nested_deeper(value, _DEPTH):
        bad("bad_json", "is nested too deeply")
        return None
    if constants:
        bad("constant", f"holds {constants[0]}, which Python's parser takes and JSON does not have")
    if repeated:
        bad("duplicate_key", f"gives key {repeated[0]!r} twice")
    # only an escape can make one, because the line itself is UTF-8; looking for it costs writing the row again
    if "\\u" in text and _has_lone_surrogate(value):
        bad("lone_surrogate", "holds half of a surrogate pair, which no tokenizer can encode")
    return value


def _parse(text: str, repeated: list[str], constants: list[str]) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(items)  # the last of duplicate keys counts, as in the loaders
        if len(made) < len(items):
            keys = [key for key, _ in items]
            repeated.append(next(key for i, key in enumerate(keys) if key in keys[:i]))
        return made

    def constant(name: str) -> float:
        constants.append(name)
        return float(name)

    return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)


def _json_type(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _nested_deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            child for v in level for child in (v.values() if isinstance(v, dict) else v if isinstance(v, list) else ())
        ]
        if not level:
            return False
    return True


def _has_lone_surrogate(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
