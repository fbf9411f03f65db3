"""Checks of `<dataset>/published_shards`: what trainers fetch is what was built here."""

from collections.abc import Iterator

import dagster as dg

from dataprep_assets.graph.finding import Finding
from dataprep_assets.orchestration.checks import checks_of
from dataprep_assets.pipelines.corpus.corpus_asset import CorpusAssets
from dataprep_assets.pipelines.release import published_proofs
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.pipelines.release.layout import release_layout
from dataprep_assets.pipelines.release.published import NAME, release_manifest
from dataprep_assets.serving.release import locate
from resources import StorageResource

CHECKS = {
    "manifest_published": "The manifest at the public place is that of the shards built here.",
    "remote_equals_local": "Every file is there with its size and SHA-256.",
    "remote_readable": "Headers, first and last samples and their ids read as a trainer far away would read them.",
    "no_orphans": "No shard lies there that the manifest does not list.",
}


def published_shards_checks(
    dataset: CorpusAssets, release: ReleaseDeclaration, target: str
) -> dg.AssetChecksDefinition:
    """All checks of the published release."""

    def findings(_: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        store, place = dataset.store(storage), locate(target)
        manifest = release_manifest(release, store, release_layout(release, store, dataset.manifest(storage)))
        yield "manifest_published", published_proofs.manifest_published(place, manifest)
        yield "remote_equals_local", published_proofs.remote_equals_local(place, manifest)
        yield "remote_readable", published_proofs.remote_readable(place, manifest)
        yield "no_orphans", published_proofs.no_orphans(place, manifest)

    return checks_of(dataset.key(NAME), CHECKS, findings, reports=("no_orphans",))
