"""Options for reading a source file: the range of rows, the options of its format, and the limit of a record.

This module also has the reasons for which records are refused. The keys of artifacts depend on the options, so every
command needs this module, but only a few need the readers, whose import takes longer.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_RECORD_BYTES = 64 << 20
"""Default limit of a record. Texts are shorter than this, and a worker keeps several records in memory."""
TOO_LARGE, BAD_CSV, NOT_TEXT = "too_large", "bad_csv", "not_text"
"""The reasons, in the ledger, for refusing a record beyond the limit, a record that is not CSV or does not fit the
header, and a record of a crawl without text."""
REASONS = ("bad_json", "invalid_utf8", "not_an_object", "missing_text", "null_text", "text_not_a_string", TOO_LARGE)
"""Reasons for refusing a record, as counted in the ledger."""
ID_REASONS = ("missing_id", "id_not_a_string")
"""Further reasons for refusing a record if a field contains ids."""


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows `first` (1-based) to `stop` (exclusive); None means to the end of the file."""

    first: int = 1
    stop: int | None = None

    def select_rows(self, first: int, count: int) -> slice:
        """Return the slice of the `count` rows starting with row `first` that is in the range."""
        start = min(max(self.first - first, 0), count)
        stop = count if self.stop is None else min(max(self.stop - first, 0), count)
        return slice(start, max(start, stop))


@dataclass(slots=True)
class DrawnRows:
    """A sample of the rows of consecutive files, for one reading. Blank lines are not rows.

    Attributes:
        positions: Positions of the drawn rows, from 0 and ascending.
        total: Number of rows from which they were drawn.
        row_count: Number of rows that were passed.
    """

    positions: "NDArray[np.int64]"
    total: int
    row_count: int = 0

    def pass_rows(self, count: int) -> list[int]:
        """Pass the next `count` rows; return the positions of the drawn ones, relative to the first of these rows."""
        start, self.row_count = self.row_count, self.row_count + count
        bounds = self.positions.searchsorted([start, self.row_count])
        return [int(position) - start for position in self.positions[slice(*bounds)]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """Declared options for files whose names do not determine them. Picklable.

    Attributes:
        text_separator: Separator between two documents of a `.txt`; None if a file is one document.
        csv_delimiter: Delimiter of a `.csv` or `.tsv`; None for a comma or a tab.
        csv_quotes: Whether quotes enclose values of a `.csv` or `.tsv`, or are characters. With None, they enclose
            values, and an ambiguous TSV is refused.
    """

    text_separator: str | None = None
    csv_delimiter: str | None = None
    csv_quotes: bool | None = None

    def settings(self, format: str) -> dict[str, str]:
        """Return the options that change the rows of this format, for artifact keys: name → value, without defaults."""
        # Omit defaults and options of other formats, so that unaffected shards keep their keys.
        options = {
            "text_separator": (self.text_separator, ("txt",)),
            "csv_delimiter": (self.csv_delimiter, CSV),
            # Only `false` changes the rows, because `true` and the default give the same rows.
            "csv_quotes": ("false" if self.csv_quotes is False else None, CSV),
        }
        return {name: value for name, (value, formats) in options.items() if value is not None and format in formats}


CSV = ("csv", "tsv")
ALL_ROWS = RowRange()
AS_NAMED = ReadOptions()
"""Options for reading files as their names indicate."""
