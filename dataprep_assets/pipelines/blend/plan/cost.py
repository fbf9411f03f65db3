"""What a pretraining blend will cost to build from nothing, for `dataprep plan`. Its plan must be committed."""

from dataprep_assets.engine.staleness.estimate import Estimate, estimated
from dataprep_assets.errors import ConfigError
from dataprep_assets.formats.flat_bins import token_dtype
from dataprep_assets.integrity.artifacts import ArtifactStore, LocalArtifacts
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.indexed_bins import INDEXED_BINS
from dataprep_assets.pipelines.blend.plan.discovery import open_place
from dataprep_assets.pipelines.blend.plan.plan import PlannedUnit, has_blend_plan, load_blend_plan
from dataprep_assets.pipelines.blend.stream import blend_dtype
from dataprep_assets.planning.cost import Machine, Products, SplitSizes, density_of


def blend_cost(blend: BlendDeclaration, store: ArtifactStore, machine: Machine) -> Estimate:
    """The cost of a pretraining blend.

    Args:
        blend: The dataset.
        store: Where its artifacts go.
        machine: The machine that builds it.

    Raises ConfigError before its plan is made.
    """
    if not has_blend_plan(blend, store):
        raise ConfigError(
            f"plan: {blend.dataset}: its plan is not made yet, and needs rows counted; materialize `blend_plan` first"
        )
    plan = load_blend_plan(blend, store)
    local = isinstance(store, LocalArtifacts)
    return estimated(
        [_reading(blend, unit) for unit in plan.units],
        machine,
        store,
        artifacts=[blend.artifact(INDEXED_BINS, partition) for partition in plan.partitions],
        bytes_per_token=token_dtype(blend_dtype(blend)).itemsize,
        products=Products(copies=int(local), uploads=int(not local), joined=False),
        density=density_of(entry for unit in plan.units for entry in unit.entries),
    )


def _reading(blend: BlendDeclaration, unit: PlannedUnit) -> SplitSizes:
    """Files and shards of one dataset."""
    shards = [unit.shards[index] for index in unit.chosen]
    files = {part.entry.relpath: part.entry.size_bytes for shard in shards for part in shard.parts}
    return SplitSizes(
        split=unit.name,
        files=tuple(files.values()),
        shards=tuple(shard.total_bytes for shard in shards),
        mirrored=open_place(unit.dataset, blend.sources).access.mirrored,
    )
