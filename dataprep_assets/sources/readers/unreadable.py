"""The error of a file of which no row can be read: it is not what its name says, so no policy may drop it as bad rows.

Entry points: `unreadable`, `place_of`, `shape_of`.
"""

from contextlib import suppress
from pathlib import Path

from dataprep_assets.errors import BadRecordError, SourceError
from dataprep_assets.sources.readers.blocks import TextReader
from dataprep_assets.sources.readers.contents import Kind, shape
from dataprep_assets.sources.readers.row_files import BadRecord

ADVICE = "Correct the source, or set `bad_records: {policy: drop}` to count and skip such rows"
"""What to do about a bad row in a file that has good ones."""
_TABLES = ("parquet", "arrow")


def place_of(bad: BadRecord, asked: str = "") -> str:
    """Return where a bad record is and why it is one, in a sentence; `asked` names the key of a field that it lacks."""
    byte = f", byte {bad.byte}" if bad.byte >= 0 else ""  # -1 where the format has no positions
    return f"row {bad.row}{byte}: {bad}{asked}"


def shape_of(path: Path, format: str, compression: str | None) -> Kind | None:
    """Return what the content of a file is of which no row could be used (`contents.shape`); None: nothing that is
    known."""
    if format in _TABLES:
        return None
    with suppress(SourceError, OSError):  # it was read before, and is gone or damaged since
        return shape(next(iter(TextReader(path, compression)), b""))
    return None


def unreadable(
    path: Path, format: str, compression: str | None, label: str, first: str, *, whole: bool = True
) -> BadRecordError:
    """The error of a file without one row that can be read, with what it is and how to convert it.

    Args:
        path: The file.
        format: Its format, by its name.
        compression: That of the whole file, by its name.
        label: Its name in messages.
        first: The `place_of` its first row.
        whole: Whether all of its rows were looked at, and not only the first ones.
    """
    kind = shape_of(path, format, compression)
    advice = f"; {kind}" if kind is not None else ". Correct the file, or remove it from the source"
    summary = "none of its rows can be read" if whole else "none of its first rows can be read"
    return BadRecordError(f"{label}: {summary}. First error: {first}{advice}", file=label)
