"""`origins.bin`: the note of each segment of packed rows, which leads from a row to its record and back.

28 bytes per segment, in the order of the rows, without a header: seven little-endian uint32.

===========  ======================================================================================================
``row``      the row that holds the segment, from 0
``start``    its first token in the row, from 0
``tokens``   the number of its tokens
``record``   the record of the cohort's file, from 1, as in messages
``note``     the note within the record, from 1
``chunk``    which piece of the note it is, from 0, in the order of its text
``patient``  the place of the patient's digest in `patients.bin`, from 0
===========  ======================================================================================================

It stays in the artifact of the packed cohort, beside the notes: no shard and no receipt holds any of it.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import FormatError
from dataprep_assets.pipelines.notes.row_layout import RowLayout
from dataprep_assets.pipelines.notes.spool import Spool

DTYPE = np.dtype([(name, "<u4") for name in ("row", "start", "tokens", "record", "note", "chunk", "patient")])
Origins = NDArray[Any]
"""Shape `(segments,)`, of `DTYPE`."""


def origins_of(layout: RowLayout, spool: Spool) -> Origins:
    """The origins of the rows that a layout makes of a spool."""
    counts = np.diff(layout.offsets)
    tokens = layout.first_lengths + layout.second_lengths
    starts = np.cumsum(tokens) - tokens
    patients = spool.patients[layout.notes]
    present = np.unique(patients)
    # index of a patient in the spool → place in this split's `patients.bin`, which is sorted by digest
    rank = np.zeros(len(spool.digests), np.int64)
    rank[sorted(present.tolist(), key=spool.digests.__getitem__)] = np.arange(present.size)
    found = np.empty(tokens.size, DTYPE)
    found["row"] = np.repeat(np.arange(counts.size), counts)
    # counted over all rows first, then less what lies before the segment's own row
    found["start"] = starts - np.repeat(starts[layout.offsets[:-1]], counts)
    found["tokens"] = tokens
    found["record"] = spool.records[layout.notes]
    found["note"] = spool.numbers[layout.notes]
    found["chunk"] = _chunks(layout)
    found["patient"] = rank[patients]
    return found


def _chunks(layout: RowLayout) -> NDArray[np.int64]:
    """The number of each segment within its note, by where its text begins in the note."""
    # A note's chunks all begin with its header, and only their second ranges move on; in a stream there are only first
    # ranges. The sum of both starts orders either.
    order = np.lexsort((layout.first_starts + layout.second_starts, layout.notes))
    notes = layout.notes[order]
    found = np.empty_like(order)
    # place among all segments, less that of the note's first
    found[order] = np.arange(order.size) - np.searchsorted(notes, notes)
    return found


def read_origins(path: Path) -> Origins:
    """Read the origins of a file; raises FormatError if it is truncated."""
    return parse_origins(path.read_bytes(), str(path))


def parse_origins(content: bytes, where: str) -> Origins:
    """Parse the bytes of a file, which errors call `where`; raises FormatError if they are truncated."""
    if len(content) % DTYPE.itemsize:
        raise FormatError(f"{where}: {len(content)} bytes are not a multiple of {DTYPE.itemsize}; it was cut")
    return np.frombuffer(content, DTYPE)
