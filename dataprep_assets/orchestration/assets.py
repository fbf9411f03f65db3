"""Turns an artifact's spec into its Dagster asset: for what a person does by hand, one shard, a range, a backfill."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import dagster as dg

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.staleness.decide import Action
from dataprep_assets.engine.staleness.status import check_decisions
from dataprep_assets.orchestration.keys import DATASET, asset_key, job_name
from dataprep_assets.orchestration.metadata import definition_metadata
from dataprep_assets.orchestration.partitions import definition_of
from dataprep_assets.orchestration.runs.lost_runs import stay_at_work
from dataprep_assets.orchestration.runs.plans import plan_metadata
from dataprep_assets.orchestration.runs.pools import POOLS
from dataprep_assets.orchestration.runs.step_build import StepBuild, refusals
from dataprep_assets.orchestration.versions import reported
from dataprep_assets.planning.cost import SHARDS_A_RUN
from dataprep_assets.resources import StorageResource, io_manager
from dataprep_assets.stores.private import private_files


def asset_of(
    spec: ArtifactSpec,
    tags: Mapping[str, str] = MappingProxyType({}),
    freshness: dg.FreshnessPolicy | None = None,
) -> dg.AssetsDefinition:
    """The asset of an artifact, with `tags` in addition to those of its declaration, and a freshness policy if any."""

    @dg.asset(**_arguments(spec, tags), freshness_policy=freshness)
    def artifact(context: dg.AssetExecutionContext, storage: StorageResource) -> Any:
        stay_at_work(context)
        store = spec.declaration.store(storage)
        _tag_run(context.instance, context.run)
        with private_files(spec.declaration.sensitive), refusals(spec, store):
            slots = context.partition_keys if spec.partitions is not None else [None]
            decisions = check_decisions(spec, store, slots)
            failed = {slot for slot, one in decisions.items() if one.action is Action.BUILD}
            yield from StepBuild(context, spec, store).build(slots, rebuild=failed)
        yield reported()

    return artifact


def _tag_run(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Say which dataset a run is of: one that a person or a backfill launched has no tag of ours by itself."""
    made = {key.path[0] for key in run.asset_selection or ()}
    if DATASET not in run.tags and len(made) == 1:
        instance.add_run_tags(run.run_id, {DATASET: made.pop()})


def _description(spec: ArtifactSpec) -> str:
    """What the asset's page says, and by its first line the catalog, which shows the marks of Markdown as they are."""
    dataset = spec.declaration.dataset
    first = re.sub(r"<([\w-]+)>", lambda found: found[1].upper(), spec.description.replace("`", ""))
    job = (
        f"The job [{job_name(dataset)}](/guess/{job_name(dataset)}) makes and checks all of {dataset} in one run. "
        '"Materialize all" takes a run for each step of the graph, and half a minute between them.'
    )
    return "\n\n".join(filter(None, (first, spec.declaration.description, job)))


def _arguments(spec: ArtifactSpec, tags: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of `dg.asset`."""
    declaration = spec.declaration
    arguments: dict[str, Any] = {
        "key": asset_key(spec),
        "deps": [asset_key(source) for source in spec.inputs],
        "group_name": declaration.dataset,
        "kinds": set(spec.kinds),
        "owners": list(declaration.owners),
        "description": _description(spec),
        "tags": {**tags, **({"dataprep/sensitive": "true"} if declaration.sensitive else {})},
        "metadata": {
            **definition_metadata(spec),
            **({io_manager.STORAGE: declaration.storage} if declaration.storage else {}),
            **({io_manager.PRIVATE: True} if declaration.sensitive else {}),
            **plan_metadata(spec),
        },
        "code_version": str(spec.version),
        "io_manager_key": io_manager.KEY,
    }
    if spec.pool is not None:
        arguments["pool"] = POOLS[spec.pool]
    if spec.partitions is not None:
        arguments["partitions_def"] = definition_of(spec.partitions)
        arguments["backfill_policy"] = dg.BackfillPolicy.multi_run(SHARDS_A_RUN)
    return arguments
