"""Files of a packed cohort (one month's notes as packed rows), and the facts in its receipt.

If `train` is the only split, the files are at the top level, as in the original scripts. With several splits, each
split has a folder:

==========================  =====================================================================================
``<YYYY>-<MM>.jsonl``       one packed row per line, every stored column a list of integers
                            (docs/formats/packed-rows.md#files)
``<YYYY>-<MM>.parquet``     the same rows (`formats/packed_rows`), from which shards are built
``patients.bin``            sorted 16-byte keyed digests of the patients in these rows; see below
``origins.npy``             the record, note and patient of each segment of the rows (`row_origins`)
==========================  =====================================================================================

``quarantine.jsonl`` contains the positions of notes dropped for a defect. ``retracted.bin`` contains the digests of
patients whose notes are left out because they are on the retraction list, and ``retracted_notes.bin`` the digests of
individual notes (32 bytes, beginning with the patient's). Both files exist only if they have entries.

Patients' digests show that no patient is in two splits or two cohorts. They cannot be reversed without the secret key,
but they are still data about patients. They stay in this artifact, next to the notes, and are in no receipt, event or
shard.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.artifact.build import Facts
from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.formats.row_origins import ORIGINS
from dataprep_assets.packing.stock_maxtext import Pipeline
from dataprep_assets.pipelines.notes.cohorts.row_shape import RowShape
from dataprep_assets.pipelines.notes.declaration import Layout, NotesDeclaration, Rows
from dataprep_assets.pipelines.notes.reading import DIGEST_BYTES

PACKED_COHORTS = "packed_cohorts"
"""Name of the artifact."""
QUARANTINE = "quarantine.jsonl"
PATIENTS = "patients.bin"
RETRACTED_PATIENTS = "retracted.bin"
RETRACTED_NOTES = "retracted_notes.bin"


class RowFacts(Facts):
    """Facts of packed rows, and of all artifacts built from them.

    `pipeline` and `rows` are set for unpacked rows, and absent otherwise. `pad_id` is -1 if rows are not padded.
    """

    layout: Layout
    columns: list[str]
    row_length: int
    pad_id: int
    pad_may_occur: bool
    separator_id: int
    bos_id: int | None
    tokenizer: str
    vocab_size: int
    pipeline: Pipeline | None = None
    rows: Rows | None = None

    @property
    def shape(self) -> RowShape:
        """Common shape of all rows."""
        return RowShape(columns=tuple(self.columns), row_length=self.row_length, pad_id=self.pad_id)

    def is_compatible(self, other: "RowFacts") -> bool:
        """Return whether both facts describe rows of the same kind; the tokenizer's name may differ."""
        return self.model_dump(exclude={"tokenizer"}) == other.model_dump(exclude={"tokenizer"})


class SplitTokens(Facts):
    """Balance of a split's tokens: `in_rows` equals the notes' tokens, minus truncated ones, plus repeated ones."""

    in_documents: int
    truncated: int
    repeated_headers: int
    overlap: int
    in_rows: int

    @property
    def balance(self) -> int:
        """Number of tokens that the rows must have; equals `in_rows` if none was lost."""
        return self.in_documents - self.truncated + self.repeated_headers + self.overlap


class PackedSplitCounts(Facts):
    """Counts of one split of a cohort; `fill` is the share of positions that contain tokens."""

    rows: int
    segments: int
    documents: int
    patients: int
    tokens: SplitTokens
    padding: int
    fill: float
    truncated_documents: int


class PackedCohortFacts(RowFacts):
    """Facts of a packed cohort."""

    certificate: dict[str, Any]
    packing: dict[str, Any]
    long_notes: dict[str, Any]
    patients: int
    patients_without_notes: int
    splits: dict[str, PackedSplitCounts]


@dataclass(frozen=True, kw_only=True)
class PackedPaths:
    """Paths of one split's files, relative to the artifact."""

    jsonl: str
    rows: str
    patients: str
    origins: str


def build_split_path(splits: Sequence[str], split: str, name: str) -> str:
    """Return the path of a split's file ``name`` in an artifact: at the top level if `train` is the only split."""
    return name if tuple(splits) == ("train",) else f"{split}/{name}"


def build_lines_path(splits: Sequence[str], split: str, month: str) -> str:
    """Return the path of a split's JSON Lines file in a month's artifact."""
    return build_split_path(splits, split, f"{month}.jsonl")


def list_packed_paths(notes: NotesDeclaration, month: str) -> dict[str, PackedPaths]:
    """Return split → paths of its files in a month's artifact."""
    splits = tuple(notes.splits)
    return {
        name: PackedPaths(
            jsonl=build_lines_path(splits, name, month),
            rows=build_split_path(splits, name, f"{month}.parquet"),
            patients=build_split_path(splits, name, PATIENTS),
            origins=build_split_path(splits, name, ORIGINS),
        )
        for name in splits
    }


def read_patients(path: Path, width: int = DIGEST_BYTES) -> NDArray[np.void]:
    """Return the sorted digests in a file, of ``width`` bytes each, shape ``(digests,)``: 16 per patient, 32 per note.

    Raises FormatError if the file is truncated.
    """
    content = path.read_bytes()
    if len(content) % width:
        raise FormatError(
            f"{path}: its size, {count_of(len(content), 'byte')}, is not a multiple of {width}, so the file is "
            "truncated. Rebuild the artifact"
        )
    return np.frombuffer(content, np.dtype((np.void, width)))
