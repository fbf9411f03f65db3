"""Shards of one cohort, built from its packed rows: TFRecord files, or ArrayRecord files with the same payloads.

A shard is `<YYYY>-<MM>_<sss>-of-<nnn>.tfrecords` (`.array_record`), numbered from 1. It has at most `rows_per_shard`
rows, and only the last shard of a cohort has fewer. With several splits, each has a folder. Rows keep the order of the
packed cohort. The receipt has the rows and payload bytes of each shard, which directories need.

Entry points: `ShardedCohort`, `ensure_sharded_cohort`; `list_shard_names`, `build_row_ledger`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.errors import IntegrityError
from dataprep_assets.execution.run_task import report_work
from dataprep_assets.formats.packed_rows import PackedFile, open_packed_file
from dataprep_assets.formats.tensorflow import array_record, example, tfrecord
from dataprep_assets.formats.tensorflow.tfrecord import ShardCount
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Ledger, Receipt
from dataprep_assets.pipelines.notes.cohorts.packed_files import (
    PACKED_COHORTS,
    PackedCohortFacts,
    RowFacts,
    build_split_path,
    list_packed_paths,
)
from dataprep_assets.pipelines.notes.cohorts.row_shape import RowShape
from dataprep_assets.pipelines.notes.declaration import TOKENS, FileFormat, NotesDeclaration
from dataprep_assets.pipelines.notes.privacy import hide_quoted_data

VERSION = 3
COHORT_SHARDS: dict[FileFormat, str] = {"tfrecord": "tfrecord_shards", "array_record": "array_record_shards"}
"""Format → name of the artifact."""


class SplitShards(Facts):
    """Shards of one split, in order, with the number of rows and payload bytes of each."""

    shard_lengths: list[int]
    payload_bytes: list[int]


class CohortShardsFacts(RowFacts):
    """Facts of a cohort's shards."""

    format: FileFormat
    rows_per_shard: int
    splits: dict[str, SplitShards]


@dataclass(frozen=True, kw_only=True)
class ShardedCohort:
    """Shards of one cohort, to be built or checked; `packed` is the packed cohort with their rows."""

    artifact: Artifact
    packed: Artifact
    store: ArtifactStore = field(repr=False)
    notes: NotesDeclaration = field(repr=False)
    format: FileFormat
    month: str
    source_bytes: int

    def recipe(self, receipt: Receipt) -> Recipe:
        """Return the recipe of shards built from the packed cohort with this receipt."""
        # Include these facts and the tokenizer in the key, because the receipt of the shards repeats them, and the
        # digest of the packed cohort covers only the cohort's files.
        return Recipe.from_ingredients(
            self.artifact,
            VERSION,
            settings={
                "format": self.format,
                "rows_per_shard": self.notes.rows_per_shard,
                "splits": list(self.notes.splits),
                "packed_rows": RowFacts.from_receipt(receipt).to_json(),
            },
            sources={"tokenizer": receipt.inputs["tokenizer"]},
            upstream={f"{PACKED_COHORTS}/{self.month}": receipt.content},
        )


def ensure_sharded_cohort(cohort: ShardedCohort) -> tuple[Receipt, bool]:
    """Build the shards of one cohort unless they are up to date; return the receipt and whether it was reused."""
    with hide_quoted_data(cohort.month):
        packed_receipt = cohort.store.require(cohort.packed)

        def write(staged: Path) -> WrittenFiles:
            return _write(cohort, packed_receipt, staged)

        return ensure_built(cohort.recipe(packed_receipt), cohort.store, write, cohort.notes.verify)


def list_shard_names(notes: NotesDeclaration, split: str, month: str, total: int, format: FileFormat) -> list[str]:
    """Return the paths of the ``total`` shards of a month's ``split``, in order, relative to the artifact."""
    splits = tuple(notes.splits)
    names = [tfrecord.build_shard_name(month, index, total) for index in range(total)]
    if format == "array_record":
        names = [f"{name.removesuffix('.tfrecords')}.array_record" for name in names]
    return [build_split_path(splits, split, name) for name in names]


def _write(cohort: ShardedCohort, receipt: Receipt, staged: Path) -> WrittenFiles:
    paths, facts = list_packed_paths(cohort.notes, cohort.month), PackedCohortFacts.from_receipt(receipt)
    directory = cohort.store.local(cohort.packed, [path.rows for path in paths.values()])
    splits: dict[str, SplitShards] = {}
    rows = 0
    for split, path in paths.items():
        counts = _write_split(cohort, directory / path.rows, facts.shape, split, staged)
        if sum(count.records for count in counts) != facts.splits[split].rows:
            raise IntegrityError(
                f"{cohort.packed}: the rows of split {split} do not match the receipt. Rebuild packed_cohorts"
            )
        splits[split] = SplitShards(
            shard_lengths=[count.records for count in counts],
            payload_bytes=[count.payload_bytes for count in counts],
        )
        rows += sum(count.records for count in counts)
    return WrittenFiles(
        inputs={PACKED_COHORTS: receipt.content, "tokenizer": receipt.inputs["tokenizer"]},
        facts=CohortShardsFacts(
            **RowFacts.from_receipt(receipt).to_json(),
            format=cohort.format,
            rows_per_shard=cohort.notes.rows_per_shard,
            splits=splits,
        ),
        ledger=build_row_ledger(rows, [receipt.ledger]),
    )


def build_row_ledger(rows: int, ledgers: Iterable[Ledger | None]) -> Ledger:
    """Return the ledger of an artifact with packed rows; rows count as documents, tokens and ids are totals."""
    total = Ledger.total(ledger for ledger in ledgers if ledger is not None)
    return Ledger(rows_in=rows, documents=rows, tokens=total.tokens, min_id=total.min_id, max_id=total.max_id)


def _write_split(cohort: ShardedCohort, path: Path, shape: RowShape, split: str, staged: Path) -> list[ShardCount]:
    file = open_packed_file(path, masked=False)
    step, write = cohort.notes.rows_per_shard, tfrecord.write if cohort.format == "tfrecord" else array_record.write
    names = list_shard_names(cohort.notes, split, cohort.month, -(-len(file) // step), cohort.format)
    counts = []
    for index, name in enumerate(names):
        (staged / name).parent.mkdir(exist_ok=True)
        payloads = _encode_payloads(file, shape, index * step, min((index + 1) * step, len(file)))
        counts.append(write(staged / name, payloads, max_records=step))
        report_work(source_bytes=cohort.source_bytes // (len(names) * len(cohort.notes.splits)))
    return counts


def _encode_payloads(file: PackedFile, shape: RowShape, start: int, stop: int) -> Iterator[bytes]:
    # Encode one batch at a time, so that memory does not grow with a shard's rows.
    step = shape.group_rows
    for row in range(start, stop, step):
        block = file.block(row, min(row + step, stop))
        # Do not pad rows that have only the column `tokens`, because a trainer that masks a different pad id would
        # train on the padding.
        lengths = np.diff(block.rows) if shape.columns == (TOKENS,) else None
        yield from example.encode_rows(shape.values(block), lengths)
