"""`origins.npy`: the source row of each segment of packed rows, for lookups in both directions.

An int64 array with one line per segment, in the order of the rows. Its columns depend on the writer: source, row and
sequence number for chats; record, note, chunk and patient for notes. The position of a segment in its row follows from
the rows.

Entry points: `write_origins`, `read_origins`, `parse_origins`.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import FormatError, count_of

ORIGINS = "origins.npy"
Origins = NDArray[np.int64]
"""Shape `(segments, columns)`."""


def write_origins(path: Path, columns: list[NDArray[Any]]) -> None:
    """Write the origins of all segments; `columns` has one array per column."""
    np.save(path, np.column_stack(columns).astype("<i8"))


def read_origins(path: Path, columns: int) -> Origins:
    """Read the origins from a file. Raises FormatError if it is damaged, or has a different shape or dtype."""
    return parse_origins(path.read_bytes(), columns, str(path))


def parse_origins(content: bytes, columns: int, location: str) -> Origins:
    """Parse the bytes of a file; `location` names it in errors. Raises FormatError as `read_origins` does."""
    file = io.BytesIO(content)
    try:
        origins: NDArray[Any] = np.load(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise FormatError(f"{location}: cannot be read: {error}. Rebuild the artifact") from error
    if origins.ndim != 2 or origins.shape[1] != columns or origins.dtype != np.int64:
        raise FormatError(
            f"{location}: {origins.dtype} of shape {origins.shape}, expected int64 of shape (n, {columns}). Rebuild "
            "the artifact"
        )
    # Check for extra bytes, because NumPy stops at the size in the header and ignores the bytes that follow.
    if surplus_bytes := len(content) - file.tell():
        raise FormatError(f"{location}: {count_of(surplus_bytes, 'extra byte')} after the array. Rebuild the artifact")
    return origins
