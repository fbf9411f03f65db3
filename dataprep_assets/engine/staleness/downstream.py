"""Finds the artifacts of other datasets that are built from a dataset's artifacts, such as a mixture of notes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dataprep_assets.engine.artifact.spec import ArtifactSpec, AssetInput, DatasetInput


@dataclass(frozen=True, kw_only=True)
class AffectedArtifact:
    """An artifact of another dataset that is affected by a change.

    Attributes:
        dataset: The other dataset.
        artifact: Its artifact.
        through: The artifact's input that changes, as `dataset/artifact`.
    """

    dataset: str
    artifact: str
    through: str


def find_affected_artifacts(
    dataset: str, names: Iterable[str], specs_by_dataset: Mapping[str, Sequence[ArtifactSpec]]
) -> Iterator[AffectedArtifact]:
    """Yield the artifacts of other datasets that are affected, nearest first.

    Args:
        dataset: The dataset that changes.
        names: Names of its artifacts that change, as in `DatasetInput`.
        specs_by_dataset: Name of each other dataset → its specs.
    """
    changed = {(dataset, name) for name in names}
    reported_paths: set[tuple[str, ...]] = set()
    has_grown = True
    # Repeat until a pass adds nothing, because datasets are not ordered by dependency.
    while has_grown:
        has_grown = False
        for dataset, specs in specs_by_dataset.items():
            affected_specs: set[ArtifactSpec] = set()
            for spec in specs:
                changed_source = next((source for source in spec.inputs if _is_among(source, changed)), None)
                if changed_source is None and affected_specs.isdisjoint(spec.inputs):
                    continue
                affected_specs.add(spec)
                if (dataset, spec.name) not in changed:
                    changed.add((dataset, spec.name))
                    has_grown = True
                if isinstance(changed_source, DatasetInput) and spec.path not in reported_paths:
                    reported_paths.add(spec.path)
                    artifact = "/".join(spec.path[1:])
                    yield AffectedArtifact(
                        dataset=dataset, artifact=artifact, through=f"{changed_source.dataset}/{changed_source.name}"
                    )


def _is_among(source: ArtifactSpec | DatasetInput | AssetInput, changed: set[tuple[str, str]]) -> bool:
    return isinstance(source, DatasetInput) and (source.dataset, source.name) in changed
