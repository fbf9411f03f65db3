"""Finds rows that are in no finished stream: dropped by a rule, as duplicates or as bad records, or not built yet.

The tags of a shard have the id of every row that holds a document. A row that has no tags is read from the source,
whatever split or glob leaves its file out: a removal request has to hold for what becomes a document later.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from glob import escape

import numpy as np

from dataprep_assets.documents.documents import Documents
from dataprep_assets.documents.retractions import hex_ids
from dataprep_assets.documents.ruled_out import RuledOut
from dataprep_assets.documents.table import side_by_side
from dataprep_assets.errors import DataprepError
from dataprep_assets.graph.retraction import NOT_BUILT
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.manifest import Manifest, has_manifest, load_manifest
from dataprep_assets.pipelines.corpus.selection import ruled_out_of
from dataprep_assets.pipelines.corpus.selection_counts import SELECTION
from dataprep_assets.pipelines.corpus.source_parts import present_part
from dataprep_assets.pipelines.corpus.tagged_shard import ROWS, TAGS
from dataprep_assets.planning.manifest import ManifestEntry, build_manifest
from dataprep_assets.sources.access import Listing
from dataprep_assets.sources.records import RecordFields
from dataprep_assets.stream.source import open_source
from dataprep_assets.stream.token_stream import SourcePart
from dataprep_assets.tokenization.document_ids import DocumentIds

_ANY_SIZE = 1 << 40
"""Bytes of a record that is read for its id alone, which `bad_records` may refuse as too large."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A row that is in no stream: its id, 16 hex digits, and why."""

    hash: str
    why: str


class LeftOutRows:
    """The rows of a corpus that are in no finished stream."""

    def __init__(self, corpus: CorpusDeclaration, store: ArtifactStore, ids: DocumentIds) -> None:
        """Take a corpus; nothing is read yet."""
        self._corpus, self._store, self._ids = corpus, store, ids

    def at(self, file: str, row: int) -> LeftOut | None:
        """The row of a source file; None if it is not there, or has no id.

        Raises SourceError, or another DataprepError, for a source that cannot be read.
        """
        shards = self._of_file.get(file, ())
        return next((one for shard in shards for one in self._tagged(shard, at=(file, row))), None) or self._read(
            file, row
        )

    def with_ids(self, hashes: Collection[str]) -> Iterator[LeftOut]:
        """The rows of tagged shards that have these ids."""
        if hashes and self._manifest is not None:
            for shard in self._manifest.plan:
                yield from self._tagged(shard, hashes=hashes)

    @cached_property
    def _manifest(self) -> Manifest | None:
        return load_manifest(self._corpus, self._store) if has_manifest(self._corpus, self._store) else None

    @cached_property
    def _of_file(self) -> Mapping[str, list[str]]:
        """Source file → the shards that have rows of it."""
        found: dict[str, list[str]] = {}
        if (manifest := self._manifest) is not None:
            for shard in manifest.plan:
                for entry in manifest.shard(shard):
                    found.setdefault(entry.relpath, []).append(shard)
        return found

    def _tagged(
        self, shard: str, *, hashes: Collection[str] = (), at: tuple[str, int] | None = None
    ) -> Iterator[LeftOut]:
        """The rows of a shard's tags that have one of some ids, or that are at a place."""
        import pyarrow as pa
        import pyarrow.compute as pc

        tags = self._corpus.artifact(TAGS, shard)
        if not self._corpus.has_table or self._store.receipt(tags) is None:
            return
        selected = self._selected(shard)
        for piece in side_by_side([self._store.local(tags, [ROWS]) / ROWS], ["file", "row", "id"]):
            if at is None:
                chosen = pc.is_in(piece["id"], value_set=pa.array(sorted(hashes), pa.string()))
            else:
                chosen = pc.and_(pc.equal(piece["file"], at[0]), pc.equal(piece["row"], at[1]))
            for one in piece.filter(chosen).to_pylist():
                if one["id"] is not None:
                    row = np.array([one["row"]], np.uint64)
                    why = None if selected is None else selected.of(one["file"]).reasons(row)[0]
                    yield LeftOut(hash=one["id"], why=why or NOT_BUILT)

    def _selected(self, shard: str) -> RuledOut | None:
        there = self._corpus.selects and self._store.receipt(self._corpus.artifact(SELECTION, shard)) is not None
        return ruled_out_of(self._corpus, self._store, shard) if there else None

    def _read(self, file: str, row: int) -> LeftOut | None:
        """A row as its source file has it now."""
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
            found = Documents.of(part.record_at(row, fields) or block, self._ids).ids
            if found is not None and len(found):
                return LeftOut(hash=hex_ids(found)[0], why=why)
            declared = self._declared_id(part, row)
        except FileNotFoundError:  # it has gone since the source was listed
            return None
        return None if declared is None else LeftOut(hash=hex_ids(self._ids.of([""], [declared]))[0], why=why)

    def _declared_id(self, part: SourcePart, row: int) -> str | None:
        """The declared id of a record without a text."""
        if (field := self._ids.id_field) is None:
            return None
        for block in part.read_rows([field], only={row}):
            for value in block.rows:
                found = value.get(field) if isinstance(value, dict) else None
                if isinstance(found, str | int) and not isinstance(found, bool):
                    return str(found)
        return None

    def _entry(self, file: str) -> ManifestEntry | None:
        """A file of the source as a manifest names it, also one that no split or glob takes in."""
        planned = self._planned.get(file)
        if planned is not None:
            return planned
        listed = [one for one in self._listing.files if one.relpath == file]
        if not listed:
            return None
        try:
            (entry,) = build_manifest(
                listed,
                include=[escape(file)],
                splits={"": ["**"]},
                commit=self._listing.commit,
                url_prefix=self._listing.url_prefix,
            )
        except DataprepError:  # of no format that can be read
            return None
        return entry

    @cached_property
    def _planned(self) -> Mapping[str, ManifestEntry]:
        return {} if self._manifest is None else {entry.relpath: entry for entry in self._manifest.entries}

    @cached_property
    def _listing(self) -> Listing:
        return open_source(self._corpus.source).list()
