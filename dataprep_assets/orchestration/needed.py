"""Which artifacts of a dataset are still to be made: by receipts, blocking checks, and what the instance has recorded.

An artifact that is there but was made elsewhere (by another instance, or copied) is "made" too: that only reads its
receipt and files, and then Dagster shows it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from dataprep_assets.errors import DataprepError
from dataprep_assets.graph.runs import PlannedRun
from dataprep_assets.graph.spec import ArtifactSpec, Partitions
from dataprep_assets.graph.status import stale
from dataprep_assets.graph.verdicts import remembered
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.recorded import Recorded, failed_checks

__all__ = ["narrowed", "needed", "plannable", "planned", "up_to_date"]


def up_to_date(specs: Sequence[ArtifactSpec], store: ArtifactStore, recorded: Recorded) -> bool:
    """Whether every artifact of a dataset is current by its receipt, recorded in the instance, and green."""
    return (
        not any(_never_seen(spec, store, recorded) for spec in specs)
        and not failed_checks(specs, recorded, never_ran=True)
        and next(stale(specs, store), None) is None
    )


def needed(
    specs: Sequence[ArtifactSpec], store: ArtifactStore, recorded: Recorded
) -> Mapping[ArtifactSpec, Sequence[str]]:
    """What is to be made: artifact → its partitions, consecutive and in order; empty for an unpartitioned artifact.

    Artifacts with the same partitioning get the same partitions, from the first to the last that one of them needs: a
    backfill makes few runs of consecutive partitions, and finished ones cost one read. Artifacts that are not planned
    yet are left out, with everything made of them.

    Args:
        specs: The artifacts of a dataset, inputs before what is made of them.
        store: Where its artifacts are.
        recorded: Its materializations and the results of its checks.
    """
    wanted: dict[ArtifactSpec, set[str | None]] = {}
    for one in stale(specs, store, failed_checks(specs, recorded, never_ran=True)):
        if one.spec is None:
            continue
        slots = wanted.setdefault(one.spec, set())
        if one.kind == "check failed" and _fixed(one.spec):
            slots.update(_unproven(one.spec, store))
            if slots:
                continue
        slots.add(one.partition)
    for spec in plannable(specs, store):
        if seen := _never_seen(spec, store, recorded):
            wanted.setdefault(spec, set()).update(seen)
    together: dict[Partitions, set[str]] = {}
    for spec, slots in wanted.items():
        if spec.partitions is not None and planned(spec, store):
            keys = spec.partitions.keys(store) if None in slots else [slot for slot in slots if slot is not None]
            together.setdefault(spec.partitions, set()).update(keys)
    ranges = {partitions: _covering(partitions.keys(store), keys) for partitions, keys in together.items()}
    return {
        spec: () if spec.partitions is None else ranges[spec.partitions]
        for spec in plannable(specs, store)
        if spec in wanted
    }


def narrowed(
    runs: Iterable[PlannedRun], specs: Sequence[ArtifactSpec], store: ArtifactStore, recorded: Recorded
) -> Iterator[PlannedRun]:
    """Yield the runs; those of fixed partitions are narrowed to the range from the first to the last one `needed`.

    What is left out was examined as thoroughly as a run would do, and equals its receipts: one failed month in hundreds
    costs one month. A run of which nothing is needed yet stays whole, because earlier runs may change that.
    """
    if not any(_fixed(spec) for spec in specs):
        yield from runs
        return
    wanted = needed(specs, store, recorded)
    for run in runs:
        chosen = _covering(run.partitions, {key for spec in run.specs for key in wanted.get(spec, ())})
        if chosen and all(map(_fixed, run.specs)):
            yield replace(run, title=run.specs[0].step.title(store, run.partitions, chosen), partitions=chosen)
        else:
            yield run


def _unproven(spec: ArtifactSpec, store: ArtifactStore) -> list[str]:
    """The partitions without a remembered verdict that passed. A check's next result covers the others anyway."""
    assert spec.proofs is not None
    proofs, found = spec.proofs.proofs, []
    for partition in spec.partitions.keys(store) if spec.partitions is not None else ():
        kept = remembered(spec.located(store, partition), store, proofs)
        if kept is None or not all(finding.passed or finding.warning for finding in kept.values()):
            found.append(partition)
    return found


def _fixed(spec: ArtifactSpec) -> bool:
    """Whether an artifact of this dataset has partitions that are known before anything is made."""
    return spec.kept and spec.partitions is not None and bool(spec.partitions.fixed_keys)


def planned(spec: ArtifactSpec, store: ArtifactStore) -> bool:
    """Whether the partitions of an artifact are known."""
    try:
        spec.slots(store)
    except DataprepError:
        return False
    return True


def plannable(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> list[ArtifactSpec]:
    """The artifacts whose partitions are known, and those of all their inputs, in order."""
    found: list[ArtifactSpec] = []
    for spec in specs:
        known = all(source in found for source in spec.inputs if isinstance(source, ArtifactSpec))
        if known and planned(spec, store):
            found.append(spec)
    return found


def _never_seen(spec: ArtifactSpec, store: ArtifactStore, recorded: Recorded) -> set[str | None]:
    """The partitions (None for an unpartitioned artifact) without a recorded materialization."""
    if spec.partitions is None:
        return set() if recorded.is_materialized(spec.path) else {None}
    seen = recorded.partitions(spec.path)
    return {partition for partition in _keys(spec.partitions, store) if partition not in seen}


def _keys(partitions: Partitions, store: ArtifactStore) -> Iterator[str]:
    try:
        yield from partitions.keys(store)
    except DataprepError:  # not planned: the artifact that plans it was never recorded, or is stale
        return


def _covering(every: Sequence[str], some: set[str]) -> Sequence[str]:
    """The consecutive keys in `every` from the first to the last of `some`."""
    places = [place for place, key in enumerate(every) if key in some]
    return every[places[0] : places[-1] + 1] if places else ()
