"""Progress of a step: its counts, its line, and the calls of its sinks."""

from dataclasses import dataclass, field

from dataprep_assets.execution.progress import Progress


@dataclass
class Clock:
    """A clock that the test moves forward."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Sink:
    """A sink that accepts every `every`-th line, like a slow terminal."""

    every: int = 1
    asked: int = 0
    lines: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

    def show(self, progress: Progress) -> None:
        self.asked += 1
        if self.asked % self.every == 0:
            self.lines.append(progress.format_line())

    def close(self, progress: Progress) -> None:
        self.closed.append(progress.format_line() if progress.has_counts else "")


def test_counts_are_summed_by_name_and_new_names_are_added() -> None:
    progress = Progress()
    progress.add({"tokens": 10, "documents": 1})
    progress.add({"tokens": 5, "rows": 2})
    assert progress.done == {"tokens": 15, "documents": 1, "source_bytes": 0, "cpu_ms": 0, "rows": 2}


def test_fraction_rate_and_remaining_time_refer_to_the_whole_step() -> None:
    clock = Clock()
    progress = Progress(clock=clock)
    progress.expect(1_000, 4)
    assert (progress.fraction, progress.eta_seconds, progress.expected_tokens) == (0.0, None, None)
    clock.now += 10
    progress.add({"source_bytes": 250, "tokens": 1_000})
    assert (progress.fraction, progress.eta_seconds, progress.expected_tokens) == (0.25, 30.0, 4_000)
    progress.add({"source_bytes": 10_000})
    assert (progress.fraction, progress.eta_seconds) == (1.0, 0.0), "a file may have grown since it was listed"


def test_a_step_that_reads_nothing_is_finished() -> None:
    assert Progress().fraction == 1.0


def test_the_line_has_tokens_rate_and_saturation_of_the_workers() -> None:
    clock = Clock()
    progress = Progress(workers=2, source_bytes=4_000_000, clock=clock)
    clock.now += 10
    progress.add({"source_bytes": 1_000_000, "tokens": 5_000_000, "documents": 1_234, "cpu_ms": 15_000})
    assert progress.format_line() == (
        " 25.0%  5,000,000 of ~20,000,000 tokens  0.50 M tokens/s  1,234 documents  ETA 30.0 s  CPU 75% of 2 workers"
    )


def test_the_line_of_a_step_without_tokens_has_bytes() -> None:
    clock = Clock()
    progress = Progress(source_bytes=4_000_000, clock=clock)
    assert progress.format_line() == "  0.0%  0.0 of 4.0 MB  ETA ?", "a rate of a start"
    clock.now += 5
    progress.add({"source_bytes": 1_000_000})
    assert progress.format_line() == " 25.0%  1.0 of 4.0 MB  0.2 MB/s  ETA 15.0 s"


def test_the_remaining_time_has_readable_units() -> None:
    clock = Clock()
    progress = Progress(source_bytes=1_000, clock=clock)
    shown = []
    for seconds in (30, 600, 7_200):
        clock.now = 100.0 + seconds
        progress.done["source_bytes"] = 500
        shown.append(progress.time_left)
    assert shown == ["30.0 s", "10.0 min", "2.0 h"]


def test_sinks_are_called_each_time_and_read_counts_only_when_needed() -> None:
    eager, slow = Sink(), Sink(every=10)
    progress = Progress(source_bytes=100, sinks=[eager, slow])
    for _ in range(20):
        progress.add({"source_bytes": 5})
        progress.show()
    assert (eager.asked, slow.asked) == (20, 20)
    assert (len(eager.lines), len(slow.lines)) == (20, 2)
    assert slow.lines[-1].startswith("100.0%")


def test_every_sink_is_notified_of_the_end() -> None:
    one, other = Sink(), Sink()
    progress = Progress(source_bytes=100, sinks=[one, other], clock=Clock())
    progress.add({"source_bytes": 100})
    progress.close()
    assert one.closed == other.closed
    assert one.closed[0].startswith("100.0%")


def test_a_step_without_counts_says_so() -> None:
    sink = Sink()
    Progress(source_bytes=100, sinks=[sink]).close()
    assert sink.closed == [""]
