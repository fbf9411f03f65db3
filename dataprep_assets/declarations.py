"""Declared datasets of a project, which are found, checked and loaded one by one, so that one error affects no other.

A dataset's name is its key `dataset:`, regardless of the folder of its `defs.yaml` below `defs/`. Only a file without a
readable name is identified by its folder.

Entry points: `open_declarations`, `Declarations`, `find_files_below`, `read_searchable_text`.
"""

import importlib
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from dataprep_assets.engine.yaml.declared_keys import find_nearest
from dataprep_assets.engine.yaml.mistakes import Document, has_dates, has_templates, read_documents, validate_document
from dataprep_assets.errors import ConfigError, DataprepError
from dataprep_assets.project import Project, find_shipped_kind, is_shown

# Import these modules only for type checkers, because shell completion does not need them and would have to wait for
# their import.
if TYPE_CHECKING:
    import dagster as dg

    from dataprep_assets.engine.artifact.dataset import Dataset

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_NAMED = re.compile(rf"""^[ \t]+dataset:[ \t]*["']?({_NAME.pattern})["']?[ \t]*(?:#.*)?$""", re.MULTILINE)
"""Matches the key `dataset:` in text that is not valid YAML."""
_YAML = "defs.yaml"
_MISNAMED = re.compile(r"(defs?|definitions?|components?|datasets?)\.ya?ml(\.txt)?", re.IGNORECASE)
"""File names that were probably meant to be `defs.yaml`."""
_OWN_PREFIX = "dataprep_assets.components."
_DECLARES = re.compile(rf"""["']?type["']?\s*:\s*["']?{re.escape(_OWN_PREFIX)}""")
"""Matches the type of one of this package's components, in any YAML style."""


class Declarations:
    """`defs.yaml` files below the folder of a module."""

    def __init__(self, module: ModuleType, project_root: Path) -> None:
        """Search below the folder of the package `module`; `project_root` is the root folder of its project."""
        self.module, self.project_root = module, project_root
        self.folder = Path(module.__path__[0])

    @cached_property
    def files(self) -> Mapping[str, Path]:
        """Dataset name → its `defs.yaml` (`find_files_below`)."""
        return find_files_below(self.folder)

    def check(self, path: Path) -> "tuple[Document, type[Dataset] | None]":
        """Return the first document of a `defs.yaml` and its component's dataset class.

        The class is None for another package's component without a dataset class. Raises ConfigError, with a line per
        error, if the content cannot be loaded.
        """
        if path.name != _YAML:
            raise ConfigError(f"{path}: files with this name are not loaded. Rename the file to {_YAML}")
        document, *other_documents = read_documents(path)
        for current in (document, *other_documents):
            dataset_class = _find_dataset_type(current)
            if dataset_class is not None:
                if other_documents:
                    raise ConfigError(
                        f"{path}:{other_documents[0].line}: must not contain a second document. Move the part "
                        "below the `---` to the defs.yaml of another folder"
                    )
                dotted = [part for part in path.parent.relative_to(self.folder).parts if "." in part]
                if dotted:
                    raise ConfigError(
                        f"{path}: the folder {dotted[0]} has a '.' in its name, so it cannot be a Python module. "
                        "Rename the folder"
                    )
                declaration = validate_document(dataset_class.model, current)
                self._refuse_second(declaration.dataset, current)
                return current, dataset_class
        return document, None

    def load(self, path: Path) -> "Dataset | dg.Component":
        """Load the dataset of a `defs.yaml` without reading other files; load other packages' components with Dagster.

        Dagster is imported only for `automation`, templates, dates and components of other packages (`_needs_dagster`).

        Raises ConfigError if the file is wrong.
        """
        try:
            document, dataset_class = self.check(path)
            if dataset_class is not None and not _needs_dagster(document, dataset_class):
                return dataset_class.from_attributes(document.attributes, path)
            return self.tree(path.parent).load_component(Path())
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(describe_reason(error)) from error

    def read_name(self, path: Path) -> str:
        """Return the name that a `defs.yaml` declares, which need not be unique; else the path of its folder."""
        return _read_declared_name(path) or _find_fallback_name(path, self.folder)

    def tree(self, folder: Path) -> "dg.ComponentTree":
        """Return Dagster's component tree of one folder."""
        import dagster as dg

        return dg.ComponentTree.from_module(importlib.import_module(self.module_name(folder)), self.project_root)

    def module_name(self, folder: Path) -> str:
        """Return the Python module name of a folder."""
        return ".".join([self.module.__name__, *folder.relative_to(self.folder).parts])

    @cached_property
    def paths(self) -> list[Path]:
        """All `defs.yaml` files, and files that declare a dataset but are misnamed."""
        return sorted(_find_declarations_below(self.folder))

    @cached_property
    def _declaring(self) -> Mapping[str, list[Path]]:
        """Dataset name → the files that declare it and are not hidden."""
        paths_by_name: dict[str, list[Path]] = {}
        for path in self.paths:
            if (
                path.name == _YAML
                and is_shown(find_shipped_kind(path.parent))
                and (name := _read_declared_name(path)) is not None
            ):
                paths_by_name.setdefault(name, []).append(path)
        return paths_by_name

    def _refuse_second(self, dataset: str, document: Document) -> None:
        """Raise ConfigError if another file declares the same dataset, because their asset keys would be equal."""
        # A hidden dataset does not conflict with another one, because it has no assets.
        other_paths = [path for path in self._declaring.get(dataset, []) if path != document.path]
        if other_paths and is_shown(find_shipped_kind(document.path.parent)):
            line = document.find_line(["dataset"])
            raise ConfigError(
                f"{document.path}:{line}: dataset: {dataset} is also declared in {other_paths[0]}. Rename one of them"
            )


def find_files_below(folder: Path) -> dict[str, Path]:
    """Return each dataset that is declared below a folder with its `defs.yaml`, sorted by name.

    If a shipped dataset and a user's dataset have the same name, the user's is returned. A file without a dataset name,
    because it is broken or declares something else, is listed under its folder's path. No file is loaded, because shell
    completion uses this function.
    """
    files_by_name, unnamed_files = {}, {}
    # Sort the files, because later files replace earlier ones of the same name: misnamed files come first, then shipped
    # ones, and last the user's own.
    paths = _find_declarations_below(folder)
    for path in sorted(paths, key=lambda path: (path.name == _YAML, find_shipped_kind(path.parent) is None, path)):
        if (name := _read_declared_name(path)) is not None:
            files_by_name[name] = path
        else:
            unnamed_files[_find_fallback_name(path, folder)] = path
    return dict(sorted({**unnamed_files, **files_by_name}.items()))


def read_component(path: Path) -> str | None:
    """Return the component that a file names, without its package; None if it names none."""
    try:
        (document, *_) = read_documents(path)
    except ConfigError:
        # Search the text of a file with invalid YAML, so that the file is still listed.
        match = re.search(r"""^type:\s*["']?([\w.]+)""", read_searchable_text(path), re.MULTILINE)
        return match and match[1].rpartition(".")[2]
    return document.type.rpartition(".")[2] or None


def _find_declarations_below(folder: Path) -> Iterator[Path]:
    for inner, _, names in os.walk(folder):
        for name in names:
            path = Path(inner, name)
            if name == _YAML or (_MISNAMED.fullmatch(name) and _DECLARES.search(read_searchable_text(path))):
                yield path


def read_searchable_text(path: Path) -> str:
    """Return the text of a file to search; empty if it cannot be read, which `read_documents` reports."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except PermissionError:
        return ""


def _read_declared_name(path: Path) -> str | None:
    """Return the key `dataset:` of a dataset's file; None if it is missing or the YAML is invalid."""
    try:
        (document, *_) = read_documents(path)
    except ConfigError:
        return None
    name = document.attributes.get("dataset") if isinstance(document.attributes, dict) else None
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not _may_declare_dataset(document):
        return None
    return name


def _find_fallback_name(path: Path, folder: Path) -> str:
    """Return a name for a file without a dataset name: found by pattern if the YAML is invalid, else the folder."""
    try:
        read_documents(path)
    except ConfigError:
        if (match := _NAMED.search(read_searchable_text(path))) is not None:
            return match[1]
    return path.parent.relative_to(folder).as_posix()


def _may_declare_dataset(document: Document) -> bool:
    """Return whether a document's component declares a dataset; imports the component if another package has it."""
    if document.type.startswith("dataprep") or "." not in document.type:
        return True
    try:
        return _find_dataset_type(document) is not None
    except ConfigError:
        return False


def _find_dataset_type(document: Document) -> "type[Dataset] | None":
    """Return the dataset class of a document's component; None if the component of another package has none.

    Raises ConfigError if the component is unknown or cannot be imported.
    """
    from dataprep_assets import components
    from dataprep_assets.engine.artifact.dataset import Dataset

    location = f"{document.path}:{document.line}: type: {document.type}"
    names = [_OWN_PREFIX + name for name in components.__all__]
    if document.type in names:
        try:
            return components.find_dataset_class(document.type.removeprefix(_OWN_PREFIX))
        except ConfigError as error:
            raise ConfigError(f"{location}: {error}") from error
    nearest_name = find_nearest(document.type, names) or find_nearest(document.type, components.__all__)
    if document.type.startswith("dataprep") or "." not in document.type:
        hint = (
            f"did you mean {nearest_name if '.' in nearest_name else _OWN_PREFIX + nearest_name}?"
            if nearest_name
            else f"Available: {', '.join(names)}"
        )
        raise ConfigError(f"{location}: unknown component; {hint}")
    module, _, name = document.type.rpartition(".")
    try:
        dataset_class = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{location}: cannot be imported: {error}. Correct the type, or install its package"
        ) from error
    return dataset_class if isinstance(dataset_class, type) and issubclass(dataset_class, Dataset) else None


def _needs_dagster(document: Document, dataset_class: "type[Dataset]") -> bool:
    """Return whether a document must be loaded by Dagster.

    This is the case for templates, for dates (which Dagster reads as text), for Dagster's own keys, and for
    `automation`, whose cron expressions Dagster validates.
    """
    return (
        not document.type.startswith(_OWN_PREFIX)
        or not document.keys <= {"type", "attributes"}
        or "automation" in document.attributes
        or has_templates(document.attributes, dataset_class.list_own_templates(document.attributes))
        or has_dates(document.attributes)
    )


def describe_reason(error: BaseException) -> str:
    """Return the error's reason without stack frames: the innermost DataprepError's message, else the first cause's."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    return str(next((cause for cause in causes if isinstance(cause, DataprepError)), causes[-1]))


@cache
def open_declarations(project: Project) -> Declarations:
    """Return the declared datasets of a project, which can be loaded file by file.

    Raises ConfigError if the module of its datasets cannot be imported, or if a different copy of the project is
    imported. Otherwise a second checkout would build the datasets of the installed first one.
    """
    project.make_importable()
    try:
        module = importlib.import_module(project.defs_module)
    except ImportError as error:
        raise ConfigError(
            f"{project.root}: {project.defs_module}: cannot be imported: {error}. Correct the module"
        ) from error
    declarations = Declarations(module, project.root)
    if not declarations.folder.samefile(project.defs):
        raise ConfigError(
            f"{project.defs}: {project.defs_module} is imported from {declarations.folder}, where another copy of the "
            f"project is installed. Run `pip install -e {project.root}`, or use an environment without that copy"
        )
    return declarations
