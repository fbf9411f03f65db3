"""What a process may take for data that others wrote, where it is at in them, and the words for both.

A file can be made so that reading it takes all memory, or for ever; so each process that reads has a bound, whatever
the cause (`execution.watch` holds it to that). A process says where it is at (`report_position`: a file and a row) and
that it is getting on (`alive`); what exceeds the bound is ended, tried once more alone and `closely`, and then named.

Entry points: `Bounds`, `report_position`, `at_work_on`, `alive`, `told_to`, `is_close`, `parsed`, `json_of`.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dataprep_assets.errors import ConfigError, count_of

MEMORY, STALL = "DATAPREP_MEMORY_BYTES", "DATAPREP_STALL_SECONDS"
_MEMORY_BYTES = 4 << 30
"""At least four times what any file of the samples, test corpora or benchmarks needs."""
_STALL_SECONDS = 1_800
STRING = rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)'
"""Matches a JSON string, or an unterminated one at the end of the text, in linear time and constant memory."""
_STRING = re.compile(STRING, re.DOTALL)
MOST_VALUES = 4 << 20
"""Maximum number of values in one JSON text: each takes up to 84 bytes once parsed, however short it is in the file."""
MOST_PARSED = 84 * MOST_VALUES
"""Maximum memory in bytes for the objects of one text or row."""
_ALIVE_SECONDS = 1.0


@dataclass(frozen=True)
class Bounds:
    """Limits of the resources of a process.

    Attributes:
        memory_bytes: Of memory of its own: without the pages of files, which the kernel takes back when it likes.
        stall_seconds: Of CPU time without getting on. Waiting for a disk or a network takes none.
    """

    memory_bytes: int
    stall_seconds: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Bounds":
        """The bounds that the environment sets; raises ConfigError for a value that is no number of them."""
        return cls(
            _number(environment, MEMORY, _MEMORY_BYTES, 256 << 20, "bytes"),
            _number(environment, STALL, _STALL_SECONDS, 1, "seconds"),
        )

    def exceeded(self, memory_bytes: int, stall_seconds: float) -> str | None:
        """What of the bounds these exceed, which limit that is and how to raise it; None if they do not."""
        if memory_bytes > self.memory_bytes:
            took, most, name = f"{count_of(memory_bytes, 'byte')} of memory", f"{self.memory_bytes:,}", MEMORY
        elif stall_seconds > self.stall_seconds:
            took, name = f"{stall_seconds:,.0f} seconds of CPU time without progress", STALL
            most = f"{self.stall_seconds:,}"
        else:
            return None
        return f"took {took}, but one process may take at most {most}. Remove the file, or raise {name}"


def _number(environment: Mapping[str, str], name: str, default: int, least: int, unit: str) -> int:
    text = environment.get(name) or str(default)
    # `int` alone would take digits of any script, blanks and underscores
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise ConfigError(f"{name}={text!r}: must be a whole number of {unit}, at least {least:,}")
    return int(text)


class _Report:
    """What this process says of itself, and to whom."""

    tell: Callable[[str], None] | None = None
    # what was told last, and when, by the monotonic clock: `alive` tells it again
    where = ""
    when = 0.0
    close = False


def report_position(label: str, row: int, byte: int = -1) -> None:
    """Say what this process reads next: the 1-based row of the file `label` and, unless -1, the byte where it begins.

    Costs some microseconds: to be called for each block.
    """
    if _Report.tell is not None:
        begins = f", byte {byte:,}" if byte >= 0 else ""
        _Report.where = f"{label}, {'row' if _Report.close else 'from row'} {row:,}{begins}"
        _Report.when = time.monotonic()
        _Report.tell(_Report.where)


def at_work_on(what: str) -> None:
    """Say what this process is at that has no rows; costs as much as `report_position`."""
    if _Report.tell is not None:
        _Report.where, _Report.when = what, time.monotonic()
        _Report.tell(what)


def alive() -> None:
    """Say that this process is getting on, once a second at most."""
    if _Report.tell is not None and (now := time.monotonic()) - _Report.when > _ALIVE_SECONDS:
        _Report.when = now
        _Report.tell(_Report.where)


@contextmanager
def told_to(tell: Callable[[str], None], *, closely: bool = False) -> Iterator[None]:
    """Inside, what this process says of itself is told to `tell`; `closely`, a block has one row."""
    before = _Report.tell, _Report.where, _Report.close
    _Report.tell, _Report.where, _Report.close = tell, "", closely
    try:
        yield
    finally:
        _Report.tell, _Report.where, _Report.close = before


def is_close() -> bool:
    """Whether this process tries again what exceeded its bound: then readers yield, and say, each row by itself."""
    return _Report.close


def has_too_many_values(data: bytes) -> bool:
    """Whether a JSON text would take many times its length once it is parsed."""
    # Cheapest first: a value and what parts it from the next take two bytes. Then commas and brackets are counted
    # wherever they are: no value is missed, but those in strings count as well.
    if len(data) < 2 * MOST_VALUES or _values(data) <= MOST_VALUES:
        return False
    if data.count(b'"') - data.count(b'\\"') > 2 * MOST_VALUES:  # that many strings are values by themselves
        return True
    return _values(_STRING.sub(b"", data)) > MOST_VALUES  # the content of strings does not count


def _values(data: bytes) -> int:
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def parsed(data: bytes, most_bytes: int) -> Any:
    """The value of a JSON text of at most that many bytes, and `MOST_VALUES` values; else raises ValueError."""
    if len(data) > most_bytes:
        raise ValueError(f"{count_of(len(data), 'byte')}, but at most {most_bytes:,} are allowed")
    if has_too_many_values(data):
        raise ValueError(f"more than {MOST_VALUES:,} values")
    return json_of(data)


def json_of(text: str | bytes, **hooks: Any) -> Any:
    """As `json.loads`, for what others wrote: one that is nested too deeply for it raises ValueError, as all else that
    cannot be read does."""
    try:
        return json.loads(text, **hooks)
    except RecursionError:
        raise ValueError("nested too deeply") from None
