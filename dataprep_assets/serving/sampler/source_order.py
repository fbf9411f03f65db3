"""Order of a source's samples in an epoch: a permutation that is revised as the source grows.

`SampleSlots` is a list of shards split into samples. A `SourceOrder` is a keyed permutation of all these samples, or,
after a revision, of the unread samples of the previous order (`Remainder`) together with the samples of new shards. So
an order is a chain with one link per change in an epoch. Every link is evaluated only for the requested samples. Only
the slots that a retraction emptied are stored.

A remainder is treated as one long row of *slots*: the unread samples, each as long as a sample was at that time. A
different sequence length splits that row differently. Tokens removed from a shard in the meantime leave holes in their
slots. Slots without any token are not counted.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from math import isqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError
from dataprep_assets.serving.sampler.training_schedule import SourceShard

# A keyed permutation of the integers in `[0, size)`, evaluated at any point without a table.
#
# The numbers are written as pairs `(left, right)` with `left < a` and `right < b`, where `a * b` is at least the size
# and less than `size + a`. Each round of a Feistel network adds a hash of one half to the other, modulo `a` or `b`
# (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). A result that is not below the size is permuted
# again until it is ("cycle walking"), which is rare for large sizes. So an order of 10⁹ samples needs no memory and no
# time at startup, and the inverse of the permutation, which the ledger needs, costs the same.

Int64 = NDArray[np.int64]
_U64 = NDArray[np.uint64]

# Maximum size of a permutation. Up to this size, both halves are at most 2**31, so a 32-bit hash times a half's limit
# stays below 2**64.
LARGEST = 1 << 62
_ROUNDS = 12
"""Enough rounds for uniform results at all sizes from 2; the smallest sizes need the most (test_permutation.py)."""
_C1, _C2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_S32, _S33 = np.uint64(32), np.uint64(33)


class Permutation:
    """A permutation of `[0, size)` chosen by `key`, which is the same on every machine and never changes.

    Args:
        size: Number of permuted numbers, up to 2**62.
        key: Strings and numbers that choose the permutation. Different keys give unrelated permutations.
    """

    def __init__(self, size: int, *key: str | int) -> None:
        if not 0 <= size <= LARGEST:
            raise ConfigError(f"permutation size must be between 0 and 2**62, not {size}")
        self.size = size
        root = isqrt(size)
        self._a = np.uint64(max(root + (root * root < size), 1))
        self._b = np.uint64(max(-(-size // int(self._a)), 1))
        # Hash the `repr` of the key, because it distinguishes numbers from strings and separates the parts of the key.
        digest = hashlib.shake_256(repr(key).encode()).digest(8 * _ROUNDS)
        self._keys = np.frombuffer(digest, "<u8").astype(np.uint64)

    def __call__(self, numbers: Int64) -> Int64:
        """Return the permuted numbers: int64 of any shape. Each input must be in `[0, size)`."""
        return self._walk_cycle(numbers, self._permute_once)

    def invert(self, numbers: Int64) -> Int64:
        """Return the inverse of the permutation: `permutation.invert(permutation(x)) == x`."""
        return self._walk_cycle(numbers, self._invert_once)

    def _walk_cycle(self, numbers: Int64, once: Callable[[_U64], _U64]) -> Int64:
        images = once(np.asarray(numbers, np.int64).astype(np.uint64))
        size = np.uint64(self.size)
        # The loop ends, because `once` permutes the numbers below a * b, and a cycle returns to its start.
        while (is_beyond := images >= size).any():
            images[is_beyond] = once(images[is_beyond])
        return images.astype(np.int64)

    def _permute_once(self, numbers: _U64) -> _U64:
        left_half, right_half = numbers // self._b, numbers % self._b
        for number, key in enumerate(self._keys):
            if number % 2:
                right_half = (right_half + _hash_below(left_half, key, self._b)) % self._b
            else:
                left_half = (left_half + _hash_below(right_half, key, self._a)) % self._a
        images: _U64 = left_half * self._b + right_half
        return images

    def _invert_once(self, numbers: _U64) -> _U64:
        left_half, right_half = numbers // self._b, numbers % self._b
        for number in reversed(range(_ROUNDS)):
            key = self._keys[number]
            if number % 2:
                # Add the limit first, because unsigned numbers cannot be negative.
                right_half = (right_half + self._b - _hash_below(left_half, key, self._b)) % self._b
            else:
                left_half = (left_half + self._a - _hash_below(right_half, key, self._a)) % self._a
        images: _U64 = left_half * self._b + right_half
        return images


def _hash_below(half: _U64, key: np.uint64, limit: np.uint64) -> _U64:
    """Return a hash of `half` under a round's `key`, in `[0, limit)`; mixed as in MurmurHash3's finalizer."""
    mixed_bits = half ^ key
    mixed_bits = (mixed_bits ^ (mixed_bits >> _S33)) * _C1
    mixed_bits = (mixed_bits ^ (mixed_bits >> _S33)) * _C2
    hashes: _U64 = ((mixed_bits ^ (mixed_bits >> _S33)) >> _S32) * limit >> _S32
    return hashes


_NONE = np.empty(0, np.int64)


class TokenSlices(NamedTuple):
    """Token spans of samples: int64 arrays of equal length.

    `row` is the number of the sample in the request, `at` the offset of the span in its sample and `shard` the number
    of its shard in the revision's source. `[start, stop)` are tokens of the shard.
    """

    row: Int64
    at: Int64
    shard: Int64
    start: Int64
    stop: Int64

    def renumber_rows(self, rows: Int64) -> "TokenSlices":
        """Return the same spans with their rows renumbered: row `i` becomes `rows[i]`."""
        return self._replace(row=rows[self.row])

    def select(self, mask: NDArray[np.bool_]) -> "TokenSlices":
        """Return the spans selected by the mask."""
        return TokenSlices(*(column[mask] for column in self))


def join_slices(parts: Sequence[TokenSlices]) -> TokenSlices:
    """Concatenate several sets of spans."""
    return TokenSlices(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class PackTable(NamedTuple):
    """A shard's packs of whole documents.

    `[starts, stops)` are the token ranges of the pieces; `ends` is the number of pieces up to the end of each pack.
    """

    ends: NDArray[np.integer[Any]]
    starts: NDArray[np.integer[Any]]
    stops: NDArray[np.integer[Any]]


Packs = Callable[[SourceShard, int], PackTable]
"""Returns the packs of a shard for a sequence length."""


Run = tuple[int, int, int]
"""The number of a shard, and a range `[start, stop)` of its tokens."""


class SampleSlots:
    """Shards split into samples of `length` tokens, numbered consecutively.

    Args:
        shards: All shards of the source; spans refer to them by number.
        length: Tokens per sample.
        packs: Returns the packs of a shard. None: samples are windows, and the last window of each run may be short.
        runs: Token ranges to split, in the order of the shards; default: all shards. With packs, ranges contain only
            whole documents.
    """

    def __init__(
        self, shards: Sequence[SourceShard], length: int, packs: Packs | None = None, runs: Sequence[Run] | None = None
    ) -> None:
        self.length = length
        self._shards, self._packs = shards, packs
        all_runs = [(index, 0, shard.tokens) for index, shard in enumerate(shards)] if runs is None else runs
        self._tables: dict[int, PackTable] = {}
        if packs is not None:
            # Use one run per shard, because one table has the packs of all token ranges of a shard.
            all_runs = [(index, 0, shards[index].tokens) for index in self._find_packed_shards(all_runs)]
        self._numbers, self._starts, self._stops = np.array(all_runs, np.int64).reshape(-1, 3).T
        counts = -(-(self._stops - self._starts) // length)
        if packs is not None:
            counts = np.array([self._count_packs(shard) for shard in self._numbers.tolist()], np.int64)
        self._firsts = np.concatenate([_NONE, [0], np.cumsum(counts, dtype=np.int64)])
        self._at: dict[int, list[int]] = {}
        for index, number in enumerate(self._numbers.tolist()):
            self._at.setdefault(number, []).append(index)
        self.size = int(self._firsts[-1])
        self.is_exact = packs is None

    def _find_packed_shards(self, runs: Sequence[Run]) -> list[int]:
        """Return the shards that contain the runs; for partly covered shards, store a reduced table."""
        ranges: dict[int, list[tuple[int, int]]] = {}
        for shard, start, stop in runs:
            ranges.setdefault(shard, []).append((start, stop))
        for shard, shard_ranges in ranges.items():
            if shard_ranges != [(0, self._shards[shard].tokens)]:
                self._tables[shard] = _reduce_packs(self._pack_table(shard), shard_ranges)
        return list(ranges)

    def _pack_table(self, shard: int) -> PackTable:
        if shard in self._tables:
            return self._tables[shard]
        assert self._packs is not None
        return self._packs(self._shards[shard], self.length)

    def _count_packs(self, shard: int) -> int:
        # Do not read a shard's table to count its packs, because startup would then open the files of all shards.
        return len(self._tables[shard].ends) if shard in self._tables else self._shards[shard].samples

    def find_spans(self, samples: Int64) -> TokenSlices:
        """Return the spans of these samples; every sample must exist."""
        # `side="right"` skips runs without samples, because they begin where the next run begins.
        which = np.searchsorted(self._firsts, samples, side="right") - 1
        number = samples - self._firsts[which]
        if self._packs is not None:
            return self._locate_packed_tokens(which, number)
        start = self._starts[which] + number * self.length
        stop = np.minimum(start + self.length, self._stops[which])
        return TokenSlices(np.arange(len(samples)), np.zeros_like(start), self._numbers[which], start, stop)

    def _locate_packed_tokens(self, which: Int64, number: Int64) -> TokenSlices:
        parts = [TokenSlices(_NONE, _NONE, _NONE, _NONE, _NONE)]
        for row, (run_index, pack) in enumerate(zip(which.tolist(), number.tolist(), strict=True)):
            shard = int(self._numbers[run_index])
            table = self._pack_table(shard)
            low, high = int(table.ends[pack - 1]) if pack else 0, int(table.ends[pack])
            starts = np.asarray(table.starts[low:high], np.int64)
            stops = np.asarray(table.stops[low:high], np.int64)
            # The pieces of a pack follow each other in the sample without gaps.
            offsets = np.cumsum(stops - starts) - (stops - starts)
            parts.append(TokenSlices(np.full(high - low, row), offsets, np.full(high - low, shard), starts, stops))
        return join_slices(parts)

    def find_samples(self, shard: int, start: int, stop: int) -> Int64:
        """Return the samples that contain any of the tokens `[start, stop)` of a shard."""
        return np.concatenate(
            [_NONE, *(self._find_samples_in_run(run_index, start, stop) for run_index in self._at.get(shard, ()))]
        )

    def _find_samples_in_run(self, position: int, start: int, stop: int) -> Int64:
        if self._packs is None:
            begin = int(self._starts[position])
            low, high = max(start, begin) - begin, min(stop, int(self._stops[position])) - begin
            samples: Int64 = self._firsts[position] + np.arange(low // self.length, -(-high // self.length))
            return samples if low < high else _NONE
        table = self._pack_table(int(self._numbers[position]))
        hit = np.flatnonzero((np.asarray(table.starts) < stop) & (np.asarray(table.stops) > start))
        packs: Int64 = self._firsts[position] + np.unique(np.searchsorted(table.ends, hit, side="right"))
        return packs

    def find_short_samples(self) -> Int64:
        """Return the samples that may have fewer than `length` tokens; with packs, the result is always empty."""
        lasts, tokens = self._firsts[1:] - 1, self._stops - self._starts
        return lasts[(tokens % self.length != 0) & (tokens > 0)] if self._packs is None else _NONE


def _reduce_packs(table: PackTable, ranges: Sequence[tuple[int, int]]) -> PackTable:
    """Return the packs reduced to the documents in these token ranges, without packs that become empty."""
    starts, stops = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
    begins = np.asarray(table.starts, np.int64)
    range_numbers = np.searchsorted(starts, begins, side="right") - 1
    is_held = (range_numbers >= 0) & (begins < stops[range_numbers])
    # `packs` has the number of the pack that contains each piece.
    packs = np.searchsorted(table.ends, np.arange(len(begins)), side="right")
    counts = np.bincount(packs[is_held], minlength=len(table.ends))
    return PackTable(np.cumsum(counts[counts > 0]), begins[is_held], np.asarray(table.stops, np.int64)[is_held])


class Remainder:
    """Unread part of an order at a revision, in the current shards, as samples of a new length.

    Args:
        order: Order before the revision.
        done_count: Number of its samples that were read.
        length: Tokens per sample from now on.
        new_numbers: Current number of each previous shard; -1 for a removed shard.
        changed: Maps a previous shard's number to the current shard, for shards that lost or gained documents.
    """

    def __init__(
        self,
        order: "SourceOrder",
        done_count: int,
        length: int,
        new_numbers: Int64,
        changed: Mapping[int, SourceShard],
    ) -> None:
        self._order, self._done, self._moved = order, done_count, new_numbers
        self.is_exact, self.read = order.is_exact, order.read(done_count)
        self._wide, self._length = order.length, length
        self._kept = {then: KeptRanges.from_shard(shard) for then, shard in changed.items()}
        self._slots = -(-(order.size - done_count) * self._wide // length)
        self._was = {int(now): then for then, now in enumerate(new_numbers.tolist()) if now >= 0}
        gone_ranges = {
            number: ((0, old_shard.tokens),)
            for number, old_shard in enumerate(order.shards)
            if new_numbers[number] < 0 and old_shard.tokens
        }
        removed_by_revision = {then: shard.removed for then, shard in changed.items()}
        # `touched` has the samples of the previous order that lost tokens, because documents or whole shards were
        # removed.
        touched = [
            order.find_samples(s, *span)
            for s, spans in {**removed_by_revision, **gone_ranges}.items()
            for span in spans
        ]
        self._holed = np.unique(np.concatenate([_NONE, *touched]))
        # Removed tokens can empty a slot. With a new length, slots over the gaps of short samples may also be empty,
        # and so may the last slot, which ends early.
        suspects = self._cover(self._holed)
        if length != self._wide and self._slots:
            suspects = np.union1d(self._cover(np.union1d(self._holed, order.find_short_samples())), [self._slots - 1])
        # Check only these slots, because all others have tokens, and locating every slot of an epoch takes long.
        empty = np.ones(len(suspects), np.bool_)
        empty[self._locate_slots(suspects).row] = False
        self._empty = suspects[empty]
        # For each empty slot, count the non-empty slots before it. Sample k comes after each empty slot whose count is
        # at most k.
        self._skips = self._empty - np.arange(len(self._empty))
        self.size = self._slots - len(self._empty)

    def find_spans(self, samples: Int64) -> TokenSlices:
        """Return the spans of these samples; every sample must exist."""
        return self._locate_slots(samples + np.searchsorted(self._skips, samples, side="right"))

    def find_samples(self, shard: int, start: int, stop: int) -> Int64:
        """Return the samples that may contain any of the tokens `[start, stop)` of a current shard."""
        old_index = self._was.get(shard)
        if old_index is None:
            return _NONE
        if old_index in self._kept:
            span = self._kept[old_index].find_previous_range(start, stop)
            if span is None:  # all of these tokens are new
                return _NONE
            start, stop = span
        return self._number_slots(self._cover(self._order.find_samples(old_index, start, stop)))

    def find_short_samples(self) -> Int64:
        """Return the samples that may have fewer than `length` tokens."""
        last_slot = np.array([self._slots - 1] if self._slots else [], np.int64)
        short = self._cover(np.union1d(self._holed, self._order.find_short_samples()))
        return self._number_slots(np.union1d(short, last_slot))

    def _cover(self, positions: Int64) -> Int64:
        """Return the slots, ascending, that contain any of these samples of the order; read samples are ignored."""
        old = positions[positions >= self._done] - self._done
        first_slots, last_slots = old * self._wide // self._length, ((old + 1) * self._wide - 1) // self._length
        # The array has one row per sample, as wide as the largest number of slots that a sample overlaps. The slots
        # after a sample's last slot are dropped.
        max_slots = int((last_slots - first_slots).max(initial=0)) + 1
        slots = first_slots[:, None] + np.arange(max_slots)
        return np.unique(slots[slots <= last_slots[:, None]])

    def _number_slots(self, slots: Int64) -> Int64:
        """Return the sample numbers of slots; empty slots have no number and are left out."""
        slots = np.setdiff1d(slots, self._empty)
        return slots - np.searchsorted(self._empty, slots)

    def _locate_slots(self, slots: Int64) -> TokenSlices:
        remaining = self._order.size - self._done
        slot_starts, slot_stops = slots * self._length, np.minimum((slots + 1) * self._length, remaining * self._wide)
        parts = [TokenSlices(_NONE, _NONE, _NONE, _NONE, _NONE)]
        # A slot overlaps at most this many samples of the previous order. Each round locates the next one of these
        # samples for every slot.
        for number in range(-(-self._length // self._wide) + 1):
            old = slot_starts // self._wide + number
            rows = np.flatnonzero(old * self._wide < slot_stops)
            if not len(rows):
                break
            slices = self._order.find_spans(old[rows] + self._done)
            # `shift` is the offset of the sample's start in the slot, negative if the sample starts before the slot.
            # Cut off tokens before and after the slot.
            shift = (old * self._wide - slot_starts)[rows][slices.row]
            low = np.maximum(-shift - slices.at, 0)
            high = np.maximum(
                shift + slices.at + slices.stop - slices.start - (slot_stops - slot_starts)[rows][slices.row], 0
            )
            clipped = slices._replace(
                row=rows[slices.row], at=slices.at + shift + low, start=slices.start + low, stop=slices.stop - high
            )
            parts.append(clipped.select(clipped.start < clipped.stop))
        return self._locate_current_slices(join_slices(parts))

    def _locate_current_slices(self, pieces: TokenSlices) -> TokenSlices:
        """Return the spans in the current shards, without removed tokens."""
        # Only spans in shards that lost or gained documents can be split, so handle these spans one by one and all
        # others together.
        is_cut = np.isin(pieces.shard, list(self._kept)) if self._kept else np.zeros(len(pieces.row), np.bool_)
        whole_slices = pieces.select(~is_cut)
        whole_slices = whole_slices._replace(shard=self._moved[whole_slices.shard])
        parts = [whole_slices.select(whole_slices.shard >= 0)]
        for row, offset, shard, start, stop in zip(*pieces.select(is_cut), strict=True):
            begin, end, shift = self._kept[int(shard)].find_ranges_within(start, stop)
            filler = np.ones_like(begin)
            parts.append(
                TokenSlices(
                    filler * row, offset + begin - start, filler * self._moved[shard], begin + shift, end + shift
                )
            )
        return join_slices(parts)


class KeptRanges(NamedTuple):
    """Token ranges that a shard has kept: previous starts and stops, and the shifts to the current positions."""

    starts: Int64
    stops: Int64
    shifts: Int64

    @classmethod
    def from_shard(cls, shard: SourceShard) -> "KeptRanges":
        """Return the kept ranges of a shard that lost some ranges and gained others."""
        removed_ranges, added = (_measure_gaps(ranges) for ranges in (shard.removed, shard.added))
        # `positions` has the places of removed and inserted tokens, each as the number of kept tokens before it.
        positions = np.unique(np.concatenate([[0], removed_ranges[0], added[0]]))
        removed_lengths, added_lengths = (
            lengths[np.searchsorted(range_starts, positions, side="right")]
            for range_starts, lengths in (removed_ranges, added)
        )
        starts = positions + removed_lengths
        # The last range is open-ended, because the shard's previous length is unknown here.
        lengths = np.diff(positions, append=np.iinfo(np.int64).max // 2)
        return cls(starts, starts + lengths, added_lengths - removed_lengths)

    def find_ranges_within(self, start: int, stop: int) -> tuple[Int64, Int64, Int64]:
        """Return the kept parts of the previous tokens `[start, stop)`: previous starts and stops, and shifts."""
        low, high = np.searchsorted(self.stops, start, side="right"), np.searchsorted(self.starts, stop, side="left")
        begins, ends = np.maximum(self.starts[low:high], start), np.minimum(self.stops[low:high], stop)
        return begins, ends, self.shifts[low:high]

    def find_previous_range(self, start: int, stop: int) -> tuple[int, int] | None:
        """Return the previous range that spans the current tokens `[start, stop)`; None if all of them are new."""
        begins = np.maximum(self.starts + self.shifts, start)
        ends = np.minimum(self.stops + self.shifts, stop)
        held_ranges = np.flatnonzero(begins < ends)
        if not len(held_ranges):
            return None
        first_range, last_range = held_ranges[0], held_ranges[-1]
        return int(begins[first_range] - self.shifts[first_range]), int(ends[last_range] - self.shifts[last_range])


def _measure_gaps(ranges: Sequence[tuple[int, int]]) -> tuple[Int64, Int64]:
    """Return each range's start minus the length of the earlier ranges, and the total length of the first n ranges."""
    if not ranges:
        return _NONE, np.zeros(1, np.int64)
    starts, stops = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
    lengths = np.concatenate([[0], np.cumsum(stops - starts)])
    return starts - lengths[:-1], lengths


class SourceOrder:
    """Order of a source's samples in one epoch.

    Sample `k` is number `permutation(k)` in the list of the samples of `rest`, followed by the samples of
    `sample_slots`.

    Args:
        sample_slots: New samples, or all samples at the beginning of an epoch.
        key: Key of the permutation.
        shards: All shards of the source.
        rest: Remainder of the previous order; None at the beginning of an epoch.
    """

    def __init__(
        self,
        sample_slots: SampleSlots,
        key: tuple[str | int, ...],
        shards: Sequence[SourceShard],
        rest: Remainder | None = None,
    ) -> None:
        self._cut, self._rest, self.shards = sample_slots, rest, shards
        self.length = sample_slots.length
        self._left = 0 if rest is None else rest.size
        self.size: int = self._left + sample_slots.size
        self._permutation = Permutation(self.size, *key)

        self.is_exact: bool = sample_slots.is_exact and (rest is None or rest.is_exact)
        """Whether all samples have `length` tokens, except those of `find_short_samples`. False for packs."""

    def read(self, done_count: int) -> float:
        """Return the fraction of the epoch that has been read after `done_count` of its samples; 1 at its end."""
        read_before = 0.0 if self._rest is None else self._rest.read
        return read_before + (1 - read_before) * done_count / max(self.size, 1)

    def estimate_tokens(self, first: int, stop: int) -> int:
        """Return the number of tokens in the samples `[first, stop)`, estimated from up to 256 samples for packs."""
        count = stop - first
        if not count:
            return 0
        if not self.is_exact:
            sample_numbers = np.unique(np.linspace(first, stop - 1, min(count, 256)).astype(np.int64))
            slices = self.find_spans(sample_numbers)
            return round(int((slices.stop - slices.start).sum()) / len(sample_numbers) * count)
        short = self.find_short_samples()
        slices = self.find_spans(short[(short >= first) & (short < stop)])
        lacking = self.length * len(np.unique(slices.row)) - int((slices.stop - slices.start).sum())
        return count * self.length - lacking

    def find_spans(self, samples: Int64) -> TokenSlices:
        """Return the spans of these samples, in no particular order; every sample must exist."""
        positions = self._permutation(samples)
        if self._rest is None:
            return self._cut.find_spans(positions)
        new, old = np.flatnonzero(positions >= self._left), np.flatnonzero(positions < self._left)
        new_slices = self._cut.find_spans(positions[new] - self._left)
        old_slices = self._rest.find_spans(positions[old])
        return join_slices([new_slices.renumber_rows(new), old_slices.renumber_rows(old)])

    def find_samples(self, shard: int, start: int, stop: int) -> Int64:
        """Return the samples that may contain any of the tokens `[start, stop)` of a shard; a few contain none."""
        old_samples = _NONE if self._rest is None else self._rest.find_samples(shard, start, stop)
        # Search both parts, because a shard that gained documents has samples in both.
        return self._permutation.invert(
            np.concatenate([old_samples, self._left + self._cut.find_samples(shard, start, stop)])
        )

    def find_short_samples(self) -> Int64:
        """Return the samples that may have fewer than `length` tokens."""
        old_samples = _NONE if self._rest is None else self._rest.find_short_samples()
        return self._permutation.invert(np.concatenate([old_samples, self._left + self._cut.find_short_samples()]))
