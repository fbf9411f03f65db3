"""Document ends: the end of each document in a token stream. Every index is derived from them.

The file has no header and contains one little-endian uint64 per document: the number of tokens from the beginning of
the stream to the document's end, separator included. It has no leading 0. Megatron's ``.idx``, datatrove's
``.ds.index`` (the same bytes), segment ids and positions are all derived from it.

Invariants: entries never decrease (two equal neighbors are an empty document without a separator). The last entry is
the number of tokens in the stream. A file without entries means a stream without tokens. These functions work block by
block, so memory does not grow with the number of documents. They use uint64, so nothing wraps at 2**31 or 2**32 tokens.

Entry points: `write`, `open_ends`, `validate`, `concatenate`; `check_blocks` for modules that derive an index.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.formats import flat_bins

BLOCK = 1 << 18
"""Number of documents per block: 2 MiB of uint64."""

Ends = npt.NDArray[Any] | Iterable[npt.NDArray[Any]]
"""Document ends in memory: one integer array (or memmap), or an iterable of them in order."""

_DTYPE = np.dtype("<u8")


def check_blocks(ends: Ends) -> Iterator[npt.NDArray[np.uint64]]:
    """Yield document ends as non-empty uint64 arrays of shape ``(<= BLOCK,)`` after checking them.

    Raises FormatError, naming the document, if an end is smaller than the previous end or than zero. Also raises it if
    an array is not one-dimensional or does not have an integer dtype.
    """
    documents = 0
    previous = np.uint64(0)
    for array in [ends] if isinstance(ends, np.ndarray) else ends:
        array = np.asarray(array)
        # Accept any dtype for an empty array, because `np.array([])` is float64.
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise FormatError(f"document ends must be a 1-d array of integers, not {array.ndim}-d {array.dtype}")
        for start in range(0, array.size, BLOCK):
            part = array[start : start + BLOCK]
            if part.dtype.kind == "i" and part.min() < 0:
                raise FormatError(
                    f"document {documents + int(part.argmin())} ends at token {part.min()}, but must not end before "
                    "token 0"
                )
            # Convert without a copy if the array already has this dtype, as the array of a memory-mapped file does.
            block = part.astype(_DTYPE, copy=False)
            _check_order(block, previous, documents)
            yield block
            documents += block.size
            previous = block[-1]


def _check_order(block: npt.NDArray[np.uint64], previous: np.uint64, documents: int) -> None:
    # Compare ends instead of subtracting them, because a negative difference of uint64 values would wrap around to a
    # huge length.
    falls = np.flatnonzero(block[1:] < block[:-1]) + 1
    index = 0 if block[0] < previous else int(falls[0]) if falls.size else None
    if index is not None:
        previous_end = previous if index == 0 else block[index - 1]
        raise FormatError(
            f"document {documents + index} ends at token {block[index]}, before the previous document, which ends at "
            f"{previous_end}"
        )


def write(path: Path, ends: Ends) -> None:
    """Write document ends (integers, shape ``(documents,)``, in tokens) to the new file ``path``.

    Raises FormatError if they decrease, are negative or are not integers. Raises FileExistsError if ``path`` exists.
    """
    with flat_bins.create_file(path) as handle:
        for block in check_blocks(ends):
            handle.write(block.tobytes())


def open_ends(path: Path) -> npt.NDArray[np.uint64]:
    """Return the ends of a file: shape ``(documents,)``, uint64, read-only, memory-mapped. Their order is not checked.

    Raises FormatError if the size is not a multiple of 8.
    """
    size = path.stat().st_size
    if size % _DTYPE.itemsize:
        raise FormatError(
            f"{path}: its size, {count_of(size, 'byte')}, is not a multiple of 8, so the file of document ends is "
            "truncated. Rebuild the artifact"
        )
    return flat_bins.map_file(path, _DTYPE, size // _DTYPE.itemsize)


def validate(path: Path, tokens: int) -> None:
    """Raise FormatError unless the file's ends never decrease and the last end is ``tokens``."""
    for _ in _check_blocks(path, tokens):
        pass


def concatenate(parts: Iterable[tuple[Path, int]], target: Path) -> int:
    """Join the ends of token streams that are concatenated in the same order into the new file ``target``.

    ``parts`` are ``(ends file, tokens of its stream)``. Each part's ends are increased by the number of tokens before
    it. Returns the number of documents. Raises FormatError if a part is not valid for its token count (``target`` is
    then removed). Raises FileExistsError if ``target`` exists.
    """
    documents = 0
    offset = 0
    with flat_bins.create_file(target) as handle:
        for path, tokens in parts:
            for block in _check_blocks(path, tokens):
                handle.write((block + np.uint64(offset)).astype(_DTYPE, copy=False).tobytes())
                documents += block.size
            offset += tokens
    return documents


def _check_blocks(path: Path, tokens: int) -> Iterator[npt.NDArray[np.uint64]]:
    """Yield the blocks of a file and compare the last end with ``tokens``. Every error names the file."""
    last_end, ends = 0, open_ends(path)
    try:
        for block in check_blocks(ends):
            last_end = int(block[-1])
            yield block
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
    if last_end != tokens:
        raise FormatError(
            f"{path}: the last document ends at token {last_end}, but the stream has {count_of(tokens, 'token')}. "
            "Rebuild the artifact"
        )
