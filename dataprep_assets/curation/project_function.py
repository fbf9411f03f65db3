"""A function of the user's project, which a declaration names as `module:function`.

Its version covers all inputs that determine its results: its code, imported project modules and named files
(`module_code`), and the declared files. Reading any other project file is refused, because a change to that file would
go unnoticed.
"""

import ast
import glob
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dataprep_assets.curation.module_code import (
    ModuleCode,
    describe_error,
    digest_file,
    is_of_project,
    locate_in_project,
)
from dataprep_assets.errors import ConfigError
from dataprep_assets.stores.files import digest_value

_CODE = {".py", ".pyc", ".pyi", ".so", ".pth"}
_NO_MODULE = "no such module in the project folder or on PYTHONPATH. Correct the name, or add the module"


def digest_files(location: str, patterns: Sequence[str]) -> list[tuple[str, str]]:
    """Return the name and the digest of each matching file. Raises ConfigError if a pattern matches no file.

    Args:
        location: The key and the name of the declaration, for messages: `tag: quality`.
        patterns: Paths or globs.
    """
    return [(path.name, digest_file(path)) for path in list_files(location, patterns)]


def list_files(location: str, patterns: Sequence[str]) -> list[Path]:
    files: list[Path] = []
    for pattern in patterns:
        matches = [path for name in sorted(glob.glob(pattern, recursive=True)) if (path := Path(name)).is_file()]
        if not matches:
            raise ConfigError(f"{location}: files: no file matches {pattern}. Correct the pattern")
        files += matches
    return files


@dataclass(frozen=True, kw_only=True)
class ProjectFunction:
    """A function of the user's project, `module:function`. Picklable until it is loaded.

    Attributes:
        key: The key of the declaration, for messages: `tag`.
        name: The function.
        declared: The version that replaces the digest of its code; None to use the digest.
        files: Patterns of the files that it reads, as absolute paths.
    """

    key: str
    name: str
    declared: str | None = None
    files: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """Digest of the values that determine its results in addition to its arguments, or the declared version."""
        code = self.declared if self.declared is not None else self._load_code().digest
        return digest_value([code, digest_files(self._location, self.files)]) if self.files else code

    @property
    def _location(self) -> str:
        return f"{self.key}: {self.name}"

    def explain_missing(self) -> str | None:
        """Return a sentence if the function cannot be found without importing its module; otherwise None."""
        module, _, attribute = self.name.partition(":")
        try:
            # Parse the module instead of importing it, because an import would run the user's code, and later edits of
            # the module would have no effect in this process.
            file = self._load_code().file
            names = set() if file is None else set(_find_defined_names(file.read_text(encoding="utf-8")))
        except (ConfigError, OSError, SyntaxError, ValueError):  # `version` or the import reports the error
            return None
        # Report nothing if the module has a star import or `__getattr__`, because it may then have names that are known
        # only after an import.
        if names & {attribute, "*", "__getattr__"}:
            return None
        from dataprep_assets.engine.yaml.declared_keys import find_nearest

        nearest_name = find_nearest(attribute, sorted(names))
        suggestion = f"; did you mean {nearest_name!r}?" if nearest_name else ""
        return f"{self._location}: {module} has no function {attribute!r}{suggestion}"

    def _load_code(self) -> ModuleCode:
        """Return the code of its module. Raises ConfigError if the module does not exist."""
        code = ModuleCode(self.name.partition(":")[0])
        if code.file is None:
            raise self._import_error(_NO_MODULE)
        return code

    @cached_property
    def _root(self) -> Path:
        """The import root of its module, with links resolved."""
        root = self._load_code().root
        assert root is not None
        return root.resolve()

    @cached_property
    def _function(self) -> Any:
        name, _, attribute = self.name.partition(":")
        try:
            with self._forbid_uncovered_reads():
                module = importlib.import_module(name)
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:  # the user's module may raise any error
            if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
                raise self._import_error(_NO_MODULE) from error
            code_line = locate_in_project(error)
            raise self._import_error(describe_error(error) + (f" ({code_line})" if code_line else "")) from error
        if (function := getattr(module, attribute, None)) is None:
            # Prefer the message of `explain_missing`, because it suggests a similar name.
            raise ConfigError(self.explain_missing() or f"{self._location}: {name} has no function {attribute!r}")
        if not callable(function):
            raise ConfigError(
                f"{self._location}: {attribute!r} in {name} is not a function. Set `function` to a function"
            )
        return function

    def load(self) -> None:
        """Import the function. Raises ConfigError if the import fails."""
        self._function  # noqa: B018  # the import is needed for the errors that it raises

    @contextmanager
    def open(self) -> Iterator[Callable[..., Any]]:
        """Yield the function, to be called in this block.

        Raises ConfigError if the import fails, or if the block reads project files that the version does not cover.
        """
        function = self._function
        with self._forbid_uncovered_reads():
            yield function

    @contextmanager
    def _forbid_uncovered_reads(self) -> Iterator[None]:
        """Raise ConfigError if this block reads project files that the version does not cover."""
        # The user is responsible for changing a declared version when the values change.
        if self.declared is not None:
            yield
            return
        with _read_below(self._root) as read_paths:
            yield
        # Most functions read no files in most calls, so list the covered files only if needed. It takes 0.2 ms.
        if not read_paths:
            return
        covered = {path.resolve() for path in (*self._load_code().named_files, *list_files(self._location, self.files))}
        for path in sorted(read_paths - covered):
            raise ConfigError(
                f"{self._location}: reads {path.relative_to(self._root)}, which is not part of its version. Add it to "
                "`files`, or set `version`"
            )

    def _import_error(self, reason: str) -> ConfigError:
        return ConfigError(f"{self._location}: cannot be imported: {reason}")


class _ThreadWatch(threading.local):
    """The watch of a thread: the watched folder, and the files in it that the thread has read."""

    root: str | None = None
    read: set[Path] | None = None


_watched = _ThreadWatch()


@contextmanager
def _read_below(root: Path) -> Iterator[set[Path]]:
    """Yield the set of data files below a folder that this thread opens for reading in this block, through Python."""
    _install_hook()
    paths: set[Path] = set()
    previous_state = _watched.root, _watched.read
    _watched.root, _watched.read = f"{root}{os.sep}", paths
    try:
        yield paths
    finally:
        _watched.root, _watched.read = previous_state
    paths -= {path for path in paths if not _is_data(path, root)}


def _is_data(path: Path, root: Path) -> bool:
    """Return whether a file is the project's own data.

    Code, hidden files, and files of an environment in the project's folder are not data.
    """
    hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    return not hidden and path.suffix not in _CODE and path.is_file() and is_of_project(path)


_installed = threading.Lock()


def _install_hook() -> None:
    # Install one hook for all functions, because a hook cannot be removed from a process.
    if _installed.acquire(blocking=False):
        sys.addaudithook(_handle_audit_event)


def _handle_audit_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or _watched.root is None or _watched.read is None:
        return
    path, _, flags = arguments
    if isinstance(path, str | bytes) and isinstance(flags, int) and flags & os.O_ACCMODE == os.O_RDONLY:
        full = os.path.realpath(os.fsdecode(path))
        if full.startswith(_watched.root):
            _watched.read.add(Path(full))


def _find_defined_names(source: str) -> Iterator[str]:
    """Yield the names that a module's source defines at the top level, or `*` for a star import."""
    nodes: list[ast.AST] = [ast.parse(source)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            # Inside a function or class, collect only names that are declared global, because other names there are not
            # defined at the top level.
            yield from (name for inner in ast.walk(node) if isinstance(inner, ast.Global) for name in inner.names)
            continue
        nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
