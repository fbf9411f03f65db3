"""Mapping from the steps of a training run to the tokens they read: a pure function of the schedule, and its inverse.

Step `s` reads `batch` samples of its revision, starting at sample `(s - first_step) * batch`. The mixture determines
the source of each sample and its number there; the source's order determines its tokens. Nothing here reads a file or
keeps state of earlier steps, so the result does not depend on ranks, workers or resumes.

Entry points: `Sampler`, `Spans`, `SampleRead`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError, NotFoundError, count_of
from dataprep_assets.serving.sampler.mixture import load_mixture
from dataprep_assets.serving.sampler.source_order import (
    Packs,
    Remainder,
    Run,
    SampleSlots,
    SourceOrder,
    TokenSlices,
    join_slices,
)
from dataprep_assets.serving.sampler.training_schedule import (
    Revision,
    RevisionInterval,
    Samples,
    ScheduleHistory,
    Source,
    SourceShard,
)

Int64 = NDArray[np.int64]
_NONE = np.empty(0, np.int64)


class Spans(NamedTuple):
    """Token spans of some samples, in the order of the samples; int64 arrays of equal length.

    `row` is the number of the sample in the request, `source` the number of the source in the revision, `epoch` the
    epoch of the source and `shard` the number of the shard in the source. `[start, stop)` are tokens of the shard.
    """

    row: Int64
    source: Int64
    epoch: Int64
    shard: Int64
    start: Int64
    stop: Int64


@dataclass(frozen=True, kw_only=True)
class SampleRead:
    """One reading of a token span by a step, at a position of its batch and in an epoch of the source."""

    step: int
    position: int
    source: str
    epoch: int
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class SourceProgress:
    """Progress in a source: the first `done` samples of an epoch's order were read, under the rules of a revision."""

    source: Source
    rules: tuple[int, int, Samples]
    epoch: int
    order: SourceOrder
    done: int


class SourceCursor:
    """A source's turn under one revision: the order in progress when the turn begins, and the following epochs."""

    def __init__(
        self, source: Source, revision: Revision, number: int, packs: Packs | None, progress: SourceProgress | None
    ) -> None:
        self.source, self._seed, self._number = source, revision.seed, number
        self._rules = (revision.sequence_length, revision.seed, revision.samples)
        self._packs = packs if revision.samples == "documents" else None
        self._whole = SampleSlots(source.shards, revision.sequence_length, self._packs)
        # Cache the orders, because neighboring steps read from the same few epochs.
        self._of_epoch = lru_cache(maxsize=4)(self._order_from_start)
        # Start after the first `done` samples of this order, because earlier revisions have read them.
        self.epoch, self.order, self.done = (
            (0, self._order_from_start(0), 0) if progress is None else self._resume_position(progress)
        )
        self.left = self.order.size - self.done

    def _resume_position(self, progress: SourceProgress) -> tuple[int, SourceOrder, int]:
        """Return the epoch in progress, its order in the current shards, and the number of its samples already read."""
        numbers_by_name = {shard.name: number for number, shard in enumerate(progress.source.shards)}
        new_numbers = np.full(len(numbers_by_name), -1, np.int64)
        changed: dict[int, SourceShard] = {}
        new: list[Run] = []
        for number, shard in enumerate(self.source.shards):
            old = numbers_by_name.get(shard.name)
            # A new shard may reuse a removed shard's name but has none of its tokens, so all tokens of the new shard
            # are new.
            if old is None or not shard.follows(progress.source.shards[old]):
                new.append((number, 0, shard.tokens))
                continue
            new_numbers[old] = number
            if (shard.removed or shard.added) and shard.content != progress.source.shards[old].content:
                changed[old] = shard
                new += [(number, start, stop) for start, stop in shard.added]
        # An epoch that has ended and has no new content is complete, so begin the next epoch.
        if progress.done == progress.order.size and not new:
            return progress.epoch + 1, self._order_from_start(progress.epoch + 1), 0
        # Batch and weights do not affect the order, so keep the order if nothing else changed.
        if progress.rules == self._rules and progress.source.lock == self.source.lock:
            return progress.epoch, progress.order, progress.done
        remainder = Remainder(progress.order, progress.done, self._whole.length, new_numbers, changed)
        new_slots = SampleSlots(self.source.shards, self._whole.length, self._packs, new)
        order = SourceOrder(new_slots, self._build_permutation_key(progress.epoch), self.source.shards, remainder)
        # The order is empty if all remaining tokens were retracted. In that case, begin the next epoch.
        return (
            (progress.epoch, order, 0)
            if order.size
            else (progress.epoch + 1, self._order_from_start(progress.epoch + 1), 0)
        )

    @property
    def epoch_samples(self) -> int:
        """Number of samples in an epoch that begins under this revision."""
        return self._whole.size

    def _build_permutation_key(self, epoch: int) -> tuple[str | int, ...]:
        # Include the revision's number in the key, so that each revision reshuffles the rest of an epoch.
        return self._seed, self.source.name, epoch, self._number

    def _order_from_start(self, epoch: int) -> SourceOrder:
        return SourceOrder(self._whole, self._build_permutation_key(epoch), self.source.shards)

    def get_order(self, epoch: int) -> SourceOrder:
        """Return the order of the epoch in progress or of a later one."""
        return self.order if epoch == self.epoch else self._of_epoch(epoch)

    def locate(self, ordinals: Int64) -> tuple[Int64, Int64]:
        """Return the epoch of each of the turn's samples, and its number in that epoch's order."""
        excess = ordinals - self.left
        size = max(self._whole.size, 1)
        under_way = excess < 0
        epoch = np.where(under_way, self.epoch, self.epoch + 1 + excess // size)
        return epoch, np.where(under_way, ordinals + self.done, excess % size)

    def find_ordinals(self, epoch: int, samples: Int64) -> Int64:
        """Return the turn's numbers of samples of an epoch, omitting samples that were read before the turn began.

        This is the inverse of `locate`.
        """
        if epoch == self.epoch:
            return samples[samples >= self.done] - self.done
        return self.left + (epoch - self.epoch - 1) * self._whole.size + samples

    def max_samples(self) -> int | None:
        """Return the maximum number of samples until the source's last epoch ends; None if there is no limit."""
        if self.source.epochs is None:
            return None
        further = self.source.epochs - 1 - self.epoch
        return 0 if further < 0 else self.left + further * self._whole.size

    def find_epoch_ends(self, count: int) -> Iterator[tuple[int, int]]:
        """Yield (epoch, number of the turn's samples at its end) for each epoch that ends within `count` samples."""
        epoch, end = self.epoch, self.left
        while end <= count:
            yield epoch, end
            epoch, end = epoch + 1, end + self._whole.size

    def count_epochs_read(self, count: int) -> float:
        """Return the number of passes over the source after the turn's first `count` samples."""
        epoch, done_count = (int(column[0]) for column in self.locate(np.array([count])))
        return epoch + self.get_order(epoch).read(done_count)

    def count_tokens(self, count: int) -> int:
        """Return the number of tokens in the turn's first `count` samples; see `SourceOrder.estimate_tokens`."""
        total, epoch, start = 0, self.epoch, self.done
        while count > 0:
            order = self.get_order(epoch)
            stop = min(order.size, start + count)
            total += order.estimate_tokens(start, stop)
            count, epoch, start = count - (stop - start), epoch + 1, 0
        return total

    def find_progress(self, count: int) -> SourceProgress:
        """Return the progress after the turn's first `count` samples."""
        epoch, done_count = (int(column[0]) for column in self.locate(np.array([count])))
        order = self.get_order(epoch)
        # If an epoch has just ended, stay at its end, because content that is added at this step still belongs to that
        # epoch.
        if count and not done_count:
            epoch, order = epoch - 1, self.get_order(epoch - 1)
            done_count = order.size
        return SourceProgress(source=self.source, rules=self._rules, epoch=epoch, order=order, done=done_count)

    def find_spans(self, ordinals: Int64) -> tuple[Int64, TokenSlices]:
        """Return the epoch of each of the turn's samples, and the samples' spans."""
        epochs, samples = self.locate(ordinals)
        parts = []
        for epoch in np.unique(epochs).tolist():
            rows = np.flatnonzero(epochs == epoch)
            parts.append(self.get_order(epoch).find_spans(samples[rows]).renumber_rows(rows))
        return epochs, join_slices(parts)


class RevisionRule:
    """A revision with the turns of its sources and the steps `[first, stop)` that it determines."""

    def __init__(
        self,
        revision: Revision,
        interval: RevisionInterval,
        packs: Packs | None,
        progress_by_source: dict[str, SourceProgress],
    ) -> None:
        self.revision, self.number, self.first = revision, interval.revision, interval.first
        self.mixture = load_mixture(tuple(source.share for source in revision.sources))
        self.turns = [
            SourceCursor(s, revision, interval.revision, packs, progress_by_source.get(s.name))
            for s in revision.sources
        ]
        self.end, self.why = self._find_end()
        """First step that the revision cannot build, and the reason."""
        self.stop = self.end if interval.stop is None else interval.stop

    def _find_end(self) -> tuple[int, str]:
        limits = (
            []
            if self.revision.steps is None
            else [(self.revision.steps, f"the run has {count_of(self.revision.steps, 'step')}")]
        )
        for number, cursor in enumerate(self.turns):
            if (allowed := cursor.max_samples()) is not None:
                # Samples are numbered from 0, so `allowed` is the number of the first sample beyond the limit.
                sample = int(self.mixture.find_sample_numbers(number, np.array([allowed]))[0])
                times_text = f"{cursor.source.epochs} times" if cursor.source.epochs != 1 else "once"
                reason = f"`epochs` allows source {cursor.source.name} to be read only {times_text}"
                limits.append((self.first + sample // self.revision.batch, reason))
        return min(limits)

    def count_samples(self, step: int) -> list[int]:
        """Return the number of samples per source that the revision's steps before `step` read."""
        return self.mixture.count_samples((step - self.first) * self.revision.batch)

    def find_progress(self, step: int) -> dict[str, SourceProgress]:
        """Return the progress of each source after the steps before `step`."""
        turn_counts = zip(self.turns, self.count_samples(step), strict=True)
        return {turn.source.name: turn.find_progress(count) for turn, count in turn_counts}


class Sampler:
    """Sampler of a schedule's steps; the module docstring describes the mapping.

    Args:
        schedule: Schedule of the run.
        packs: Returns the packs of a shard; required if samples are whole documents.
    """

    def __init__(self, schedule: ScheduleHistory, packs: Packs | None = None) -> None:
        self.schedule = schedule
        self.rules: list[RevisionRule] = []
        progress: dict[str, SourceProgress] = {}
        # Build the rules in order, because a revision continues at the positions where the earlier ones stopped.
        for interval in schedule.intervals:
            rule = RevisionRule(schedule.revisions[interval.revision], interval, packs, progress)
            if rule.stop > rule.end:
                raise ConfigError(
                    f"{schedule.name}: revision {interval.revision} ends at step {rule.end}, because {rule.why}, but "
                    f"the next revision begins at step {rule.stop}. Begin the next revision at step {rule.end} or "
                    "earlier, or raise `steps` or `epochs`"
                )
            self.rules.append(rule)
            # Keep the earlier entries, because a source that this revision leaves out keeps its position.
            progress = {**progress, **rule.find_progress(rule.stop)}

    @property
    def end(self) -> int:
        """Number of steps in the run."""
        return self.rules[-1].stop

    def find_rule(self, step: int) -> RevisionRule:
        """Return the rule that determines a step; raise NotFoundError if the schedule does not have the step."""
        interval = self.schedule.find_interval(step)
        rule = next(rule for rule in self.rules if rule.number == interval.revision)
        if step >= rule.stop:
            name = self.schedule.name
            raise NotFoundError(
                f"{name}: step {step} is out of range: the schedule has steps 0 to {rule.stop - 1}, because "
                f"{rule.why}. To continue, change the declaration and make a revision: dataprep schedule {name} "
                f"--from-step {rule.stop}"
            )
        return rule

    @property
    def samples(self) -> int:
        """Number of samples in all steps."""
        return self.find_first_sample(self.end)

    def find_first_sample(self, step: int) -> int:
        """Return the number of a step's first sample, counted from the beginning of the run."""
        return sum(
            (min(rule.stop, step) - rule.first) * rule.revision.batch for rule in self.rules if rule.first < step
        )

    def locate_sample(self, number: int) -> tuple[int, int]:
        """Return the step that reads a sample and the position in its batch; raise IndexError beyond the last one."""
        remaining = number
        for rule in self.rules:
            count = (rule.stop - rule.first) * rule.revision.batch
            if 0 <= remaining < count:
                return rule.first + remaining // rule.revision.batch, remaining % rule.revision.batch
            remaining -= count
        raise IndexError(f"{self.schedule.name}: sample {number} is out of range: must be from 0 to {self.samples - 1}")

    def find_positions(self, step: int, rank: int = 0, world_size: int = 1) -> Int64:
        """Return the positions of a step's batch that a rank reads; together the ranks read each position once.

        Raises ConfigError for a rank that is not less than `world_size`.
        """
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank {rank} is out of range: must be from 0 to {world_size - 1}")
        return np.arange(rank, self.find_rule(step).revision.batch, world_size, dtype=np.int64)

    def find_step_spans(self, step: int, positions: Sequence[int] | Int64 | None = None) -> Spans:
        """Return the token spans of a step's samples at these positions of its batch (default: all), in order."""
        rule = self.find_rule(step)
        batch_positions = np.arange(rule.revision.batch) if positions is None else np.asarray(positions, np.int64)
        if batch_positions.size and not 0 <= batch_positions.min() <= batch_positions.max() < rule.revision.batch:
            raise NotFoundError(
                f"step {step}: positions {batch_positions.min()} to {batch_positions.max()} are out of range: must be "
                f"from 0 to {rule.revision.batch - 1}"
            )
        return self.find_spans(rule, (step - rule.first) * rule.revision.batch + batch_positions)

    def find_spans(self, rule: RevisionRule, samples: Int64) -> Spans:
        """Return the spans of a revision's samples, which are numbered from its first step."""
        source, ordinal = rule.mixture.locate(samples)
        parts = []
        for number in np.unique(source).tolist():
            rows = np.flatnonzero(source == number)
            epochs, slices = rule.turns[number].find_spans(ordinal[rows])
            own_slices = slices.renumber_rows(rows)
            parts.append((own_slices, np.full(len(own_slices.row), number), epochs[slices.row]))
        if not parts:
            return Spans(*[_NONE] * 6)
        pieces = join_slices([own_slices for own_slices, _, _ in parts])
        # Restore the order of the samples and of each sample's spans, because the spans are grouped by source.
        order = np.lexsort((pieces.at, pieces.row))
        sources, epochs = (np.concatenate([part[column] for part in parts])[order] for column in (1, 2))
        return Spans(pieces.row[order], sources, epochs, pieces.shard[order], pieces.start[order], pieces.stop[order])

    def find_readings(
        self,
        content: str,
        start: int,
        stop: int,
        *,
        first: int = 0,
        until: int | None = None,
        within: tuple[str, int] | None = None,
    ) -> Iterator[SampleRead]:
        """Yield all readings of the tokens `[start, stop)` of the shard with this content, in no particular order.

        `first` and `until` limit the steps. `within` limits the search to one epoch of one source.
        """
        if start >= stop:
            return
        for rule in self.rules:
            low, high = max(first, rule.first), min(rule.stop, self.end if until is None else until)
            if low < high:
                for number, cursor in enumerate(rule.turns):
                    if within is not None and within[0] != cursor.source.name:
                        continue
                    epoch = None if within is None else within[1]
                    for shard, source_shard in enumerate(cursor.source.shards):
                        if source_shard.content == content:
                            yield from self._find_source_readings(
                                rule, number, shard, (start, stop), (low, high), epoch
                            )

    def _find_source_readings(
        self,
        rule: RevisionRule,
        number: int,
        shard: int,
        span: tuple[int, int],
        steps: tuple[int, int],
        only: int | None = None,
    ) -> Iterator[SampleRead]:
        cursor, batch = rule.turns[number], rule.revision.batch
        count = rule.count_samples(steps[1])[number]
        if not count:
            return
        last_epoch = int(cursor.locate(np.array([count - 1]))[0][0])
        for epoch in range(cursor.epoch, last_epoch + 1):
            if only not in (None, epoch):
                continue
            ordinals = cursor.find_ordinals(epoch, cursor.get_order(epoch).find_samples(shard, *span))
            ordinals = ordinals[ordinals < count]
            pieces = cursor.find_spans(ordinals)[1] if len(ordinals) else None
            if pieces is None:
                continue
            # Keep only pieces within the span, because `find_samples` may return samples outside it, and a sample may
            # also have spans outside it.
            own_pieces = pieces.select((pieces.shard == shard) & (pieces.start < span[1]) & (pieces.stop > span[0]))
            samples = rule.mixture.find_sample_numbers(number, ordinals[own_pieces.row])
            for sample, start, stop in zip(
                samples.tolist(), own_pieces.start.tolist(), own_pieces.stop.tolist(), strict=True
            ):
                step = rule.first + sample // batch
                if steps[0] <= step < steps[1]:
                    yield SampleRead(
                        step=step,
                        position=sample % batch,
                        source=cursor.source.name,
                        epoch=epoch,
                        start=max(start, span[0]),
                        stop=min(stop, span[1]),
                    )
