"""The keys of JSON output, from the docstrings of the code that writes it.

A dataclass describes its keys under `Attributes:`, and a function under `Keys:`. `a[].b` is the key `b` of each object
in the list `a`, and `a.NAME.b` the key `b` of each value of the object `a`.

Entry points: `STATUS`, `LOSSES`, `PLOT` and `LOCK`, the keys of four outputs, and `list_paths`, the keys of a JSON
value.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dataprep_assets.cli import status
from dataprep_assets.engine.artifact.losses import Loss
from dataprep_assets.engine.artifact.recipe import RecipeInputs
from dataprep_assets.engine.lock.lock import LockCounts, LockedFile, LockEntry, encode_lock
from dataprep_assets.engine.staleness.downstream import AffectedArtifact
from dataprep_assets.engine.staleness.rebuild import (
    LossChange,
    PlannedBuild,
    Rebuild,
    RemainingRetractions,
    ReplacedPublication,
)
from dataprep_assets.engine.trace.histogram import ColumnHistogram, ValueCounts

_SECTION = re.compile(r"^(?:Attributes|Keys):\n((?:(?: {4}.*)?\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\S+): (.+(?:\n {8}.+)*)", re.MULTILINE)


def read_keys(writer: Callable[..., Any]) -> dict[str, str]:
    """Return key → description from the docstring of a dataclass or a function. JSON has null instead of None."""
    section = _SECTION.search(f"{inspect.getdoc(writer)}\n")
    if section is None:
        raise ValueError(f"{writer.__qualname__}: the docstring has no section `Attributes:` or `Keys:`")
    return {name: " ".join(text.replace("None", "null").split()) for name, text in _ENTRY.findall(section[1])}


def _nest(keys: Mapping[str, str], inner_keys: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the keys, each followed by the keys of its objects, which `inner_keys` has by path."""
    nested: dict[str, str] = {}
    for name, text in keys.items():
        nested[name] = text
        for path, inner in inner_keys.items():
            if re.split(r"\[|\.", path)[0] == name:
                # A description of the outer writer replaces the description of the inner one.
                nested |= {f"{path}.{key}": keys.get(f"{path}.{key}", text) for key, text in inner.items()}
    return nested


REBUILD = _nest(
    read_keys(Rebuild.to_json),
    {
        "rebuild[]": read_keys(PlannedBuild.to_json),
        "losses[]": read_keys(LossChange),
        "published[]": read_keys(ReplacedPublication),
    },
)
"""Keys of `Rebuild.to_json`."""
_OWN = read_keys(status.to_json)
STATUS = _nest(
    {"dataset": _OWN["dataset"]} | REBUILD | _OWN,
    {"reaches[]": read_keys(AffectedArtifact), "still_held[]": read_keys(RemainingRetractions)},
)
"""Keys of `dataprep status --json` and `dataprep run --dry-run --json`."""
LOSSES = read_keys(Loss)
"""Keys of each object in `losses` of `dataprep show --json`."""
PLOT = read_keys(ColumnHistogram.to_json) | read_keys(ValueCounts.to_json)
"""Keys of `dataprep documents --plot --json`."""
_COUNTS = read_keys(LockCounts)
_ENTRY_KEYS = _nest(
    read_keys(LockEntry) | read_keys(RecipeInputs),
    {"counts": _COUNTS, "files.FILE": _nest(read_keys(LockedFile), {"counts": _COUNTS})},
)
LOCK = _nest(read_keys(encode_lock), {"artifacts.NAME": _ENTRY_KEYS})
"""Keys of `dataset.lock`."""


def list_paths(value: object, maps: Mapping[str, str], path: str = "") -> Iterator[str]:
    """Yield the path of each key in a JSON value, in the form of `STATUS`.

    Args:
        value: The JSON value.
        maps: Path of each object whose keys are names → the word for these names in paths, or an empty word if their
            values are not described.
        path: Path of the value.
    """
    if isinstance(value, list):
        for item in value:
            if isinstance(item, dict):
                yield from list_paths(item, maps, f"{path}[]")
    elif isinstance(value, dict):
        for name, inner in value.items():
            if path in maps:
                if maps[path]:
                    yield from list_paths(inner, maps, f"{path}.{maps[path]}")
                continue
            inner_path = f"{path}.{name}".removeprefix(".")
            yield inner_path
            yield from list_paths(inner, maps, inner_path)
