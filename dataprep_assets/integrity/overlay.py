"""A store over another one: builds go to a scratch folder, everything else is read from the store below.

So an artifact can be made as it would be made now, and others compared with it, while nothing is written to the store
below: no artifact, no lock, no publication. (A bucket's files are read through its cache, as always.)
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dataprep_assets.errors import MissingArtifactError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore, FileRef, JoinedFile, LocalArtifacts, Ranges
from dataprep_assets.integrity.receipt import NAME, Receipt, Verification


@dataclass(frozen=True)
class OverlayArtifacts(ArtifactStore):
    """See the module. `root` is the scratch folder, `below` the store that stays as it is.

    `damaged` are artifacts in the store below whose receipts may be read, but not their files.
    """

    root: Path
    below: ArtifactStore
    damaged: set[Artifact] = field(default_factory=set, compare=False)

    @property
    def _scratch(self) -> LocalArtifacts:
        return LocalArtifacts(self.root)

    def _holder(self, artifact: Artifact) -> ArtifactStore:
        # asked each time: what is built in the scratch folder meanwhile hides what is below
        return self._scratch if os.path.exists(f"{self.directory(artifact)}/{NAME}") else self.below

    def _open_holder(self, artifact: Artifact) -> ArtifactStore:
        holder = self._holder(artifact)
        if holder is self.below and artifact in self.damaged:
            raise MissingArtifactError(f"{self.location(artifact)}: damaged. Materialize it again")
        return holder

    def home(self, artifact: Artifact) -> Path:
        return self.below.home(artifact)

    @property
    def place(self) -> str:
        return self.below.place

    def location(self, artifact: Artifact) -> str:
        return self.below.location(artifact)

    def receipt(self, artifact: Artifact) -> Receipt | None:
        return self._holder(artifact).receipt(artifact)

    def receipts(self, artifacts: Sequence[Artifact]) -> list[Receipt | None]:
        below = [artifact for artifact in artifacts if self._holder(artifact) is self.below]
        found = dict(zip(below, self.below.receipts(below), strict=True))
        return [found[artifact] if artifact in found else self.receipt(artifact) for artifact in artifacts]

    def receipt_versions(self, artifacts: Sequence[Artifact]) -> list[str | None]:
        below = self.below.receipt_versions(artifacts)
        here = self._scratch.receipt_versions(artifacts)
        return [version or found for version, found in zip(here, below, strict=True)]

    def partitions(self, dataset: str, name: str) -> list[str]:
        return sorted({*self._scratch.partitions(dataset, name), *self.below.partitions(dataset, name)})

    def names(self, dataset: str) -> list[str]:
        return sorted({*self._scratch.names(dataset), *self.below.names(dataset)})

    def damage(self, artifact: Artifact, receipt: Receipt, verification: Verification = "full") -> list[str]:
        return self._holder(artifact).damage(artifact, receipt, verification)

    def local(self, artifact: Artifact, names: Iterable[str] | None = None) -> Path:
        return self._open_holder(artifact).local(artifact, names)

    def fetch(self, artifact: Artifact, receipt: Receipt, name: str, holder: object) -> Path:
        return self._open_holder(artifact).fetch(artifact, receipt, name, holder)

    def ranges(self, artifact: Artifact, receipt: Receipt, name: str) -> Ranges | None:
        return self._open_holder(artifact).ranges(artifact, receipt, name)

    def join(
        self,
        staged: Path,
        name: str,
        parts: Sequence[FileRef],
        *,
        verify: bool = True,
        counted: Callable[[int], None] | None = None,
    ) -> JoinedFile:
        return self.below.join(staged, name, parts, verify=verify, counted=counted)

    def publish(self, artifact: Artifact, joined: Mapping[str, JoinedFile] | None = None) -> None:
        """Nothing to do: nobody else uses the scratch folder."""

    def remove(self, artifact: Artifact) -> bool:
        """Remove the artifact from the scratch folder only."""
        return self._scratch.remove(artifact)
