"""Dagster resources of this project: the storage and the IO manager.

`definitions.py` needs only `build_resources()`, which reads the environment. Assets get their dataset's store from the
`StorageResource`, and downstream assets get artifacts through the `ArtifactIOManager`. The storages of GCS and R2
(`resources.gcs`, `resources.r2`) need the extras of the same names, and are imported only if the environment selects
them.
"""

from pathlib import Path
from typing import Any

from dataprep_assets.resources.environment import build_storage
from dataprep_assets.resources.io_manager import KEY, ArtifactIOManager
from dataprep_assets.resources.storage import StorageResource

__all__ = ["ArtifactIOManager", "StorageResource", "build_resources", "create_resources"]


def build_resources(project_root: Path) -> dict[str, Any]:
    """Return the resources of the code location, as the environment configures them (`resources/environment.py`)."""
    return create_resources(build_storage(project_root))


def create_resources(storage: StorageResource) -> dict[str, Any]:
    """Return the resources that the assets need: the storage, and the IO manager that uses it."""
    return {"storage": storage, KEY: ArtifactIOManager(storage=storage)}
