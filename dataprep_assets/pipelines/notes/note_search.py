"""Search for notes in packed rows; the reference engine encodes the notes chunk by chunk.

Messages and `repr` show positions, never content.

Entry points: `NoteSearch`, `SampledNote`.
"""

from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.formats.packed_rows import open_packed_file
from dataprep_assets.packing.splitting import SplitRule, find_without_room, split_documents
from dataprep_assets.pipelines.notes.cohorts.opened_cohort import OpenedCohort, SampledNote
from dataprep_assets.pipelines.notes.cohorts.packed_files import list_packed_paths
from dataprep_assets.pipelines.notes.note_tokens import join_for_encoding, split_header_and_body
from dataprep_assets.stream.reencoding import Encode
from dataprep_assets.tokenization.engines import ReferenceEngine


@dataclass(frozen=True, kw_only=True)
class NoteChunk:
    """A piece of a note as expected in the rows: index of the note, index of the chunk, and token ids (int32)."""

    note: int
    chunk: int
    ids: bytes

    def __repr__(self) -> str:
        return f"Chunk({self.note}, {self.chunk})"


class NoteSearch:
    """Search for notes of one split in the split's columnar file."""

    def __init__(self, cohort: OpenedCohort, split: str) -> None:
        self._packed = cohort
        self._path = cohort.directory / list_packed_paths(cohort.notes, cohort.month)[split].rows
        self._reference = ReferenceEngine(cohort.bundle, cohort.notes.document.special_tokens)
        self._encode: Encode = self._reference.encode

    def with_certified_engine(self) -> "NoteSearch":
        """Return a copy of this search that uses the engine that encoded the cohort."""
        search = copy(self)
        search._encode = self._packed.encode or self._encode
        return search

    def encode_chunks(self, notes: Sequence[SampledNote]) -> list[NoteChunk]:
        """Encode notes and return their chunks, in order; a note whose header leaves no room in a row has no chunks."""
        cohort = self._packed
        separator, bos = cohort.facts.separator_id, cohort.facts.bos_id
        encode, begin = cohort.notes.template.encode, [] if bos is None else [bos]
        encoded_notes = [
            split_header_and_body(
                self._encode_ids(note.header),
                self._encode_ids(join_for_encoding(note.header, note.text, encode)),
                encode,
            )
            for note in notes
        ]
        headers = [[*begin, *header.tolist()] for header, _ in encoded_notes]
        bodies = [[*body.tolist(), separator] for _, body in encoded_notes]
        if cohort.notes.is_concatenated:
            # Each note is one chunk, because the rows of a stream may end anywhere in a note.
            whole_notes = [np.array(h + b, "<i4").tobytes() for h, b in zip(headers, bodies, strict=True)]
            return [NoteChunk(note=note, chunk=0, ids=ids) for note, ids in enumerate(whole_notes)]
        long_notes = cohort.notes.long_notes
        rule = SplitRule(rule=long_notes.rule, row_length=cohort.notes.capacity, overlap=long_notes.overlap)
        header_lengths, body_lengths = (
            np.array([len(ids) for ids in id_lists], np.int64) for id_lists in (headers, bodies)
        )
        fits = np.delete(np.arange(len(notes)), find_without_room(header_lengths, body_lengths, rule))
        chunk_bounds = split_documents(header_lengths[fits], body_lengths[fits], rule)
        note_chunks = []
        chunk_counts: Counter[int] = Counter()
        for note, start, stop, header in zip(
            fits[chunk_bounds.documents].tolist(),
            chunk_bounds.starts.tolist(),
            chunk_bounds.stops.tolist(),
            chunk_bounds.with_header,
            strict=True,
        ):
            ids = np.array([*(headers[note] if header else ()), *bodies[note][start:stop]], "<i4").tobytes()
            note_chunks.append(NoteChunk(note=note, chunk=chunk_counts[note], ids=ids))
            chunk_counts[note] += 1
        return note_chunks

    def _encode_ids(self, text: str) -> NDArray[np.uint32]:
        return self._encode([text])[0]

    def find_chunks(self, encode_chunks: Sequence[NoteChunk]) -> list[bool]:
        """Return whether each chunk occurs in the rows: as a whole segment, or anywhere if the rows are a stream."""
        pieces = [chunk.ids for chunk in encode_chunks]
        return (_find_in_stream if self._packed.notes.is_concatenated else _find_in_segments)(self._path, pieces)

    def has_chunk(self, note_chunks: Sequence[NoteChunk], chunk: NoteChunk) -> bool:
        """Return whether rows that contain all chunks in `note_chunks`, the chunks of a note, also contain `chunk`."""
        if self._packed.notes.is_concatenated:
            return any(_contains_aligned(candidate.ids, chunk.ids) for candidate in note_chunks)
        return any(candidate.ids == chunk.ids for candidate in note_chunks)


def _find_in_segments(path: Path, patterns: Sequence[bytes]) -> list[bool]:
    """Return whether each byte string is a whole segment in a file of packed rows."""
    missing = set(patterns)
    lengths = np.unique(np.array([len(piece) // 4 for piece in patterns], np.int64))
    for block in open_packed_file(path, masked=False) if patterns else ():
        begins, ends = block.bounds()
        # Compare only segments with the length of a pattern, to avoid copying the other segments.
        for index in np.flatnonzero(np.isin(block.lengths, lengths)).tolist():
            piece = block.tokens[begins[index] : ends[index]].astype("<i4", copy=False)
            missing.discard(piece.tobytes())
    return [piece not in missing for piece in patterns]


def _find_in_stream(path: Path, patterns: Sequence[bytes]) -> list[bool]:
    """Return whether each byte string occurs in the tokens of all rows, read as one stream."""
    missing, tail = set(patterns), b""
    # Keep the end of each block (the longest pattern minus one token), because a pattern may continue in the next
    # block.
    keep = max((len(piece) for piece in patterns), default=4) - 4
    for block in open_packed_file(path, masked=False) if patterns else ():
        stream = tail + block.tokens.astype("<i4", copy=False).tobytes()
        missing = {piece for piece in missing if not _contains_aligned(stream, piece)}
        tail = stream[len(stream) - min(keep, len(stream)) :]
    return [piece not in missing for piece in patterns]


def _contains_aligned(stream: bytes, piece: bytes) -> bool:
    offset = stream.find(piece)
    # Skip a match that starts within a token, because the bytes of such a match are not whole tokens.
    while offset >= 0 and offset % 4:
        offset = stream.find(piece, offset + 1)
    return offset >= 0
