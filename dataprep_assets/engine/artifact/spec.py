"""The specification of an artifact: what more than one place needs of it, its asset path, and its source watch.

A dataset's Dagster assets, checks and job (`orchestration`), the order in which it is made (`build.in_order`), its
stale artifacts (`status`) and what is swept all follow from its list of specs. A wing's `dataset.py` makes the list;
each spec is written beside the build function that it names. Nothing here imports Dagster.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from dataprep_assets.engine.artifact.losses import Loss, no_losses
from dataprep_assets.engine.artifact.metadata_values import Shown
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.checks.check import Check, Finding, Row, judged
from dataprep_assets.engine.checks.verdicts import CheckGroup, PartitionChecks, WholeChecks
from dataprep_assets.engine.trace.place import OpenPlaces
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.errors import ConfigError, SourceError, count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.execution.progress import Progress
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt, Verification
from dataprep_assets.integrity.verified_copies import FETCHED
from dataprep_assets.stores.files import OTHERS, digest_value, open_to_others, within_closed_folder

# Whether a source changed since it was planned; automation asks this regularly.
#
# Asking is cheap. A source is listed, or asked for its commit; no file is read, fetched or written. Only if the
# listing differs from the last look is it compared with the present plan, and the difference described in words.
#
# Entry points: `SourceWatch`, which a wing puts into the spec that reads the source, and `look`.

EDITED = "files were edited in place, with the same names and sizes"


@dataclass(frozen=True, kw_only=True)
class SourceIdentity:
    """Two digests of a source's present listing; if both are equal, the source did not change.

    Attributes:
        listing: Digest of what the plan has too: names, sizes, versions, commits.
        stamps: Digest of what the plan does not have: the modification times of local files, which have no version
            until they are read. Empty if there are none.
    """

    listing: str
    stamps: str = ""

    def __str__(self) -> str:
        """The identity as text, for cursors and tags."""
        return f"{self.listing[:32]}.{self.stamps[:32]}"


@dataclass(frozen=True, kw_only=True)
class SourceWatch:
    """How a source is asked for changes. Both functions raise DataprepError if it cannot be listed.

    Attributes:
        identity: Returns the source's present identity.
        changes: Describes how the source differs from the plan in the store, without names of files; "" if it does not.
    """

    identity: Callable[[ArtifactStore], SourceIdentity]
    changes: Callable[[ArtifactStore], str]


@dataclass(frozen=True, kw_only=True)
class PollResult:
    """The result of a look: the source's present `identity`, and a description of the changes; "" if there are none."""

    identity: str
    change: str = ""


def look(watch: SourceWatch, store: ArtifactStore, seen: str | None) -> PollResult:
    """Ask whether the source changed.

    Args:
        watch: How the source is asked.
        store: Where the plan is.
        seen: The identity at the last look that found no change or was followed by a run; None at the first look.
    """
    identity = watch.identity(store)
    now = str(identity)
    if now == seen:
        return PollResult(identity=now)
    change = watch.changes(store)
    # a plan has no modification times: files that were edited in place differ from the last look alone, by their stamps
    if not change and seen is not None and seen.partition(".")[0] == now.partition(".")[0]:
        change = EDITED
    return PollResult(identity=now, change=change)


def identity_of(listing: Iterable[object], stamps: Iterable[object] = ()) -> SourceIdentity:
    """The identity of a listing, independent of its order; entries are JSON values."""
    # by `repr`: entries may hold what Python does not compare, as None beside a text
    stamped = sorted(stamps, key=repr)
    return SourceIdentity(
        listing=digest_value(sorted(listing, key=repr)), stamps=digest_value(stamped) if stamped else ""
    )


def time_of(path: Path, label: str) -> int:
    """Modification time of a local file, in nanoseconds.

    Raises SourceError, naming `label`, if the file is gone.
    """
    try:
        return path.stat().st_mtime_ns
    except OSError as error:
        raise SourceError(f"{label}: {error.strerror or error}: removed while the source was being listed") from error


def in_words(counts: Iterable[tuple[int, str, str]]) -> str:
    """Join (count, noun, what happened) to `1 file added, 2 shards new`, leaving out zero counts.

    The nouns are things of a source, as files, and no documents or people.
    """
    return ", ".join(f"{count_of(count, noun)} {verb}" for count, noun, verb in counts if count)


# The check of every artifact of a sensitive dataset: only the owner can read its files on this machine.
#
# `ArtifactSpec` adds it automatically. It examines current file modes, so its verdicts are never remembered.

_Closed = tuple[Iterable[Path], str | None]
"""Folders that must be private, and DAGSTER_HOME if it is set."""
_HOLDS_RUNS = ("storage", "history", "runs", "event_logs", "schedules")
"""Entries that show that DAGSTER_HOME holds runs; a folder with only settings need not be private."""


def places_of(store: ArtifactStore, dataset: str, artifacts: Iterable[Artifact] = ()) -> list[Path]:
    """The local folders that hold these artifacts or copies of them; by default those of the whole dataset."""
    names = [str(artifact) for artifact in artifacts] or [dataset]
    return [folder for name in names for folder in (store.root / name, store.root / FETCHED / name) if folder.exists()]


def closed_files(dataset: str, located: Callable[[ArtifactStore, str | None], Artifact]) -> WholeChecks[_Closed]:
    """The check of an artifact of a sensitive dataset.

    Args:
        dataset: The dataset's name.
        located: Returns the artifact of a partition. Without partitions, the whole dataset is examined: staging, spools
            and verdicts of every other artifact.
    """

    def open(store: ArtifactStore, partitions: Sequence[str]) -> _Closed:
        return places_of(store, dataset, [located(store, slot) for slot in partitions]), os.environ.get("DAGSTER_HOME")

    return WholeChecks(checks=(PERMISSIONS_PRIVATE,), open=open)


@judged
def permissions_private(places: Iterable[Path], home: str | None = None) -> Finding:
    """Fails if anybody but the owner can read something below the `places`, or open Dagster's folder.

    Args:
        places: Folders of the dataset. The finding names no file in them.
        home: The folder DAGSTER_HOME, if it is set.
    """
    folder_count, rows = 0, list[Row]()
    for folder in places:
        folder_count += 1
        modes = [mode for _, mode in open_to_others(folder)]
        if modes:
            rows.append({"folder": str(folder), "open": len(modes), "widest": f"{max(m & OTHERS for m in modes):04o}"})
    rows += _open_home(home)
    if not rows:
        return Finding(
            passed=True,
            summary="Only the owner can read the files."
            if folder_count
            else "No files of the dataset are on this machine.",
            facts={"folders": folder_count},
        )
    example = rows[0]["folder"]
    suffix = f", and in {count_of(len(rows) - 1, 'other folder')}" if len(rows) > 1 else ""
    return Finding(
        passed=False,
        summary=f"The dataset is sensitive, but other users can read {example} or its contents{suffix}. Run "
        f"{'; '.join(_remedy(row) for row in rows)}.",
        facts={"open_folders": len(rows)},
        table=tuple(rows),
    )


def _open_home(home: str | None) -> Iterator[Row]:
    """A row for Dagster's folder if it holds runs and others can open it."""
    folder = Path(home) if home else None
    if folder is None or not any((folder / name).exists() for name in _HOLDS_RUNS) or within_closed_folder(folder):
        return
    yield {"folder": str(folder), "open": 1, "widest": f"{folder.stat().st_mode & OTHERS:04o}"}


def _remedy(row: Row) -> str:
    # closing Dagster's folder closes what is in it, and only the folder was examined
    recursive = "" if row["folder"] == os.environ.get("DAGSTER_HOME") else "-R "
    return f"chmod {recursive}go-rwx {row['folder']}"


PERMISSIONS_PRIVATE: Check[_Closed] = Check(
    "permissions_private",
    "Local folders of the dataset have mode 0700, its files 0600 (or 0400 if read-only), and Dagster's own folder "
    "is private.",
    lambda closed: permissions_private(*closed),
)


# The path of an artifact's asset: `<dataset>/<artifact>`, or `<dataset>/<artifact>_<split>` of one split.
#
# The split is in the last part, because that is all that Dagster's graph shows of an asset. A code location that
# reads another one's asset knows only its path, so the artifact has to be found from that.
#
# Entry points: `asset_path`, `artifact_at`.

AssetPath = tuple[str, ...]
"""Parts of an asset's key."""

OF_SPLITS = ("snapshot", "tags", "signatures", "selection", "token_bins", "documents", "combined_bins")
"""Artifacts that exist once for each split. No other artifact's name begins with one of these names and `_`."""


def asset_path(dataset: str, name: str, split: str | None = None) -> tuple[str, str]:
    """The path of an artifact's asset; raises ValueError for a name that `artifact_at` would not find again."""
    asset = name if split is None else f"{name}_{split}"
    if _parts(asset) != (name, split):
        raise ValueError(
            f"{asset}: only {', '.join(OF_SPLITS)} exist per split, so no other name may begin with one of these names"
        )
    return dataset, asset


def artifact_at(path: Sequence[str], partition: str | None) -> Artifact:
    """The artifact of an asset, or that of one of its partitions.

    Raises ConfigError if the path is not that of an asset of this project.
    """
    if len(path) != 2:
        raise ConfigError(f"{'/'.join(path)}: not an asset of this project. Must be <dataset>/<artifact>[_<split>]")
    dataset, asset = path
    name, split = _parts(asset)
    return Artifact(dataset=dataset, name=name, partition=partition or split)


def _parts(last: str) -> tuple[str, str | None]:
    """Name and split of the last part of a path."""
    for name in OF_SPLITS:
        if last.startswith(f"{name}_"):
            return name, last.removeprefix(f"{name}_")
    return last, None


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
        is_closed = self.declaration.sensitive and self.kept
        return (*([closed_files(self.declaration.dataset, self.located)] if is_closed else []), *self.check_groups)

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
        return next((candidate.blocking for candidate in self.checks if candidate.name == check), None)

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
