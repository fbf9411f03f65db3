"""Errors for source files without a readable row, and for rows that a run would refuse."""

from collections.abc import Callable
from dataclasses import replace

from dataprep_assets.errors import BadRecordError
from dataprep_assets.sources.readers.first_rows import FirstRows
from dataprep_assets.sources.readers.read_options import RowRange
from dataprep_assets.sources.readers.records import RecordFields
from dataprep_assets.sources.readers.unreadable import ADVICE, build_unreadable_error, describe_place
from dataprep_assets.stream.token_stream import SourcePart


def find_unreadable_error(
    part: SourcePart, first: str, has_rows: Callable[[SourcePart], bool]
) -> BadRecordError | None:
    """Return the error of a file without a readable row; None if any row is readable, even outside the part.

    Args:
        part: The file, or some of its rows, without a readable row.
        first: Position of the first bad row, and the reason (`describe_place`).
        has_rows: Returns whether any row of a file can be read.
    """
    # If the file has readable rows elsewhere, do not fail, because only this range of rows is unreadable.
    if has_rows(replace(part, rows=RowRange())):
        return None
    return build_unreadable_error(part.path, part.format, part.compression, part.label, first)


def explain_refusal(part: SourcePart, first_rows: FirstRows, *, policy: str, fields: RecordFields | None = None) -> str:
    """Return the reason why a run would refuse a file with these first rows; empty if this policy may accept the file.

    `fields` are the fields that were read from the records, if they are known.
    """
    if first_rows.bad is None or (first_rows.has_good and policy == "drop"):
        return ""
    location = describe_place(first_rows.bad, "" if fields is None else fields.format_key_hint(first_rows.bad.reason))
    if first_rows.has_good:
        return f"{part.label}: {location}. {ADVICE}"
    return str(
        build_unreadable_error(
            part.path, part.format, part.compression, part.label, location, is_whole=first_rows.whole
        )
    )
