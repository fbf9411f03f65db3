"""Folders that `datasets` writes: which of their Arrow files are the dataset, and which are results of its functions.

`map()` and `filter()` leave their results beside the data, as `cache-<fingerprint>.arrow`. `state.json` names the files
that belong (`save_to_disk`); a folder of its own cache has `dataset_info.json` alone, and there names decide.
"""

import json
from collections.abc import Callable, Iterable
from posixpath import split

from dataprep_assets.planning.manifest import SourceFile

_STATE, _INFO = "state.json", "dataset_info.json"
_MAX_STATE = 16 << 20


def left_out(files: Iterable[SourceFile], read: Callable[[SourceFile], bytes] | None = None) -> frozenset[str]:
    """The paths of Arrow files that belong to no dataset.

    Args:
        files: All files of a source.
        read: Reads a file of it; None if they are not on this machine: then names decide.
    """
    every = list(files)
    arrow: dict[str, list[str]] = {}
    for file in every:
        if file.relpath.endswith(".arrow"):
            folder, name = split(file.relpath)
            arrow.setdefault(folder, []).append(name)
    if not arrow:
        return frozenset()
    marks = {split(file.relpath): file for file in every if file.relpath.endswith((_STATE, _INFO))}
    found: set[str] = set()
    for folder, names in arrow.items():
        state = marks.get((folder, _STATE))
        if state is None and (folder, _INFO) not in marks:
            continue
        named = None if state is None or read is None else _named_files(state, read)
        found.update(f"{folder}/{name}".lstrip("/") for name in names if not _belongs(name, named))
    return frozenset(found)


def _belongs(name: str, named: frozenset[str] | None) -> bool:
    return not name.startswith("cache-") if named is None else name in named


def _named_files(state: SourceFile, read: Callable[[SourceFile], bytes]) -> frozenset[str] | None:
    """The files that a `state.json` names; None if it names none, as one of something else."""
    if state.size_bytes > _MAX_STATE:
        return None
    try:
        return frozenset(str(one["filename"]) for one in json.loads(read(state))["_data_files"]) or None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
