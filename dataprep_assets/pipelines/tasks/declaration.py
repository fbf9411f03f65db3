"""The declaration of a migration of task folders, validated once, and the names of its artifacts.

This is the schema of `type: dataprep_assets.components.TaskMigration`: its field descriptions are the YAML reference.
Paths are resolved against the folder of the YAML, and no key contains one.
"""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from dataprep_assets.engine.source_key import KeyedSources
from dataprep_assets.engine.yaml.declaration import Attribution, resolve_path
from dataprep_assets.engine.yaml.declared_model import PARTITION
from dataprep_assets.errors import ConfigError
from dataprep_assets.pipelines.tasks.contract import TaskContract, contract_from, shipped_contracts
from dataprep_assets.planning.task_versions import BASE

TASK_FOLDER = "task_folder"
"""Name of the artifact and asset that describe a migrated task folder."""
Mode = Literal["copy", "symlink"]
InheritedSplit = Literal["validation", "test"]


class TaskDeclaration(Attribution):
    """A task: the versions that the trainer reads, and how they are migrated."""

    version: str = Field(
        BASE,
        pattern=PARTITION,
        description="`base`: the files in the task's own folder. `latest`: the highest version_<major>[-<minor>]. "
        "`all`: each of these, in `versions/<version>/<Task>/`. Or a version's name.",
    )
    mode: Mode = Field("copy", description="`copy`: independent files, 0644. `symlink`: links into the old project.")
    inherit: tuple[InheritedSplit, ...] = Field(
        ("validation", "test"), description="Splits taken from the task's own folder if the version has no file."
    )
    old_folder: str | None = Field(
        None, pattern=r"^[^/]+$", description="The task's folder in the old project, if it has a different name there."
    )
    versions_in: str = Field(
        "mezo_gpt",
        description="Folder below the task's that contains the versions; `.`: the task's folder itself.",
    )
    optional: bool = Field(
        False,
        description="Skip the task if its folder, its version or a required file is missing, and only warn about rows "
        "that do not fit its contract. The end of a run lists the skipped tasks and the reasons.",
    )

    @field_validator("versions_in")
    @classmethod
    def _below(cls, value: str) -> str:
        if Path(value).is_absolute() or ".." in Path(value).parts:
            raise ValueError(f"{value!r}: must be a folder below the task's, e.g., mezo_gpt")
        return value


class TaskMigrationDeclaration(KeyedSources):
    """Task folders of an old project, migrated to the folders that the new project's trainer reads."""

    old_root: Path = Field(description="Root of the old project; relative paths are relative to this YAML.")
    new_root: Path = Field(description="Root of the new project; relative paths are relative to this YAML.")
    layout: str = Field(
        "Data/rejection_sampling/0_data", description="Folder of `<Task>/` in both projects, below their roots."
    )
    old_layout: str | None = Field(None, description="Overrides `layout` for the old project.")
    new_layout: str | None = Field(None, description="Overrides `layout` for the new project.")
    original: Path | None = Field(
        None, description="Folder with the original `<Task>/` folders, for comparison with rewrites."
    )
    tasks: dict[str, TaskDeclaration] = Field(
        min_length=1, description="Task folder → the version and how it is migrated."
    )
    contracts: dict[str, dict[str, Any]] = Field(
        {}, description="Contracts of tasks that are not included in the package; `like: Copa` extends an included one."
    )
    _contracts: dict[str, TaskContract] = PrivateAttr(default_factory=dict)

    @field_validator("layout", "old_layout", "new_layout")
    @classmethod
    def _relative(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if Path(value).is_absolute() or ".." in Path(value).parts:
            raise ValueError(f"{value!r}: must be a path below the projects' roots")
        return Path(value).as_posix()

    @model_validator(mode="after")
    def _known_tasks(self) -> "TaskMigrationDeclaration":
        self._contracts.update(shipped_contracts())
        for name, value in self.contracts.items():
            try:
                contract = contract_from({"folder": name, **value}, f"contracts.{name}")
            except ConfigError as error:
                raise ValueError(str(error)) from error
            if contract.folder != name:
                raise ValueError(f"contracts.{name}: folder: {contract.folder!r}: must be {name!r}")
            self._contracts[name] = contract
        if all(task.optional for task in self.tasks.values()):
            raise ValueError(
                "tasks: all of them are optional. Remove `optional` from one, so that a run without any task fails"
            )
        for name in self.tasks:
            if name not in self._contracts:
                raise ValueError(
                    f"tasks.{name}: unknown contract. Available: {', '.join(sorted(self._contracts))}. Declare it in "
                    "`contracts`"
                )
        return self

    def located(self, folder: Path) -> Self:
        update: dict[str, Path | None] = {
            "old_root": resolve_path(self.old_root, folder),
            "new_root": resolve_path(self.new_root, folder),
            "original": self.original and resolve_path(self.original, folder),
        }
        return super().located(folder).model_copy(update=update)

    def contract(self, task: str) -> TaskContract:
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
