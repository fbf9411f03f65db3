"""Lookup of the documents that a list of ids names, counted by shard.

The index finds documents of finished shards. `LeftOutRows` finds other rows by their tags or in the source.

The tags of a shard have the id of every row with a document. A row without tags is read from the source, even if no
split or glob matches its file, because a removal request must also apply to future documents.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.bounds import json_of
from dataprep_assets.curation.documents import FileDocuments
from dataprep_assets.curation.dropped_rows import RuledOut
from dataprep_assets.curation.retractions import (
    Retraction,
    add_retractions,
    hex_ids,
    id_lines,
    id_of,
    read_retractions,
)
from dataprep_assets.curation.table import read_joined
from dataprep_assets.engine.trace.retraction import NOT_BUILT, Held, NotFound, Retracted
from dataprep_assets.errors import ConfigError, DataprepError, SourceError
from dataprep_assets.fields import value_at
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import RETRACTED
from dataprep_assets.pipelines.corpus.curation.kept_documents import duplicates_change
from dataprep_assets.pipelines.corpus.curation.selection import ruled_out_rows
from dataprep_assets.pipelines.corpus.curation.selection_counts import SELECTION
from dataprep_assets.pipelines.corpus.curation.tagged_shard import ROWS, TAGS
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates.removed_duplicates import DUPLICATES
from dataprep_assets.pipelines.corpus.source.manifest import Manifest, has_manifest, load_manifest
from dataprep_assets.pipelines.corpus.source.source_parts import present_part
from dataprep_assets.planning.manifest import ManifestEntry, build_manifest, file_format
from dataprep_assets.sources.access import Listing
from dataprep_assets.sources.readers.records import RecordFields
from dataprep_assets.stream.source import open_source
from dataprep_assets.stream.stream_index import IndexedShard
from dataprep_assets.stream.token_shard import TOKEN_BINS
from dataprep_assets.stream.token_stream import SourcePart
from dataprep_assets.tokenization.document_ids import DocumentIds

_ANY_SIZE = 1 << 40
"""Maximum bytes of a record that is read only for its id; larger than the limit of `bad_records`."""


@dataclass(frozen=True, kw_only=True)
class LeftOutRow:
    """A row that is in no stream: its id (16 hex digits) and the reason."""

    hash: str
    why: str


class LeftOutRows:
    """The rows of a corpus that are in no finished stream."""

    def __init__(self, corpus: CorpusDeclaration, store: ArtifactStore, ids: DocumentIds) -> None:
        """Set the corpus, its store and its ids; read nothing yet."""
        self._corpus, self._store, self._ids = corpus, store, ids

    def find_row(self, file: str, row: int) -> LeftOutRow | None:
        """Return the row of a source file; None if it does not exist or has no id.

        Raises SourceError or another DataprepError if the source cannot be read.
        """
        shards = self._of_file.get(file, ())
        return next(
            (tagged_row for shard in shards for tagged_row in self._tagged_rows(shard, at=(file, row))), None
        ) or self._read_row(file, row)

    def with_ids(self, hashes: Collection[str]) -> Iterator[LeftOutRow]:
        """Yield the rows of tagged shards that have these ids."""
        if hashes and self._manifest is not None:
            for shard in self._manifest.plan:
                yield from self._tagged_rows(shard, hashes=hashes)

    @cached_property
    def _manifest(self) -> Manifest | None:
        return load_manifest(self._corpus, self._store) if has_manifest(self._corpus, self._store) else None

    @cached_property
    def _of_file(self) -> Mapping[str, list[str]]:
        """Source file → the shards that contain its rows."""
        shards_of: dict[str, list[str]] = {}
        if (manifest := self._manifest) is not None:
            for shard in manifest.plan:
                for entry in manifest.shard(shard):
                    shards_of.setdefault(entry.relpath, []).append(shard)
        return shards_of

    def _tagged_rows(
        self, shard: str, *, hashes: Collection[str] = (), at: tuple[str, int] | None = None
    ) -> Iterator[LeftOutRow]:
        """Yield the rows in a shard's tags that have one of these ids, or that are at this file and row."""
        import pyarrow as pa
        import pyarrow.compute as pc

        tags = self._corpus.artifact(TAGS, shard)
        if not self._corpus.has_table or self._store.receipt(tags) is None:
            return
        selected = self._selected(shard)
        for piece in read_joined([self._store.local(tags, [ROWS]) / ROWS], ["file", "row", "id"]):
            if at is None:
                mask = pc.is_in(piece["id"], value_set=pa.array(sorted(hashes), pa.string()))
            else:
                mask = pc.and_(pc.equal(piece["file"], at[0]), pc.equal(piece["row"], at[1]))
            for tags_row in piece.filter(mask).to_pylist():
                if tags_row["id"] is not None:
                    row = np.array([tags_row["row"]], np.uint64)
                    why = None if selected is None else selected.rows_of(tags_row["file"]).reasons(row)[0]
                    yield LeftOutRow(hash=tags_row["id"], why=why or NOT_BUILT)

    def _selected(self, shard: str) -> RuledOut | None:
        is_selected = self._corpus.selects and self._store.receipt(self._corpus.artifact(SELECTION, shard)) is not None
        return ruled_out_rows(self._corpus, self._store, shard) if is_selected else None

    def _read_row(self, file: str, row: int) -> LeftOutRow | None:
        """Read a row from the current source file."""
        corpus, entry = self._corpus, self._entry(file)
        if entry is None:
            return None
        access = open_source(corpus.source)
        access.fetch([entry])
        part = present_part(corpus, entry, access.path(entry))
        fields = RecordFields(corpus.text_field, self._ids.id_field)
        try:
            if (block := part.record_at(row, fields)) is None:
                return None
            why = block.bad[0].reason if block.bad else NOT_BUILT
            part = replace(part, max_record_bytes=_ANY_SIZE)
            hashes = FileDocuments.from_block(part.record_at(row, fields) or block, self._ids).ids
            if hashes is not None and len(hashes):
                return LeftOutRow(hash=hex_ids(hashes)[0], why=why)
            declared_id = self._declared_id(part, row)
        except FileNotFoundError:  # the file was deleted after the source was listed
            return None
        return (
            None
            if declared_id is None
            else LeftOutRow(hash=hex_ids(self._ids.hash_texts([""], [declared_id]))[0], why=why)
        )

    def _declared_id(self, part: SourcePart, row: int) -> str | None:
        """Return the declared id of a record without a text."""
        if (field := self._ids.id_field) is None:
            return None
        for block in part.read_rows([field], only={row}):
            for value in block.rows:
                id_value = value_at(value, field)
                if isinstance(id_value, str | int) and not isinstance(id_value, bool):
                    return str(id_value)
        return None

    def _entry(self, file: str) -> ManifestEntry | None:
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
        except DataprepError:  # the file has no readable format
            return None
        return entry

    @cached_property
    def _planned_entries(self) -> Mapping[str, ManifestEntry]:
        return {} if self._manifest is None else {entry.relpath: entry for entry in self._manifest.entries}

    @cached_property
    def _listing(self) -> Listing:
        return open_source(self._corpus.source).list()


@dataclass(frozen=True, kw_only=True)
class IdLine:
    """A line of a list of ids: a declared id, a hash of the index, or a row of a source file.

    `line` counts from 1.
    """

    line: int
    text: str
    id: str | None = None
    hash: str | None = None
    file: str | None = None
    row: int = 0


@dataclass(frozen=True, kw_only=True)
class HeldDocuments:
    """The listed documents in one shard. `files` are their source files: name → SHA-256.

    If `planned` is False, the shard belongs to an older plan and no artifact reads it.
    """

    partition: str
    planned: bool
    documents: int
    tokens: int
    files: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class LocatedRows:
    """The result of looking up a list of ids.

    Attributes:
        found: Ids that are not on the list yet and that a row has, in a finished shard or elsewhere.
        left_out: Reason why rows are in no finished shard → how many of the found ids they have.
        listed: Entries for the retraction list: the found ids, and ids without a row, for future documents.
        already: Lines whose ids are already on the list.
        unknown: Lines that match no row.
        shards: The shards that contain listed documents, including documents that the next run drops anyway.
    """

    found: tuple[Retraction, ...]
    left_out: Mapping[str, int]
    listed: tuple[Retraction, ...]
    already: tuple[IdLine, ...]
    unknown: tuple[IdLine, ...]
    shards: tuple[HeldDocuments, ...]


def document_ids_of(corpus: CorpusDeclaration) -> DocumentIds:
    """Return how a corpus identifies its documents; raise ConfigError if it does not."""
    ids = corpus.document.ids(sensitive=corpus.sensitive)
    if ids is None:
        raise ConfigError(
            f"{corpus.dataset}: sensitive, but without `document.id_key`, so its documents cannot be found. Declare "
            "it and run the dataset once"
        )
    return ids


def read_ids(path: Path) -> list[IdLine]:
    """Read a list of ids: one per line, as JSON (`{"id": …}`, `{"hash": …}`, `{"file": …, "row": …}`) or as plain text.

    A plain line is a hash if it is 16 hex digits, a row if it is `file:row`, else a declared id. Raises ConfigError for
    an empty list. Raises ConfigError, with the line, for any other form, and for a data file without a valid row
    number.
    """
    return [_parse_line(path, number, line) for number, line in id_lines(path)]


def _parse_line(path: Path, number: int, line: bytes) -> IdLine:
    try:
        text = line.decode().strip()
        if not text.startswith("{"):
            return _plain(path, number, text)
        value: dict[str, Any] = json_of(text)
        # `true` is an int in Python, but neither an id nor a row
        match value:
            case {"hash": str(found)} if _is_hash(found):
                return IdLine(line=number, text=text, hash=found.lower())
            case {"id": str() | int() as found} if not isinstance(found, bool):
                return IdLine(line=number, text=text, id=str(found))
            case {"file": str(file), "row": int(row)} if row > 0 and not isinstance(row, bool):
                return IdLine(line=number, text=text, file=file, row=row)
    # the line is neither UTF-8 nor JSON, which the error below reports
    except ValueError:
        pass
    raise ConfigError(
        f'--ids {path}: line {number}: must be an id, 16 hex digits of a hash, file:row, or one of {{"id": …}}, '
        '{"hash": …}, {"file": …, "row": …}'
    )


def _plain(path: Path, number: int, text: str) -> IdLine:
    file, colon, row = text.rpartition(":")
    if _is_hash(text):
        return IdLine(line=number, text=text, hash=text.lower())
    # `doc:17` and `https://example.org:80` are ids, so a row must follow a file name that is not a URL
    if colon and "." in file and "://" not in file and row.isdecimal() and int(row):
        return IdLine(line=number, text=text, file=file, row=int(row))
    if colon and _is_data_file(file) and "://" not in file:
        raise ConfigError(
            f"--ids {path}: line {number}: the text after the file name is not a row number (counted from 1). Write "
            'file:row, or {"id": …} for an id that looks like this'
        )
    return IdLine(line=number, text=text, id=text)


def _is_data_file(name: str) -> bool:
    try:
        return bool(file_format(name))
    except SourceError:
        return False


def _is_hash(text: str) -> bool:
    return len(text) == 16 and all(c in "0123456789abcdefABCDEF" for c in text)


def locate(corpus: CorpusDeclaration, store: ArtifactStore, given: Sequence[IdLine]) -> LocatedRows:
    """Find the documents of a list, in finished shards and elsewhere.

    Args:
        corpus: The dataset.
        store: The store of its shards.
        given: The parsed lines of the list.

    Raises ConfigError for declared ids if the dataset declares no id field. Raises another DataprepError if a row must
    be read from the source and cannot be.
    """
    ids = document_ids_of(corpus)
    left_out = LeftOutRows(corpus, store, ids)
    planned_shards, unplanned = _shards(corpus, store)
    shards = [*planned_shards, *unplanned]
    # planned shards come first, so that the current plan wins for a file that is in two plans
    of_file: dict[str, list[IndexedShard]] = {}
    for shard in shards if any(one.file is not None for one in given) else ():
        for file in shard.files:
            of_file.setdefault(file, []).append(shard)
    elsewhere: list[LeftOutRow] = []
    hashes = [_hash(corpus, one, ids, of_file, left_out, elsewhere) for one in given]
    before = read_retractions(corpus.retractions, ids).keys()
    new = {one for one in hashes if one is not None} - before
    # sorted, because `with_hashes` requires it
    sorted_ids = np.array(sorted({int(one, 16) for one in hashes if one is not None}), np.uint64)
    held_hashes: set[str] = set()
    held_documents = []
    for number, shard in enumerate(shards):
        positions = shard.with_hashes(sorted_ids)
        if len(positions):
            held_hashes.update(hex_ids([int(shard.hashes[document]) for document in positions.tolist()]))
            held_documents.append(
                HeldDocuments(
                    partition=shard.partition,
                    planned=number < len(planned_shards),
                    documents=len(positions),
                    tokens=shard.tokens_of(positions),
                    files=shard.sources_of(positions),
                )
            )
    elsewhere += left_out.with_ids(new - held_hashes - {one.hash for one in elsewhere})
    # rows that were dropped by a list from which they have since been removed, without a run in between
    elsewhere += [LeftOutRow(hash=one, why=RETRACTED) for shard in planned_shards for one in shard.facts.retracted]
    # reversed, so that each id keeps the first reason found
    reasons = {one.hash: one.why for one in reversed(elsewhere) if one.hash in new - held_hashes}
    pairs = list(zip(given, hashes, strict=True))
    retraction_of = {h: Retraction(hash=h, given=one.id or one.text) for one, h in pairs if h is not None}
    known_hashes = {*held_hashes, *reasons} - before
    return LocatedRows(
        found=tuple(one for h, one in retraction_of.items() if h in known_hashes),
        left_out=dict(Counter(reasons.values()).most_common()),
        listed=tuple(retraction_of.values()),
        already=tuple(one for one, h in pairs if h in before),
        unknown=tuple(one for one, h in pairs if h not in known_hashes and h not in before),
        shards=tuple(held_documents),
    )


def _shards(corpus: CorpusDeclaration, store: ArtifactStore) -> tuple[list[IndexedShard], list[IndexedShard]]:
    """Return the finished shards of the plan, and the unplanned shards that can be searched in the same way."""
    if not has_manifest(corpus, store):
        return [], []
    plan, ids = load_manifest(corpus, store).plan, document_ids_of(corpus)
    unplanned_keys = [key for key in store.partitions(corpus.dataset, TOKEN_BINS) if key not in plan]
    # errors are not suppressed here, because an unreadable planned shard may contain listed documents
    planned_shards = [shard for shard in _open_indexes(corpus, store, plan) if shard.facts.document_ids is not None]
    # hashes of another field or with another key cannot be compared
    kind = (ids.id_field, ids.key_digest)
    alike = []
    for key in unplanned_keys:
        with suppress(DataprepError, OSError):  # `retracted_left` lists unreadable shards
            alike += [
                candidate
                for candidate in _open_indexes(corpus, store, [key])
                if (candidate.facts.id_field, candidate.facts.id_key) == kind
            ]
    return planned_shards, [shard for shard in alike if shard.facts.document_ids is not None]


def _open_indexes(corpus: CorpusDeclaration, store: ArtifactStore, keys: Iterable[str]) -> Iterator[IndexedShard]:
    artifacts = [corpus.artifact(TOKEN_BINS, key) for key in keys]
    for artifact, receipt in zip(artifacts, store.receipts(artifacts), strict=True):
        if receipt is not None:
            yield IndexedShard(store, artifact, receipt)


def _hash(
    corpus: CorpusDeclaration,
    one: IdLine,
    ids: DocumentIds,
    of_file: Mapping[str, Sequence[IndexedShard]],
    left_out: LeftOutRows,
    elsewhere: list[LeftOutRow],
) -> str | None:
    """Return the id of the document on a line; add a row that is in no finished shard to `elsewhere`."""
    if one.hash is not None:
        return one.hash
    if one.file is not None:
        hashes = (shard.hash_at(one.file, one.row) for shard in of_file.get(one.file, ()))
        row_hash = next((h for h in hashes if h is not None), None)
        if row_hash is not None:
            return f"{row_hash:016x}"
        if (row := left_out.find_row(one.file, one.row)) is None:
            return None
        elsewhere.append(row)
        return row.hash
    if ids.id_field is None:
        what = "" if corpus.sensitive else f" ({one.id!r})"
        raise ConfigError(
            f"line {one.line}{what}: {corpus.dataset} declares no `document.id_field`, so its documents have no ids. "
            "Write file:row, or the 16 hex digits of a text's hash"
        )
    return id_of(one.id or "", ids)


def retract(corpus: CorpusDeclaration, store: ArtifactStore, path: Path, *, strict: bool = False) -> Retracted:
    """Add the documents of a list of ids to a corpus' retraction list.

    Args:
        corpus: The dataset.
        store: The store of its shards.
        path: The list of ids.
        strict: Write nothing unless every line is found or was already retracted.

    Raises the errors of `read_ids`, `locate` and `add_retractions`.
    """
    assert corpus.retractions is not None, "a located declaration has a list"
    lines = read_ids(path)
    rows = locate(corpus, store, lines)
    retractions = () if strict and rows.unknown else rows.listed
    names = sorted({name for shard in rows.shards for name in shard.files})
    added = add_retractions(corpus.retractions, document_ids_of(corpus), retractions)
    # computed after the list was written, because it depends on the list
    change = duplicates_change(corpus, store) if added else None
    return Retracted(
        list=corpus.retractions,
        given=len(lines),
        already=len(rows.already),
        found=len(rows.found),
        added=added,
        # an id of a sensitive dataset is secret even if no document has it
        not_found=tuple(NotFound(line=u.line, text=None if corpus.sensitive else u.text) for u in rows.unknown),
        counted=("document", "token"),
        held=tuple(Held(partition=s.partition, counts=(s.documents, s.tokens), planned=s.planned) for s in rows.shards),
        left_out=rows.left_out,
        artifact=_first_made_again(corpus),
        change=change,
        partitions="shard",
        kept="ids and hashes among them are dropped if they appear later",
        files=frozenset(digest for shard in rows.shards for digest in shard.files.values()),
        copies=_copies(corpus, names),
    )


def _first_made_again(corpus: CorpusDeclaration) -> str:
    """Return the first artifact that a retraction changes."""
    if corpus.duplicates is not None:
        return DUPLICATES
    return SELECTION if corpus.selects else TOKEN_BINS


def _copies(corpus: CorpusDeclaration, names: Sequence[str]) -> tuple[Path, ...]:
    """Return a mirror's copies of source files; for sensitive data only the folder, because names may be secret."""
    source = open_source(corpus.source)
    if corpus.sensitive:
        return (source.storage,) if source.mirrored and names else ()
    return tuple(copy for name in names for copy in source.copies(name))
