"""Flat token bins: headerless little-endian token ids, the one stream that every view shares.

A *token stream* is nothing but ids, uint16 or uint32, each document followed by its separator. The same bytes are a
nanoGPT ``train.bin``, a Megatron ``.bin``, a datatrove ``.ds`` and an OLMo ``.npy`` (headerless despite the name), so
such a file can be made without passing through Python: `stores/files.py` links or joins it in the kernel.

Invariants: the size is an exact multiple of the item size; writers never open an existing name, because it may be a
hard link whose other names belong to finished artifacts.

Entry points: `dtype_for_vocab`, `open_tokens`, `read_ranges`, `validate`, `concatenate`; `create` for siblings.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep_assets.errors import FormatError
from dataprep_assets.stores.files import concatenate, create

__all__ = [
    "DTYPES",
    "concatenate",
    "create",
    "dtype_for_vocab",
    "open_tokens",
    "read_ranges",
    "token_dtype",
    "validate",
]

DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
"""The two dtype names, as numpy attributes (trainers do ``getattr(np, name)``), and their byte order on disk."""


def token_dtype(dtype: str) -> np.dtype[Any]:
    """The on-disk numpy dtype of ``"uint16"`` or ``"uint32"``; raises FormatError for any other name."""
    try:
        return DTYPES[dtype]
    except KeyError:
        raise FormatError(f"unknown token dtype {dtype!r}: use {' or '.join(DTYPES)}, without a byte order") from None


def dtype_for_vocab(vocab_size: int) -> str:
    """The narrowest dtype name that holds every id in ``[0, vocab_size)``.

    ``vocab_size`` is ``len(tokenizer)``, added tokens included; ``tokenizer.vocab_size`` often leaves them out, and an
    added id of 65,536 or more would then wrap to a small, valid, wrong one. Raises FormatError when it is not positive,
    or beyond 32 bits.
    """
    if not 0 < vocab_size <= 1 << 32:
        raise FormatError(f"vocabulary size {vocab_size} is not in [1, 2**32]; pass len(tokenizer)")
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def open_tokens(path: Path, dtype: str) -> npt.NDArray[Any]:
    """The ids of a token stream: shape ``(tokens,)``, dtype ``DTYPES[dtype]``, read-only, memory-mapped.

    Raises FormatError when the size is not a multiple of the item size.
    """
    return mapped(path, token_dtype(dtype), _tokens_in(path, dtype))


def mapped(path: Path, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
    """The `count` items of a whole file of this `dtype`, read-only, memory-mapped.

    A file of no bytes cannot be mapped: it gives an empty array.
    """
    if count:
        return np.memmap(path, dtype=dtype, mode="r")
    empty = np.empty(0, dtype=dtype)
    empty.flags.writeable = False
    return empty


def read_ranges(
    path: Path, dtype: str, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:
    """The items of these ranges of a flat file, one range after another; `dtype` is NumPy's.

    Read, not mapped: every touched page of a map would count as memory of the process. Raises FormatError for a range
    that is not in the file.
    """
    some = np.flatnonzero(lengths)
    starts, lengths = starts[some], lengths[some]
    # Ranges that follow one another in the file are read at once: `firsts` begin such runs, `stops` end them.
    firsts = np.flatnonzero(starts != np.append(-1, starts + lengths)[:-1])
    found = np.empty(int(lengths.sum()), dtype)
    stops = np.append(np.cumsum(lengths)[firsts - 1][1:], found.size) * found.itemsize
    target, at = found.data.cast("B"), 0
    with open(path, "rb", buffering=0) as file:
        for start, stop in zip((starts[firsts] * found.itemsize).tolist(), stops.tolist(), strict=False):
            file.seek(start)
            while at < stop:
                # a raw read may give less than was asked for
                if not (count := file.readinto(target[at:stop])):
                    raise FormatError(f"{path}: ends before what is to be read of it. Run it again")
                at += count
    return found


def validate(path: Path, dtype: str, tokens: int) -> None:
    """Raise FormatError unless the file ``path`` holds exactly ``tokens`` ids of ``dtype``; its ids are not read."""
    found = _tokens_in(path, dtype)
    if found != tokens:
        itemsize = token_dtype(dtype).itemsize
        raise FormatError(
            f"{path}: {found * itemsize} bytes are {found} {dtype} tokens, expected {tokens}, {tokens * itemsize} bytes"
        )


def _tokens_in(path: Path, dtype: str) -> int:
    itemsize = token_dtype(dtype).itemsize
    size = path.stat().st_size
    if size % itemsize:
        raise FormatError(
            f"{path}: {size} bytes are not a multiple of the {itemsize} bytes of a {dtype}; the file was "
            "cut at byte"
            f" {size - size % itemsize} or later, or has another dtype"
        )
    return size // itemsize
