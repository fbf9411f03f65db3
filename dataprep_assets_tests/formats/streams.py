"""Token streams that every format must support: empty, short and long documents in first, last and only position."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep_assets.formats import document_ends, flat_bins

EOS = 7

SHAPES: dict[str, list[int]] = {
    "no documents": [],
    "one document": [5],
    "only an empty document": [0],
    "only empty documents": [0, 0, 0],
    "empty first": [0, 4, 3],
    "empty last": [4, 3, 0],
    "empty between": [2, 0, 0, 9],
    "only a separator": [1],
    "many": [int(n) for n in np.random.default_rng(1).integers(0, 60, 400)],
}
"""Document lengths in tokens, including the separator."""

NONEMPTY = {name: lengths for name, lengths in SHAPES.items() if sum(lengths)}


def make_tokens(lengths: list[int], dtype: str) -> npt.NDArray[Any]:
    """Return random ids over the whole range of the dtype that every reader supports (below 2**31)."""
    top = 1 << 16 if dtype == "uint16" else 1 << 31
    return np.random.default_rng(2).integers(0, top, sum(lengths)).astype(flat_bins.DTYPES[dtype])


def make_ends(lengths: list[int]) -> npt.NDArray[np.uint64]:
    """Return the document ends for these lengths."""
    return np.cumsum(np.array(lengths, dtype=np.uint64), dtype=np.uint64)


def write_stream(directory: Path, lengths: list[int], dtype: str, name: str = "train.bin") -> tuple[Path, Path]:
    """Write a stream and its document ends, and return the two paths."""
    tokens, ends = directory / name, directory / f"{name}.ends"
    make_tokens(lengths, dtype).tofile(tokens)
    document_ends.write(ends, make_ends(lengths))
    return tokens, ends
