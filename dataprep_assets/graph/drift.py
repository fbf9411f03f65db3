"""Finds how a dataset differs from its lock, and why: what `dataprep run --locked` and `dataprep verify --lock` refuse.

A recipe can be compared before anything is built, as soon as the artifact's inputs are there as in the lock; so drift
of a setting or a source is reported before the artifact that would differ is made. The content is compared once the
artifact is there.

Entry points: `drift_of_recipes` (before a run), `drift_of_contents` (after it), `drift_of_copy` (somebody's copy).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from dataprep_assets.errors import DataprepError, IntegrityError
from dataprep_assets.graph.finding import first_of
from dataprep_assets.graph.lock import Lock, Locked, hidden_name, lock_name, name_of
from dataprep_assets.graph.lock_of_copy import left_over
from dataprep_assets.graph.recipe import Ingredients
from dataprep_assets.graph.spec import ArtifactSpec, Partitions
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.integrity.verify import Verified, name_in


@dataclass(frozen=True, kw_only=True)
class Drift:
    """One artifact that differs from the lock: its name without the dataset's, and one sentence.

    `is_obsolete`: it lies beside the others, and nothing is made of it any more, which is no difference.
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
        wanted = lock.artifacts.get(lock_name(spec.located(store)))
        if wanted is None or wanted.key is None:
            continue
        # the lock of a sensitive dataset has digests of names: the files that are there are found by hashing theirs
        paths = {hidden_name(path) if lock.is_hidden else path: path for path in spec.listed()}
        shards = {
            name.partition("/")[2]: [paths[line.file] for line in one.files if line.file in paths]
            for name, one in lock.artifacts.items()
            if one.files
        }
        spec.adopt(store, shards, wanted.key)


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
    present = _Present(specs, store, lock)
    if only is None:
        yield from undeclared(specs, store, lock)
    for spec in specs if only is None else only:
        if not spec.kept or not present.is_planned(spec):
            continue
        slots = spec.slots(store)
        ready = []
        for slot in slots:
            if lock_name(spec.located(store, slot)) not in lock.artifacts:
                yield Drift(name=lock_name(spec.located(store, slot)), reason="declared, and not in the lock")
            elif present.has_inputs(spec, slot):
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
        # some recipes are only a key, whose ingredients the receipt has
        made = Ingredients.of_receipt(receipt) if receipt is not None and receipt.key == recipe.key else None
        reason = _difference(name, recipe.key, made or recipe, lock, spec)
        if reason is None and receipt is not None and receipt.key == recipe.key:
            reason = _other_bytes(receipt, lock.artifacts[name])
        if reason is not None:
            yield Drift(name=name, reason=reason + _came_and_went(spec, lock))


def _came_and_went(spec: ArtifactSpec, lock: Lock) -> str:
    """The source files that were added since the lock, and those that are gone, if the artifact lists its files."""
    known = {line.file for one in lock.artifacts.values() for line in one.files}
    if spec.listed is None or not known:
        return ""
    listed = {hidden_name(name) if lock.is_hidden else name for name in spec.listed()}
    changes = {"added": sorted(listed - known), "removed": sorted(known - listed)}
    told = [f"{len(names):,} {what}: {first_of(names)}" for what, names in changes.items() if names]
    return f" (files {'; '.join(told)})" if told else ""


def _difference(name: str, key: str, made: Ingredients, lock: Lock, spec: ArtifactSpec) -> str | None:
    """How an artifact's key and ingredients differ from the lock, in one sentence; None if they do not."""
    one = lock.artifacts[name]
    if key == one.key:
        return None
    sources = {source: digest for source, digest in made.sources.items() if source not in (spec.names_places or ())}
    if lock.is_hidden:
        sources = {hidden_name(source): digest for source, digest in sources.items()}
    if (change := lock.change(name, replace(made.ingredients, sources=sources))) is not None:
        return change.reason
    # the key of what is placed depends on where it is
    return None if one.is_placed else "made from other inputs or settings than now"


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
                yield Drift(name=name, reason="absent, or its receipt is damaged")
            elif name not in lock.artifacts:
                yield Drift(name=name, reason="not in the lock")
            elif (reason := _unlike(receipt, lock, spec)) is not None:
                yield Drift(name=name, reason=reason)


def _unlike(receipt: Receipt, lock: Lock, spec: ArtifactSpec) -> str | None:
    name = name_of(receipt.artifact, receipt.partition)
    one = lock.artifacts[name]
    made = Ingredients.of_receipt(receipt) if receipt.content != one.content or one.is_placed else None
    reason = None if made is None else _difference(name, receipt.key, made, lock, spec)
    return reason or _other_bytes(receipt, one)


def _other_bytes(receipt: Receipt, one: Locked) -> str | None:
    """A sentence if an artifact's content differs from the lock, with the probable cause; None if it is equal."""
    if one.is_placed or receipt.content == one.content:
        return None
    installed = Locked.of(receipt).libraries
    others = [
        f"{name} was {one.libraries.get(name, 'not there')}, is {installed.get(name, 'not there')}"
        for name in sorted({*one.libraries, *installed})
        if one.libraries.get(name) != installed.get(name)
    ]
    why = f"; it was made with other libraries: {', '.join(others)}" if others else ""
    return f"its content is {receipt.content[:12]}…, the lock says {(one.content or '')[:12]}…{why}"


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
                if slot not in (self._there(source) or ()):
                    return False
            elif not self._is_whole(source):
                return False
        return True

    def _planner(self, partitions: Partitions) -> ArtifactSpec | None:
        return self._planners.get(partitions)

    def _is_whole(self, spec: ArtifactSpec) -> bool:
        if not spec.kept:  # it has no files: it reports on its inputs
            return self.has_inputs(spec, None)
        there = self._there(spec)
        return there is not None and len(there) == len(spec.slots(self._store))

    def _there(self, spec: ArtifactSpec) -> frozenset[str | None] | None:
        """The slots of a spec that are present as in the lock; None if they are not planned."""
        if spec not in self._known:
            self._known[spec] = self._compare(spec) if self.is_planned(spec) else None
        return self._known[spec]

    def _compare(self, spec: ArtifactSpec) -> frozenset[str | None]:
        slots = spec.slots(self._store)
        artifacts = [spec.located(self._store, slot) for slot in slots]
        found = zip(slots, artifacts, _receipts(self._store, artifacts), strict=True)
        return frozenset(
            slot
            for slot, artifact, receipt in found
            if receipt is not None
            and lock_name(artifact) in self._lock.artifacts
            and _unlike(receipt, self._lock, spec) is None
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
            yield Drift(name=name, reason="in the lock, and not declared")


def drift_of_copy(lock: Lock, verdicts: Iterable[Verified], select: Sequence[str] = ()) -> Iterator[Drift]:
    """Yield how a copy differs from the lock: damaged, different, missing and extra artifacts.

    An artifact is the one that its folder says, below the folder where most artifacts of the dataset are.

    Args:
        lock: What the copy should be.
        verdicts: The verdicts on the copy, with folders that have no receipt; artifacts of other datasets are ignored
            unless they are in the dataset's folder.
        select: Globs of the artifacts that the copy should have; empty: all.
    """
    # First what each receipt tells by itself. Where the dataset is, and so what is extra or missing, is known only when
    # all of them were seen.
    placed: list[tuple[tuple[str, ...], str, str, Receipt]] = []
    unsigned: list[Verified] = []
    for verdict in verdicts:
        receipt = verdict.receipt
        if receipt is None:
            if verdict.defects:
                yield Drift(name=verdict.location, reason="; ".join(verdict.defects))
            else:
                unsigned.append(verdict)
            continue
        above, name = name_in(verdict.folder, receipt)
        placed.append((above, name, verdict.location, receipt))
        if receipt.dataset == lock.dataset and name in lock.artifacts:
            defects = [reason] if (reason := _other_copy(name, receipt, lock)) is not None else []
            if defects := [*defects, *verdict.defects]:
                yield Drift(name=name, reason="; ".join(defects))
    # The place may be the dataset's own folder, or hold it at any depth with strays beside it: where most of its
    # artifacts are, it is.
    most = Counter(above for above, _, _, receipt in placed if receipt.dataset == lock.dataset)
    home = most.most_common(1)[0][0] if most else None
    found = {name for above, name, _, receipt in placed if above == home and receipt.dataset == lock.dataset}
    obsolete = left_over({name: one for above, name, _, one in placed if above == home and one.dataset == lock.dataset})
    for above, name, location, receipt in placed:
        if above != home:
            if receipt.dataset == lock.dataset:
                yield Drift(name=name, reason=f"extra: {location} is not in the folder of the others")
        elif receipt.dataset != lock.dataset or name not in lock.artifacts:
            own = f"{receipt.dataset}/{name_of(receipt.artifact, receipt.partition)}"
            if own == f"{lock.dataset}/{name}" and name in obsolete:
                yield Drift(name=name, reason="in no plan any more, and is left out", is_obsolete=True)
                continue
            also = "" if own == f"{lock.dataset}/{name}" else f"; its receipt is that of {own}"
            yield Drift(name=name, reason=f"extra: not in the lock{also}")
    for verdict in unsigned:
        # `..`: the place itself lies within the dataset's folder
        below = () if home is None or home[:1] == ("..",) else home
        name = "/".join(verdict.folder[len(below) :])
        # of one in the lock it is said below that it is missing
        if home is not None and verdict.folder[: len(below)] == below and name and name not in lock.artifacts:
            yield Drift(name=name, reason="extra: files without a receipt, not in the lock")
    for name in selected(lock, select):
        if name not in found:
            yield Drift(name=name, reason="missing: in the lock, and not there")


def selected(lock: Lock, select: Sequence[str]) -> list[str]:
    """The names of a lock's artifacts that match one of the globs; all if there are no globs."""
    return [name for name in lock.artifacts if not select or any(fnmatchcase(name, glob) for glob in select)]


def _other_copy(name: str, receipt: Receipt, lock: Lock) -> str | None:
    if (its := name_of(receipt.artifact, receipt.partition)) != name:
        return f"its receipt is that of {its}"
    one = lock.artifacts[name]
    if not one.is_placed:
        return _other_bytes(receipt, one)
    made = Locked.of(receipt)
    if lock.is_hidden:
        made = made.hidden()
    # digests of places were left out of the lock
    made = replace(made, sources={name: digest for name, digest in made.sources.items() if name in one.sources})
    for change in one.changes(made):
        if change.kind in ("version", "settings"):
            return "made with other settings than the lock says"
        return f"made of another source than the lock says: {change.name}"
    return None
