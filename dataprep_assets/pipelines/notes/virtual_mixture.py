"""The file that tells a loader how to mix several datasets, for a combination without shards of its own."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dataprep_assets.pipelines.notes.replay_declaration import ReplayDeclaration

__all__ = ["BUILDER_DIRECTORIES", "GRAIN_MIXTURE", "write_mixture"]

GRAIN_MIXTURE = "grain_mixture.json"
"""For grain: dataset → pattern of its shards, and weight."""
BUILDER_DIRECTORIES = "builder_directories.json"
"""For `tfds.builder_from_directories`: the directories, in declared order."""


def write_mixture(
    staged: Path, replay: ReplayDeclaration, locations: Mapping[str, str], rows: Mapping[str, int]
) -> None:
    """Write the file for the loader of the declared format.

    Args:
        staged: The staging directory of the combination.
        replay: Its declaration; weights that are not declared follow from the rows.
        locations: Dataset → path or URL of its directory of shards, in declared order.
        rows: Dataset → its rows in the first split.
    """
    if replay.format == "tfrecord":
        _write_json(staged / BUILDER_DIRECTORIES, list(locations.values()))
        return
    weights = [s.weight if s.weight is not None else rows[s.dataset] for s in replay.sources]
    mixture = {
        dataset: {"path": f"{location}/{dataset}-{replay.splits[0]}.array_record-*", "weight": weight / sum(weights)}
        for (dataset, location), weight in zip(locations.items(), weights, strict=True)
    }
    _write_json(staged / GRAIN_MIXTURE, mixture)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
