"""The files of a packed cohort, one month's notes as packed rows, and the facts in its receipt.

With the one split `train` the files are at the top, as the seed has them; with several, a folder for each split:

==========================  =====================================================================================
``<YYYY>-<MM>.jsonl``       one packed row a line, every stored column a list of integers
                            (docs/formats/packed-rows.md#files)
``<YYYY>-<MM>.arrow``       the same rows (`packed_rows`), from which shards are made
``patients.bin``            sorted 16-byte keyed digests of the patients in these rows; see below
``origins.bin``             which record, note and patient each segment of the rows is of (`row_origins`)
==========================  =====================================================================================

``quarantine.jsonl`` holds the positions of what was dropped for a defect; ``retracted.bin``, where there are any, the
digests of the patients whose notes are left out because they are on the retraction list. The digests of patients are
what proves that no patient is in two splits or two cohorts; without the secret key they cannot be traced back, but
they are data about patients all the same: they stay in this artifact, beside the notes, and in no receipt, event or
shard.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import FormatError
from dataprep_assets.graph.facts import Facts
from dataprep_assets.packing.stock_maxtext import Pipeline
from dataprep_assets.pipelines.notes.declaration import Layout, NotesDeclaration, Rows
from dataprep_assets.pipelines.notes.reading import DIGEST_BYTES

__all__ = [
    "ORIGINS",
    "PACKED_COHORTS",
    "PATIENTS",
    "QUARANTINE",
    "RETRACTED_PATIENTS",
    "PackedCohortFacts",
    "PackedPaths",
    "PackedSplit",
    "RowFacts",
    "SplitTokens",
    "in_split",
    "packed_lines",
    "packed_paths",
    "read_patients",
]

PACKED_COHORTS = "packed_cohorts"
"""Name of the artifact."""
QUARANTINE = "quarantine.jsonl"
PATIENTS = "patients.bin"
ORIGINS = "origins.bin"
RETRACTED_PATIENTS = "retracted.bin"


class RowFacts(Facts):
    """What holds for packed rows and for everything made of them.

    `pipeline` and `rows` are declared of unpacked rows, and absent of others. `pad_id` is -1 where rows are not padded.
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

    def alike(self, other: "RowFacts") -> bool:
        """Whether both are of the same rows; the tokenizer's name is but a name."""
        return self.model_dump(exclude={"tokenizer"}) == other.model_dump(exclude={"tokenizer"})


class SplitTokens(Facts):
    """Where the tokens of a split's notes went: `in_rows` is their sum less `truncated` plus what is repeated."""

    in_documents: int
    truncated: int
    repeated_headers: int
    overlap: int
    in_rows: int

    @property
    def balance(self) -> int:
        """Tokens that the rows must hold; `in_rows` where none was lost."""
        return self.in_documents - self.truncated + self.repeated_headers + self.overlap


class PackedSplit(Facts):
    """The counts of one split of a cohort. `fill` is the share of positions that hold tokens."""

    rows: int
    segments: int
    documents: int
    patients: int
    tokens: SplitTokens
    padding: int
    fill: float
    truncated_documents: int


class PackedCohortFacts(RowFacts):
    """What the receipt of a packed cohort tells."""

    certificate: dict[str, Any]
    packing: dict[str, Any]
    long_notes: dict[str, Any]
    patients: int
    patients_without_notes: int
    splits: dict[str, PackedSplit]


@dataclass(frozen=True, kw_only=True)
class PackedPaths:
    """The files of one split, relative to the artifact."""

    jsonl: str
    rows: str
    patients: str
    origins: str


def in_split(splits: Sequence[str], split: str, name: str) -> str:
    """The path in an artifact of a split's file called ``name``: at the top where ``splits`` is `train` alone."""
    return name if tuple(splits) == ("train",) else f"{split}/{name}"


def packed_lines(splits: Sequence[str], split: str, month: str) -> str:
    """The path in a month's artifact of a split's rows as JSON lines."""
    return in_split(splits, split, f"{month}.jsonl")


def packed_paths(notes: NotesDeclaration, month: str) -> dict[str, PackedPaths]:
    """Split → its files in a month's artifact."""
    splits = tuple(notes.splits)
    return {
        name: PackedPaths(
            jsonl=packed_lines(splits, name, month),
            rows=in_split(splits, name, f"{month}.arrow"),
            patients=in_split(splits, name, PATIENTS),
            origins=in_split(splits, name, ORIGINS),
        )
        for name in splits
    }


def read_patients(path: Path) -> NDArray[np.void]:
    """The sorted patient digests of a `patients.bin`, 16 bytes each, shape ``(patients,)``.

    Raises FormatError when cut.
    """
    content = path.read_bytes()
    if len(content) % DIGEST_BYTES:
        raise FormatError(f"{path}: {len(content)} bytes are not a multiple of {DIGEST_BYTES}; it was cut")
    return np.frombuffer(content, np.dtype((np.void, DIGEST_BYTES)))
