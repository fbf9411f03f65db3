"""The asset `<dataset>/published_shards`: the release where its trainers fetch it, the manifest last."""

from typing import Any

import dagster as dg

from dataprep_assets.assets.corpus import CorpusAssets
from dataprep_assets.assets.dataset import NETWORK_POOL, location, result
from dataprep_assets.builds.release.declaration import ReleaseDeclaration
from dataprep_assets.builds.release.npy_shards import NAME as SHARDS
from dataprep_assets.builds.release.npy_shards import release_layout
from dataprep_assets.builds.release.published import NAME, consumer_environment, publish_release
from dataprep_assets.serving.release import locate
from resources import StorageResource


def published_shards_asset(dataset: CorpusAssets, release: ReleaseDeclaration, target: str) -> dg.AssetsDefinition:
    """Send what is missing or different, compare all of it, then write the release manifest."""

    @dg.asset(
        key=dataset.key(NAME),
        deps=[dataset.key(SHARDS)],
        pool=NETWORK_POOL,
        **dataset.common({"numpy", "file"}, "The release at its public place, every file compared, its manifest last."),
    )
    def published_shards(context: dg.AssetExecutionContext, storage: StorageResource) -> dg.MaterializeResult[Any]:
        store, place = dataset.store(storage), locate(target)
        layout = release_layout(release, store, dataset.manifest(storage))
        receipt, reused = publish_release(release, store, layout, place)
        extra = {
            "release": location(str(place)),
            "release_digest": receipt.facts["digest"],
            "published_files": receipt.facts["files"],
            "published_bytes": receipt.facts["bytes"],
            "consumer_environment": dg.MetadataValue.md("```\n" + "\n".join(consumer_environment(place)) + "\n```"),
        }
        return result(receipt, store.place(release.artifact(NAME)), reused, extra)

    return published_shards
