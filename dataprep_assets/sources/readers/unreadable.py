"""The error for a file without readable rows.

The file's content differs from its name, so no policy may drop its rows as bad rows.

Entry points: `build_unreadable_error`, `describe_place`, `detect_file_shape`; `format_budget_advice`.
"""

import math
from contextlib import suppress
from pathlib import Path

from dataprep_assets.errors import BadRecordError, SourceError
from dataprep_assets.sources.readers.blocks import TextReader
from dataprep_assets.sources.readers.contents import ContentKind, detect_shape
from dataprep_assets.sources.readers.row_files import BadRecord

ADVICE = "Correct the source, or set `bad_records: {policy: drop, budget: 0.01}` to count and skip up to 1% of rows"
"""Remedy for a bad row in a file that has good ones."""
_TABLES = ("parquet", "arrow")


def format_budget_advice(bad_rows: int, rows: int) -> str:
    """Return the remedy for more bad rows than the budget allows: a larger budget, rounded up to thousandths."""
    budget = math.ceil(1000 * bad_rows / rows) / 1000
    return f"Correct the source, or set `bad_records: {{policy: drop, budget: {budget:g}}}`"


def describe_place(record: BadRecord, name: str = "") -> str:
    """Return the position and the reason of a bad record in a sentence; `name` names the key of a missing field."""
    byte = f", byte {record.byte}" if record.byte >= 0 else ""  # the byte is -1 if the format has no byte positions
    return f"row {record.row}{byte}: {record}{name}"


def detect_file_shape(path: Path, format: str, compression: str | None) -> ContentKind | None:
    """Return the kind of content of a file without usable rows (`contents.detect_shape`); None if it is unknown."""
    if format in _TABLES:
        return None
    with suppress(SourceError, OSError):  # the file may have been removed or damaged since it was read
        return detect_shape(next(iter(TextReader(path, compression)), b""))
    return None


def build_unreadable_error(
    path: Path, format: str, compression: str | None, label: str, first: str, *, is_whole: bool = True
) -> BadRecordError:
    """Return the error for a file without readable rows, with its kind of content and how to convert it.

    Args:
        path: The file.
        format: Its format, by its name.
        compression: Compression of the whole file, by its name.
        label: Its name in messages.
        first: The position and defect of the first row, from `describe_place`.
        is_whole: Whether all rows were examined, instead of only the first ones.
    """
    kind = detect_file_shape(path, format, compression)
    advice = f"; {kind}" if kind is not None else ". Correct the file, or remove it from the source"
    summary = "none of its rows can be read" if is_whole else "none of its first rows can be read"
    return BadRecordError(f"{label}: {summary}. First error: {first}{advice}", file=label)
