"""A schedule's samples as Megatron-Core's datasets describe them: each as a range of a split's tokens, in run order.

A Megatron sample is a contiguous range of a split's tokens. Windows are such ranges, even after an append. A sample
that consists of several ranges, for example after a change to the sequence length, is not. Megatron counts samples from
the beginning of the run. Samples read before the last revision are kept if the last revision still has them. Missing
samples, and samples past the end, contain only padding. Their loss is masked, so no run trains on them.

Entry points: `SourceSamples`, `iterate_blend_blocks`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError
from dataprep_assets.serving.sampler.sampler import RevisionRule, Sampler, SourceCursor
from dataprep_assets.serving.sampler.source_order import TokenSlices
from dataprep_assets.serving.sampler.training_schedule import Source

Int64 = NDArray[np.int64]
_BLOCK = 1 << 18
"""Samples per block."""
_PADDING = np.array([[0, 1], [0, 0]], np.int64)
"""Index rows of a sample without tokens, which ranges from the second token back to the first."""


@dataclass(frozen=True, eq=False)
class SourceSamples:
    """Samples of one source of the last revision.

    `ends` contains the end of each document of the source's split, in tokens of the split's concatenated shards.
    """

    sampler: Sampler
    source: Source
    ends: NDArray[np.uint64]

    @cached_property
    def _length(self) -> int:
        return self.sampler.rules[-1].revision.sequence_length

    @cached_property
    def _tokens(self) -> Int64:
        return np.array([shard.tokens for shard in self.source.shards], np.int64)

    @cached_property
    def _windows(self) -> Int64:
        return -(-self._tokens // self._length)

    @cached_property
    def _firsts(self) -> Int64:
        """Index row of each shard's first window. A shard has one row per window and one more for its end."""
        rows = self._windows + (self._tokens > 0)
        return np.cumsum(rows) - rows

    @cached_property
    def counts(self) -> list[int]:
        """Number of the source's samples that the run reads under each rule of the sampler."""
        numbers = [(rule, _find_source_number(rule, self.source.name)) for rule in self.sampler.rules]
        return [0 if number is None else rule.count_samples(rule.stop)[number] for rule, number in numbers]

    @property
    def size(self) -> int:
        """Number of the source's samples that the run reads."""
        return sum(self.counts)

    @property
    def window_rows(self) -> int:
        """Total number of rows that `iterate_window_blocks` yields."""
        return int((self._windows + (self._tokens > 0)).sum())

    def iterate_window_blocks(self) -> Iterator[Int64]:
        """Yield (document, offset) of each window's first token and each shard's last token; int64, shape (n, 2)."""
        # `offsets` has the position of each shard's first token in the split.
        offsets = np.cumsum(self._tokens) - self._tokens
        for start, tokens, windows in zip(offsets.tolist(), self._tokens.tolist(), self._windows.tolist(), strict=True):
            for block_start in range(0, windows, _BLOCK):
                yield self._locate_rows(
                    start + np.arange(block_start, min(block_start + _BLOCK, windows)) * self._length
                )
            if tokens:
                yield self._locate_rows(np.array([start + tokens - 1]))

    def _locate_rows(self, tokens: Int64) -> Int64:
        """Return (document, offset) for positions in the split."""
        documents = np.searchsorted(self.ends, tokens.astype(np.uint64), side="right")
        begins = np.where(documents > 0, self.ends[documents - 1].astype(np.int64), 0)
        return np.stack([documents, tokens - begins], axis=1)

    def iterate_order_blocks(self, other_samples: list[Int64]) -> Iterator[Int64]:
        """Yield the index numbers of the source's samples in the order of the run.

        A sample that is not a window gets a pair of rows, which follows the rows of `iterate_window_blocks` and is
        appended to `other_samples`. The first pair is the padding (`padding`).

        Raises ConfigError if a step of the last revision reads a sample that consists of several ranges.
        """
        other_samples.append(_PADDING)
        for rule, count in zip(self.sampler.rules, self.counts, strict=True):
            if count:
                number = _find_source_number(rule, self.source.name)
                assert number is not None
                for block_start in range(0, count, _BLOCK):
                    ordinals = np.arange(block_start, min(block_start + _BLOCK, count))
                    yield self._locate_samples(rule, rule.turns[number], ordinals, other_samples)

    def iterate_run_blocks(self, other_samples: list[Int64]) -> Iterator[Int64]:
        """Yield the index number of each sample of the run; samples read from other sources get the padding's number.

        Megatron reads a single dataset without a blend, so its samples have the same numbers as in the run.
        """
        other_samples.append(_PADDING)
        for rule in self.sampler.rules:
            number = _find_source_number(rule, self.source.name)
            count = (rule.stop - rule.first) * rule.revision.batch
            for block_start in range(0, count, _BLOCK):
                source_numbers, ordinals = rule.mixture.locate(np.arange(block_start, min(block_start + _BLOCK, count)))
                rows = np.full(len(source_numbers), self.padding)
                if number is not None and (is_own := source_numbers == number).any():
                    rows[is_own] = self._locate_samples(rule, rule.turns[number], ordinals[is_own], other_samples)
                yield rows

    @property
    def padding(self) -> int:
        """Number of the sample in the index that contains only padding."""
        return self.window_rows

    def _locate_samples(
        self, rule: RevisionRule, cursor: SourceCursor, ordinals: Int64, other_samples: list[Int64]
    ) -> Int64:
        # Reduce each sample to one range (its shard, its first token and the end of its last span), because the index
        # can describe only ranges.
        pieces = cursor.find_spans(ordinals)[1]
        order = np.lexsort((pieces.at, pieces.row))
        pieces = pieces._replace(**{name: column[order] for name, column in pieces._asdict().items()})
        first_pieces = np.flatnonzero(np.diff(pieces.row, prepend=-1))
        last_pieces = np.append(first_pieces[1:], len(pieces.row)) - 1
        shards, start, stop = pieces.shard[first_pieces], pieces.start[first_pieces], pieces.stop[last_pieces]
        if rule is not self.sampler.rules[-1]:
            # The index has the last revision's shards, so an earlier revision's shards are matched by content.
            shard_numbers = {shard.content: number for number, shard in enumerate(self.source.shards)}
            new_numbers = np.array([shard_numbers.get(shard.content, -1) for shard in cursor.source.shards], np.int64)
            shards = new_numbers[shards]
        is_whole = (shards >= 0) & (stop - start <= self._length)
        # A sample is not one contiguous range if one of its spans does not follow the previous span.
        is_whole[np.searchsorted(first_pieces, np.flatnonzero(_find_breaks(pieces)), side="right") - 1] = False
        if rule is self.sampler.rules[-1] and not is_whole.all():
            raise ConfigError(
                f"{self.sampler.schedule.name}: source {self.source.name}: some samples from step {rule.first} on are "
                "not contiguous, because `sequence_length` changed in the middle of an epoch. Megatron's index files "
                "cannot represent them. Keep `sequence_length`, rename the source to start it over, or remove "
                "`megatron` and use TrainingData"
            )
        tokens = self._tokens[shards]
        # Most samples are windows, which already have rows. Add a pair of rows for each other contiguous sample. All
        # remaining samples, which the index cannot represent, become padding.
        windows = is_whole & (start % self._length == 0) & (stop == np.minimum(start + self._length, tokens))
        rows = np.where(windows, self._firsts[shards] + start // self._length, self.padding)
        odd_samples = np.flatnonzero(is_whole & ~windows)
        if len(odd_samples):
            begins = (np.cumsum(self._tokens) - self._tokens)[shards[odd_samples]]
            # The token after a sample is its last label, unless the shard ends with the sample.
            stops = np.minimum(stop[odd_samples], tokens[odd_samples] - 1)
            rows[odd_samples] = self.window_rows + sum(map(len, other_samples)) + 2 * np.arange(len(odd_samples))
            pairs = np.stack(
                [self._locate_rows(begins + start[odd_samples]), self._locate_rows(begins + stops)], axis=1
            )
            other_samples.append(pairs.reshape(-1, 2))
        return rows


def _find_source_number(rule: RevisionRule, name: str) -> int | None:
    return next((number for number, turn in enumerate(rule.turns) if turn.source.name == name), None)


def _find_breaks(pieces: TokenSlices) -> NDArray[np.bool_]:
    """Return, for each piece, whether it does not continue the previous piece of its sample in the same shard."""
    is_same_row = pieces.row[1:] == pieces.row[:-1]
    follows = (pieces.shard[1:] == pieces.shard[:-1]) & (pieces.start[1:] == pieces.stop[:-1])
    return np.append(np.zeros(min(len(pieces.row), 1), np.bool_), is_same_row & ~follows)


def iterate_blend_blocks(sampler: Sampler, sources: list[SourceSamples], size: int) -> Iterator[tuple[Int64, Int64]]:
    """Yield, per block of the run's samples, their sources in the last revision and their numbers in the source.

    Samples of dropped sources, and samples past the end up to `size`, are the first source's padding: the sample after
    its last one.
    """
    done_counts = np.zeros(len(sources), np.int64)
    names = {source.source.name: index for index, source in enumerate(sources)}
    padding = sources[0].size
    for index, rule in enumerate(sampler.rules):
        count = (rule.stop - rule.first) * rule.revision.batch
        numbers = np.array([names.get(turn.source.name, -1) for turn in rule.turns], np.int64)
        for block_start in range(0, count, _BLOCK):
            source_numbers, ordinals = rule.mixture.locate(np.arange(block_start, min(block_start + _BLOCK, count)))
            own_numbers = numbers[source_numbers]
            # For a dropped source `own_numbers` is -1, so it indexes the last of `done_counts`, which `where` then
            # discards.
            yield np.maximum(own_numbers, 0), np.where(own_numbers < 0, padding, done_counts[own_numbers] + ordinals)
        done_counts += [source.counts[index] for source in sources]
    padding_count = size - sampler.samples
    yield np.zeros(padding_count, np.int64), np.full(padding_count, padding, np.int64)
