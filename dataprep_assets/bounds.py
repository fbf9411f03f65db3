"""Limits on the resources that a process may use for untrusted data, and reports of its position in the data.

A file can be crafted so that reading it takes all memory, or never ends. Therefore each process that reads data has
bounds (`execution.watch` enforces them). A process reports its position (`report_position`: a file and a row) and its
progress (`report_progress`). A process that exceeds a bound is terminated, and its task is retried once by itself,
with a report of each row. If it exceeds the bound again, the error names the position.

The files of a tokenizer are programs: an expression may run forever, a normalizer may take gigabytes, and unexpected
content may crash a library's process. Therefore they are tried in a separate process with limits (`run_limited`).

Entry points: `Bounds`, `report_position`, `report_activity`, `report_progress`, `report_to`, `must_read_single_rows`,
`parse_json`, `load_untrusted_json`, `disable_core_dumps`, `return_freed_memory`, `run_limited`, `limit_process`.
"""

import ctypes
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dataprep_assets.errors import ConfigError, count_of

MEMORY, STALL = "DATAPREP_MEMORY_BYTES", "DATAPREP_STALL_SECONDS"
_MEMORY_BYTES = 4 << 30
"""At least four times the memory that any file of the samples, test corpora or benchmarks needs."""
_STALL_SECONDS = 1_800
STRING = rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)'
"""Matches a JSON string, or an unterminated one at the end of the text, in linear time and constant memory."""
_STRING = re.compile(STRING, re.DOTALL)
MAX_VALUES = 4 << 20
"""Maximum number of values in one JSON text: each takes up to 84 bytes once parsed, however short it is in the file."""
MAX_PARSED = 84 * MAX_VALUES
"""Maximum memory in bytes for the objects of one text or row."""
_ALIVE_SECONDS = 1.0


@dataclass(frozen=True)
class Bounds:
    """Limits on the resources of a process.

    Attributes:
        memory_bytes: Private memory in bytes, without the pages of files, which the kernel can reclaim.
        stall_seconds: CPU seconds without progress. Waiting for a disk or a network does not count.
    """

    memory_bytes: int
    stall_seconds: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Bounds":
        """Return the bounds that the environment sets; raise ConfigError for an invalid value."""
        return cls(
            _read_limit(environment, MEMORY, _MEMORY_BYTES, 256 << 20, "bytes"),
            _read_limit(environment, STALL, _STALL_SECONDS, 1, "seconds"),
        )

    def describe_exceeded_bound(self, memory_bytes: int, stall_seconds: float) -> str | None:
        """Return the exceeded bound with its limit and the remedy, as a sentence; None if no bound is exceeded."""
        if memory_bytes > self.memory_bytes:
            took, limit, name = f"{count_of(memory_bytes, 'byte')} of memory", f"{self.memory_bytes:,}", MEMORY
        elif stall_seconds > self.stall_seconds:
            took, name = f"{stall_seconds:,.0f} seconds of CPU time without progress", STALL
            limit = f"{self.stall_seconds:,}"
        else:
            return None
        return f"used {took}, but a process may use at most {limit}. Remove the file, or raise {name}"


def _read_limit(environment: Mapping[str, str], name: str, default: int, minimum: int, unit: str) -> int:
    text = environment.get(name) or str(default)
    # Exclude digits of other scripts, spaces and underscores first, because `int` also accepts them.
    if not text.isascii() or not text.isdigit() or int(text) < minimum:
        raise ConfigError(f"{name}={text!r}: must be a whole number of {unit}, at least {minimum:,}")
    return int(text)


class _Report:
    """Last reported position of this process, and the receiver of its reports."""

    send: Callable[[str], None] | None = None
    # `where` is the position of the last report, and `when` its monotonic time. `report_progress` repeats that report.
    where = ""
    when = 0.0
    reports_each_row = False


def report_position(label: str, row: int, byte: int = -1) -> None:
    """Report the row (from 1) of the file `label` that this process reads next, and its first byte, unless that is -1.

    This takes a few microseconds, so call it once per block.
    """
    if _Report.send is not None:
        begins = f", byte {byte:,}" if byte >= 0 else ""
        _Report.where = f"{label}, {'row' if _Report.reports_each_row else 'from row'} {row:,}{begins}"
        _Report.when = time.monotonic()
        _Report.send(_Report.where)


def report_activity(activity: str) -> None:
    """Report work that has no rows. A call costs as much as a call of `report_position`."""
    if _Report.send is not None:
        _Report.where, _Report.when = activity, time.monotonic()
        _Report.send(activity)


def report_progress() -> None:
    """Report progress, at most once per second."""
    if _Report.send is not None and (now := time.monotonic()) - _Report.when > _ALIVE_SECONDS:
        _Report.when = now
        _Report.send(_Report.where)


@contextmanager
def report_to(send_report: Callable[[str], None], *, reports_each_row: bool = False) -> Iterator[None]:
    """Pass the reports of this process to `send_report` in this block; `reports_each_row` makes readers report rows."""
    before = _Report.send, _Report.where, _Report.reports_each_row
    _Report.send, _Report.where, _Report.reports_each_row = send_report, "", reports_each_row
    try:
        yield
    finally:
        _Report.send, _Report.where, _Report.reports_each_row = before


def must_read_single_rows() -> bool:
    """Return whether this process retries work that exceeded its bound: readers then yield and report single rows."""
    return _Report.reports_each_row


def has_too_many_values(data: bytes) -> bool:
    """Return whether a JSON text would take many times its length once it is parsed."""
    # Check the length first, because that is cheapest: a value and its separator take at least two bytes. Then count
    # all commas and brackets. This count may be too high, because it includes those inside strings, but it is never too
    # low.
    if len(data) < 2 * MAX_VALUES or _count_values(data) <= MAX_VALUES:
        return False
    # Each string has two unescaped quotes, so more than two quotes per allowed value mean too many strings.
    if data.count(b'"') - data.count(b'\\"') > 2 * MAX_VALUES:
        return True
    # Remove the strings before counting, because commas and brackets inside strings separate no values.
    return _count_values(_STRING.sub(b"", data)) > MAX_VALUES


def _count_values(data: bytes) -> int:
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def parse_json(data: bytes, max_bytes: int) -> Any:
    """Parse JSON of at most `max_bytes` bytes and `MAX_VALUES` values; raise ValueError if it is larger."""
    if len(data) > max_bytes:
        raise ValueError(f"{count_of(len(data), 'byte')}, but at most {max_bytes:,} are allowed")
    if has_too_many_values(data):
        raise ValueError(f"more than {MAX_VALUES:,} values")
    return load_untrusted_json(data)


def load_untrusted_json(text: str | bytes, **hooks: Any) -> Any:
    """Parse untrusted JSON like `json.loads`; also raise ValueError if it is nested too deeply."""
    try:
        return json.loads(text, **hooks)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def disable_core_dumps() -> None:
    """Disable core dumps of this process, because they would contain documents and secret keys."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def return_freed_memory() -> None:
    """Return freed memory to the system.

    The C library of GNU keeps it, for example 200 MB after a tokenizer was loaded and compared. Does nothing with
    other libraries.
    """
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def run_limited(
    module: str, arguments: tuple[Any, ...], *, wall_seconds: float, environment: Mapping[str, str]
) -> tuple[int, str]:
    """Run the function `main` of a module in a separate process.

    Returns the exit code of the process and its standard output. The error output is discarded.

    Args:
        module: Full name of the module.
        arguments: Arguments of the function. Their `repr` must be valid Python.
        wall_seconds: Duration after which the process is killed.
        environment: Additional environment variables.
    """
    path = os.pathsep.join(entry for entry in sys.path if entry)
    process = subprocess.Popen(
        [sys.executable, "-c", f"from {module} import main; main{arguments}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | environment | {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
    )
    try:
        output, _ = process.communicate(timeout=wall_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
    return process.returncode, output.decode(errors="replace").strip()


def limit_process(memory_bytes: int, cpu_seconds: int) -> None:
    """Limit the address space and the CPU time of this process, and disable core files."""
    limits = ((resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CPU, cpu_seconds), (resource.RLIMIT_CORE, 0))
    for limit, value in limits:
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
