"""Times the steps of a run for the next forecast (`engine.staleness.step_times`)."""

import time
from collections.abc import Sequence

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.staleness.step_times import RUN, Build, StepTimes, step_sizes
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.build import BuildListener, StepResult


class StepTimer(BuildListener):
    """Times the steps of a build; `keep` adds the times to a file.

    Args:
        began: Start of the run, in seconds of `time.monotonic`.
    """

    def __init__(self, began: float) -> None:
        self._began = self._step_began = began
        self._steps: list[tuple[ArtifactSpec, Sequence[str], StepResult, float]] = []

    def before(self, spec: ArtifactSpec, partitions: Sequence[str], *, current: bool) -> None:
        """Start the clock of a step."""
        self._step_began = time.monotonic()

    def after(self, spec: ArtifactSpec, partitions: Sequence[str], result: StepResult) -> None:
        """Store the time of a step, checks included."""
        self._steps.append((spec, partitions, result, time.monotonic() - self._step_began))

    def keep(self, times: StepTimes, specs: Sequence[ArtifactSpec], store: ArtifactStore, *, complete: bool) -> None:
        """Add the times of steps that built something; for a `complete` run also the time between steps."""
        besides = time.monotonic() - self._began - sum(seconds for *_, seconds in self._steps)
        size_of, builds = step_sizes(specs, store), dict[str, list[Build]]()
        for spec, partitions, result, seconds in self._steps:
            if result.built and (size := size_of(spec, partitions)) is not None:
                # reused partitions took no time and are about as large as built ones
                share = result.built / (result.built + result.reused)
                builds.setdefault(spec.name, []).append((size * share, seconds))
        if builds and complete:
            builds[RUN] = [(1.0, max(0.0, besides))]
        times.add(specs[0].declaration, builds)
