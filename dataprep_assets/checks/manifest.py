"""Checks of `<dataset>/manifest`: complete, resolvable, and cut into shards without gap or overlap."""

from collections.abc import Iterator

import dagster as dg

from dataprep_assets.assets.dataset import DatasetAssets
from dataprep_assets.builds.manifest import open_source
from dataprep_assets.checks.findings import check_result
from dataprep_assets.proofs import manifest as proofs
from resources import StorageResource


def manifest_checks(dataset: DatasetAssets) -> dg.AssetChecksDefinition:
    """All checks of the manifest."""
    key, corpus = dataset.key("manifest"), dataset.corpus
    specs = [
        dg.AssetCheckSpec("count_matches_source", asset=key, description="The manifest lists what the source lists now."),
        dg.AssetCheckSpec("entries_resolve", asset=key, description="Sampled entries are there with their sizes."),
        dg.AssetCheckSpec("plan_covers_manifest", asset=key, description="Every file is in exactly one shard.", blocking=True),
    ]

    @dg.multi_asset_check(name=f"{corpus.dataset}_manifest_checks", specs=specs)
    def checks(storage: StorageResource) -> Iterator[dg.AssetCheckResult]:
        manifest, access = dataset.manifest(storage), open_source(corpus.source)
        listed = access.list()
        yield check_result(
            key, "count_matches_source",
            proofs.count_matches(manifest.entries, listed.files, corpus.include, corpus.splits),
        )
        # of a hub, only what is already mirrored can be looked at
        present = [e for e in manifest.entries if not access.mirrored or access.path(e).exists()]
        yield check_result(
            key, "entries_resolve",
            proofs.entries_resolve(present, access.path, seed=int(manifest.receipt.key[:8], 16)),
        )
        yield check_result(key, "plan_covers_manifest", proofs.plan_covers(manifest.entries, manifest.plan))

    return checks
