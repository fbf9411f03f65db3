"""Parse the Range header of a request as the test servers do."""

import re
from email.message import Message


def parse_range(headers: Message, size: int) -> tuple[int, int] | None:
    """Return the requested bytes `[start, stop)` of an object of `size` bytes; None means all.

    Supports `bytes=3-9`, `bytes=3-` and `bytes=-5` (the last five). `start` may be beyond the end of the object.
    """
    span = re.fullmatch(r"bytes=(\d*)-(\d*)", headers.get("Range", ""))
    if span is None or not (span[1] or span[2]):
        return None
    if not span[1]:
        return max(0, size - int(span[2])), size
    return int(span[1]), min(size, int(span[2]) + 1) if span[2] else size
