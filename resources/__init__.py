"""The Dagster face of storage and friends.

`build_resources()` reads the environment and is all that `definitions.py` needs. Assets ask a `StorageResource` for the
root of the artifacts; a dataset that declares its own `storage` overrides it.
"""

from resources.storage import StorageResource, build_resources

__all__ = ["StorageResource", "build_resources"]
