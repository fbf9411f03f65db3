"""Data versions, by which Dagster decides what is out of date: that of a partition is the digest of its own content.

Dagster gives all partitions of a step's result one data version and one set of tags, and marks everything downstream of
a changed version as stale, so a run of many partitions would make each of them look changed. Here every artifact and
partition is reported by an event of its own, with the tags that Dagster would give it: its code version, its data
version, and for each input the event and version that it was made of.

Entry points: `version_tags`, `reported`.
"""

from typing import Any

import dagster as dg

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.orchestration.keys import asset_key

_REPORTED_BY_BODY = "__source_asset_observation__"
"""Metadata by which a step of an asset says that its body has reported the asset. Dagster has no public name for it;
without it every partition of a run would be reported a second time, without its metadata."""


def version_tags(spec: ArtifactSpec, instance: dg.DagsterInstance) -> dict[str, str]:
    """The version tags of the materializations of an artifact in one step, but for its data version.

    Its inputs are those that are recorded now.
    """
    tags = {"dagster/code_version": str(spec.version), "dagster/data_version_is_user_provided": "true"}
    for source in spec.inputs:
        key = asset_key(source)
        latest = next(iter(instance.fetch_materializations(key, limit=1).records), None)
        event = None if latest is None else latest.asset_materialization
        version = None if event is None else (event.tags or {}).get("dagster/data_version")
        name = key.to_user_string()
        # in Dagster's words where it was never materialized
        tags[f"dagster/input_data_version/{name}"] = version or "INITIAL"
        tags[f"dagster/input_event_pointer/{name}"] = "NULL" if latest is None else str(latest.storage_id)
    return tags


def reported() -> dg.MaterializeResult[Any]:
    """The result of a step of an asset that has already reported each of its partitions."""
    return dg.MaterializeResult(metadata={_REPORTED_BY_BODY: True})
