"""Where artifacts live, as a Dagster resource chosen by the environment."""

import os
from pathlib import Path
from typing import Any

import dagster as dg

from dataprep_assets.errors import ConfigError

DEFAULT_ROOT = Path(".dataprep/artifacts")
_KINDS = ("local",)


class StorageResource(dg.ConfigurableResource[Any]):
    """Local artifact storage below `root`; DATAPREP_ROOT sets it, a relative path is relative to the project."""

    root: str

    def path(self, declared: Path | None = None) -> Path:
        """The root for a dataset: its own declared one, else this resource's."""
        return declared if declared is not None else Path(self.root).expanduser()


def build_resources(project_root: Path) -> dict[str, Any]:
    """The resources of the code location, from DATAPREP_STORAGE (`local`) and DATAPREP_ROOT."""
    kind = os.environ.get("DATAPREP_STORAGE", "local")
    if kind not in _KINDS:
        raise ConfigError(f"DATAPREP_STORAGE: {kind!r}: this version knows {list(_KINDS)}")
    root = Path(os.environ.get("DATAPREP_ROOT") or project_root / DEFAULT_ROOT).expanduser()
    return {"storage": StorageResource(root=str(root if root.is_absolute() else project_root / root))}
