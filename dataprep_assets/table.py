"""Rows of text in columns, as commands and pages print them."""

from collections.abc import Collection, Iterator, Sequence


def align_rows(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> Iterator[str]:
    """Yield a line per row, its cells as wide as their column; the columns `right` are numbers, set to the right.

    The last column is as wide as its cells are, unless it is in `right`.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
