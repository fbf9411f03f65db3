"""Dynamic partitions: what a plan has cut becomes what Dagster offers."""

from collections.abc import Sequence

import dagster as dg


def register_in_order(
    instance: dg.DagsterInstance, definition: dg.DynamicPartitionsDefinition, wanted: Sequence[str]
) -> None:
    """Make dynamic partitions exactly those wanted, in that order.

    New keys go to the end of what Dagster has, while a range of partitions is meant in the plan's order: from the first
    difference on, keys are registered anew. What was materialized under a key stays known.
    """
    name = definition.name or ""
    there = list(instance.get_dynamic_partitions(name))
    pairs = enumerate(zip(there, wanted, strict=False))
    same = next((i for i, (old, new) in pairs if old != new), min(len(there), len(wanted)))
    for key in there[same:]:
        instance.delete_dynamic_partition(name, key)
    if missing := list(wanted[same:]):
        instance.add_dynamic_partitions(name, missing)
