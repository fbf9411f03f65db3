"""A check of an artifact: its name, the sentence that is true when it passes, its function, and whether it blocks.

A check is written once, next to its artifact. Its function takes a *subject*: what the checks of an artifact look at.
A subject is opened once and reads what is expensive when the first check needs it (cached properties), because several
checks read the same files. `groups` runs them.

Entry points: `Check`; `OpenedArtifact` and `OpenedPartition`, the bases of most subjects, and `FILES_INTACT`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

from dataprep_assets.engine.checks.finding import Finding, files_intact, judged, name_of
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore, StoredSubject
from dataprep_assets.integrity.receipt import Receipt

S_contra = TypeVar("S_contra", contravariant=True)


@dataclass(frozen=True)
class Check(Generic[S_contra]):
    """One check, an asset check in the UI.

    Attributes:
        name: Its name, a noun and a claim.
        sentence: The sentence that is true when it passes.
        function: Returns the finding on a subject. Errors of readers and of the file system become failed findings. A
            function of a module, because workers import it.
        blocking: Whether its failure stops what is downstream; otherwise it only warns.
        version: Is increased when the check becomes stricter or is corrected: remembered verdicts of older versions
            do not count.
        samples: Whether it looks at some documents, or, with `every_document`, at all.
        limit: The declared number that it judges by: a verdict by a different one does not count.
    """

    name: str
    sentence: str
    function: Callable[[S_contra], Finding]
    blocking: bool = True
    version: int = 1
    samples: bool = False
    every_document: bool = False
    limit: float | None = None

    def find(self, subject: S_contra) -> Finding:
        """Return the finding on a subject; raises only for bugs."""
        return judged(self.function)(subject)


class Checkable(Protocol):
    """A partition to check, as it is handed to a worker: pickled, so it opens nothing yet."""

    @property
    def artifact(self) -> Artifact: ...


T = TypeVar("T", bound=StoredSubject)


@dataclass(frozen=True)
class OpenedArtifact:
    """A subject: a finished artifact, or a partition of one. Its receipt and its files are read when first needed."""

    artifact: Artifact
    store: ArtifactStore

    @cached_property
    def receipt(self) -> Receipt:
        """Its receipt; raises MissingArtifactError or IntegrityError if it cannot be read."""
        return self.store.require(self.artifact)

    @cached_property
    def directory(self) -> Path:
        """A local folder with all its files."""
        return self.store.local(self.artifact)

    def opened(self) -> Self:
        """It with its receipt read and its files here; raises what `receipt` raises."""
        _ = self.receipt, self.directory
        return self

    @property
    def name(self) -> str:
        """How messages name it."""
        return name_of(self.receipt)

    @property
    def seed(self) -> int:
        """The seed of random choices: the same for the same content, so that a failure repeats."""
        return int(self.receipt.key[:8], 16)


@dataclass(frozen=True)
class OpenedPartition(OpenedArtifact, Generic[T]):
    """A subject: a finished partition, and how it was `planned`, which says what it should be."""

    planned: T

    @classmethod
    def open(cls, planned: T) -> Self:
        """Open it in a worker; raises what `receipt` raises."""
        return cls(planned.artifact, planned.store, planned).opened()


class _Files(Protocol):
    @property
    def directory(self) -> Path: ...
    @property
    def receipt(self) -> Receipt: ...


def _files_intact(opened: _Files) -> Finding:
    return files_intact(opened.directory, opened.receipt)


FILES_INTACT: Check[_Files] = Check(
    "files_intact", "Every file has the size and digest of the receipt, and no file is unlisted.", _files_intact
)
"""The check that most artifacts have."""
