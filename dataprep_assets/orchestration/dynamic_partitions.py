"""Dynamic partitions: what a plan has cut becomes what Dagster offers."""

import random
import time
from collections.abc import Sequence
from contextlib import suppress

import dagster as dg
from sqlalchemy.exc import IntegrityError

from dataprep_assets.errors import DataprepError

_GIVE_UP_SECONDS = 120.0
_LONGEST_PAUSE_SECONDS = 4.0


def register_in_order(
    instance: dg.DagsterInstance, definition: dg.DynamicPartitionsDefinition, wanted: Sequence[str]
) -> None:
    """Make dynamic partitions exactly those wanted, in that order.

    New keys go to the end of what Dagster has, while a range of partitions is meant in the plan's order: from the first
    difference on, keys are registered anew. What was materialized under a key stays known. Several runs may register
    the same keys at once.

    Raises:
        DataprepError: Others kept changing them, for two minutes.
    """
    name = definition.name or ""
    deadline = time.monotonic() + _GIVE_UP_SECONDS
    longest_pause = 0.05
    while not _registered(instance, name, list(wanted)):
        if time.monotonic() > deadline:
            raise DataprepError(
                f"dynamic partitions {name!r}: other runs kept changing them for {_GIVE_UP_SECONDS:.0f} s; "
                "materialize this asset again when they have ended"
            )
        # runs that look again at once meet again: each waits a while of its own
        time.sleep(random.uniform(0, longest_pause))
        longest_pause = min(2 * longest_pause, _LONGEST_PAUSE_SECONDS)


def _registered(instance: dg.DagsterInstance, name: str, wanted: list[str]) -> bool:
    """Register them where they are not, and say whether they are there now."""
    there = list(instance.get_dynamic_partitions(name))
    if there == wanted:
        return True
    pairs = enumerate(zip(there, wanted, strict=False))
    same = next((i for i, (old, new) in pairs if old != new), min(len(there), len(wanted)))
    with suppress(IntegrityError):  # Dagster looks, then adds, without a transaction: another run added between
        for key in there[same:]:
            instance.delete_dynamic_partition(name, key)
        if missing := wanted[same:]:
            instance.add_dynamic_partitions(name, missing)
    return list(instance.get_dynamic_partitions(name)) == wanted
