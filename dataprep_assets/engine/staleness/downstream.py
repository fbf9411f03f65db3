"""Finds the artifacts of other datasets that are made of a dataset's artifacts, such as a replay mix of notes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dataprep_assets.engine.artifact.spec import ArtifactSpec, AssetInput, DatasetInput


@dataclass(frozen=True, kw_only=True)
class Reached:
    """An `artifact` of another `dataset`, and `through`, the artifact that it is made of."""

    dataset: str
    artifact: str
    through: str


def reached(dataset: str, names: Iterable[str], others: Mapping[str, Sequence[ArtifactSpec]]) -> Iterator[Reached]:
    """Yield the artifacts of other datasets that are affected, nearest first.

    Args:
        dataset: The dataset that changes.
        names: Names of its artifacts that change, as in `DatasetInput`.
        others: Name of each other dataset → its specs.
    """
    changed = {(dataset, name) for name in names}
    reported: set[tuple[str, ...]] = set()
    grown = True
    # until a pass reaches nothing new, because the other datasets are in no order of what is made of what
    while grown:
        grown = False
        for other, specs in others.items():
            touched: set[ArtifactSpec] = set()
            for spec in specs:
                through = next((source for source in spec.inputs if _is_among(source, changed)), None)
                if through is None and touched.isdisjoint(spec.inputs):
                    continue
                touched.add(spec)
                if (other, spec.name) not in changed:
                    changed.add((other, spec.name))
                    grown = True
                if isinstance(through, DatasetInput) and spec.path not in reported:
                    reported.add(spec.path)
                    artifact = "/".join(spec.path[1:])
                    yield Reached(dataset=other, artifact=artifact, through=f"{through.dataset}/{through.name}")


def _is_among(source: ArtifactSpec | DatasetInput | AssetInput, changed: set[tuple[str, str]]) -> bool:
    return isinstance(source, DatasetInput) and (source.dataset, source.name) in changed
