"""All artifacts of a list of specs, built in order as `dataprep run` does, without Dagster and without checks."""

from collections.abc import Iterable, Sequence

from dataprep_assets.graph.order import in_order
from dataprep_assets.graph.spec import ArtifactSpec, BuildRequest
from dataprep_assets.integrity.artifacts import ArtifactStore


def build_all(
    specs: Sequence[ArtifactSpec],
    store: ArtifactStore,
    some: Iterable[tuple[ArtifactSpec, Sequence[str]]] | None = None,
    *,
    workers: int = 1,
) -> list[str]:
    """Names of the artifacts that were built anew, of all or `some` with their partitions; raises the first error of a
    partition."""
    built = []
    for spec, partitions in in_order(specs, store) if some is None else some:
        for outcome in spec.build(BuildRequest(store=store, partitions=partitions, workers=workers)):
            if outcome.error is not None:
                raise outcome.error
            if not outcome.reused:
                built.append("/".join(filter(None, (spec.name, outcome.partition))))
    return built
