"""A backfill of a dataset, launched from inside a run as the webserver launches one for the UI.

The daemon does the rest: it cuts partitions into runs and waits for their inputs; the backfill can be canceled.
Dagster has no public way to ask for a backfill from code, so this module, and no other, uses private ones.
"""

import time
from collections.abc import Mapping, Sequence

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus, PartitionBackfill
from dagster._core.utils import make_new_backfill_id

from dataprep_assets.graph.spec import ArtifactSpec
from dataprep_assets.orchestration.keys import asset_key
from dataprep_assets.orchestration.partitions import definition_of

__all__ = ["launch", "succeeded"]

_LATEST = 20


def launch(
    instance: dg.DagsterInstance,
    wanted: Mapping[ArtifactSpec, Sequence[str]],
    *,
    title: str,
    description: str,
    tags: Mapping[str, str],
) -> str:
    """Ask for a backfill and return its id.

    Args:
        instance: The instance whose daemon runs the backfill.
        wanted: Artifact → its partitions, which must be registered; empty for an unpartitioned artifact.
        title: Title in the UI's list of backfills.
        description: Shown under the title.
        tags: Tags of the backfill and of each of its runs.
    """
    partitioned = {
        asset_key(spec): definition_of(spec.partitions).subset_with_partition_keys(partitions)
        for spec, partitions in wanted.items()
        if spec.partitions is not None
    }
    backfill = PartitionBackfill.from_asset_graph_subset(
        backfill_id=make_new_backfill_id(),
        backfill_timestamp=time.time(),
        tags=tags,
        dynamic_partitions_store=instance,
        asset_graph_subset=AssetGraphSubset(  # type: ignore[call-arg] # its decorator hides its fields from mypy
            partitioned, {asset_key(spec) for spec in wanted if spec.partitions is None}
        ),
        title=title,
        description=description,
        run_config=None,
    )
    instance.add_backfill(backfill)
    return backfill.backfill_id


def succeeded(instance: dg.DagsterInstance, tags: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
    """The latest successful backfills with these tags: id → all tags of the backfill.

    Args:
        instance: The instance that recorded them.
        tags: Tags that a backfill must have.
    """
    wanted = BulkActionsFilter(tags=tags, statuses=[BulkActionStatus.COMPLETED_SUCCESS])
    return {found.backfill_id: found.tags for found in instance.get_backfills(filters=wanted, limit=_LATEST)}
