"""Replace packages that an upstream program imports and that a comparison of its pure functions does not need."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


class _Empty(ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__class_getitem__": classmethod(lambda cls, _: cls)})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in self._packages:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Execute nothing, because the module is empty."""


def stand_in(*packages: str) -> None:
    """Make these packages, and modules below them, importable as empty modules; installed ones are unchanged."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        sys.meta_path.append(_Finder(missing))


def empty_module(name: str) -> None:
    """Make this single module importable as an empty one."""
    sys.modules[name] = _Empty(name)


def bare_package(name: str, folder: Path) -> None:
    """Make a package importable whose modules are in a folder, without running its `__init__`."""
    package = ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package
