"""What every declared dataset has in common, whatever its pipeline: its name, its owners, where its artifacts go."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.receipt import Verification


class Declared(BaseModel):
    """A part of the YAML: unknown keys are errors, values do not change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DatasetDeclaration(Declared):
    """The keys that the YAML of every component has."""

    dataset: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", description="Name of the dataset; its group in the UI.")
    description: str = Field("", description="Shown in the UI.")
    owners: tuple[str, ...] = Field((), description="E-mail addresses, or `team:name`.")
    storage: str | None = Field(
        None, description="Where the artifacts go: a folder, `s3://bucket/prefix` or `gs://bucket/prefix`."
    )
    verify: Verification = Field(
        "full", description="How much a finished artifact is re-read: `full` digests or `size`."
    )
    workers: int | None = Field(None, ge=1, description="Worker processes; default: one a core.")
    sensitive: bool = Field(False, description="No text and no identifier in any log, event, metadata or plot.")
    accept: dict[str, str] = Field(
        default_factory=dict,
        description="Checks that only warn and whose failure is accepted: name → why. They pass, and show the reason.",
    )

    @field_validator("accept")
    @classmethod
    def _with_reasons(cls, accept: dict[str, str]) -> dict[str, str]:
        for name, why in accept.items():
            if not why.strip():
                raise ValueError(f"accept.{name}: say why, for who reads the check later")
        return accept

    def located(self, folder: Path) -> Self:
        """The same declaration with relative paths resolved against `folder`."""
        if self.storage is None or "://" in self.storage:
            return self
        return self.model_copy(update={"storage": str(resolved(Path(self.storage), folder))})

    def artifact(self, name: str, partition: str | None = None) -> Artifact:
        """The name of one of this dataset's artifacts."""
        return Artifact(dataset=self.dataset, name=name, partition=partition)


def resolved(path: Path, folder: Path) -> Path:
    """A declared path, relative to the folder of its YAML unless absolute or in the home directory."""
    expanded = path.expanduser()
    return expanded if expanded.is_absolute() else (folder / expanded).resolve()
