"""Checks of `<dataset>/<split>/snapshot`: the bytes are the source's, and the disk will hold what comes next."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg

from dataprep_assets.graph.finding import Finding
from dataprep_assets.orchestration.checks import checks_of
from dataprep_assets.orchestration.dataset import partitions_of_run
from dataprep_assets.pipelines.corpus import snapshot_proofs as proofs
from dataprep_assets.pipelines.corpus.corpus_asset import CorpusAssets
from dataprep_assets.pipelines.corpus.manifest import open_source
from dataprep_assets.pipelines.corpus.snapshot import snapshot_digests
from resources import StorageResource

TOKEN_BYTES_PER_SOURCE_BYTE = 3.0
"""Token bytes to expect for a byte of compressed source: zstd text is about 0.7 tokens a byte, four bytes each."""


CHECKS = {
    "digests_match": "Files on disk have the snapshot's SHA-256.",
    "disk_headroom": "Token bins will fit, with 20 % to spare.",
}


def snapshot_checks(dataset: CorpusAssets, split: str) -> dg.AssetChecksDefinition:
    """All checks of a split's snapshot, on the shards of the run."""
    corpus = dataset.corpus

    def findings(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        manifest, access, store = dataset.manifest(storage), open_source(corpus.source), dataset.store(storage)
        expected: dict[str, str] = {}
        paths: dict[str, Path] = {}
        size = 0
        for partition in partitions_of_run(context.run, manifest.partitions(split)):
            expected |= snapshot_digests(corpus, store, partition)
            for entry in manifest.shard(partition):
                paths[entry.relpath] = access.path(entry)
                size += entry.size_bytes
        yield "digests_match", proofs.digests_match(expected, paths)
        yield "disk_headroom", proofs.disk_headroom(store.root, int(size * TOKEN_BYTES_PER_SOURCE_BYTE))

    return checks_of(dataset.key("snapshot", split), CHECKS, findings, reports=("disk_headroom",))
