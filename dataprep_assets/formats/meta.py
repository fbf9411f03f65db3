"""``meta.pkl``: what a nanoGPT-style loader must know about its token bins, with a readable copy in ``meta.json``.

The pickle is for trainers that expect it: a plain dict with at least ``dtype``, and by convention ``tokenizer``,
``vocab_size`` and ``eos_token_id``. Loading a pickle can run any code, so nothing here ever loads one: readers use the
JSON, and `validate` compares the pickle's bytes with those made from the JSON.

Invariants: plain builtins only; both files hold equal values; equal values give equal bytes on every Python; ``dtype``
is a numpy attribute (``uint32``, not ``<u4``) that can hold the vocabulary.

Entry points: `write_meta`, `read_meta`, `validate`.
"""

import json
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dataprep_assets.bounds import json_of
from dataprep_assets.errors import FormatError
from dataprep_assets.formats import flat_bins

# Protocol 4 is read by every Python since 3.4.
_PROTOCOL = 4


def write_meta(directory: Path, meta: Mapping[str, Any]) -> None:
    """Write the new files ``meta.pkl`` and ``meta.json`` into ``directory``.

    Values are str, bool, int, finite float, None, and lists and str-keyed dicts of these. Raises FormatError, naming
    the key, for any other (a numpy scalar would make the loader need the same numpy; a tuple would come back as a
    list), for a missing or unknown ``dtype``, and for one that is too narrow. Raises FileExistsError when either file
    exists.
    """
    plain = dict(meta)
    _check_builtin(plain, "")
    _check_fields(plain, "meta")
    text = _json_text(plain)
    with flat_bins.create(directory / "meta.pkl") as handle:
        handle.write(_pickle_bytes(text))
    with flat_bins.create(directory / "meta.json") as handle:
        handle.write(text.encode("utf-8"))


def read_meta(directory: Path) -> dict[str, Any]:
    """The values of ``meta.json``; raises FormatError if it is not a JSON object, or its ``dtype`` is impossible."""
    path = directory / "meta.json"
    try:
        meta = json_of(path.read_bytes())
    except ValueError as error:
        raise FormatError(f"{path}: not JSON ({error}); rebuild the artifact") from error
    if not isinstance(meta, dict):
        raise FormatError(f"{path}: holds a {type(meta).__name__}, expected an object")
    _check_fields(meta, str(path))
    return meta


def validate(directory: Path) -> None:
    """Raise FormatError unless both files are there in the bytes that `write_meta` gives for the same values."""
    text = _json_text(read_meta(directory))
    for path, expected in (
        (directory / "meta.json", text.encode("utf-8")),
        (directory / "meta.pkl", _pickle_bytes(text)),
    ):
        if not path.is_file() or path.stat().st_size != len(expected) or path.read_bytes() != expected:
            raise FormatError(
                f"{path}: missing, or other bytes than the values of meta.json give. Do not load it, rebuild it"
            )


def _json_text(meta: Mapping[str, Any]) -> str:
    return json.dumps(meta, sort_keys=True, indent=2, ensure_ascii=False) + "\n"


def _pickle_bytes(text: str) -> bytes:
    # Pickle records when one object occurs twice, so the bytes of equal values can differ if they share strings
    # otherwise. Objects from the JSON decoder always share them in the same way.
    return pickle.dumps(json.loads(text), protocol=_PROTOCOL)


def _check_builtin(value: Any, key: str) -> None:
    """Raise FormatError at the first value, by dotted key, that is not exactly a JSON builtin."""
    # The exact type: `numpy.float64` passes for a float, and a pickle of it needs NumPy to be loaded.
    kind = type(value)
    if kind is dict:
        for name, item in value.items():
            if type(name) is not str:
                raise FormatError(f"meta key {name!r} under {key or 'the top'} is a {type(name).__name__}, use a str")
            _check_builtin(item, f"{key}.{name}" if key else name)
    elif kind is list:
        for index, item in enumerate(value):
            _check_builtin(item, f"{key}[{index}]")
    elif kind not in (str, bool, int, float, type(None)):
        raise FormatError(
            f"meta key {key!r} holds a {kind.__module__}.{kind.__qualname__}; only str, bool, int, float, None, list"
            " and dict load without other packages, so convert it"
        )
    elif kind is float and not math.isfinite(value):
        raise FormatError(f"meta key {key!r} is {value}, which JSON cannot represent")


def _check_fields(meta: Mapping[str, Any], where: str) -> None:
    if "dtype" not in meta:
        raise FormatError(f"{where}: no 'dtype'; loaders then guess it from the vocabulary, or read uint16")
    dtype, vocab_size, eos = meta["dtype"], meta.get("vocab_size"), meta.get("eos_token_id")
    if not isinstance(dtype, str):
        raise FormatError(f"{where}: dtype {dtype!r} is not a string")
    itemsize = flat_bins.token_dtype(dtype).itemsize
    if isinstance(vocab_size, int) and vocab_size > 1 << (8 * itemsize):
        raise FormatError(f"{where}: {dtype} cannot hold the {vocab_size} ids of vocab_size; ids would wrap")
    if isinstance(vocab_size, int) and isinstance(eos, int) and not 0 <= eos < vocab_size:
        raise FormatError(
            f"{where}: eos_token_id {eos} is outside [0, {vocab_size}); take vocab_size from len(tokenizer)"
        )
