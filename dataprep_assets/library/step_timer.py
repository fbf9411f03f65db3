"""Times the steps of a run for the next forecast (`engine.staleness.step_times`)."""

import time
from collections.abc import Sequence
from contextlib import suppress

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.staleness.step_times import StepTimes, step_sizes
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.build import BuildListener, StepResult


class StepTimer(BuildListener):
    """Listens to a build; `keep` adds what it has timed to a file."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._step_began = self._began
        self._steps: list[tuple[ArtifactSpec, Sequence[str | None], StepResult, float]] = []

    def before(self, spec: ArtifactSpec, partitions: Sequence[str], *, current: bool) -> None:
        """Start the clock of a step; an artifact whose input was mended begins again."""
        self._step_began = time.monotonic()

    def checking(self, spec: ArtifactSpec) -> None:
        """Let the clock go on: checks are part of a step."""
        return

    def failed(self, spec: ArtifactSpec, why: str) -> None:
        """Leave out a step that was not finished."""
        return

    def report_line(self, sentence: str) -> None:
        """Ignore what steps report."""
        return

    def after(self, spec: ArtifactSpec, partitions: Sequence[str], result: StepResult) -> None:
        """Stop it."""
        self._steps.append((spec, partitions, result, time.monotonic() - self._step_began))

    def keep(self, times: StepTimes, specs: Sequence[ArtifactSpec], store: ArtifactStore) -> None:
        """Add the steps that built something, and the time besides them; nothing of a sensitive dataset."""
        declaration = specs[0].declaration
        if declaration.sensitive or not any(result.built for _, _, result, _ in self._steps):
            return
        total, size_of = time.monotonic() - self._began, step_sizes(specs, store)
        builds: dict[str, tuple[float, float]] = {}
        for spec, partitions, result, seconds in self._steps:
            if not result.built:
                continue
            with suppress(DataprepError):
                # a shard that was reused costs a look: those that were built are about as large as the others
                share = result.built / (result.built + result.reused)
                size = size_of(spec, partitions if spec.partitions is not None else [None]) * share
                before, took = builds.get(spec.name, (0.0, 0.0))
                builds[spec.name] = (before + size, took + seconds)
        times.add(declaration.dataset, builds, max(0.0, total - sum(seconds for *_, seconds in self._steps)))
