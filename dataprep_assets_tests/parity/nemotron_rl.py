"""RL records of Nemotron's data_prep beside ours: the same files through both, compared line by line.

Theirs run as they are, from a copy of the repository: their placeholder resolver over local files in the place of the
hub, their shard writer, and the resolver with which their training settings read a manifest.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from dataprep_assets.errors import DataprepError
from dataprep_assets_tests.parity.rl_records import NAMES, Record, records_by_shape, write_tables
from dataprep_assets_tests.parity.table import Row
from dataprep_assets_tests.pipelines.blend.pipeline import finished, pretraining, write_rows

__all__ = ["compare"]

AREA = "RL records"


def compare(folder: Path) -> list[Row]:
    """A row for each shape of records, for whole files, and for the manifest.

    `folder` is a copy of the Nemotron repository, with `src/` in it.
    """
    with TemporaryDirectory() as name, _original(folder / "src"):
        work = Path(name)
        write_tables(work / "hub" / "datasets")
        transform = _their_transform(work / "hub")
        rows = [
            _compared(shape, records, transform, _ours(work, index, records))
            for index, (shape, records) in enumerate(records_by_shape())
        ]
        return [*rows, *_whole_files(work, transform), *_manifests(folder, work)]


@contextmanager
def _original(source: Path) -> Iterator[None]:
    """Its modules importable, with empty ones where they want a cluster."""
    before, path, absent = set(sys.modules), list(sys.path), _Absent()
    sys.path.insert(0, str(source))
    sys.meta_path.append(absent)
    try:
        yield
    finally:
        sys.meta_path.remove(absent)
        sys.path[:] = path
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in ("nemotron", "nemo_runspec", *_NOT_INSTALLED):
                del sys.modules[name]


_NOT_INSTALLED = ("cosmos_xenna", "omegaconf")
"""What the original imports on its way and this comparison needs nothing of."""


class _Nothing(types.ModuleType):
    """Whatever is asked of it is a class that does nothing."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__class_getitem__": classmethod(lambda cls, _: cls)})


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module that is not installed as one without anything in it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        known = name.partition(".")[0] in _NOT_INSTALLED
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Nothing(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def _their_transform(hub: Path) -> Callable[[Record], Record | None]:
    """Their transform, with the tables that their own search for files finds below `hub`."""
    import huggingface_hub
    from fsspec.implementations.dirfs import DirFileSystem
    from fsspec.implementations.local import LocalFileSystem

    placeholders = importlib.import_module("nemotron.data_prep.utils.hf_placeholder")
    transforms = importlib.import_module("nemotron.data_prep.formats.transforms")
    targets = {**placeholders.NANO3_TARGET_DATASETS, **placeholders.SUPER3_TARGET_DATASETS}
    missing = set(targets) ^ set(NAMES)
    if missing:
        raise SystemExit(f"the original knows other placeholder sources than these records: {sorted(missing)}")
    theirs = huggingface_hub.HfFileSystem
    huggingface_hub.HfFileSystem = lambda: DirFileSystem(str(hub), LocalFileSystem())  # type: ignore
    try:
        resolver = placeholders.HFPlaceholderResolver.create(targets)
    finally:
        huggingface_hub.HfFileSystem = theirs  # type: ignore
    found: Callable[[Record], Record | None] = transforms.resolve_hf_placeholders(resolver)
    return found
