"""Builds packed cohorts: one month's notes as packed rows, in JSON lines and in a compact columnar file.

With the one split `train` the files are at the top, as the seed has them; with several, a folder for each split:

==========================  =====================================================================================
``<YYYY>-<MM>.jsonl``       one packed row a line, every stored column a list of integers (FORMATS A.1)
``<YYYY>-<MM>.arrow``       the same rows (`packed_rows`), from which shards are made
``patients.bin``            sorted 16-byte keyed digests of the patients in these rows; see below
==========================  =====================================================================================

``quarantine.jsonl`` holds the positions of what was dropped for a defect. The digests of patients are what proves that
no patient is in two splits or two cohorts; without the secret key they cannot be traced back, but they are data about
patients all the same: they stay in this artifact, beside the notes, and in no receipt, event or shard.

Tokens are conserved: those of the notes, less what was truncated, plus repeated headers and overlaps, are those of the
rows; a cohort that does not balance is not committed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from dataprep_assets.errors import BadRecordError, ConfigError, CorruptSourceError, FormatError, IntegrityError
from dataprep_assets.execution.processes import Meter, report
from dataprep_assets.execution.shards import run_shards
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import canonical_json, digest_value, sha256_file
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.packing.algorithms import pack
from dataprep_assets.packing.next_fit import concat_then_split
from dataprep_assets.packing.splitting import SplitRule, split, without_room
from dataprep_assets.pipelines.corpus.token_bins import ShardResult
from dataprep_assets.pipelines.notes.cohort_source import CohortFile, list_cohorts, no_file
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.engine_certificate import NotesPlan, load_certificate, notes_plan
from dataprep_assets.pipelines.notes.packed_rows import PackedRowsWriter, RowBlock
from dataprep_assets.pipelines.notes.privacy import unquoting
from dataprep_assets.pipelines.notes.reading import DIGEST_BYTES, Dropped
from dataprep_assets.pipelines.notes.spool import Books, Spool, fill_spool

__all__ = [
    "NAME",
    "QUARANTINE",
    "CohortWork",
    "PackedPaths",
    "build_packed_cohort",
    "build_packed_cohorts",
    "cohort_key",
    "cohort_works",
    "packed_paths",
    "read_patients",
]

VERSION = 1
NAME = "packed_cohorts"
QUARANTINE = "quarantine.jsonl"
PATIENTS = "patients.bin"
_SPOOL = "spool.tokens"
Int64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class PackedPaths:
    """The files of one split, relative to the artifact."""

    jsonl: str
    rows: str
    patients: str


def in_split(splits: Sequence[str], split: str, name: str) -> str:
    """The path of a split's file in an artifact: at the top where `train` is the only split."""
    return name if tuple(splits) == ("train",) else f"{split}/{name}"


def packed_paths(notes: NotesDeclaration, month: str) -> dict[str, PackedPaths]:
    """Split → its files in a month's artifact."""
    splits = tuple(notes.splits)
    return {
        name: PackedPaths(
            jsonl=in_split(splits, name, f"{month}.jsonl"),
            rows=in_split(splits, name, f"{month}.arrow"),
            patients=in_split(splits, name, PATIENTS),
        )
        for name in splits
    }


def read_patients(path: Path) -> NDArray[np.void]:
    """The sorted patient digests of a `patients.bin`, 16 bytes each, shape ``(patients,)``; FormatError when cut."""
    content = path.read_bytes()
    if len(content) % DIGEST_BYTES:
        raise FormatError(f"{path}: {len(content)} bytes are not a multiple of {DIGEST_BYTES}; it was cut")
    return np.frombuffer(content, np.dtype((np.void, DIGEST_BYTES)))


@dataclass(frozen=True, kw_only=True)
class CohortWork:
    """One cohort to have. `file` is None where the source has none, which fails this cohort alone."""

    artifact: Artifact
    store: ArtifactStore = field(repr=False)
    plan: NotesPlan = field(repr=False)
    month: str
    file: CohortFile | None

    @property
    def sensitive(self) -> bool:
        """Whether nothing of the notes may be printed."""
        return self.plan.notes.sensitive

    @property
    def source_bytes(self) -> int:
        """Size of the cohort's file as stored."""
        return 0 if self.file is None else self.file.bytes


def cohort_works(notes: NotesDeclaration, store: ArtifactStore, months: Iterable[str]) -> list[CohortWork]:
    """The work of the given months. ConfigError for a month that is not declared; errors of `list_cohorts`."""
    plan = notes_plan(notes, load_certificate(notes, store))
    files = list_cohorts(notes)
    expected = set(notes.months.expected)
    works = []
    for month in months:
        if month not in expected:
            raise ConfigError(f"{notes.dataset}: {month} is not one of its months")
        works.append(
            CohortWork(artifact=notes.artifact(NAME, month), store=store, plan=plan, month=month, file=files.get(month))
        )
    return works


def cohort_key(plan: NotesPlan, month: str, sha256: str) -> str:
    """The key of a packed cohort whose source file has this digest."""
    return digest_value(["packed_cohorts", VERSION, month, plan.key_parts(), sha256])


def build_packed_cohorts(
    works: Sequence[CohortWork], *, workers: int, on_progress: Callable[[Meter, int], None] | None = None
) -> Iterator[ShardResult]:
    """Have all cohorts, several at a time; yields each as soon as it is verified, built or failed.

    The bytes do not depend on the number of workers. WorkerDiedError when a worker dies; what is finished is committed.
    """
    silent = any(work.sensitive for work in works)
    return run_shards(works, build_packed_cohort, workers=workers, on_progress=on_progress, silent=silent)


def build_packed_cohort(work: CohortWork) -> tuple[Receipt, bool]:
    """Have one cohort, in this process: its receipt, and whether the one that was there is current."""
    if work.file is None:
        raise no_file([work.month])
    file = work.file
    with unquoting(work.month):
        path = file.fetch()
        sha256 = sha256_file(path)

        def write(staged: Path) -> Written:
            return _Cohort(work, staged).write(file, path, sha256)

        return ensure(
            work.artifact, work.store, cohort_key(work.plan, work.month, sha256), write, work.plan.notes.verify
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Layout:
    """Rows as ranges of the spool, in row order: each segment is its first range and then its second.

    ``documents``: int64, the notes that are in the rows. ``offsets``: the first segment of each row, from 0.
    """

    documents: Int64
    first_starts: Int64
    first_lengths: Int64
    second_starts: Int64
    second_lengths: Int64
    offsets: Int64
    truncated: int = 0
    truncated_documents: int = 0

    def blocks(self, spool: Spool, rows: int) -> Iterator[RowBlock]:
        """The rows, up to ``rows`` at a time."""
        for start in range(0, self.offsets.size - 1, rows):
            offsets = self.offsets[start : start + rows + 1]
            chosen = slice(offsets[0], offsets[-1])
            lengths = np.stack([self.first_lengths[chosen], self.second_lengths[chosen]], axis=1).ravel()
            starts = np.stack([self.first_starts[chosen], self.second_starts[chosen]], axis=1).ravel()
            some = lengths > 0
            yield RowBlock(
                tokens=spool.tokens(starts[some], lengths[some]).astype(np.int32),
                segments=self.first_lengths[chosen] + self.second_lengths[chosen],
                offsets=offsets - offsets[0],
            )


class _Cohort:
    """Writes one cohort's files into its staging directory."""

    def __init__(self, work: CohortWork, staged: Path) -> None:
        self._plan, self._notes, self._month, self._staged = work.plan, work.plan.notes, work.month, staged
        self._books = Books(work.plan, work.month)
        self._low, self._high = 1 << 32, -1

    def write(self, file: CohortFile, path: Path, sha256: str) -> Written:
        reader = file.reader(path)
        spooled = self._staged / _SPOOL
        spool = fill_spool(self._plan, reader, spooled, self._books, month=self._month, report=report)
        if reader.sha256 != sha256:
            raise CorruptSourceError(f"{self._month}: its file changed while it was read; run it again")
        layouts = [self._layout(spool, index) for index in range(len(self._notes.splits))]
        rows_in = len(spool) + sum(self._books.dropped.values()) - self._books.dropped["header_too_long"]
        self._books.check_budget(rows_in)
        splits = {
            name: self._write_split(spool, layout, name)
            for name, layout in zip(self._notes.splits, layouts, strict=True)
        }
        spooled.unlink()
        if self._books.quarantine:
            lines = b"".join(canonical_json(place) + b"\n" for place in self._books.quarantine)
            (self._staged / QUARANTINE).write_bytes(lines)
        ledger = self._ledger(spool, layouts, splits, rows_in, reader.bytes_read)
        ledger.balance(self._month)
        self._require_notes(spool, ledger)
        return Written(
            inputs={"cohort": sha256, "tokenizer": self._plan.stream.tokenizer_digest},
            facts=self._facts(spool, splits),
            ledger=ledger,
        )

    def _layout(self, spool: Spool, index: int) -> _Layout:
        chosen = np.flatnonzero(spool.splits == index)
        dates = spool.dates[chosen] if self._notes.order == "date" else np.zeros_like(chosen)
        documents = chosen[np.lexsort((chosen, dates, spool.patients[chosen]))]
        if self._notes.layout == "unpacked" or self._notes.packing.algorithm == "concat_then_split":
            return self._concatenated(spool, documents)
        return self._packed(spool, documents, self._notes.packing.algorithm)

    def _concatenated(self, spool: Spool, documents: Int64) -> _Layout:
        lengths = (spool.headers + spool.bodies)[documents]
        segments = concat_then_split(lengths, self._notes.capacity)
        nothing = np.zeros_like(segments.starts)
        return _Layout(
            documents=documents,
            first_starts=spool.starts[documents][segments.items] + segments.starts,
            first_lengths=segments.stops - segments.starts,
            second_starts=nothing,
            second_lengths=nothing,
            offsets=segments.offsets,
        )

    def _packed(self, spool: Spool, documents: Int64, algorithm: Any) -> _Layout:
        long_notes, capacity = self._notes.long_notes, self._notes.capacity
        rule = SplitRule(rule=long_notes.rule, row_length=capacity, overlap=long_notes.overlap)
        refused = without_room(spool.headers[documents], spool.bodies[documents], rule)
        for at in documents[refused].tolist():
            place = (int(spool.records[at]), int(spool.numbers[at]), -1)
            self._books.drop(Dropped(*place, "header_too_long"))
        documents = np.delete(documents, refused)
        headers, bodies = spool.headers[documents], spool.bodies[documents]
        chunks = split(headers, bodies, rule)
        bins = pack(chunks.lengths, capacity, algorithm, seed=self._notes.packing.seed)
        of = chunks.documents[bins.items]
        starts = spool.starts[documents][of]
        return _Layout(
            documents=documents,
            first_starts=starts,
            first_lengths=headers[of] * chunks.with_header[bins.items],
            second_starts=starts + headers[of] + chunks.starts[bins.items],
            second_lengths=(chunks.stops - chunks.starts)[bins.items],
            offsets=bins.offsets,
            truncated=int(chunks.dropped.sum()),
            truncated_documents=int(np.count_nonzero(chunks.dropped)),
        )

    def _write_split(self, spool: Spool, layout: _Layout, name: str) -> dict[str, Any]:
        shape, paths = self._plan.shape, packed_paths(self._notes, self._month)[name]
        for path in (paths.jsonl, paths.rows):
            (self._staged / path).parent.mkdir(exist_ok=True)
        rows = tokens = 0
        with (
            open(self._staged / paths.jsonl, "xb") as jsonl,
            PackedRowsWriter(self._staged / paths.rows, shape) as file,
        ):
            for block in layout.blocks(spool, shape.batch_rows):
                self._look_at(block)
                file.write(block)
                columns = block.columns(shape)
                for row in range(len(block)):
                    values = {column: columns[column][row] for column in shape.columns}
                    jsonl.write(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))
                rows += len(block)
                tokens += block.tokens.size
        patients = sorted({spool.digests[at] for at in np.unique(spool.patients[layout.documents]).tolist()})
        (self._staged / paths.patients).write_bytes(b"".join(patients))
        books = self._tokens(spool, layout, name, tokens)
        positions = rows * shape.row_length
        return {
            "rows": rows,
            "segments": layout.first_lengths.size,
            "documents": layout.documents.size,
            "patients": len(patients),
            "tokens": books,
            "padding": positions - tokens,
            "fill": round(tokens / positions, 6) if positions else 1.0,
            "truncated_documents": layout.truncated_documents,
        }

    def _look_at(self, block: RowBlock) -> None:
        if not self._notes.pad.may_occur and bool((block.tokens == self._plan.shape.pad_id).any()):
            raise FormatError(
                f"{self._month}: a note holds the pad id {self._plan.shape.pad_id}; choose another, or declare "
                "`pad: {may_occur: true}`"
            )
        if block.tokens.size:
            self._low = min(self._low, int(block.tokens.min()))
            self._high = max(self._high, int(block.tokens.max()))

    def _tokens(self, spool: Spool, layout: _Layout, name: str, in_rows: int) -> dict[str, int]:
        """Where the tokens went; IntegrityError when the rows do not hold those of the notes."""
        headers = int(spool.headers[layout.documents].sum())
        bodies = int(spool.bodies[layout.documents].sum())
        if layout.second_lengths.any():
            repeated = int(layout.first_lengths.sum()) - headers
            overlap = int(layout.second_lengths.sum()) - (bodies - layout.truncated)
        else:
            repeated = overlap = 0
        books = {
            "in_documents": headers + bodies,
            "truncated": layout.truncated,
            "repeated_headers": repeated,
            "overlap": overlap,
            "in_rows": in_rows,
        }
        if in_rows != headers + bodies - layout.truncated + repeated + overlap or min(repeated, overlap) < 0:
            raise IntegrityError(f"{self._month}: split {name}: its tokens do not balance: {books}. This is a bug")
        return books

    def _ledger(
        self, spool: Spool, layouts: Sequence[_Layout], splits: Mapping[str, Any], rows_in: int, source_bytes: int
    ) -> Ledger:
        kept = np.concatenate([layout.documents for layout in layouts])
        truncated = sum(layout.truncated_documents for layout in layouts)
        return Ledger(
            rows_in=rows_in,
            documents=int(kept.size),
            dropped=dict(sorted((reason, count) for reason, count in self._books.dropped.items() if count)),
            tokens=sum(split["tokens"]["in_rows"] for split in splits.values()),
            separators=int(kept.size) - truncated,
            literal_separators=spool.literal_separators,
            special_literals=spool.special_literals,
            reference_documents=spool.reference_documents,
            sampled_documents=spool.sampled_documents,
            source_bytes=source_bytes,
            text_characters=int(spool.characters[kept].sum()),
            min_id=self._low if self._high >= 0 else None,
            max_id=self._high if self._high >= 0 else None,
        )

    def _require_notes(self, spool: Spool, ledger: Ledger) -> None:
        if ledger.documents or self._month in self._notes.months.allow_empty:
            return
        raise BadRecordError(
            f"{self._month}: no note is left of {spool.patients_seen} patients, dropped {dict(ledger.dropped)}. Check "
            "cohorts.fields, or name the month in months.allow_empty"
        )

    def _facts(self, spool: Spool, splits: Mapping[str, Any]) -> dict[str, Any]:
        plan = self._plan
        return {
            "layout": self._notes.layout,
            "columns": list(plan.shape.columns),
            "row_length": plan.shape.row_length,
            "pad_id": plan.shape.pad_id,
            "pad_may_occur": self._notes.pad.may_occur,
            "separator_id": plan.stream.separator_id,
            "bos_id": plan.stream.bos_id,
            "tokenizer": plan.tokenizer,
            "vocab_size": plan.vocab_size,
            "certificate": plan.stream.certificate,
            "packing": self._notes.packing.model_dump(),
            "long_notes": self._notes.long_notes.model_dump(),
            "patients": spool.patients_seen,
            "patients_without_notes": spool.patients_without_notes,
            "splits": dict(splits),
        }
