"""Removes artifacts that are no longer planned, and never anything else: all, or those that hold retracted documents.

Each is removed under its lock, its receipt first, so that a kill leaves nothing that looks finished. Meanwhile the
plans are locked: a run that would plan the artifacts again has to wait. (A run on another machine that uses the same
bucket does not wait: make sure that there is none.)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.checks.verdicts import forget_absent
from dataprep_assets.engine.staleness.status import unplanned
from dataprep_assets.errors import IntegrityError
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.commit import alone


@dataclass(frozen=True, kw_only=True)
class Unplanned:
    """An artifact that is no longer planned, and the bytes of its files; None if it is not complete."""

    artifact: Artifact
    bytes: int | None


def list_unplanned(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> list[Unplanned]:
    """The artifacts that `prune` would remove."""
    return [Unplanned(artifact=artifact, bytes=_bytes(store, artifact)) for artifact in unplanned(specs, store)]


def prune(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Iterator[tuple[Artifact, bool]]:
    """Remove unplanned artifacts one by one; yield each with whether it was removed: one that is being built stays.

    Args:
        specs: The specs of a dataset.
        store: Where its artifacts are.

    Raises:
        IntegrityError: A plan is missing or damaged, or a run is making it. Nothing is removed.
    """
    yield from _remove_artifacts(specs, store, unplanned)


def retracted_left(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> list[Artifact]:
    """What is in no plan any more and holds, or may hold, something on the dataset's retraction list.

    `prune_retracted` removes it. Costs nothing where nothing is retracted; else unplanned indexes are read.
    """
    return specs[0].declaration.holding_retracted(store, unplanned(specs, store))


def prune_retracted(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Iterator[tuple[Artifact, bool]]:
    """As `prune`, but only what `retracted_left` names: at the end of a run that succeeded."""
    if retracted_left(specs, store):
        yield from _remove_artifacts(specs, store, retracted_left)


def _remove_artifacts(
    specs: Sequence[ArtifactSpec],
    store: ArtifactStore,
    which: Callable[[Sequence[ArtifactSpec], ArtifactStore], Iterable[Artifact]],
) -> Iterator[tuple[Artifact, bool]]:
    planners = [spec.located(store) for spec in specs if spec.plans and spec.kept]
    with ExitStack() as locks:
        for planner in planners:
            if not locks.enter_context(alone(store.directory(planner))):
                raise IntegrityError(f"{store.location(planner)}: a run is making it. Prune when that has ended")
            if store.intact(planner) is None:
                raise IntegrityError(
                    f"{store.location(planner)}: missing or damaged, so nothing can be said to be in no plan. "
                    f"Run {planner.dataset} first"
                )
        for artifact in list(which(specs, store)):
            yield artifact, store.remove(artifact)
    forget_absent(specs[0].declaration.dataset, store)


def _bytes(store: ArtifactStore, artifact: Artifact) -> int | None:
    try:
        receipt = store.receipt(artifact)
    except IntegrityError:
        return None
    return receipt.total_bytes if receipt is not None else None
