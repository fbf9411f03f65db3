"""The artifact `<dataset>/release_plan`: how the token stream is cut into npy shards; registers their partitions.

It needs all token bins. Its content follows from their receipts, so it has no files.
"""

from functools import partial
from typing import Any

from dataprep_assets.engine.artifact.metadata_values import Table
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest, Partitions
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.formats import npy_shards
from dataprep_assets.formats.flat_bins import token_dtype
from dataprep_assets.formats.sample_ids import ID_BYTES
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.pipelines.release.layout import release_layout
from dataprep_assets.pipelines.release.npy_shard import shard_recipe

RELEASE_PLAN = "release_plan"


def release_plan_spec(
    release: ReleaseDeclaration, *, token_bins: tuple[ArtifactSpec, ...], plans: Partitions
) -> ArtifactSpec:
    """The plan of a release.

    Args:
        release: The dataset.
        token_bins: The token bins of every split.
        plans: The npy shards, which it plans.
    """
    return ArtifactSpec(
        declaration=release,
        name=RELEASE_PLAN,
        description="Which tokens go into which npy shard; registers the shards.",
        kinds={"json"},
        inputs=token_bins,
        plans=(plans,),
        recipes=lambda _, __: [],
        build=partial(_build, release),
        kept=False,
    )


def _build(release: ReleaseDeclaration, request: BuildRequest) -> list[Outcome]:
    layout = release_layout(release, request.store)
    itemsize = token_dtype(layout.meta["dtype"]).itemsize
    rows: list[dict[str, Any]] = []
    for name, split in layout.splits.items():
        tokens = sum(cut.tokens for cut in split.cuts)
        samples = tokens // release.release.sequence_length
        rows.append(
            {
                "split": name,
                "shards": len(split.cuts),
                "tokens": tokens,
                "samples": samples,
                "bytes": tokens * itemsize + samples * ID_BYTES + len(split.cuts) * npy_shards.HEADER_BYTES,
                "padding_tokens": sum(cut.padding for cut in split.cuts),
                "dropped_tokens": sum(cut.dropped for cut in split.cuts),
            }
        )
    # without files, its content is what it plans: another one exactly if a shard has another key
    keys = [shard_recipe(release, layout, partition).key for partition in layout.partitions]
    metadata = {"shards": Table(rows), "bytes": sum(row["bytes"] for row in rows)}
    return [Outcome(partition="", content=digest_value(keys), metadata=metadata)]
