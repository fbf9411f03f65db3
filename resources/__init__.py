"""The Dagster resources of this project: the storage and the IO manager.

`build_resources()` reads the environment and is all that `definitions.py` needs. Assets ask the `StorageResource` for
the store of their dataset; what they make goes downstream through `ArtifactIOManager`. The storage of R2
(`resources.r2`) needs the extra of this name and is imported when the environment names it.
"""

from pathlib import Path
from typing import Any

from dataprep_assets.resources.environment import build_storage
from dataprep_assets.resources.io_manager import KEY, ArtifactIOManager
from dataprep_assets.resources.storage import StorageResource

__all__ = ["ArtifactIOManager", "StorageResource", "build_resources", "resources_of"]


def build_resources(project_root: Path) -> dict[str, Any]:
    """The resources of the code location, configured by the environment (variables: `resources/environment.py`)."""
    return resources_of(build_storage(project_root))


def resources_of(storage: StorageResource) -> dict[str, Any]:
    """What the assets of this project need: the storage, and the IO manager over it."""
    return {"storage": storage, KEY: ArtifactIOManager(storage=storage)}
