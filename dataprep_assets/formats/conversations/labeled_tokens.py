"""Blocks of sequences of token ids with a label per token, as trainers of conversations read them.

The label of a token is the token itself if it is trained, otherwise -100. In contrast, the loss mask of packed rows
(`packed_rows.py`) is shifted: its position `i` is for token `i + 1` of the same sequence.

Entry points: `LabeledTokens`, `compute_labels`, `find_first_difference`; `UNTRAINED`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import FormatError
from dataprep_assets.formats.packed_rows import PackedRowBlock

UNTRAINED = -100
"""Label of a token that is not in the loss, as PyTorch's cross entropy ignores it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LabeledTokens:
    """Consecutive sequences: ids and labels (int32), shape `(tokens,)`, and the sequences' lengths (int64)."""

    ids: NDArray[np.int32]
    labels: NDArray[np.int32]
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.lengths)

    def __iter__(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Yield the ids and labels of each sequence."""
        for start, stop in pairwise([0, *np.cumsum(self.lengths).tolist()]):
            yield self.ids[start:stop], self.labels[start:stop]

    def slice_sequences(self, start: int, stop: int) -> "LabeledTokens":
        """Return the sequences ``start`` to ``stop``, exclusive."""
        lengths = self.lengths[start:stop]
        first_token = int(self.lengths[:start].sum())
        tokens = slice(first_token, first_token + int(lengths.sum()))
        return LabeledTokens(ids=self.ids[tokens], labels=self.labels[tokens], lengths=lengths)

    def find_first_difference(self, other_tokens: "LabeledTokens") -> tuple[int, str] | None:
        """Return the first sequence that differs, and its differing part (`ids`, `labels`); None if all are equal."""
        if all(
            np.array_equal(getattr(self, name), getattr(other_tokens, name)) for name in ("lengths", "ids", "labels")
        ):
            return None
        for number, (sequence, other_sequence) in enumerate(zip(self, other_tokens, strict=True)):
            for part, values, other_values in zip(("ids", "labels"), sequence, other_sequence, strict=True):
                if not np.array_equal(values, other_values):
                    return number, part
        return None


def compute_labels(rows: PackedRowBlock) -> NDArray[np.int32]:
    """Return the label of each token: the token itself if it is trained, otherwise `UNTRAINED`.

    Raises FormatError if the last position of a sequence is in the loss, because it has no label.
    """
    begins, _ = rows.bounds()
    is_trained = np.zeros(len(rows.tokens), np.bool_)
    is_trained[1:] = rows.required_mask[:-1] == 1
    if is_trained[begins].any() or (len(is_trained) and rows.required_mask[-1]):
        raise FormatError(f"from row {rows.first} on, a loss mask extends beyond its sequence. Rebuild the artifact")
    return np.where(is_trained, rows.tokens, np.int32(UNTRAINED)).astype(np.int32)


def find_first_difference(
    blocks: Iterable[LabeledTokens], other_blocks: Iterable[LabeledTokens]
) -> tuple[int, str] | None:
    """Return the number of the first sequence that differs, and the difference; None if all sequences are equal.

    The difference is `ids` or `labels`, `fewer` if `other_blocks` has more sequences, or `more` if `blocks` has more.
    The two iterables may divide the sequences into different blocks.
    """
    remaining, other_remaining = (filter(len, iterable) for iterable in (blocks, other_blocks))
    block, other_block, compared_count = next(remaining, None), next(other_remaining, None), 0
    while block is not None and other_block is not None:
        count = min(len(block), len(other_block))
        if (
            difference := block.slice_sequences(0, count).find_first_difference(other_block.slice_sequences(0, count))
        ) is not None:
            return compared_count + difference[0], difference[1]
        compared_count += count
        block = block.slice_sequences(count, len(block)) or next(remaining, None)
        other_block = other_block.slice_sequences(count, len(other_block)) or next(other_remaining, None)
    if block is None and other_block is None:
        return None
    return compared_count, "fewer" if block is None else "more"
