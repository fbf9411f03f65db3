"""The blend files of Nemotron's repository, loaded by both."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dataprep_assets.errors import ConfigError
from dataprep_assets.pipelines.blend.data_blend import DataBlend
from dataprep_assets_tests.parity.nemotron_rl import reach
from dataprep_assets_tests.parity.table import Row

__all__ = ["compare"]

AREA = "blend files"
_FIELDS = ("name", "path", "weight", "split", "subset", "text_field")
"""What theirs knows of a dataset."""


def compare(folder: Path) -> list[Row]:
    """A row for each blend file: its datasets, and those that both read alike.

    `folder` is a copy of the Nemotron repository, with `src/` in it.
    """
    reach(folder)
    theirs = importlib.import_module("nemotron.data_prep.blend").DataBlend
    return [_compared(path, path.relative_to(folder / "src" / "nemotron"), theirs) for path in _files(folder)]


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
