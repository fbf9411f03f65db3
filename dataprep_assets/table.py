"""Text tables with aligned columns, shares and times, for commands and pages."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime


def format_share(share: float) -> str:
    """Return a share from 0 to 1 in percent with one digit, such as `0.3%`; a small share is not rounded to 0."""
    return "< 0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


def format_time(created: str) -> str:
    """Return an ISO time with a zone as local time in minutes: `2026-11-28 16:21`."""
    return datetime.fromisoformat(created).astimezone().strftime("%Y-%m-%d %H:%M")


def align_rows(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> Iterator[str]:
    """Yield a line per row with aligned columns; the columns in `right` are right-aligned.

    The last column is not padded, unless it is in `right`.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def fit_columns(
    rows: Sequence[Sequence[str]], optional_columns: Sequence[int], width: int | None
) -> tuple[list[int], list[str]]:
    """Choose the columns of a table that fit into `width`.

    Args:
        rows: The rows; the first one is the header.
        optional_columns: The columns that can be left out, in this order.
        width: The columns of the terminal; None if all columns are shown.

    Returns:
        The indices of the shown columns, and the headers of the others.
    """
    columns, hidden_columns = list(range(len(rows[0]))), list[int]()
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for column in optional_columns:
        if width is None or sum(widths[index] + 2 for index in columns) - 2 <= width:
            break
        columns.remove(column)
        hidden_columns.append(column)
    return columns, [rows[0][column].strip() for column in sorted(hidden_columns)]
