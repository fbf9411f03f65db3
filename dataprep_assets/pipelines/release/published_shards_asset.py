"""The asset `<dataset>/published_shards`: the release where its trainers fetch it, the manifest last."""

import os
import threading
import time
from typing import Any

import dagster as dg

from dataprep_assets.orchestration.dataset import NETWORK_POOL, location, result
from dataprep_assets.pipelines.corpus.corpus_asset import CorpusAssets
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.pipelines.release.npy_shards import NAME as SHARDS
from dataprep_assets.pipelines.release.npy_shards import release_layout
from dataprep_assets.pipelines.release.published import NAME, consumer_code, consumer_environment, publish_release
from dataprep_assets.serving.release import locate
from dataprep_assets.stores.connect import place_of
from dataprep_assets.stores.store import Progress
from resources import StorageResource

LOG_SECONDS = 15.0
"""Between two lines of a run's log on how far its upload is."""


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
        receipt, reused = publish_release(release, store, layout, place, _logged(context))
        extra = {
            "release": location(str(place)),
            "release_digest": receipt.facts["digest"],
            "published_files": receipt.facts["files"],
            "published_bytes": receipt.facts["bytes"],
            "train_on_it": dg.MetadataValue.md(f"```python\n{consumer_code(place)}\n```"),
        }
        if lines := consumer_environment(place_of(target, os.environ)):
            extra["consumer_environment"] = dg.MetadataValue.md("```\n" + "\n".join(lines) + "\n```")
        return result(receipt, store.location(release.artifact(NAME)), reused, extra)

    return published_shards


def _logged(context: dg.AssetExecutionContext) -> Progress:
    """Says in the run's log how much was sent; the parts of an upload call it from several threads."""
    started = last = time.monotonic()
    lock, done = threading.Lock(), 0

    def progress(count: int) -> None:
        nonlocal last, done
        with lock:
            done += count
            now = time.monotonic()
            if now - last < LOG_SECONDS:
                return
            last = now
            said = f"{done:,} bytes sent, {done / max(now - started, 1e-9) / 1e6:.0f} MB/s"
        context.log.info(said)

    return progress
