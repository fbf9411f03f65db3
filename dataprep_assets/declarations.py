"""The datasets that a project declares: found, checked and loaded one by one, so that a broken one stops no other.

Dagster's own tree of a project's components fails as a whole when one file of it is wrong, and says so with the stack
of its parsers. So each `defs.yaml` is looked at first (`check`), and where one is wrong the others are loaded without
it: `definitions_of` then has, in its place, a group of one asset that says what is wrong and where.
"""

import importlib
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from types import ModuleType

import dagster as dg
from dagster.components.core.load_defs import PLUGIN_COMPONENT_TYPES_JSON_METADATA_KEY
from dagster.components.core.package_entry import discover_package_objects, get_plugin_entry_points
from dagster.components.core.snapshot import get_package_entry_snap
from dagster_shared.serdes.objects.package_entry import json_for_all_components

from dataprep_assets import components
from dataprep_assets.errors import ConfigError, DataprepError
from dataprep_assets.graph.declaration_mistakes import Document, nearest, read, validated
from dataprep_assets.orchestration.component import DatasetComponent
from dataprep_assets.orchestration.shipped import dataset_of, is_shown, shown_as

__all__ = ["Declarations"]

_DATASET = re.compile(r"""^\s+dataset:\s*["']?([A-Za-z0-9_]+)""", re.MULTILINE)
_YAML = "defs.yaml"
_OURS = f"{components.__name__}."


class Declarations:
    """The `defs.yaml` files below the folder of a module."""

    def __init__(self, module: ModuleType, project_root: Path) -> None:
        """`module` is the package whose folder is searched, `project_root` the root folder of its project."""
        self.module, self.project_root = module, project_root
        self.folder = Path(module.__path__[0])

    @cached_property
    def files(self) -> Mapping[str, Path]:
        """Name of each declared dataset → its `defs.yaml`; if two share a name, the one that is not shipped."""
        found = sorted(self.paths, key=lambda path: shown_as(path.parent) is None)
        return {dataset_of(path.parent.relative_to(self.folder)): path for path in found}

    def check(self, path: Path) -> None:
        """Raise ConfigError, with a line for each mistake, if the content of a `defs.yaml` cannot be loaded."""
        for document in read(path):
            component = _component_of(document)
            if component is not None:
                declaration = validated(component.model, document)
                self._refuse_second(declaration.dataset, document)

    def load(self, path: Path) -> dg.Component:
        """The component of a `defs.yaml`, loaded without reading any other.

        Raises ConfigError when the file is wrong.
        """
        self.check(path)
        try:
            return self._tree(path.parent).load_component(Path())
        except Exception as error:
            raise ConfigError(_reason(error)) from error

    def definitions_of(self, whole: dg.ComponentTree) -> dg.Definitions:
        """What the code location has: the whole tree, or, if a file is wrong, the others and an asset for the error."""
        wrong = self._wrong(self.check)
        with warnings.catch_warnings():
            for said in (dg.BetaWarning, dg.PreviewWarning):
                warnings.simplefilter("ignore", said)
            if not wrong:
                try:
                    return dg.Definitions.merge(whole.build_defs(Path()), _described(whole))
                except Exception:
                    wrong = self._wrong(lambda path: self._tree(path.parent).build_defs(Path()))
                    if not wrong:
                        raise
            return dg.Definitions.merge(
                *(_broken(path, why) for path, why in wrong.items()), *self._right(self.folder, wrong)
            )

    def _wrong(self, look: Callable[[Path], object]) -> dict[Path, str]:
        """Each file for which `look` raises, and why."""
        wrong = {}
        for path in self.paths:
            try:
                look(path)
            except Exception as error:  # including whatever a user's own component raises
                wrong[path] = _reason(error)
        return wrong

    def _right(self, folder: Path, wrong: Mapping[Path, str]) -> Iterator[dg.Definitions]:
        """The definitions of a folder without those that are wrong."""
        if not any(folder in path.parents for path in wrong):
            yield _without_tree(self._tree(folder).build_defs(Path()))
            return
        if folder / _YAML in wrong:
            return
        for inner in sorted(folder.iterdir()):
            if inner.is_dir() and inner.name != "__pycache__":
                yield from self._right(inner, wrong)
            elif inner.suffix == ".py" and inner.name != "__init__.py":
                yield dg.load_definitions_from_module(importlib.import_module(f"{self._name(folder)}.{inner.stem}"))

    def _tree(self, folder: Path) -> dg.ComponentTree:
        return dg.ComponentTree.from_module(importlib.import_module(self._name(folder)), self.project_root)

    def _name(self, folder: Path) -> str:
        return ".".join([self.module.__name__, *folder.relative_to(self.folder).parts])

    @cached_property
    def paths(self) -> list[Path]:
        """Every `defs.yaml`, whatever it declares."""
        return sorted(self.folder.rglob(_YAML))

    @cached_property
    def _declaring(self) -> Mapping[str, list[Path]]:
        """Name of each dataset → the files that declare it and are shown."""
        found: dict[str, list[Path]] = {}
        for path in self.paths:
            if is_shown(shown_as(path.parent)):
                for dataset in _DATASET.findall(path.read_text("utf-8", errors="replace")):
                    found.setdefault(dataset, []).append(path)
        return found

    def _refuse_second(self, dataset: str, document: Document) -> None:
        """Raise ConfigError if another file declares a dataset of the same name: the asset keys would collide."""
        others = [path for path in self._declaring.get(dataset, []) if path != document.path]
        if others and is_shown(shown_as(document.path.parent)):
            line = document.line_of(["dataset"])
            raise ConfigError(f"{document.path}:{line}: dataset: {dataset} is also declared in {others[0]}")


def _component_of(document: Document) -> type[DatasetComponent] | None:
    """The component that a document names; None for one that is not ours.

    Raises ConfigError if the name is in our namespace and does not exist.
    """
    where = f"{document.path}:{document.line}: type: {document.type}"
    known = [_OURS + name for name in components.__all__]
    if document.type in known:
        found: type[DatasetComponent] = getattr(components, document.type.removeprefix(_OURS))
        return found
    near = nearest(document.type, known) or nearest(document.type, components.__all__)
    if document.type.startswith("dataprep") or "." not in document.type:
        more = f"did you mean {near if '.' in near else _OURS + near}?" if near else f"there are {', '.join(known)}"
        raise ConfigError(f"{where}: no such component; {more}")
    module, _, name = document.type.rpartition(".")
    try:
        other = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{where}: cannot be imported: {error}") from error
    return other if isinstance(other, type) and issubclass(other, DatasetComponent) else None


def _without_tree(loaded: dg.Definitions) -> dg.Definitions:
    """The same definitions without their component tree: Dagster cannot merge two definitions that both have one."""
    return dg.Definitions(
        assets=loaded.assets,
        asset_checks=loaded.asset_checks,
        schedules=loaded.schedules,
        sensors=loaded.sensors,
        jobs=loaded.jobs,
        resources=loaded.resources,
        executor=loaded.executor,
        loggers=loaded.loggers,
        metadata=loaded.metadata,
    )


def _reason(error: BaseException) -> str:
    """What is wrong, without the reader's stack frames: the innermost DataprepError, else the first cause."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    return str(next((cause for cause in causes if isinstance(cause, DataprepError)), causes[-1]))


def _broken(path: Path, why: str) -> dg.Definitions:
    """A stand-in for a dataset that cannot be loaded: a group whose only asset says why."""
    group = re.sub(r"\W", "_", path.parent.name)

    @dg.asset(
        key=[group, "cannot_be_loaded"],
        group_name=group,
        kinds={"yaml"},
        description=f"**Cannot be loaded.** Correct it, then reload the code location.\n\n```\n{why}\n```",
    )
    def cannot_be_loaded() -> None:
        raise dg.Failure(description=f"{path.parent.name} cannot be loaded: {why}", allow_retries=False)

    dg.get_dagster_logger().warning(f"{path.parent.name} is left out, it cannot be loaded: {why}")
    return dg.Definitions(assets=[cannot_be_loaded])


def _described(tree: dg.ComponentTree) -> dg.Definitions:
    """The definitions of the tree, with the component documentation of only those packages that are in use.

    By default Dagster documents the components of every installed package, and imports them for that: boto3, BigQuery
    and pandas take half of the time to load a code location, and each run is a process that loads it.
    """
    used = [entry.value for entry in get_plugin_entry_points() if entry.value in sys.modules]
    snapshots = [get_package_entry_snap(key, found) for key, found in discover_package_objects(used).items()]
    described = {PLUGIN_COMPONENT_TYPES_JSON_METADATA_KEY: json_for_all_components(snapshots)}
    return dg.Definitions(metadata=described, component_tree=tree)
