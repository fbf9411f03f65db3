"""Asks Dagster's records for the latest materializations of assets that datasets take their files from."""

import os
from collections.abc import Sequence

import dagster as dg

from dataprep_assets.errors import ConfigError
from dataprep_assets.sources.upstream import Materialization, answered_by

_PAGE = 1000


def asked_of_the_environment() -> None:
    """Answer from the instance of this process, unless somebody else answers already."""
    answered_by(_of_the_environment, lambda: os.environ.get("DAGSTER_HOME"), by_default=True)


def _of_the_environment(key: Sequence[str]) -> list[Materialization]:
    try:
        with dg.DagsterInstance.get() as instance:
            return latest(instance, key)
    except dg.DagsterError as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"source.key: the Dagster instance of this process cannot be opened: {said:.300}") from error


def latest(instance: dg.DagsterInstance, key: Sequence[str]) -> list[Materialization]:
    """The latest materialization of an asset, or of each of its partitions that has one, sorted by partition."""
    asset = dg.AssetKey(list(key))
    event = instance.get_latest_materialization_event(asset)
    if event is None or event.asset_materialization is None:
        return []
    if event.asset_materialization.partition is None:
        return [_read_materialization(event.asset_materialization)]
    left = set(instance.get_materialized_partitions(asset))
    materializations: dict[str, Materialization] = {}
    cursor: str | None = None
    # newest first: the first event that is met of a partition is its latest
    while left:
        page = instance.fetch_materializations(asset, limit=_PAGE, cursor=cursor)
        for record in page.records:
            made = record.asset_materialization
            if made is not None and made.partition in left:
                left.discard(made.partition)
                materializations[made.partition] = _read_materialization(made)
        if not page.has_more:
            break
        cursor = page.cursor
    return [materializations[partition] for partition in sorted(materializations)]


def _read_materialization(made: dg.AssetMaterialization) -> Materialization:
    texts = {name: entry.value for name, entry in made.metadata.items()}
    return Materialization(
        partition=made.partition, metadata={name: value for name, value in texts.items() if isinstance(value, str)}
    )
