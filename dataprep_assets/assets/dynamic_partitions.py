"""Dynamic partitions: what a plan has cut becomes what Dagster offers."""

from collections.abc import Sequence

import dagster as dg
from sqlalchemy.exc import IntegrityError

_TRIES = 10


def register_in_order(
    instance: dg.DagsterInstance, definition: dg.DynamicPartitionsDefinition, wanted: Sequence[str]
) -> None:
    """Make dynamic partitions exactly those wanted, in that order.

    New keys go to the end of what Dagster has, while a range of partitions is meant in the plan's order: from the first
    difference on, keys are registered anew. What was materialized under a key stays known.
    """
    name = definition.name or ""
    for tries_left in reversed(range(_TRIES)):
        there = list(instance.get_dynamic_partitions(name))
        if there == list(wanted):
            return
        pairs = enumerate(zip(there, wanted, strict=False))
        same = next((i for i, (old, new) in pairs if old != new), min(len(there), len(wanted)))
        try:
            for key in there[same:]:
                instance.delete_dynamic_partition(name, key)
            if missing := list(wanted[same:]):
                instance.add_dynamic_partitions(name, missing)
        except IntegrityError:  # another run registers them at this moment: look again
            if not tries_left:
                raise
