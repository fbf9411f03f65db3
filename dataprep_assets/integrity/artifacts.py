"""Artifacts, the interface of their storage for builds, checks and assets, and handles on finished artifacts.

An `ArtifactStore` finds finished artifacts (`receipt`, `current`), provides their files (`local`), and publishes an
artifact that a build committed to its working directory (`publish`). `LocalArtifacts` stores them in a folder, where
the commit is the publication. `bucket.BucketArtifacts` stores them in an object store and builds in a cache folder.

Stores are small values that can be pickled for worker processes.
"""

import hashlib
import io
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Protocol, Self, TypeVar

from dataprep_assets.errors import ConfigError, DataprepError, IntegrityError, MissingArtifactError, count_of
from dataprep_assets.integrity.commit import hold_alone, list_leftovers, remove_directory, sweep
from dataprep_assets.integrity.receipt import NAME, FileRecord, Receipt, Verification, find_damage, read_receipt
from dataprep_assets.stores.files import concatenate, identify_version

# Import NumPy only for annotations, because nearly all commands load this module, but few open an array.
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# An artifact's location is `<root>/<dataset>/<artifact>[/<partition>]`. Its asset is `<artifact>` or
# `<artifact>_<split>`, and most artifacts are built in a module of this name in `pipelines/`, so that each can be found
# from the others.

# Names may not begin with a dot: listings skip such names, which are internal (`.staging`, `.aside-…`, `.fetched`).
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """One artifact of one dataset; `partition` is None for an unpartitioned artifact."""

    dataset: str
    name: str
    partition: str | None = None

    def __post_init__(self) -> None:
        for part in (self.dataset, self.name, self.partition):
            if part is not None and not _NAME.fullmatch(part):
                raise ConfigError(f"artifact name {part!r}: must contain only letters, digits, '_', '-' and '.'")

    def directory(self, root: Path) -> Path:
        """Return the artifact's directory below the storage root."""
        return _build_artifact_directory(root, self)

    def __str__(self) -> str:
        return "/".join(filter(None, (self.dataset, self.name, self.partition)))


@lru_cache(maxsize=1 << 14)  # a run needs the path of each of thousands of shards a dozen times
def _build_artifact_directory(root: Path, artifact: Artifact) -> Path:
    return root.joinpath(artifact.dataset, artifact.name, artifact.partition or "")


_BLOCK = 8 << 20
_FEW_BYTES = 16 << 20
"""Number of bytes that can be read and digested in the time that a worker takes to start a task."""


@dataclass(frozen=True)
class FileRef:
    """A file of a committed artifact, as recorded in its receipt."""

    artifact: Artifact
    record: FileRecord


@dataclass(frozen=True, kw_only=True)
class JoinedFile:
    """A file that is the concatenation of `parts`. `record` describes the result."""

    record: FileRecord
    parts: tuple[FileRef, ...]


class RangeReader(Protocol):
    """Ranged reads of a remote file."""

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        ...

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes `[start, stop)`, which must be inside the file."""
        ...


@dataclass(frozen=True)
class ArtifactStore(ABC):
    """Base class of artifact stores, which the module docstring describes.

    Attributes:
        root: The folder in which builds work. In a local store, artifacts are also stored there.
        to_rebuild: Artifacts that a run must rebuild regardless of their keys, each with the version of its receipt.
            After the rebuild, the version differs, and the artifact is handled normally.
    """

    root: Path
    to_rebuild: Mapping[Artifact, str | None] = field(default_factory=dict, kw_only=True, compare=False)
    knows_digests: ClassVar[bool] = False
    """Whether the digests of files are known without reading them."""

    def directory(self, artifact: Artifact) -> Path:
        """Return the artifact's directory below `root`; it need not exist."""
        return artifact.directory(self.root)

    def home(self, artifact: Artifact) -> Path:
        """Return the local directory next to which a build stores other files; usually the build directory."""
        return self.directory(artifact)

    @property
    @abstractmethod
    def address(self) -> str:
        """The path or URL with all of its artifacts, which has one folder per dataset."""

    @abstractmethod
    def location(self, artifact: Artifact) -> str:
        """Return the path or URL of the artifact."""

    @abstractmethod
    def receipt(self, artifact: Artifact) -> Receipt | None:
        """Return the receipt of a finished artifact; None if it does not exist.

        Raises IntegrityError if it is damaged.
        """

    def receipts(self, artifacts: Sequence[Artifact]) -> list[Receipt | None]:
        """Return the receipts of many artifacts, in order."""
        return [self.receipt(artifact) for artifact in artifacts]

    @abstractmethod
    def receipt_versions(self, artifacts: Sequence[Artifact]) -> list[str | None]:
        """Return, for each artifact, a string that changes if its receipt is replaced; None if it has no receipt.

        The artifacts must be partitions of one artifact. No receipt is read.
        """

    @abstractmethod
    def partitions(self, dataset: str, name: str) -> list[str]:
        """Return the partitions that have files, sorted by name, including unplanned and unfinished ones."""

    @abstractmethod
    def names(self, dataset: str) -> list[str]:
        """Return the sorted names in the dataset's folder: artifacts and other entries, without links."""

    @abstractmethod
    def damage(self, artifact: Artifact, receipt: Receipt, verification: Verification = "full") -> list[str]:
        """Return the defects of the artifact's files, one sentence each; empty if they match `receipt`.

        `verification` "full" compares every byte, "size" only the sizes.
        """

    @abstractmethod
    def local(self, artifact: Artifact, names: Iterable[str] | None = None) -> Path:
        """Return a local directory with these files of a finished artifact (by default all) and its receipt.

        Raises MissingArtifactError if the artifact is not finished.
        """

    @abstractmethod
    def fetch(self, artifact: Artifact, receipt: Receipt, name: str, holder: object) -> Path:
        """Return a local path of the file `name` with this receipt's content; a copy is kept while `holder` lives.

        Raises MissingArtifactError if the artifact was replaced and there is no local copy, IntegrityError if the
        file's size differs from the receipt.
        """

    @abstractmethod
    def ranges(self, artifact: Artifact, receipt: Receipt, name: str) -> RangeReader | None:
        """Return ranged reads of the file `name` with this receipt's content; None if the file is local."""

    @abstractmethod
    def join(
        self,
        staged: Path,
        name: str,
        parts: Sequence[FileRef],
        *,
        verify: bool = True,
        on_read: Callable[[int], None] | None = None,
    ) -> JoinedFile:
        """Build the file `name` of an artifact under construction from `parts`, in order.

        With `verify`, every part is read and compared with its record (IntegrityError if it differs), and the digest of
        the result is computed in the same pass. Without it, a single part is trusted. Afterwards, `staged` has the file
        only if the store is local. `on_read` is called with the number of bytes read in that pass.
        """

    @abstractmethod
    def publish(self, artifact: Artifact, joined: Mapping[str, JoinedFile] | None = None) -> None:
        """Make an artifact that was committed to its directory visible to all readers, its receipt last.

        `joined` maps names to the files that `join` described and that are not in the directory.
        """

    @abstractmethod
    def remove(self, artifact: Artifact) -> bool:
        """Remove an artifact, its receipt first. Returns False, and does nothing, if it is being built.

        It can be killed at any moment: the remaining files do not count as finished, and the next call removes them.
        Raises IntegrityError if other artifacts are stored below this one.
        """

    def sweep(self, artifacts: Iterable[Artifact]) -> None:
        """Remove the files of killed runs next to finished artifacts. Artifacts that are being built are skipped."""
        sweep(self.directory(artifact) for artifact in artifacts)

    def require(self, artifact: Artifact) -> Receipt:
        """Return the artifact's receipt; raise MissingArtifactError if it does not exist."""
        receipt = self.receipt(artifact)
        if receipt is None:
            raise MissingArtifactError(
                f"{self.location(artifact)}: no {NAME} found, so the artifact is missing or incomplete. "
                "Build the artifact first"
            )
        return receipt

    def intact_receipt(self, artifact: Artifact, verification: Verification = "full") -> Receipt | None:
        """Return the receipt of an intact artifact, regardless of its key; None if it is missing or damaged."""
        try:
            receipt = self.receipt(artifact)
        except IntegrityError:
            return None
        return receipt if receipt is not None and not self.damage(artifact, receipt, verification) else None

    def find_current(self, artifact: Artifact, key: str, verification: Verification = "full") -> Receipt | None:
        """Return the receipt of a finished, intact artifact with this `key`; None if it must be (re)built.

        `verification` is as in `find_damage`.
        """
        try:
            receipt = None if self.must_rebuild(artifact) else self.receipt(artifact)
        except IntegrityError:
            return None
        if receipt is None or receipt.key != key or self.damage(artifact, receipt, verification):
            return None
        return receipt

    def mark_for_rebuild(self, artifacts: Sequence[Artifact]) -> Self:
        """Return this store with these partitions of one artifact, in their current version, marked for a rebuild."""
        return replace(self, to_rebuild=dict(zip(artifacts, self.receipt_versions(artifacts), strict=True)))

    def must_rebuild(self, artifact: Artifact) -> bool:
        """Return whether the artifact is marked for a rebuild and has not been rebuilt since, regardless of its key."""
        if artifact not in self.to_rebuild:
            return False
        (version,) = self.receipt_versions([artifact])
        return version == self.to_rebuild[artifact]

    def find_current_if_cheap(
        self, artifact: Artifact, key: str, verification: Verification = "full"
    ) -> Receipt | None:
        """Return the receipt like `find_current`; also None if the check fails or would have to read too many bytes."""
        try:
            receipt = self.receipt(artifact)
            if receipt is None or receipt.key != key:
                return None
            reads = sum(record.bytes for record in receipt.files)
            if verification == "full" and not self.knows_digests and reads > _FEW_BYTES:
                return None
            return self.find_current(artifact, key, verification)
        except (DataprepError, OSError):
            return None


@dataclass(frozen=True)
class LocalArtifacts(ArtifactStore):
    """Artifacts in a local or mounted folder."""

    root: Path = field()

    @property
    def address(self) -> str:
        return str(self.root)

    def location(self, artifact: Artifact) -> str:
        return str(self.directory(artifact))

    def receipt(self, artifact: Artifact) -> Receipt | None:
        receipt = read_receipt(self.directory(artifact))
        return receipt if receipt is None else require_artifact(receipt, artifact, self.location(artifact))

    def receipt_versions(self, artifacts: Sequence[Artifact]) -> list[str | None]:
        return [identify_version(f"{self.root}/{artifact}/{NAME}") for artifact in artifacts]

    def partitions(self, dataset: str, name: str) -> list[str]:
        folder = self.root / dataset / name
        # Skip names with a leading dot, which are staging areas or directories that were set aside.
        return sorted({path.name for path in folder.glob("[!.]*") if path.is_dir()} | list_leftovers(folder))

    def names(self, dataset: str) -> list[str]:
        return sorted(
            path.name for path in (self.root / dataset).glob("[!.]*") if path.is_dir() and not path.is_symlink()
        )

    def remove(self, artifact: Artifact) -> bool:
        directory = self.directory(artifact)
        with hold_alone(directory) as is_locked:
            if is_locked:
                if any(path.parent != directory for path in directory.rglob(NAME)):
                    raise build_nested_artifacts_error(self.location(artifact))
                remove_directory(directory, NAME)
            return is_locked

    def damage(self, artifact: Artifact, receipt: Receipt, verification: Verification = "full") -> list[str]:
        return find_damage(self.directory(artifact), receipt, verification)

    def local(self, artifact: Artifact, names: Iterable[str] | None = None) -> Path:
        self.require(artifact)
        return self.directory(artifact)

    def fetch(self, artifact: Artifact, receipt: Receipt, name: str, holder: object) -> Path:
        size = receipt.file(name).bytes
        # Compare the file with the given receipt, because reading and parsing the receipt again for every file would be
        # slow.
        path = self.directory(artifact) / name
        try:
            status = path.stat()
        except OSError:
            status = None
        if status is None or not S_ISREG(status.st_mode) or status.st_size != size:
            self.require(artifact)
            raise IntegrityError(
                f"{path}: its size differs from the receipt ({count_of(size, 'byte')}). Rebuild {artifact}"
            )
        return path

    def ranges(self, artifact: Artifact, receipt: Receipt, name: str) -> None:
        """Return None, because the file is local."""

    def join(
        self,
        staged: Path,
        name: str,
        parts: Sequence[FileRef],
        *,
        verify: bool = True,
        on_read: Callable[[int], None] | None = None,
    ) -> JoinedFile:
        target = staged / name
        target.parent.mkdir(parents=True, exist_ok=True)
        concatenate([self.directory(p.artifact) / p.record.path for p in parts], target)
        # Digest the result instead of the parts, because this also verifies the kernel's copy.
        if verify or len(parts) != 1:
            digest = digest_parts(_read_blocks(target), parts, str(target), on_read)
        else:
            digest = parts[0].record.sha256
        size = sum(p.record.bytes for p in parts)
        return JoinedFile(record=FileRecord(path=name, bytes=size, sha256=digest), parts=tuple(parts))

    def publish(self, artifact: Artifact, joined: Mapping[str, JoinedFile] | None = None) -> None:
        """Do nothing, because the commit by rename was the publication."""


class StoredSubject(Protocol):
    """A subject of work, with its artifact and its store."""

    @property
    def artifact(self) -> Artifact: ...
    @property
    def store(self) -> ArtifactStore: ...


S = TypeVar("S", bound=StoredSubject)


def find_missing_subjects(subjects: Sequence[S]) -> list[S]:
    """Return the subjects that have no receipt. All must be partitions of one artifact."""
    if not subjects:
        return []
    versions = subjects[0].store.receipt_versions([subject.artifact for subject in subjects])
    return [subject for subject, version in zip(subjects, versions, strict=True) if version is None]


def require_artifact(receipt: Receipt, artifact: Artifact, location: str) -> Receipt:
    """Return the receipt; raise IntegrityError if it belongs to an artifact or partition other than `artifact`.

    The dataset's name is not compared: a renamed dataset keeps the artifacts that were built under its old name.
    """
    if (receipt.artifact, receipt.partition) == (artifact.name, artifact.partition):
        return receipt
    owner = "/".join(filter(None, (receipt.artifact, receipt.partition)))
    raise IntegrityError(f"{location}/{NAME}: belongs to {owner}. Rebuild {artifact}")


def build_nested_artifacts_error(location: str) -> IntegrityError:
    """Return the error for an artifact that cannot be removed because other artifacts are below it."""
    return IntegrityError(f"{location}: contains other artifacts. Remove those artifacts one by one")


def digest_parts(
    blocks: Iterable[bytes], parts: Sequence[FileRef], location: str, on_read: Callable[[int], None] | None = None
) -> str:
    """Return the SHA-256 (hex) of `blocks`, which must be these parts in order; compare the digest of each part.

    `location` names the bytes in messages. `on_read` is called with the number of bytes read since the last call.

    Raises IntegrityError with the part whose bytes differ, or if the number of bytes differs from the parts' total.
    """
    total_digest, source = hashlib.sha256(), iter(blocks)
    # Keep the rest of a block for the next part, because blocks and parts have different boundaries. A view avoids a
    # copy.
    buffer = memoryview(b"")
    for part in parts:
        digest, remaining = hashlib.sha256(), part.record.bytes
        while remaining:
            if not buffer:
                block = next(source, None)
                if block is None:
                    raise IntegrityError(
                        f"{location}: shorter than the sum of its parts: ends inside {part.artifact}. Rebuild the "
                        "artifact"
                    )
                buffer = memoryview(block)
            piece, buffer = buffer[:remaining], buffer[remaining:]
            digest.update(piece)
            total_digest.update(piece)
            remaining -= len(piece)
            if on_read is not None:
                on_read(len(piece))
        if digest.hexdigest() != part.record.sha256:
            raise IntegrityError(
                f"{part.artifact}/{part.record.path}: does not match its receipt (sha256 {digest.hexdigest()} instead "
                f"of {part.record.sha256}). Rebuild {part.artifact}"
            )
    if len(buffer) or next(source, None) is not None:
        raise IntegrityError(f"{location}: longer than the sum of its parts. Rebuild the artifact")
    return total_digest.hexdigest()


def _read_blocks(path: Path) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        while data := file.read(_BLOCK):
            yield data


# Handles on finished artifacts. Downstream code uses an artifact in place through a handle, which an IO manager passes
# to an asset.
#
# Nothing is read before it is needed. Files in a folder are used in place. Files in a bucket are read by ranges, or
# through a verified local copy. A handle refers to one content and never mixes it with a later replacement of the
# artifact.
#
#     handle.receipt                        the receipt, with inputs and digests
#     handle.files                          names, sizes, digests
#     handle.path("train.bin")              a local file (downloaded and verified if necessary)
#     handle.open("train.bin")              a seekable binary file; ranges of the object in a bucket
#     handle.read("train.bin", 0, 1024)     one range
#     handle.tokens("train.bin")[a:b]       token ids as a NumPy array; each slice reads its own range
#
# `ArtifactHandle.from_store(store, artifact)` works without Dagster.

_DTYPES = ("uint16", "uint32")
_NPY = b"\x93NUMPY"
"""Prefix of a real `.npy` file. OLMo's files with this suffix are flat and have no header."""
# Number of bytes to request for a small read of a file in a bucket, so that the next reads need no request.
_BUFFER = 1 << 20


@dataclass(frozen=True)
class ArtifactHandle:
    """A handle on a finished artifact. It can be pickled. While it lives, the copies that it downloaded are kept."""

    store: ArtifactStore
    artifact: Artifact
    receipt: Receipt

    @classmethod
    def from_store(cls, store: ArtifactStore, artifact: Artifact) -> "ArtifactHandle":
        """Return the handle of a finished artifact; raise MissingArtifactError if it does not exist."""
        return cls(store, artifact, store.require(artifact))

    def __repr__(self) -> str:
        return f"ArtifactHandle({self.location!r}, content={self.receipt.content[:12]!r})"

    @property
    def location(self) -> str:
        """The path or URL of the artifact."""
        return self.store.location(self.artifact)

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """Data files of the artifact."""
        return self.receipt.files

    def path(self, name: str) -> Path:
        """Return a local path of the file.

        Raises ConfigError if the file does not fit into the cache's budget, MissingArtifactError if the artifact was
        replaced and there is no local copy.
        """
        return self.store.fetch(self.artifact, self.receipt, name, self)

    def open(self, name: str) -> BinaryIO:
        """Open a buffered, seekable binary file. In a bucket, only the ranges that are read are downloaded."""
        remote = self._open_remote(name)
        if remote is None:
            return self.path(name).open("rb")
        return io.BufferedReader(_RemoteFile(remote), _BUFFER)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes `[start, stop)` of a file, by default to its end; raise IntegrityError if out of range."""
        record = self.receipt.file(name)
        stop = record.bytes if stop is None else stop
        if not 0 <= start <= stop <= record.bytes:
            raise IntegrityError(
                f"{self.location}/{name}: bytes {start} to {stop} are out of range: the file has "
                f"{count_of(record.bytes, 'byte')}"
            )
        remote = self._open_remote(name)
        if remote is not None:
            return remote.read(start, stop)
        with self.path(name).open("rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def tokens(self, name: str) -> "npt.NDArray[Any] | RemoteTokens":
        """Return the token ids of a flat file: 1-D, with the receipt's dtype, as a memory map or ranges of the bucket.

        Raises ConfigError if the receipt has no token dtype, or if the file begins with NumPy's header.
        """
        dtype = self.receipt.facts.get("dtype")
        if dtype not in _DTYPES:
            raise ConfigError(f"{self.location}: its receipt has no token dtype. Open {name} with `open`")
        if name.endswith(".npy") and self.read(name, 0, min(len(_NPY), self.receipt.file(name).bytes)) == _NPY:
            raise ConfigError(f"{self.location}/{name}: has a NumPy header. Open its `path` with `np.load`")
        return self.numbers(name, dtype)

    def numbers(self, name: str, dtype: str) -> "npt.NDArray[Any] | RemoteTokens":
        """Return the little-endian numbers of a headerless file: 1-D, as a memory map or ranges of the bucket.

        Raises ConfigError if the file's size is not a multiple of the size of `dtype`, a NumPy dtype.
        """
        import numpy as np

        record, element = self.receipt.file(name), np.dtype(dtype).newbyteorder("<")
        if record.bytes % element.itemsize:
            raise ConfigError(
                f"{self.location}/{name}: its size, {count_of(record.bytes, 'byte')}, is not a multiple of the size "
                f"of {dtype}. Open the file with `open`"
            )
        remote = self._open_remote(name)
        if remote is not None:
            return RemoteTokens(remote, element)
        path = self.path(name)
        # `np.memmap` cannot map an empty file.
        return np.memmap(path, dtype=element, mode="r") if record.bytes else np.empty(0, element)

    def _open_remote(self, name: str) -> RangeReader | None:
        """Return ranged reads of the file; None if the file is local (`path`)."""
        return self.store.ranges(self.artifact, self.receipt, name)


class _RemoteFile(io.RawIOBase):
    """A file of a bucket, read by ranges."""

    def __init__(self, ranges: RangeReader) -> None:
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
            raise ValueError(f"cannot seek to {base + offset}, which is before the start of the file")
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

    def __init__(self, ranges: RangeReader, dtype: "np.dtype[Any]") -> None:
        self._ranges, self.dtype = ranges, dtype
        self.shape = (ranges.size // dtype.itemsize,)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            positions = range(*index.indices(len(self)))
            if not positions:
                import numpy as np

                return np.empty(0, self.dtype)
            # Request the range from the lowest to the highest position at once, because a request per id would be slow.
            low, high = min(positions[0], positions[-1]), max(positions[0], positions[-1])
            ids = self._read_range(low, high + 1)
            return ids[:: positions.step] if positions.step > 0 else ids[::-1][:: -positions.step]
        position = int(index)
        if not -len(self) <= position < len(self):
            raise IndexError(
                f"token {position} is out of range: the file has {count_of(len(self), 'token')}, counted from 0"
            )
        position %= len(self)
        return self._read_range(position, position + 1)[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> "npt.NDArray[Any]":
        import numpy as np

        return np.asarray(self[:], dtype=dtype)

    def _read_range(self, start: int, stop: int) -> "npt.NDArray[Any]":
        import numpy as np

        size = self.dtype.itemsize
        # Copy the array to make it writable, because a NumPy array over a bytes object is read-only.
        return np.frombuffer(self._ranges.read(start * size, stop * size), self.dtype).copy()
