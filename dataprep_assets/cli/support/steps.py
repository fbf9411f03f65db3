"""Step output of a run: a line per finished step with its result.

On a terminal the last line shows the current step and its number: `7 of 21  token_bins_train`.
"""

import time
from collections.abc import Sequence

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.errors import count_of
from dataprep_assets.orchestration.build import BuildListener, StepResult
from dataprep_assets.orchestration.runs.terminal import clear_step, say, show_step

_WIDEST = 32
"""Maximum width of artifact names, in columns."""


class Steps(BuildListener):
    """Build listener that prints a line per step."""

    def __init__(self, specs: Sequence[ArtifactSpec]) -> None:
        self._paths = {spec.path for spec in specs}
        self._ended: set[Sequence[str]] = set()
        self._width = min(max((len(spec.path[-1]) for spec in specs), default=0), _WIDEST)
        self._current: set[Sequence[str]] = set()
        self._started = 0.0

    def before(self, spec: ArtifactSpec, partitions: Sequence[str], *, current: bool) -> None:
        if current:
            self._current.add(spec.path)
            self._ended.add(spec.path)
            return
        self._current.discard(spec.path)
        self._started = time.monotonic()
        show_step(self._label(spec))

    def checking(self, spec: ArtifactSpec) -> None:
        show_step(self._label(spec), "checks")

    def after(self, spec: ArtifactSpec, partitions: Sequence[str], result: StepResult) -> None:
        if spec.path in self._current:
            return
        clear_step()
        self._ended.add(spec.path)
        parts = [
            f"{spec.path[-1]:<{self._width}}",
            _count_built(spec, partitions, result),
            f"{time.monotonic() - self._started:,.1f} s",
            *([f"{', '.join(result.warned)} did not pass"] if result.warned else []),
        ]
        say(f"{'!' if result.warned else '✓'} {'  '.join(parts)}", "yellow" if result.warned else "green")

    def failed(self, spec: ArtifactSpec, why: str) -> None:
        clear_step()
        why = why.removeprefix(f"{'/'.join(spec.path)}: ") or "failed"
        say(f"✗ {spec.path[-1]:<{self._width}}  {why}", "red")

    def report_line(self, sentence: str) -> None:
        clear_step()
        say(f"  {sentence}")

    def end(self) -> None:
        """Print how many steps were up to date."""
        if self._current:
            were = "was" if len(self._current) == 1 else "were"
            say(f"  {len(self._current):,} of {count_of(len(self._paths), 'step')} {were} up to date", "dim")

    def _label(self, spec: ArtifactSpec) -> str:
        return f"{len(self._ended - {spec.path}) + 1} of {len(self._paths)}  {spec.path[-1]}"


def _count_built(spec: ArtifactSpec, partitions: Sequence[str], result: StepResult) -> str:
    """Describe how much of an artifact was built, without counts for a sensitive dataset."""
    how = "built" if result.built else "reused, checked"
    if spec.partitions is None or spec.declaration.sensitive:
        return how
    if result.built and result.reused:
        how = f"{result.built:,} built, {result.reused:,} reused"
        return f"{count_of(len(partitions), spec.noun)} ({how})"
    return f"{count_of(len(partitions), spec.noun)} {how}"
