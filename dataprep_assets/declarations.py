"""The datasets that a project declares: found, checked and loaded one by one, so that a broken one stops no other.

A dataset has one name, its key `dataset:`. Where its `defs.yaml` lies below `defs/` says nothing; only a file in which
no name can be found is called by its folder.

Entry points: `declarations_of`, `Declarations`, `files_below`.
"""

import importlib
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from dataprep_assets.engine.yaml.declared_keys import nearest
from dataprep_assets.engine.yaml.mistakes import Document, has_dates, has_templates, read_documents, validated
from dataprep_assets.errors import ConfigError, DataprepError
from dataprep_assets.project import Project, is_shown, shown_as

# shell completion finds names, and loads nothing
if TYPE_CHECKING:
    import dagster as dg

    from dataprep_assets.engine.artifact.dataset import Dataset

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_NAMED = re.compile(rf"""^[ \t]+dataset:[ \t]*["']?({_NAME.pattern})["']?[ \t]*(?:#.*)?$""", re.MULTILINE)
"""Matches the key `dataset:` in text that is not valid YAML."""
_YAML = "defs.yaml"
_MISNAMED = re.compile(r"(defs?|definitions?|components?|datasets?)\.ya?ml(\.txt)?", re.IGNORECASE)
"""File names that are probably meant to be `defs.yaml`."""
_OURS = "dataprep_assets.components."
_DECLARES = re.compile(rf"""["']?type["']?\s*:\s*["']?{re.escape(_OURS)}""")
"""Matches the type of one of our components, in any YAML style."""


class Declarations:
    """The `defs.yaml` files below the folder of a module."""

    def __init__(self, module: ModuleType, project_root: Path) -> None:
        """`module` is the package whose folder is searched, `project_root` the root folder of its project."""
        self.module, self.project_root = module, project_root
        self.folder = Path(module.__path__[0])

    @cached_property
    def files(self) -> Mapping[str, Path]:
        """Name of each declared dataset → its `defs.yaml` (`files_below`)."""
        return files_below(self.folder)

    def check(self, path: Path) -> "tuple[Document, type[Dataset] | None]":
        """Return the first document of a `defs.yaml`, and the class of the datasets that its component declares.

        The class is None for a component that is not ours. Raises ConfigError, with a line for each mistake, if the
        content cannot be loaded.
        """
        if path.name != _YAML:
            raise ConfigError(f"{path}: files of this name are not loaded. Rename it to {_YAML}")
        document, *more = read_documents(path)
        for one in (document, *more):
            dataset_class = _dataset_type(one)
            if dataset_class is not None:
                if more:
                    raise ConfigError(
                        f"{path}:{more[0].line}: must not contain a second document. Move the part below the `---` to "
                        "the defs.yaml of another folder"
                    )
                dotted = [part for part in path.parent.relative_to(self.folder).parts if "." in part]
                if dotted:
                    raise ConfigError(
                        f"{path}: the folder {dotted[0]} has a '.' in its name, so it cannot be a Python module. "
                        "Rename the folder"
                    )
                declaration = validated(dataset_class.model, one)
                self._refuse_second(declaration.dataset, one)
                return one, dataset_class
        return document, None

    def load(self, path: Path) -> "Dataset | dg.Component":
        """The dataset of a `defs.yaml`, loaded without reading any other; a component of somebody else's as it is.

        Dagster is imported only for `automation`, templates, dates and components of other packages (`_needs_dagster`).

        Raises ConfigError when the file is wrong.
        """
        try:
            document, dataset_class = self.check(path)
            if dataset_class is not None and not _needs_dagster(document, dataset_class):
                return dataset_class.from_attributes(document.attributes, path)
            return self.tree(path.parent).load_component(Path())
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(reason_of(error)) from error

    def name_of(self, path: Path) -> str:
        """The name that a `defs.yaml` declares, which other files may declare, too; else the path of its folder."""
        return _declared_name(path) or _other_name(path, self.folder)

    def tree(self, folder: Path) -> "dg.ComponentTree":
        """Dagster's components of one folder."""
        import dagster as dg

        return dg.ComponentTree.from_module(importlib.import_module(self.module_of(folder)), self.project_root)

    def module_of(self, folder: Path) -> str:
        """The name of a folder as a Python module."""
        return ".".join([self.module.__name__, *folder.relative_to(self.folder).parts])

    @cached_property
    def paths(self) -> list[Path]:
        """Every `defs.yaml`, whatever it declares, and what declares a dataset under a name that is not loaded."""
        return sorted(_declarations_below(self.folder))

    @cached_property
    def _declaring(self) -> Mapping[str, list[Path]]:
        """Name of each dataset → the files that declare it and are shown."""
        found: dict[str, list[Path]] = {}
        for path in self.paths:
            if path.name == _YAML and is_shown(shown_as(path.parent)) and (name := _declared_name(path)) is not None:
                found.setdefault(name, []).append(path)
        return found

    def _refuse_second(self, dataset: str, document: Document) -> None:
        """Raise ConfigError if another file declares a dataset of the same name: the asset keys would collide."""
        # what the code location does not show collides with nothing
        others = [path for path in self._declaring.get(dataset, []) if path != document.path]
        if others and is_shown(shown_as(document.path.parent)):
            line = document.line_of(["dataset"])
            raise ConfigError(f"{document.path}:{line}: dataset: {dataset} is also declared in {others[0]}")


def files_below(folder: Path) -> dict[str, Path]:
    """Name of each dataset that is declared below a folder → its `defs.yaml`, sorted by name.

    If two share a name, it is the one that is not shipped. A file without a name, because it is broken or declares
    something else than a dataset, is under its folder's path. No file is loaded: shell completion waits for this.
    """
    named, others = {}, {}
    # shipped files first: a dataset of the user's own takes the place of one with its name; misnamed ones before them
    paths = _declarations_below(folder)
    for path in sorted(paths, key=lambda path: (path.name == _YAML, shown_as(path.parent) is None, path)):
        if (name := _declared_name(path)) is not None:
            named[name] = path
        else:
            others[_other_name(path, folder)] = path
    return dict(sorted({**others, **named}.items()))


def component_of(path: Path) -> str | None:
    """The component that a file names, without its package; None if it names none."""
    try:
        (document, *_) = read_documents(path)
    except ConfigError:
        # in the text, so that a file that is no YAML is listed, too
        found = re.search(r"""^type:\s*["']?([\w.]+)""", _text(path), re.MULTILINE)
        return found and found[1].rpartition(".")[2]
    return document.type.rpartition(".")[2] or None


def _declarations_below(folder: Path) -> Iterator[Path]:
    for inner, _, names in os.walk(folder):
        for name in names:
            path = Path(inner, name)
            if name == _YAML or (_MISNAMED.fullmatch(name) and _DECLARES.search(_text(path))):
                yield path


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _declared_name(path: Path) -> str | None:
    """The key `dataset:` of a file that declares a dataset; None if there is none, or the file is not YAML."""
    try:
        (document, *_) = read_documents(path)
    except ConfigError:
        return None
    name = document.attributes.get("dataset") if isinstance(document.attributes, dict) else None
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not _may_be_ours(document):
        return None
    return name


def _other_name(path: Path, folder: Path) -> str:
    """What a file without a dataset's name is called: by the name that is meant if it is not YAML, else its folder."""
    try:
        read_documents(path)
    except ConfigError:
        if (found := _NAMED.search(_text(path))) is not None:
            return found[1]
    return path.parent.relative_to(folder).as_posix()


def _may_be_ours(document: Document) -> bool:
    """Whether a document's component declares a dataset; the component is imported if it is of another package."""
    if document.type.startswith("dataprep") or "." not in document.type:
        return True
    try:
        return _dataset_type(document) is not None
    except ConfigError:
        return False


def _dataset_type(document: Document) -> "type[Dataset] | None":
    """The class of the datasets that the component of a document declares; None for a component that is not ours.

    Raises ConfigError if the name is in our namespace and does not exist.
    """
    from dataprep_assets import components
    from dataprep_assets.engine.artifact.dataset import Dataset

    where = f"{document.path}:{document.line}: type: {document.type}"
    known = [_OURS + name for name in components.__all__]
    if document.type in known:
        try:
            return components.dataset_type(document.type.removeprefix(_OURS))
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
    near = nearest(document.type, known) or nearest(document.type, components.__all__)
    if document.type.startswith("dataprep") or "." not in document.type:
        more = f"did you mean {near if '.' in near else _OURS + near}?" if near else f"Available: {', '.join(known)}"
        raise ConfigError(f"{where}: unknown component; {more}")
    module, _, name = document.type.rpartition(".")
    try:
        dataset_class = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{where}: cannot be imported: {error}") from error
    return dataset_class if isinstance(dataset_class, type) and issubclass(dataset_class, Dataset) else None


def _needs_dagster(document: Document, dataset_class: "type[Dataset]") -> bool:
    """Whether Dagster reads a document differently from us: a template, a date, which is text to it, or a key of its
    own. It also judges the cron expressions of `automation`."""
    return (
        not document.type.startswith(_OURS)
        or not document.keys <= {"type", "attributes"}
        or "automation" in document.attributes
        or has_templates(document.attributes, dataset_class.own_templates(document.attributes))
        or has_dates(document.attributes)
    )


def reason_of(error: BaseException) -> str:
    """What is wrong, without the reader's stack frames: the innermost DataprepError, else the first cause."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    return str(next((cause for cause in causes if isinstance(cause, DataprepError)), causes[-1]))


@cache
def declarations_of(project: Project) -> Declarations:
    """The declared datasets of a project, which can be loaded file by file.

    Raises ConfigError if the module of its datasets cannot be imported, or is imported from another place: a second
    checkout would make the datasets of the first, which is installed.
    """
    project.importable()
    try:
        module = importlib.import_module(project.defs_module)
    except ImportError as error:
        raise ConfigError(f"{project.root}: {project.defs_module}: cannot be imported: {error}") from error
    found = Declarations(module, project.root)
    if not found.folder.samefile(project.defs):
        raise ConfigError(
            f"{project.defs}: {project.defs_module} is imported from {found.folder}, where another copy of the "
            f"project is installed. Run `pip install -e {project.root}`, or use an environment without that copy"
        )
    return found
