"""Progress of a step: counts of the work of its tasks, shown on all sinks.

`Progress` connects the workers' counts with the terminal and the run's log. The loop over tasks (`jobs.run_jobs`) adds
counts to it and calls `show`. Each sink decides how often it displays them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from dataprep_assets.bounds import report_progress
from dataprep_assets.errors import count_of
from dataprep_assets.table import format_share

RATE_SECONDS = 5.0
"""Seconds before a rate is shown, because the start of the workers takes a large part of a shorter time."""


class Sink(Protocol):
    """Output that shows progress, such as a terminal or a log."""

    def show(self, progress: "Progress") -> None:
        """Show the progress if it is due; this method is called for every count, thousands of times per second."""

    def close(self, progress: "Progress") -> None:
        """Show the progress for the last time."""


class Progress:
    """Processed share of a known total of source bytes, with average rate and remaining time."""

    def __init__(
        self,
        *,
        workers: int = 1,
        source_bytes: int = 0,
        sinks: Sequence[Sink] = (),
        clock: Callable[[], float] = time.monotonic,
        amounts: bool = True,
    ) -> None:
        """Start counting.

        Args:
            workers: Number of workers that share the work.
            source_bytes: Total number of source bytes to read.
            sinks: The places that show the progress.
            clock: Returns the current time in seconds.
            amounts: Whether to show amounts; if not, only the percentage is shown.
        """
        self._clock, self._sinks, self._amounts = clock, sinks, amounts
        self.started = clock()
        self.workers, self.source_bytes = workers, source_bytes
        self.done: dict[str, int] = {"tokens": 0, "documents": 0, "source_bytes": 0, "cpu_ms": 0}

    def expect(self, source_bytes: int, workers: int) -> None:
        """Set the total number of bytes to read and the number of workers, before the work begins."""
        self.source_bytes, self.workers = source_bytes, workers

    def add(self, counts: Mapping[str, int]) -> None:
        """Add counts by name: tokens, documents, source_bytes, cpu_ms."""
        # Report the workers' progress as progress of this process. Otherwise, the limit on CPU time without progress
        # (`bounds`) could terminate this process, which only waits for the workers.
        report_progress()
        for name, value in counts.items():
            self.done[name] = self.done.get(name, 0) + value

    def show(self) -> None:
        """Let the sinks show the progress."""
        for sink in self._sinks:
            sink.show(self)

    def close(self) -> None:
        """End the step: let the sinks show the last state."""
        for sink in self._sinks:
            sink.close(self)

    @property
    def has_counts(self) -> bool:
        """Whether any source bytes were counted."""
        return self.done["source_bytes"] > 0

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return max(self._clock() - self.started, 1e-9)

    @property
    def fraction(self) -> float:
        """Share of the source bytes that is processed, 0 to 1."""
        return min(1.0, self.done["source_bytes"] / self.source_bytes) if self.source_bytes else 1.0

    @property
    def eta_seconds(self) -> float | None:
        """Remaining seconds at the rate so far; None before there is a rate."""
        return self.seconds * (1 - self.fraction) / self.fraction if self.fraction > 0 else None

    @property
    def expected_tokens(self) -> int | None:
        """Expected total number of tokens, by the tokens per source byte so far; None at the start."""
        return int(self.done["tokens"] / self.fraction) if self.fraction > 0 else None

    @property
    def amount(self) -> str:
        """The work done and expected, as text: tokens, or bytes if no tokens are counted; empty if neither is known."""
        if not self._amounts:
            return ""
        tokens, source = self.done["tokens"], self.done["source_bytes"]
        if not tokens:
            return f"{source / 1e6:,.1f} of {self.source_bytes / 1e6:,.1f} MB"
        total = f"~{self.expected_tokens:,}" if self.expected_tokens is not None else "?"
        return f"{tokens:,} of {total} tokens"

    @property
    def rate(self) -> str:
        """The work done per second, as text; empty if there are no amounts, and in the first `RATE_SECONDS`."""
        if not self._amounts or self.seconds < RATE_SECONDS:
            return ""
        if tokens := self.done["tokens"]:
            return f"{tokens / self.seconds / 1e6:.2f} M tokens/s"
        return f"{self.done['source_bytes'] / self.seconds / 1e6:.1f} MB/s"

    @property
    def time_left(self) -> str:
        """The time left, as text; `?` before there is a rate."""
        from dataprep_assets.planning.cost import format_seconds

        return format_seconds(self.eta_seconds).strip() if self.eta_seconds is not None else "?"

    def format_line(self) -> str:
        """Return one line for a log; its CPU percentage is the workers' CPU time divided by elapsed time × workers."""
        if not self._amounts:
            return format_share(self.fraction)
        line = "  ".join(filter(None, [f"{format_share(self.fraction):>6}", self.amount, self.rate]))
        if not self.done["tokens"]:
            return f"{line}  ETA {self.time_left}"
        # Dividing by 10 converts milliseconds to seconds (a factor of 1/1,000) and a share to a percentage (a factor of
        # 100).
        saturation = self.done["cpu_ms"] / 10 / (self.seconds * self.workers)
        documents = count_of(self.done["documents"], "document")
        return f"{line}  {documents}  ETA {self.time_left}  CPU {saturation:.0f}% of {count_of(self.workers, 'worker')}"
