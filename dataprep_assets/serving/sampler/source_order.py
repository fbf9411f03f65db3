"""The order in which samples of one source are read in an epoch: a permutation, revised as the source grows.

A `SampleSlots` is shards cut into samples. A `SourceOrder` is a keyed permutation of all samples of a cut, or, after a
revision, of what was not read of the order before (`Remainder`) together with the samples of the shards that came new.
So it is a chain as long as there were changes in one epoch, every link of which is evaluated at single points: nothing
is
stored but what a retraction emptied.

A rest is seen as one long row of *slots*, the samples that were not read, each as wide as a sample was then; another
sequence length cuts that row anew. Tokens that were taken out of a shard since leave holes in their slots. Slots
without any token are left out of the count.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from math import isqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError
from dataprep_assets.serving.sampler.training_schedule import SourceShard

# A keyed permutation of the numbers below a size, evaluated at any point without making a table of it.
#
# The numbers are written as pairs `(left, right)` with `left < a`, `right < b`, where `a * b` is at least the size
# and less than `size + a`. Each round of a Feistel network adds a hash of one half to the other, modulo `a` or `b`
# (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002); a result beyond the size is permuted again
# until it is below ("cycle walking"), which for large sizes hardly ever happens. So an order of 10⁹ samples costs
# neither memory nor a start, and its inverse, which a ledger needs, costs the same.

Int64 = NDArray[np.int64]
_U64 = NDArray[np.uint64]

# Both halves are then at most 2**31, so a hash of 32 bits times a limit stays below 2**64.
LARGEST = 1 << 62
_ROUNDS = 12
"""Sizes from 2 on have to come out uniform, and the smallest need most rounds: see test_permutation.py."""
_C1, _C2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_S32, _S33 = np.uint64(32), np.uint64(33)


class Permutation:
    """A permutation of `[0, size)` that `key` chooses: the same on every machine, for ever.

    Args:
        size: How many numbers are permuted, up to 2**62.
        key: What chooses the permutation; texts and numbers. Another key gives an unrelated permutation.
    """

    def __init__(self, size: int, *key: str | int) -> None:
        if not 0 <= size <= LARGEST:
            raise ConfigError(f"permutation size must be between 0 and 2**62, not {size}")
        self.size = size
        root = isqrt(size)
        self._a = np.uint64(max(root + (root * root < size), 1))
        self._b = np.uint64(max(-(-size // int(self._a)), 1))
        # `repr` tells a number from a text, and where one part of the key ends.
        digest = hashlib.shake_256(repr(key).encode()).digest(8 * _ROUNDS)
        self._keys = np.frombuffer(digest, "<u8").astype(np.uint64)

    def __call__(self, numbers: Int64) -> Int64:
        """Return what stands at these places: int64, of any shape; each must be in `[0, size)`."""
        return self._walked(numbers, self._forward)

    def inverse(self, numbers: Int64) -> Int64:
        """The places at which these numbers stand: `inverse(permutation(x)) == x`."""
        return self._walked(numbers, self._backward)

    def _walked(self, numbers: Int64, once: Callable[[_U64], _U64]) -> Int64:
        images = once(np.asarray(numbers, np.int64).astype(np.uint64))
        size = np.uint64(self.size)
        # It ends: `once` moves the numbers below a * b in cycles, and that of a number below the size leads back to it.
        while (is_beyond := images >= size).any():
            images[is_beyond] = once(images[is_beyond])
        return images.astype(np.int64)

    def _forward(self, numbers: _U64) -> _U64:
        left_half, right_half = numbers // self._b, numbers % self._b
        for number, key in enumerate(self._keys):
            if number % 2:
                right_half = (right_half + _below(left_half, key, self._b)) % self._b
            else:
                left_half = (left_half + _below(right_half, key, self._a)) % self._a
        images: _U64 = left_half * self._b + right_half
        return images

    def _backward(self, numbers: _U64) -> _U64:
        left_half, right_half = numbers // self._b, numbers % self._b
        for number in reversed(range(_ROUNDS)):
            key = self._keys[number]
            if number % 2:
                # the limit is added first, because unsigned numbers have no negative ones
                right_half = (right_half + self._b - _below(left_half, key, self._b)) % self._b
            else:
                left_half = (left_half + self._a - _below(right_half, key, self._a)) % self._a
        images: _U64 = left_half * self._b + right_half
        return images


def _below(half: _U64, key: np.uint64, limit: np.uint64) -> _U64:
    """A hash of `half` under a round's `key`, in `[0, limit)`; the mixing is that of MurmurHash3's finalizer."""
    mixed = half ^ key
    mixed = (mixed ^ (mixed >> _S33)) * _C1
    mixed = (mixed ^ (mixed >> _S33)) * _C2
    hashes: _U64 = ((mixed ^ (mixed >> _S33)) >> _S32) * limit >> _S32
    return hashes


_NONE = np.empty(0, np.int64)


class TokenSlices(NamedTuple):
    """Spans of tokens that samples consist of: int64 arrays of one length.

    `row` numbers the samples as they were asked for, `at` is the span's place in its sample, `shard` the number of its
    shard in the revision's source, `[start, stop)` its tokens there.
    """

    row: Int64
    at: Int64
    shard: Int64
    start: Int64
    stop: Int64

    def of_rows(self, rows: Int64) -> "TokenSlices":
        """The same spans, of the samples that had these numbers."""
        return self._replace(row=rows[self.row])

    def where(self, mask: NDArray[np.bool_]) -> "TokenSlices":
        """Some of the spans."""
        return TokenSlices(*(column[mask] for column in self))


def join_slices(parts: Sequence[TokenSlices]) -> TokenSlices:
    """All spans of several."""
    return TokenSlices(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class PackTable(NamedTuple):
    """A shard's packs of whole documents: pieces `[starts, stops)` of its tokens, and after how many of them each
    pack ends."""

    ends: NDArray[np.integer[Any]]
    starts: NDArray[np.integer[Any]]
    stops: NDArray[np.integer[Any]]


Packs = Callable[[SourceShard, int], PackTable]
"""Gives the packs of a shard for a sequence length."""


Run = tuple[int, int, int]
"""A shard, by its number, and the tokens `[start, stop)` of it."""


class SampleSlots:
    """Shards cut into samples of `length` tokens, numbered through.

    Args:
        shards: All shards of the source, by which spans are numbered.
        length: Tokens of a sample.
        packs: Gives the packs of a shard; None: samples are windows, the last of each run as short as it comes.
        runs: What is cut, in the order of the shards; default: all of each. Of packs a run is whole documents.
    """

    def __init__(
        self, shards: Sequence[SourceShard], length: int, packs: Packs | None = None, runs: Sequence[Run] | None = None
    ) -> None:
        self.length = length
        self._shards, self._packs = shards, packs
        all_runs = [(index, 0, shard.tokens) for index, shard in enumerate(shards)] if runs is None else runs
        self._tables: dict[int, PackTable] = {}
        if packs is not None:
            # the packs of a shard are one unit, of all its runs together
            all_runs = [(index, 0, shards[index].tokens) for index in self._packed_shards(all_runs)]
        self._numbers, self._starts, self._stops = np.array(all_runs, np.int64).reshape(-1, 3).T
        counts = -(-(self._stops - self._starts) // length)
        if packs is not None:
            counts = np.array([self._packs_of(shard) for shard in self._numbers.tolist()], np.int64)
        self._firsts = np.concatenate([_NONE, [0], np.cumsum(counts, dtype=np.int64)])
        self._at: dict[int, list[int]] = {}
        for index, number in enumerate(self._numbers.tolist()):
            self._at.setdefault(number, []).append(index)
        self.size = int(self._firsts[-1])
        self.is_exact = packs is None

    def _packed_shards(self, runs: Sequence[Run]) -> list[int]:
        """The shards of some runs; of one that they are a part of, the table of that part is put aside."""
        ranges: dict[int, list[tuple[int, int]]] = {}
        for shard, start, stop in runs:
            ranges.setdefault(shard, []).append((start, stop))
        for shard, shard_ranges in ranges.items():
            if shard_ranges != [(0, self._shards[shard].tokens)]:
                self._tables[shard] = _part(self._table(shard), shard_ranges)
        return list(ranges)

    def _table(self, shard: int) -> PackTable:
        if shard in self._tables:
            return self._tables[shard]
        assert self._packs is not None
        return self._packs(self._shards[shard], self.length)

    def _packs_of(self, shard: int) -> int:
        # not by its table: a start would open the files of all shards
        return len(self._tables[shard].ends) if shard in self._tables else self._shards[shard].samples

    def pieces(self, samples: Int64) -> TokenSlices:
        """The spans of samples, which must exist."""
        # right of equal firsts: runs without samples begin where the next one does
        which = np.searchsorted(self._firsts, samples, side="right") - 1
        number = samples - self._firsts[which]
        if self._packs is not None:
            return self._locate_packed(which, number)
        start = self._starts[which] + number * self.length
        stop = np.minimum(start + self.length, self._stops[which])
        return TokenSlices(np.arange(len(samples)), np.zeros_like(start), self._numbers[which], start, stop)

    def _locate_packed(self, which: Int64, number: Int64) -> TokenSlices:
        parts = [TokenSlices(_NONE, _NONE, _NONE, _NONE, _NONE)]
        for row, (run_index, pack) in enumerate(zip(which.tolist(), number.tolist(), strict=True)):
            shard = int(self._numbers[run_index])
            table = self._table(shard)
            low, high = int(table.ends[pack - 1]) if pack else 0, int(table.ends[pack])
            starts = np.asarray(table.starts[low:high], np.int64)
            stops = np.asarray(table.stops[low:high], np.int64)
            # the pieces of a pack lie one after another in its sample
            offsets = np.cumsum(stops - starts) - (stops - starts)
            parts.append(TokenSlices(np.full(high - low, row), offsets, np.full(high - low, shard), starts, stops))
        return join_slices(parts)

    def touching(self, shard: int, start: int, stop: int) -> Int64:
        """The samples with any of the tokens `[start, stop)` of a shard."""
        return np.concatenate([_NONE, *(self._in_run(run_index, start, stop) for run_index in self._at.get(shard, ()))])

    def _in_run(self, at: int, start: int, stop: int) -> Int64:
        if self._packs is None:
            begin = int(self._starts[at])
            low, high = max(start, begin) - begin, min(stop, int(self._stops[at])) - begin
            samples: Int64 = self._firsts[at] + np.arange(low // self.length, -(-high // self.length))
            return samples if low < high else _NONE
        table = self._table(int(self._numbers[at]))
        hit = np.flatnonzero((np.asarray(table.starts) < stop) & (np.asarray(table.stops) > start))
        packs: Int64 = self._firsts[at] + np.unique(np.searchsorted(table.ends, hit, side="right"))
        return packs

    def short(self) -> Int64:
        """The samples that may have fewer than `length` tokens; of packs, none is told."""
        lasts, tokens = self._firsts[1:] - 1, self._stops - self._starts
        return lasts[(tokens % self.length != 0) & (tokens > 0)] if self._packs is None else _NONE


def _part(table: PackTable, ranges: Sequence[tuple[int, int]]) -> PackTable:
    """The packs of the documents in ranges of tokens: those of a shard without its other documents, none empty."""
    starts, stops = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
    begins = np.asarray(table.starts, np.int64)
    range_numbers = np.searchsorted(starts, begins, side="right") - 1
    is_held = (range_numbers >= 0) & (begins < stops[range_numbers])
    # which pack each piece is of
    packs = np.searchsorted(table.ends, np.arange(len(begins)), side="right")
    counts = np.bincount(packs[is_held], minlength=len(table.ends))
    return PackTable(np.cumsum(counts[counts > 0]), begins[is_held], np.asarray(table.stops, np.int64)[is_held])


class Remainder:
    """What was not read of an order when it was revised, in the shards as they are now, as samples of a new length.

    Args:
        order: The order until then.
        done: How many of its samples were read.
        length: Tokens of a sample from now on.
        moved: The number that each shard of then has now; -1 for one that is gone.
        changed: By the number of then: a shard that lost or gained documents, as it is now.
    """

    def __init__(
        self,
        order: "SourceOrder",
        done: int,
        length: int,
        moved: Int64,
        changed: Mapping[int, SourceShard],
    ) -> None:
        self._order, self._done, self._moved = order, done, moved
        self.is_exact, self.read = order.is_exact, order.read(done)
        self._wide, self._length = order.length, length
        self._kept = {then: KeptRanges.from_shard(shard) for then, shard in changed.items()}
        self._slots = -(-(order.size - done) * self._wide // length)
        self._was = {int(now): then for then, now in enumerate(moved.tolist()) if now >= 0}
        gone_ranges = {
            number: ((0, old_shard.tokens),)
            for number, old_shard in enumerate(order.shards)
            if moved[number] < 0 and old_shard.tokens
        }
        removed = {then: shard.removed for then, shard in changed.items()}
        # samples of then that lost tokens, to a retraction or with their shard
        touched = [order.touching(s, *span) for s, spans in {**removed, **gone_ranges}.items() for span in spans]
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

    def pieces(self, samples: Int64) -> TokenSlices:
        """The spans of samples, which must exist."""
        return self._raw(samples + np.searchsorted(self._skips, samples, side="right"))

    def touching(self, shard: int, start: int, stop: int) -> Int64:
        """The samples that may have any of the tokens `[start, stop)` of a shard as it is now."""
        then = self._was.get(shard)
        if then is None:
            return _NONE
        if then in self._kept:
            span = self._kept[then].before(start, stop)
            if span is None:  # all of it is new
                return _NONE
            start, stop = span
        return self._count_slots(self._cover(self._order.touching(then, start, stop)))

    def short(self) -> Int64:
        """The samples that may have fewer than `length` tokens."""
        last_slot = np.array([self._slots - 1] if self._slots else [], np.int64)
        short = self._cover(np.union1d(self._holed, self._order.short()))
        return self._count_slots(np.union1d(short, last_slot))

    def _cover(self, places: Int64) -> Int64:
        """The slots, ascending, that hold some of the order's samples, of those that were not read."""
        old = places[places >= self._done] - self._done
        first_slots, last_slots = old * self._wide // self._length, ((old + 1) * self._wide - 1) // self._length
        # All runs of slots as rows of one array, as wide as the longest; what is beyond a run's end is left out.
        max_slots = int((last_slots - first_slots).max(initial=0)) + 1
        slots = first_slots[:, None] + np.arange(max_slots)
        return np.unique(slots[slots <= last_slots[:, None]])

    def _count_slots(self, slots: Int64) -> Int64:
        """The samples that slots are; those without a token are none."""
        slots = np.setdiff1d(slots, self._empty)
        return slots - np.searchsorted(self._empty, slots)

    def _raw(self, slots: Int64) -> TokenSlices:
        remaining = self._order.size - self._done
        slot_starts, slot_stops = slots * self._length, np.minimum((slots + 1) * self._length, remaining * self._wide)
        parts = [TokenSlices(_NONE, _NONE, _NONE, _NONE, _NONE)]
        # A slot lies in so many samples of then at most; each round looks at the next one of every slot.
        for number in range(-(-self._length // self._wide) + 1):
            old = slot_starts // self._wide + number
            rows = np.flatnonzero(old * self._wide < slot_stops)
            if not len(rows):
                break
            slices = self._order.pieces(old[rows] + self._done)
            # where the sample of then begins in the slot; what lies before the slot or behind it is cut off
            shift = (old * self._wide - slot_starts)[rows][slices.row]
            low = np.maximum(-shift - slices.at, 0)
            high = np.maximum(
                shift + slices.at + slices.stop - slices.start - (slot_stops - slot_starts)[rows][slices.row], 0
            )
            clipped = slices._replace(
                row=rows[slices.row], at=slices.at + shift + low, start=slices.start + low, stop=slices.stop - high
            )
            parts.append(clipped.where(clipped.start < clipped.stop))
        return self._present_slices(join_slices(parts))

    def _present_slices(self, pieces: TokenSlices) -> TokenSlices:
        """The same spans in the shards as they are now, without what is gone."""
        # A span in a shard that lost documents may fall apart, so it is looked at by itself; all others at once.
        is_cut = np.isin(pieces.shard, list(self._kept)) if self._kept else np.zeros(len(pieces.row), np.bool_)
        whole_slices = pieces.where(~is_cut)
        whole_slices = whole_slices._replace(shard=self._moved[whole_slices.shard])
        parts = [whole_slices.where(whole_slices.shard >= 0)]
        for row, offset, shard, start, stop in zip(*pieces.where(is_cut), strict=True):
            begin, end, shift = self._kept[int(shard)].ranges_within(start, stop)
            filler = np.ones_like(begin)
            parts.append(
                TokenSlices(
                    filler * row, offset + begin - start, filler * self._moved[shard], begin + shift, end + shift
                )
            )
        return join_slices(parts)


class KeptRanges(NamedTuple):
    """The ranges of tokens that a shard has kept: their starts and stops then, and how far each has moved since."""

    starts: Int64
    stops: Int64
    shifts: Int64

    @classmethod
    def from_shard(cls, shard: SourceShard) -> "KeptRanges":
        """Those of a shard that lost some ranges and gained others."""
        removed, added = (_gaps(ranges) for ranges in (shard.removed, shard.added))
        # places among the kept tokens alone, at which something was taken out or put in
        positions = np.unique(np.concatenate([[0], removed[0], added[0]]))
        removed_lengths, added_lengths = (
            lengths[np.searchsorted(range_starts, positions, side="right")]
            for range_starts, lengths in (removed, added)
        )
        starts = positions + removed_lengths
        # the last one is open, because nothing here knows how long the shard was
        lengths = np.diff(positions, append=np.iinfo(np.int64).max // 2)
        return cls(starts, starts + lengths, added_lengths - removed_lengths)

    def ranges_within(self, start: int, stop: int) -> tuple[Int64, Int64, Int64]:
        """Return what was kept of the tokens `[start, stop)` of then: starts and stops then, and how far each has
        moved."""
        low, high = np.searchsorted(self.stops, start, side="right"), np.searchsorted(self.starts, stop, side="left")
        begins, ends = np.maximum(self.starts[low:high], start), np.minimum(self.stops[low:high], stop)
        return begins, ends, self.shifts[low:high]

    def before(self, start: int, stop: int) -> tuple[int, int] | None:
        """The numbers of then of the tokens `[start, stop)` of now, from the first to the last; None if all are new."""
        begins = np.maximum(self.starts + self.shifts, start)
        ends = np.minimum(self.stops + self.shifts, stop)
        held_ranges = np.flatnonzero(begins < ends)
        if not len(held_ranges):
            return None
        first_range, last_range = held_ranges[0], held_ranges[-1]
        return int(begins[first_range] - self.shifts[first_range]), int(ends[last_range] - self.shifts[last_range])


def _gaps(ranges: Sequence[tuple[int, int]]) -> tuple[Int64, Int64]:
    """Return where ranges begin, counted without them, and how long the first 0, 1, … of them are together."""
    if not ranges:
        return _NONE, np.zeros(1, np.int64)
    starts, stops = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
    lengths = np.concatenate([[0], np.cumsum(stops - starts)])
    return starts - lengths[:-1], lengths


class SourceOrder:
    """The order of a source's samples in one epoch: sample `k` of it is at place `permutation(k)` of rest and cut.

    Args:
        cut: The samples that came new; all of them where an epoch begins.
        key: What chooses the order.
        shards: All shards of the source.
        rest: What is left of the order before; None where an epoch begins.
    """

    def __init__(
        self, cut: SampleSlots, key: tuple[str | int, ...], shards: Sequence[SourceShard], rest: Remainder | None = None
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
            sample_numbers = np.unique(np.linspace(first, stop - 1, min(count, 256)).astype(np.int64))
            slices = self.pieces(sample_numbers)
            return round(int((slices.stop - slices.start).sum()) / len(sample_numbers) * count)
        short = self.short()
        slices = self.pieces(short[(short >= first) & (short < stop)])
        lacking = self.length * len(np.unique(slices.row)) - int((slices.stop - slices.start).sum())
        return count * self.length - lacking

    def pieces(self, samples: Int64) -> TokenSlices:
        """The spans of the order's samples `samples`, which must exist; in no particular order."""
        positions = self._permutation(samples)
        if self._rest is None:
            return self._cut.pieces(positions)
        new, old = np.flatnonzero(positions >= self._left), np.flatnonzero(positions < self._left)
        new_slices, old_slices = self._cut.pieces(positions[new] - self._left), self._rest.pieces(positions[old])
        return join_slices([new_slices.of_rows(new), old_slices.of_rows(old)])

    def touching(self, shard: int, start: int, stop: int) -> Int64:
        """The samples that may have any of the tokens `[start, stop)` of a shard: all that have, and few others."""
        old_samples = _NONE if self._rest is None else self._rest.touching(shard, start, stop)
        # a shard that gained documents is in both
        return self._permutation.inverse(
            np.concatenate([old_samples, self._left + self._cut.touching(shard, start, stop)])
        )

    def short(self) -> Int64:
        """The samples that may have fewer tokens than `length`."""
        old_samples = _NONE if self._rest is None else self._rest.short()
        return self._permutation.inverse(np.concatenate([old_samples, self._left + self._cut.short()]))
