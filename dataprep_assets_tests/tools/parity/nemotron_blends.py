"""Load the blend files of Nemotron's repository with both programs, and compare our examples that are based on three of
them.
"""

import importlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

import dataprep_assets
from dataprep_assets.errors import ConfigError
from dataprep_assets.pipelines.blend.data_blend import DataBlend
from dataprep_assets_tests.tools.parity.nemotron_rl import reach
from dataprep_assets_tests.tools.parity.table import Row

AREA = "blend files"
_FIELDS = ("name", "path", "weight", "split", "subset", "text_field")
"""The fields of a dataset in Nemotron's loader."""
_EXAMPLES = {"nano3_pretrain": "stage0_pretrain", "nano3_sft": "stage1_sft", "nano3_rl": "stage2_rl"}
"""Our example → the folder of the upstream recipe."""
_SETTINGS = {
    "num_shards": ("num_shards",),
    "tokenizer.model": ("tokenizer", "repo"),
    "pack_size": ("sft", "pack_size"),
    "algorithm": ("sft", "algorithm"),
    "chat_template": ("sft", "chat_template"),
    "used_in_filter": ("sft", "used_in_filter"),
    "valid_shards": ("held_out", "valid"),
    "test_shards": ("held_out", "test"),
}
"""Upstream settings that our example spells out → their location."""


def compare(folder: Path) -> list[Row]:
    """Return a row for each blend file: its datasets, and those that both read equally; and a row for each example.

    `folder` is a copy of the Nemotron repository, with `src/` in it.
    """
    reach(folder)
    theirs = importlib.import_module("nemotron.data_prep.blend").DataBlend
    files = [_compared(path, path.relative_to(folder / "src" / "nemotron"), theirs) for path in _files(folder)]
    recipes = folder / "src" / "nemotron" / "recipes" / "nano3"
    examples = Path(dataprep_assets.__file__).parent / "defs" / "examples"
    return [
        *files,
        *(
            _example(examples / name, recipes / stage / "config" / "data_prep", theirs)
            for name, stage in _EXAMPLES.items()
        ),
    ]


def _example(ours: Path, recipe: Path, theirs: Any) -> Row:
    """Return datasets and settings of a shipped example compared with those of its recipe."""
    wanted = theirs.load(recipe / "data_blend_raw.json").datasets
    found = DataBlend.load(ours / "data_blend_raw.json").datasets or ()
    pairs = [
        ([getattr(dataset, field) for field in _FIELDS], [_unpinned(getattr(one, field)) for field in _FIELDS])
        for dataset, one in zip(wanted, found, strict=True)
    ]
    asked = yaml.safe_load((recipe / "default.yaml").read_text(encoding="utf-8"))
    made = yaml.safe_load((ours / "defs.yaml").read_text(encoding="utf-8"))["attributes"]
    settings = {name: _under(asked, name.split(".")) for name in _SETTINGS}
    pairs += [([value], [_under(made, _SETTINGS[name])]) for name, value in settings.items() if value is not None]
    equal = sum(their == our for their, our in pairs)
    return Row("shipped examples", ours.name, len(pairs), equal, 0, f"datasets: {len(wanted)}; the others are settings")


def _unpinned(value: Any) -> Any:
    """Return a dataset's path without its commit, which upstream does not name."""
    return value.partition("@")[0] if isinstance(value, str) and value.startswith("hf://") else value


def _under(value: Any, keys: Iterable[str]) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted((folder / "src").rglob("*.json")):
        value = json.loads(path.read_bytes())
        if "blend" in path.name and isinstance(value, dict) and {"datasets", "train"} & value.keys():
            yield path


def _compared(path: Path, name: Path, theirs: Any) -> Row:
    wanted = theirs.load(path).datasets
    try:
        blend = DataBlend.load(path)
    except ConfigError as error:
        refused = str(error).removeprefix(f"{path}: ")
        return Row(AREA, str(name), len(wanted), 0, 0, f"refused: {refused}")
    found = blend.datasets or ()
    equal = sum(
        all(getattr(ours, field) == getattr(one, field) for field in _FIELDS)
        for ours, one in zip(found, wanted, strict=True)
    )
    kept = {*blend.notes, *(key for one in found for key in one.notes), *("category" for one in found if one.category)}
    return Row(AREA, str(name), len(wanted), equal, 0, "loads" + (f"; kept: {', '.join(sorted(kept))}" if kept else ""))
