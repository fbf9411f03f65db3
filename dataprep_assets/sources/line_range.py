"""Finds the byte range of a row in a file of JSON lines, for a ranged read.

Only an uncompressed file has one. It is found by counting line ends from the start of the file, in bounded memory.
"""

from pathlib import Path

from dataprep_assets.sources.row_files import BOM

MOST_BYTES = 4 << 30
"""Most bytes of a file to read for one question: a few seconds."""
_BLOCK = 1 << 20


def line_range(path: Path, row: int, most_bytes: int = MOST_BYTES) -> tuple[int, int] | None:
    """The bytes `[start, stop)` of a row of the file `path`, without its line end and without a byte order mark.

    Args:
        path: The file, uncompressed.
        row: The line, from 1.
        most_bytes: How far to read.

    Returns None if the row does not end within that many bytes, or if the file has fewer rows. Raises OSError if the
    file cannot be read.
    """
    start = at = 0
    left = row  # line ends to pass, including that of the row
    with open(path, "rb", buffering=0) as file:
        while at < most_bytes and (data := file.read(min(_BLOCK, most_bytes - at))):
            if not at and data.startswith(BOM) and row == 1:
                start = len(BOM)
            here = data.count(b"\n")
            # The row begins behind the end of the one before it: until a block has that, line ends are only counted.
            if here < left - 1:
                left -= here
                at += len(data)
                continue
            found = -1
            while left:
                found = data.find(b"\n", found + 1)
                if found < 0:
                    break
                left -= 1
                if not left:
                    return start, at + found
                start = at + found + 1
            at += len(data)
        # the last line of a file may have no end
        ended = not file.read(1)
    return (start, at) if left == 1 and ended and at > start else None
