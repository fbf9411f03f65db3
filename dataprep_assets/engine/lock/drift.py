"""Finds differences between a dataset and its lock, for `dataprep run --locked` and `dataprep verify --lock`.

A recipe can be compared before a build, as soon as the artifact's inputs match the lock. Drift of a setting or a source
is therefore reported before the different artifact is built. Contents are compared once the artifact exists.

Entry points: `find_recipe_drift` (before a run), `find_content_drift` (after it), `find_copy_drift` (for a copy).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from dataprep_assets.engine.artifact.spec import ArtifactSpec, Partitions
from dataprep_assets.engine.checks.check import join_first
from dataprep_assets.engine.lock.lock import (
    Lock,
    LockEntry,
    format_lock_name,
    hide_name,
    join_lock_name,
    strip_row_range,
)
from dataprep_assets.errors import DataprepError, IntegrityError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.integrity.verify import VerifiedArtifact, name_by_folder


@dataclass(frozen=True, kw_only=True)
class Drift:
    """An artifact that differs from the lock.

    Attributes:
        name: Its name without the dataset's.
        reason: One sentence.
        is_obsolete: Whether it exists although no run would build it. Such an artifact does not count as a difference.
    """

    name: str
    reason: str
    is_obsolete: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def adopt_plan(specs: Sequence[ArtifactSpec], store: ArtifactStore, lock: Lock) -> None:
    """Commit the lock's plan if the store has no plan and the plan depends on earlier plans that the store never had.

    Nothing is committed if the sources differ from the lock's sources. `find_recipe_drift` then reports the difference.

    Args:
        specs: The specs of the dataset.
        store: Where its artifacts are stored.
        lock: The lock of the same dataset.
    """
    for spec in specs:
        if spec.adopt is None or spec.listed is None or store.intact_receipt(spec.locate_artifact(store)) is not None:
            continue
        plan = lock.artifacts.get(format_lock_name(spec.locate_artifact(store)))
        if plan is None or plan.key is None:
            continue
        # Hash the current file names if the dataset is sensitive, because its lock has digests instead of file names.
        paths = {hide_name(path) if lock.is_hidden else path: path for path in spec.listed()}
        shards = {
            name.partition("/")[2]: [
                paths[strip_row_range(file)] for file in entry.files if strip_row_range(file) in paths
            ]
            for name, entry in lock.artifacts.items()
            if entry.files
        }
        spec.adopt(store, shards, plan.key)


def find_recipe_drift(
    specs: Sequence[ArtifactSpec], store: ArtifactStore, lock: Lock, only: Sequence[ArtifactSpec] | None = None
) -> Iterator[Drift]:
    """Yield, in build order, the artifacts that a run would build differently from the lock, as far as known now.

    Args:
        specs: The specs of the dataset.
        store: Where its artifacts are stored. Local sources are read completely.
        lock: The lock of the same dataset.
        only: Compare only the recipes of these artifacts; None for all.
    """
    present_artifacts = _PresentArtifacts(specs, store, lock)
    if only is None:
        yield from find_undeclared_artifacts(specs, store, lock)
    for spec in specs if only is None else only:
        if not spec.kept or not present_artifacts.is_planned(spec):
            continue
        slots = spec.slots(store)
        ready = []
        for slot in slots:
            if format_lock_name(spec.locate_artifact(store, slot)) not in lock.artifacts:
                yield Drift(
                    name=format_lock_name(spec.locate_artifact(store, slot)), reason="declared, but not in the lock"
                )
            elif present_artifacts.has_inputs(spec, slot):
                ready.append(slot)
        yield from _compare_slots(spec, store, lock, ready)


def _compare_slots(
    spec: ArtifactSpec, store: ArtifactStore, lock: Lock, slots: Sequence[str | None]
) -> Iterator[Drift]:
    """Yield the drift among slots whose inputs match the lock."""
    if not slots:
        return
    try:
        recipes = list(spec.recipes(store, slots))
    # Ignore the error, because the recipe may be unknown until the source is downloaded. The build reports any other
    # error.
    except DataprepError:
        return
    receipts = _read_receipts(store, [recipe.artifact for recipe in recipes])
    for recipe, receipt in zip(recipes, receipts, strict=True):
        if not recipe.key:  # the key is unknown until the planning artifact is built
            continue
        name = format_lock_name(recipe.artifact)
        if receipt is not None and receipt.key == recipe.key:
            # Take the ingredients from the receipt, because some recipes have only a key.
            entry = LockEntry.from_receipt(receipt)
        else:
            entry = LockEntry(key=recipe.key, content=lock.artifacts[name].content).with_ingredients(recipe)
        reason = lock.describe_difference(name, entry)
        if reason is not None:
            yield Drift(name=name, reason=reason + _describe_listed_changes(spec, lock))


def _describe_listed_changes(spec: ArtifactSpec, lock: Lock) -> str:
    """Return the source files that were added or removed since the lock, as text; empty if no files are listed."""
    locked_files = {strip_row_range(file) for entry in lock.artifacts.values() for file in entry.files}
    if spec.listed is None or not locked_files:
        return ""
    listed_files = {hide_name(name) if lock.is_hidden else name for name in spec.listed()}
    changes = {"added": sorted(listed_files - locked_files), "removed": sorted(locked_files - listed_files)}
    texts = [f"{len(names):,} {what}: {join_first(names)}" for what, names in changes.items() if names]
    return f" (files {'; '.join(texts)})" if texts else ""


def find_content_drift(
    specs: Sequence[ArtifactSpec], store: ArtifactStore, lock: Lock, partitions: Sequence[str] = ()
) -> Iterator[Drift]:
    """Yield the artifacts that should be finished but are missing or differ from the lock.

    Args:
        specs: The specs to compare.
        store: Where their artifacts are stored.
        lock: The lock of the same dataset.
        partitions: Compare only these partitions of partitioned artifacts; empty for all planned partitions.
    """
    for spec in specs:
        if not spec.kept:
            continue
        slots = partitions if partitions and spec.partitions is not None else spec.slots(store)
        artifacts = [spec.locate_artifact(store, slot) for slot in slots]
        for artifact, receipt in zip(artifacts, _read_receipts(store, artifacts), strict=True):
            name = format_lock_name(artifact)
            if receipt is None:
                yield Drift(name=name, reason="missing, or its receipt is damaged")
            elif name not in lock.artifacts:
                yield Drift(name=name, reason="not in the lock")
            elif (reason := lock.describe_difference(name, LockEntry.from_receipt(receipt))) is not None:
                yield Drift(name=name, reason=reason)


class _PresentArtifacts:
    """Artifacts of a store that have the lock's content."""

    def __init__(self, specs: Sequence[ArtifactSpec], store: ArtifactStore, lock: Lock) -> None:
        self._store, self._lock = store, lock
        self._planners = {partitions: spec for spec in specs for partitions in spec.plans}
        # Cache the current slots of each spec, because every slot downstream of the spec needs them.
        self._known: dict[ArtifactSpec, frozenset[str | None] | None] = {}

    def is_planned(self, spec: ArtifactSpec) -> bool:
        """Return whether the artifacts of a spec are known: whether their planning artifact matches the lock."""
        if spec.partitions is not None and (planner := self._find_planner(spec.partitions)) is not None:
            return self._is_complete(planner)
        try:
            spec.artifacts(self._store)
        except DataprepError:
            return False
        return True

    def has_inputs(self, spec: ArtifactSpec, slot: str | None) -> bool:
        """Return whether all inputs of a slot are present and match the lock."""
        for source in spec.inputs:
            if not isinstance(source, ArtifactSpec):
                continue
            if source.partitions is not None and source.partitions is spec.partitions:
                if slot not in (self._find_current_slots(source) or ()):
                    return False
            elif not self._is_complete(source):
                return False
        return True

    def _find_planner(self, partitions: Partitions) -> ArtifactSpec | None:
        return self._planners.get(partitions)

    def _is_complete(self, spec: ArtifactSpec) -> bool:
        if not spec.kept:  # an artifact without files depends only on its inputs
            return self.has_inputs(spec, None)
        present_slots = self._find_current_slots(spec)
        return present_slots is not None and len(present_slots) == len(spec.slots(self._store))

    def _find_current_slots(self, spec: ArtifactSpec) -> frozenset[str | None] | None:
        """Return the slots of a spec that are present and match the lock; None if they are not planned."""
        if spec not in self._known:
            self._known[spec] = self._compare(spec) if self.is_planned(spec) else None
        return self._known[spec]

    def _compare(self, spec: ArtifactSpec) -> frozenset[str | None]:
        slots = spec.slots(self._store)
        artifacts = [spec.locate_artifact(self._store, slot) for slot in slots]
        slot_receipts = zip(slots, artifacts, _read_receipts(self._store, artifacts), strict=True)
        return frozenset(
            slot
            for slot, artifact, receipt in slot_receipts
            if receipt is not None
            and format_lock_name(artifact) in self._lock.artifacts
            and self._lock.describe_difference(format_lock_name(artifact), LockEntry.from_receipt(receipt)) is None
        )


def _read_receipts(store: ArtifactStore, artifacts: Sequence[Artifact]) -> list[Receipt | None]:
    """Return the receipts of the artifacts; None for a damaged receipt, because its artifact will be rebuilt."""
    try:
        return store.receipts(artifacts)
    except IntegrityError:
        return [_read_receipt(store, artifact) for artifact in artifacts]


def _read_receipt(store: ArtifactStore, artifact: Artifact) -> Receipt | None:
    try:
        return store.receipt(artifact)
    except IntegrityError:
        return None


def find_undeclared_artifacts(specs: Sequence[ArtifactSpec], store: ArtifactStore, lock: Lock) -> Iterator[Drift]:
    """Yield the artifacts in the lock that no spec builds, compared by name without the partition."""
    makes = set()
    for spec in specs:
        if spec.kept:
            try:
                makes.add(spec.name if spec.artifact is None else spec.locate_artifact(store).name)
            except DataprepError:  # the name of an artifact depends on a plan that does not exist yet
                return
    for name in lock.artifacts:
        if name.partition("/")[0] not in makes:
            yield Drift(name=name, reason="in the lock, but not declared")


def find_copy_drift(lock: Lock, verdicts: Iterable[VerifiedArtifact], select: Sequence[str] = ()) -> Iterator[Drift]:
    """Yield the differences between a copy and the lock: damaged, different, missing and extra artifacts.

    An artifact is identified by its folder, relative to the folder that contains most artifacts of the dataset.

    Args:
        lock: The expected content of the copy.
        verdicts: The verdicts on the copy, including folders without a receipt. Artifacts of other datasets are ignored
            unless they are in the dataset's folder.
        select: Globs of the artifacts that the copy should have; empty for all.
    """
    entries: list[tuple[tuple[str, ...], str, VerifiedArtifact, Receipt]] = []
    stray_artifacts: list[VerifiedArtifact] = []
    for verdict in verdicts:
        if verdict.receipt is not None:
            entries.append((*name_by_folder(verdict.folder, verdict.receipt), verdict, verdict.receipt))
        elif verdict.defects:
            yield Drift(name=verdict.location, reason="; ".join(verdict.defects))
        else:
            stray_artifacts.append(verdict)
    # Take the most frequent parent folder as the dataset's folder, because the location may be this folder, contain it
    # at any depth, or be inside it.
    folder_counts = Counter(
        parent_folder for parent_folder, _, _, receipt in entries if receipt.dataset == lock.dataset
    )
    home = folder_counts.most_common(1)[0][0] if folder_counts else None
    own_files = {
        name: own_receipt
        for parent_folder, name, _, own_receipt in entries
        if parent_folder == home and own_receipt.dataset == lock.dataset
    }
    obsolete = Lock.from_receipts(lock.dataset, own_files).obsolete
    for parent_folder, name, verdict, receipt in entries:
        is_own, is_home = receipt.dataset == lock.dataset, parent_folder == home
        if is_own and not is_home:
            yield Drift(name=name, reason=f"extra: {verdict.location} is in a different folder")
        if is_own and name in lock.artifacts:
            if reasons := [*_find_lock_differences(name, receipt, lock), *verdict.defects]:
                yield Drift(name=name, reason="; ".join(reasons))
        elif is_own and is_home and name in obsolete:
            yield Drift(name=name, reason="obsolete", is_obsolete=True)
        elif is_home:
            yield Drift(
                name=name, reason="extra: not in the lock" + _describe_other_dataset(name, receipt, lock.dataset)
            )
    # If the path of the dataset's folder begins with `..`, the location is inside this folder, so names have no prefix
    # to remove.
    copy_folder = home if home is not None and home[:1] != ("..",) else ()
    for verdict in stray_artifacts:
        name = "/".join(verdict.folder[len(copy_folder) :])
        # Skip a stray folder that is named in the lock, because it is reported below as a missing artifact.
        if (
            home is not None
            and verdict.folder[: len(copy_folder)] == copy_folder
            and name
            and name not in lock.artifacts
        ):
            yield Drift(name=name, reason="extra: files without a receipt, not in the lock")
    for name in select_artifacts(lock, select):
        if name not in own_files:
            yield Drift(name=name, reason="missing: in the lock, but not found")


def _find_lock_differences(name: str, receipt: Receipt, lock: Lock) -> Iterator[str]:
    if (receipt_name := join_lock_name(receipt.artifact, receipt.partition)) != name:
        yield f"its receipt belongs to {receipt_name}"
    elif (reason := lock.describe_difference(name, LockEntry.from_receipt(receipt))) is not None:
        yield reason


def _describe_other_dataset(name: str, receipt: Receipt, dataset: str) -> str:
    receipt_name = join_lock_name(receipt.artifact, receipt.partition)
    return (
        ""
        if (receipt.dataset, receipt_name) == (dataset, name)
        else f"; its receipt belongs to {receipt.dataset}/{receipt_name}"
    )


def select_artifacts(lock: Lock, select: Sequence[str]) -> list[str]:
    """Return the names of a lock's artifacts that match one of the globs; all names if there are no globs."""
    return [name for name in lock.artifacts if not select or any(fnmatchcase(name, glob) for glob in select)]
