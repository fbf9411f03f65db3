"""Early checks of a declaration against the first rows of files: missing fields, and rows that a run would refuse.

Entry points: `sample_files`, `summarize_first_rows`; `read_first_rows`, `describe_absent_field`, `is_not_parquet`.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dataprep_assets.fields import find_inner_path, find_siblings, value_at
from dataprep_assets.planning.manifest import file_format
from dataprep_assets.sources.readers.read_options import AS_NAMED, ReadOptions
from dataprep_assets.sources.readers.row_files import BadRecord
from dataprep_assets.sources.readers.rows import read_rows

T = TypeVar("T")
ROWS = 1000
"""Number of rows to examine."""
FILES = 32
"""Maximum number of files of a dataset to examine. Each takes a few milliseconds."""
_MAX_NAMES = 8
"""Maximum number of fields in a message."""
_MAGIC = b"PAR1"
_ABSENT: Any = object()


@dataclass(frozen=True, kw_only=True)
class FirstRows:
    """Summary of a file's first rows.

    It has the first bad row, whether any row is readable, and whether these are all rows of the file.
    """

    bad: BadRecord | None
    has_good: bool
    whole: bool


def sample_files(files: Sequence[T]) -> list[T]:
    """Return the files to examine: all, or `FILES` evenly spread ones, including the first and the last."""
    if len(files) <= FILES:
        return list(files)
    return [files[number * (len(files) - 1) // (FILES - 1)] for number in range(FILES)]


def summarize_first_rows(blocks: Iterable[tuple[int, Sequence[BadRecord]]]) -> FirstRows:
    """Summarize the first rows of a file, given the number of good rows and the bad rows of each block."""
    good = count = 0
    bad_record: BadRecord | None = None
    for right, bad_rows in blocks:
        good, count = good + right, count + right + len(bad_rows)
        bad_record = bad_record or next(iter(bad_rows), None)
        if count >= ROWS:
            return FirstRows(bad=bad_record, has_good=good > 0, whole=False)
    return FirstRows(bad=bad_record, has_good=good > 0, whole=True)


def read_first_rows(
    paths: Iterable[Path], reading: ReadOptions = AS_NAMED, *, as_json: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the first rows of files, in order, read as declared. A bad row is yielded without fields.

    For `as_json` see `InputFile`. Raises CorruptSourceError or OSError for a file that cannot be read.
    """
    return itertools.islice(_read_rows(paths, reading, as_json), ROWS)


def _read_rows(paths: Iterable[Path], reading: ReadOptions, as_json: bool) -> Iterator[dict[str, Any]]:
    for path in paths:
        kind, compression = file_format(path.name)
        for block in read_rows(
            path, format=kind, compression=compression, label=path.name, reading=reading, as_json=as_json
        ):
            yield from block.rows
            # Yield an empty row for each bad row, because bad rows count toward the limit.
            yield from ({} for _ in block.bad)


def suggest_delimiter(names: Iterable[str]) -> str:
    """Return a hint if the rows' only field has a name that contains a common delimiter; empty otherwise."""
    only_name = list(names)
    return (
        ". Check `csv_delimiter`"
        if len(only_name) == 1 and any(delimiter in only_name[0] for delimiter in ";\t|,")
        else ""
    )


def describe_absent_field(
    rows: Iterable[dict[str, Any]], key: str, field: str, owner: str, types: tuple[type, ...] = (), *, hidden: bool
) -> str | None:
    """Return a sentence if no row has a field of one of these types; None if a row has it, or if there are no rows.

    Args:
        rows: The first rows to examine.
        key: The key of the declaration that names the field.
        field: The name of the field.
        owner: Owner of the rows in the sentence: `dataset chat`.
        types: Allowed types of the field's values; empty for all types.
        hidden: Whether to omit the names of other fields, which may be sensitive.
    """
    looked_at, is_present = list[dict[str, Any]](), False
    for row in rows:
        value = value_at(row, field, _ABSENT)
        if value is not _ABSENT and (not types or type(value) in types):
            return None
        is_present |= value is not _ABSENT
        looked_at.append(row)
    if not any(looked_at):
        return None
    begins = f"`{key}: {field}`: {owner}: {format_subject(len(looked_at))} has this field"
    if is_present:
        names = " or ".join({str: "text", int: "a whole number"}[kind] for kind in types)
        return f"{begins} as {names}"
    return begins + list_present_fields(looked_at, field, hidden=hidden)


def list_present_fields(rows: Sequence[dict[str, Any]], field: str, *, hidden: bool) -> str:
    """Return the end of a sentence about a missing field: the existing fields at its level.

    Args:
        rows: The examined rows.
        field: Name of the missing field.
        hidden: Whether to omit the names of fields, which may be sensitive.
    """
    subfields, names = find_siblings(rows, field)
    examples = ", ".join(f"`{name}`" for name in names[:_MAX_NAMES]) + (", …" if len(names) > _MAX_NAMES else "")
    inner_path = None if hidden or subfields else find_inner_path(rows, field)
    suggestion = "" if inner_path is None else f"; did you mean `{inner_path}`?"
    have = (
        ""
        if hidden
        else f". `{subfields}` has {examples or 'no fields'}"
        if subfields
        else f"{suggestion or '.'} Their fields: {examples}"
    )
    return have + suggest_delimiter(names)


def format_subject(count: int) -> str:
    """Return the subject of a sentence about `count` examined rows; 1 means that no other row exists."""
    return "no row" if count == 1 else f"none of the first {count:,} rows"


def is_not_parquet(path: Path) -> bool:
    """Return whether a file does not begin and end as Parquet. Raises OSError if it cannot be read."""
    with open(path, "rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return True
        size = file.seek(0, 2)
        file.seek(max(0, size - len(_MAGIC)))
        # The shortest Parquet file has two magic numbers and four bytes with the footer's length.
        return size < 3 * len(_MAGIC) or file.read() != _MAGIC
