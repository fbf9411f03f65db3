"""Lookup of the documents on a list of ids, with counts per shard.

The index finds documents of finished shards. `LeftOutRows` finds other rows by their tags or in the source.

The tags of a shard contain the ids of all its documents. Rows without tags are read from the source, even if no split
or glob matches their file, because a removal request must also apply to future documents.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from glob import escape
from pathlib import Path

import numpy as np

from dataprep_assets.curation.documents import FileDocuments
from dataprep_assets.curation.dropped_rows import DroppedRows
from dataprep_assets.curation.duplicates.removed_file import DUPLICATES
from dataprep_assets.curation.id_list import IdLine, MatchedLines, match_lines, read_ids
from dataprep_assets.curation.retractions import (
    add_retractions,
    format_ids,
    hash_id_value,
    read_retractions,
)
from dataprep_assets.curation.table import read_joined_tables
from dataprep_assets.engine.trace.retraction import NOT_BUILT, RetractedAmount, RetractionResult
from dataprep_assets.errors import ConfigError, DataprepError
from dataprep_assets.fields import value_at
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import RETRACTED
from dataprep_assets.pipelines.corpus.curation.kept_documents import predict_duplicates_change
from dataprep_assets.pipelines.corpus.curation.selection import find_ruled_out_rows
from dataprep_assets.pipelines.corpus.curation.selection_counts import SELECTION
from dataprep_assets.pipelines.corpus.curation.tagged_shard import ROWS, TAGS
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest import Manifest, has_manifest, load_manifest
from dataprep_assets.pipelines.corpus.source.source_parts import build_present_part
from dataprep_assets.planning.manifest import ManifestEntry, build_manifest
from dataprep_assets.sources.access import Listing, find_copies
from dataprep_assets.sources.readers.records import RecordFields
from dataprep_assets.stream.source import open_source
from dataprep_assets.stream.stream_index import IndexedShard
from dataprep_assets.stream.token_shard import TOKEN_BINS
from dataprep_assets.stream.token_stream import SourcePart
from dataprep_assets.tokenization.document_ids import DocumentIds

_MAX_RECORD_BYTES = 1 << 40
"""Maximum size in bytes of a record that is read only for its id; larger than the limit of `bad_records`."""


@dataclass(frozen=True, kw_only=True)
class LeftOutRow:
    """A row that is in no stream: its id (16 hex digits) and the reason."""

    hash: str
    why: str


class LeftOutRows:
    """Lookup of the rows of a corpus that are in no finished stream."""

    def __init__(self, corpus: CorpusDeclaration, store: ArtifactStore, ids: DocumentIds) -> None:
        """Set the corpus, its store and its ids; files are read later."""
        self._corpus, self._store, self._ids = corpus, store, ids

    def find_row(self, file: str, row: int) -> LeftOutRow | None:
        """Return the row of a source file; None if it does not exist or has no id.

        Raises SourceError or another DataprepError if the source cannot be read.
        """
        shards = self._shards_by_file.get(file, ())
        return next(
            (tagged_row for shard in shards for tagged_row in self._find_tagged_rows(shard, position=(file, row))), None
        ) or self._read_row(file, row)

    def find_by_ids(self, hashes: Collection[str]) -> Iterator[LeftOutRow]:
        """Yield the rows of tagged shards that have these ids."""
        if hashes and self._manifest is not None:
            for shard in self._manifest.plan:
                yield from self._find_tagged_rows(shard, hashes=hashes)

    @cached_property
    def _manifest(self) -> Manifest | None:
        return load_manifest(self._corpus, self._store) if has_manifest(self._corpus, self._store) else None

    @cached_property
    def _shards_by_file(self) -> Mapping[str, list[str]]:
        """Source file → the shards that contain its rows."""
        shards_by_file: dict[str, list[str]] = {}
        if (manifest := self._manifest) is not None:
            for shard in manifest.plan:
                for entry in manifest.shard(shard):
                    shards_by_file.setdefault(entry.relpath, []).append(shard)
        return shards_by_file

    def _find_tagged_rows(
        self, shard: str, *, hashes: Collection[str] = (), position: tuple[str, int] | None = None
    ) -> Iterator[LeftOutRow]:
        """Yield the rows in a shard's tags with one of the ids `hashes`, or at `position` (file and row)."""
        import pyarrow as pa
        import pyarrow.compute as pc

        tags = self._corpus.artifact(TAGS, shard)
        if not self._corpus.has_table or self._store.receipt(tags) is None:
            return
        selected = self._find_selected_rows(shard)
        for piece in read_joined_tables([self._store.local(tags, [ROWS]) / ROWS], ["file", "row", "id"]):
            if position is None:
                mask = pc.is_in(piece["id"], value_set=pa.array(sorted(hashes), pa.string()))
            else:
                mask = pc.and_(pc.equal(piece["file"], position[0]), pc.equal(piece["row"], position[1]))
            for tags_row in piece.filter(mask).to_pylist():
                if tags_row["id"] is not None:
                    row = np.array([tags_row["row"]], np.uint64)
                    reason = None if selected is None else selected.select_file(tags_row["file"]).find_reasons(row)[0]
                    yield LeftOutRow(hash=tags_row["id"], why=reason or NOT_BUILT)

    def _find_selected_rows(self, shard: str) -> DroppedRows | None:
        is_selected = self._corpus.selects and self._store.receipt(self._corpus.artifact(SELECTION, shard)) is not None
        return find_ruled_out_rows(self._corpus, self._store, shard) if is_selected else None

    def _read_row(self, file: str, row: int) -> LeftOutRow | None:
        """Read a row from the current source file; return None if it does not exist or has no id."""
        corpus, entry = self._corpus, self._find_entry(file)
        if entry is None:
            return None
        access = open_source(corpus.source)
        access.fetch([entry])
        # Read the source text, which the id is of, so that a rewriter that fails does not prevent a removal.
        part = build_present_part(corpus, entry, access.path(entry)).as_stored
        fields = RecordFields(corpus.text_field, self._ids.id_field)
        try:
            if (block := part.record_at(row, fields)) is None:
                return None
            reason = block.bad[0].reason if block.bad else NOT_BUILT
            part = replace(part, max_record_bytes=_MAX_RECORD_BYTES)
            hashes = FileDocuments.from_block(part.record_at(row, fields) or block, self._ids).ids
            if hashes is not None and len(hashes):
                return LeftOutRow(hash=format_ids(hashes)[0], why=reason)
            declared_id = self._parse_declared_id(part, row)
        except FileNotFoundError:  # the file no longer exists
            return None
        return (
            None
            if declared_id is None
            else LeftOutRow(hash=format_ids(self._ids.hash_texts([""], [declared_id]))[0], why=reason)
        )

    def _parse_declared_id(self, part: SourcePart, row: int) -> str | None:
        """Return the declared id of a record without a text; None if it has none."""
        if (field := self._ids.id_field) is None:
            return None
        for block in part.read_rows([field], only={row}):
            for value in block.rows:
                id_value = value_at(value, field)
                if isinstance(id_value, str | int) and not isinstance(id_value, bool):
                    return str(id_value)
        return None

    def _find_entry(self, file: str) -> ManifestEntry | None:
        """Return the manifest entry of a source file, even if no split or glob matches it."""
        planned_entry = self._planned_entries.get(file)
        if planned_entry is not None:
            return planned_entry
        files = [candidate for candidate in self._listing.files if candidate.relpath == file]
        if not files:
            return None
        try:
            (entry,) = build_manifest(
                files,
                include=[escape(file)],
                splits={"": ["**"]},
                commit=self._listing.commit,
                url_prefix=self._listing.url_prefix,
            )
        except DataprepError:  # a manifest cannot contain the file, e.g., because its format is unknown
            return None
        return entry

    @cached_property
    def _planned_entries(self) -> Mapping[str, ManifestEntry]:
        return {} if self._manifest is None else {entry.relpath: entry for entry in self._manifest.entries}

    @cached_property
    def _listing(self) -> Listing:
        return open_source(self._corpus.source).list()


@dataclass(frozen=True, kw_only=True)
class HeldDocuments:
    """Listed documents in one shard; `files` maps the names of their source files to SHA-256.

    If `planned` is False, the shard belongs to an older plan, and no artifact reads it.
    """

    partition: str
    planned: bool
    documents: int
    tokens: int
    files: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class LocatedRows(MatchedLines):
    """Result of looking up a list of ids.

    Attributes:
        left_out: Reason why rows are in no finished shard → number of found ids of such rows.
        shards: The shards that contain listed documents, including documents that the next run drops anyway.
    """

    left_out: Mapping[str, int]
    shards: tuple[HeldDocuments, ...]


def require_document_ids(corpus: CorpusDeclaration) -> DocumentIds:
    """Return the id settings of a corpus; raise ConfigError if the corpus does not identify its documents."""
    ids = corpus.document.ids(sensitive=corpus.sensitive)
    if ids is None:
        raise ConfigError(
            f"{corpus.dataset}: the dataset is sensitive and has no `document.id_key`, so its documents cannot be "
            "found. Declare `document.id_key` and run the dataset"
        )
    return ids


def locate_rows(corpus: CorpusDeclaration, store: ArtifactStore, id_lines: Sequence[IdLine]) -> LocatedRows:
    """Find the documents of a list, in finished shards and elsewhere.

    Args:
        corpus: The dataset.
        store: The store of its shards.
        id_lines: The parsed lines of the list.

    Raises ConfigError for declared ids if the dataset declares no id field. Raises another DataprepError if a row must
    be read from the source and cannot be.
    """
    ids = require_document_ids(corpus)
    left_out = LeftOutRows(corpus, store, ids)
    planned_shards, unplanned = _find_shards(corpus, store)
    # List the planned shards first, because they take precedence over unplanned shards with the same file.
    shards = [*planned_shards, *unplanned]
    shards_by_file: dict[str, list[IndexedShard]] = {}
    for shard in shards if any(line.file is not None for line in id_lines) else ():
        for file in shard.files:
            shards_by_file.setdefault(file, []).append(shard)
    left_out_rows: list[LeftOutRow] = []
    hashes = [_find_id(corpus, line, ids, shards_by_file, left_out, left_out_rows) for line in id_lines]
    listed_before = read_retractions(corpus.retractions, ids).keys()
    new_hashes = {row_hash for row_hash in hashes if row_hash is not None} - listed_before
    # Sort the ids, because `find_by_hashes` requires sorted ids.
    sorted_ids = np.array(sorted({int(row_hash, 16) for row_hash in hashes if row_hash is not None}), np.uint64)
    held_hashes: set[str] = set()
    held_documents = []
    for number, shard in enumerate(shards):
        positions = shard.find_by_hashes(sorted_ids)
        if len(positions):
            held_hashes.update(format_ids([int(shard.hashes[document]) for document in positions.tolist()]))
            held_documents.append(
                HeldDocuments(
                    partition=shard.partition,
                    planned=number < len(planned_shards),
                    documents=len(positions),
                    tokens=shard.tokens_of(positions),
                    files=shard.sources_of(positions),
                )
            )
    left_out_rows += left_out.find_by_ids(new_hashes - held_hashes - {row.hash for row in left_out_rows})
    # Add the documents that were already retracted when the planned shards were built, because their ids may have been
    # removed from the list since then.
    left_out_rows += [LeftOutRow(hash=h, why=RETRACTED) for shard in planned_shards for h in shard.facts.retracted]
    # Reverse the rows, because a dict keeps the last value of each key, but the first reason found for an id takes
    # precedence.
    reasons = {row.hash: row.why for row in reversed(left_out_rows) if row.hash in new_hashes - held_hashes}
    matched = match_lines(id_lines, hashes, known_hashes={*held_hashes, *reasons}, listed_before=listed_before)
    return LocatedRows(
        **vars(matched), left_out=dict(Counter(reasons.values()).most_common()), shards=tuple(held_documents)
    )


def _find_shards(corpus: CorpusDeclaration, store: ArtifactStore) -> tuple[list[IndexedShard], list[IndexedShard]]:
    """Return the finished shards of the plan, and the unplanned shards whose ids can be compared with the list's."""
    if not has_manifest(corpus, store):
        return [], []
    plan, ids = load_manifest(corpus, store).plan, require_document_ids(corpus)
    unplanned_keys = [key for key in store.partitions(corpus.dataset, TOKEN_BINS) if key not in plan]
    # Do not suppress errors here, because an unreadable shard of the plan may contain listed documents.
    planned_shards = [shard for shard in _open_indexes(corpus, store, plan) if shard.facts.document_ids is not None]
    # Skip unplanned shards with a different id field or key, because their hashes cannot be compared with the list.
    kind = (ids.id_field, ids.key_digest)
    same_shards = []
    for key in unplanned_keys:
        with suppress(DataprepError, OSError):  # `find_unplanned_retracted` lists unreadable shards
            same_shards += [
                candidate
                for candidate in _open_indexes(corpus, store, [key])
                if (candidate.facts.id_field, candidate.facts.id_key) == kind
            ]
    return planned_shards, [shard for shard in same_shards if shard.facts.document_ids is not None]


def _open_indexes(corpus: CorpusDeclaration, store: ArtifactStore, keys: Iterable[str]) -> Iterator[IndexedShard]:
    artifacts = [corpus.artifact(TOKEN_BINS, key) for key in keys]
    for artifact, receipt in zip(artifacts, store.receipts(artifacts), strict=True):
        if receipt is not None:
            yield IndexedShard(store, artifact, receipt)


def _find_id(
    corpus: CorpusDeclaration,
    line: IdLine,
    ids: DocumentIds,
    shards_by_file: Mapping[str, Sequence[IndexedShard]],
    left_out: LeftOutRows,
    left_out_rows: list[LeftOutRow],
) -> str | None:
    """Return the id of the document on a line; add a row that is in no finished shard to `left_out_rows`."""
    if line.hash is not None:
        return line.hash
    if line.file is not None:
        hashes = (shard.hash_at(line.file, line.row) for shard in shards_by_file.get(line.file, ()))
        row_hash = next((h for h in hashes if h is not None), None)
        if row_hash is not None:
            return f"{row_hash:016x}"
        if (row := left_out.find_row(line.file, line.row)) is None:
            return None
        left_out_rows.append(row)
        return row.hash
    if ids.id_field is None:
        id_text = "" if corpus.sensitive else f" ({line.id!r})"
        raise ConfigError(
            f"line {line.line}{id_text}: {corpus.dataset} declares no `document.id_field`, so its documents have no "
            "ids. Write file:row, or the 16 hex digits of a text's hash"
        )
    return hash_id_value(line.id or "", ids)


def retract_documents(
    corpus: CorpusDeclaration, store: ArtifactStore, path: Path, *, strict: bool = False
) -> RetractionResult:
    """Add the documents of a list of ids to a corpus's retraction list.

    Args:
        corpus: The dataset.
        store: The store of its shards.
        path: The list of ids.
        strict: Write nothing unless every line is found or was already retracted.

    Raises the errors of `read_ids`, `locate_rows` and `add_retractions`.
    """
    assert corpus.retractions is not None, "a located declaration has a list"
    lines = read_ids(path)
    rows = locate_rows(corpus, store, lines)
    retractions = () if strict and rows.unknown else rows.listed
    names = sorted({name for shard in rows.shards for name in shard.files})
    added = add_retractions(corpus.retractions, require_document_ids(corpus), retractions)
    # Predict the change only after the list is written, because the prediction reads the list.
    change = predict_duplicates_change(corpus, store) if added else None
    return RetractionResult(
        list=corpus.retractions,
        given=len(lines),
        already=len(rows.already),
        found=len(rows.found),
        added=added,
        not_found=rows.not_found(sensitive=corpus.sensitive),
        counted=("document", "token"),
        held=tuple(
            RetractedAmount(partition=s.partition, counts=(s.documents, s.tokens), planned=s.planned)
            for s in rows.shards
        ),
        left_out=rows.left_out,
        artifact=_find_first_changed_artifact(corpus),
        change=change,
        partitions="shard",
        kept="If documents with a listed id or hash appear later, they are dropped",
        files=frozenset(digest for shard in rows.shards for digest in shard.files.values()),
        copies=find_copies(open_source(corpus.source), names, sensitive=corpus.sensitive),
    )


def _find_first_changed_artifact(corpus: CorpusDeclaration) -> str:
    """Return the name of the first artifact that a retraction changes."""
    if corpus.duplicates is not None:
        return DUPLICATES
    return SELECTION if corpus.selects else TOKEN_BINS
