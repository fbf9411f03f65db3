"""Digests of files and of values.

Everything that identifies content goes through here, so that the same content has the same digest in every
process and on every machine: files by SHA-256 of their bytes, values by SHA-256 of canonical JSON.
"""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dataprep_assets.bounds import alive

_BLOCK = 1 << 18
"""Bytes read at once: a buffer that stays in the CPU's cache, and is cheap to clear."""


def sha256_file(
    path: Path, start: int = 0, stop: int | None = None, opener: Callable[[str, int], int] | None = None
) -> str:
    """SHA-256 (hex) of the bytes `[start, stop)` of the file `path`; of all of it by default.

    `opener` opens it, as in `open`.
    """
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0, opener=opener) as file:
        file.seek(start)
        left = (stop if stop is not None else 1 << 62) - start
        # most artifacts have small files, for which clearing a large buffer would take longer than the digest
        there = os.fstat(file.fileno()).st_size - start
        view = memoryview(bytearray(max(1, min(_BLOCK, there))))
        while left > 0 and (count := file.readinto(view[: min(left, len(view))])):
            digest.update(view[:count])
            # a digest of terabytes takes as long as a stall that is ended: say that this process gets on (`bounds`)
            alive()
            left -= count
    return digest.hexdigest()


def canonical_json(value: Any) -> bytes:
    """The canonical JSON of a value: sorted keys, no spaces, UTF-8, no NaN.

    Raises TypeError or ValueError for values that cannot be written so.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_value(value: Any) -> str:
    """SHA-256 (hex) of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value)).hexdigest()
