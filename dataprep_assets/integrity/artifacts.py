"""Artifacts, and the interface of their storage for builds, checks and assets; handles on finished ones.

An `ArtifactStore` says what is finished (`receipt`, `current`), hands out files (`local`), and publishes what a build
committed to its working directory (`publish`). `LocalArtifacts` keeps them in a folder, where the commit is the
publication; `bucket.BucketArtifacts` keeps them in an object store and works in a cache folder.

Stores are small values: they can be pickled into worker processes.
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
from dataprep_assets.integrity.commit import alone, left_over, remove_directory, sweep
from dataprep_assets.integrity.receipt import NAME, FileRecord, Receipt, Verification, damage, read_receipt
from dataprep_assets.stores.files import concatenate, version_of

# nearly all commands load this module, and few of them open an array
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Where an artifact lives: `<root>/<dataset>/<artifact>[/<partition>]`.
#
# An artifact, its asset in the graph and its module in `pipelines/` have the same name, so that each leads to the
# others.

# No dot in front: such names are areas of the project's own (`.staging`, `.aside-…`, `.fetched`), which listings skip.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """One artifact of one dataset; `partition` is None for an unpartitioned one."""

    dataset: str
    name: str
    partition: str | None = None

    def __post_init__(self) -> None:
        for part in (self.dataset, self.name, self.partition):
            if part is not None and not _NAME.fullmatch(part):
                raise ConfigError(f"artifact name {part!r}: only letters, digits, '_', '-' and '.' are allowed")

    def directory(self, root: Path) -> Path:
        """The artifact's directory below the storage root."""
        return _directory(root, self)

    def __str__(self) -> str:
        return "/".join(filter(None, (self.dataset, self.name, self.partition)))


@lru_cache(maxsize=1 << 14)  # a run asks a dozen times for each of thousands of shards
def _directory(root: Path, artifact: Artifact) -> Path:
    return root.joinpath(artifact.dataset, artifact.name, artifact.partition or "")


_BLOCK = 8 << 20
_FEW_BYTES = 16 << 20
"""Read and digested in the time that a worker takes to begin a task."""


@dataclass(frozen=True)
class FileRef:
    """A file of a committed artifact, as its receipt records it."""

    artifact: Artifact
    record: FileRecord


@dataclass(frozen=True, kw_only=True)
class JoinedFile:
    """A file that is the concatenation of others. `record` is that of the result."""

    record: FileRecord
    parts: tuple[FileRef, ...]


class Ranges(Protocol):
    """Ranged reads of a file that is elsewhere."""

    @property
    def size(self) -> int:
        """Bytes of the file."""
        ...

    def read(self, start: int, stop: int) -> bytes:
        """The bytes `[start, stop)`, which must lie inside the file."""
        ...


@dataclass(frozen=True)
class ArtifactStore(ABC):
    """See the module. `root` is the folder in which builds work; in a local store it is also where artifacts are.

    `to_rebuild` are artifacts that a run was told to build again whatever their keys, each with the version of its
    receipt: once it is built again, it is an artifact like any other.
    """

    root: Path
    to_rebuild: Mapping[Artifact, str | None] = field(default_factory=dict, kw_only=True, compare=False)
    knows_digests: ClassVar[bool] = False
    """Whether the digests of files are known without reading them."""

    def directory(self, artifact: Artifact) -> Path:
        """The artifact's directory below `root`, whether or not it is there."""
        return artifact.directory(self.root)

    def home(self, artifact: Artifact) -> Path:
        """The local directory beside which a build keeps files that are not artifacts; usually where it builds."""
        return self.directory(artifact)

    @property
    @abstractmethod
    def place(self) -> str:
        """Where all of its artifacts are, each dataset in a folder of its name: a path or a URL."""

    @abstractmethod
    def location(self, artifact: Artifact) -> str:
        """Return where the artifact can be found: a path or a URL."""

    @abstractmethod
    def receipt(self, artifact: Artifact) -> Receipt | None:
        """The receipt of a finished artifact; None when it is not there. Raises IntegrityError when it is damaged."""

    def receipts(self, artifacts: Sequence[Artifact]) -> list[Receipt | None]:
        """The receipts of many artifacts, in order."""
        return [self.receipt(artifact) for artifact in artifacts]

    @abstractmethod
    def receipt_versions(self, artifacts: Sequence[Artifact]) -> list[str | None]:
        """For each of these artifacts a text that a replaced receipt would not have, without reading any receipt.

        They are partitions of one artifact. None: it has no receipt.
        """

    @abstractmethod
    def partitions(self, dataset: str, name: str) -> list[str]:
        """The partitions that have files, planned or not, finished or not or only begun here, sorted by name."""

    @abstractmethod
    def names(self, dataset: str) -> list[str]:
        """The names below the dataset's folder, sorted: of its artifacts, and of whatever else is there but links."""

    @abstractmethod
    def damage(self, artifact: Artifact, receipt: Receipt, verification: Verification = "full") -> list[str]:
        """The defects of the artifact's files, one sentence each; empty if `receipt` describes them.

        With `verification` "full" every byte counts, with "size" only the sizes.
        """

    @abstractmethod
    def local(self, artifact: Artifact, names: Iterable[str] | None = None) -> Path:
        """A local directory with these files of a finished artifact (by default all) and its receipt.

        Raises MissingArtifactError when the artifact is not finished.
        """

    @abstractmethod
    def fetch(self, artifact: Artifact, receipt: Receipt, name: str, holder: object) -> Path:
        """The file `name` of this receipt's content, on this machine; its copy stays as long as `holder` lives.

        Raises MissingArtifactError when the artifact was replaced and no copy is here, IntegrityError when the file
        does not have the size that the receipt says.
        """

    @abstractmethod
    def ranges(self, artifact: Artifact, receipt: Receipt, name: str) -> Ranges | None:
        """Ranged reads of the file `name` of this receipt's content; None if it is on this machine."""

    @abstractmethod
    def join(
        self,
        staged: Path,
        name: str,
        parts: Sequence[FileRef],
        *,
        verify: bool = True,
        counted: Callable[[int], None] | None = None,
    ) -> JoinedFile:
        """Make the file `name` of an artifact under construction out of `parts`, in order.

        With `verify` every part is read and compared with its record (IntegrityError if it differs), and the digest of
        the whole is computed in the same pass; without it, a single part is trusted. `staged` has the file afterwards
        only if the store keeps artifacts locally. `counted` is called with the number of bytes read in that pass.
        """

    @abstractmethod
    def publish(self, artifact: Artifact, joined: Mapping[str, JoinedFile] | None = None) -> None:
        """Make an artifact that was committed to its directory visible to all readers, its receipt last.

        `joined` are, by name, the files that `join` described and that the directory does not have.
        """

    @abstractmethod
    def remove(self, artifact: Artifact) -> bool:
        """Remove an artifact, its receipt first; returns False if it is being built, and then does nothing.

        Can be killed at any moment: what is left does not count as finished, and the next call removes it. Raises
        IntegrityError where other artifacts lie below this one.
        """

    def sweep(self, artifacts: Iterable[Artifact]) -> None:
        """Remove what killed runs left beside finished artifacts; artifacts that are being built are left alone."""
        sweep(self.directory(artifact) for artifact in artifacts)

    def require(self, artifact: Artifact) -> Receipt:
        """The artifact's receipt; raises MissingArtifactError when it is not there."""
        receipt = self.receipt(artifact)
        if receipt is None:
            raise MissingArtifactError(
                f"{self.location(artifact)}: no {NAME} found: the artifact is missing or incomplete. Materialize it "
                "first"
            )
        return receipt

    def intact(self, artifact: Artifact, verification: Verification = "full") -> Receipt | None:
        """The receipt of an intact artifact, whatever its key; None when it is missing or damaged."""
        try:
            receipt = self.receipt(artifact)
        except IntegrityError:
            return None
        return receipt if receipt is not None and not self.damage(artifact, receipt, verification) else None

    def current(self, artifact: Artifact, key: str, verification: Verification = "full") -> Receipt | None:
        """The receipt of a finished artifact that has the wanted `key` and is intact; None when it must be (re)built.

        `verification` is as in `damage`.
        """
        try:
            receipt = None if self.must_rebuild(artifact) else self.receipt(artifact)
        except IntegrityError:
            return None
        if receipt is None or receipt.key != key or self.damage(artifact, receipt, verification):
            return None
        return receipt

    def rebuilding(self, artifacts: Sequence[Artifact]) -> Self:
        """The same store, in which these partitions of one artifact, as they are now, are not current."""
        return replace(self, to_rebuild=dict(zip(artifacts, self.receipt_versions(artifacts), strict=True)))

    def must_rebuild(self, artifact: Artifact) -> bool:
        """Return whether the artifact has to be built again even if its key is the wanted one and its files are
        intact."""
        if artifact not in self.to_rebuild:
            return False
        (version,) = self.receipt_versions([artifact])
        return version == self.to_rebuild[artifact]

    def quickly_current(self, artifact: Artifact, key: str, verification: Verification = "full") -> Receipt | None:
        """Like `current`, but None, too, if that reads many bytes or fails: then a worker is to say."""
        try:
            receipt = self.receipt(artifact)
            if receipt is None or receipt.key != key:
                return None
            reads = sum(record.bytes for record in receipt.files)
            if verification == "full" and not self.knows_digests and reads > _FEW_BYTES:
                return None
            return self.current(artifact, key, verification)
        except (DataprepError, OSError):
            return None


@dataclass(frozen=True)
class LocalArtifacts(ArtifactStore):
    """Artifacts in a folder of this machine (or one that it mounts)."""

    root: Path = field()

    @property
    def place(self) -> str:
        return str(self.root)

    def location(self, artifact: Artifact) -> str:
        return str(self.directory(artifact))

    def receipt(self, artifact: Artifact) -> Receipt | None:
        receipt = read_receipt(self.directory(artifact))
        return receipt if receipt is None else of_artifact(receipt, artifact, self.location(artifact))

    def receipt_versions(self, artifacts: Sequence[Artifact]) -> list[str | None]:
        return [version_of(f"{self.root}/{artifact}/{NAME}") for artifact in artifacts]

    def partitions(self, dataset: str, name: str) -> list[str]:
        folder = self.root / dataset / name
        # no dot in front: staging, and directories that were set aside
        return sorted({path.name for path in folder.glob("[!.]*") if path.is_dir()} | left_over(folder))

    def names(self, dataset: str) -> list[str]:
        return sorted(
            path.name for path in (self.root / dataset).glob("[!.]*") if path.is_dir() and not path.is_symlink()
        )

    def remove(self, artifact: Artifact) -> bool:
        directory = self.directory(artifact)
        with alone(directory) as mine:
            if mine:
                if any(path.parent != directory for path in directory.rglob(NAME)):
                    raise holds_others(self.location(artifact))
                remove_directory(directory, NAME)
            return mine

    def damage(self, artifact: Artifact, receipt: Receipt, verification: Verification = "full") -> list[str]:
        return damage(self.directory(artifact), receipt, verification)

    def local(self, artifact: Artifact, names: Iterable[str] | None = None) -> Path:
        self.require(artifact)
        return self.directory(artifact)

    def fetch(self, artifact: Artifact, receipt: Receipt, name: str, holder: object) -> Path:
        size = receipt.file(name).bytes
        path = self.directory(artifact) / name  # the receipt is known: it need not be read and parsed again
        try:
            status = path.stat()
        except OSError:
            status = None
        if status is None or not S_ISREG(status.st_mode) or status.st_size != size:
            self.require(artifact)
            raise IntegrityError(
                f"{path}: its size differs from the {count_of(size, 'byte')} in its receipt. Materialize it again"
            )
        return path

    def ranges(self, artifact: Artifact, receipt: Receipt, name: str) -> None:
        """None: the file is on this machine."""

    def join(
        self,
        staged: Path,
        name: str,
        parts: Sequence[FileRef],
        *,
        verify: bool = True,
        counted: Callable[[int], None] | None = None,
    ) -> JoinedFile:
        target = staged / name
        target.parent.mkdir(parents=True, exist_ok=True)
        concatenate([self.directory(p.artifact) / p.record.path for p in parts], target)
        # of the result, not of the parts: so what the kernel copied is compared, too
        if verify or len(parts) != 1:
            digest = digest_of_parts(_blocks(target), parts, str(target), counted)
        else:
            digest = parts[0].record.sha256
        size = sum(p.record.bytes for p in parts)
        return JoinedFile(record=FileRecord(path=name, bytes=size, sha256=digest), parts=tuple(parts))

    def publish(self, artifact: Artifact, joined: Mapping[str, JoinedFile] | None = None) -> None:
        """Nothing to do: the commit by rename was the publication."""


class StoredSubject(Protocol):
    """The subject of a piece of work, which knows where its artifact is."""

    @property
    def artifact(self) -> Artifact: ...
    @property
    def store(self) -> ArtifactStore: ...


S = TypeVar("S", bound=StoredSubject)


def absent(subjects: Sequence[S]) -> list[S]:
    """The subjects, partitions of one artifact, that have no receipt."""
    if not subjects:
        return []
    versions = subjects[0].store.receipt_versions([subject.artifact for subject in subjects])
    return [subject for subject, version in zip(subjects, versions, strict=True) if version is None]


def of_artifact(receipt: Receipt, artifact: Artifact, location: str) -> Receipt:
    """The receipt found at an artifact's place; raises IntegrityError when it is that of another artifact or partition.

    The dataset's name is not compared: a renamed dataset keeps the artifacts made under its old name.
    """
    if (receipt.artifact, receipt.partition) == (artifact.name, artifact.partition):
        return receipt
    whose = "/".join(filter(None, (receipt.artifact, receipt.partition)))
    raise IntegrityError(f"{location}/{NAME}: belongs to {whose}. Materialize {artifact} again to rebuild it")


def holds_others(location: str) -> IntegrityError:
    """The error for an artifact that cannot be removed because others are below it."""
    return IntegrityError(f"{location}: contains other artifacts. Remove these one by one")


def digest_of_parts(
    blocks: Iterable[bytes], parts: Sequence[FileRef], where: str, counted: Callable[[int], None] | None = None
) -> str:
    """SHA-256 (hex) of `blocks`, which must be these parts in order; each part's own digest is compared on the way.

    `where` names the bytes in messages; `counted` is called with the number of bytes read since the last call.

    Raises IntegrityError naming the part whose bytes differ, or when there are more or fewer bytes than the parts say.
    """
    total_digest, source = hashlib.sha256(), iter(blocks)
    # blocks and parts do not end together: the rest of a block is cut without a copy
    buffer = memoryview(b"")
    for part in parts:
        digest, remaining = hashlib.sha256(), part.record.bytes
        while remaining:
            if not buffer:
                block = next(source, None)
                if block is None:
                    raise IntegrityError(f"{where}: shorter than the sum of its parts: it ends in {part.artifact}")
                buffer = memoryview(block)
            piece, buffer = buffer[:remaining], buffer[remaining:]
            digest.update(piece)
            total_digest.update(piece)
            remaining -= len(piece)
            if counted is not None:
                counted(len(piece))
        if digest.hexdigest() != part.record.sha256:
            raise IntegrityError(
                f"{part.artifact}/{part.record.path}: does not match its receipt (sha256 {digest.hexdigest()}, "
                f"receipt {part.record.sha256}). Materialize {part.artifact} again to rebuild it"
            )
    if len(buffer) or next(source, None) is not None:
        raise IntegrityError(f"{where}: longer than the sum of its parts")
    return total_digest.hexdigest()


def _blocks(path: Path) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        while data := file.read(_BLOCK):
            yield data


# A handle on a finished artifact, through which downstream code uses it in place: an IO manager passes it to an
# asset.
#
# Nothing is read before it is needed. Files in a folder are used where they are; files in a bucket by ranges, or
# through a verified local copy. A handle stands for one content: a later replacement of the artifact is never mixed
# in.
#
#     handle.receipt                        what it is, from what, with which digests
#     handle.files                          names, sizes, digests
#     handle.path("train.bin")              a file on this machine (fetched and verified if need be)
#     handle.open("train.bin")              a seekable binary file; ranges of the object in a bucket
#     handle.read("train.bin", 0, 1024)     one range
#     handle.tokens("train.bin")[a:b]       token ids as a NumPy array; each slice reads its own range
#
# Works without Dagster: `ArtifactHandle.of(store, artifact)`.

_DTYPES = ("uint16", "uint32")
_NPY = b"\x93NUMPY"
"""How a `.npy` file begins that is not the flat one of OLMo."""
# Bytes that a small read of a file in a bucket asks for: what is read after it needs no request of its own.
_BUFFER = 1 << 20


@dataclass(frozen=True)
class ArtifactHandle:
    """See above. Can be pickled into other processes. While it lives, the copies that it fetched stay."""

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
            raise IntegrityError(
                f"{self.location}/{name}: range [{start}, {stop}) is outside its {count_of(record.bytes, 'byte')}"
            )
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
            raise ConfigError(f"{self.location}: its receipt has no token dtype. Open {name} as a file")
        if name.endswith(".npy") and self.read(name, 0, min(len(_NPY), self.receipt.file(name).bytes)) == _NPY:
            raise ConfigError(f"{self.location}/{name}: has a NumPy header. Open its `path` with `np.load`")
        return self.numbers(name, dtype)

    def numbers(self, name: str, dtype: str) -> "npt.NDArray[Any] | RemoteTokens":
        """The little-endian numbers of a headerless file, 1-D, of a NumPy dtype: a memory map, or ranges of the bucket.

        Raises ConfigError when the file is not a whole number of them.
        """
        import numpy as np

        record, element = self.receipt.file(name), np.dtype(dtype).newbyteorder("<")
        if record.bytes % element.itemsize:
            raise ConfigError(
                f"{self.location}/{name}: {count_of(record.bytes, 'byte is', 'bytes are')} not a whole number of "
                f"{dtype} ids. Open it as a file"
            )
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
            raise ValueError(f"cannot seek to {base + offset}, before the beginning")
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

    def __init__(self, ranges: Ranges, dtype: "np.dtype[Any]") -> None:
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
            # one request for all between the lowest and the highest; what a step leaves out is fetched as well
            low, high = min(positions[0], positions[-1]), max(positions[0], positions[-1])
            ids = self._range(low, high + 1)
            return ids[:: positions.step] if positions.step > 0 else ids[::-1][:: -positions.step]
        position = int(index)
        if not -len(self) <= position < len(self):
            raise IndexError(f"token {position} of {len(self)}")
        position %= len(self)
        return self._range(position, position + 1)[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> "npt.NDArray[Any]":
        import numpy as np

        return np.asarray(self[:], dtype=dtype)

    def _range(self, start: int, stop: int) -> "npt.NDArray[Any]":
        import numpy as np

        size = self.dtype.itemsize
        # a copy: NumPy lets nobody write to an array over bytes
        return np.frombuffer(self._ranges.read(start * size, stop * size), self.dtype).copy()
