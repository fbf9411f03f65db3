"""Where artifacts live, as a Dagster resource: in a folder, and in its subclasses in a bucket.

Entry point: `StorageResource`, which assets ask for the store of their dataset. `resources.environment` chooses among
this one, `resources.gcs` and `resources.r2`.
"""

import os
from pathlib import Path
from typing import Any

import dagster as dg

from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.storage import artifacts_at
from dataprep_assets.stores.connect import StoreAddress, place_of


class StorageResource(dg.ConfigurableResource[Any]):
    """Artifact storage at `root`, a folder or the URL of a bucket; subclasses keep a bucket's credentials.

    `cache` is the folder of copies and builds of buckets (default: `cache` beside a `root` that is a folder),
    `cache_bytes` its limit.
    """

    root: str = ""
    cache: str | None = None
    cache_bytes: int | None = None

    def place(self) -> StoreAddress:
        """The address of the store for datasets that declare none of their own."""
        return place_of(self.root, os.environ)

    def artifacts(self, declared: str | None = None, *, private: bool = False) -> ArtifactStore:
        """The store of a dataset's artifacts: at the URL or folder that it declares, else at this resource's place.

        `private`: only their owner can read local copies of a bucket's files.
        """
        place = self.place() if declared is None else place_of(declared, os.environ)
        if self.cache is None and "://" in self.root:
            raise ConfigError(
                f"cache: not set, but {self.root.partition('://')[0]}:// storage needs a local folder. Set it"
            )
        cache = Path(self.cache).expanduser() if self.cache else Path(self.root or ".").expanduser().parent / "cache"
        return artifacts_at(place, cache, self.cache_bytes, private=private)
