"""Where artifacts live, as a Dagster resource chosen by the environment."""

import os
from pathlib import Path
from typing import Any

import dagster as dg

from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import ArtifactStore, LocalArtifacts

DEFAULT_ROOT = Path(".dataprep/artifacts")
_KINDS = ("local",)


class StorageResource(dg.ConfigurableResource[Any]):
    """Local artifact storage below `root`; DATAPREP_ROOT sets it, a relative path is relative to the project."""

    root: str

    def artifacts(self, declared: str | None = None) -> ArtifactStore:
        """Where a dataset's artifacts are: its own declared place, else this resource's."""
        return LocalArtifacts(Path(declared or self.root).expanduser())


def build_resources(project_root: Path) -> dict[str, Any]:
    """The resources of the code location, from DATAPREP_STORAGE (`local`) and DATAPREP_ROOT."""
    kind = os.environ.get("DATAPREP_STORAGE", "local")
    if kind not in _KINDS:
        raise ConfigError(f"DATAPREP_STORAGE: {kind!r}: this version knows {list(_KINDS)}")
    root = Path(os.environ.get("DATAPREP_ROOT") or project_root / DEFAULT_ROOT).expanduser()
    return {"storage": StorageResource(root=str(root if root.is_absolute() else project_root / root))}
