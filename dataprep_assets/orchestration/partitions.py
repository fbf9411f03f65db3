"""Dagster's keys, names and partitions of artifacts; registers planned partitions and finds the partitions of a run."""

import random
import time
from collections.abc import Sequence
from contextlib import suppress

import dagster as dg

from dataprep_assets.engine.artifact.spec import ArtifactSpec, AssetInput, DatasetInput, Partitions
from dataprep_assets.errors import DataprepError

Context = dg.OpExecutionContext | dg.AssetExecutionContext
"""Context of a step, either of a dataset's job or of an asset."""
DATASET = "dataprep/dataset"
"""Tag of runs, backfills and jobs: the dataset that they build."""
PART = "dataprep/part"
"""Tag of runs that build part of a dataset: the selected partitions."""
TOGETHER = "__and__"
"""Separator between artifact names in the name of a step that builds several artifacts together."""
FAILED_CHECKS = "failed_checks"
"""Metadata entry of a step that failed only because of its blocking checks: their number."""
MISCONFIGURED = "misconfigured"
"""Metadata entry of a step that failed only because of the declaration or the environment."""


def asset_key(spec: ArtifactSpec | DatasetInput | AssetInput) -> dg.AssetKey:
    """Return the key of an artifact's asset."""
    return dg.AssetKey(list(spec.path))


def step_name(*specs: ArtifactSpec) -> str:
    """Return the name of the job step that builds these artifacts."""
    return TOGETHER.join("__".join(spec.path[1:]) for spec in specs)


def job_name(dataset: str) -> str:
    """Return the name of the job that builds the whole dataset."""
    return f"build_{dataset}"


_GIVE_UP_SECONDS = 120.0
_LONGEST_PAUSE_SECONDS = 4.0


def register_in_order(instance: dg.DagsterInstance, name: str, wanted: Sequence[str]) -> None:
    """Set the dynamic partitions of this name to exactly the `wanted` keys, in that order.

    Dagster appends new keys to the end, but a range of partitions follows the plan's order. Therefore all keys from the
    first difference on are deleted and registered again. Their materializations are kept. Several runs may register the
    same keys concurrently.

    Raises:
        DataprepError: Other runs kept changing the keys for two minutes.
    """
    deadline = time.monotonic() + _GIVE_UP_SECONDS
    longest_pause = 0.05
    while not _registered(instance, name, list(wanted)):
        if time.monotonic() > deadline:
            raise DataprepError(
                f"dynamic partitions {name!r}: other runs kept changing them for {_GIVE_UP_SECONDS:.0f} s. "
                "Materialize this asset again when they have ended"
            )
        # runs that retry immediately would collide again, so each waits for a random time
        time.sleep(random.uniform(0, longest_pause))
        longest_pause = min(2 * longest_pause, _LONGEST_PAUSE_SECONDS)


def _registered(instance: dg.DagsterInstance, name: str, wanted: list[str]) -> bool:
    """Register the keys unless they are registered; return whether they are registered now."""
    current_keys = list(instance.get_dynamic_partitions(name))
    if current_keys == wanted:
        return True
    from sqlalchemy.exc import IntegrityError  # takes 0.1 s, so not when a code location is loaded

    pairs = enumerate(zip(current_keys, wanted, strict=False))
    first_difference = next((i for i, (old, new) in pairs if old != new), min(len(current_keys), len(wanted)))
    # Dagster checks, then adds, without a transaction, so another run may add the key in between
    with suppress(IntegrityError):
        for key in current_keys[first_difference:]:
            instance.delete_dynamic_partition(name, key)
        if missing := wanted[first_difference:]:
            instance.add_dynamic_partitions(name, missing)
    # read the keys once more, because another run may have changed them between these calls
    return list(instance.get_dynamic_partitions(name)) == wanted


def definition_of(partitions: Partitions) -> dg.PartitionsDefinition[str]:
    """Return Dagster's definition of an artifact's partitions."""
    if partitions.dynamic is not None:
        return dg.DynamicPartitionsDefinition(name=partitions.dynamic)
    # fixed partitions come from the declaration and need no store
    return dg.StaticPartitionsDefinition(list(partitions.fixed_keys))


def partitions_of_run(run: dg.DagsterRun, every: Sequence[str]) -> list[str]:
    """Return the partitions of a run out of `every`: its only partition, its range, or all of them."""
    if key := run.tags.get("dagster/partition"):
        return [key] if key in every else []
    first_key, last_key = (
        run.tags.get("dagster/asset_partition_range_start"),
        run.tags.get("dagster/asset_partition_range_end"),
    )
    if first_key in every and last_key in every:
        return list(every[every.index(first_key) : every.index(last_key) + 1])
    return list(every)
