"""Packed rows: the integer columns that a trainer reads, laid out from tokens and bins.

A row of length L contains the documents of one bin in order, then padding (docs/formats/packed-rows.md#row). The names
come from the trainer MaxText (``utils/maxtext_utils.py``, ``get_shaped_batch``):

=====================  =======================================================================================
column                 value at a position
=====================  =======================================================================================
inputs                 the token; the pad id on padding
inputs_segmentation    1, 2, ... for the documents of the row; 0 on padding
inputs_position        0, 1, ... in each document; 0 on padding
targets                the next token if it is in the same document, else the pad id
targets_segmentation   as `inputs_segmentation` where `targets` is a real label, else 0
targets_position       as `inputs_position` where `targets` is a real label, else 0
=====================  =======================================================================================

Padding is determined by the bins and never by the token, so a document may contain the pad id.

Entry points: `pack_rows`, `PackedRows`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError, FormatError, count_of
from dataprep_assets.packing.bins import LARGEST_CAPACITY, Bins, Int64, Segments

COLUMNS = ("inputs", "inputs_segmentation", "inputs_position", "targets_segmentation", "targets_position")
"""The stored columns, in order."""
TARGETS = "targets"
"""The optional sixth column; a reader can derive it."""
COLUMN_DESCRIPTIONS = {
    "inputs": "Token ids of the row.",
    "inputs_segmentation": "Number of the token's sequence in the row, from 1; 0 for padding.",
    "inputs_position": "Position of the token in its sequence, from 0.",
    "targets_segmentation": "The same number for the label; 0 if the label is not in the loss.",
    "targets_position": "Position of the label in its sequence, from 0.",
    TARGETS: "Label of each position.",
}
"""Column → a sentence about it."""

Int32 = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedRows:
    """Rows of one length: int32 arrays of shape ``(rows, L)``; ``targets`` is None if it is not stored."""

    inputs: Int32
    inputs_segmentation: Int32
    inputs_position: Int32
    targets_segmentation: Int32
    targets_position: Int32
    targets: Int32 | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.inputs.shape[0])

    def columns(self) -> dict[str, Int32]:
        """Return a mapping from names to arrays, in the order of `COLUMNS`, followed by `TARGETS` if it is stored."""
        arrays: dict[str, Int32] = {name: getattr(self, name) for name in COLUMNS}
        return arrays if self.targets is None else {**arrays, TARGETS: self.targets}


def pack_rows(
    tokens: NDArray[Any],
    document_offsets: NDArray[Any],
    content: Bins | Segments,
    *,
    row_length: int,
    pad_id: int,
    targets: bool = False,
) -> PackedRows:
    """Return one row per bin, in the order of the bins; documents of a row are in the order of the bin.

    ``tokens``: integers, shape ``(tokens,)``, ids below 2**31; only the bins' tokens of a memory map are read.
    ``document_offsets``: integers, shape ``(documents + 1,)``, with a leading 0, never decreasing; item ``i`` of
    ``content`` is tokens ``document_offsets[i]`` to ``document_offsets[i + 1]``. ``row_length``: positions of a row,
    the capacity of the bins. ``pad_id``: fills the end of a row, in ``inputs`` and ``targets``. ``targets``:
    whether the rows get a sixth column with the next token of each document.

    This needs about 30 bytes of memory per position of the result. To build many rows, pass some of the bins at a time.
    Raises ConfigError for a row length or pad id that does not fit int32. Raises FormatError for a bin that is empty
    or longer than a row, a segment outside its document, offsets outside the tokens, and ids that do not fit int32.
    No message shows a token.
    """
    if not 1 <= row_length <= LARGEST_CAPACITY:
        raise ConfigError(f"row_length {row_length}: must be 1 to {LARGEST_CAPACITY} tokens")
    if not -(2**31) <= pad_id < 2**31:
        raise ConfigError(f"pad_id {pad_id}: must fit int32 (-2**31 to 2**31 - 1)")
    offsets = _check_offsets(document_offsets, tokens)
    segments = _check_segments(content, np.diff(offsets))
    lengths = segments.stops - segments.starts
    layout = _RowLayout(lengths, segments.offsets, row_length)
    segmentation, position = layout.segmentation(), layout.position()
    real = segmentation != 0
    position *= real
    inputs = np.full(segmentation.shape, pad_id, np.int32)
    inputs[real] = _gather_tokens(tokens, offsets[segments.items] + segments.starts, lengths)
    # The last token of a segment has no label, because the segment has no next token to predict.
    labeled = np.zeros_like(real)
    labeled[:, :-1] = real[:, 1:] & (segmentation[:, 1:] == segmentation[:, :-1])
    return PackedRows(
        inputs=inputs,
        inputs_segmentation=segmentation,
        inputs_position=position,
        targets_segmentation=segmentation * labeled,
        targets_position=position * labeled,
        targets=_shift_targets(inputs, labeled, pad_id) if targets else None,
    )


class _RowLayout:
    """Rows as pieces that fill them without gaps: the segments of a row, and its padding as one more piece."""

    def __init__(self, lengths: Int64, offsets: Int64, row_length: int) -> None:
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        used_lengths = ends[offsets[1:]] - ends[offsets[:-1]]
        if (used_lengths > row_length).any():
            row = int((used_lengths > row_length).argmax())
            raise FormatError(
                f"row {row} has {count_of(used_lengths[row], 'token')}, but the row length is {row_length}. Pack for "
                "that length"
            )
        self._shape = (used_lengths.size, row_length)
        # Give each row a last piece for its padding; the length of this piece is 0 if the row is full.
        self._pieces = np.insert(lengths, offsets[1:], row_length - used_lengths)
        ordinals = np.arange(lengths.size) - np.repeat(offsets[:-1], np.diff(offsets))
        self._numbers = np.insert(ordinals + 1, offsets[1:], 0)

    def segmentation(self) -> Int32:
        numbers: Int32 = np.repeat(self._numbers.astype(np.int32), self._pieces).reshape(self._shape)
        return numbers

    def position(self) -> Int32:
        """Return positions from the start of each piece, including padding."""
        # All rows have the same length and follow each other without gaps, so the start of a piece in its row is its
        # start modulo this length.
        starts = (np.cumsum(self._pieces) - self._pieces) % self._shape[1]
        positions: Int32 = np.repeat(starts.astype(np.int32), self._pieces).reshape(self._shape)
        np.subtract(np.arange(self._shape[1], dtype=np.int32), positions, out=positions)
        return positions


def _gather_tokens(tokens: NDArray[Any], starts: Int64, lengths: Int64) -> Int32:
    """Return the tokens of all segments, concatenated."""
    output_starts = np.cumsum(lengths) - lengths
    index: slice | Int64
    if lengths.size and (starts - starts[0] == output_starts).all():
        # Select consecutive segments with a slice, because a slice does not copy the tokens.
        index = slice(int(starts[0]), int(starts[0] + lengths.sum()))
    else:
        # Shift each output index by the distance from its segment's output position to its position in `tokens`.
        index = np.repeat(starts - output_starts, lengths)
        index += np.arange(index.size)
    values = tokens[index]
    if values.size and (int(values.min()) < 0 or int(values.max()) >= 2**31):
        position = int(np.arange(tokens.size)[index][((values < 0) | (values >= 2**31)).argmax()])
        raise FormatError(f"the id of token {position} must be 0 to 2**31 - 1. Read the tokens with the correct dtype")
    ids: Int32 = values.astype(np.int32, copy=False)
    return ids


def _shift_targets(inputs: Int32, labeled: NDArray[np.bool_], pad_id: int) -> Int32:
    targets = np.full_like(inputs, pad_id)
    np.copyto(targets[:, :-1], inputs[:, 1:], where=labeled[:, :-1])
    return targets


def _check_offsets(offsets: NDArray[Any], tokens: NDArray[Any]) -> Int64:
    for name, array in (("tokens", tokens), ("document offsets", offsets)):
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise FormatError(f"{name} must be a 1-d array of integers, not {array.ndim}-d {array.dtype}")
    if not offsets.size or offsets[0] != 0:
        raise FormatError("document offsets must not be empty, and must begin with 0")
    # Compare the offsets instead of subtracting them, because uint64 differences wrap around.
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if falls.size:
        raise FormatError(f"document {falls[0]} ends before it starts. Document offsets must not decrease")
    if int(offsets[-1]) > tokens.size:
        raise FormatError(f"the last document ends at token {offsets[-1]} of {count_of(tokens.size, 'token')}")
    return offsets.astype(np.int64)


def _check_segments(content: Bins | Segments, lengths: Int64) -> Segments:
    # Check the items before looking up lengths, because a negative index would find another document's length.
    outside = (content.items < 0) | (content.items >= lengths.size)
    if outside.any():
        index = int(outside.argmax())
        raise FormatError(
            f"a bin contains item {content.items[index]}, which is out of range: there are "
            f"{count_of(lengths.size, 'document')}"
        )
    segments = content if isinstance(content, Segments) else content.segments(lengths)
    is_wrong = (segments.starts < 0) | (segments.stops <= segments.starts) | (segments.stops > lengths[segments.items])
    if is_wrong.any():
        index = int(is_wrong.argmax())
        item = int(segments.items[index])
        raise FormatError(
            f"a bin has tokens {segments.starts[index]} to {segments.stops[index]} of document {item}, which has "
            f"{count_of(lengths[item], 'token')}. A segment needs at least one token of its document"
        )
    empty = np.flatnonzero(np.diff(segments.offsets) == 0)
    if empty.size:
        raise FormatError(f"bin {empty[0]} is empty, so its row would be all padding")
    return segments
