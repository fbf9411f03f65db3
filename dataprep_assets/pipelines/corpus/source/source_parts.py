"""Access to a corpus's source: the files of a shard, a sample for certificates, and detection of changes."""

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep_assets.curation.dropped_rows import DroppedRows
from dataprep_assets.engine.artifact.spec import (
    SourceIdentity,
    SourceWatch,
    identify_listing,
    join_counts,
    read_modification_time,
)
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest import MANIFEST, Manifest, load_manifest, plan_manifest
from dataprep_assets.pipelines.corpus.source.manifest_changes import ManifestFacts, identify_entry
from dataprep_assets.pipelines.corpus.source.snapshot import read_snapshot_digests
from dataprep_assets.planning.manifest import ManifestEntry, build_include_predicate
from dataprep_assets.sources.access import HubCache, HubMirror, LocalTree, SourceAccess
from dataprep_assets.sources.hub_cache import COMMIT, find_cached_snapshot
from dataprep_assets.sources.upstream import UpstreamPartitions
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stream.declaration import HubSource
from dataprep_assets.stream.engine_certificate import CertificateSample, CertifiedEngine, read_first_texts
from dataprep_assets.stream.source import is_mirrored, open_source
from dataprep_assets.stream.token_stream import Fetch, SourcePart

if TYPE_CHECKING:
    from dataprep_assets.sources.readers.records import Block, RecordFields


def build_corpus_watch(corpus: CorpusDeclaration) -> SourceWatch:
    """Build the watch that detects changes in the source of a corpus or a release."""
    return SourceWatch(identity=partial(_compute_identity, corpus), changes=partial(_describe_changes, corpus))


def _compute_identity(corpus: CorpusDeclaration, _: ArtifactStore) -> SourceIdentity:
    """Return the source's current identity; for a Hub repository its commit, which needs at most one request."""
    source = corpus.source
    if isinstance(source, HubSource) and COMMIT.fullmatch(source.revision):
        return identify_listing([source.revision])
    # Do not wait for an unreachable source, because it must not delay a poll.
    access = open_source(source, patient=False)
    if isinstance(access, HubMirror):
        return identify_listing([access.repo.resolve_commit()])
    if isinstance(access, HubCache):
        return identify_listing([find_cached_snapshot(access.folder, access.revision)[0]])
    # Ignore files that are not included, because their changes do not affect the dataset.
    is_included = build_include_predicate(
        corpus.include, naming=[glob for globs in corpus.splits.values() for glob in globs]
    )
    files = [file for file in access.list().files if is_included(file.relpath)]
    listing = [[file.relpath, file.size_bytes, file.etag] for file in files]
    # Only local files need modification times, because they have no etag: nothing else reveals an edit that keeps the
    # size.
    if not isinstance(access, LocalTree | UpstreamPartitions) or access.mirrored:
        return identify_listing(listing)
    return identify_listing(listing, [[f.relpath, read_modification_time(access.path(f), f.relpath)] for f in files])


def _describe_changes(corpus: CorpusDeclaration, store: ArtifactStore) -> str:
    """Describe the source's changes since the current manifest; "" if there are none. Changed settings are ignored."""
    source, receipt = corpus.source, store.intact_receipt(corpus.artifact(MANIFEST))
    # A pinned commit does not change, so no request is needed.
    if (
        receipt is not None
        and isinstance(source, HubSource)
        and source.revision == ManifestFacts.from_receipt(receipt).commit
    ):
        return ""
    plan = plan_manifest(corpus, store, patient=False)
    if receipt is None or plan.changes is None:
        return join_counts([(len(plan.entries), "file", "not planned yet")])
    return str(plan.changes) if plan.changes.has_file_changes else ""


def load_source_parts(
    corpus: CorpusDeclaration,
    store: ArtifactStore,
    manifest: Manifest,
    partition: str,
    ruled_out: DroppedRows | None = None,
) -> tuple[SourcePart, ...]:
    """Return the files of one shard with the digests of its snapshot; raise MissingArtifactError without a snapshot.

    Args:
        corpus: The dataset.
        store: The store of its snapshot.
        manifest: The manifest, which lists the files of the shard.
        partition: The shard.
        ruled_out: The rows that the selection drops; None if the corpus has no selection.
    """
    access = open_source(corpus.source)
    digests, source_digests = read_snapshot_digests(corpus, store, partition), corpus.source_digests()
    limit, rewriting = corpus.bad_records.max_record_bytes, corpus.rewriting
    return tuple(
        SourcePart.from_entry(
            entry,
            access.path(entry),
            digests[entry.relpath],
            digests=source_digests,
            max_record_bytes=limit,
            reading=corpus.reading,
            ruled_out=ruled_out,
            rewriting=rewriting,
        )
        for entry in manifest.shard(partition)
    )


def build_present_part(corpus: CorpusDeclaration, entry: ManifestEntry, path: Path) -> SourcePart:
    """Return a part for an existing file, from which some rows are read.

    The part has no digest, because a digest is compared only after the whole file is read.
    """
    limit = corpus.bad_records.max_record_bytes
    return SourcePart.from_entry(
        entry, path, "", max_record_bytes=limit, reading=corpus.reading, rewriting=corpus.rewriting
    )


def build_shard_fetches(corpus: CorpusDeclaration, manifest: Manifest, partitions: Sequence[str]) -> dict[str, Fetch]:
    """Return, per shard, a function that fetches its source files to a machine without them.

    Args:
        corpus: The dataset.
        manifest: The manifest, which lists the files of each shard.
        partitions: The shards.
    """
    access = open_source(corpus.source)
    # Bind only the entries of the shard, not the manifest, because every task pickles its function.
    return {p: partial(access.fetch, manifest.shard(p)) for p in partitions}


class PresentFiles:
    """Lookup of rows in the current source files of a corpus; reads the manifest lazily."""

    def __init__(self, corpus: CorpusDeclaration, store: ArtifactStore) -> None:
        self._corpus, self._store = corpus, store

    @cached_property
    def entries(self) -> dict[str, ManifestEntry]:
        """Entries of the manifest by the files' paths."""
        return {entry.relpath: entry for entry in load_manifest(self._corpus, self._store).entries}

    @cached_property
    def _access(self) -> SourceAccess:
        return open_source(self._corpus.source)

    def path(self, entry: ManifestEntry) -> Path:
        """Return the path of a file on this machine."""
        return self._access.path(entry)

    def record_at(self, entry: ManifestEntry, row: int, fields: "RecordFields") -> "Block | None":
        """Read the record of a row; raise the errors of `SourcePart.record_at`, and OSError for an unreadable file."""
        return build_present_part(self._corpus, entry, self.path(entry)).record_at(row, fields)


SAMPLED_FILES = 6


def build_corpus_engine(corpus: CorpusDeclaration) -> CertifiedEngine:
    """Return the engine of a corpus, to be certified on the corpus's own documents."""
    return CertifiedEngine(
        dataset=corpus,
        tokenizer=corpus.tokenizer,
        special_tokens=corpus.document.special_tokens,
        separator=corpus.document.separator,
        sample=partial(_draw_sample, corpus),
        at_hand=not is_mirrored(corpus.source),
    )


def _draw_sample(corpus: CorpusDeclaration, store: ArtifactStore) -> CertificateSample:
    manifest = load_manifest(corpus, store)
    files = _sample_files(corpus, manifest)
    # Identify the files by their listing, so that they need not be read. If an edit does not change the size of a local
    # file, it is not noticed.
    digest = digest_value([[e.relpath, *identify_entry(e)] for e in files])
    return CertificateSample(
        kind="engine_certificate",
        parts=[digest],
        sources={"sampled files": digest},
        texts=lambda: read_corpus_sample(corpus, manifest),
    )


def _sample_files(corpus: CorpusDeclaration, manifest: Manifest) -> list[ManifestEntry]:
    """Choose a few files of every split.

    Files are chosen by digests of their names, so that a growing corpus keeps most of its sample.
    """
    files: list[ManifestEntry] = []
    for split in corpus.splits:
        members = [e for e in manifest.entries if e.split == split]
        candidates = sorted(members, key=lambda e: digest_value(e.relpath))
        # Take at least one file of each split, even if there are more splits than `SAMPLED_FILES`.
        files += sorted(candidates[: max(1, SAMPLED_FILES // len(corpus.splits))], key=lambda e: e.ordinal)
    return files


def read_corpus_sample(corpus: CorpusDeclaration, manifest: Manifest) -> Iterator[str]:
    """Yield documents from files of every split; truncate long documents, and mirror remote files first.

    Bad records are skipped here, because snapshot and token bins read all files and reject all bad records together.
    """
    access, files = open_source(corpus.source), _sample_files(corpus, manifest)
    access.fetch(files)
    for entry in files:
        yield from read_first_texts(read_texts(corpus, entry, access.path(entry)))


def read_texts(corpus: CorpusDeclaration, entry: ManifestEntry, path: Path) -> Iterator[str]:
    """Yield the texts of an existing file, as in the source."""
    from dataprep_assets.sources.readers.records import RecordFields

    for block in build_present_part(corpus, entry, path).as_stored.read_records(RecordFields(corpus.text_field)):
        yield from block.texts
