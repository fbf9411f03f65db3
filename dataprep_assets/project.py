"""Project of a command: its location, the folder of its declarations, and which of its datasets are shipped.

A project is a folder of Dagster's `dg`, such as `dataprep init` creates. Its `pyproject.toml` has a table
`[tool.dg.project]` (or its `dg.toml` a table `[project]`) that names the package whose `defs` declares the datasets.
This module does not import Dagster, because shell completion uses it.

Entry points: `find_project`, `read_project`.
"""

import os
import re
import sys
import tomllib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dataprep_assets.errors import ConfigError, os_error_reason
from dataprep_assets.stores.files import expand_path

if TYPE_CHECKING:
    from pydantic import TypeAdapter

# Shipped datasets: samples, and examples that need a network.
#
# They are in `samples/` and `examples/` of this package's `defs/`. All other datasets are the user's own, regardless of
# their folders' names. Shipped assets have the tag `dataprep/shown_as`, and DATAPREP_SHOW selects which of them the
# code location shows. `dataprep` commands find all datasets by name.
#
# Entry points: `find_shipped_kind`, `is_shown`.

SHIPPED_FOLDERS = {"samples": "sample", "examples": "example"}
"""Folders of `SHIPPED` → the tag of the assets of the datasets in them."""
SHIPPED = Path(__file__).parent / "defs"
SHOWN_AS = "dataprep/shown_as"
SHOW = "DATAPREP_SHOW"


def find_shipped_kind(folder: Path) -> str | None:
    """Return `sample` or `example` for the folder of a shipped dataset; None for a user's own dataset."""
    return SHIPPED_FOLDERS.get(folder.parent.name) if folder.parent.parent == SHIPPED else None


def is_shown(kind: str | None, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the code location shows datasets of this kind: only samples, unless DATAPREP_SHOW is set.

    Args:
        kind: The result of `find_shipped_kind`; the user's own datasets (None) are always shown.
        environment: Environment with DATAPREP_SHOW: `none`, or a comma-separated list of `samples` and `examples`.

    Raises ConfigError for any other value.
    """
    setting = environment.get(SHOW) or "samples"
    names = [] if setting == "none" else [name.strip() for name in setting.split(",")]
    if unknown := [name for name in names if name not in SHIPPED_FOLDERS]:
        raise ConfigError(f"{SHOW}: unknown value {unknown[0]!r}. Must be none, samples, examples or samples,examples")
    return kind is None or kind in [SHIPPED_FOLDERS[name] for name in names]


# Internal JSON files of the project, which contain stored verdicts, ages and digests.
#
# They may be damaged by a disk, a user or an earlier release. All of them can be recomputed, so a file with invalid
# content is treated as missing.
#
# Entry points: `read_state`, `validate_json`.

T = TypeVar("T")


def find_user_cache() -> Path:
    """Return the folder of caches that all projects of a user share; raise ConfigError without a home folder.

    It is `$XDG_CACHE_HOME/dataprep-assets` (`~/.cache/dataprep-assets`), and may be deleted at any time.
    """
    return expand_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "dataprep-assets"


def read_state(path: str | os.PathLike[str], schema: type[T]) -> T | None:
    """Return the value of a JSON file; None if there is no file, or if its content is not of the type `schema`.

    Args:
        path: The file.
        schema: A type that pydantic validates, strictly, for example `dict[str, int]` or a TypedDict.
    """
    try:
        return validate_json(Path(path).read_bytes(), schema)
    except (OSError, ValueError):  # pydantic's ValidationError is a ValueError
        return None


def validate_json(data: bytes, schema: type[T]) -> T:
    """Return the value of a JSON text; raise ValueError if it is not of the type `schema`."""
    return cast("T", _build_adapter(cast("Hashable", schema)).validate_json(data, strict=True))


@lru_cache(maxsize=16)
def _build_adapter(schema: Any) -> "TypeAdapter[Any]":
    # Import pydantic only when it is needed, because completion and `--help` find the project but read no state.
    from pydantic import TypeAdapter

    return TypeAdapter(schema)


VARIABLE = "DATAPREP_PROJECT"
"""Environment variable that names the project's folder."""


@dataclass(frozen=True, kw_only=True)
class Project:
    """A Dagster project that declares datasets.

    Attributes:
        root: The project's folder.
        defs_module: The module in whose folder the datasets are declared.
        location: The name of the project's code location.
        id: The random id in `[tool.dataprep]` of `pyproject.toml`, which all clones of the project share, or None.
        target_module: The module that defines the code location.
    """

    root: Path
    defs_module: str
    location: str
    id: str | None
    target_module: str

    @property
    def defs(self) -> Path:
        """Folder of the `defs.yaml` files.

        Raises ConfigError if it does not exist.
        """
        defs_path = Path(*self.defs_module.split("."))
        folders = [base / defs_path for base in (self.root, self.root / "src") if (base / defs_path).is_dir()]
        if not folders:
            raise ConfigError(
                f"{self.root}: pyproject.toml names the folder {defs_path}, which does not exist. Create it, or "
                "correct pyproject.toml"
            )
        return folders[0]

    @property
    def dagster_home(self) -> Path:
        """Folder of the project's Dagster instance, unless DAGSTER_HOME is set."""
        return self.root / ".dagster"

    def make_importable(self) -> None:
        """Add the project's package to `sys.path` if it is not installed."""
        base = self.defs
        for _ in self.defs_module.split("."):
            base = base.parent
        spec = find_spec(self.defs_module.partition(".")[0])
        # A spec without an origin means that Python found only a folder of that name, for example the project's own
        # folder in the working directory.
        if spec is None or spec.origin is None:
            # Append the folder to the end of the path, because a `tokenizers.py` in it must not replace the library.
            sys.path.append(str(base))

    def load_environment(self) -> list[str]:
        """Set the variables of the project's `.env` in this process; return the names whose value was overwritten.

        The variables of the file override existing ones, as in Dagster's commands.

        Raises ConfigError, which names the line, if the file cannot be read or a line is not `NAME=value`.
        """
        path = self.root / ".env"
        if not path.is_file():  # the folder of a virtual environment may also be named `.env`
            return []
        values = _read_dotenv(path)
        replaced = [name for name, value in values.items() if os.environ.get(name, value) != value]
        os.environ.update(values)
        return replaced


def find_project(name: str | None = None) -> Project:
    """Return the named project, else DATAPREP_PROJECT's, else the project that contains the working directory.

    Args:
        name: The folder of the project, from `--project`.

    Raises ConfigError if no project is found.
    """
    path = name or os.environ.get(VARIABLE)
    if path is not None:
        folder = expand_path(path, "--project" if name else VARIABLE).resolve()
        if (project := read_project(folder)) is None:
            raise ConfigError(
                f"{folder}: not a project: no pyproject.toml with [tool.dg.project] found. Run `dataprep init DIR` to "
                "create a project"
            )
        return project
    try:
        working_folder = Path.cwd()
    except FileNotFoundError as error:
        raise ConfigError("the working folder was removed. Change to a folder that exists") from error
    for folder in (working_folder, *working_folder.parents):
        if (project := read_project(folder)) is not None:
            return project
    raise ConfigError(
        f"no project found in {working_folder} or its parents. Run `dataprep init DIR` to create one, or pass "
        f"--project DIR (or set {VARIABLE})"
    )


def read_project(folder: Path) -> Project | None:
    """Return the project in this folder; None if the folder is not a project.

    Raises ConfigError if its configuration names no package, or if its id is invalid.
    """
    table = _read_table(folder / "dg.toml", "project") or _read_table(
        folder / "pyproject.toml", "tool", "dg", "project"
    )
    if table is None:
        return None
    root_module = table.get("root_module")
    defs_module = table.get("defs_module") or (f"{root_module}.defs" if root_module else None)
    if defs_module is None:
        raise ConfigError(f"{folder}: [tool.dg.project] must set `root_module` or `defs_module`")
    project_id = (_read_table(folder / "pyproject.toml", "tool", "dataprep") or {}).get("id")
    if project_id is not None and not re.fullmatch("[0-9a-f]{8}", str(project_id)):
        raise ConfigError(f"{folder}: [tool.dataprep] id: must be text with 8 digits from 0-9 and a-f. Correct it")
    return Project(
        root=folder,
        defs_module=defs_module,
        location=table.get("code_location_name") or folder.name,
        id=None if project_id is None else str(project_id),
        target_module=table.get("code_location_target_module") or f"{defs_module.rpartition('.')[0]}.definitions",
    )


def _read_dotenv(path: Path) -> dict[str, str]:
    """Return the variables of a `.env` as Dagster reads them, but reject lines that Dagster would ignore."""
    from dotenv import dotenv_values
    from dotenv.parser import parse_stream

    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not valid UTF-8 at byte {error.start}. Save the file as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {os_error_reason(error)}") from error
    if text.startswith("\ufeff"):
        raise ConfigError(
            f"{path}: begins with a byte order mark, which would become part of a name. Save the file without a byte "
            "order mark"
        )
    for binding in parse_stream(StringIO(text)):
        if binding.error or "\0" in binding.original.string:
            raise ConfigError(f"{path}:{binding.original.line}: must be `NAME=value`. Correct the line, or remove it")
    return {name: value for name, value in dotenv_values(path).items() if value is not None}


def _read_table(path: Path, *keys: str) -> dict[str, Any] | None:
    try:
        table: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {os_error_reason(error)}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: invalid TOML: {error}. Correct the file") from error
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    return table if isinstance(table, dict) else None
