"""Finds how a dataset differs from its lock, and why: what `dataprep run --locked` and `dataprep verify --lock` refuse.

A recipe can be compared before anything is built, as soon as the artifact's inputs are there as in the lock; so drift
of a setting or a source is reported before the artifact that would differ is made. The content is compared once the
artifact is there.

Entry points: `drift_of_recipes` (before a run), `drift_of_contents` (after it), `drift_of_copy` (somebody's copy).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from dataprep_assets.engine.artifact.spec import ArtifactSpec, Partitions
from dataprep_assets.engine.checks.check import first_of
from dataprep_assets.engine.lock.lock import Lock, Locked, file_of, hidden_name, lock_name, name_of
from dataprep_assets.errors import DataprepError, IntegrityError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.integrity.verify import Verified, name_in


@dataclass(frozen=True, kw_only=True)
class Drift:
    """One artifact that differs from the lock: its name without the dataset's, and one sentence.

    `is_obsolete`: it is there, and no run would build it, which is no difference.
    """

    name: str
    reason: str
    is_obsolete: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def adopt_plan(specs: Sequence[ArtifactSpec], store: ArtifactStore, lock: Lock) -> None:
    """Commit the lock's plan if there is no plan here and it depends on earlier plans that this store never had.

    Nothing is committed if the sources differ from those of the lock: `drift_of_recipes` then reports the difference.

    Args:
        specs: Those of the dataset.
        store: Where its artifacts are.
        lock: Of the same dataset.
    """
    for spec in specs:
        if spec.adopt is None or spec.listed is None or store.intact(spec.located(store)) is not None:
            continue
        plan = lock.artifacts.get(lock_name(spec.located(store)))
        if plan is None or plan.key is None:
            continue
        # the lock of a sensitive dataset has digests of names: the files that are there are found by hashing theirs
        paths = {hidden_name(path) if lock.is_hidden else path: path for path in spec.listed()}
        shards = {
            name.partition("/")[2]: [paths[file_of(file)] for file in entry.files if file_of(file) in paths]
            for name, entry in lock.artifacts.items()
            if entry.files
        }
        spec.adopt(store, shards, plan.key)


def drift_of_recipes(
    specs: Sequence[ArtifactSpec], store: ArtifactStore, lock: Lock, only: Sequence[ArtifactSpec] | None = None
) -> Iterator[Drift]:
    """Yield, in build order, the artifacts that would be built differently from the lock, as far as is known now.

    Args:
        specs: Those of the dataset.
        store: Where its artifacts are; local sources are read completely.
        lock: Of the same dataset.
        only: Compare only the recipes of these artifacts; None: all.
    """
    present_artifacts = _Present(specs, store, lock)
    if only is None:
        yield from undeclared(specs, store, lock)
    for spec in specs if only is None else only:
        if not spec.kept or not present_artifacts.is_planned(spec):
            continue
        slots = spec.slots(store)
        ready = []
        for slot in slots:
            if lock_name(spec.located(store, slot)) not in lock.artifacts:
                yield Drift(name=lock_name(spec.located(store, slot)), reason="declared, but not in the lock")
            elif present_artifacts.has_inputs(spec, slot):
                ready.append(slot)
        yield from _compared(spec, store, lock, ready)


def _compared(spec: ArtifactSpec, store: ArtifactStore, lock: Lock, slots: Sequence[str | None]) -> Iterator[Drift]:
    """The drift among slots whose inputs are as in the lock."""
    if not slots:
        return
    try:
        recipes = list(spec.recipes(store, slots))
    except DataprepError:  # nothing is known before it is fetched; the build reports what is wrong
        return
    receipts = _receipts(store, [recipe.artifact for recipe in recipes])
    for recipe, receipt in zip(recipes, receipts, strict=True):
        if not recipe.key:  # nor before its plan is made
            continue
        name = lock_name(recipe.artifact)
        if receipt is not None and receipt.key == recipe.key:
            # some recipes are only a key, whose ingredients the receipt has
            entry = Locked.from_receipt(receipt)
        else:
            entry = Locked(key=recipe.key, content=lock.artifacts[name].content).made_of(recipe)
        reason = lock.reason(name, entry)
        if reason is not None:
            yield Drift(name=name, reason=reason + _came_and_went(spec, lock))


def _came_and_went(spec: ArtifactSpec, lock: Lock) -> str:
    """The source files that were added since the lock, and those that are gone, if the artifact lists its files."""
    locked_files = {file_of(file) for entry in lock.artifacts.values() for file in entry.files}
    if spec.listed is None or not locked_files:
        return ""
    listed_files = {hidden_name(name) if lock.is_hidden else name for name in spec.listed()}
    changes = {"added": sorted(listed_files - locked_files), "removed": sorted(locked_files - listed_files)}
    texts = [f"{len(names):,} {what}: {first_of(names)}" for what, names in changes.items() if names]
    return f" (files {'; '.join(texts)})" if texts else ""


def drift_of_contents(
    specs: Sequence[ArtifactSpec], store: ArtifactStore, lock: Lock, partitions: Sequence[str] = ()
) -> Iterator[Drift]:
    """Yield the artifacts that should be finished and are absent, or differ from the lock.

    Args:
        specs: The specs to compare.
        store: Where their artifacts are.
        lock: The lock of the same dataset.
        partitions: Compare only these partitions of partitioned artifacts; empty: all that are planned.
    """
    for spec in specs:
        if not spec.kept:
            continue
        slots = partitions if partitions and spec.partitions is not None else spec.slots(store)
        artifacts = [spec.located(store, slot) for slot in slots]
        for artifact, receipt in zip(artifacts, _receipts(store, artifacts), strict=True):
            name = lock_name(artifact)
            if receipt is None:
                yield Drift(name=name, reason="missing, or its receipt is damaged")
            elif name not in lock.artifacts:
                yield Drift(name=name, reason="not in the lock")
            elif (reason := lock.reason(name, Locked.from_receipt(receipt))) is not None:
                yield Drift(name=name, reason=reason)


class _Present:
    """Tells which artifacts are present with the lock's content."""

    def __init__(self, specs: Sequence[ArtifactSpec], store: ArtifactStore, lock: Lock) -> None:
        self._store, self._lock = store, lock
        self._planners = {partitions: spec for spec in specs for partitions in spec.plans}
        # filled when a spec is first asked for: the artifacts made of it ask once for each of their slots
        self._known: dict[ArtifactSpec, frozenset[str | None] | None] = {}

    def is_planned(self, spec: ArtifactSpec) -> bool:
        """Whether the artifacts of a spec are known: what plans them is as in the lock."""
        if spec.partitions is not None and (planner := self._planner(spec.partitions)) is not None:
            return self._is_whole(planner)
        try:
            spec.artifacts(self._store)
        except DataprepError:
            return False
        return True

    def has_inputs(self, spec: ArtifactSpec, slot: str | None) -> bool:
        """Whether all inputs of a slot are present as in the lock."""
        for source in spec.inputs:
            if not isinstance(source, ArtifactSpec):
                continue
            if source.partitions is not None and source.partitions is spec.partitions:
                if slot not in (self._present_slots(source) or ()):
                    return False
            elif not self._is_whole(source):
                return False
        return True

    def _planner(self, partitions: Partitions) -> ArtifactSpec | None:
        return self._planners.get(partitions)

    def _is_whole(self, spec: ArtifactSpec) -> bool:
        if not spec.kept:  # it has no files: it reports on its inputs
            return self.has_inputs(spec, None)
        present_slots = self._present_slots(spec)
        return present_slots is not None and len(present_slots) == len(spec.slots(self._store))

    def _present_slots(self, spec: ArtifactSpec) -> frozenset[str | None] | None:
        """The slots of a spec that are present as in the lock; None if they are not planned."""
        if spec not in self._known:
            self._known[spec] = self._compare(spec) if self.is_planned(spec) else None
        return self._known[spec]

    def _compare(self, spec: ArtifactSpec) -> frozenset[str | None]:
        slots = spec.slots(self._store)
        artifacts = [spec.located(self._store, slot) for slot in slots]
        slot_receipts = zip(slots, artifacts, _receipts(self._store, artifacts), strict=True)
        return frozenset(
            slot
            for slot, artifact, receipt in slot_receipts
            if receipt is not None
            and lock_name(artifact) in self._lock.artifacts
            and self._lock.reason(lock_name(artifact), Locked.from_receipt(receipt)) is None
        )


def _receipts(store: ArtifactStore, artifacts: Sequence[Artifact]) -> list[Receipt | None]:
    """The receipts of the artifacts; a damaged one counts as absent, because its artifact is built again."""
    try:
        return store.receipts(artifacts)
    except IntegrityError:
        return [_receipt(store, artifact) for artifact in artifacts]


def _receipt(store: ArtifactStore, artifact: Artifact) -> Receipt | None:
    try:
        return store.receipt(artifact)
    except IntegrityError:
        return None


def undeclared(specs: Sequence[ArtifactSpec], store: ArtifactStore, lock: Lock) -> Iterator[Drift]:
    """Yield the artifacts in the lock that no spec makes, compared by name without the partition."""
    makes = set()
    for spec in specs:
        if spec.kept:
            try:
                makes.add(spec.name if spec.artifact is None else spec.located(store).name)
            except DataprepError:  # its name depends on a plan that is not made yet
                return
    for name in lock.artifacts:
        if name.partition("/")[0] not in makes:
            yield Drift(name=name, reason="in the lock, but not declared")


def drift_of_copy(lock: Lock, verdicts: Iterable[Verified], select: Sequence[str] = ()) -> Iterator[Drift]:
    """Yield how a copy differs from the lock: damaged, different, missing and extra artifacts.

    An artifact is the one that its folder says, below the folder where most artifacts of the dataset are.

    Args:
        lock: What the copy should be.
        verdicts: The verdicts on the copy, with folders that have no receipt; artifacts of other datasets are ignored
            unless they are in the dataset's folder.
        select: Globs of the artifacts that the copy should have; empty: all.
    """
    entries: list[tuple[tuple[str, ...], str, Verified, Receipt]] = []
    strays: list[Verified] = []
    for verdict in verdicts:
        if verdict.receipt is not None:
            entries.append((*name_in(verdict.folder, verdict.receipt), verdict, verdict.receipt))
        elif verdict.defects:
            yield Drift(name=verdict.location, reason="; ".join(verdict.defects))
        else:
            strays.append(verdict)
    # the place may be the dataset's own folder, or hold it at any depth with strays beside it
    folder_counts = Counter(above for above, _, _, receipt in entries if receipt.dataset == lock.dataset)
    home = folder_counts.most_common(1)[0][0] if folder_counts else None
    own = {
        name: own_receipt
        for above, name, _, own_receipt in entries
        if above == home and own_receipt.dataset == lock.dataset
    }
    obsolete = Lock.of_receipts(lock.dataset, own).obsolete
    for above, name, verdict, receipt in entries:
        is_own, is_home = receipt.dataset == lock.dataset, above == home
        if is_own and not is_home:
            yield Drift(name=name, reason=f"extra: {verdict.location} is in a different folder")
        if is_own and name in lock.artifacts:
            if reasons := [*_other_than_locked(name, receipt, lock), *verdict.defects]:
                yield Drift(name=name, reason="; ".join(reasons))
        elif is_own and is_home and name in obsolete:
            yield Drift(name=name, reason="obsolete: no longer needed", is_obsolete=True)
        elif is_home:
            yield Drift(name=name, reason="extra: not in the lock" + _if_of_another(name, receipt, lock.dataset))
    # `..`: the place itself lies within the dataset's folder
    below = home if home is not None and home[:1] != ("..",) else ()
    for verdict in strays:
        name = "/".join(verdict.folder[len(below) :])
        # of a stray in the lock the report below is that it is missing
        if home is not None and verdict.folder[: len(below)] == below and name and name not in lock.artifacts:
            yield Drift(name=name, reason="extra: files without a receipt, not in the lock")
    for name in selected(lock, select):
        if name not in own:
            yield Drift(name=name, reason="missing: in the lock, but not found")


def _other_than_locked(name: str, receipt: Receipt, lock: Lock) -> Iterator[str]:
    if (its := name_of(receipt.artifact, receipt.partition)) != name:
        yield f"its receipt belongs to {its}"
    elif (reason := lock.reason(name, Locked.from_receipt(receipt))) is not None:
        yield reason


def _if_of_another(name: str, receipt: Receipt, dataset: str) -> str:
    its = name_of(receipt.artifact, receipt.partition)
    return "" if (receipt.dataset, its) == (dataset, name) else f"; its receipt belongs to {receipt.dataset}/{its}"


def selected(lock: Lock, select: Sequence[str]) -> list[str]:
    """The names of a lock's artifacts that match one of the globs; all if there are no globs."""
    return [name for name in lock.artifacts if not select or any(fnmatchcase(name, glob) for glob in select)]
