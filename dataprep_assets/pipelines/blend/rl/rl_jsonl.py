"""Builds the JSON lines of an RL blend, a shard a partition: each record through the declared transforms.

Lines are compact JSON in UTF-8, one record each, in source order; `records.jsonl`, or `records.jsonl.zst` as one zstd
frame with its checksum. The receipt's digest is of the file as written. Every row is a record, or is dropped under
the name of the transform that left it out, or of what is wrong with it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import orjson

from dataprep_assets.errors import BadRecordError, CorruptSourceError
from dataprep_assets.execution.processes import Meter, report
from dataprep_assets.execution.shards import run_shards
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import canonical_json, digest_value, sha256_file
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt, Verification
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan import BlendPlan
from dataprep_assets.pipelines.blend.rl.placeholders import PlaceholderFiles, fetch_sources
from dataprep_assets.pipelines.blend.rl.transforms import Record, Transform, compose, declared_sources, fingerprint
from dataprep_assets.pipelines.blend.snapshot import shard_parts
from dataprep_assets.pipelines.corpus.token_bins import ShardResult
from dataprep_assets.pipelines.corpus.token_stream import SourcePart
from dataprep_assets.sources.rows import RowBlock, read_rows

VERSION = 1
ARTIFACT = "rl_jsonl"
QUARANTINE = "quarantine.jsonl"
_LEVEL = 3


@dataclass(frozen=True, kw_only=True)
class RlWork:
    """One shard to have. Picklable."""

    artifact: Artifact
    store: ArtifactStore
    files: tuple[SourcePart, ...]
    transforms: tuple[str | dict[str, Any], ...]
    fingerprint: str
    placeholders: tuple[PlaceholderFiles, ...]
    compression: Literal["none", "zstd"]
    bad_records: Literal["fail", "drop"]
    budget: float
    source_bytes: int
    salt: str = ""

    @property
    def partition(self) -> str:
        """The shard's partition key."""
        return self.artifact.partition or ""

    @property
    def file_name(self) -> str:
        """The name of the shard's data file."""
        return "records.jsonl.zst" if self.compression == "zstd" else "records.jsonl"

    @property
    def key(self) -> str:
        """Digest of all that decides the shard's bytes."""
        files = [
            [f.label, f.sha256, f.format, f.compression, *([f.rows.first, f.rows.stop] if f.rows else [])]
            for f in self.files
        ]
        policy = [self.compression, self.bad_records, self.budget, self.salt]
        return digest_value([ARTIFACT, VERSION, self.fingerprint, policy, files])


def rl_works(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, partitions: Iterable[str]) -> list[RlWork]:
    """The work of the given shards, with placeholder sources fetched; MissingArtifactError without a snapshot."""
    options = blend.rl_options
    placeholders = fetch_sources(declared_sources(options.transforms), blend.sources)
    made_of = digest_value(fingerprint(options.transforms, blend.sources))
    return [
        RlWork(
            artifact=blend.artifact(ARTIFACT, partition),
            store=store,
            files=shard_parts(blend, store, plan, partition),
            transforms=options.transforms,
            fingerprint=made_of,
            placeholders=placeholders,
            compression=options.compression,
            bad_records=blend.bad_records.policy,
            budget=blend.bad_records.budget,
            source_bytes=plan.find(partition)[1].total_bytes,
            salt=blend.force,
        )
        for partition in partitions
    ]


def build_rl_shards(
    works: Sequence[RlWork],
    *,
    workers: int,
    verification: Verification = "full",
    on_progress: Callable[[Meter, int], None] | None = None,
) -> Iterator[ShardResult]:
    """Have all shards: yields each as soon as it is verified, built or failed. A failed one does not stop the others.

    A worker that dies does (WorkerDiedError): what is finished is committed.
    """
    task = partial(build_rl_shard, verification=verification)
    return run_shards(works, task, workers=workers, on_progress=on_progress)


def build_rl_shard(work: RlWork, verification: Verification = "full") -> tuple[Receipt, bool]:
    """Have one shard: its receipt, and whether the one that was there is current."""
    return ensure(work.artifact, work.store, work.key, partial(_write, work), verification)


@dataclass
class _Books:
    """What became of the rows of a shard."""

    rows: int = 0
    records: int = 0
    blank: int = 0
    source_bytes: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    quarantine: list[dict[str, Any]] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)

    def ledger(self) -> Ledger:
        """The books as a ledger: a document is a record."""
        return Ledger(
            rows_in=self.rows,
            documents=self.records,
            dropped=dict(sorted(self.dropped.items())),
            blank_lines=self.blank,
            source_bytes=self.source_bytes,
        )


def _write(work: RlWork, staged: Path) -> Written:
    books = _Books()
    steps = compose(work.transforms, work.placeholders)
    with open(staged / work.file_name, "wb") as file:
        if work.compression == "zstd":
            import zstandard

            compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, threads=0)
            with compressor.stream_writer(file, closefd=False) as out:
                _write_records(work, steps, books, out.write)
        else:
            _write_records(work, steps, books, file.write)
    ledger = books.ledger()
    ledger.balance(str(work.artifact))
    _check_budget(work, books)
    if books.quarantine:
        (staged / QUARANTINE).write_bytes(b"".join(canonical_json(q) + b"\n" for q in books.quarantine))
    return Written(
        inputs={f.label: f.sha256 for f in work.files} | {"transforms": work.fingerprint},
        facts={
            "file": work.file_name,
            "records": books.records,
            "compression": work.compression,
            "sources": books.sources,
        },
        ledger=ledger,
    )


def _write_records(
    work: RlWork, steps: Sequence[tuple[str, Transform]], books: _Books, write: Callable[[bytes], Any]
) -> None:
    for part in work.files:
        before = (books.rows, books.records)
        reader = read_rows(
            part.path, format=part.format, compression=part.compression, label=part.label, rows=part.rows
        )
        read = 0
        try:
            for block in reader:
                write(b"".join(_lines(work, part, block, steps, books)))
                report(source_bytes=reader.bytes_read - read, documents=len(block.rows))
                read = reader.bytes_read
        except BadRecordError:
            _require_digest(part, sha256_file(part.path))  # a damaged file is not to be taken for a bad row
            raise
        _require_digest(part, reader.sha256)
        books.source_bytes += reader.bytes_read
        books.sources.append(
            {
                "file": part.label,
                "ordinal": part.ordinal,
                "sha256": part.sha256,
                "rows_in": books.rows - before[0],
                "documents": books.records - before[1],
                **({"rows": [part.rows.first, part.rows.stop]} if part.rows else {}),
            }
        )


def _require_digest(part: SourcePart, actual: str) -> None:
    if actual != part.sha256:
        raise CorruptSourceError(
            f"{part.label}: sha256 of the bytes read is {actual}, its snapshot says {part.sha256}. "
            "The file changed or is damaged: materialize `blend_plan` again"
        )


def _lines(
    work: RlWork, part: SourcePart, block: RowBlock, steps: Sequence[tuple[str, Transform]], books: _Books
) -> Iterator[bytes]:
    books.rows += len(block.rows) + len(block.bad)
    books.blank += block.blank_lines
    for bad in block.bad:
        _refuse(work, part, books, bad.row, bad.byte, bad.reason)
    for record, row, byte in zip(block.rows, block.numbers, block.offsets, strict=True):
        made, left_out_by = _through(record, steps, f"{part.label}: row {row}")
        if made is None:
            books.dropped[f"left_out_by_{left_out_by}"] += 1
            continue
        try:
            line = orjson.dumps(made, option=orjson.OPT_APPEND_NEWLINE)
        except (TypeError, ValueError):
            _refuse(work, part, books, row, byte, "not_json")
            continue
        books.records += 1
        yield line


def _through(record: Record, steps: Sequence[tuple[str, Transform]], where: str) -> tuple[Record | None, str]:
    made: Record | None = record
    for name, transform in steps:
        assert made is not None
        try:
            made = transform(made)
        except KeyError as error:
            if ":" not in name:
                return None, name
            raise _failed(where, name, error) from None
        except Exception as error:  # the user's function: any error of it is to name the row
            raise _failed(where, name, error) from None
        if made is None:
            return None, name
        if not isinstance(made, dict):
            raise BadRecordError(f"{where}: {name} gave a {type(made).__name__}; a transform gives a dict, or None")
    return made, ""


def _failed(where: str, name: str, error: Exception) -> BadRecordError:
    # its message is not repeated: it may quote the record
    return BadRecordError(f"{where}: {name} raised {type(error).__name__}. Mend it, or let it return None to skip")


def _refuse(work: RlWork, part: SourcePart, books: _Books, row: int, byte: int, reason: str) -> None:
    if work.bad_records == "fail":
        raise BadRecordError(
            f"{part.label}: row {row}, byte {byte}: {reason}. Mend the source, or set `bad_records: {{policy: drop}}` "
            "to count and skip such rows"
        )
    books.dropped[reason] += 1
    books.quarantine.append({"file": part.label, "row": row, "byte": byte, "reason": reason})


def _check_budget(work: RlWork, books: _Books) -> None:
    bad = len(books.quarantine)
    if bad and bad > work.budget * books.rows:
        first = books.quarantine[0]
        raise BadRecordError(
            f"{work.artifact}: {bad} of {books.rows} rows would be dropped as bad, more than the budget of "
            f"{work.budget:.4%}. The first is {first['file']}, row {first['row']}: {first['reason']}. Mend the source, "
            "or raise `bad_records.budget`"
        )
