"""The path of an artifact's asset: `<dataset>/<artifact>`, or `<dataset>/<artifact>_<split>` of one split.

The split is in the last part, because that is all that Dagster's graph shows of an asset. A code location that reads
another one's asset knows only its path, so the artifact has to be found from that.

Entry points: `asset_path`, `artifact_at`.
"""

from collections.abc import Sequence

from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifact import Artifact

AssetPath = tuple[str, ...]
"""The parts of an asset's key."""

OF_SPLITS = ("snapshot", "tags", "signatures", "selection", "token_bins", "documents", "combined_bins")
"""Artifacts that exist once for each split. No other artifact's name begins with one of these names and `_`."""


def asset_path(dataset: str, name: str, split: str | None = None) -> tuple[str, str]:
    """The path of an artifact's asset; raises ValueError for a name that `artifact_at` would not find again."""
    last = name if split is None else f"{name}_{split}"
    if _parts(last) != (name, split):
        raise ValueError(f"{last}: only {', '.join(OF_SPLITS)} are of one split, and no other name may begin like them")
    return dataset, last


def artifact_at(path: Sequence[str], partition: str | None) -> Artifact:
    """The artifact of an asset, or that of one of its partitions.

    Raises ConfigError if the path is not that of an asset of this project.
    """
    if len(path) != 2:
        raise ConfigError(f"{'/'.join(path)}: not an asset of this project: <dataset>/<artifact>[_<split>]")
    dataset, last = path
    name, split = _parts(last)
    return Artifact(dataset=dataset, name=name, partition=partition or split)


def _parts(last: str) -> tuple[str, str | None]:
    """Name and split of the last part of a path."""
    for name in OF_SPLITS:
        if last.startswith(f"{name}_"):
            return name, last.removeprefix(f"{name}_")
    return last, None
