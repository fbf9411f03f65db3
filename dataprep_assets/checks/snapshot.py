"""Checks of `<dataset>/<split>/snapshot`: the bytes are the source's, and the disk will hold what comes next."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg

from dataprep_assets.assets.dataset import DatasetAssets
from dataprep_assets.builds.manifest import open_source
from dataprep_assets.builds.snapshot import snapshot_digests
from dataprep_assets.checks.findings import check_result
from dataprep_assets.proofs import snapshot as proofs
from resources import StorageResource

TOKEN_BYTES_PER_SOURCE_BYTE = 3.0
"""Token bytes to expect for a byte of compressed source: zstd text is about 0.7 tokens a byte, four bytes each."""


def snapshot_checks(dataset: DatasetAssets, split: str) -> dg.AssetChecksDefinition:
    """All checks of a split's snapshot, on the shards of the run."""
    key, corpus = dataset.key("snapshot", split), dataset.corpus
    specs = [
        dg.AssetCheckSpec("digests_match", asset=key, description="Files on disk have the snapshot's SHA-256.", blocking=True),
        dg.AssetCheckSpec("disk_headroom", asset=key, description="Token bins will fit, with 20 % to spare."),
    ]

    @dg.multi_asset_check(name=f"{corpus.dataset}_{split}_snapshot_checks", specs=specs)
    def checks(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[dg.AssetCheckResult]:
        manifest, access, root = dataset.manifest(storage), open_source(corpus.source), dataset.root(storage)
        shards = dataset.shards_of_run(context.run, manifest, split)
        expected: dict[str, str] = {}
        paths: dict[str, Path] = {}
        size = 0
        for partition in shards:
            expected |= snapshot_digests(corpus, root, partition)
            for entry in manifest.shard(partition):
                paths[entry.relpath] = access.path(entry)
                size += entry.size_bytes
        yield check_result(key, "digests_match", proofs.digests_match(expected, paths))
        yield check_result(key, "disk_headroom", proofs.disk_headroom(root, int(size * TOKEN_BYTES_PER_SOURCE_BYTE)))

    return checks
