"""What of a dataset is not as it should be, and why: what `dataprep status` says and a second run asks first.

Every layer is examined. What lies downstream of a stale artifact is stale because of it and is not compared further;
beside that, each artifact is compared with its own recipe and its own receipt.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dataprep_assets.errors import DataprepError, IntegrityError
from dataprep_assets.graph.recipe import Change, Recipe
from dataprep_assets.graph.spec import ArtifactSpec
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore

__all__ = ["Stale", "stale", "sweep", "unplanned"]


@dataclass(frozen=True, kw_only=True)
class Stale:
    """An artifact that has to be built again.

    `kind` is absent, damaged, input changed, settings changed, older version, recipe changed, or check failed; `reason`
    says it in one sentence. `name` is the artifact, or the asset where its partitions are not planned yet.
    """

    name: str
    kind: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


Slot = tuple[ArtifactSpec, str | None]


def stale(
    specs: Sequence[ArtifactSpec],
    store: ArtifactStore,
    failed_checks: Mapping[tuple[str, ...], Sequence[str]] | None = None,
) -> Iterator[Stale]:
    """Yield what is stale, in build order; nothing when all is up to date.

    Args:
        specs: Those of a dataset, inputs before what is made of them.
        store: Where its artifacts are; each is read as thoroughly as its spec says, and local sources whole.
        failed_checks: Path of an asset → names of its blocking checks whose latest result is a failure.
    """
    found: dict[Slot, Stale] = {}
    unplanned: dict[ArtifactSpec, Stale] = {}
    for spec in specs:
        yield from _of_spec(spec, store, found, unplanned)
        for name in (failed_checks or {}).get(spec.path, ()):
            yield Stale(name="/".join(spec.path), kind="check failed", reason=f"its blocking check {name} failed")


def _of_spec(
    spec: ArtifactSpec, store: ArtifactStore, found: dict[Slot, Stale], unplanned: dict[ArtifactSpec, Stale]
) -> Iterator[Stale]:
    try:
        slots = spec.slots(store)
        artifacts = {slot: spec.located(store, slot) for slot in slots}
    except DataprepError as error:
        unplanned[spec] = Stale(name="/".join(spec.path), kind="absent", reason=f"not planned yet: {error}")
        yield unplanned[spec]
        return
    if not spec.kept:
        # it has no files of its own: what it reports is as fresh as what it is made of
        if (cause := _upstream(spec, None, found, unplanned)) is not None:
            unplanned[spec] = Stale(name="/".join(spec.path), kind=cause.kind, reason=cause.reason)
            yield unplanned[spec]
        return
    fresh: list[str | None] = []
    late: dict[str | None, Stale] = {}
    for slot in slots:
        cause = _upstream(spec, slot, found, unplanned)
        if cause is None:
            fresh.append(slot)
            continue
        change = _own(store, artifacts[slot], spec) or cause
        late[slot] = Stale(name=str(artifacts[slot]), kind=change.kind, reason=change.reason)
    compared = _compared(spec, store, fresh, artifacts)
    for slot in slots:
        if (one := late.get(slot) or compared.get(slot)) is not None:
            found[(spec, slot)] = one
            yield one


def _compared(
    spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None], artifacts: Mapping[str | None, Artifact]
) -> dict[str | None, Stale]:
    """What is stale among slots whose inputs are fresh."""
    if not slots:
        return {}
    try:
        recipes: Mapping[str | None, Recipe] = dict(zip(slots, spec.recipes(store, slots), strict=True))
    except DataprepError as error:  # an input that cannot be read: building it says the same
        recipes = {}
        why = str(error)
    stale_ones = {}
    for slot in slots:
        change = _own(store, artifacts[slot], spec, recipes.get(slot))
        if change is None and slot not in recipes:
            change = Change(kind="input changed", reason=why)
        if change is not None:
            stale_ones[slot] = Stale(name=str(artifacts[slot]), kind=change.kind, reason=change.reason)
    return stale_ones


def _own(store: ArtifactStore, artifact: Artifact, spec: ArtifactSpec, recipe: Recipe | None = None) -> Change | None:
    """What is wrong with an artifact by its own receipt, files and recipe."""
    try:
        receipt = store.receipt(artifact)
    except IntegrityError as error:
        return Change(kind="damaged", reason=f"damaged: {error}")
    if receipt is None:
        return Change(kind="absent", reason="absent")
    if recipe is not None and (change := recipe.difference(receipt)) is not None:
        return change
    if defects := store.damage(artifact, receipt, spec.verification or spec.declaration.verify):
        return Change(kind="damaged", reason=f"damaged: {defects[0]}" + _more(len(defects)))
    return None


def _more(count: int) -> str:
    return f" (and {count - 1} more)" if count > 1 else ""


def _upstream(
    spec: ArtifactSpec, slot: str | None, found: Mapping[Slot, Stale], unplanned: Mapping[ArtifactSpec, Stale]
) -> Change | None:
    """That an input of a slot is stale: of the same partition where both are cut alike, else any."""
    for source in spec.inputs:
        if not isinstance(source, ArtifactSpec):
            continue
        if source in unplanned:
            return _because_of(unplanned[source])
        if source.partitions is not None and source.partitions is spec.partitions:
            if (source, slot) in found:
                return _because_of(found[(source, slot)])
            continue
        for (other, _), one in found.items():
            if other is source:
                return _because_of(one)
    return None


def _because_of(one: Stale) -> Change:
    return Change(kind="input changed", reason=f"its input {one.name} is stale")


def unplanned(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Iterator[Artifact]:
    """Yield the artifacts of partitions that are in no plan any more: a source lost files, or its shards were cut anew.

    Nothing reads them, and nothing removes them unasked.
    """
    planned: dict[str, set[str]] = {}
    for spec in specs:
        if spec.partitions is not None and spec.kept:
            try:
                keys = spec.partitions.keys(store)
            except DataprepError:  # without a plan nothing can be said to have left it
                return
            planned.setdefault(spec.name, set()).update(keys)
    for name, wanted in planned.items():
        declaration = specs[0].declaration
        for partition in store.partitions(declaration.dataset, name):
            if partition not in wanted:
                yield declaration.artifact(name, partition)


def sweep(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> None:
    """Remove what killed runs left beside the artifacts of a dataset of which nothing is stale."""
    store.sweep([artifact for spec in specs for artifact in spec.artifacts(store)])
