"""Conversations as token and mask files for supervised fine-tuning with OLMo-core.

    <split>/token_ids_part_<i:06d>.npy      ids, headerless, uint8, uint16 or uint32
    <split>/labels_mask_part_<i:06d>.npy    one byte per id: 1 if the token is trained
    <split>/token_ids_part_<i:06d>.csv.gz   begin and exclusive end of each document

The layout equals open-instruct's (`open_instruct/numpy_dataset_conversion.py`, `e6c3044a`). OLMo-core reads it with
`NumpyPackedFSLDataset` (`src/olmo_core/data/numpy_dataset.py`, 3.0.0). The mask is aligned to the ids: OLMo-core
shifts ids and mask together (`get_labels`). OLMo-core chooses the dtype by the size of the vocabulary, so the
trainer line must set this size.

In local files, OLMo-core ends a document after each token with the id `eos_token_id`, and does not read the CSV. Chat
templates often write the tokenizer's EOS after each turn, and OLMo-core would cut a conversation there. A file
therefore has a *boundary token*: a token that ends every sequence and occurs nowhere else. If no token ends all
sequences, a token that occurs in none of them is appended to each sequence, outside the loss.

Entry points: `BoundaryScan`, `choose_token_dtype`, `write_part`, `read_part`, `find_part_defects`.
"""

import gzip
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.formats.conversations.labeled_tokens import UNTRAINED, LabeledTokens, compute_labels
from dataprep_assets.formats.packed_rows import PackedRowBlock
from dataprep_assets.stores.files import create_durably

_BLOCK = 1024
"""Sequences that are read at a time."""
_DTYPES = (np.dtype("u1"), np.dtype("<u2"), np.dtype("<u4"))


class Boundary(NamedTuple):
    """The token after which a document ends, and whether it is appended to the sequences."""

    id: int
    is_appended: bool


def choose_token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the dtype that OLMo-core chooses for a vocabulary (`NumpyDatasetConfigBase.get_dtype`)."""
    return next(dtype for dtype in _DTYPES if vocab_size - 1 <= np.iinfo(dtype).max)


def build_part_names(split: str, number: int) -> tuple[str, str, str]:
    """Return the paths of a part: ids, mask and document bounds."""
    ids = f"{split}/token_ids_part_{number:06d}"
    return f"{ids}.npy", f"{split}/labels_mask_part_{number:06d}.npy", f"{ids}.csv.gz"


@dataclass
class BoundaryScan:
    """Search for the boundary token of sequences.

    Attributes:
        candidates: Ids of the tokens to choose from, in order of preference.
        longest: Number of tokens of the longest sequence so far.
    """

    candidates: Sequence[int]
    longest: int = 0
    _inside: set[int] = field(default_factory=set)
    _at_end: set[int] = field(default_factory=set)
    _missing: set[int] = field(default_factory=set)

    def add(self, block: PackedRowBlock) -> None:
        """Scan the sequences of a block."""
        begins, ends = block.bounds()
        self.longest = max(self.longest, int((ends - begins).max(initial=0)))
        last_tokens = block.tokens[ends - 1]
        is_last = np.zeros(len(block.tokens), np.bool_)
        is_last[ends - 1] = True
        inner_tokens = np.isin(block.tokens, list(self.candidates)) & ~is_last
        self._inside.update(np.unique(block.tokens[inner_tokens]).tolist())
        for candidate in self.candidates:
            is_end = last_tokens == candidate
            if is_end.any():
                self._at_end.add(candidate)
            if not is_end.all():
                self._missing.add(candidate)

    @property
    def boundary(self) -> Boundary:
        """The boundary token. Raises FormatError if every candidate occurs inside a sequence."""
        for candidate in self.candidates:
            if candidate in self._inside or (candidate in self._at_end and candidate in self._missing):
                continue
            return Boundary(candidate, candidate not in self._at_end)
        raise FormatError(
            f"all {count_of(len(self.candidates), 'special token')} of the tokenizer occur inside sequences, so "
            "OLMo-core could not find the ends of documents. Use a tokenizer with a special token that the template "
            "does not write"
        )


def _build_part(
    block: PackedRowBlock, boundary: Boundary
) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.int64]]:
    """Return ids, mask and document lengths of a block, with appended boundaries."""
    ids, is_trained, lengths = block.tokens, compute_labels(block) != UNTRAINED, block.lengths
    if boundary.is_appended:
        ends = np.cumsum(lengths)
        ids, is_trained = np.insert(ids, ends, boundary.id), np.insert(is_trained, ends, False)
        lengths = lengths + 1
    return ids, is_trained, lengths


def write_part(paths: Sequence[Path], blocks: Iterable[PackedRowBlock], boundary: Boundary, vocab_size: int) -> None:
    """Write the rows of a packed file as a new part; `paths` are its ids, mask and bounds.

    The file of ids gets its final name last, so a part with this file is complete.
    """
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    dtype, stop = choose_token_dtype(vocab_size), 0
    with ExitStack() as stack:
        # Open the ids first. Files get their final names when they close, and `ExitStack` closes them in the opposite
        # order, so that the ids get their name last.
        ids_file, mask_file, raw_file = (stack.enter_context(create_durably(path)) for path in paths)
        bounds_file = stack.enter_context(_open_gzip(raw_file))
        for block in blocks:
            ids, is_trained, lengths = _build_part(block, boundary)
            ids_file.write(np.ascontiguousarray(ids.astype(dtype)).data)
            mask_file.write(np.ascontiguousarray(is_trained).data)
            for end in (stop + np.cumsum(lengths)).tolist():
                bounds_file.write(f"{stop},{end}\n".encode())
                stop = end


def _open_gzip(file: Any) -> gzip.GzipFile:
    # Omit the name and the time, so that equal bounds give equal bytes.
    return gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0)


def _read_bounds(path: Path) -> NDArray[np.int64]:
    try:
        text = gzip.decompress(path.read_bytes())
        values = np.loadtxt(io.BytesIO(text), np.int64, delimiter=",", ndmin=2) if text else np.zeros((0, 2), np.int64)
    except (OSError, EOFError, ValueError) as error:
        raise FormatError(f"{path}: not a list of document bounds: {error}. Rebuild the artifact") from error
    begins = np.concatenate([np.zeros(1, np.int64), values[:-1, 1]]) if len(values) else values[:, 0]
    if values.shape[1] != 2 or not np.array_equal(values[:, 0], begins) or (values[:, 1] <= values[:, 0]).any():
        raise FormatError(f"{path}: the documents are not contiguous. Rebuild the artifact")
    return np.append(np.zeros(1, np.int64), values[:, 1])


def _map_part(paths: Sequence[Path], vocab_size: int) -> tuple[NDArray[Any], NDArray[np.uint8], NDArray[np.int64]]:
    """Return ids, mask and the ends of documents with a leading 0."""
    ids_path, mask_path, bounds_path = paths
    dtype = choose_token_dtype(vocab_size)
    if ids_path.stat().st_size % dtype.itemsize:
        raise FormatError(f"{ids_path}: its size is not a multiple of {dtype.itemsize} bytes. Rebuild the artifact")
    ids, mask, ends = np.memmap(ids_path, dtype, "r"), np.memmap(mask_path, np.uint8, "r"), _read_bounds(bounds_path)
    if not len(ids) == len(mask) == ends[-1]:
        raise FormatError(
            f"{ids_path}: has {count_of(len(ids), 'id')}, but the mask has {len(mask)} and the bounds end at "
            f"{ends[-1]}. Rebuild the artifact"
        )
    return ids, mask, ends


def read_part(paths: Sequence[Path], boundary: Boundary, vocab_size: int) -> Iterator[LabeledTokens]:
    """Yield the sequences of a part in blocks, without appended boundaries."""
    ids, mask, ends = _map_part(paths, vocab_size)
    for first_row in range(0, len(ends) - 1, _BLOCK):
        bounds = ends[first_row : first_row + _BLOCK + 1]
        tokens, lengths = slice(int(bounds[0]), int(bounds[-1])), np.diff(bounds)
        block_ids, block_mask = ids[tokens].astype(np.int32), np.asarray(mask[tokens])
        if boundary.is_appended:
            appended = bounds[1:] - bounds[0] - 1
            block_ids, block_mask = np.delete(block_ids, appended), np.delete(block_mask, appended)
            lengths = lengths - 1
        labels = np.where(block_mask == 1, block_ids, np.int32(UNTRAINED))
        yield LabeledTokens(ids=block_ids, labels=labels, lengths=lengths)


def find_part_defects(paths: Sequence[Path], boundary: Boundary, vocab_size: int, longest: int) -> Iterator[str]:
    """Yield a sentence for each property that OLMo-core requires and the part lacks."""
    ids, mask, ends = _map_part(paths, vocab_size)
    boundary_ends = np.flatnonzero(ids == boundary.id) + 1
    if not np.array_equal(boundary_ends, ends[1:]):
        yield f"{paths[0]}: the token {boundary.id} must be at the end of each document and nowhere else"
    if (mask > 1).any():
        yield f"{paths[1]}: has a value other than 0 or 1"
    if boundary.is_appended and mask[ends[1:] - 1].any():
        yield f"{paths[1]}: an appended end-of-document token is in the loss"
    if mask[ends[:-1]].any():
        yield f"{paths[1]}: the first token of a document is in the loss"
    if int(ids.max(initial=0)) >= vocab_size:
        yield f"{paths[0]}: an id is outside the vocabulary (0 to {vocab_size - 1})"
    if int(np.diff(ends).max(initial=0)) > longest:
        yield f"{paths[2]}: a document is longer than {count_of(longest, 'token')}"
