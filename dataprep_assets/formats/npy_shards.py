"""Shards of token ids as `.npy` files with a header, and the file names that a shard cache expects.

templar's `SharedShardedDataset` reads this layout (tplr-ai/templar, `src/tplr/sharded_dataset.py`).
`<prefix>_<iiiiii>.npy` is a NumPy version 1.0 file with a 128-byte header and a one-dimensional array of ids in C
order. Its length is a multiple of the sequence length. `sample_ids_<iiiiii>.bin` is headerless (see `sample_ids`).

Sample `k` is tokens `[k * sequence_length, (k + 1) * sequence_length)`. Documents continue across samples and shards.
The name of the ids file has no prefix, so shards of any prefix except `train` are stored in a folder `<prefix>/`. This
avoids collisions, and templar's reader finds the files of a prefix if you pass it that folder.

Entry points: `build_header`, `read_header`, `parse_header`, `open_shard`, `validate`, `build_token_key`,
`build_ids_key`, `parse_key`.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.formats.flat_bins import DTYPES, token_dtype

MAGIC = b"\x93NUMPY"
HEADER_BYTES = 128
"""Length of every one-dimensional header: NumPy reserves 21 digits for the length and pads to a multiple of 64."""

_NAMES = {dtype.str: name for name, dtype in DTYPES.items()}
_KEY = re.compile(
    r"(?:(?P<folder>[A-Za-z]\w*)/)?(?:(?P<prefix>[A-Za-z]\w*?)_(?P<t>\d{6})\.npy|sample_ids_(?P<i>\d{6})\.bin)"
)


@dataclass(frozen=True, kw_only=True)
class NpyHeader:
    """Content of a shard's header: `dtype` is `uint16` or `uint32`, `tokens` is the length of the array."""

    dtype: str
    tokens: int


@dataclass(frozen=True, kw_only=True)
class ShardKey:
    """Parsed key of a release's object."""

    prefix: str
    index: int
    kind: Literal["tokens", "sample_ids"]


def _check_index(index: int) -> int:
    if not 0 <= index < 1_000_000:
        raise FormatError(f"shard index must be 0 to 999,999, not {index}")
    return index


def _split_folder(prefix: str) -> str:
    return "" if prefix == "train" else f"{prefix}/"


def build_token_key(prefix: str, index: int) -> str:
    """Return the path of a shard's ids, relative to the release: `train_000003.npy`, `val/val_000003.npy`."""
    return f"{_split_folder(prefix)}{prefix}_{_check_index(index):06d}.npy"


def build_ids_key(prefix: str, index: int) -> str:
    """Return the path of a shard's sample ids: `sample_ids_000003.bin`, `val/sample_ids_000003.bin`."""
    return f"{_split_folder(prefix)}sample_ids_{_check_index(index):06d}.bin"


def parse_key(key: str) -> ShardKey | None:
    """Parse a key of `build_token_key` or `build_ids_key`; return None for any other key."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    prefix = match["prefix"] or match["folder"] or "train"
    kind: Literal["tokens", "sample_ids"] = "tokens" if match["t"] else "sample_ids"
    index = int(match["t"] or match["i"])
    # Compare the key with the rebuilt key, because `val/train_000000.npy` matches the pattern but is not a shard's key.
    canonical = (build_token_key if kind == "tokens" else build_ids_key)(prefix, index)
    return ShardKey(prefix=prefix, index=index, kind=kind) if canonical == key else None


def build_header(tokens: int, dtype: str) -> bytes:
    """Return the 128-byte header that NumPy writes for an array of `tokens` ids of `dtype` (`uint16` or `uint32`).

    Raises FormatError for a negative number of tokens, or an unknown dtype.
    """
    if tokens < 0:
        raise FormatError(f"the number of tokens must be at least 0, not {tokens}")
    text = f"{{'descr': '{token_dtype(dtype).str}', 'fortran_order': False, 'shape': ({tokens},), }}"
    # The magic number (6), version (2), header length (2) and line ending (1) take 11 bytes.
    padded_text = text.ljust(HEADER_BYTES - 11) + "\n"
    return MAGIC + b"\x01\x00" + len(padded_text).to_bytes(2, "little") + padded_text.encode("latin1")


def compute_shard_bytes(tokens: int, dtype: str) -> int:
    """Return the size in bytes of a shard of this many tokens."""
    return HEADER_BYTES + tokens * token_dtype(dtype).itemsize


def parse_header(data: bytes, location: str) -> NpyHeader:
    """Parse the header in the first 128 bytes of a shard.

    Raises FormatError, naming `location`, unless it has version 1.0, 128 bytes, one dimension, C order, and `<u2` or
    `<u4`.
    """
    if data[:6] != MAGIC:
        raise FormatError(
            f"{location}: must begin with {MAGIC!r}, not {data[:6]!r}. The file has no header, or a different "
            "format. Rebuild the shard"
        )
    length = int.from_bytes(data[8:10], "little")
    if data[6:8] != b"\x01\x00" or length != HEADER_BYTES - 10 or len(data) < HEADER_BYTES:
        raise FormatError(
            f"{location}: must have .npy version 1.0 and a header of {HEADER_BYTES} bytes, not version "
            f"{data[6:7].hex()}.{data[7:8].hex()} and {count_of(10 + length, 'byte')} ({len(data)} found). Rebuild the "
            "shard"
        )
    try:
        fields = ast.literal_eval(data[10:HEADER_BYTES].decode("latin1"))
        descr, fortran, shape = fields["descr"], fields["fortran_order"], fields["shape"]
    except (ValueError, SyntaxError, KeyError, TypeError) as error:
        raise FormatError(f"{location}: invalid .npy header: {error}. Rebuild the shard") from error
    # Search a tuple instead of a dict, because the `descr` of a structured dtype is a list, which is not hashable.
    if descr not in tuple(_NAMES) or fortran is not False or not (isinstance(shape, tuple) and len(shape) == 1):
        raise FormatError(
            f"{location}: must be a 1-d array of {' or '.join(map(repr, _NAMES))} in C order, not {descr!r} of shape "
            f"{shape} with fortran_order={fortran}. Rebuild the shard"
        )
    if not isinstance(shape[0], int) or shape[0] < 0:
        raise FormatError(f"{location}: its header has an invalid number of tokens, {shape[0]!r}. Rebuild the shard")
    return NpyHeader(dtype=_NAMES[descr], tokens=shape[0])


def read_header(path: Path) -> NpyHeader:
    """Return the header of a file.

    Raises FormatError as `parse_header` does, and if the file size does not match the header.
    """
    with open(path, "rb") as file:
        head = parse_header(file.read(HEADER_BYTES), str(path))
    size, total = path.stat().st_size, compute_shard_bytes(head.tokens, head.dtype)
    if size != total:
        raise FormatError(
            f"{path}: {'truncated' if size < total else 'too long'}: has {count_of(size, 'byte')}, but its header "
            f"describes {head.tokens} {head.dtype} tokens ({total} bytes). Download or rebuild the shard"
        )
    return head


def validate(path: Path, *, dtype: str, tokens: int, sequence_length: int) -> None:
    """Raise FormatError unless the file ``path`` is a shard of exactly ``tokens`` ids of ``dtype``, in whole sequences.

    ``dtype`` is ``"uint16"`` or ``"uint32"``, ``sequence_length`` the tokens per sequence. Only the header and the size
    are read, not the ids.
    """
    head = read_header(path)
    if head.dtype != dtype:
        raise FormatError(
            f"{path}: its ids must be {dtype}, as in the release, not {head.dtype}. Download or rebuild the shard"
        )
    if head.tokens != tokens:
        raise FormatError(
            f"{path}: has {count_of(head.tokens, 'token')}, expected {tokens}. Download or rebuild the shard"
        )
    _check_sequences(path, tokens, sequence_length)


def open_shard(path: Path, *, sequence_length: int) -> npt.NDArray[Any]:
    """Return the ids of a shard: shape `(tokens,)`, `<u2` or `<u4`, read-only, memory-mapped.

    Raises FormatError if the file is not a shard, or its length is not a multiple of the sequence length.
    """
    head = read_header(path)
    _check_sequences(path, head.tokens, sequence_length)
    if head.tokens == 0:
        empty = np.empty(0, dtype=token_dtype(head.dtype))
        empty.flags.writeable = False
        return empty
    return np.memmap(path, dtype=token_dtype(head.dtype), mode="r", offset=HEADER_BYTES, shape=(head.tokens,))


def _check_sequences(path: Path, tokens: int, sequence_length: int) -> None:
    if sequence_length < 1 or tokens % sequence_length:
        raise FormatError(
            f"{path}: its {count_of(tokens, 'token')} cannot be divided into sequences of {sequence_length} "
            f"({tokens % sequence_length} remain). "
            "Use the sequence length of the release"
            if sequence_length >= 1
            else f"{path}: the sequence length must be at least 1, not {sequence_length}"
        )
