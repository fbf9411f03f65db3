"""How the checks of a blend's shards speak of all shards after a run that touched a few."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import dagster as dg

from dataprep_assets.assets.blend_plan import BlendAssets
from dataprep_assets.assets.dataset import partitions_of_run
from dataprep_assets.builds.blend.plan import BlendPlan
from dataprep_assets.checks.findings import checks_of, summarized
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.proofs.finding import Finding
from dataprep_assets.proofs.verdicts import remembered
from resources import StorageResource

Prove = Callable[[ArtifactStore, BlendPlan, Sequence[str]], Iterable[tuple[str, dict[str, Finding]]]]
"""Examines these shards of a plan: each partition with its findings by name."""


def shard_checks(
    dataset: BlendAssets, artifact: str, descriptions: Mapping[str, str], prove: Prove
) -> dg.AssetChecksDefinition:
    """The checks of a shard artifact: shards of the run are examined, of the others the remembered verdict counts."""

    def findings(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        store = dataset.store(storage)
        plan = dataset.plan(store)
        examined = partitions_of_run(context.run, plan.partitions)
        found = dict(prove(store, plan, examined))
        unknown = 0
        for partition in plan.partitions:
            if partition not in found:
                kept = remembered(dataset.blend.artifact(artifact, partition), store)
                unknown += kept is None
                found |= {partition: kept} if kept else {}
        for name in descriptions:
            yield name, summarized({p: found[p][name] for p in plan.partitions if p in found}, examined, unknown)

    return checks_of(dataset.key(artifact), descriptions, findings)
