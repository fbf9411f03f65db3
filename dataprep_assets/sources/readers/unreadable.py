"""The error for a file without readable rows.

The file's content differs from its name, so no policy may drop its rows as bad rows.

Entry points: `unreadable`, `place_of`, `shape_of`.
"""

from contextlib import suppress
from pathlib import Path

from dataprep_assets.errors import BadRecordError, SourceError
from dataprep_assets.sources.readers.blocks import TextReader
from dataprep_assets.sources.readers.contents import Kind, shape
from dataprep_assets.sources.readers.row_files import BadRecord

ADVICE = "Correct the source, or set `bad_records: {policy: drop}` to count and skip such rows"
"""Remedy for a bad row in a file that has good ones."""
_TABLES = ("parquet", "arrow")


def place_of(bad: BadRecord, asked: str = "") -> str:
    """Return the position and the reason of a bad record in a sentence; `asked` names the key of a missing field."""
    byte = f", byte {bad.byte}" if bad.byte >= 0 else ""  # -1 if the format has no byte positions
    return f"row {bad.row}{byte}: {bad}{asked}"


def shape_of(path: Path, format: str, compression: str | None) -> Kind | None:
    """Return the kind of a file's content if no row could be used (`contents.shape`); None if it is unknown."""
    if format in _TABLES:
        return None
    with suppress(SourceError, OSError):  # the file may have been removed or damaged since it was read
        return shape(next(iter(TextReader(path, compression)), b""))
    return None


def unreadable(
    path: Path, format: str, compression: str | None, label: str, first: str, *, whole: bool = True
) -> BadRecordError:
    """Return the error for a file without readable rows, with its kind of content and how to convert it.

    Args:
        path: The file.
        format: Its format, by its name.
        compression: Compression of the whole file, by its name.
        label: Its name in messages.
        first: The `place_of` its first row.
        whole: Whether all rows were examined, instead of only the first ones.
    """
    kind = shape_of(path, format, compression)
    advice = f"; {kind}" if kind is not None else ". Correct the file, or remove it from the source"
    summary = "none of its rows can be read" if whole else "none of its first rows can be read"
    return BadRecordError(f"{label}: {summary}. First error: {first}{advice}", file=label)
