"""Data versions, by which Dagster decides what is out of date: that of a partition is the digest of its own content.

Dagster gives all partitions of a step's result one data version and one set of tags (`_get_output_asset_events` in
`dagster._core.execution.plan.execute_step`), and marks everything downstream of a changed version as stale, so a run of
many partitions would make each of them look changed. Here every partition is reported by an event of its own, with the
tags that Dagster would give it, and the result of the step says that there is nothing left to report.

Entry points: `partition_event`, `reported`.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg

# Dagster's names for these tags, and for a body that has reported its output: neither is public
from dagster._core.definitions.source_asset import SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION as REPORTED_BY_BODY
from dagster._core.execution.plan.execute_step import (
    _build_data_version_tags,
    _get_code_version,
    _get_input_provenance_data,
)

__all__ = ["partition_event", "reported", "version_of"]


def version_of(content: str) -> dg.DataVersion:
    """The data version of an artifact with this content digest."""
    return dg.DataVersion(content[:32])


def partition_event(
    context: dg.AssetExecutionContext, partition: str, content: str, metadata: Mapping[str, Any]
) -> dg.AssetMaterialization:
    """The materialization of one finished partition.

    Args:
        context: The context of the step that finished it.
        partition: The partition key.
        content: The content digest of the artifact.
        metadata: The metadata that the UI shows.
    """
    step = context.get_step_execution_context()
    key = context.asset_key
    tags = _build_data_version_tags(
        version_of(content),
        _get_code_version(key, step),
        _get_input_provenance_data(key, step),
        data_version_is_user_provided=True,
    )
    return dg.AssetMaterialization(asset_key=key, partition=partition, metadata=metadata, tags=tags)


def reported() -> dg.MaterializeResult[Any]:
    """The result of a step that has already reported each of its partitions."""
    return dg.MaterializeResult(metadata={REPORTED_BY_BODY: True})
