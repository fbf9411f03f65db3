"""Flat token bins (headerless little-endian ids), the stream that all views share, and their `meta.pkl`.

A *token stream* consists only of ids, uint16 or uint32, with a separator after each document. The same bytes are a
nanoGPT ``train.bin``, a Megatron ``.bin``, a datatrove ``.ds`` and an OLMo ``.npy`` (headerless despite the name). Such
a file can therefore be built without reading it in Python: `stores/files.py` links or joins it in the kernel.

Invariants: the size is an exact multiple of the item size. Writers never open an existing name, because it may be a
hard link to a finished artifact's file.

Entry points: `choose_dtype`, `open_tokens`, `read_ranges`, `validate`, `concatenate`; `create_file` for related
files.
"""

import json
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.stores.files import concatenate, create_file

__all__ = [
    "DTYPES",
    "choose_dtype",
    "concatenate",
    "create_file",
    "open_tokens",
    "read_meta",
    "read_ranges",
    "token_dtype",
    "validate",
    "validate_meta",
    "write_meta",
]

DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
"""The two dtype names, as numpy attributes (trainers call ``getattr(np, name)``), and their byte order on disk."""


def token_dtype(dtype: str) -> np.dtype[Any]:
    """Return the on-disk numpy dtype of ``"uint16"`` or ``"uint32"``. Raises FormatError for any other name."""
    try:
        return DTYPES[dtype]
    except KeyError:
        raise FormatError(
            f"unknown token dtype {dtype!r}. Must be {' or '.join(DTYPES)}, without a byte order"
        ) from None


def choose_dtype(vocab_size: int) -> str:
    """Return the name of the narrowest dtype that can represent every id in ``[0, vocab_size)``.

    ``vocab_size`` is ``len(tokenizer)``, added tokens included. ``tokenizer.vocab_size`` often excludes them, and an
    added id of 65,536 or more would then wrap to a small id that is valid but wrong. Raises FormatError if
    ``vocab_size`` is not positive, or does not fit in 32 bits.
    """
    if not 0 < vocab_size <= 1 << 32:
        raise FormatError(f"vocabulary size must be 1 to 2**32, not {vocab_size}. Pass len(tokenizer)")
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def open_tokens(path: Path, dtype: str) -> npt.NDArray[Any]:
    """Return the ids of a token stream: shape ``(tokens,)``, dtype ``DTYPES[dtype]``, read-only, memory-mapped.

    Raises FormatError if the size is not a multiple of the item size.
    """
    return map_file(path, token_dtype(dtype), _count_tokens(path, dtype))


def map_file(path: Path, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
    """Map a whole file of `count` items of this `dtype`, read-only.

    Returns an empty array for an empty file, because it cannot be mapped.
    """
    if count:
        return np.memmap(path, dtype=dtype, mode="r")
    empty = np.empty(0, dtype=dtype)
    empty.flags.writeable = False
    return empty


def read_ranges(
    path: Path, dtype: str, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:
    """Return the items of these ranges of a flat file, concatenated; `dtype` is a NumPy dtype.

    The ranges are read instead of mapped, because every used page of a map would count as memory of the process.
    Raises FormatError for a range that is not in the file.
    """
    filled_ranges = np.flatnonzero(lengths)
    starts, lengths = starts[filled_ranges], lengths[filled_ranges]
    # Read adjacent ranges of the file together. `firsts` are the indices of the first range of each group of adjacent
    # ranges, and `stops` are the byte offsets in `items` where the groups end.
    firsts = np.flatnonzero(starts != np.append(-1, starts + lengths)[:-1])
    items = np.empty(int(lengths.sum()), dtype)
    stops = np.append(np.cumsum(lengths)[firsts - 1][1:], items.size) * items.itemsize
    target, position = items.data.cast("B"), 0
    with open(path, "rb", buffering=0) as file:
        for start, stop in zip((starts[firsts] * items.itemsize).tolist(), stops.tolist(), strict=False):
            file.seek(start)
            while position < stop:
                # A raw read may return fewer bytes than requested.
                if not (count := file.readinto(target[position:stop])):
                    raise FormatError(f"{path}: truncated while it was being read. Run the command again")
                position += count
    return items


def validate(path: Path, dtype: str, tokens: int) -> None:
    """Raise FormatError unless the file ``path`` has exactly ``tokens`` ids of ``dtype``. The ids are not read."""
    count = _count_tokens(path, dtype)
    if count != tokens:
        itemsize = token_dtype(dtype).itemsize
        raise FormatError(
            f"{path}: has {count} {dtype} tokens ({count_of(count * itemsize, 'byte')}), expected {tokens} "
            f"({count_of(tokens * itemsize, 'byte')})"
        )


def _count_tokens(path: Path, dtype: str) -> int:
    itemsize = token_dtype(dtype).itemsize
    size = path.stat().st_size
    if size % itemsize:
        raise FormatError(
            f"{path}: its size, {count_of(size, 'byte')}, is not a multiple of {itemsize}, the size of a {dtype}. The "
            f"file was truncated at byte {size - size % itemsize} or later, or has a different dtype. Rebuild the "
            "artifact"
        )
    return size // itemsize


# ``meta.pkl``: the facts about token bins that a nanoGPT-style loader needs, with a readable copy in ``meta.json``.

# The pickle is for trainers that expect it: a plain dict with at least ``dtype``, and by convention ``tokenizer``,
# ``vocab_size`` and ``eos_token_id``. Loading a pickle can run any code, so this package never loads one. Its code
# reads the JSON instead, and `validate_meta` compares the pickle's bytes with a pickle built from the JSON.

# Invariants: values are plain builtins. Both files have equal values. Equal values give equal bytes on every Python.
# ``dtype`` is a numpy attribute (``uint32``, not ``<u4``) that can represent the vocabulary.

# Entry points: `write_meta`, `read_meta`, `validate_meta`.

# Every Python since 3.4 can read protocol 4.
_PROTOCOL = 4


def write_meta(directory: Path, meta: Mapping[str, Any]) -> None:
    """Write the new files ``meta.pkl`` and ``meta.json`` into ``directory``.

    Values are str, bool, int, finite float, None, and lists and str-keyed dicts of these. Raises FormatError, naming
    the key, for any other value. A numpy scalar would require the same numpy in the loader, and a tuple would be read
    back as a list. Raises FormatError also for a missing, unknown or too narrow ``dtype``. Raises FileExistsError if
    either file exists.
    """
    plain = dict(meta)
    _check_builtin(plain, "")
    _check_fields(plain, "meta")
    text = _encode_json(plain)
    with create_file(directory / "meta.pkl") as handle:
        handle.write(_encode_pickle(text))
    with create_file(directory / "meta.json") as handle:
        handle.write(text.encode("utf-8"))


def read_meta(directory: Path) -> dict[str, Any]:
    """Return the values of ``meta.json``.

    Raises FormatError if it is not a JSON object, or its ``dtype`` is impossible.
    """
    path = directory / "meta.json"
    try:
        meta = load_untrusted_json(path.read_bytes())
    except ValueError as error:
        raise FormatError(f"{path}: invalid JSON: {error}. Rebuild the artifact") from error
    if not isinstance(meta, dict):
        raise FormatError(f"{path}: must be a JSON object, not a {type(meta).__name__}. Rebuild the artifact")
    _check_fields(meta, str(path))
    return meta


def validate_meta(directory: Path) -> None:
    """Raise FormatError unless both files exist and equal `write_meta`'s output for the values of ``meta.json``."""
    text = _encode_json(read_meta(directory))
    for path, content in (
        (directory / "meta.json", text.encode("utf-8")),
        (directory / "meta.pkl", _encode_pickle(text)),
    ):
        if not path.is_file() or path.stat().st_size != len(content) or path.read_bytes() != content:
            raise FormatError(
                f"{path}: missing, or does not match meta.json. Do not load this file. Rebuild the artifact"
            )


def _encode_json(meta: Mapping[str, Any]) -> str:
    return json.dumps(meta, sort_keys=True, indent=2, ensure_ascii=False) + "\n"


def _encode_pickle(text: str) -> bytes:
    # Pickle records repeated objects by identity, so equal values that share strings differently give different bytes.
    # Objects from the JSON decoder always share strings in the same way.
    return pickle.dumps(json.loads(text), protocol=_PROTOCOL)


def _check_builtin(value: Any, key: str) -> None:
    """Raise FormatError at the first value, by dotted key, whose type is not exactly a JSON builtin."""
    # Compare the exact type, because `numpy.float64` is a float, but its pickle requires NumPy.
    kind = type(value)
    if kind is dict:
        for name, item in value.items():
            if type(name) is not str:
                raise FormatError(
                    f"meta: {f'{key}: ' if key else ''}key {name!r} must be a str, not a {type(name).__name__}"
                )
            _check_builtin(item, f"{key}.{name}" if key else name)
    elif kind is list:
        for index, item in enumerate(value):
            _check_builtin(item, f"{key}[{index}]")
    elif kind not in (str, bool, int, float, type(None)):
        raise FormatError(
            f"meta: {key}: is a {kind.__module__}.{kind.__qualname__}. Convert the value to str, bool, int, float, "
            "None, list or dict, which load without other packages"
        )
    elif kind is float and not math.isfinite(value):
        raise FormatError(f"meta: {key}: must be a finite number, not {value}")


def _check_fields(meta: Mapping[str, Any], location: str) -> None:
    if "dtype" not in meta:
        raise FormatError(
            f"{location}: 'dtype' is missing. Add it, because loaders otherwise guess the dtype from the vocabulary, "
            "or read uint16"
        )
    dtype, vocab_size, eos = meta["dtype"], meta.get("vocab_size"), meta.get("eos_token_id")
    if not isinstance(dtype, str):
        raise FormatError(f"{location}: dtype must be a string, not {dtype!r}")
    itemsize = token_dtype(dtype).itemsize
    if isinstance(vocab_size, int) and vocab_size > 1 << (8 * itemsize):
        raise FormatError(
            f"{location}: {dtype} cannot represent the {count_of(vocab_size, 'id')} of vocab_size, so larger ids "
            "would wrap around. Set a larger dtype"
        )
    if isinstance(vocab_size, int) and isinstance(eos, int) and not 0 <= eos < vocab_size:
        raise FormatError(
            f"{location}: eos_token_id {eos} is outside the vocabulary (0 to {vocab_size - 1}). Set vocab_size to "
            "len(tokenizer)"
        )
