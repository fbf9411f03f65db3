"""Ranged reads of an artifact's file in a bucket, of one content, wherever the object with it is."""

from typing import Protocol

from dataprep_assets.errors import MissingArtifactError
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.stores.store import ConflictError, ObjectInfo, Store


class _Published(Protocol):
    """Artifacts in a bucket, as far as they are read here; picklable."""

    @property
    def store(self) -> Store: ...

    def pinned(self, artifact: Artifact, receipt: Receipt, name: str) -> ObjectInfo: ...


class ObjectRanges:
    """Ranged reads of the file `name` of one content in a bucket; picklable into other processes."""

    def __init__(self, store: _Published, artifact: Artifact, receipt: Receipt, name: str) -> None:
        self._store, self._artifact, self._receipt, self._name = store, artifact, receipt, name
        # The object with the content, once it was looked up.
        self._info: ObjectInfo | None = None

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._receipt.file(self._name).bytes

    def read(self, start: int, stop: int) -> bytes:
        """The bytes `[start, stop)`.

        Raises MissingArtifactError when the artifact was replaced since its receipt was read.
        """
        # a reader asks at the end of a file, too (`_RemoteFile`), and HTTP has no empty range
        if start >= stop:
            return b""
        for last in (False, True):
            if self._info is None:
                self._info = self._store.pinned(self._artifact, self._receipt, self._name)
            try:
                return b"".join(self._store.store.read(self._info.key, start, stop, version=self._info.version))
            except (ConflictError, MissingArtifactError):
                # The object of this content may have moved to another key, or may have been rewritten.
                self._info = None
                if last:
                    raise
        raise AssertionError("unreachable")
