"""The order in which a dataset is made: one artifact after the other, inputs first.

Artifacts whose partitions are cut into ranges (`Partitions.ranges`) are made together, range by range: what streams
its source keeps only the files of one range.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.integrity.artifacts import ArtifactStore


def together(specs: Sequence[ArtifactSpec]) -> list[tuple[ArtifactSpec, ...]]:
    """The artifacts in order, grouped into those that are made together: nearly every one is alone."""

    def group(spec: ArtifactSpec) -> object:
        return spec.partitions if spec.partitions is not None and spec.partitions.ranges is not None else spec

    # `groupby` joins neighbours only: specs that share their ranges stand side by side in the list of a dataset
    return [tuple(members) for _, members in groupby(specs, key=group)]


def in_order(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Iterator[tuple[ArtifactSpec, Sequence[str]]]:
    """Yield each artifact with the partitions to make (none if unpartitioned), lazily: earlier artifacts plan the
    partitions of later ones."""
    for members in together(specs):
        partitions = members[0].partitions
        for chosen in [()] if partitions is None else partitions.cut_ranges(store):
            yield from ((spec, chosen) for spec in members)


def ancestors(specs: Iterable[ArtifactSpec]) -> set[ArtifactSpec]:
    """The artifacts of the same dataset that these are made of, directly or through others."""
    found: set[ArtifactSpec] = set()
    left = list(specs)
    while left:
        sources = {source for source in left.pop().inputs if isinstance(source, ArtifactSpec)} - found
        found |= sources
        left += sources
    return found
