"""The runs that make a dataset, in order, from the list of its specs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from dataprep_assets.graph.spec import ArtifactSpec
from dataprep_assets.integrity.artifacts import ArtifactStore

__all__ = ["PlannedRun", "apart", "planned_runs"]


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run: its title, the artifacts that it makes, and which of their partitions (empty: unpartitioned)."""

    title: str
    specs: Sequence[ArtifactSpec]
    partitions: Sequence[str] = ()


def planned_runs(specs: Iterable[ArtifactSpec], store: ArtifactStore) -> Iterator[PlannedRun]:
    """Yield the runs in order, lazily: earlier runs plan the partitions of later ones."""
    for step, group in groupby(specs, key=lambda spec: spec.step):
        members = list(group)
        partitions = members[0].partitions
        if partitions is None:
            yield PlannedRun(title=step.title(store, (), ()), specs=members)
            continue
        every = partitions.keys(store)
        for chosen in partitions.cut(store):
            yield PlannedRun(title=step.title(store, every, chosen), specs=members, partitions=chosen)


def apart(runs: Iterable[PlannedRun]) -> Iterator[PlannedRun]:
    """Yield the same runs, split so that no artifact is made in the same run as one of its inputs."""
    for run in runs:
        layers: list[list[ArtifactSpec]] = [[]]
        for spec in run.specs:
            if any(source in layers[-1] for source in spec.inputs):
                layers.append([])
            layers[-1].append(spec)
        for layer in layers:
            names = ", ".join(dict.fromkeys(spec.name for spec in layer))
            yield run if len(layers) == 1 else replace(run, title=f"{run.title}: {names}", specs=layer)
