"""Builds the shards of a cohort from its packed rows: TFRecord files, or ArrayRecord files of the same payloads.

A shard is `<YYYY>-<MM>_<sss>-of-<nnn>.tfrecords` (`.array_record`), from 1, of at most `rows_per_shard` rows, of which
only the last of a cohort has fewer; with several splits, in a folder for each. Rows keep the order of the packed
cohort. What a directory of shards must know of them (rows and payload bytes of each) is in the receipt.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dataprep_assets.errors import IntegrityError
from dataprep_assets.execution.processes import Meter, report
from dataprep_assets.execution.shards import run_shards
from dataprep_assets.formats import array_record, example, tfrecord
from dataprep_assets.formats.tfrecord import ShardCount
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.graph.facts import Facts
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.token_bins import ShardResult
from dataprep_assets.pipelines.notes.declaration import FileFormat, NotesDeclaration
from dataprep_assets.pipelines.notes.packed_cohorts import (
    PACKED_COHORTS,
    PackedCohortsFacts,
    RowFacts,
    in_split,
    packed_paths,
)
from dataprep_assets.pipelines.notes.packed_rows import PackedRowsFile
from dataprep_assets.pipelines.notes.privacy import unquoting

__all__ = [
    "COHORT_SHARDS",
    "CohortShardsFacts",
    "ShardsWork",
    "SplitShards",
    "build_cohort_shards",
    "build_shards",
    "row_ledger",
    "shard_names",
    "shards_key",
    "shards_works",
]

VERSION = 1
COHORT_SHARDS: dict[FileFormat, str] = {"tfrecord": "tfrecord_shards", "array_record": "array_record_shards"}
"""Format → name of the artifact."""


class SplitShards(Facts):
    """The shards of one split, in order: rows and payload bytes of each."""

    shard_lengths: list[int]
    payload_bytes: list[int]


class CohortShardsFacts(RowFacts):
    """What the receipt of a cohort's shards tells."""

    format: FileFormat
    rows_per_shard: int
    splits: dict[str, SplitShards]


@dataclass(frozen=True, kw_only=True)
class ShardsWork:
    """The shards of one cohort to build."""

    artifact: Artifact
    packed: Artifact
    store: ArtifactStore = field(repr=False)
    notes: NotesDeclaration = field(repr=False)
    format: FileFormat
    month: str
    source_bytes: int

    @property
    def sensitive(self) -> bool:
        """Whether nothing of the notes may be printed."""
        return self.notes.sensitive


def shards_works(
    notes: NotesDeclaration, store: ArtifactStore, months: Iterable[str], format: FileFormat = "tfrecord"
) -> list[ShardsWork]:
    """The work of the given months of ``notes``, in one format.

    A month whose packed cohort is not in ``store`` fails alone, when its shards are built.
    """
    chosen = list(months)
    packed = [notes.artifact(PACKED_COHORTS, month) for month in chosen]
    return [
        ShardsWork(
            artifact=notes.artifact(COHORT_SHARDS[format], month),
            packed=artifact,
            store=store,
            notes=notes,
            format=format,
            month=month,
            source_bytes=0 if receipt is None else receipt.total_bytes,
        )
        for month, artifact, receipt in zip(chosen, packed, store.receipts(packed), strict=True)
    ]


def shards_key(notes: NotesDeclaration, format: FileFormat, packed: Receipt) -> str:
    """The key of the shards in ``format`` of the cohort of ``notes`` whose receipt is ``packed``."""
    shared = RowFacts.of(packed).to_json() | {"tokenizer_sha256": packed.inputs["tokenizer"]}
    asked = [format, notes.rows_per_shard, list(notes.splits)]
    return digest_value(["notes_shards", VERSION, asked, shared, packed.content])


def build_shards(
    works: Sequence[ShardsWork], *, workers: int, on_progress: Callable[[Meter, int], None] | None = None
) -> Iterator[ShardResult]:
    """Build the shards of all ``works``; ``workers``, ``on_progress`` and errors as of `build_packed_cohorts`."""
    silent = any(work.sensitive for work in works)
    return run_shards(works, build_cohort_shards, workers=workers, on_progress=on_progress, silent=silent)


def build_cohort_shards(work: ShardsWork) -> tuple[Receipt, bool]:
    """Build the shards of one cohort unless they are current. Returns the receipt and whether it was reused."""
    with unquoting(work.month):
        packed = work.store.require(work.packed)

        def write(staged: Path) -> Written:
            return _write(work, packed, staged)

        key = shards_key(work.notes, work.format, packed)
        return ensure(work.artifact, work.store, key, write, work.notes.verify)


def shard_names(notes: NotesDeclaration, split: str, month: str, total: int, format: FileFormat) -> list[str]:
    """The ``total`` shards in ``format`` of a ``split`` of a month of ``notes``, in order, relative to the artifact."""
    splits = tuple(notes.splits)
    names = [tfrecord.shard_name(month, index, total) for index in range(total)]
    if format == "array_record":
        names = [f"{name.removesuffix('.tfrecords')}.array_record" for name in names]
    return [in_split(splits, split, name) for name in names]


def _write(work: ShardsWork, packed: Receipt, staged: Path) -> Written:
    paths, facts = packed_paths(work.notes, work.month), PackedCohortsFacts.of(packed)
    directory = work.store.local(work.packed, [path.rows for path in paths.values()])
    splits: dict[str, SplitShards] = {}
    rows = 0
    for split, path in paths.items():
        found = _write_split(work, directory / path.rows, split, staged)
        if sum(count.records for count in found) != facts.splits[split].rows:
            raise IntegrityError(
                f"{work.packed}: split {split} has other rows than its receipt says. Materialize packed_cohorts again"
            )
        splits[split] = SplitShards(
            shard_lengths=[count.records for count in found],
            payload_bytes=[count.payload_bytes for count in found],
        )
        rows += sum(count.records for count in found)
    return Written(
        inputs={PACKED_COHORTS: packed.content, "tokenizer": packed.inputs["tokenizer"]},
        facts=CohortShardsFacts(
            **RowFacts.of(packed).model_dump(),
            format=work.format,
            rows_per_shard=work.notes.rows_per_shard,
            splits=splits,
        ),
        ledger=row_ledger(rows, [packed.ledger]),
    )


def row_ledger(rows: int, packed: Iterable[Ledger | None]) -> Ledger:
    """The ledger of an artifact that holds packed rows, each row a document: their tokens and range of ids."""
    of = Ledger.total(ledger for ledger in packed if ledger is not None)
    return Ledger(rows_in=rows, documents=rows, tokens=of.tokens, min_id=of.min_id, max_id=of.max_id)


def _write_split(work: ShardsWork, path: Path, split: str, staged: Path) -> list[ShardCount]:
    file = PackedRowsFile(path)
    step, write = work.notes.rows_per_shard, tfrecord.write if work.format == "tfrecord" else array_record.write
    names = shard_names(work.notes, split, work.month, -(-len(file) // step), work.format)
    counts = []
    for index, name in enumerate(names):
        (staged / name).parent.mkdir(exist_ok=True)
        payloads = _payloads(file, index * step, min((index + 1) * step, len(file)))
        counts.append(write(staged / name, payloads, most=step))
        report(source_bytes=work.source_bytes // (len(names) * len(work.notes.splits)))
    return counts


def _payloads(file: PackedRowsFile, start: int, stop: int) -> Iterator[bytes]:
    step = file.shape.batch_rows
    for at in range(start, stop, step):
        yield from example.encode_rows(file.block(at, min(at + step, stop)).columns(file.shape))
