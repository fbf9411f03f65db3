"""The specification of an artifact: everything about it that more than one place needs, said once.

From the list of a dataset's specs follow its Dagster assets and checks (`orchestration`), the runs that make it
(`runs`), what of it is stale and why (`status`), what is swept. A wing's `component.py` makes the list; each spec is
written beside the build that it names. Nothing here imports Dagster.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.execution.progress import Progress
from dataprep_assets.graph.asset_path import asset_path
from dataprep_assets.graph.closed_files import CLOSED_TO_OTHERS, closed_to_others, places_of
from dataprep_assets.graph.closed_files import DESCRIPTION as CLOSED_DESCRIPTION
from dataprep_assets.graph.declaration import DatasetDeclaration
from dataprep_assets.graph.finding import Finding
from dataprep_assets.graph.place import OpenPlaces
from dataprep_assets.graph.recipe import Recipe
from dataprep_assets.graph.shown import Shown
from dataprep_assets.graph.source_watch import SourceWatch
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt, Verification

__all__ = [
    "ArtifactSpec",
    "BuildRequest",
    "OtherDataset",
    "Partitions",
    "Proof",
    "Proofs",
    "Reading",
    "RunStep",
    "documents_of",
    "no_metadata",
]


@dataclass(frozen=True, kw_only=True, eq=False)
class Partitions:
    """The partitions of one or several artifacts, which share this object: same object, same partitions.

    Attributes:
        keys: The partition keys in order, as the plan in this store has them; MissingArtifactError before there is one.
        dynamic: Name of Dagster's dynamic partitions, which the artifact that plans them registers; None where the
            declaration fixes them.
        noun: What a person calls one of them.
        ranges: How `dataprep run` cuts them into runs; by default one run has all.
        fixed_keys: The keys, where the declaration fixes them.
    """

    keys: Callable[[ArtifactStore], Sequence[str]]
    dynamic: str | None = None
    noun: str = "shard"
    ranges: Callable[[ArtifactStore], Sequence[Sequence[str]]] | None = None
    fixed_keys: Sequence[str] = ()

    @classmethod
    def fixed(cls, keys: Sequence[str], noun: str) -> "Partitions":
        """Partitions that the declaration fixes."""
        return cls(keys=lambda _: keys, noun=noun, fixed_keys=keys)

    def cut(self, store: ArtifactStore) -> Sequence[Sequence[str]]:
        """The partitions of each run."""
        return [self.keys(store)] if self.ranges is None else self.ranges(store)


@dataclass(frozen=True, kw_only=True, eq=False)
class RunStep:
    """Which run of `dataprep run` makes an artifact: consecutive specs with the same step are made in one run.

    `title` is told the store, all partitions of the step and those of this run (both empty for unpartitioned ones).
    """

    title: Callable[[ArtifactStore, Sequence[str], Sequence[str]], str]

    @classmethod
    def called(cls, title: str) -> "RunStep":
        """A step with a fixed title."""
        return cls(title=lambda _store, _every, _chosen: title)


@dataclass(frozen=True, kw_only=True)
class OtherDataset:
    """An artifact of another dataset that something is made of."""

    dataset: str
    name: str

    @property
    def path(self) -> tuple[str, ...]:
        """The parts of the asset's key."""
        return asset_path(self.dataset, self.name)


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """What a build is asked to do.

    Attributes:
        store: Where the dataset's artifacts are.
        partitions: Which partitions to build; empty for an unpartitioned artifact.
        workers: Worker processes, or threads, to use.
        progress: Counts and shows what is done.
        warn: Tells a person something that does not fail the build.
    """

    store: ArtifactStore
    partitions: Sequence[str] = ()
    workers: int = 1
    progress: Progress = field(default_factory=Progress)
    warn: Callable[[str], None] = field(default=lambda _: None)


@dataclass(frozen=True)
class Proof:
    """One proof of an artifact, an asset check in the UI.

    `version` is raised when the proof becomes stricter or is mended: verdicts remembered from older versions no longer
    count. One that is not `blocking` is told without holding up what is downstream.
    """

    name: str
    description: str
    blocking: bool = True
    version: int = 1


Examine = Callable[[ArtifactStore, Sequence[str]], Iterator[tuple[str, Finding]]]
"""From a store and the partitions of the run to the finding of each proof, by name; empty when unpartitioned."""


@dataclass(frozen=True, kw_only=True)
class Proofs:
    """All proofs of an artifact. They are examined together, because they read the same files."""

    proofs: tuple[Proof, ...]
    examine: Examine


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What building one partition reads: bytes of its source as stored, how many of them have to be fetched first, and
    whether they are tokenized."""

    source_bytes: int
    fetch_bytes: int = 0
    tokenized: bool = False


def no_metadata(store: ArtifactStore, receipt: Receipt) -> Mapping[str, Shown]:
    """No metadata beyond what every artifact has."""
    return {}


def documents_of(receipt: Receipt) -> int | None:
    """The rows of an artifact whose rows are the documents of its ledger; None without one."""
    return None if receipt.ledger is None else receipt.ledger.documents


@dataclass(frozen=True, kw_only=True, eq=False)
class ArtifactSpec:
    """One artifact of a dataset.

    Attributes:
        declaration: The dataset.
        name: The asset's name, and the artifact's unless `artifact` says otherwise.
        split: The split, for an artifact of one.
        description: First paragraph of the asset's page in the UI.
        kinds: Dagster's kinds, shown as badges.
        inputs: What it is made of; the arrows of the graph.
        step: In which run `dataprep run` makes it.
        build: Makes what the request names, or reuses it where it is current; yields each outcome as it is known.
        recipes: How each of these partitions (one None for an unpartitioned artifact) is to be made now. Called only
            when the inputs are there.
        proofs: Its asset checks; of a sensitive dataset `closed_files` adds one.
        partitions: None for an unpartitioned artifact.
        plans: Dynamic partitions that it fixes: they are registered when it is built.
        pool: Dagster's concurrency pool.
        metadata: What a person sees of a finished one beside counts and location.
        version: Version of the step that makes it, as its recipes have it; another one may give other bytes.
        rows: How many rows a finished one has; None where it has none to count.
        columns: Name → type of each column of its rows, in the words of its format; empty where rows have no columns.
        artifact: Name and partition on disk where they do not follow from `name`, `split` and the partition.
        verification: How thoroughly a finished one is read before it is believed; default: as the dataset declares.
        kept: False for an artifact without files, which is what its build reports of others.
        foresee: As `build`, into a scratch store, for `status`: what it yields without an error is there for what is
            downstream to be compared with. For artifacts that are cheap to make; fetches nothing. It may also let
            stand what is there, and yield that.
        reads: What building each of these partitions reads of the source; for those that read it.
        published_to: Where a finished one was published to, for trainers; for those that are.
        names_places: For an artifact whose bytes or key name a place, such as the folder that a trainer reads: the
            sources of its recipe that are digests of places. A lock compares the rest of its recipe, not its bytes.
        adopt: Commits the plan in which the given partitions have the given source files, if that has the given key; of
            a plan that depends on those before it, which a fresh machine does not have.
        listed: Names of the source files as they are now, of an artifact whose recipe has but a digest of them.
        records_source: It records what the source is now; whatever fails on its source may have it made anew first
            (`orchestration.anew`).
        places: Opens it to say where documents lie in it; None where it holds none.
        watch: How the source of the dataset is asked for changes, of the artifact that reads or lists it.
    """

    declaration: DatasetDeclaration
    name: str
    description: str
    kinds: frozenset[str] | set[str]
    step: RunStep
    build: Callable[[BuildRequest], Iterable[Outcome]]
    recipes: Callable[[ArtifactStore, Sequence[str | None]], Iterable[Recipe]]
    split: str | None = None
    inputs: tuple["ArtifactSpec | OtherDataset", ...] = ()
    proofs: Proofs | None = None
    partitions: Partitions | None = None
    plans: tuple[Partitions, ...] = ()
    pool: Literal["network", "cpu"] | None = None
    metadata: Callable[[ArtifactStore, Receipt], Mapping[str, Shown]] = no_metadata
    version: int = 1
    rows: Callable[[Receipt], int | None] = documents_of
    columns: Mapping[str, str] = field(default_factory=dict)
    artifact: Callable[[ArtifactStore], Artifact] | None = None
    verification: Verification | None = None
    kept: bool = True
    foresee: Callable[[BuildRequest], Iterable[Outcome]] | None = None
    reads: Callable[[ArtifactStore, Sequence[str]], Iterable[Reading]] | None = None
    published_to: Callable[[Receipt], str] | None = None
    names_places: frozenset[str] | None = None
    adopt: Callable[[ArtifactStore, Mapping[str, Sequence[str]], str], None] | None = None
    listed: Callable[[], Iterable[str]] | None = None
    places: OpenPlaces | None = None
    records_source: bool = False
    watch: SourceWatch | None = None

    def __post_init__(self) -> None:
        # here, because no artifact of a sensitive dataset may be without it
        if self.declaration.sensitive and self.kept:
            object.__setattr__(self, "proofs", self._with_closed_files())

    def _with_closed_files(self) -> Proofs:
        """Its proofs, and the one that nobody but the owner may read what is on this machine."""
        others = self.proofs.proofs if self.proofs is not None else ()
        if any(proof.name == CLOSED_TO_OTHERS for proof in others):
            assert self.proofs is not None
            return self.proofs
        return Proofs(
            proofs=(*others, Proof(CLOSED_TO_OTHERS, CLOSED_DESCRIPTION)),
            examine=partial(self._examine, self.proofs.examine if self.proofs is not None else None),
        )

    def _examine(
        self, others: Examine | None, store: ArtifactStore, partitions: Sequence[str]
    ) -> Iterator[tuple[str, Finding]]:
        # all of the dataset beside an unpartitioned artifact: staging, spools and verdicts of every other one
        examined = [self.located(store, partition) for partition in partitions]
        places = places_of(store, self.declaration.dataset, examined)
        yield CLOSED_TO_OTHERS, closed_to_others(places, os.environ.get("DAGSTER_HOME"))
        if others is not None:
            yield from others(store, partitions)

    @property
    def path(self) -> tuple[str, ...]:
        """The parts of the asset's key."""
        return asset_path(self.declaration.dataset, self.name, self.split)

    @property
    def noun(self) -> str:
        """What a person calls one partition of it."""
        return self.partitions.noun if self.partitions is not None else "artifact"

    def slots(self, store: ArtifactStore) -> Sequence[str | None]:
        """The partitions it should have now, or one None; MissingArtifactError before they are planned."""
        return [None] if self.partitions is None else self.partitions.keys(store)

    def located(self, store: ArtifactStore, partition: str | None = None) -> Artifact:
        """The artifact of one of its slots."""
        if self.artifact is not None:
            return self.artifact(store)
        return self.declaration.artifact(self.name, partition or self.split)

    def artifacts(self, store: ArtifactStore) -> list[Artifact]:
        """The artifacts of all its slots."""
        return [self.located(store, slot) for slot in self.slots(store)] if self.kept else []
