"""The asset `<dataset>/release_plan`: how the token stream is cut into npy shards; registers their partitions.

It can be known only when all token bins are there. What it says follows from their receipts, so it keeps no file.
"""

from typing import Any

import dagster as dg

from dataprep_assets.formats import npy_shards
from dataprep_assets.formats.flat_bins import token_dtype
from dataprep_assets.formats.sample_ids import ID_BYTES
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.orchestration.dataset import table
from dataprep_assets.orchestration.dynamic_partitions import register_in_order
from dataprep_assets.pipelines.corpus.corpus_asset import CorpusAssets
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.pipelines.release.layout import partition_key, release_layout
from dataprep_assets.pipelines.release.npy_shards import shard_key
from resources import StorageResource


def release_partitions(release: ReleaseDeclaration) -> dg.DynamicPartitionsDefinition:
    """The shards of a release: `train_000000`."""
    return dg.DynamicPartitionsDefinition(name=f"{release.dataset}_npy_shards")


def release_plan_asset(dataset: CorpusAssets, release: ReleaseDeclaration) -> dg.AssetsDefinition:
    """Lay out the shards of every split and register one partition a shard."""

    @dg.asset(
        key=dataset.key("release_plan"),
        deps=[dataset.key("token_bins", split) for split in release.splits],
        **dataset.common({"json"}, "Which tokens go into which npy shard; registers the shards."),
    )
    def release_plan(context: dg.AssetExecutionContext, storage: StorageResource) -> dg.MaterializeResult[Any]:
        layout = release_layout(release, dataset.store(storage), dataset.manifest(storage))
        register_in_order(context.instance, release_partitions(release), layout.partitions)
        itemsize = token_dtype(layout.meta["dtype"]).itemsize
        rows: list[dict[str, Any]] = []
        for name, split in layout.splits.items():
            tokens = sum(cut.tokens for cut in split.cuts)
            samples = tokens // release.release.sequence_length
            size = tokens * itemsize + samples * ID_BYTES + len(split.cuts) * npy_shards.HEADER_BYTES
            rows.append(
                {
                    "split": name,
                    "shards": len(split.cuts),
                    "tokens": tokens,
                    "samples": samples,
                    "bytes": size,
                    "padding_tokens": sum(cut.padding for cut in split.cuts),
                    "dropped_tokens": sum(cut.dropped for cut in split.cuts),
                }
            )
        keys = [shard_key(release, layout, partition_key(n, c.index)) for n, s in layout.splits.items() for c in s.cuts]
        return dg.MaterializeResult(
            metadata={"shards": table(rows), "bytes": sum(row["bytes"] for row in rows)},
            data_version=dg.DataVersion(digest_value(keys)[:32]),
        )

    return release_plan
