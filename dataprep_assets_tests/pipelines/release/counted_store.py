"""A folder store for tests that records its uploads."""

from pathlib import Path

from dataprep_assets.errors import TransferError
from dataprep_assets.stores.local import LocalStore
from dataprep_assets.stores.store import ObjectInfo, Progress


class CountedStore(LocalStore):
    """A folder store that records its uploads, and fails or damages the selected one."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.sent: list[str] = []
        self.fail: str | None = None
        self.spoil: str | None = None

    def upload(self, path: Path, key: str, *, sha256: str, progress: Progress | None = None) -> ObjectInfo:
        if key == self.fail:
            raise TransferError("the network is down")
        info = super().upload(path, key, sha256=sha256, progress=progress)
        self.sent.append(key)
        if key == self.spoil:
            data = bytearray(self.path(key).read_bytes())
            data[-1] ^= 1
            self.path(key).write_bytes(data)
        return info
