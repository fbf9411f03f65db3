"""`origins.npy`: the source row of each segment of packed rows, which leads from a row to its source and back.

An int64 array of a line per segment, in the order of the rows. What its columns are says who writes it: source, row and
number of a chat's sequence; record, note, chunk and patient of a note. Where a segment is in its row follows from the
rows.

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
    """Write the origins of all segments, given by column."""
    np.save(path, np.column_stack(columns).astype("<i8"))


def read_origins(path: Path, columns: int) -> Origins:
    """Read the origins of a file; raises FormatError if it is damaged, or has another shape or dtype."""
    return parse_origins(path.read_bytes(), columns, str(path))


def parse_origins(content: bytes, columns: int, where: str) -> Origins:
    """Parse the bytes of a file, which errors call `where`; raises as `read_origins`."""
    file = io.BytesIO(content)
    try:
        origins: NDArray[Any] = np.load(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise FormatError(f"{where}: cannot be read: {error}. Rebuild it") from error
    if origins.ndim != 2 or origins.shape[1] != columns or origins.dtype != np.int64:
        raise FormatError(
            f"{where}: {origins.dtype} of shape {origins.shape}, expected int64 of shape (n, {columns}). Rebuild it"
        )
    # NumPy reads as much as the header says, and ignores what follows
    if behind := len(content) - file.tell():
        raise FormatError(f"{where}: {count_of(behind, 'extra byte')} after the array. Rebuild it")
    return origins
