"""Dagster's keys, names and partitions of artifacts; registration and selection of partitions."""

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
SENSITIVE = "dataprep/sensitive"
"""Tag of the assets of sensitive datasets."""
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


def build_step_name(*specs: ArtifactSpec) -> str:
    """Return the name of the job step that builds these artifacts."""
    return TOGETHER.join("__".join(spec.path[1:]) for spec in specs)


def job_name(dataset: str) -> str:
    """Return the name of the job that builds the whole dataset."""
    return f"build_{dataset}"


_REGISTER_TIMEOUT_SECONDS = 120.0
_MAX_PAUSE_SECONDS = 4.0


def register_in_order(instance: dg.DagsterInstance, name: str, names: Sequence[str]) -> None:
    """Set the keys of the dynamic partitions `name` to exactly `names`, in that order.

    Dagster appends new keys to the end, but a range of partitions follows the plan's order. Therefore all keys from the
    first difference on are deleted and registered again. Their materializations are kept. Several runs may register the
    same keys concurrently.

    Raises:
        DataprepError: Other runs kept changing the keys for two minutes.
    """
    deadline = time.monotonic() + _REGISTER_TIMEOUT_SECONDS
    max_pause = 0.05
    while not _register_keys(instance, name, list(names)):
        if time.monotonic() > deadline:
            raise DataprepError(
                f"dynamic partitions {name!r}: other runs kept changing them for {_REGISTER_TIMEOUT_SECONDS:.0f} s. "
                "Run this step again when they have ended"
            )
        # Wait for a random time, because immediate retries of several runs would collide again.
        time.sleep(random.uniform(0, max_pause))
        max_pause = min(2 * max_pause, _MAX_PAUSE_SECONDS)


def _register_keys(instance: dg.DagsterInstance, name: str, names: list[str]) -> bool:
    """Register the keys if they differ from the registered keys; return whether both are equal now."""
    current_keys = list(instance.get_dynamic_partitions(name))
    if current_keys == names:
        return True
    from sqlalchemy.exc import IntegrityError  # import this late, because the import takes 0.1 s

    pairs = enumerate(zip(current_keys, names, strict=False))
    first_difference = next((i for i, (old, new) in pairs if old != new), min(len(current_keys), len(names)))
    # Ignore a duplicate key. Dagster adds keys without a transaction, so another run may have added the key meanwhile.
    with suppress(IntegrityError):
        for key in current_keys[first_difference:]:
            instance.delete_dynamic_partition(name, key)
        if missing := names[first_difference:]:
            instance.add_dynamic_partitions(name, missing)
    # Read the keys back, because another run may have changed them between these calls.
    return list(instance.get_dynamic_partitions(name)) == names


def build_partitions_definition(partitions: Partitions) -> dg.PartitionsDefinition[str]:
    """Return Dagster's definition of an artifact's partitions."""
    if partitions.dynamic is not None:
        return dg.DynamicPartitionsDefinition(name=partitions.dynamic)
    # Fixed keys come from the declaration, so the definition needs no store.
    return dg.StaticPartitionsDefinition(list(partitions.fixed_keys))


def select_partitions(run: dg.DagsterRun, all_keys: Sequence[str]) -> list[str]:
    """Return the keys that a run selects from `all_keys`: its single partition, its range, or all keys."""
    if key := run.tags.get("dagster/partition"):
        return [key] if key in all_keys else []
    first_key, last_key = (
        run.tags.get("dagster/asset_partition_range_start"),
        run.tags.get("dagster/asset_partition_range_end"),
    )
    if first_key in all_keys and last_key in all_keys:
        return list(all_keys[all_keys.index(first_key) : all_keys.index(last_key) + 1])
    return list(all_keys)
