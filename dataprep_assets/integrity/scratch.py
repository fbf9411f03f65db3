"""Scratch folders of a dataset for temporary files of one process, and a store that overlays another one.

Scratch folders are next to the dataset's staging, not in the machine's temporary folder. They may contain texts, so
they are private (0700) and are removed soon after their process ends. The kernel releases the lock of a killed process,
and unlocked folders are removed by the dataset's next scratch folder or at the end of its next run.

Entry points: `create_scratch`, `sweep_scratch`.
"""

import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dataprep_assets.errors import MissingArtifactError
from dataprep_assets.integrity.artifacts import (
    Artifact,
    ArtifactStore,
    FileRef,
    JoinedFile,
    LocalArtifacts,
    RangeReader,
)
from dataprep_assets.integrity.commit import STAGING
from dataprep_assets.integrity.receipt import NAME, Receipt, Verification
from dataprep_assets.stores.locks import open_own_file, refuse_link, try_lock

# An overlay store: builds write to a scratch folder, and everything else is read from the store below.
#
# An artifact can therefore be rebuilt and compared with others without writing artifacts, locks or publications to the
# store below. Files of a bucket are read through the bucket's cache, as usual.


@dataclass(frozen=True)
class OverlayArtifacts(ArtifactStore):
    """A store that overlays another one: `root` is the scratch folder, `below` the unchanged store.

    `damaged` has artifacts of the store below whose receipts may be read, but whose files may not.
    """

    root: Path
    below: ArtifactStore
    damaged: set[Artifact] = field(default_factory=set, compare=False)

    @property
    def _scratch(self) -> LocalArtifacts:
        return LocalArtifacts(self.root)

    def _find_holder(self, artifact: Artifact) -> ArtifactStore:
        # Check at each call, because an artifact that is built in the scratch folder hides the artifact of the store
        # below.
        return self._scratch if os.path.exists(f"{self.directory(artifact)}/{NAME}") else self.below

    def _open_holder(self, artifact: Artifact) -> ArtifactStore:
        holder = self._find_holder(artifact)
        if holder is self.below and artifact in self.damaged:
            raise MissingArtifactError(f"{self.location(artifact)}: damaged. Rebuild it")
        return holder

    def home(self, artifact: Artifact) -> Path:
        return self.below.home(artifact)

    @property
    def address(self) -> str:
        return self.below.address

    def location(self, artifact: Artifact) -> str:
        return self.below.location(artifact)

    def receipt(self, artifact: Artifact) -> Receipt | None:
        return self._find_holder(artifact).receipt(artifact)

    def receipts(self, artifacts: Sequence[Artifact]) -> list[Receipt | None]:
        lower_artifacts = [artifact for artifact in artifacts if self._find_holder(artifact) is self.below]
        receipts_below = dict(zip(lower_artifacts, self.below.receipts(lower_artifacts), strict=True))
        return [
            receipts_below[artifact] if artifact in receipts_below else self.receipt(artifact) for artifact in artifacts
        ]

    def receipt_versions(self, artifacts: Sequence[Artifact]) -> list[str | None]:
        lower_versions = self.below.receipt_versions(artifacts)
        scratch_versions = self._scratch.receipt_versions(artifacts)
        return [
            version or version_below for version, version_below in zip(scratch_versions, lower_versions, strict=True)
        ]

    def partitions(self, dataset: str, name: str) -> list[str]:
        return sorted({*self._scratch.partitions(dataset, name), *self.below.partitions(dataset, name)})

    def names(self, dataset: str) -> list[str]:
        return sorted({*self._scratch.names(dataset), *self.below.names(dataset)})

    def damage(self, artifact: Artifact, receipt: Receipt, verification: Verification = "full") -> list[str]:
        return self._find_holder(artifact).damage(artifact, receipt, verification)

    def local(self, artifact: Artifact, names: Iterable[str] | None = None) -> Path:
        return self._open_holder(artifact).local(artifact, names)

    def fetch(self, artifact: Artifact, receipt: Receipt, name: str, holder: object) -> Path:
        return self._open_holder(artifact).fetch(artifact, receipt, name, holder)

    def ranges(self, artifact: Artifact, receipt: Receipt, name: str) -> RangeReader | None:
        return self._open_holder(artifact).ranges(artifact, receipt, name)

    def join(
        self,
        staged: Path,
        name: str,
        parts: Sequence[FileRef],
        *,
        verify: bool = True,
        on_read: Callable[[int], None] | None = None,
    ) -> JoinedFile:
        return self.below.join(staged, name, parts, verify=verify, on_read=on_read)

    def publish(self, artifact: Artifact, joined: Mapping[str, JoinedFile] | None = None) -> None:
        """Do nothing, because only this process uses the scratch folder."""

    def remove(self, artifact: Artifact) -> bool:
        """Remove the artifact from the scratch folder only."""
        return self._scratch.remove(artifact)


_AREA = f"{STAGING}/scratch"
_LOCK = ".lock"


@contextmanager
def create_scratch(dataset: Path) -> Iterator[Path]:
    """Yield an empty, private folder of a dataset, which is removed after the block.

    Args:
        dataset: The folder of the dataset's artifacts.
    """
    with _open_area(dataset) as area:
        _sweep(area)
        folder = area / secrets.token_hex(8)
        folder.mkdir(mode=0o700)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def sweep_scratch(dataset: Path) -> None:
    """Remove a dataset's scratch folders of killed processes."""
    if (dataset / _AREA).is_dir():
        with _open_area(dataset) as area:
            _sweep(area)


@contextmanager
def _open_area(dataset: Path) -> Iterator[Path]:
    """Yield the folder of a dataset's scratch folders, locked, so that no other process adds or removes one."""
    area = dataset / _AREA
    refuse_link(area.parent)
    area.parent.mkdir(parents=True, exist_ok=True)
    refuse_link(area)
    area.mkdir(mode=0o700, exist_ok=True)
    # Make the lock file private regardless of the umask, because it may belong to a sensitive dataset.
    with open(area / _LOCK, "ab", opener=lambda path, flags: open_own_file(path, flags, 0o600)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield area


def _sweep(area: Path) -> None:
    with os.scandir(area) as entries:
        paths = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:  # another process has just removed the folder
            continue
        try:
            if try_lock(descriptor):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)
