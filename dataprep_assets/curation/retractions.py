"""The retraction list of a corpus: ids of documents that must not be in it (takedowns, opt-outs, mistakes).

The list is a file of JSON lines beside the YAML, which `dataprep retract` writes and people may read and commit::

    {"hash": "9e3779b97f4a7c15", "of": "text"}
    {"hash": "bf58476d1ce4e5b9", "of": "field url", "id": "https://example.org/42"}

`hash` is the id by which the index of the shards finds a document (docs/formats/document-index.md), `of` what it is a
hash of: the text, or the field that `document.id_field` names. If the hash is keyed, `key` is the digest of the key and
no id is kept. Every document with the hash is dropped, including duplicates.

A shard's key contains only the entries that apply to it: new entries rebuild only the shards that held these documents.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.bounds import json_of
from dataprep_assets.curation.documents import NONE_RETRACTED
from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stores.locks import owned_file
from dataprep_assets.tokenization.document_ids import DocumentIds, hash_id

_HASH = re.compile("[0-9A-Fa-f]{16}")


@dataclass(frozen=True, kw_only=True)
class Retraction:
    """One line of the list: the hash of a document, 16 hex digits, and the given id if it may be kept."""

    hash: str
    given: str | None = None


def read_retractions(path: Path | None, ids: DocumentIds | None) -> dict[str, Retraction]:
    """Read the list, by hash; empty if there is no file.

    Args:
        path: The list.
        ids: How the dataset identifies its documents; None if it cannot.

    Raises ConfigError, naming the line, for a line that is not a retraction, or whose hash was made differently.
    """
    if path is None or not path.exists():
        return {}
    if ids is None:
        raise ConfigError(
            f"{path}: the dataset is sensitive and has no `document.id_key`, so its documents cannot be found. "
            "Declare one, or remove the list"
        )
    retractions: dict[str, Retraction] = {}
    ids_origin = _made_of(ids)
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json_of(line)
            if not _HASH.fullmatch(value["hash"]):
                raise ValueError("no hash")
            origin = {name: value[name] for name in ("of", "key") if name in value}
            if not all(isinstance(text, str) for text in origin.values()):
                raise ValueError("no text")
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f'{path}: line {number}: not a retraction, {{"hash": "16 hex digits", "of": "text"}}. Correct '
                "the line, or write the list with `dataprep retract`"
            ) from error
        # Hashes of another field, or under another key, would match no document, and nobody would notice.
        if origin != ids_origin:
            raise ConfigError(
                f"{path}: line {number}: its hash is of {_format_origin(origin)}, but the dataset's index is of "
                f"{_format_origin(ids_origin)}. Remove these documents again by their current ids, and delete the line"
            )
        hashed = value["hash"].lower()
        retractions[hashed] = Retraction(hash=hashed, given=value.get("id"))
    return retractions


def retracted_ids(path: Path | None, ids: DocumentIds | None) -> NDArray[np.uint64]:
    """The ids on a list: shape ``(ids,)``, uint64, sorted. Errors are those of `read_retractions`."""
    retractions = read_retractions(path, ids)
    return np.array(sorted(int(digits, 16) for digits in retractions), np.uint64) if retractions else NONE_RETRACTED


def add_retractions(path: Path, ids: DocumentIds, new: Iterable[Retraction]) -> int:
    """Add new entries to a list atomically; returns how many were new.

    The given ids are kept only if hashes are not keyed.

    Args:
        path: The list, which is created if it does not exist.
        ids: How the dataset identifies its documents.
        new: The entries to add.

    Raises the errors of `read_retractions` and `append_lines`.
    """
    new_by_hash = {retraction.hash: retraction for retraction in new}

    def missing_lines() -> list[dict[str, Any]]:
        retractions = read_retractions(path, ids)
        return [_line(retraction, ids) for retraction in new_by_hash.values() if retraction.hash not in retractions]

    return append_lines(path, missing_lines)


def append_lines(path: Path, missing: Callable[[], Sequence[Mapping[str, Any]]]) -> int:
    """Add JSON lines to a list atomically, creating it if needed; returns how many.

    Args:
        path: The list.
        missing: The lines that the list does not have; without any nothing is changed. It is asked again when no other
            process can change the list.

    Raises TransferError if another process keeps the list for an hour, IntegrityError for a link in the lock's place.
    """
    if not missing():
        return 0
    # beside the list, which every change replaces; removed again, so that it is in nobody's commit
    lock = path.with_name(f".{path.name}.lock")
    with owned_file(lock, str(path)):
        try:
            lines = missing()
            before = path.read_bytes() if path.exists() else b""
            # people edit the file, and some editors leave its last line open
            if before and not before.endswith(b"\n"):
                before += b"\n"
            added = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)
            if added:
                write_atomically(path, before + added)
        finally:
            lock.unlink(missing_ok=True)
    return len(lines)


def _line(one: Retraction, ids: DocumentIds) -> dict[str, Any]:
    line: dict[str, Any] = {"hash": one.hash, **_made_of(ids)}
    # the key keeps others from finding out whose hash it is; the id beside it would tell them
    return line if one.given is None or ids.key is not None else line | {"id": one.given}


def _made_of(ids: DocumentIds) -> dict[str, str]:
    made_of = {"of": "text" if ids.id_field is None else f"field {ids.id_field}"}
    return made_of if ids.key_digest is None else made_of | {"key": ids.key_digest}


def _format_origin(made_of: dict[str, str]) -> str:
    return ", ".join(made_of.values()) + (" (the key's digest)" if "key" in made_of else "")


def id_lines(path: Path) -> list[tuple[int, bytes]]:
    """The lines of a list of ids that are not blank, each with its number from 1.

    Raises ConfigError if there are none.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"--ids {path}: {error.strerror or error}") from error
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ConfigError(f"--ids {path}: line 1: UTF-16, not UTF-8. Save it as UTF-8")
    # editors of Windows begin a file of UTF-8 with a mark, which belongs to no id
    lines = data.removeprefix(codecs.BOM_UTF8).splitlines()
    numbered_lines = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered_lines:
        raise ConfigError(f"--ids {path}: contains no ids. Write one per line")
    return numbered_lines


def id_of(given: str, ids: DocumentIds) -> str:
    """The hash of a declared id or of a text, 16 hex digits."""
    return f"{hash_id(given, ids.key):016x}"


def are_listed(ids: NDArray[np.uint64], listed: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return whether each of these ids is among the `listed`, which are sorted: shape ``(ids,)``."""
    if not len(listed):
        return np.zeros(len(ids), np.bool_)
    is_listed: NDArray[np.bool_] = listed[np.minimum(np.searchsorted(listed, ids), len(listed) - 1)] == ids
    return is_listed


def counted_ids(ids: Sequence[str]) -> str:
    """Ids of documents as a recipe shows them: how many, and a digest; empty without any."""
    return f"ids of {count_of(len(ids), 'document')} ({digest_value(list(ids))[:12]})" if ids else ""


def hex_ids(ids: NDArray[np.uint64] | Sequence[int]) -> tuple[str, ...]:
    """Ids as 16 hex digits each, sorted."""
    return tuple(sorted(f"{int(document_id):016x}" for document_id in ids))
