"""The specification of an artifact: everything about it that more than one place needs, said once.

A dataset's Dagster assets, checks and job (`orchestration`), the order in which it is made (`order`), its stale
artifacts (`status`) and what is swept all follow from its list of specs. A wing's `dataset.py` makes the list; each
spec is written beside the build function that it names. Nothing here imports Dagster.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from dataprep_assets.engine.artifact.asset_path import AssetPath, asset_path
from dataprep_assets.engine.artifact.losses import Loss, no_losses
from dataprep_assets.engine.artifact.metadata_values import Shown
from dataprep_assets.engine.artifact.private_files import closed_files
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.checks.check import Check
from dataprep_assets.engine.checks.finding import Finding
from dataprep_assets.engine.checks.groups import CheckGroup, PartitionChecks
from dataprep_assets.engine.staleness.source_watch import SourceWatch
from dataprep_assets.engine.trace.place import OpenPlaces
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.execution.progress import Progress
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt, Verification


@dataclass(frozen=True, kw_only=True, eq=False)
class Partitions:
    """The partitions of one or more artifacts. Artifacts that share this object have the same partitions.

    Attributes:
        keys: Returns the partition keys in order, from the plan in the store; raises MissingArtifactError if there is
            no plan yet.
        dynamic: Name of Dagster's dynamic partitions, which the artifact that plans them registers; None if the
            declaration fixes the keys.
        noun: The noun for one partition.
        ranges: Cuts the partitions into the ranges that are made one after the other, each with every artifact that has
            these partitions; by default an artifact is made of all of them before the next one is.
        fixed_keys: The keys, if the declaration fixes them.
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

    def cut_ranges(self, store: ArtifactStore) -> Sequence[Sequence[str]]:
        """The ranges that are made one after the other."""
        return [self.keys(store)] if self.ranges is None else self.ranges(store)


@dataclass(frozen=True, kw_only=True)
class DatasetInput:
    """An artifact of another dataset, as an input; `split` if it is one of those that exist once for each split.

    `keys` are where the declaration names the dataset, `advice` is what a person is told whose dataset never has it.
    """

    dataset: str
    name: str
    split: str | None = None
    # not compared: an artifact is one input, wherever in the declaration its dataset is named
    keys: tuple[str, ...] = field(default=("sources",), compare=False)
    advice: str = field(default="", compare=False)

    @property
    def path(self) -> AssetPath:
        """The parts of the asset's key."""
        return asset_path(self.dataset, self.name, self.split)


@dataclass(frozen=True, kw_only=True)
class AssetInput:
    """An asset that is no artifact of a dataset, as an input: its files are the source."""

    key: tuple[str, ...]

    @property
    def name(self) -> str:
        """The last part of its key."""
        return self.key[-1]

    @property
    def path(self) -> AssetPath:
        """The parts of the asset's key."""
        return self.key


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """What a build is asked to do.

    Attributes:
        store: Where the dataset's artifacts are.
        partitions: Which partitions to build; empty for an unpartitioned artifact.
        workers: Worker processes, or threads, to use.
        progress: Counts and shows the work done.
        warn: Called with a message that does not fail the build.
    """

    store: ArtifactStore
    partitions: Sequence[str] = ()
    workers: int = 1
    progress: Progress = field(default_factory=Progress)
    warn: Callable[[str], None] = field(default=lambda _: None)


@dataclass(frozen=True, kw_only=True)
class ReadCost:
    """What building one partition reads: the bytes of its source as stored, their density (`planning.cost`), how many
    of them have to be fetched first, and whether they are tokenized."""

    source_bytes: int
    density: float
    fetch_bytes: int = 0
    tokenized: bool = False


def no_metadata(store: ArtifactStore, receipt: Receipt) -> Mapping[str, Shown]:
    """The default of `ArtifactSpec.metadata`: nothing beyond what every artifact has."""
    return {}


def documents_of(receipt: Receipt) -> int | None:
    """The rows of an artifact whose rows are the documents of its ledger; None without one."""
    return None if receipt.ledger is None else receipt.ledger.documents


# Compared by identity, because specs are keys of dictionaries and some fields cannot be hashed: so a dataset returns
# the same objects whenever it is asked.
@dataclass(frozen=True, kw_only=True, eq=False)
class ArtifactSpec:
    """One artifact of a dataset.

    Attributes:
        declaration: The dataset's declaration.
        name: The asset's name, and the artifact's unless `artifact` says otherwise.
        split: The split, if the artifact belongs to one.
        description: First paragraph of the asset's page in the UI.
        kinds: Dagster's kinds, shown as badges.
        inputs: What it is made of; the arrows of the graph.
        build: Makes what the request names, or reuses it if it is current; yields each outcome as it is known.
        recipes: Returns the present recipe of each of the given partitions (None for an unpartitioned artifact). Called
            only when the inputs are there.
        check_groups: Its asset checks, by the subject that they share.
        partitions: Its partitions; None for an unpartitioned artifact.
        plans: Dynamic partitions that it plans: they are registered when it is built.
        pool: Dagster's concurrency pool.
        metadata: Metadata of a finished artifact for the UI, in addition to counts and location.
        version: Version of the step that makes it, as in its recipes; another version may give other bytes.
        rows: Returns the number of rows of a finished artifact; None if it has no rows to count.
        losses: Returns what its finished partitions do not have of what they are made of (`losses`).
        columns: Name → type of each column of its rows, in the terms of its format; empty if rows have no columns.
        artifact: Name and partition on disk, if they do not follow from `name`, `split` and the partition.
        verification: How thoroughly a finished artifact is verified before it is reused; default: as declared.
        kept: False for an artifact without files, whose build only reports on others.
        foresee: As `build`, but into a scratch store, for `status`: downstream artifacts are compared with what it
            yields without an error. For artifacts that are cheap to make; fetches nothing. It may also yield the
            artifact that is there, unchanged.
        reads: What building each of the given partitions reads of the source; for artifacts that read it.
        published_to: Where a finished artifact was published for trainers; for artifacts that are published.
        names_places: For an artifact whose bytes or key contain a place, such as the folder that a trainer reads: the
            sources of its recipe that are digests of places. A lock compares the rest of its recipe, not its bytes.
        adopt: Commits a plan in which the given partitions have the given source files, if it has the given key. For a
            plan that depends on earlier plans, which a fresh machine does not have.
        listed: Names of the present source files, for an artifact whose recipe has only a digest of them.
        records_source: Whether it records the present state of the source. A step that fails on its source may have it
            built again first (`runs.step_build`).
        places: Opens the artifact to say where documents are in it; None if it holds no documents.
        watch: How the dataset's source is asked for changes; for the artifact that reads or lists the source.
    """

    declaration: DatasetDeclaration
    name: str
    description: str
    kinds: frozenset[str] | set[str]
    build: Callable[[BuildRequest], Iterable[Outcome]]
    recipes: Callable[[ArtifactStore, Sequence[str | None]], Iterable[Recipe]]
    split: str | None = None
    inputs: tuple["ArtifactSpec | DatasetInput | AssetInput", ...] = ()
    check_groups: tuple[CheckGroup, ...] = ()
    partitions: Partitions | None = None
    plans: tuple[Partitions, ...] = ()
    pool: Literal["network", "cpu"] | None = None
    metadata: Callable[[ArtifactStore, Receipt], Mapping[str, Shown]] = no_metadata
    version: int = 1
    rows: Callable[[Receipt], int | None] = documents_of
    losses: Callable[[ArtifactStore, Sequence[Receipt]], Iterable[Loss]] = no_losses
    columns: Mapping[str, str] = field(default_factory=dict)
    artifact: Callable[[ArtifactStore], Artifact] | None = None
    verification: Verification | None = None
    kept: bool = True
    foresee: Callable[[BuildRequest], Iterable[Outcome]] | None = None
    reads: Callable[[ArtifactStore, Sequence[str]], Iterable[ReadCost]] | None = None
    published_to: Callable[[Receipt], str] | None = None
    names_places: frozenset[str] | None = None
    adopt: Callable[[ArtifactStore, Mapping[str, Sequence[str]], str], None] | None = None
    listed: Callable[[], Iterable[str]] | None = None
    places: OpenPlaces | None = None
    records_source: bool = False
    watch: SourceWatch | None = None

    @cached_property
    def _groups(self) -> tuple[CheckGroup, ...]:
        # added here, because no artifact of a sensitive dataset may be without it
        closed = self.declaration.sensitive and self.kept
        return (*([closed_files(self.declaration.dataset, self.located)] if closed else []), *self.check_groups)

    @cached_property
    def checks(self) -> tuple[Check[Any], ...]:
        """Its asset checks. A sensitive dataset has one more: only the owner can read its files."""
        return tuple(check for group in self._groups for check in group.checks)

    @cached_property
    def partition_checks(self) -> frozenset[str]:
        """The names of those checks that judge each partition by itself."""
        groups = (group for group in self._groups if isinstance(group, PartitionChecks))
        return frozenset(check.name for group in groups for check in group.checks)

    def examine(self, store: ArtifactStore, partitions: Sequence[str]) -> Iterator[tuple[str, Finding]]:
        """Examine the given partitions (none: unpartitioned) in a store; yields name and finding of each check."""
        for group in self._groups:
            yield from group.examine(self, store, partitions)

    @property
    def documents(self) -> Callable[[Receipt], int] | None:
        """Counts, from a receipt, the documents of which checks that sample make some again; None if none do."""
        groups = (group for group in self.check_groups if isinstance(group, PartitionChecks))
        return next((group.documents for group in groups if group.documents is not None), None)

    @property
    def path(self) -> AssetPath:
        """The parts of the asset's key."""
        return asset_path(self.declaration.dataset, self.name, self.split)

    @property
    def noun(self) -> str:
        """The noun for one of its partitions."""
        return self.partitions.noun if self.partitions is not None else "artifact"

    def blocks(self, check: str) -> bool | None:
        """Whether its check of this name blocks what is made of it; None if it has no such check."""
        return next((one.blocking for one in self.checks if one.name == check), None)

    def slots(self, store: ArtifactStore) -> Sequence[str | None]:
        """The partitions that it should have, or one None; raises MissingArtifactError if they are not planned yet."""
        return [None] if self.partitions is None else self.partitions.keys(store)

    def located(self, store: ArtifactStore, partition: str | None = None) -> Artifact:
        """The artifact of one of its slots."""
        if self.artifact is not None:
            return self.artifact(store)
        return self.declaration.artifact(self.name, partition or self.split)

    def artifacts(self, store: ArtifactStore) -> list[Artifact]:
        """The artifacts of all its slots."""
        return [self.located(store, slot) for slot in self.slots(store)] if self.kept else []
