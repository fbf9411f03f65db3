"""Search for the byte range of a row in a JSON Lines file, for a ranged read.

Only an uncompressed file of UTF-8 lines has such ranges. Line endings are counted from the start of the file, in
bounded memory.

Entry points: `find_line_range`, `explain_missing_lines`.
"""

from pathlib import Path

from dataprep_assets.sources.readers.contents import BOM, HEAD, detect_compression, detect_encoding, is_array

MAX_BYTES = 4 << 30
"""Maximum number of bytes of a file to read per query, which takes a few seconds."""
_BLOCK = 1 << 20


def find_line_range(path: Path, row: int, max_bytes: int = MAX_BYTES) -> tuple[int, int] | None:
    """Return the bytes `[start, stop)` of a row of the file `path`, without its line ending or a byte order mark.

    Args:
        path: The file, uncompressed.
        row: The line, from 1.
        max_bytes: Maximum number of bytes to read.

    Returns None if the row does not end within this number of bytes, or if the file has fewer rows. Raises OSError if
    the file cannot be read.
    """
    start = offset = 0
    # Number of line endings still to be found, including the line ending of the row itself.
    remaining = row
    with open(path, "rb", buffering=0) as file:
        while offset < max_bytes and (data := file.read(min(_BLOCK, max_bytes - offset))):
            line_ends = data.count(b"\n")
            # Only count line endings until a block contains the end of the previous row, because the row begins after
            # that end.
            if line_ends < remaining - 1:
                remaining -= line_ends
                offset += len(data)
                continue
            line_end = -1
            while remaining:
                line_end = data.find(b"\n", line_end + 1)
                if line_end < 0:
                    break
                remaining -= 1
                if not remaining:
                    return _skip_mark(path, start), offset + line_end
                start = offset + line_end + 1
            offset += len(data)
        # Check for the end of the file, because its last line may have no line ending.
        is_at_end = not file.read(1)
        start = _skip_mark(path, start)
    return (start, offset) if remaining == 1 and is_at_end and offset > start else None


def _skip_mark(path: Path, start: int) -> int:
    """Return the start of a line after its byte order mark.

    The mark may be in the first line, or where files were joined.
    """
    with open(path, "rb") as file:
        file.seek(start)
        return start + len(BOM) if file.read(len(BOM)) == BOM else start


def explain_missing_lines(path: Path, compression: str | None) -> str | None:
    """Return the reason why a JSON file has no addressable lines, such as `compressed (zstd)`; None if it has lines.

    `compression` is the compression by its name. Raises OSError if the file cannot be read.
    """
    with open(path, "rb") as file:
        head = file.read(HEAD)
    if (compression := detect_compression(head, compression)) is not None:
        return f"compressed ({compression})"
    if (encoding := detect_encoding(head)) is not None:
        return f"in {encoding.upper()}"
    return "one JSON array" if is_array(head) else None
