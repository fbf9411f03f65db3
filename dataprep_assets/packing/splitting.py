"""Splitting: rules that turn a document of a header and a body into chunks that fit in a row.

The header describes the body (metadata before a note). A document that fits is one chunk under every rule:

=============  ======================================================================================================
rule           a document that does not fit
=============  ======================================================================================================
repeat_header  chunks that all begin with the header
header_once    chunks; only the first begins with the header
truncate       one chunk with the header and the start of the body; the rest is dropped and counted
=============  ======================================================================================================

Under the first two rules, every token of the body is in a chunk. Each chunk after the first begins with the last
``overlap`` body tokens of the previous chunk. A document with an empty body has no chunk, because a header without a
body has no training value.

Entry points: `SplitRule`, `split_documents`; `find_without_room` for callers that drop documents instead of failing.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError, FormatError, count_of
from dataprep_assets.packing.bins import LARGEST_CAPACITY, Int64

Rule = Literal["repeat_header", "header_once", "truncate"]


@dataclass(frozen=True, kw_only=True)
class SplitRule:
    """The rule that splits documents for rows of ``row_length`` tokens; ``overlap`` is in body tokens.

    Raises ConfigError for an unknown rule, a row length that is not allowed, an overlap that is negative or not less
    than the row length, and an overlap with `truncate`.
    """

    rule: Rule
    row_length: int
    overlap: int = 0

    def __post_init__(self) -> None:
        if self.rule not in get_args(Rule):
            raise ConfigError(f"split rule {self.rule!r}: must be one of {', '.join(get_args(Rule))}")
        if not 1 <= self.row_length <= LARGEST_CAPACITY:
            raise ConfigError(f"row_length {self.row_length}: must be 1 to {LARGEST_CAPACITY} tokens")
        if not 0 <= self.overlap < self.row_length:
            raise ConfigError(f"overlap {self.overlap}: must be 0 to {self.row_length - 1} (below the row length)")
        if self.rule == "truncate" and self.overlap:
            raise ConfigError(
                f"overlap {self.overlap}: cannot be combined with the rule truncate, which keeps one chunk. Set it to 0"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Chunks:
    """Chunks in the order of their documents, and in body order within a document.

    ``documents``, ``starts``, ``stops``: int64, shape ``(chunks,)``; a chunk is body tokens ``start`` to ``stop``,
    exclusive, of the document. ``with_header``: bool, shape ``(chunks,)``; whether the chunk begins with the header.
    ``lengths``: int64, shape ``(chunks,)``, tokens with the header, at most a row.
    ``dropped``: int64, shape ``(documents,)``, number of body tokens that are not in a chunk.
    """

    documents: Int64
    starts: Int64
    stops: Int64
    with_header: NDArray[np.bool_]
    lengths: Int64
    dropped: Int64


def split_documents(header_lengths: NDArray[Any], body_lengths: NDArray[Any], rule: SplitRule) -> Chunks:
    """Split documents into chunks of at most ``rule.row_length`` tokens.

    ``header_lengths``, ``body_lengths``: integers, shape ``(documents,)``, unit tokens, 0 or more. Raises FormatError,
    with the document's index and the numbers, for a header that leaves too little room (see `find_without_room`), a
    negative length, and arrays that are not one-dimensional integers of one shape.
    """
    headers, bodies = _check_limits(header_lengths, body_lengths)
    _refuse(headers, bodies, rule)
    room = _compute_first_chunk_room(headers, rule)
    excess = np.maximum(bodies - room, 0)
    if rule.rule == "truncate":
        later_chunks, dropped_tokens = np.zeros_like(bodies), excess
    else:
        later_chunks, dropped_tokens = -(-excess // _compute_stride(room, rule)), np.zeros_like(bodies)
    counts = np.where(bodies > 0, 1 + later_chunks, 0)
    documents = np.repeat(np.arange(bodies.size), counts)
    # `ordinal` is the number of each chunk in its document, counted from 0.
    ordinal = np.arange(documents.size) - np.repeat(np.cumsum(counts) - counts, counts)
    # `full` is the end of each chunk if the chunk has the maximum length; only the last chunk of a document may end
    # earlier.
    full = room[documents] + ordinal * _compute_stride(room, rule)[documents]
    starts = np.where(ordinal == 0, 0, full - _compute_later_chunk_room(room, rule)[documents])
    stops = np.minimum(full, bodies[documents])
    with_header = (ordinal == 0) | (rule.rule == "repeat_header")
    return Chunks(
        documents=documents,
        starts=starts,
        stops=stops,
        with_header=with_header,
        lengths=stops - starts + headers[documents] * with_header,
        dropped=dropped_tokens,
    )


def find_without_room(header_lengths: NDArray[Any], body_lengths: NDArray[Any], rule: SplitRule) -> Int64:
    """Return indices of the documents that `split_documents` rejects with the same arguments, int64, ascending.

    The header of such a document leaves no room for a token of the body. Documents that need several chunks are also
    rejected if their room next to the header is at most the overlap, because no chunk would then reach beyond the
    previous one.
    """
    return _find_indexes_without_room(*_check_limits(header_lengths, body_lengths), rule)


def _find_indexes_without_room(headers: Int64, bodies: Int64, rule: SplitRule) -> Int64:
    room = _compute_first_chunk_room(headers, rule)
    # The condition also finds headers that fill a whole row, because such a header leaves a room of 0, which never
    # exceeds the overlap.
    return np.flatnonzero((bodies > room) & (room <= rule.overlap))


def _refuse(headers: Int64, bodies: Int64, rule: SplitRule) -> None:
    wrong_indexes = _find_indexes_without_room(headers, bodies, rule)
    if wrong_indexes.size:
        document = int(wrong_indexes[0])
        raise FormatError(
            f"document {document} (and {wrong_indexes.size - 1} more): a header of "
            f"{count_of(headers[document], 'token')} in rows of {rule.row_length} leaves room for "
            f"{_compute_first_chunk_room(headers, rule)[document]} of its "
            f"{count_of(bodies[document], 'body token')}, with an overlap of {rule.overlap}. Shorten the header, "
            "lengthen the rows, or drop the document"
        )


def _compute_first_chunk_room(headers: Int64, rule: SplitRule) -> Int64:
    """Return the body tokens of each document's first chunk."""
    return np.maximum(rule.row_length - headers, 0)


def _compute_later_chunk_room(room: Int64, rule: SplitRule) -> Int64:
    """Return the body tokens of each chunk after the first."""
    return np.full_like(room, rule.row_length) if rule.rule == "header_once" else room


def _compute_stride(room: Int64, rule: SplitRule) -> Int64:
    """Return the new body tokens of each chunk after the first; at least 1, even if there is no such chunk."""
    return np.maximum(_compute_later_chunk_room(room, rule) - rule.overlap, 1)


def _check_limits(header_lengths: NDArray[Any], body_lengths: NDArray[Any]) -> tuple[Int64, Int64]:
    arrays = []
    for name, lengths in (("header", header_lengths), ("body", body_lengths)):
        array = np.asarray(lengths)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise FormatError(f"{name} lengths must be a 1-d array of integers, not {array.ndim}-d {array.dtype}")
        if array.size and array.min() < 0:
            raise FormatError(f"document {int(array.argmin())} has a {name} of {count_of(array.min(), 'token')}")
        arrays.append(array.astype(np.int64))
    headers, bodies = arrays
    if headers.size != bodies.size:
        raise FormatError(
            f"header and body lengths must have the same number of items, not {headers.size} and {bodies.size}"
        )
    return headers, bodies
