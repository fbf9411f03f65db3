"""The order in which the samples of one source are read, in one epoch; it may have been revised while it was under way.

A `Cut` is shards cut into samples. An `Order` is a keyed permutation of all samples of a cut, or, after a revision, of
what was not read of the order before (`Rest`) together with the samples of the shards that came new. So it is a chain
as long as there were changes in one epoch, every link of which is evaluated at single points: nothing is stored but
what a retraction emptied.

A rest is seen as one long row of *slots*, the samples that were not read, each as wide as a sample was then; another
sequence length cuts that row anew. Tokens that were taken out of a shard since leave holes in their slots. Slots
without any token are left out of the count.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.serving.permutation import Permutation
from dataprep_assets.serving.training_schedule import SourceShard

Int64 = NDArray[np.int64]
_NONE = np.empty(0, np.int64)


class Pieces(NamedTuple):
    """Spans of tokens that samples consist of: int64 arrays of one length.

    `row` numbers the samples as they were asked for, `at` is the span's place in its sample, `shard` the number of its
    shard in the revision's source, `[start, stop)` its tokens there.
    """

    row: Int64
    at: Int64
    shard: Int64
    start: Int64
    stop: Int64

    def of_rows(self, rows: Int64) -> "Pieces":
        """The same spans, of the samples that had these numbers."""
        return self._replace(row=rows[self.row])

    def where(self, mask: NDArray[np.bool_]) -> "Pieces":
        """Some of the spans."""
        return Pieces(*(column[mask] for column in self))


def joined(parts: Sequence[Pieces]) -> Pieces:
    """All spans of several."""
    return Pieces(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class PackTable(NamedTuple):
    """A shard's packs of whole documents: pieces `[starts, stops)` of its tokens, and after how many of them each
    pack ends."""

    ends: NDArray[np.integer[Any]]
    starts: NDArray[np.integer[Any]]
    stops: NDArray[np.integer[Any]]


Packs = Callable[[SourceShard, int], PackTable]
"""Gives the packs of a shard for a sequence length."""


class Cut:
    """Shards cut into samples of `length` tokens, numbered through.

    Args:
        shards: All shards of the source, by which spans are numbered.
        length: Tokens of a sample.
        packs: Gives the packs of a shard; None: samples are windows, the last of each shard as short as it comes.
        only: Numbers of the shards that are cut; default: all.
    """

    def __init__(
        self, shards: Sequence[SourceShard], length: int, packs: Packs | None = None, only: Sequence[int] | None = None
    ) -> None:
        self.length = length
        self._shards, self._packs = shards, packs
        self._numbers = np.array(range(len(shards)) if only is None else only, np.int64)
        counts = [shards[number].samples for number in self._numbers]
        self._firsts = np.concatenate([_NONE, [0], np.cumsum(counts, dtype=np.int64)])
        self._tokens = np.array([shards[number].tokens for number in self._numbers], np.int64)
        self._at = {int(number): at for at, number in enumerate(self._numbers)}
        self.size = int(self._firsts[-1])
        self.is_exact = packs is None

    def __contains__(self, shard: int) -> bool:
        return shard in self._at

    def pieces(self, samples: Int64) -> Pieces:
        """The spans of samples, which must exist."""
        # right of equal firsts: shards without samples begin where the next one does
        which = np.searchsorted(self._firsts, samples, side="right") - 1
        number = samples - self._firsts[which]
        if self._packs is not None:
            return self._packed(self._packs, which, number)
        start = number * self.length
        stop = np.minimum(start + self.length, self._tokens[which])
        return Pieces(np.arange(len(samples)), np.zeros_like(start), self._numbers[which], start, stop)

    def _packed(self, packs: Packs, which: Int64, number: Int64) -> Pieces:
        parts = [Pieces(_NONE, _NONE, _NONE, _NONE, _NONE)]
        for row, (at, pack) in enumerate(zip(which.tolist(), number.tolist(), strict=True)):
            shard = int(self._numbers[at])
            table = packs(self._shards[shard], self.length)
            low, high = int(table.ends[pack - 1]) if pack else 0, int(table.ends[pack])
            starts = np.asarray(table.starts[low:high], np.int64)
            stops = np.asarray(table.stops[low:high], np.int64)
            # the pieces of a pack lie one after another in its sample
            at_ = np.cumsum(stops - starts) - (stops - starts)
            parts.append(Pieces(np.full(high - low, row), at_, np.full(high - low, shard), starts, stops))
        return joined(parts)

    def touching(self, shard: int, start: int, stop: int) -> Int64:
        """The samples with any of the tokens `[start, stop)` of one of its shards."""
        at = self._at[shard]
        if self._packs is None:
            found: Int64 = self._firsts[at] + np.arange(start // self.length, -(-stop // self.length))
            return found
        table = self._packs(self._shards[shard], self.length)
        hit = np.flatnonzero((np.asarray(table.starts) < stop) & (np.asarray(table.stops) > start))
        packs: Int64 = self._firsts[at] + np.unique(np.searchsorted(table.ends, hit, side="right"))
        return packs

    def short(self) -> Int64:
        """The samples that may have fewer than `length` tokens; of packs, none is told."""
        lasts = self._firsts[1:] - 1
        return lasts[(self._tokens % self.length != 0) & (self._tokens > 0)] if self._packs is None else _NONE


class Rest:
    """What was not read of an order when it was revised, in the shards as they are now, as samples of a new length.

    Args:
        order: The order until then.
        done: How many of its samples were read.
        length: Tokens of a sample from now on.
        moved: The number that each shard of then has now; -1 for one that is gone.
        removed: By the number of then: ranges of tokens that a shard no longer has.
    """

    def __init__(
        self,
        order: "Order",
        done: int,
        length: int,
        moved: Int64,
        removed: Mapping[int, Sequence[tuple[int, int]]],
    ) -> None:
        self._order, self._done, self._moved = order, done, moved
        self.is_exact, self.read = order.is_exact, order.read(done)
        self._wide, self._length = order.length, length
        self._kept = {shard: _kept(ranges) for shard, ranges in removed.items()}
        self._slots = -(-(order.size - done) * self._wide // length)
        self._was = {int(now): then for then, now in enumerate(moved.tolist()) if now >= 0}
        gone = {at: [(0, one.tokens)] for at, one in enumerate(order.shards) if moved[at] < 0 and one.tokens}
        # samples of then that lost tokens, to a retraction or with their shard
        touched = [order.touching(s, *span) for s, spans in {**removed, **gone}.items() for span in spans]
        self._holed = np.unique(np.concatenate([_NONE, *touched]))
        # A slot is emptied by what was taken out; one that is cut anew may also lie where samples lacked tokens, and
        # the last one ends early
        suspects = self._cover(self._holed)
        if length != self._wide and self._slots:
            suspects = np.union1d(self._cover(np.union1d(self._holed, order.short())), [self._slots - 1])
        # Only these are looked at: every other slot has tokens, and looking at all would take as long as an epoch.
        empty = np.ones(len(suspects), np.bool_)
        empty[self._raw(suspects).row] = False
        self._empty = suspects[empty]
        # How many slots with tokens come before each empty one: sample k lies behind all whose number is at most k.
        self._skips = self._empty - np.arange(len(self._empty))
        self.size = self._slots - len(self._empty)

    def pieces(self, samples: Int64) -> Pieces:
        """The spans of samples, which must exist."""
        return self._raw(samples + np.searchsorted(self._skips, samples, side="right"))

    def touching(self, shard: int, start: int, stop: int) -> Int64:
        """The samples that may have any of the tokens `[start, stop)` of a shard as it is now."""
        then = self._was.get(shard)
        if then is None:
            return _NONE
        if then in self._kept:
            # Back to the numbers of then: each range that was kept begins, by the numbers of now, at `firsts - shifts`.
            firsts, _, shifts = self._kept[then]
            low, high = (int(np.searchsorted(firsts - shifts, token, side="right")) - 1 for token in (start, stop - 1))
            start, stop = start + int(shifts[low]), stop + int(shifts[high])
        return self._counted(self._cover(self._order.touching(then, start, stop)))

    def short(self) -> Int64:
        """The samples that may have fewer than `length` tokens."""
        last = np.array([self._slots - 1] if self._slots else [], np.int64)
        short = self._cover(np.union1d(self._holed, self._order.short()))
        return self._counted(np.union1d(short, last))

    def _cover(self, places: Int64) -> Int64:
        """The slots, ascending, that hold some of the order's samples, of those that were not read."""
        old = places[places >= self._done] - self._done
        first, last = old * self._wide // self._length, ((old + 1) * self._wide - 1) // self._length
        # All runs of slots as rows of one array, as wide as the longest; what is beyond a run's end is left out.
        most = int((last - first).max(initial=0)) + 1
        every = first[:, None] + np.arange(most)
        return np.unique(every[every <= last[:, None]])

    def _counted(self, slots: Int64) -> Int64:
        """The samples that slots are; those without a token are none."""
        slots = np.setdiff1d(slots, self._empty)
        return slots - np.searchsorted(self._empty, slots)

    def _raw(self, slots: Int64) -> Pieces:
        left = self._order.size - self._done
        first, stop = slots * self._length, np.minimum((slots + 1) * self._length, left * self._wide)
        parts = [Pieces(_NONE, _NONE, _NONE, _NONE, _NONE)]
        # A slot lies in so many samples of then at most; each round looks at the next one of every slot.
        for number in range(-(-self._length // self._wide) + 1):
            old = first // self._wide + number
            rows = np.flatnonzero(old * self._wide < stop)
            if not len(rows):
                break
            found = self._order.pieces(old[rows] + self._done)
            # where the sample of then begins in the slot; what lies before the slot or behind it is cut off
            shift = (old * self._wide - first)[rows][found.row]
            low = np.maximum(-shift - found.at, 0)
            high = np.maximum(shift + found.at + found.stop - found.start - (stop - first)[rows][found.row], 0)
            clipped = found._replace(
                row=rows[found.row], at=found.at + shift + low, start=found.start + low, stop=found.stop - high
            )
            parts.append(clipped.where(clipped.start < clipped.stop))
        return self._present(joined(parts))

    def _present(self, pieces: Pieces) -> Pieces:
        """The same spans in the shards as they are now, without what is gone."""
        # A span in a shard that lost documents may fall apart, so it is looked at by itself; all others at once.
        cut = np.isin(pieces.shard, list(self._kept)) if self._kept else np.zeros(len(pieces.row), np.bool_)
        whole = pieces.where(~cut)
        whole = whole._replace(shard=self._moved[whole.shard])
        parts = [whole.where(whole.shard >= 0)]
        for row, at, shard, start, stop in zip(*pieces.where(cut), strict=True):
            firsts, stops, shifts = self._kept[int(shard)]
            low, high = np.searchsorted(stops, start, side="right"), np.searchsorted(firsts, stop, side="left")
            begin, end = np.maximum(firsts[low:high], start), np.minimum(stops[low:high], stop)
            some, shift = np.ones_like(begin), shifts[low:high]
            parts.append(Pieces(some * row, at + begin - start, some * self._moved[shard], begin - shift, end - shift))
        return joined(parts)


def _kept(removed: Sequence[tuple[int, int]]) -> tuple[Int64, Int64, Int64]:
    """The ranges between those that were removed: their starts and stops, and how far each has moved to the front."""
    starts, stops = (np.array(column, np.int64) for column in zip(*removed, strict=True))
    shifts = np.concatenate([[0], np.cumsum(stops - starts)])
    # the last range is open, because nothing here knows how long the shard is; empty ones between neighbours go
    first, last = np.concatenate([[0], stops]), np.concatenate([starts, [np.iinfo(np.int64).max]])
    return first[first < last], last[first < last], shifts[first < last]


class Order:
    """The order of a source's samples in one epoch: sample `k` of it is at place `permutation(k)` of rest and cut.

    Args:
        cut: The samples that came new; all of them where an epoch begins.
        key: What chooses the order.
        shards: All shards of the source.
        rest: What is left of the order before; None where an epoch begins.
    """

    def __init__(
        self, cut: Cut, key: tuple[str | int, ...], shards: Sequence[SourceShard], rest: Rest | None = None
    ) -> None:
        self._cut, self._rest, self.shards = cut, rest, shards
        self.length = cut.length
        self._left = 0 if rest is None else rest.size
        self.size: int = self._left + cut.size
        self._permutation = Permutation(self.size, *key)

        self.is_exact: bool = cut.is_exact and (rest is None or rest.is_exact)
        """Whether every sample has `length` tokens but those that `short` names; packs have about as many."""

    def read(self, done: int) -> float:
        """The part of the epoch that has been read after `done` of its samples; 1 at its end."""
        before = 0.0 if self._rest is None else self._rest.read
        return before + (1 - before) * done / max(self.size, 1)

    def tokens(self, first: int, stop: int) -> int:
        """The tokens of the samples `[first, stop)`; of packs it is their number times the mean of some."""
        count = stop - first
        if not count:
            return 0
        if not self.is_exact:
            some = np.unique(np.linspace(first, stop - 1, min(count, 256)).astype(np.int64))
            found = self.pieces(some)
            return round(int((found.stop - found.start).sum()) / len(some) * count)
        short = self.short()
        found = self.pieces(short[(short >= first) & (short < stop)])
        lacking = self.length * len(np.unique(found.row)) - int((found.stop - found.start).sum())
        return count * self.length - lacking

    def pieces(self, samples: Int64) -> Pieces:
        """The spans of the order's samples `samples`, which must exist; in no particular order."""
        place = self._permutation(samples)
        if self._rest is None:
            return self._cut.pieces(place)
        new, old = np.flatnonzero(place >= self._left), np.flatnonzero(place < self._left)
        fresh, rest = self._cut.pieces(place[new] - self._left), self._rest.pieces(place[old])
        return joined([fresh.of_rows(new), rest.of_rows(old)])

    def touching(self, shard: int, start: int, stop: int) -> Int64:
        """The samples that may have any of the tokens `[start, stop)` of a shard: all that have, and few others."""
        if shard in self._cut:
            return self._permutation.inverse(self._left + self._cut.touching(shard, start, stop))
        return _NONE if self._rest is None else self._permutation.inverse(self._rest.touching(shard, start, stop))

    def short(self) -> Int64:
        """The samples that may have fewer tokens than `length`."""
        rest = _NONE if self._rest is None else self._rest.short()
        return self._permutation.inverse(np.concatenate([rest, self._left + self._cut.short()]))
