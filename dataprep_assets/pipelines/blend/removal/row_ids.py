"""Ids of rows (conversations, pairs and records), by which `dataprep retract` removes rows from a blend.

`row_ids.npy`, an int64 array next to a shard's rows, has one line per row that the shard has read: the ordinal of its
source, its row number, and its hash (`tokenization/document_ids.py`). Dropped rows and removed rows are included so
that they can be found by their ids. Rows that could not be parsed are not included. A sensitive blend without a key has
no such file.

A shard's key covers the listed hashes that the shard has read, so a changed retraction list rebuilds only the shards
that have read the listed rows.

Entry points: `RowRetractions`, `load_row_retractions`; `ReadRows` for a build; `RowIndex`, `find_current_retractions`.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.retractions import find_listed, format_ids, read_retracted_ids
from dataprep_assets.errors import ConfigError, DataprepError
from dataprep_assets.formats.row_origins import ORIGINS, Origins, parse_origins, write_origins
from dataprep_assets.integrity.artifacts import Artifact, ArtifactHandle, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.stream.stream_index import IndexedShard
from dataprep_assets.tokenization.document_ids import DocumentIds, RowIds

ROW_IDS = "row_ids.npy"
_MAX_ROWS = 1 << 40
"""Upper limit of row numbers, which allows a source's ordinal and a row to be combined into one integer."""


@dataclass(frozen=True, kw_only=True)
class RowRetractions:
    """The kind of a blend's row ids, and the hashes on its retraction list. Instances are picklable.

    `ids` is None for a sensitive blend without a key. `listed_bytes` has the sorted hashes as little-endian uint64, and
    `hashes` returns them as an array.
    """

    ids: RowIds | None = field(default_factory=RowIds)
    listed_bytes: bytes = field(default=b"", repr=False)

    @property
    def hashes(self) -> NDArray[np.uint64]:
        """The hashes on the list: shape `(hashes,)`, uint64, sorted."""
        return np.frombuffer(self.listed_bytes, "<u8").astype(np.uint64, copy=False)

    def key_parts(self) -> dict[str, str]:
        """Return the parts of a shard's key that identify the kind of ids; empty for unkeyed ids of whole rows."""
        if self.ids is None:
            return {"row_ids": "none"}
        return {name: str(value) for name, value in self.ids.key_parts().items() if value is not None}


def load_row_retractions(blend: BlendDeclaration) -> RowRetractions:
    """Return the kind of ids and the retraction list of a blend.

    Raises ConfigError if there is a list but rows have no ids, and the errors of `read_retracted_ids`.
    """
    ids = load_blend_ids(blend)
    assert ids is None or isinstance(ids, RowIds), "not for pretraining"
    if ids is None and blend.retractions is not None and blend.retractions.exists():
        raise ConfigError(f"{blend.retractions}: {describe_missing_id_key(blend)}, or remove the list")
    return RowRetractions(ids=ids, listed_bytes=read_retracted_ids(blend.retractions, ids).astype("<u8").tobytes())


def load_blend_ids(blend: BlendDeclaration) -> DocumentIds | None:
    """Return the kind of ids of a blend's documents or rows; None for a sensitive blend without a key.

    Raises ConfigError if the declared key is not in the environment.
    """
    key = blend.source_key.load("source_key") if blend.source_key is not None else None
    kind = DocumentIds if blend.stage == "pretrain" else RowIds
    return kind(id_field=blend.id_field, key=key) if blend.has_row_ids else None


def describe_missing_id_key(blend: BlendDeclaration) -> str:
    """Return a sentence about a sensitive blend without a key, with the remedy."""
    return (
        f"{blend.dataset} is sensitive and has no `source_key`, so its rows cannot be found. Declare one and run the "
        "dataset once"
    )


class ReadRows:
    """The ids of the rows that a build reads, in the order of reading."""

    def __init__(self, retractions: RowRetractions) -> None:
        """Start with no rows. The rows may be from several files."""
        self._ids, self._listed = retractions.ids, frozenset(retractions.hashes.tolist())
        # Use arrays instead of lists to save memory, because a shard may have millions of rows.
        self._ordinals, self._rows, self._hashes = array("q"), array("q"), array("Q")

    def is_retracted(self, row: Mapping[str, Any], ordinal: int, number: int) -> bool:
        """Return whether a row is on the retraction list; also record the row's id, source and number."""
        if self._ids is None:
            return False
        row_hash = self._ids.hash_row(row)
        self._ordinals.append(ordinal)
        self._rows.append(number)
        self._hashes.append(row_hash)
        return row_hash in self._listed

    @property
    def table(self) -> Origins:
        """The lines of `row_ids.npy`: shape `(rows, 3)`, int64."""
        columns = (np.array(self._ordinals, np.int64), np.array(self._rows, np.int64))
        return np.column_stack([*columns, np.array(self._hashes, np.uint64).view(np.int64)])


def extract_hashes(table: Origins) -> NDArray[np.uint64]:
    """Return the hashes in the lines of `row_ids.npy`: shape `(rows,)`, uint64."""
    return np.ascontiguousarray(table[:, 2]).view(np.uint64)


def write_row_ids(folder: Path, table: Origins, retractions: RowRetractions) -> tuple[str, ...]:
    """Write `row_ids.npy` into a shard's folder unless rows have no ids; return the listed hashes that it contains."""
    if retractions.ids is None:
        return ()
    write_origins(folder / ROW_IDS, [table])
    return find_listed_hashes(table, retractions)


def find_listed_hashes(table: Origins, retractions: RowRetractions) -> tuple[str, ...]:
    """Return the listed hashes in the lines of `row_ids.npy`, as sorted hex strings."""
    hashes = extract_hashes(table)
    return format_ids(np.unique(hashes[find_listed(hashes, retractions.hashes)]))


class RowIndex:
    """Index of the rows that a finished shard of conversations, pairs or records has read, by their ids."""

    def __init__(self, receipt: Receipt, read: Callable[[str], bytes]) -> None:
        """Open the index of a shard, which must have one (`has_index`). `read` returns the content of a file."""
        self._receipt, self._read = receipt, read
        self._sources: Sequence[Mapping[str, Any]] = receipt.facts.get("sources", ())

    @classmethod
    def from_store(cls, store: ArtifactStore, artifact: Artifact, receipt: Receipt) -> Self:
        """Open the index of a shard in its store."""
        return cls(receipt, ArtifactHandle(store, artifact, receipt).read)

    @classmethod
    def from_folder(cls, directory: Path, receipt: Receipt) -> Self:
        """Open the index of a shard in a local folder."""
        return cls(receipt, lambda name: (directory / name).read_bytes())

    @cached_property
    def table(self) -> Origins:
        """The lines of `row_ids.npy`. Raises FormatError if it is damaged."""
        return parse_origins(self._read(ROW_IDS), 3, f"{self._receipt.partition}/{ROW_IDS}")

    @cached_property
    def hashes(self) -> NDArray[np.uint64]:
        """The hash of each line: shape `(rows,)`, uint64."""
        return extract_hashes(self.table)

    @cached_property
    def files(self) -> list[str]:
        """Names of the shard's source files."""
        return [str(source["file"]) for source in self._sources]

    @cached_property
    def are_kept(self) -> NDArray[np.bool_]:
        """Whether the row of each line is in the shard: shape `(rows,)`."""
        if not any(record.path == ORIGINS for record in self._receipt.files):
            return np.zeros(len(self.table), np.bool_)
        # The origins of sequences have a third column, the number of the sequence in its conversation.
        columns = 3 if "sequences" in self._receipt.facts else 2
        origins = parse_origins(self._read(ORIGINS), columns, f"{self._receipt.partition}/{ORIGINS}")
        return np.isin(_combine_positions(self.table), _combine_positions(origins))

    def find_lines(self, wanted_hashes: NDArray[np.uint64]) -> NDArray[np.intp]:
        """Return the numbers of the lines with one of these sorted hashes."""
        return np.flatnonzero(find_listed(self.hashes, wanted_hashes))

    def hash_at(self, file: str, row: int) -> int | None:
        """Return the hash of a row of a source file; None if the shard has not read it."""
        ordinals = [source["ordinal"] for source in self._sources if source["file"] == file]
        lines = np.flatnonzero(np.isin(self.table[:, 0], ordinals) & (self.table[:, 1] == row))
        return int(self.hashes[lines[0]]) if len(lines) else None

    def locate_row(self, line: int) -> tuple[str, int]:
        """Return the source file and the row of a line."""
        ordinal, row = self.table[line, :2].tolist()
        return next(str(source["file"]) for source in self._sources if source["ordinal"] == ordinal), row

    def count_tokens(self, lines: NDArray[np.intp]) -> tuple[int, ...]:
        """Return an empty tuple, because this index does not count tokens."""
        return ()

    def find_sources(self, lines: NDArray[np.intp]) -> Mapping[str, str]:
        """Return the SHA-256 of the source files of these lines, by name."""
        ordinals = set(self.table[lines, 0].tolist())
        return {str(s["file"]): str(s["sha256"]) for s in self._sources if s["ordinal"] in ordinals}


class DocumentIndex:
    """Index of the documents of a finished pretraining shard, by their ids, with the methods of `RowIndex`.

    Line numbers are document numbers. Every document is kept, because the index does not list dropped documents.
    """

    def __init__(self, shard: IndexedShard) -> None:
        self._shard = shard

    @property
    def hashes(self) -> NDArray[np.uint64]:
        """The hash of each document: shape `(documents,)`, uint64."""
        return np.asarray(self._shard.hashes[:])

    @property
    def files(self) -> list[str]:
        """Names of the shard's source files."""
        return self._shard.files

    @property
    def are_kept(self) -> NDArray[np.bool_]:
        """Whether each document is in the shard: shape `(documents,)`."""
        return np.ones(self._shard.documents, np.bool_)

    def find_lines(self, wanted_hashes: NDArray[np.uint64]) -> NDArray[np.intp]:
        """Return the numbers of the documents with one of these sorted hashes."""
        return self._shard.find_by_hashes(wanted_hashes)

    def hash_at(self, file: str, row: int) -> int | None:
        """Return the hash of a row of a source file; None if it is not a document of the shard."""
        return self._shard.hash_at(file, row)

    def locate_row(self, line: int) -> tuple[str, int]:
        """Return the source file and the row of a document."""
        file, row = self._shard.rows.locate(line)
        return self.files[file], row

    def count_tokens(self, lines: NDArray[np.intp]) -> tuple[int, ...]:
        """Return a tuple with the total number of tokens of these documents."""
        return (self._shard.tokens_of(lines),)

    def find_sources(self, lines: NDArray[np.intp]) -> Mapping[str, str]:
        """Return the SHA-256 of the source files of these documents, by name."""
        return self._shard.sources_of(lines)


def open_index(
    store: ArtifactStore, artifact: Artifact, receipt: Receipt, ids: DocumentIds
) -> RowIndex | DocumentIndex | None:
    """Return the index of a finished shard; None unless its ids have the same field and key as `ids`."""
    if isinstance(ids, RowIds):
        return RowIndex.from_store(store, artifact, receipt) if has_index(receipt, ids) else None
    shard = IndexedShard(store, artifact, receipt)
    is_same = (shard.facts.id_field, shard.facts.id_key) == (ids.id_field, ids.key_digest)
    return DocumentIndex(shard) if shard.facts.document_ids is not None and is_same else None


def _combine_positions(lines: Origins) -> NDArray[np.int64]:
    return lines[:, 0] * _MAX_ROWS + lines[:, 1]


def has_index(receipt: Receipt, ids: RowIds) -> bool:
    """Return whether a shard has an index whose ids are comparable with `ids`: of the same field, with the same key."""
    settings = receipt.recipe.get("settings", {})
    is_same = (settings.get("id_field"), settings.get("id_key")) == (ids.id_field, ids.key_digest)
    return is_same and any(record.path == ROW_IDS for record in receipt.files)


def find_current_retractions(store: ArtifactStore, shard: Artifact, retractions: RowRetractions) -> tuple[str, ...]:
    """Return the listed hashes that the existing shard has read, as sorted hex strings.

    The result is empty for a missing or unreadable shard. Such a shard is built in any case, and its new key then
    covers the hashes that it has read.
    """
    if not retractions.listed_bytes or retractions.ids is None:
        return ()
    try:
        receipt = store.receipt(shard)
        if receipt is None or not has_index(receipt, retractions.ids):
            return ()
        return find_listed_hashes(RowIndex.from_store(store, shard, receipt).table, retractions)
    except (DataprepError, OSError):
        return ()
