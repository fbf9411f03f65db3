"""Text tables with aligned columns, for commands and pages."""

from collections.abc import Collection, Iterator, Sequence


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
