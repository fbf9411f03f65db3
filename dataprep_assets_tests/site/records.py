"""Simulated records: histories of daily runs, and states of datasets."""

import random
from collections.abc import Iterator

from dataprep_assets.engine.checks.results import UnpassedCheck
from dataprep_assets.site.history import BuildRecord, CheckRecord, DatasetHistory
from dataprep_assets.site.states import DatasetState

DAY, START = 86_400.0, 1_767_225_600.0
"""Seconds of a day, and 2026-01-01."""
_KINDS = ("TokenizedCorpus", "TrainingBlend", "NotesPipeline")


def make_history(days: int, seed: int = 0) -> DatasetHistory:
    """Return the history of a dataset that grows a little with each daily run; a check fails every tenth day."""
    chance = random.Random(seed)
    builds, documents = [], 10_000 + 1_000 * seed
    for day in range(days):
        documents += chance.randrange(200)
        dropped = documents // 20 + chance.randrange(100)
        builds.append(
            BuildRecord(
                time=START + day * DAY,
                run_id=f"run-{day}",
                rows=documents + dropped,
                documents=documents,
                tokens=documents * 700,
                dropped=dropped,
                volumes={
                    ("train", "", "all rows"): documents + dropped,
                    ("train", "short", "rows dropped"): dropped - 50,
                    ("train", "symbols", "rows dropped"): 50,
                },
            )
        )
    evaluations = [
        CheckRecord(START + day * DAY, day % 10 != 9, "WARN", f"run-{day}") for day in range(max(0, days - 60), days)
    ]
    return DatasetHistory(builds=tuple(builds), checks={("token_bins", "length_change"): tuple(evaluations)})


def make_states(number: int, days: int) -> Iterator[DatasetState]:
    """Yield datasets in all states, with a history of daily runs."""
    for at in range(number):
        finding = {
            1: {("train/token_bins", "roundtrip"): UnpassedCheck("3 documents of 2,000 differ. Rebuild them.", True)},
            2: {("train/token_bins", "length_change"): UnpassedCheck("Documents are 12 % shorter than last week.")},
        }.get(at % 7, {})
        stale = 3 if at % 7 == 3 else 0
        state = {4: "never built", 5: "unknown"}.get(at % 7, f"{stale} to build" if stale else "up to date")
        yield DatasetState(
            dataset=f"corpus_of_the_web_{at:02}",
            kind=_KINDS[at % 3],
            owners=(("team:data",), ("a@example.com", "team:data"), ())[at % 3],
            state=state,
            to_build=stale,
            why={3: "token_bins: source files changed", 5: "the bucket cannot be reached"}.get(at % 7, ""),
            passed=0 if state == "never built" else 30 - len(finding),
            not_passed=finding,
            card={} if state in ("never built", "unknown") else {"documents": "12,345", "tokens": "8,641,500"},
            history=DatasetHistory() if state == "never built" else make_history(days, at),
        )
