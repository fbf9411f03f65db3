"""All artifacts of a list of specs, built in order as `dataprep run` does, without Dagster and without checks."""

from collections.abc import Iterable, Sequence

from dataprep_assets.graph.runs import PlannedRun, planned_runs
from dataprep_assets.graph.spec import ArtifactSpec, BuildRequest
from dataprep_assets.integrity.artifacts import ArtifactStore


def build_all(
    specs: Sequence[ArtifactSpec],
    store: ArtifactStore,
    runs: Iterable[PlannedRun] | None = None,
    *,
    workers: int = 1,
) -> list[str]:
    """Names of the artifacts that were built anew; raises the first error of a partition."""
    built = []
    for run in planned_runs(specs, store) if runs is None else runs:
        for spec in run.specs:
            partitions = run.partitions if spec.partitions is not None else ()
            for outcome in spec.build(BuildRequest(store=store, partitions=partitions, workers=workers)):
                if outcome.error is not None:
                    raise outcome.error
                if not outcome.reused:
                    built.append("/".join(filter(None, (spec.name, outcome.partition))))
    return built
