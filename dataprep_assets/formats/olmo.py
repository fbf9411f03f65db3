"""The OLMo index: JSON that lets MaxText's ``olmo_grain`` input read token streams in place.

OLMo's ``.npy`` files have no header despite their name, so they are token streams. The index lists them. An *instance*
is a window of ``sequence_length`` tokens within one file; the remaining tokens at a file's end are dropped.

Fields, fingerprint and bytes follow MaxText, ``src/maxtext/input_pipeline/olmo_data.py`` (``OlmoNpyIndex``,
``compute_fingerprint``, ``OlmoNpyIndex.save``), format version 1. The fingerprint is SHA-256 over version, sequence
length, dtype, tokenizer, then path and token count of each file, each as UTF-8 text followed by a NUL. MaxText stores
it in its checkpoints. It depends on the order and the paths, but not on the labels.

MaxText uses a path unchanged, or replaces a prefix (``olmo_path_remap_from``, ``olmo_path_remap_to``), so paths
relative to the artifact stay valid if it is moved. ``sequence_length`` must be the trainer's ``max_target_length``.
MaxText refuses to train on an index without instances. Such an index is valid here, because a shard may have no
documents.

Entry points: `build_index`, `write_index`, `validate`.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.errors import FormatError
from dataprep_assets.formats import flat_bins

FORMAT_VERSION = "1"


class TokenFile(NamedTuple):
    """One file of the mix: its path in the index, a label for people, and its number of tokens."""

    path: str
    label: str
    tokens: int


def build_index(
    files: Sequence[TokenFile | tuple[str, str, int]], sequence_length: int, dtype: str, tokenizer: str
) -> dict[str, Any]:
    """Return the index of ``files``, in this order, as MaxText's JSON object.

    A file is ``(path, label, tokens)``, see `TokenFile`. ``sequence_length``: tokens per instance. The ``dtype`` of the
    files is ``"uint16"`` or ``"uint32"``. ``tokenizer`` is the tokenizer's name, which is part of the fingerprint.
    Raises FormatError for an empty list, a sequence length below 1, a negative count, and an empty path. A path with
    a NUL is also an error, because it could give two lists of files the same fingerprint.
    """
    flat_bins.token_dtype(dtype)
    if sequence_length < 1:
        raise FormatError(
            f"the sequence length must be at least 1, not {sequence_length}. Pass the trainer's max_target_length"
        )
    if not files:
        raise FormatError("an OLMo index needs at least one file (an empty one is allowed)")
    entries: list[dict[str, Any]] = []
    offset = 0
    for path, label, tokens in files:
        if not path or "\x00" in path or tokens < 0:
            raise FormatError(
                f"file {len(entries)} of the index: the path ({path!r}) or the number of tokens ({tokens}) is invalid"
            )
        instances = tokens // sequence_length
        entries.append(
            {"path": path, "label": label, "n_tokens": tokens, "n_instances": instances, "instance_offset": offset}
        )
        offset += instances
    return {
        "format_version": FORMAT_VERSION,
        "sequence_length": sequence_length,
        "dtype": dtype,
        "tokenizer": tokenizer,
        "total_instances": offset,
        "total_tokens": sum(entry["n_tokens"] for entry in entries),
        "fingerprint": _compute_fingerprint(sequence_length, dtype, tokenizer, entries),
        "files": entries,
    }


def _compute_fingerprint(sequence_length: int, dtype: str, tokenizer: str, entries: Iterable[Mapping[str, Any]]) -> str:
    fields = [FORMAT_VERSION, sequence_length, dtype, tokenizer]
    for entry in entries:
        fields += [entry["path"], entry["n_tokens"]]
    return "sha256:" + hashlib.sha256("".join(f"{field}\x00" for field in fields).encode()).hexdigest()


def write_index(path: Path, index: Mapping[str, Any]) -> None:
    """Write an index from `build_index` to the new file ``path``, with the same bytes as MaxText's ``save``."""
    with flat_bins.create_file(path) as handle:
        handle.write(json.dumps(index, indent=2).encode("utf-8"))


def validate(path: Path, root: Path, *, sequence_length: int | None = None) -> None:
    """Raise FormatError unless the index in ``path`` equals `build_index` and its files have the listed sizes.

    Paths of the index are relative to ``root`` unless they are absolute. ``sequence_length``, if not None, is the
    trainer's sequence length.
    """
    index = _load(path)
    if sequence_length is not None and index["sequence_length"] != sequence_length:
        raise FormatError(
            f"{path}: sequence_length is {index['sequence_length']}, but the trainer uses {sequence_length}. "
            "Rebuild the view with the trainer's sequence length"
        )
    for entry in index["files"]:
        try:
            flat_bins.validate(root / entry["path"], index["dtype"], entry["n_tokens"])
        except FileNotFoundError as error:
            raise FormatError(f"{path}: lists {entry['path']!r}, which is not in {root}. Rebuild the view") from error


def _load(path: Path) -> dict[str, Any]:
    """Read an index and compare every derived field with an index rebuilt from its list of files."""
    try:
        index = load_untrusted_json(path.read_bytes())
    except ValueError as error:
        raise FormatError(f"{path}: invalid JSON: {error}. Rebuild the view") from error
    try:
        files = [TokenFile(entry["path"], entry["label"], entry["n_tokens"]) for entry in index["files"]]
        rebuilt = build_index(files, index["sequence_length"], index["dtype"], index["tokenizer"])
    except (KeyError, TypeError) as error:
        raise FormatError(f"{path}: a field is missing or has the wrong type: {error}. Rebuild the artifact") from error
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
    if index != rebuilt:
        wrong_keys = sorted(key for key in index.keys() | rebuilt.keys() if index.get(key) != rebuilt.get(key))
        raise FormatError(
            f"{path}: values that do not match the listed files (format version 1): {', '.join(wrong_keys)}. "
            "Rebuild the view"
        )
    return rebuilt
