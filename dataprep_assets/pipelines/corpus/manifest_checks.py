"""Checks of `<dataset>/manifest`: complete, resolvable, and cut into shards without gap or overlap."""

from collections.abc import Iterator

import dagster as dg

from dataprep_assets.graph.finding import Finding
from dataprep_assets.orchestration.checks import checks_of
from dataprep_assets.pipelines.corpus import manifest_proofs as proofs
from dataprep_assets.pipelines.corpus.corpus_asset import CorpusAssets
from dataprep_assets.pipelines.corpus.manifest import open_source
from resources import StorageResource

CHECKS = {
    "count_matches_source": "The manifest lists what the source lists now.",
    "entries_resolve": "Sampled entries are there with their sizes.",
    "plan_covers_manifest": "Every file is in exactly one shard.",
}


def manifest_checks(dataset: CorpusAssets) -> dg.AssetChecksDefinition:
    """All checks of the manifest."""
    corpus = dataset.corpus

    def findings(_: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        manifest, access = dataset.manifest(storage), open_source(corpus.source)
        listed = access.list().files
        yield "count_matches_source", proofs.count_matches(manifest.entries, listed, corpus.include, corpus.splits)
        # of a hub, only what is already mirrored can be looked at
        present = [e for e in manifest.entries if not access.mirrored or access.path(e).exists()]
        seed = int(manifest.receipt.key[:8], 16)
        yield "entries_resolve", proofs.entries_resolve(present, access.path, seed=seed)
        yield "plan_covers_manifest", proofs.plan_covers(manifest.entries, manifest.plan)

    return checks_of(dataset.key("manifest"), CHECKS, findings, reports=("count_matches_source", "entries_resolve"))
