"""Storage of artifacts as a Dagster resource: in a folder, or with a subclass in a bucket.

Entry point: `StorageResource`, from which assets get the store of their dataset. `resources.environment` chooses
between this class and the classes of `resources.gcs` and `resources.r2`.
"""

import os
from pathlib import Path
from typing import Any

import dagster as dg

from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.storage import open_artifacts
from dataprep_assets.stores.connect import StoreAddress, parse_place


class StorageResource(dg.ConfigurableResource[Any]):
    """Artifact storage at `root`, a folder or a bucket's URL; subclasses add a bucket's credentials.

    `cache` is the folder of local copies and builds for buckets (default: `cache` next to a `root` folder), and
    `cache_bytes` is its maximum size.
    """

    root: str = ""
    cache: str | None = None
    cache_bytes: int | None = None

    def address(self) -> StoreAddress:
        """Return the store's address for datasets that declare no storage."""
        return parse_place(self.root, os.environ)

    def artifacts(self, declared: str | None = None, *, private: bool = False) -> ArtifactStore:
        """Return the store of a dataset's artifacts: at the declared URL or folder, else at this resource's address.

        If `private` is true, only the owner can read local copies of a bucket's files.
        """
        address = self.address() if declared is None else parse_place(declared, os.environ)
        if self.cache is None and "://" in self.root:
            raise ConfigError(
                f"cache: not set, but {self.root.partition('://')[0]}:// storage needs a local folder. Set `cache` to "
                "a folder"
            )
        cache = Path(self.cache).expanduser() if self.cache else Path(self.root or ".").expanduser().parent / "cache"
        return open_artifacts(address, cache, self.cache_bytes, private=private)
