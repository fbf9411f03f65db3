"""The retraction list of a corpus or a blend: ids of documents to exclude (takedowns, opt-outs, mistakes).

The list is a JSON Lines file next to the YAML, which `dataprep retract` writes and people may read and commit::

    {"hash": "9e3779b97f4a7c15", "of": "text"}
    {"hash": "bf58476d1ce4e5b9", "of": "field url", "id": "https://example.org/42"}
    {"hash": "94d049bb133111eb", "of": "row", "id": "chats.jsonl:17"}

`hash` is the id under which the index of the shards finds a document (docs/formats/document-index.md). `of` is the
hashed value: the text, or the field that `document.id_field` names; for conversations, pairs and records, the row or
its `id_field`. If the hash is keyed, `key` is the digest of the key and the id itself is not stored. Every document
with the hash is dropped, including duplicates.

A shard's key contains only the entries that apply to it, so new entries rebuild only the shards with these documents.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.curation.documents import NONE_RETRACTED
from dataprep_assets.errors import ConfigError, DataprepError, count_of
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stores.locks import lock_own_file
from dataprep_assets.tokenization.document_ids import ROW, DocumentIds, hash_id

_HASH = re.compile("[0-9A-Fa-f]{16}")


@dataclass(frozen=True, kw_only=True)
class Retraction:
    """One line of the list: the hash of a document, 16 hex digits, and the given id if it may be stored."""

    hash: str
    given: str | None = None


def read_retractions(path: Path | None, ids: DocumentIds | None) -> dict[str, Retraction]:
    """Read the list, by hash; empty if the file does not exist.

    Args:
        path: The list.
        ids: The dataset's id scheme; None if documents have no ids.

    Raises ConfigError, naming the line, for an invalid line, or for a hash from a different id scheme.
    """
    if path is None or not path.exists():
        return {}
    if ids is None:
        raise ConfigError(
            f"{path}: the dataset is sensitive and has no `document.id_key`, so its documents cannot be found. "
            "Declare `document.id_key`, or remove the list"
        )
    retractions: dict[str, Retraction] = {}
    ids_origin = _build_id_settings(ids)
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = load_untrusted_json(line)
            if not _HASH.fullmatch(value["hash"]):
                raise ValueError("the hash is missing")
            origin = {name: value[name] for name in ("of", "key") if name in value}
            if not all(isinstance(text, str) for text in origin.values()):
                raise ValueError("a value is not a string")
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f'{path}: line {number}: must be a retraction, e.g., {{"hash": "16 hex digits", "of": "text"}}. '
                "Correct the line, or write the list with `dataprep retract`"
            ) from error
        # Skip hashes for the other kind of dataset, because a corpus and a blend in the same folder may share a list.
        if "of" in origin and _is_of_rows(origin) != _is_of_rows(ids_origin):
            continue
        # Refuse hashes of a different field or key, because they would silently match no document.
        if origin != ids_origin:
            raise ConfigError(
                f"{path}: line {number}: the hash was made from {_format_origin(origin)}, but the dataset's hashes are "
                f"made from {_format_origin(ids_origin)}. Retract these documents again by their current ids, and "
                "delete the line"
            )
        hashed = value["hash"].lower()
        retractions[hashed] = Retraction(hash=hashed, given=value.get("id"))
    return retractions


def read_retracted_ids(path: Path | None, ids: DocumentIds | None) -> NDArray[np.uint64]:
    """Return the ids on a list: shape ``(ids,)``, uint64, sorted. Raises the errors of `read_retractions`."""
    retractions = read_retractions(path, ids)
    return np.array(sorted(int(digits, 16) for digits in retractions), np.uint64) if retractions else NONE_RETRACTED


def add_retractions(path: Path, ids: DocumentIds, new: Iterable[Retraction]) -> int:
    """Add entries to a list atomically and return the number of new entries.

    The given ids are stored only if hashes are not keyed.

    Args:
        path: The list, which is created if it does not exist.
        ids: The dataset's id scheme.
        new: The entries to add.

    Raises the errors of `read_retractions` and `append_lines`.
    """
    new_by_hash = {retraction.hash: retraction for retraction in new}

    def build_missing_lines() -> list[dict[str, Any]]:
        retractions = read_retractions(path, ids)
        return [
            _build_line(retraction, ids) for retraction in new_by_hash.values() if retraction.hash not in retractions
        ]

    return append_lines(path, build_missing_lines)


def append_lines(path: Path, missing: Callable[[], Sequence[Mapping[str, Any]]]) -> int:
    """Add lines to a list atomically, creating the list if needed, and return the number of added lines.

    Args:
        path: The list.
        missing: Returns the lines that are missing from the list; if it returns none, the list is not changed. It is
            called a second time while the list is locked.

    Raises TransferError if another process locks the list for an hour, and IntegrityError if the lock file is a link.
    """
    if not missing():
        return 0
    # Lock a separate file, because every change replaces the list. Remove the lock file afterwards, so that users do
    # not commit it.
    lock = path.with_name(f".{path.name}.lock")
    with lock_own_file(lock, str(path)):
        try:
            lines = missing()
            old_content = path.read_bytes() if path.exists() else b""
            # Add the last line ending if it is missing, because the first added line would otherwise continue the last
            # line.
            if old_content and not old_content.endswith(b"\n"):
                old_content += b"\n"
            added = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)
            if added:
                write_atomically(path, old_content + added)
        finally:
            lock.unlink(missing_ok=True)
    return len(lines)


def _build_line(retraction: Retraction, ids: DocumentIds) -> dict[str, Any]:
    line: dict[str, Any] = {"hash": retraction.hash, **_build_id_settings(ids)}
    # Do not store the id if there is a key, because the purpose of a key is to hide ids.
    return line if retraction.given is None or ids.key is not None else line | {"id": retraction.given}


def _build_id_settings(ids: DocumentIds) -> dict[str, str]:
    origin = {"of": ids.origin}
    return origin if ids.key_digest is None else origin | {"key": ids.key_digest}


def _is_of_rows(origin: Mapping[str, str]) -> bool:
    return origin.get("of", "").partition(" ")[0] == ROW


def _format_origin(origin: dict[str, str]) -> str:
    return ", ".join(origin.values()) + (" (the key's digest)" if "key" in origin else "")


def read_id_lines(path: Path) -> list[tuple[int, bytes]]:
    """Return the lines of a list of ids that are not blank, each with its number from 1.

    Raises ConfigError if the list has no ids.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"--ids {path}: cannot be read: {error.strerror or error}. Pass a readable file") from error
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ConfigError(f"--ids {path}: the file is UTF-16, not UTF-8. Save it as UTF-8")
    # Remove a byte order mark, because it is not part of the first id. Some Windows editors write it into UTF-8 files.
    lines = data.removeprefix(codecs.BOM_UTF8).splitlines()
    numbered_lines = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered_lines:
        raise ConfigError(f"--ids {path}: contains no ids. Write one per line")
    return numbered_lines


def hash_id_value(value: str, ids: DocumentIds) -> str:
    """Return the hash of a declared id or of a text, 16 hex digits."""
    return f"{hash_id(value, ids.key):016x}"


def find_listed(ids: NDArray[np.uint64], listed_hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return a mask of the ids that are in the sorted array `listed_hashes`: shape ``(ids,)``."""
    if not len(listed_hashes):
        return np.zeros(len(ids), np.bool_)
    is_listed: NDArray[np.bool_] = (
        listed_hashes[np.minimum(np.searchsorted(listed_hashes, ids), len(listed_hashes) - 1)] == ids
    )
    return is_listed


def describe_ids(ids: Sequence[str]) -> str:
    """Return the text for recipes: the number of ids and a digest; empty if there are no ids."""
    return f"ids of {count_of(len(ids), 'document')} ({digest_value(list(ids))[:12]})" if ids else ""


def format_ids(ids: NDArray[np.uint64] | Sequence[int]) -> tuple[str, ...]:
    """Return ids as 16 hex digits each, sorted."""
    return tuple(sorted(f"{int(document_id):016x}" for document_id in ids))


# --- Obsolete artifacts with removed documents
#
# The index of a shard shows whether the shard contains a removed document. An artifact built from shards (combined
# bins, runs, npy shards, views) is judged by the shards in its receipt, if they still exist with the same content.
#
# An artifact that cannot be judged counts as containing a removed document: an artifact that is incomplete, was built
# from deleted shards, or has a different kind of index. Its removal is safe, because no plan contains it.


def find_unplanned_retracted(
    store: ArtifactStore,
    unplanned: Iterable[Artifact],
    *,
    retractions: Path | None,
    load_ids: Callable[[], DocumentIds | None],
    snapshots: str,
    shards: str,
    source: Callable[[str], Artifact],
    contains: Callable[[Artifact, Receipt, DocumentIds, NDArray[np.uint64]], bool],
) -> list[Artifact]:
    """Return the unplanned artifacts that contain, or may contain, a removed document.

    Artifacts built from shards come before the shards, which are needed to judge them. Raises the errors of
    `read_retracted_ids`.

    Args:
        store: The store of the artifacts.
        unplanned: The artifacts of the dataset that are not in its plan.
        retractions: The dataset's retraction list.
        load_ids: Returns the dataset's id scheme, and may need a key; None if documents have no ids.
        snapshots: Name of the snapshots, which have names and digests of files but no documents.
        shards: Name of the shards.
        source: Returns the artifact for the name of an input in a receipt.
        contains: Returns whether a shard contains, or may contain, a document with one of the sorted hashes.
    """
    if retractions is None or not retractions.exists():
        return []
    candidates = [candidate for candidate in unplanned if candidate.name != snapshots]
    if not candidates:  # return before `load_ids`, which may need a key
        return []
    ids = load_ids()
    hashes = read_retracted_ids(retractions, ids)
    if ids is None or not len(hashes):
        return []

    # Cache the result, because many artifacts are built from the same shard.
    @cache
    def is_affected(artifact: Artifact) -> bool:
        try:
            receipt = store.receipt(artifact)
            if receipt is None:
                return True
            if artifact.name == shards:
                return contains(artifact, receipt, ids, hashes)
            return any(not is_there(name, content) for name, content in receipt.inputs.items())
        except (DataprepError, OSError):  # a damaged artifact may contain a removed document
            return True

    def is_there(name: str, content: str) -> bool:
        """Return whether an input still exists with the same content, and contains no removed document."""
        receipt = store.receipt(source(name))
        return receipt is not None and receipt.content == content and not is_affected(source(name))

    return sorted(filter(is_affected, candidates), key=lambda artifact: artifact.name == shards)
