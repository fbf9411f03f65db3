"""What each step of a training run reads: a pure function of its schedule and the step, and its inverse.

Step `s` reads the samples `(s - first_step) * batch` and following of its revision. The mixture says of which source a
sample is and the how-manieth of it; the source's order says which tokens that is. Nothing here reads a file, or keeps
anything of the steps before: ranks, workers and resumes do not enter.

Entry points: `Sampler`, `Spans`, `SampleRead`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError, NotFoundError, count_of
from dataprep_assets.serving.sampler.mixture import mixture_of
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
    """The spans of tokens that some samples consist of, in the order of the samples; int64 arrays of one length.

    `row` numbers the samples as they were asked for, `source` the sources of the revision, `epoch` the epoch of the
    source, `shard` the shards of the source; `[start, stop)` are tokens of the shard.
    """

    row: Int64
    source: Int64
    epoch: Int64
    shard: Int64
    start: Int64
    stop: Int64


@dataclass(frozen=True, kw_only=True)
class SampleRead:
    """One time that a step reads a span of tokens: at a position of its batch, in an epoch of the source."""

    step: int
    position: int
    source: str
    epoch: int
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class SourceProgress:
    """How far a source has been read: `done` samples of the order of an epoch, under the rules of a revision."""

    source: Source
    rules: tuple[int, int, Samples]
    epoch: int
    order: SourceOrder
    done: int


class SourceCursor:
    """A source under one revision: the order that is under way when it begins, and the epochs that follow."""

    def __init__(
        self, source: Source, revision: Revision, number: int, packs: Packs | None, before: SourceProgress | None
    ) -> None:
        self.source, self._seed, self._number = source, revision.seed, number
        self._rules = (revision.sequence_length, revision.seed, revision.samples)
        self._packs = packs if revision.samples == "documents" else None
        self._whole = SampleSlots(source.shards, revision.sequence_length, self._packs)
        # neighbouring steps lie in the same few epochs
        self._of_epoch = lru_cache(maxsize=4)(self._order_from_start)
        # Where the source stands as the turn begins: `done` samples of this order were read under earlier revisions.
        self.epoch, self.order, self.done = (
            (0, self._order_from_start(0), 0) if before is None else self._resumed(before)
        )
        self.left = self.order.size - self.done

    def _resumed(self, before: SourceProgress) -> tuple[int, SourceOrder, int]:
        then = {shard.name: number for number, shard in enumerate(before.source.shards)}
        moved = np.full(len(then), -1, np.int64)
        changed: dict[int, SourceShard] = {}
        new: list[Run] = []
        for number, shard in enumerate(self.source.shards):
            old = then.get(shard.name)
            # another shard under the name of one that is gone has nothing of it: all of it is new
            if old is None or not shard.follows(before.source.shards[old]):
                new.append((number, 0, shard.tokens))
                continue
            moved[old] = number
            if (shard.removed or shard.added) and shard.content != before.source.shards[old].content:
                changed[old] = shard
                new += [(number, start, stop) for start, stop in shard.added]
        # The epoch has ended, and nothing came new that would still belong to it.
        if before.done == before.order.size and not new:
            return before.epoch + 1, self._order_from_start(before.epoch + 1), 0
        # Batch and weights do not decide the order: where all else is as before, it goes on without another link.
        if before.rules == self._rules and before.source.lock == self.source.lock:
            return before.epoch, before.order, before.done
        remainder = Remainder(before.order, before.done, self._whole.length, moved, changed)
        new_slots = SampleSlots(self.source.shards, self._whole.length, self._packs, new)
        order = SourceOrder(new_slots, self._key(before.epoch), self.source.shards, remainder)
        # all that was left may have been retracted
        return (
            (before.epoch, order, 0) if order.size else (before.epoch + 1, self._order_from_start(before.epoch + 1), 0)
        )

    @property
    def whole_epoch(self) -> int:
        """Samples of an epoch that begins in it."""
        return self._whole.size

    def _key(self, epoch: int) -> tuple[str | int, ...]:
        # with the number of the revision: each one shuffles what is left of an epoch anew
        return self._seed, self.source.name, epoch, self._number

    def _order_from_start(self, epoch: int) -> SourceOrder:
        return SourceOrder(self._whole, self._key(epoch), self.source.shards)

    def order_of(self, epoch: int) -> SourceOrder:
        """The order of an epoch from the one under way on."""
        return self.order if epoch == self.epoch else self._of_epoch(epoch)

    def located(self, ordinals: Int64) -> tuple[Int64, Int64]:
        """The epoch of the turn's samples, and which sample of that epoch's order each is."""
        excess = ordinals - self.left
        size = max(self._whole.size, 1)
        under_way = excess < 0
        epoch = np.where(under_way, self.epoch, self.epoch + 1 + excess // size)
        return epoch, np.where(under_way, ordinals + self.done, excess % size)

    def ordinals(self, epoch: int, samples: Int64) -> Int64:
        """The inverse of `located`, without the samples that were read before the turn began."""
        if epoch == self.epoch:
            return samples[samples >= self.done] - self.done
        return self.left + (epoch - self.epoch - 1) * self._whole.size + samples

    def max_samples(self) -> int | None:
        """Return how many samples it may give until its last epoch ends; None: any number."""
        if self.source.epochs is None:
            return None
        further = self.source.epochs - 1 - self.epoch
        return 0 if further < 0 else self.left + further * self._whole.size

    def ends(self, count: int) -> Iterator[tuple[int, int]]:
        """(epoch, number of the turn's samples after which it ends), of those that end within `count`."""
        epoch, end = self.epoch, self.left
        while end <= count:
            yield epoch, end
            epoch, end = epoch + 1, end + self._whole.size

    def epochs_read(self, count: int) -> float:
        """Return how many times all of the source has been read after `count` of the turn's samples."""
        epoch, done_count = (int(column[0]) for column in self.located(np.array([count])))
        return epoch + self.order_of(epoch).read(done_count)

    def tokens(self, count: int) -> int:
        """The tokens of the turn's first `count` samples, see `SourceOrder.tokens`."""
        total, epoch, start = 0, self.epoch, self.done
        while count > 0:
            order = self.order_of(epoch)
            stop = min(order.size, start + count)
            total += order.tokens(start, stop)
            count, epoch, start = count - (stop - start), epoch + 1, 0
        return total

    def after(self, count: int) -> SourceProgress:
        """Return how far it has been read after `count` of the turn's samples."""
        epoch, done_count = (int(column[0]) for column in self.located(np.array([count])))
        order = self.order_of(epoch)
        if count and not done_count:  # an epoch has just ended: what comes new at this very step still belongs to it
            epoch, order = epoch - 1, self.order_of(epoch - 1)
            done_count = order.size
        return SourceProgress(source=self.source, rules=self._rules, epoch=epoch, order=order, done=done_count)

    def pieces(self, ordinals: Int64) -> tuple[Int64, TokenSlices]:
        """The epoch of each of the turn's samples, and their spans."""
        epochs, samples = self.located(ordinals)
        parts = []
        for epoch in np.unique(epochs).tolist():
            rows = np.flatnonzero(epochs == epoch)
            parts.append(self.order_of(epoch).pieces(samples[rows]).of_rows(rows))
        return epochs, join_slices(parts)


class RevisionRule:
    """A revision with the turns of its sources, and the steps `[first, stop)` that it decides."""

    def __init__(
        self, revision: Revision, reign: RevisionInterval, packs: Packs | None, before: dict[str, SourceProgress]
    ) -> None:
        self.revision, self.number, self.first = revision, reign.revision, reign.first
        self.mixture = mixture_of(tuple(source.share for source in revision.sources))
        self.turns = [SourceCursor(s, revision, reign.revision, packs, before.get(s.name)) for s in revision.sources]
        self.end, self.why = self._end()
        """The first step that cannot be made under it, and why."""
        self.stop = self.end if reign.stop is None else reign.stop

    def _end(self) -> tuple[int, str]:
        limits = (
            []
            if self.revision.steps is None
            else [(self.revision.steps, f"the run has {count_of(self.revision.steps, 'step')}")]
        )
        for number, turn in enumerate(self.turns):
            if (allowed := turn.max_samples()) is not None:
                # samples count from 0, so this is the first that the source may not give: its step cannot be made
                sample = int(self.mixture.place_of(number, np.array([allowed]))[0])
                often = f"{turn.source.epochs} times" if turn.source.epochs != 1 else "once"
                why = f"source {turn.source.name} has then been read {often}, the limit set by its `epochs`"
                limits.append((self.first + sample // self.revision.batch, why))
        return min(limits)

    def counts(self, step: int) -> list[int]:
        """Samples of each source that its steps before `step` read."""
        return self.mixture.counts((step - self.first) * self.revision.batch)

    def after(self, step: int) -> dict[str, SourceProgress]:
        """Return how far its sources have been read when the steps before `step` have been read."""
        turn_counts = zip(self.turns, self.counts(step), strict=True)
        return {turn.source.name: turn.after(count) for turn, count in turn_counts}


class Sampler:
    """See the module.

    Args:
        schedule: The schedule.
        packs: Gives the packs of a shard; needed where samples are whole documents.
    """

    def __init__(self, schedule: ScheduleHistory, packs: Packs | None = None) -> None:
        self.schedule = schedule
        self.rules: list[RevisionRule] = []
        progress: dict[str, SourceProgress] = {}
        # one after another: where a revision begins in its sources follows from what those before it read
        for reign in schedule.reigns:
            rule = RevisionRule(schedule.revisions[reign.revision], reign, packs, progress)
            if rule.stop > rule.end:
                raise ConfigError(
                    f"{schedule.name}: revision {reign.revision} reads until step {rule.end}, because {rule.why}; the "
                    f"next revision begins at step {rule.stop}"
                )
            self.rules.append(rule)
            progress = {**progress, **rule.after(rule.stop)}  # a source that is left out keeps its place

    @property
    def end(self) -> int:
        """The number of steps of the run."""
        return self.rules[-1].stop

    def rule(self, step: int) -> RevisionRule:
        """The revision of a step; raises NotFoundError for one that the schedule does not have."""
        reign = self.schedule.reign(step)
        rule = next(rule for rule in self.rules if rule.number == reign.revision)
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
        """The samples of all steps."""
        return self.number(self.end)

    def number(self, step: int) -> int:
        """The number of a step's first sample, counted from the first step on."""
        return sum(
            (min(rule.stop, step) - rule.first) * rule.revision.batch for rule in self.rules if rule.first < step
        )

    def place(self, number: int) -> tuple[int, int]:
        """The step that reads a sample, and its position there; raises IndexError beyond the last."""
        remaining = number
        for rule in self.rules:
            count = (rule.stop - rule.first) * rule.revision.batch
            if 0 <= remaining < count:
                return rule.first + remaining // rule.revision.batch, remaining % rule.revision.batch
            remaining -= count
        raise IndexError(f"{self.schedule.name}: sample {number} is out of range: it has {self.samples} samples")

    def positions(self, step: int, rank: int = 0, world_size: int = 1) -> Int64:
        """The positions of a step's batch that a rank reads; together the ranks read each once.

        Raises ConfigError for a rank that is not below `world_size`.
        """
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank {rank} is out of range: {world_size} ranks are counted from 0")
        return np.arange(rank, self.rule(step).revision.batch, world_size, dtype=np.int64)

    def spans(self, step: int, positions: Sequence[int] | Int64 | None = None) -> Spans:
        """Return what a step reads: the spans of the samples at these positions of its batch (default: all), in
        order."""
        rule = self.rule(step)
        batch_positions = np.arange(rule.revision.batch) if positions is None else np.asarray(positions, np.int64)
        if batch_positions.size and not 0 <= batch_positions.min() <= batch_positions.max() < rule.revision.batch:
            raise NotFoundError(
                f"step {step}: positions {batch_positions.min()} to {batch_positions.max()} are outside the batch of "
                f"{rule.revision.batch}"
            )
        return self.spans_of(rule, (step - rule.first) * rule.revision.batch + batch_positions)

    def spans_of(self, rule: RevisionRule, samples: Int64) -> Spans:
        """The spans of the samples of a revision, numbered from its first step on."""
        source, ordinal = rule.mixture.locate(samples)
        parts = []
        for number in np.unique(source).tolist():
            rows = np.flatnonzero(source == number)
            epochs, slices = rule.turns[number].pieces(ordinal[rows])
            own = slices.of_rows(rows)
            parts.append((own, np.full(len(own.row), number), epochs[slices.row]))
        if not parts:
            return Spans(*[_NONE] * 6)
        pieces = join_slices([own for own, _, _ in parts])
        # sources were asked one by one; now back into the order of the samples, and of the spans in each
        order = np.lexsort((pieces.at, pieces.row))
        sources, epochs = (np.concatenate([part[column] for part in parts])[order] for column in (1, 2))
        return Spans(pieces.row[order], sources, epochs, pieces.shard[order], pieces.start[order], pieces.stop[order])

    def readings(
        self,
        content: str,
        start: int,
        stop: int,
        *,
        first: int = 0,
        until: int | None = None,
        within: tuple[str, int] | None = None,
    ) -> Iterator[SampleRead]:
        """Every time that the tokens `[start, stop)` of the shard with this content are read, in no particular order.

        `first` and `until` bound the steps, `within` is the only source that is asked, and the only epoch of it.
        """
        if start >= stop:
            return
        for rule in self.rules:
            low, high = max(first, rule.first), min(rule.stop, self.end if until is None else until)
            if low < high:
                for number, turn in enumerate(rule.turns):
                    if within is not None and within[0] != turn.source.name:
                        continue
                    epoch = None if within is None else within[1]
                    for shard, source_shard in enumerate(turn.source.shards):
                        if source_shard.content == content:
                            yield from self._in_turn(rule, number, shard, (start, stop), (low, high), epoch)

    def _in_turn(
        self,
        rule: RevisionRule,
        number: int,
        shard: int,
        span: tuple[int, int],
        steps: tuple[int, int],
        only: int | None = None,
    ) -> Iterator[SampleRead]:
        turn, batch = rule.turns[number], rule.revision.batch
        count = rule.counts(steps[1])[number]
        if not count:
            return
        last_epoch = int(turn.located(np.array([count - 1]))[0][0])
        for epoch in range(turn.epoch, last_epoch + 1):
            if only not in (None, epoch):
                continue
            ordinals = turn.ordinals(epoch, turn.order_of(epoch).touching(shard, *span))
            ordinals = ordinals[ordinals < count]
            pieces = turn.pieces(ordinals)[1] if len(ordinals) else None
            if pieces is None:
                continue
            # `touching` names some samples too many, and a sample has other spans, too
            own = pieces.where((pieces.shard == shard) & (pieces.start < span[1]) & (pieces.stop > span[0]))
            samples = rule.mixture.place_of(number, ordinals[own.row])
            for sample, start, stop in zip(samples.tolist(), own.start.tolist(), own.stop.tolist(), strict=True):
                step = rule.first + sample // batch
                if steps[0] <= step < steps[1]:
                    yield SampleRead(
                        step=step,
                        position=sample % batch,
                        source=turn.source.name,
                        epoch=epoch,
                        start=max(start, span[0]),
                        stop=min(stop, span[1]),
                    )
