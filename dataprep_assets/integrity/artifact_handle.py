"""A handle on a finished artifact, through which downstream code uses it in place: an IO manager passes it to an asset.

Nothing is read before it is needed. Files in a folder are used where they are; files in a bucket by ranges, or through
a verified local copy. A handle stands for one content: a later replacement of the artifact is never mixed in.

    handle.receipt                        what it is, from what, with which digests
    handle.files                          names, sizes, digests
    handle.path("train.bin")              a file on this machine (fetched and verified if need be)
    handle.open("train.bin")              a seekable binary file; ranges of the object in a bucket
    handle.read("train.bin", 0, 1024)     one range
    handle.tokens("train.bin")[a:b]       token ids as a NumPy array; each slice reads its own range

Works without Dagster: `ArtifactHandle.of(store, artifact)`.
"""

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dataprep_assets.errors import ConfigError, IntegrityError
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore, Ranges
from dataprep_assets.integrity.receipt import FileRecord, Receipt

_DTYPES = ("uint16", "uint32")
_NPY = b"\x93NUMPY"
"""How a `.npy` file begins that is not the flat one of OLMo."""
# Bytes that a small read of a file in a bucket asks for: what is read after it needs no request of its own.
_BUFFER = 1 << 20


@dataclass(frozen=True)
class ArtifactHandle:
    """See the module. Can be pickled into other processes. While it lives, the copies that it fetched stay."""

    store: ArtifactStore
    artifact: Artifact
    receipt: Receipt

    @classmethod
    def of(cls, store: ArtifactStore, artifact: Artifact) -> "ArtifactHandle":
        """The handle of a finished artifact; raises MissingArtifactError when it is not there."""
        return cls(store, artifact, store.require(artifact))

    def __repr__(self) -> str:
        return f"ArtifactHandle({self.location!r}, content={self.receipt.content[:12]!r})"

    @property
    def location(self) -> str:
        """Where the artifact is: a path or a URL."""
        return self.store.location(self.artifact)

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """Its data files."""
        return self.receipt.files

    def path(self, name: str) -> Path:
        """The path of the file on this machine.

        Raises ConfigError when it does not fit into the cache's budget, MissingArtifactError when the artifact was
        replaced and no copy is here.
        """
        return self.store.fetch(self.artifact, self.receipt, name, self)

    def open(self, name: str) -> BinaryIO:
        """A seekable binary file, buffered. In a bucket only the ranges that are read are fetched."""
        remote = self._remote(name)
        if remote is None:
            return self.path(name).open("rb")
        return io.BufferedReader(_RemoteFile(remote), _BUFFER)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes `[start, stop)` of the file `name`, by default to its end; raises IntegrityError outside of it."""
        record = self.receipt.file(name)
        stop = record.bytes if stop is None else stop
        if not 0 <= start <= stop <= record.bytes:
            raise IntegrityError(f"{self.location}/{name}: bytes [{start}, {stop}) of {record.bytes}")
        remote = self._remote(name)
        if remote is not None:
            return remote.read(start, stop)
        with self.path(name).open("rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def tokens(self, name: str) -> "npt.NDArray[Any] | RemoteTokens":
        """The token ids of a flat file, 1-D, of the dtype in the receipt: a memory map, or ranges of the bucket.

        Raises ConfigError if the receipt names no token dtype, or the file begins with NumPy's header.
        """
        dtype = self.receipt.facts.get("dtype")
        if dtype not in _DTYPES:
            raise ConfigError(f"{self.location}: its receipt names no token dtype; open {name} as a file")
        if name.endswith(".npy") and self.read(name, 0, min(len(_NPY), self.receipt.file(name).bytes)) == _NPY:
            raise ConfigError(f"{self.location}/{name}: has NumPy's header; open it with `np.load`, by its `path`")
        return self.numbers(name, dtype)

    def numbers(self, name: str, dtype: str) -> "npt.NDArray[Any] | RemoteTokens":
        """The little-endian numbers of a headerless file, 1-D, of a NumPy dtype: a memory map, or ranges of the bucket.

        Raises ConfigError when the file is not a whole number of them.
        """
        record, element = self.receipt.file(name), np.dtype(dtype).newbyteorder("<")
        if record.bytes % element.itemsize:
            raise ConfigError(f"{self.location}/{name}: {record.bytes} bytes are not {dtype} ids; open it as a file")
        remote = self._remote(name)
        if remote is not None:
            return RemoteTokens(remote, element)
        path = self.path(name)
        # an empty file cannot be mapped
        return np.memmap(path, dtype=element, mode="r") if record.bytes else np.empty(0, element)

    def _remote(self, name: str) -> Ranges | None:
        """Ranged reads of the file; None if it is on this machine, at `path`."""
        return self.store.ranges(self.artifact, self.receipt, name)


class _RemoteFile(io.RawIOBase):
    """A file of a bucket, read by ranges."""

    def __init__(self, ranges: Ranges) -> None:
        self._ranges, self._position = ranges, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._ranges.size}[whence]
        if base + offset < 0:
            raise ValueError(f"seek to {base + offset}, before the beginning")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        stop = min(self._position + len(view), self._ranges.size)
        data = self._ranges.read(self._position, stop)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


class RemoteTokens:
    """The token ids of a file in a bucket, for slicing: `len`, `dtype`, `shape`, `[i]`, `[a:b:step]`.

    Each subscript is one ranged read and returns a new array. `numpy.asarray` reads the whole file.
    """

    def __init__(self, ranges: Ranges, dtype: np.dtype[Any]) -> None:
        self._ranges, self.dtype = ranges, dtype
        self.shape = (ranges.size // dtype.itemsize,)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            wanted = range(*index.indices(len(self)))
            if not wanted:
                return np.empty(0, self.dtype)
            # one request for all between the lowest and the highest; what a step leaves out is fetched as well
            low, high = min(wanted[0], wanted[-1]), max(wanted[0], wanted[-1])
            ids = self._range(low, high + 1)
            return ids[:: wanted.step] if wanted.step > 0 else ids[::-1][:: -wanted.step]
        position = int(index)
        if not -len(self) <= position < len(self):
            raise IndexError(f"token {position} of {len(self)}")
        position %= len(self)
        return self._range(position, position + 1)[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.asarray(self[:], dtype=dtype)

    def _range(self, start: int, stop: int) -> npt.NDArray[Any]:
        size = self.dtype.itemsize
        # a copy: NumPy lets nobody write to an array over bytes
        return np.frombuffer(self._ranges.read(start * size, stop * size), self.dtype).copy()
