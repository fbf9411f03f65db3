"""From a declaration and a manifest to the work of its shards."""

from collections.abc import Iterable

from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.manifest import Manifest, open_source
from dataprep_assets.pipelines.corpus.snapshot import snapshot_digests
from dataprep_assets.pipelines.corpus.token_bins import ShardWork
from dataprep_assets.pipelines.corpus.token_stream import SourcePart, StreamPlan


def source_parts(
    corpus: CorpusDeclaration, store: ArtifactStore, manifest: Manifest, partition: str
) -> tuple[SourcePart, ...]:
    """The files of one shard with the digests of its snapshot; MissingArtifactError when there is no snapshot."""
    access = open_source(corpus.source)
    digests = snapshot_digests(corpus, store, partition)
    return tuple(
        SourcePart(
            label=entry.relpath,
            path=access.path(entry),
            format=entry.format,
            compression=entry.compression,
            sha256=digests[entry.relpath],
            ordinal=entry.ordinal,
        )
        for entry in manifest.shard(partition)
    )


def shard_works(
    corpus: CorpusDeclaration, store: ArtifactStore, manifest: Manifest, plan: StreamPlan, partitions: Iterable[str]
) -> list[ShardWork]:
    """The work of the given shards."""
    return [
        ShardWork(
            artifact=corpus.artifact("token_bins", partition),
            store=store,
            plan=plan,
            budget=corpus.bad_records.budget,
            files=source_parts(corpus, store, manifest, partition),
            sizes=tuple(e.size_bytes for e in manifest.shard(partition)),
        )
        for partition in partitions
    ]
