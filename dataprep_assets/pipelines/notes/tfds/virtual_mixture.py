"""Files that configure loaders to read a virtual mixture, which has no shards of its own."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dataprep_assets.packing.stock_maxtext import Pipeline
from dataprep_assets.pipelines.notes.replay.replay_declaration import MixtureDeclaration

GRAIN_MIXTURE = "grain_mixture.json"
"""File for grain: dataset → pattern and weight of its shards."""
BUILDER_DIRECTORIES = "builder_directories.json"
"""File for `tfds.builder_from_directories`: the directories, in declared order."""
HF_CARD = "README.md"
"""File for `datasets.load_dataset` of the artifact's folder: split → JSON Lines files of all packed cohorts."""


def is_for_hf(replay: MixtureDeclaration, pipeline: Pipeline | None) -> bool:
    """Return whether a mixture of sources for `pipeline` has an `HF_CARD`; the card cannot express weights."""
    return replay.mode == "virtual" and pipeline == "hf" and all(source.weight is None for source in replay.sources)


def write_mixture(
    staged: Path, replay: MixtureDeclaration, locations: Mapping[str, str], rows: Mapping[str, int]
) -> None:
    """Write the file for the loader of the declared format.

    Args:
        staged: The staging directory of the mixture.
        replay: The mixture's declaration; undeclared weights are numbers of rows.
        locations: Dataset → path or URL of its directory of shards, in declared order.
        rows: Dataset → number of its rows in the first split.
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


def write_hf_card(staged: Path, files: Mapping[str, Sequence[str]]) -> None:
    """Write the `HF_CARD` of the staging directory: `files` is split → paths or URLs of its JSON Lines files."""
    data_files = [{"split": split, "path": list(paths)} for split, paths in files.items()]
    card = {"configs": [{"config_name": "default", "data_files": data_files}]}
    # Write the card as JSON, which is valid YAML, so that `read_hf_card` needs no YAML parser.
    (staged / HF_CARD).write_text(f"---\n{json.dumps(card, indent=1)}\n---\n")


def read_hf_card(path: Path) -> dict[str, list[str]]:
    """Read the files that `write_hf_card` wrote; raise ValueError, KeyError or TypeError for an invalid card."""
    # Strip the two lines of hyphens, because only the text between them is JSON.
    (config,) = json.loads(path.read_text().strip().strip("-"))["configs"]
    return {str(entry["split"]): [str(file) for file in entry["path"]] for entry in config["data_files"]}


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
