"""Where a row of a file of JSON lines lies in it: the byte range that a ranged read takes.

Only an uncompressed file has one. It is found by counting line ends from the start of the file, in bounded memory.
"""

from pathlib import Path

__all__ = ["MOST_BYTES", "line_range"]

MOST_BYTES = 4 << 30
"""Bytes of a file that are read for one question: some seconds."""
_BLOCK = 1 << 20
_BOM = b"\xef\xbb\xbf"


def line_range(path: Path, row: int, most_bytes: int = MOST_BYTES) -> tuple[int, int] | None:
    """The bytes `[start, stop)` of a row of the file `path`, without its line end and without a byte order mark.

    Args:
        path: The file, uncompressed.
        row: The line, from 1.
        most_bytes: How far to read.

    None when the row does not end within that many bytes, or the file has fewer rows. Raises OSError.
    """
    start = at = 0
    left = row  # line ends to pass, that of the row the last
    with open(path, "rb", buffering=0) as file:
        while at < most_bytes and (data := file.read(min(_BLOCK, most_bytes - at))):
            if not at and data.startswith(_BOM) and row == 1:
                start = len(_BOM)
            here = data.count(b"\n")
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
