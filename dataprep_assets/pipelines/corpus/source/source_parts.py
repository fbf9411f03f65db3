"""The source files of a corpus's shards as they are read: with the digests of their snapshot, and on any machine."""

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path

from dataprep_assets.curation.dropped_rows import RuledOut
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest import Manifest, load_manifest
from dataprep_assets.pipelines.corpus.source.snapshot import snapshot_digests
from dataprep_assets.planning.manifest import ManifestEntry
from dataprep_assets.sources.access import SourceAccess
from dataprep_assets.sources.readers.records import Block, RecordFields
from dataprep_assets.stream.source import open_source
from dataprep_assets.stream.token_stream import Fetch, SourcePart


def source_parts(
    corpus: CorpusDeclaration,
    store: ArtifactStore,
    manifest: Manifest,
    partition: str,
    ruled_out: RuledOut | None = None,
) -> tuple[SourcePart, ...]:
    """The files of one shard with the digests of its snapshot; raises MissingArtifactError when there is no snapshot.

    Args:
        corpus: The dataset.
        store: Where its snapshot is.
        manifest: Which files the shard has.
        partition: The shard.
        ruled_out: Its rows that the selection drops.
    """
    access = open_source(corpus.source)
    digests, told = snapshot_digests(corpus, store, partition), corpus.source_digests()
    limit = corpus.bad_records.max_record_bytes
    return tuple(
        SourcePart.from_entry(
            entry,
            access.path(entry),
            digests[entry.relpath],
            digests=told,
            max_record_bytes=limit,
            reading=corpus.reading,
            ruled_out=ruled_out,
        )
        for entry in manifest.shard(partition)
    )


def present_part(corpus: CorpusDeclaration, entry: ManifestEntry, path: Path) -> SourcePart:
    """A file as it is now, to look at its rows.

    Without a digest, because one is compared only where a file is read to its end.
    """
    limit = corpus.bad_records.max_record_bytes
    return SourcePart.from_entry(entry, path, "", max_record_bytes=limit, reading=corpus.reading)


def shard_fetches(corpus: CorpusDeclaration, manifest: Manifest, partitions: Sequence[str]) -> dict[str, Fetch]:
    """For each shard, the function that fetches its sources on a machine whose mirror does not have them.

    Args:
        corpus: The dataset.
        manifest: Which files each shard has.
        partitions: The shards.
    """
    access = open_source(corpus.source)
    # pickled into the tasks: each takes the entries of its shard along, not the manifest
    return {p: partial(access.fetch, manifest.shard(p)) for p in partitions}


class PresentFiles:
    """The source files of a corpus as they are now, to look at rows of them; nothing is read before it is asked for."""

    def __init__(self, corpus: CorpusDeclaration, store: ArtifactStore) -> None:
        self._corpus, self._store = corpus, store

    @cached_property
    def entries(self) -> dict[str, ManifestEntry]:
        """The files of the manifest by their names."""
        return {entry.relpath: entry for entry in load_manifest(self._corpus, self._store).entries}

    @cached_property
    def _access(self) -> SourceAccess:
        return open_source(self._corpus.source)

    def path(self, entry: ManifestEntry) -> Path:
        """Where a file is on this machine."""
        return self._access.path(entry)

    def record_at(self, entry: ManifestEntry, row: int, fields: RecordFields) -> Block | None:
        """The record of a row of a file; raises as `SourcePart.record_at`, and OSError if the file cannot be read."""
        return present_part(self._corpus, entry, self.path(entry)).record_at(row, fields)
