"""A check of an artifact: its name, the sentence that is true when it passes, its function, and whether it blocks.

A check is written once, next to its artifact. Its function takes a *subject*: what the checks of an artifact look at.
A subject is opened once and reads what is expensive when the first check needs it (cached properties), because several
checks read the same files. `check_groups` runs them.

Entry points: `Check`; `OpenedArtifact`, the base of most subjects.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from dataprep_assets.graph.finding import Finding, judged, name_of
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt

S = TypeVar("S")


def _not_converted(subject: Any) -> Finding:
    raise NotImplementedError


@dataclass(frozen=True)
class Check(Generic[S]):
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
    function: Callable[[S], Finding] = _not_converted
    blocking: bool = True
    version: int = 1
    samples: bool = False
    every_document: bool = False
    limit: float | None = None

    def find(self, subject: S) -> Finding:
        """Return the finding on a subject; raises only for bugs."""
        return judged(self.function)(subject)


class Checkable(Protocol):
    """A partition to check, as it is handed to a worker: pickled, so it opens nothing yet."""

    @property
    def artifact(self) -> Artifact: ...


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

    @property
    def name(self) -> str:
        """How messages name it."""
        return name_of(self.receipt)

    @property
    def seed(self) -> int:
        """The seed of random choices: the same for the same content, so that a failure repeats."""
        return int(self.receipt.key[:8], 16)
