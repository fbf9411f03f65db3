"""The specification of an artifact, its asset path, and the watch of its source.

A dataset's Dagster assets, checks and job (`orchestration`), its build order (`build.iterate_builds`), its stale
artifacts (`status`) and its obsolete artifacts are all derived from its list of specs. A layer's `dataset.py` builds
the list. Each spec is written next to the build function that it names. This module does not import Dagster.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from dataprep_assets.engine.artifact.losses import Loss, return_no_losses
from dataprep_assets.engine.artifact.metadata_values import ShownValue
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.checks.check import Check, Finding, Row, fail_on_errors
from dataprep_assets.engine.checks.verdicts import CheckGroup, PartitionChecks, WholeArtifactChecks
from dataprep_assets.engine.trace.place import OpenPlaces
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.errors import ConfigError, SourceError, count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.execution.progress import Progress
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt, Verification
from dataprep_assets.stores.files import OTHERS, digest_value, is_in_closed_folder, list_open_to_others

# A source watch detects whether a source changed since it was planned. Automation polls it regularly.
#
# Polling is cheap, because it lists the source or requests its commit, but reads, downloads and writes no files. A
# listing is compared with the current plan only if it differs from the last poll. The difference is then described in
# words.
#
# Entry points: `SourceWatch`, which a layer puts into the spec that reads the source, and `poll_source`.

EDITED = "files were edited in place, with the same names and sizes"


@dataclass(frozen=True, kw_only=True)
class SourceIdentity:
    """Two digests of a source's current listing. If neither digest changed, the source did not change.

    Attributes:
        listing: Digest of the facts that the plan also records: names, sizes, versions, commits.
        stamps: Digest of the modification times of local files, which the plan does not record. It is needed because
            local files have no version until they are read. Empty if there are no local files.
    """

    listing: str
    stamps: str = ""

    def __str__(self) -> str:
        """Return the identity as text, for cursors and tags."""
        return f"{self.listing[:32]}.{self.stamps[:32]}"


@dataclass(frozen=True, kw_only=True)
class SourceWatch:
    """Functions that detect changes to a source. Both raise DataprepError if the source cannot be listed.

    Attributes:
        identity: Returns the source's current identity.
        changes: Describes the differences between the source and the plan in the store, without file names; returns ""
            if there are none.
    """

    identity: Callable[[ArtifactStore], SourceIdentity]
    changes: Callable[[ArtifactStore], str]


@dataclass(frozen=True, kw_only=True)
class PollResult:
    """Result of a poll: the source's current `identity`, and a description of its changes ("" if there are none)."""

    identity: str
    change: str = ""


def poll_source(watch: SourceWatch, store: ArtifactStore, last_identity: str | None) -> PollResult:
    """Poll a source; return its current identity, and a description of its changes.

    Args:
        watch: The functions that list the source.
        store: Where the plan is stored.
        last_identity: The identity at the last poll that found no change or started a run; None at the first poll.
    """
    identity = watch.identity(store)
    now = str(identity)
    if now == last_identity:
        return PollResult(identity=now)
    change = watch.changes(store)
    # If only the digest of the modification times changed, report an edit in place. The comparison with the plan does
    # not find such an edit, because a plan has no modification times.
    if not change and last_identity is not None and last_identity.partition(".")[0] == now.partition(".")[0]:
        change = EDITED
    return PollResult(identity=now, change=change)


def identify_listing(listing: Iterable[object], stamps: Iterable[object] = ()) -> SourceIdentity:
    """Return the identity of a listing, independent of its order. Entries are JSON values."""
    # Sort by `repr`, because Python cannot compare some entries, such as None and a string.
    stamped = sorted(stamps, key=repr)
    return SourceIdentity(
        listing=digest_value(sorted(listing, key=repr)), stamps=digest_value(stamped) if stamped else ""
    )


def read_modification_time(path: Path, label: str) -> int:
    """Return the modification time of a local file, in nanoseconds.

    Raises SourceError with `label` if the file no longer exists or cannot be read.
    """
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError as error:
        raise SourceError(f"{label}: removed while the source was being listed. Run the command again") from error
    except OSError as error:
        raise SourceError(f"{label}: cannot be read: {error.strerror or error}") from error


def join_counts(counts: Iterable[tuple[int, str, str]]) -> str:
    """Join (count, noun, verb) to `1 file added, 2 shards new`, leaving out zero counts.

    The nouns are parts of a source, such as files; they never count documents or people.
    """
    return ", ".join(f"{count_of(count, noun)} {verb}" for count, noun, verb in counts if count)


# In a sensitive dataset, every artifact with files has the check that only the owner can read these files on this
# machine.
#
# `ArtifactSpec` adds this check automatically. The verdicts of this check are never cached, because file modes may
# change at any time.

_PrivateFolders = tuple[Iterable[Path], str | None]
"""Folders that must be private, and DAGSTER_HOME if it is set."""
_RUN_ENTRIES = ("storage", "history", "runs", "event_logs", "schedules")
"""Entries that show that DAGSTER_HOME contains runs; a folder with only settings need not be private."""


def list_folders(store: ArtifactStore, dataset: str, artifacts: Iterable[Artifact] = ()) -> list[Path]:
    """Return the local folders with these artifacts or copies of them; by default, the folders of the whole dataset."""
    from dataprep_assets.integrity.verified_copies import FETCHED

    names = [str(artifact) for artifact in artifacts] or [dataset]
    return [folder for name in names for folder in (store.root / name, store.root / FETCHED / name) if folder.exists()]


def build_permission_checks(
    dataset: str, locate_artifact: Callable[[ArtifactStore, str | None], Artifact]
) -> WholeArtifactChecks[_PrivateFolders]:
    """Return the permission check of an artifact of a sensitive dataset.

    Args:
        dataset: The dataset's name.
        locate_artifact: Returns the artifact of a partition. If there are no partitions, the check covers the whole
            dataset: staging, spools and verdicts of every other artifact.
    """

    def open(store: ArtifactStore, partitions: Sequence[str]) -> _PrivateFolders:
        return list_folders(store, dataset, [locate_artifact(store, slot) for slot in partitions]), os.environ.get(
            "DAGSTER_HOME"
        )

    return WholeArtifactChecks(checks=(PERMISSIONS_PRIVATE,), open=open)


@fail_on_errors
def permissions_private(folders: Iterable[Path], home: str | None = None) -> Finding:
    """Fail if other users can read a file in the `folders` or open Dagster's folder.

    Args:
        folders: Folders of the dataset. The finding does not name files in them.
        home: The folder DAGSTER_HOME, if it is set.
    """
    folder_count, rows = 0, list[Row]()
    for folder in folders:
        folder_count += 1
        modes = [mode for _, mode in list_open_to_others(folder)]
        if modes:
            rows.append(
                {
                    "folder": str(folder),
                    "open_paths": len(modes),
                    "permissions": f"{max(m & OTHERS for m in modes):04o}",
                }
            )
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
    suffix = f", and {count_of(len(rows) - 1, 'other folder')}" if len(rows) > 1 else ""
    return Finding(
        passed=False,
        summary=f"The dataset is sensitive, but other users can read the contents of {example}{suffix}. Run "
        f"{'; '.join(_describe_remedy(row) for row in rows)}.",
        facts={"open_folders": len(rows)},
        table=tuple(rows),
    )


def _open_home(home: str | None) -> Iterator[Row]:
    """Yield a row for Dagster's folder if it contains runs and other users can open it."""
    folder = Path(home) if home else None
    if folder is None or not any((folder / name).exists() for name in _RUN_ENTRIES) or is_in_closed_folder(folder):
        return
    yield {"folder": str(folder), "open_paths": 1, "permissions": f"{folder.stat().st_mode & OTHERS:04o}"}


def _describe_remedy(row: Row) -> str:
    # Omit `-R` for Dagster's folder, because only the folder itself is checked, and its mode protects its contents.
    recursive = "" if row["folder"] == os.environ.get("DAGSTER_HOME") else "-R "
    return f"chmod {recursive}go-rwx {row['folder']}"


PERMISSIONS_PRIVATE: Check[_PrivateFolders] = Check(
    "permissions_private",
    "The dataset's local folders have mode 0700, and its files 0600 (0400 if read-only). Dagster's own "
    "folder is private.",
    lambda closed: permissions_private(*closed),
)


# An artifact's asset has the path `<dataset>/<artifact>`, or `<dataset>/<artifact>_<split>` if it belongs to one split.
#
# The split is in the last part, because Dagster's graph shows only the last part. A code location that reads another
# location's asset knows only the asset's path, so the artifact must be derivable from the path.
#
# Entry points: `build_asset_path`, `parse_asset_path`.

AssetPath = tuple[str, ...]
"""Parts of an asset's key."""

OF_SPLITS = ("snapshot", "tags", "signatures", "selection", "token_bins", "documents", "combined_bins")
"""Artifacts that exist once per split. No other artifact's name begins with one of these names and `_`."""


def build_asset_path(dataset: str, name: str, split: str | None = None) -> tuple[str, str]:
    """Return the path of an artifact's asset; raise ValueError if `parse_asset_path` would not return this name."""
    asset = name if split is None else f"{name}_{split}"
    if _split_name(asset) != (name, split):
        raise ValueError(
            f"{asset}: only {', '.join(OF_SPLITS)} exist per split, so no other name may begin with one of these names"
        )
    return dataset, asset


def parse_asset_path(path: Sequence[str], partition: str | None) -> Artifact:
    """Return the artifact of an asset, or the artifact of one of its partitions.

    Raises ConfigError if the path does not belong to an asset of this project.
    """
    if len(path) != 2:
        raise ConfigError(f"{'/'.join(path)}: not an asset of this project. Must be <dataset>/<artifact>[_<split>]")
    dataset, asset = path
    name, split = _split_name(asset)
    return Artifact(dataset=dataset, name=name, partition=partition or split)


def _split_name(last: str) -> tuple[str, str | None]:
    """Split the last part of a path into name and split."""
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
        dynamic: Name of Dagster's dynamic partitions, which the planning artifact registers; None if the declaration
            fixes the keys.
        noun: The noun for one partition.
        ranges: Splits the partitions into ranges. For each range in turn, every artifact with these partitions is
            built. By default, there is one range with all partitions.
        fixed_keys: The keys, if the declaration fixes them.
    """

    keys: Callable[[ArtifactStore], Sequence[str]]
    dynamic: str | None = None
    noun: str = "shard"
    ranges: Callable[[ArtifactStore], Sequence[Sequence[str]]] | None = None
    fixed_keys: Sequence[str] = ()

    @classmethod
    def from_keys(cls, keys: Sequence[str], noun: str) -> "Partitions":
        """Return partitions that the declaration fixes."""
        return cls(keys=lambda _: keys, noun=noun, fixed_keys=keys)

    def cut_ranges(self, store: ArtifactStore) -> Sequence[Sequence[str]]:
        """Return the ranges that are built one after the other."""
        return [self.keys(store)] if self.ranges is None else self.ranges(store)


@dataclass(frozen=True, kw_only=True)
class DatasetInput:
    """An artifact of another dataset, as an input.

    Attributes:
        dataset: Name of the other dataset.
        name: Name of the artifact.
        split: The split, if the artifact exists once per split.
        keys: Keys of the declaration in which the dataset is named.
        advice: Remedy to show if the other dataset never has this artifact.
    """

    dataset: str
    name: str
    split: str | None = None
    # Exclude the keys from comparison, because they do not affect which artifact the input is.
    keys: tuple[str, ...] = field(default=("sources",), compare=False)
    advice: str = field(default="", compare=False)

    @property
    def path(self) -> AssetPath:
        """The parts of the asset's key."""
        return build_asset_path(self.dataset, self.name, self.split)


@dataclass(frozen=True, kw_only=True)
class AssetInput:
    """An asset outside of this project's datasets, as an input. Its files are read as the source."""

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
    """Parameters of a build.

    Attributes:
        store: Where the dataset's artifacts are stored.
        partitions: The partitions to build; empty for an unpartitioned artifact.
        workers: Number of worker processes or threads.
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
    """Amount of source data that building one partition reads.

    Attributes:
        source_bytes: Bytes of the source, as stored.
        density: Density of the source (`planning.cost`).
        fetch_bytes: Bytes that must be downloaded first.
        tokenized: Whether the source is tokenized.
    """

    source_bytes: int
    density: float
    fetch_bytes: int = 0
    tokenized: bool = False


def return_no_metadata(store: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    """Return no metadata: the default of `ArtifactSpec.metadata`, for an artifact without metadata of its own."""
    return {}


def count_documents(receipt: Receipt) -> int | None:
    """Return the number of rows of an artifact whose rows are its ledger's documents; None if it has no ledger."""
    return None if receipt.ledger is None else receipt.ledger.documents


FindRetracted = Callable[[ArtifactStore, Iterable[Artifact]], Iterable[Artifact]]
"""Returns a dataset's unplanned artifacts that contain, or may contain, data on its retraction list.

It does not iterate over the artifacts if nothing is retracted.
"""


# Specs are compared by identity, because they are keys of dictionaries and some of their fields cannot be hashed.
# Therefore `Dataset.specs` returns the same objects at every call.
@dataclass(frozen=True, kw_only=True, eq=False)
class ArtifactSpec:
    """One artifact of a dataset.

    Attributes:
        declaration: The dataset's declaration.
        name: The asset's name, and the artifact's name unless `artifact` overrides it.
        split: The split, if the artifact belongs to one.
        description: First paragraph of the asset's page in the UI.
        kinds: Dagster's kinds, shown as badges.
        inputs: Its direct inputs; the edges of the graph.
        build: Builds the requested partitions, or reuses them if they are current; yields each outcome as it is known.
        recipes: Returns the current recipe of each of the given partitions (None for an unpartitioned artifact). Called
            only if the inputs exist.
        check_groups: Its asset checks, grouped by the subject that they share.
        partitions: Its partitions; None for an unpartitioned artifact.
        plans: The dynamic partitions that it plans. They are registered when it is built.
        pool: Dagster's concurrency pool.
        metadata: Metadata of a finished artifact for the UI, in addition to counts and location.
        version: Version of the step that builds it, as in its recipes. Different versions may write different bytes.
        rows: Returns the number of rows of a finished artifact; None if it has no rows to count.
        losses: Returns the losses of its finished partitions, compared with their inputs (`losses`).
        columns: Name → type of each column of its rows, in the terms of its format; empty if rows have no columns.
        column_descriptions: Name → a sentence about each column; may contain more names.
        artifact: Returns the name and partition on disk, if they do not follow from `name`, `split` and the partition.
        verification: How thoroughly a finished artifact is verified before it is reused. Default: the declared level.
        kept: False for an artifact without files, whose build only reports on other artifacts.
        foresee: Builds into a scratch store, for `status`, which compares downstream artifacts with the outcomes that
            have no error. Only for artifacts that are cheap to build; it downloads nothing. It may also yield the
            existing artifact unchanged.
        reads: Returns the amount of source data that building each of the given partitions reads; for artifacts that
            read the source.
        published_to: Returns the location to which a finished artifact was published for trainers; None if this kind
            of artifact is never published.
        names_places: Names of the recipe's sources that are digests of locations, such as the folder that a trainer
            reads. For an artifact whose bytes or key depend on a location. A lock compares the rest of its recipe, not
            its bytes.
        adopt: Commits a plan in which the given partitions have the given source files, if it has the given key. For a
            plan that depends on earlier plans, which a fresh machine does not have.
        listed: Returns the names of the current source files, for an artifact whose recipe has only their digest.
        records_source: Whether it records the current state of the source. A step that fails because of its source may
            have it rebuilt first (`runs.step_build`).
        places: Opens the artifact to find the positions of documents in it; None if it contains no documents.
        watch: Polls the dataset's source for changes; for the artifact that reads or lists the source.
        find_retracted: Finds obsolete artifacts with retracted data; for the artifact that reads or lists the source.
        sensitive_input: Why and how it must not be built if the dataset reads a sensitive one, whose name replaces
            `{name}`. It begins with the YAML key that declares the artifact. "" if it may be built.
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
    metadata: Callable[[ArtifactStore, Receipt], Mapping[str, ShownValue]] = return_no_metadata
    version: int = 1
    rows: Callable[[Receipt], int | None] = count_documents
    losses: Callable[[ArtifactStore, Sequence[Receipt]], Iterable[Loss]] = return_no_losses
    columns: Mapping[str, str] = field(default_factory=dict)
    column_descriptions: Mapping[str, str] = field(default_factory=dict)
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
    find_retracted: FindRetracted | None = None
    sensitive_input: str = ""

    @cached_property
    def _groups(self) -> tuple[CheckGroup, ...]:
        # Add the permission check here, so that no spec of a sensitive dataset lacks it. Only artifacts with files need
        # it.
        is_closed = self.declaration.sensitive and self.kept
        return (
            *([build_permission_checks(self.declaration.dataset, self.locate_artifact)] if is_closed else []),
            *self.check_groups,
        )

    @cached_property
    def checks(self) -> tuple[Check[Any], ...]:
        """Its asset checks. In a sensitive dataset, they include the check that only the owner can read its files."""
        return tuple(check for group in self._groups for check in group.checks)

    @cached_property
    def partition_checks(self) -> frozenset[str]:
        """Names of the checks that judge each partition separately."""
        groups = (group for group in self._groups if isinstance(group, PartitionChecks))
        return frozenset(check.name for group in groups for check in group.checks)

    def examine(self, store: ArtifactStore, partitions: Sequence[str]) -> Iterator[tuple[str, Finding]]:
        """Examine the given partitions (empty if unpartitioned); yield the name and finding of each check."""
        for group in self._groups:
            yield from group.examine(self, store, partitions)

    @property
    def documents(self) -> Callable[[Receipt], int] | None:
        """Function that counts a receipt's documents; None if no check rebuilds a sample of them."""
        groups = (group for group in self.check_groups if isinstance(group, PartitionChecks))
        return next((group.documents for group in groups if group.documents is not None), None)

    @property
    def path(self) -> AssetPath:
        """The parts of the asset's key."""
        return build_asset_path(self.declaration.dataset, self.name, self.split)

    @property
    def noun(self) -> str:
        """The noun for one of its partitions."""
        return self.partitions.noun if self.partitions is not None else "artifact"

    def blocks(self, check: str) -> bool | None:
        """Return whether the check with this name blocks downstream artifacts; None if there is no such check."""
        return next((candidate.blocking for candidate in self.checks if candidate.name == check), None)

    def slots(self, store: ArtifactStore) -> Sequence[str | None]:
        """Return its planned partitions, or [None] if unpartitioned; raise MissingArtifactError if not planned yet."""
        return [None] if self.partitions is None else self.partitions.keys(store)

    def locate_artifact(self, store: ArtifactStore, partition: str | None = None) -> Artifact:
        """Return the artifact of one of its slots."""
        if self.artifact is not None:
            return self.artifact(store)
        return self.declaration.artifact(self.name, partition or self.split)

    def artifacts(self, store: ArtifactStore) -> list[Artifact]:
        """Return the artifacts of all its slots."""
        return [self.locate_artifact(store, slot) for slot in self.slots(store)] if self.kept else []
