"""Spans of consecutive samples, which are computed together, and the parts of documents in these samples.

A part is the tokens of one document in one sample. Positions are in the flattened block: ``row * width + column``.

Entry points: `SampleBlock`, `DocumentParts`, `DocumentEnds`.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.serving.sampler.sampler import Spans

Int64 = NDArray[np.int64]


class DocumentEnds(NamedTuple):
    """Ends of documents within spans.

    `counts` is the number of ends in each span: ``(spans,)``. `ends` are the ends as positions in the shards, span
    after span, increasing in a span.
    """

    counts: Int64
    ends: Int64


class SampleBlock:
    """Spans of the samples of several steps.

    Attributes:
        spans: Spans of the samples; `row` is the number of the sample in the block.
        width: Tokens per sample.
        samples_per_step: Number of samples of a step.
        first_positions: Position of the first token of each span: ``(spans,)``.
        token_counts: Number of tokens of each sample: ``(rows,)``.
        parts: Parts of documents in the samples; None if there are no boundaries.
    """

    def __init__(self, spans: Spans, rows: int, width: int, samples_per_step: int) -> None:
        """Locate the spans in the block.

        Args:
            spans: Spans of all samples.
            rows: Number of samples.
            width: Tokens per sample.
            samples_per_step: Number of samples of a step.
        """
        self.spans, self.width, self.samples_per_step = spans, width, samples_per_step
        lengths = spans.stop - spans.start
        self.token_counts: Int64 = np.bincount(spans.row, lengths, rows).astype(np.int64)
        # The spans of a sample follow each other without a gap.
        row_firsts = np.arange(rows) * width - (np.cumsum(self.token_counts) - self.token_counts)
        self.first_positions: Int64 = np.cumsum(lengths) - lengths + row_firsts[spans.row]
        self.parts: DocumentParts | None = None

    def select_spans(self, low: int, high: int) -> tuple[Spans, Int64]:
        """Return the spans of the samples `[low, high)`, and their first positions relative to the first sample."""
        start, stop = self.spans.row.searchsorted((low, high)).tolist()
        spans = Spans(*(column[start:stop] for column in self.spans))
        return spans, self.first_positions[start:stop] - low * self.width

    def find_parts(self, document_ends: DocumentEnds) -> None:
        """Set `parts`, given the ends of the documents in the spans."""
        self.parts = DocumentParts.from_ends(self, document_ends)


@dataclass(frozen=True, kw_only=True)
class DocumentParts:
    """The parts of documents in a block. Every sample has at least one part.

    Attributes:
        width: Tokens per sample.
        begins: Position of the first token of each part, increasing: ``(parts,)``.
        lengths: Tokens of each part, with the padding of a short sample: ``(parts,)``.
        numbers: Number of each part in its sample: ``(parts,)``.
        first_parts: Index of each sample's first part, and the number of parts: ``(rows + 1,)``.
        last_tokens: Position of the last token of each document that ends in the block, increasing.
        first_last_tokens: Index in `last_tokens` at which each sample begins, and its length: ``(rows + 1,)``.
    """

    width: int
    begins: Int64
    lengths: Int64
    numbers: NDArray[np.int32]
    first_parts: Int64
    last_tokens: Int64
    first_last_tokens: Int64

    @classmethod
    def from_ends(cls, block: SampleBlock, document_ends: DocumentEnds) -> Self:
        """Return the parts of a block, given the ends of the documents in its spans."""
        spans, width, rows = block.spans, block.width, len(block.token_counts)
        firsts, lasts = block.first_positions, block.first_positions + spans.stop - spans.start
        counts = document_ends.counts
        ends = document_ends.ends + np.repeat(firsts - spans.start, counts)
        # The next document of a span begins after the last token of a document.
        is_last = ends == np.repeat(lasts, counts)
        ends_document = np.zeros(len(counts), bool)
        ends_document[np.repeat(np.arange(len(counts)), counts)[is_last]] = True
        continues = _find_continuing_spans(spans, ends_document)
        # Give a sample without tokens one part, so that every sample begins with a part.
        empty_rows = np.flatnonzero(block.token_counts == 0) * width
        begins = np.sort(np.concatenate([firsts[~continues], ends[~is_last], empty_rows]), kind="stable")
        row_begins = np.arange(rows + 1) * width
        first_parts = begins.searchsorted(row_begins)
        return cls(
            width=width,
            begins=begins,
            lengths=np.diff(begins, append=rows * width),
            numbers=(np.arange(len(begins)) - np.repeat(first_parts[:-1], np.diff(first_parts))).astype(np.int32),
            first_parts=first_parts,
            last_tokens=ends - 1,
            first_last_tokens=(ends - 1).searchsorted(row_begins),
        )

    def find_last_tokens(self, low: int, high: int) -> Int64:
        """Return the positions of documents' last tokens in the samples `[low, high)`, relative to the first sample."""
        start, stop = self.first_last_tokens[low], self.first_last_tokens[high]
        return self.last_tokens[start:stop] - low * self.width

    def number_tokens(self, low: int, high: int) -> tuple[Int64, NDArray[np.int32]]:
        """Return each token's position in its part and the number of its part, for the samples `[low, high)`.

        Both are flat: ``((high - low) * width,)``. The padding of a short sample continues its last part.
        """
        parts = slice(self.first_parts[low], self.first_parts[high])
        lengths = self.lengths[parts]
        position_ids = np.repeat(self.begins[parts] - low * self.width, lengths)
        # Subtract in place, because another array of this size would cost more than the subtraction.
        np.subtract(_number_positions((high - low) * self.width), position_ids, out=position_ids)
        return position_ids, np.repeat(self.numbers[parts], lengths)


def _find_continuing_spans(spans: Spans, ends_document: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether each span continues the document of the previous span.

    A span continues it if it begins where the previous span ends, and no document ends there (`ends_document`). The
    document was split at a boundary between samples of an earlier order.
    """
    continues = np.zeros(len(ends_document), bool)
    continues[1:] = ~ends_document[:-1] & (spans.start[1:] == spans.stop[:-1])
    for column in (spans.row, spans.source, spans.shard):
        continues[1:] &= column[1:] == column[:-1]
    return continues


@lru_cache(maxsize=1)
def _number_positions(count: int) -> Int64:
    """Return the positions of a batch's tokens, from 0; cached, because most batches have the same size."""
    return np.arange(count)
