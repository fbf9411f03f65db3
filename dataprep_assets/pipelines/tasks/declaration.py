"""Declaration of a migration of task folders, validated once, and the names of its artifacts.

This is the schema of `type: dataprep_assets.components.TaskMigration`: its field descriptions are the YAML reference.
Paths are resolved against the folder of the YAML, and are not part of any artifact's key.
"""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from dataprep_assets.engine.source_key import KeyedSources
from dataprep_assets.engine.yaml.declaration import Attribution, resolve_path
from dataprep_assets.engine.yaml.declaration_model import PARTITION
from dataprep_assets.errors import ConfigError
from dataprep_assets.pipelines.tasks.contract import TaskContract, load_shipped_contracts, parse_contract
from dataprep_assets.planning.task_versions import BASE

TASK_FOLDER = "task_folder"
"""Name of the artifact and asset that describe a migrated task folder."""
Mode = Literal["copy", "symlink"]
InheritedSplit = Literal["validation", "test"]


class TaskDeclaration(Attribution):
    """A task: the version that the trainer reads, and how it is migrated."""

    version: str = Field(
        BASE,
        pattern=PARTITION,
        description=(
            "Version to migrate: `base` (the files in the task's own folder), `latest` (the highest "
            "`version_<major>[-<minor>]`), or a version's name. `all` migrates every version to "
            "`versions/<version>/<Task>/`."
        ),
    )
    mode: Mode = Field(
        "copy",
        description=(
            "How files are migrated. `copy`: as independent files with mode 0644. `symlink`: as links to the old "
            "project."
        ),
    )
    inherit: tuple[InheritedSplit, ...] = Field(
        ("validation", "test"),
        description="Splits to take from the task's own folder if the version has no file for them.",
    )
    old_folder: str | None = Field(
        None,
        pattern=r"^[^/]+$",
        description="Name of the task folder in the old project. Default: the same name as in the new project.",
    )
    versions_in: str = Field(
        "mezo_gpt",
        description="Folder with the versions, relative to the task folder. `.` is the task folder itself.",
    )
    optional: bool = Field(
        False,
        description=(
            "With `true`, a task with missing files is skipped, and rows that do not fit its contract cause only "
            "warnings. The end of a run lists the skipped tasks."
        ),
    )

    @field_validator("versions_in")
    @classmethod
    def _require_path_below(cls, value: str) -> str:
        if Path(value).is_absolute() or ".." in Path(value).parts:
            raise ValueError(f"{value!r}: must be a relative path below the task's folder, e.g., mezo_gpt")
        return value


class TaskMigrationDeclaration(KeyedSources):
    """Task folders of an old project, migrated to the folders that the new project's trainer reads."""

    old_root: Path = Field(description="Root folder of the old project, relative to this YAML.")
    new_root: Path = Field(description="Root folder of the new project, relative to this YAML.")
    layout: str = Field(
        "Data/rejection_sampling/0_data",
        description="Folder that contains the task folders, relative to the root of each project.",
    )
    old_layout: str | None = Field(
        None, description="Folder of the old project that contains the task folders, if it differs from `layout`."
    )
    new_layout: str | None = Field(
        None, description="Folder of the new project that contains the task folders, if it differs from `layout`."
    )
    original: Path | None = Field(
        None,
        description=(
            "Folder with the original task folders. With it, rewritten rows are compared with the originals. "
            "Default: no comparison."
        ),
    )
    tasks: dict[str, TaskDeclaration] = Field(
        min_length=1, description="Task folder → its version, and how it is migrated."
    )
    contracts: dict[str, dict[str, Any]] = Field(
        {},
        description=(
            "Task folder → the contract of a task that the package does not include. `like: Copa` starts from an "
            "included contract. Default: only included contracts."
        ),
    )
    _contracts: dict[str, TaskContract] = PrivateAttr(default_factory=dict)

    @field_validator("layout", "old_layout", "new_layout")
    @classmethod
    def _require_relative_path(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if Path(value).is_absolute() or ".." in Path(value).parts:
            raise ValueError(f"{value!r}: must be a relative path below the projects' roots")
        return Path(value).as_posix()

    @model_validator(mode="after")
    def _require_known_tasks(self) -> "TaskMigrationDeclaration":
        self._contracts.update(load_shipped_contracts())
        for name, value in self.contracts.items():
            try:
                contract = parse_contract({"folder": name, **value}, f"contracts.{name}")
            except ConfigError as error:
                raise ValueError(str(error)) from error
            if contract.folder != name:
                raise ValueError(f"contracts.{name}.folder: must be {name!r}, not {contract.folder!r}")
            self._contracts[name] = contract
        if all(task.optional for task in self.tasks.values()):
            raise ValueError(
                "tasks: all tasks are optional. Remove `optional` from at least one, so that a run without any task "
                "fails"
            )
        for name in self.tasks:
            if name not in self._contracts:
                raise ValueError(
                    f"tasks.{name}: unknown contract {name!r}. Available: {', '.join(sorted(self._contracts))}. "
                    "Declare it in `contracts`"
                )
        return self

    def resolve_paths(self, folder: Path) -> Self:
        update: dict[str, Path | None] = {
            "old_root": resolve_path(self.old_root, folder),
            "new_root": resolve_path(self.new_root, folder),
            "original": self.original and resolve_path(self.original, folder),
        }
        return super().resolve_paths(folder).model_copy(update=update)

    def find_contract(self, task: str) -> TaskContract:
        """Return the contract of a declared task."""
        return self._contracts[task]

    @property
    def old_tasks(self) -> Path:
        """Folder of the old project that contains the task folders."""
        return self.old_root / (self.old_layout or self.layout)

    @property
    def new_tasks(self) -> Path:
        """Folder of the new project that contains the task folders."""
        return self.new_root / (self.new_layout or self.layout)
