"""Step output of a run: a line per finished step with its result.

On a terminal the last line shows the current step and its number: `7 of 21  token_bins_train`.
"""

import time
from collections.abc import Sequence

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.errors import count_of
from dataprep_assets.orchestration.build import BuildListener, StepResult
from dataprep_assets.orchestration.runs.terminal import clear_step, print_line, show_step

_WIDEST = 24
"""Maximum width of artifact names, in columns. A line with such a name, thousands of shards and minutes takes 60."""


class StepPrinter(BuildListener):
    """Build listener that prints a line per step."""

    def __init__(self, specs: Sequence[ArtifactSpec]) -> None:
        self._paths = {spec.path for spec in specs}
        self._ended: set[Sequence[str]] = set()
        self._width = min(max((len(spec.path[-1]) for spec in specs), default=0), _WIDEST)
        self._current: set[Sequence[str]] = set()
        self._started = 0.0
        self._reported: set[str] = set()
        self.partitions: dict[ArtifactSpec, Sequence[str | None]] = {}
        """The partitions of each artifact that the run looked at; `[None]` for an artifact without partitions."""
        self.failed_specs: set[ArtifactSpec] = set()

    def before(self, spec: ArtifactSpec, partitions: Sequence[str], *, current: bool) -> None:
        self.partitions[spec] = [None] if spec.partitions is None else [*partitions]
        if current:
            self._current.add(spec.path)
            self._ended.add(spec.path)
            return
        self._current.discard(spec.path)
        self._started = time.monotonic()
        show_step(self._format_label(spec))

    def checking(self, spec: ArtifactSpec) -> None:
        show_step(self._format_label(spec), "checks")

    def after(self, spec: ArtifactSpec, partitions: Sequence[str], result: StepResult) -> None:
        if spec.path in self._current:
            return
        clear_step()
        self._ended.add(spec.path)
        parts = [
            f"{spec.path[-1]:<{self._width}}",
            _count_built(spec, partitions, result),
            f"{time.monotonic() - self._started:,.1f} s",
            # Do not name the checks here, because the end of the run lists them with their reasons.
            *(["warning" if len(result.warned) == 1 else "warnings"] if result.warned else []),
        ]
        print_line(f"{'!' if result.warned else '✓'} {'  '.join(parts)}", "yellow" if result.warned else "green")

    def failed(self, spec: ArtifactSpec, reason: str) -> None:
        clear_step()
        self.failed_specs.add(spec)
        # Omit the reason, because it would scroll away here and is printed at the end of the run.
        print_line(f"✗ {spec.path[-1]:<{self._width}}  failed  {time.monotonic() - self._started:,.1f} s", "red")

    def report_line(self, sentence: str) -> None:
        # Print each sentence once, because artifacts with the same input may have the same warnings.
        if sentence in self._reported:
            return
        self._reported.add(sentence)
        clear_step()
        print_line(f"  {sentence}")

    def end(self) -> None:
        """Print how many steps were up to date."""
        if self._current:
            verb = "was" if len(self._current) == 1 else "were"
            print_line(f"  {len(self._current):,} of {count_of(len(self._paths), 'step')} {verb} up to date", "dim")

    def _format_label(self, spec: ArtifactSpec) -> str:
        return f"{len(self._ended - {spec.path}) + 1} of {len(self._paths)}  {spec.path[-1]}"


def _count_built(spec: ArtifactSpec, partitions: Sequence[str], result: StepResult) -> str:
    """Describe how much of an artifact was built, without counts for a sensitive dataset."""
    how = "built" if result.built_count else "checked again"
    if spec.partitions is None or spec.declaration.sensitive:
        return how
    partition_count = count_of(len(partitions), spec.noun)
    return (
        f"{partition_count}, {result.built_count:,} built"
        if result.built_count and result.reused
        else f"{partition_count} {how}"
    )
