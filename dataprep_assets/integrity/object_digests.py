"""SHA-256 of objects whose store does not know it, remembered for each version on this machine.

Without reading an object, a store knows its size and, if this project wrote it, its SHA-256. Other objects (written by
other tools, or in a `LocalStore`) are read once in each version, and their digests are kept below `<root>/.digests/`.
"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from dataprep_assets.bounds import json_of
from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.integrity.digest import canonical_json
from dataprep_assets.stores.store import ObjectInfo, Store


@dataclass(frozen=True)
class ObjectDigests:
    """See the module. `root` is the folder of this machine that also holds the copies of the bucket."""

    root: Path

    def of(self, store: Store, info: ObjectInfo) -> ObjectInfo:
        """The object with its SHA-256: the store's, the remembered one, or that of the bytes of this version."""
        if info.sha256 is not None:
            return info
        path = self._path(info)
        try:
            value = json_of(path.read_bytes())
            if value["key"] == info.key and value["version"] == info.version and isinstance(value["sha256"], str):
                return replace(info, sha256=value["sha256"])
        except (OSError, ValueError, KeyError, TypeError):
            # not there yet, or damaged: the object is read, and what is written then replaces the file
            pass
        digest = hashlib.sha256()
        for block in store.read(info.key, version=info.version):
            digest.update(block)
        self.remember(info, digest.hexdigest())
        return replace(info, sha256=digest.hexdigest())

    def remember(self, info: ObjectInfo, sha256: str) -> None:
        """Keep the digest (hex) of this version of an object, if the store does not know it."""
        if info.sha256 is None:
            path = self._path(info)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, canonical_json({"key": info.key, "version": info.version, "sha256": sha256}))

    def _path(self, info: ObjectInfo) -> Path:
        # A hash, because a key has slashes and may be longer than a file's name. The version is not part of it: the
        # digest of a newer one takes the place of the old one, so the folder does not grow with each replacement.
        return self.root / ".digests" / f"{hashlib.sha256(info.key.encode()).hexdigest()[:32]}.json"
