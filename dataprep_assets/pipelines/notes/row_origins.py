"""The columns of a month's `origins.npy` (`formats/row_origins`): the note of each segment of packed rows.

===========  ======================================================================================================
``RECORD``   the record of the cohort's file, from 1, as in messages
``NOTE``     the note within the record, from 1
``CHUNK``    which piece of the note it is, from 0, in the order of its text
``PATIENT``  the place of the patient's digest in `patients.bin`, from 0
===========  ======================================================================================================

It stays in the artifact of the packed cohort, beside the notes: no shard and no receipt holds any of it.
"""

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.pipelines.notes.row_layout import NoteLayout
from dataprep_assets.pipelines.notes.spool import Spool

RECORD, NOTE, CHUNK, PATIENT = range(4)
COLUMNS = 4


def origin_columns(layout: NoteLayout, spool: Spool) -> list[NDArray[np.int64]]:
    """The origins of the rows that a layout makes of a spool, by column."""
    patients = spool.patients[layout.items]
    present = np.unique(patients)
    # index of a patient in the spool → place in this split's `patients.bin`, which is sorted by digest
    rank = np.zeros(len(spool.digests), np.int64)
    rank[sorted(present.tolist(), key=spool.digests.__getitem__)] = np.arange(present.size)
    return [spool.records[layout.items], spool.numbers[layout.items], _chunks(layout), rank[patients]]


def _chunks(layout: NoteLayout) -> NDArray[np.int64]:
    """The number of each segment within its note, by where its text begins in the note."""
    # A note's chunks all begin with its header, and only their last ranges move on.
    order = np.lexsort((layout.starts[:, -1], layout.items))
    notes = layout.items[order]
    found = np.empty_like(order)
    # place among all segments, less that of the note's first
    found[order] = np.arange(order.size) - np.searchsorted(notes, notes)
    return found
