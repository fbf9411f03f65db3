"""From a declaration and a manifest to the work of its shards."""

from collections.abc import Iterable
from pathlib import Path

from dataprep_assets.builds.corpus import CorpusDeclaration
from dataprep_assets.builds.manifest import Manifest, open_source
from dataprep_assets.builds.snapshot import snapshot_digests
from dataprep_assets.builds.token_bins import ShardWork
from dataprep_assets.builds.token_stream import SourcePart, StreamPlan


def source_parts(corpus: CorpusDeclaration, root: Path, manifest: Manifest, partition: str) -> tuple[SourcePart, ...]:
    """The files of one shard with the digests of its snapshot; MissingArtifactError when there is no snapshot."""
    access = open_source(corpus.source)
    digests = snapshot_digests(corpus, root, partition)
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
    corpus: CorpusDeclaration, root: Path, manifest: Manifest, plan: StreamPlan, partitions: Iterable[str]
) -> list[ShardWork]:
    """The work of the given shards."""
    return [
        ShardWork(
            artifact=corpus.artifact("token_bins", partition),
            root=root,
            plan=plan,
            budget=corpus.bad_records.budget,
            files=source_parts(corpus, root, manifest, partition),
            sizes=tuple(e.size_bytes for e in manifest.shard(partition)),
        )
        for partition in partitions
    ]
