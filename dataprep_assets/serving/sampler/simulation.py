"""Simulation of a schedule: tokens per source up to a step, the number of its epochs, and the steps at which they end.

It is computed only from the schedule. The result is exact for windows. For packed documents, an unfinished epoch is
estimated from the mean sample.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dataprep_assets.serving.sampler.sampler import RevisionRule, Sampler
from dataprep_assets.table import format_share


@dataclass(frozen=True, kw_only=True)
class SourceRead:
    """Data read from a source up to a step.

    Attributes:
        source: Name of the source.
        samples: Number of samples read.
        tokens: Number of tokens read.
        share: Share of all samples.
        epochs: Number of passes over the source; 1.5 means one and a half passes.
        ends: (epoch, step) of each epoch that ends before that step; `step` is the first that reads the next epoch.
    """

    source: str
    samples: int
    tokens: int
    share: float
    epochs: float
    ends: tuple[tuple[int, int], ...]


def simulate_reads(sampler: Sampler, until: int) -> list[SourceRead]:
    """Return the data that the steps before `until` read from each source, in the sources' order of appearance."""
    samples: dict[str, int] = {}
    tokens: dict[str, int] = {}
    epochs: dict[str, float] = {}
    ends: dict[str, list[tuple[int, int]]] = {}
    for rule in sampler.rules:
        stop = min(rule.stop, until)
        if stop <= rule.first:
            continue
        for number, (cursor, count) in enumerate(zip(rule.turns, rule.count_samples(stop), strict=True)):
            name = cursor.source.name
            samples[name] = samples.get(name, 0) + count
            tokens[name] = tokens.get(name, 0) + cursor.count_tokens(count)
            # Do not sum the epochs, because `count_epochs_read` already includes the epochs of earlier revisions.
            epochs[name] = cursor.count_epochs_read(count)
            ends.setdefault(name, []).extend(_find_epoch_ends(rule, number, count))
    total = sum(samples.values())
    return [
        SourceRead(
            source=name,
            samples=count,
            tokens=tokens[name],
            share=count / max(total, 1),
            epochs=epochs[name],
            ends=tuple(ends[name]),
        )
        for name, count in samples.items()
    ]


def _find_epoch_ends(rule: RevisionRule, number: int, count: int) -> Iterator[tuple[int, int]]:
    for epoch, ordinal in rule.turns[number].find_epoch_ends(count):
        # Samples are numbered from 0, so `ordinal` is the number of the next epoch's first sample.
        position = int(rule.mixture.find_sample_numbers(number, np.array([ordinal]))[0])
        yield epoch, rule.first + position // rule.revision.batch


def format_simulation(sampler: Sampler, until: int | None = None) -> list[str]:
    """Return the simulation as lines of text."""
    stop = sampler.end if until is None else until
    lines = [f"{'source':<24}{'samples':>14}{'tokens':>18}{'share':>9}{'epochs':>9}  epochs end at steps"]
    for row in simulate_reads(sampler, stop):
        steps = [f"{step:,}" for _, step in row.ends]
        text = ", ".join(steps[:4]) + (f" and {len(steps) - 4} more" if len(steps) > 4 else "")
        lines.append(
            f"{row.source:<24}{row.samples:>14,}{row.tokens:>18,}{format_share(row.share):>9}{row.epochs:>9.2f}"
            f"  {text or '-'}"
        )
    if until is None:
        lines.append(f"steps 0 to {stop - 1:,}, where the schedule ends, because {sampler.rules[-1].why}")
    for interval in sampler.schedule.withdrawn_intervals:
        lines.append(
            f"withdrawn: steps {interval.first:,} to {(interval.stop or 0) - 1:,} of revision {interval.revision}"
        )
    return lines
