"""The code of a user's function: its module, imported project modules, and the files that the code names.

The digest of the code is the version of a function. It is computed without running the code: imports, including imports
inside functions, are read from the syntax tree and followed into the project. Installed packages, the standard library
and this package are not followed. Comments, docstrings and code layout are not part of the digest.

Entry points: `ModuleCode`, `is_of_project`, `locate_in_project`.
"""

import ast
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from dataprep_assets.stores.files import digest_value, sha256_file

_INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_OWN_PACKAGE = Path(__file__).resolve().parents[1]
_MAX_NAME_CHARACTERS, _MAX_MESSAGE_CHARACTERS = 255, 300
_WRITERS, _MODES = {"write_text", "write_bytes"}, set("rwxabt+")


@dataclass(frozen=True)
class _Import:
    """An import statement: `from <level dots><module> import <names>`, or `import <module>`."""

    module: str
    level: int = 0
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class _ModuleSource:
    """The relevant content of a module.

    Attributes:
        digest: Digest of its syntax tree without docstrings, or of its bytes if it is not Python source.
        imports: Its imports.
        texts: Its string literals that may be file names.
    """

    digest: str
    imports: tuple[_Import, ...] = ()
    texts: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ModuleCode:
    """A module, given by its name, with all project modules that it imports."""

    name: str

    @property
    def file(self) -> Path | None:
        """The file of the module; None if it does not exist. The module is found without an import."""
        return _find_file(_find_spec(self.name))

    @property
    def root(self) -> Path | None:
        """The folder from which the module is imported: the parent of its outermost package."""
        path = self.file
        return None if path is None else _find_root(self.name, path)

    @cached_property
    def sources(self) -> Mapping[str, Path]:
        """Name → file of the module, and of each project module that is imported with it."""
        paths: dict[str, Path] = {}
        # Include parent packages, because Python imports a package before its modules.
        names = _list_module_and_parents(self.name)
        while names:
            name = names.pop()
            if name in paths or (path := _find_file(_find_spec(name))) is None:
                continue
            if name != self.name and not is_of_project(path):
                continue
            paths[name] = path
            names += [
                module
                for imported_name in _find_imported_names(name, path)
                for module in _list_module_and_parents(imported_name)
            ]
        return paths

    @cached_property
    def named_files(self) -> frozenset[Path]:
        """Files that the code names, in the folders of these modules or in their import roots."""
        files = set()
        for name, path in self.sources.items():
            for text in _load_source(path).texts:
                files |= {
                    file for folder in (path.parent, _find_root(name, path)) if _is_readable(file := folder / text)
                }
        return frozenset(files - {*self.sources.values()})

    @property
    def digest(self) -> str:
        """Digest of all code and named files, independent of their paths."""
        code = sorted((name, _load_source(path).digest) for name, path in self.sources.items())
        return digest_value([code, sorted((file.name, digest_file(file)) for file in self.named_files)])


def is_of_project(path: Path) -> bool:
    """Return whether a file belongs to the user's project, that is, neither to an installed package nor to this one."""
    path = path.resolve()
    if {"site-packages", "dist-packages"} & {*path.parts}:
        return False
    return not any(path.is_relative_to(folder) for folder in (*_INSTALLED, _OWN_PACKAGE))


def locate_in_project(error: BaseException) -> str:
    """Return the innermost line of the user's code in a traceback, `taggers.py:12 in count_words`; empty if none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_file() and is_of_project(path):
            folder = Path.cwd()
            short_path = path.relative_to(folder) if path.is_relative_to(folder) else Path(path.name)
            return f"{short_path}:{frame.lineno} in {frame.name}"
    return ""


def describe_error(error: BaseException) -> str:
    """Return the class of an error, and the beginning of its message, if it has one, on one line."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message:.{_MAX_MESSAGE_CHARACTERS}}" if message else type(error).__name__


def digest_file(path: Path) -> str:
    """Return the digest of a file's bytes. The file is read again only if it was modified."""
    stat = path.stat()
    return _digest_bytes(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4096)
def _digest_bytes(path: Path, _time: int, _size: int) -> str:
    return sha256_file(path)


def _find_root(name: str, path: Path) -> Path:
    return path.parents[name.count(".") + (path.name == "__init__.py")]


def _list_module_and_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _find_spec(name: str) -> ModuleSpec | None:
    """Return the spec of a module as Python would find it, without importing its parent packages."""
    path: list[str] | None = None
    spec = None
    for full in _list_module_and_parents(name):
        try:
            # Below the top level, use only `PathFinder`, because the finders of editable installs know only top-level
            # packages.
            # Skip finders without `find_spec`, as Python does; pygal has one.
            finders = sys.meta_path if path is None else [PathFinder]
            searches = (finder.find_spec for finder in finders if hasattr(finder, "find_spec"))
            spec = next((candidate for search in searches if (candidate := search(full, path)) is not None), None)
        # `PathFinder` raises KeyError for a package without `__init__` in another package, because it looks up the
        # outer package in `sys.modules`, but that package was not imported.
        except KeyError:
            spec = ModuleSpec(full, None, is_package=True)
        if spec is None:
            return None
        if spec.origin is None and spec.submodule_search_locations is not None:
            folders = (Path(entry, full.rpartition(".")[2]) for entry in (sys.path if path is None else path))
            path = [str(candidate) for candidate in folders if candidate.is_dir()]
        else:
            path = [*(spec.submodule_search_locations or ())]
    return spec


def _find_file(spec: ModuleSpec | None) -> Path | None:
    if spec is None or spec.origin is None or not (path := Path(spec.origin)).is_file():
        return None
    return path


def _find_imported_names(name: str, path: Path) -> Iterator[str]:
    """Yield the full names of possible modules that a module imports.

    Names of other objects, such as functions, are also yielded, but no module is found for them.
    """
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for statement in _load_source(path).imports:
        parent_names = package.split(".")[: len(package.split(".")) - statement.level + 1] if statement.level else []
        base = ".".join([*parent_names, *([statement.module] if statement.module else [])])
        if base and base.partition(".")[0] not in sys.stdlib_module_names:
            yield base
            yield from (f"{base}.{name}" for name in statement.names if name != "*")


def _load_source(path: Path) -> _ModuleSource:
    stat = path.stat()
    return _read_source(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4096)
def _read_source(path: Path, _time: int, _size: int) -> _ModuleSource:
    try:
        tree = ast.parse(path.read_bytes())
        _remove_docstrings(tree)
        # Do not use `ast.dump`, because its output differs between Python versions.
        digest = digest_value(ast.unparse(tree))
    except (SyntaxError, ValueError, RecursionError):  # compiled code, or source that is invalid or nested too deeply
        return _ModuleSource(sha256_file(path))
    nodes = [*ast.walk(tree)]
    imports = [_Import(one.name) for node in nodes if isinstance(node, ast.Import) for one in node.names]
    imports += [
        _Import(node.module or "", node.level, tuple(one.name for one in node.names))
        for node in nodes
        if isinstance(node, ast.ImportFrom)
    ]
    written_ids = {id(one) for node in nodes if _writes(node) for one in ast.walk(node)}
    texts = (node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in written_ids)
    return _ModuleSource(
        digest, tuple(imports), frozenset(one for one in texts if isinstance(one, str) and _may_be_file_name(one))
    )


def _writes(node: ast.AST) -> bool:
    """Return whether a node is a call that writes a file.

    A log that grows with each call would otherwise change the version.
    """
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
    modes = {
        argument.value
        for argument in arguments
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }
    return name in _WRITERS or (
        name == "open" and any(set(mode) <= _MODES and set(mode) & set("awx") for mode in modes)
    )


def _is_readable(path: Path) -> bool:
    # Do not use `Path` methods, because they raise an error if a folder is not accessible.
    return os.path.isfile(path) and os.access(path, os.R_OK)


def _may_be_file_name(text: str) -> bool:
    return 0 < len(text) <= _MAX_NAME_CHARACTERS and text.isprintable()


def _remove_docstrings(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or not node.body:
            continue
        statement = node.body[0]
        if (
            isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
            and isinstance(statement.value.value, str)
        ):
            node.body[:1] = [] if len(node.body) > 1 else [ast.Pass()]
