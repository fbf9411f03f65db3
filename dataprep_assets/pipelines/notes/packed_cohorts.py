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
from dataprep_assets.graph.facts import Facts
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import canonical_json, digest_value, sha256_file
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.token_bins import ShardResult
from dataprep_assets.pipelines.notes.cohort_source import CohortFile, list_cohorts, no_file
from dataprep_assets.pipelines.notes.declaration import Layout, NotesDeclaration
from dataprep_assets.pipelines.notes.engine_certificate import NotesPlan, load_certificate, notes_plan
from dataprep_assets.pipelines.notes.packed_rows import PackedRowsWriter, RowBlock
from dataprep_assets.pipelines.notes.privacy import unquoting
from dataprep_assets.pipelines.notes.reading import DIGEST_BYTES
from dataprep_assets.pipelines.notes.row_layout import RowLayout, lay_out
from dataprep_assets.pipelines.notes.spool import DropCounter, Spool, fill_spool

__all__ = [
    "PACKED_COHORTS",
    "QUARANTINE",
    "CohortWork",
    "PackedCohortsFacts",
    "PackedPaths",
    "PackedSplit",
    "RowFacts",
    "SplitTokens",
    "build_packed_cohort",
    "build_packed_cohorts",
    "cohort_key",
    "cohort_works",
    "packed_paths",
    "read_patients",
]

VERSION = 1
PACKED_COHORTS = "packed_cohorts"
"""Name of the artifact."""
QUARANTINE = "quarantine.jsonl"
PATIENTS = "patients.bin"
_SPOOL = "spool.tokens"


class RowFacts(Facts):
    """What holds for packed rows and for everything made of them."""

    layout: Layout
    columns: list[str]
    row_length: int
    pad_id: int
    pad_may_occur: bool
    separator_id: int
    bos_id: int | None
    tokenizer: str
    vocab_size: int


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


class PackedCohortsFacts(RowFacts):
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


def in_split(splits: Sequence[str], split: str, name: str) -> str:
    """The path in an artifact of a split's file called ``name``: at the top where ``splits`` is `train` alone."""
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
    """One cohort to pack. `file` is None where the source has none, which fails this cohort alone."""

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
    """The work of the given months, in their order.

    ConfigError for a month that ``notes`` does not declare; MissingArtifactError when the engine certificate is not in
    ``store``; the errors of `list_cohorts`.
    """
    plan = notes_plan(notes, load_certificate(notes, store))
    files = list_cohorts(notes)
    expected = set(notes.months.expected)
    works = []
    for month in months:
        if month not in expected:
            raise ConfigError(f"{notes.dataset}: {month} is not one of its months")
        works.append(
            CohortWork(
                artifact=notes.artifact(PACKED_COHORTS, month),
                store=store,
                plan=plan,
                month=month,
                file=files.get(month),
            )
        )
    return works


def cohort_key(plan: NotesPlan, month: str, sha256: str) -> str:
    """The key of a month's packed cohort, packed by this plan from a file whose SHA-256 is ``sha256``."""
    return digest_value(["packed_cohorts", VERSION, month, plan.key_parts(), sha256])


def build_packed_cohorts(
    works: Sequence[CohortWork], *, workers: int, on_progress: Callable[[Meter, int], None] | None = None
) -> Iterator[ShardResult]:
    """Build the ``works`` that are not current, several at a time; yields each once it is verified, built or failed.

    The bytes do not depend on the number of ``workers``. ``on_progress`` is called while they work.

    Raises WorkerDiedError when a worker dies; the cohorts that it finished are committed.
    """
    silent = any(work.sensitive for work in works)
    return run_shards(works, build_packed_cohort, workers=workers, on_progress=on_progress, silent=silent)


def build_packed_cohort(work: CohortWork) -> tuple[Receipt, bool]:
    """Build one cohort unless it is current, in this process. Returns its receipt and whether it was reused."""
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


class _Cohort:
    """Writes one cohort's files into its staging directory."""

    def __init__(self, work: CohortWork, staged: Path) -> None:
        self._plan, self._notes, self._month, self._staged = work.plan, work.plan.notes, work.month, staged
        self._drops = DropCounter(work.plan, work.month)
        self._low, self._high = 1 << 32, -1

    def write(self, file: CohortFile, path: Path, sha256: str) -> Written:
        reader = file.reader(path)
        spooled = self._staged / _SPOOL
        spool = fill_spool(self._plan, reader, spooled, self._drops, month=self._month, report=report)
        if reader.sha256 != sha256:
            raise CorruptSourceError(f"{self._month}: its file changed while it was read; run it again")
        layouts = [lay_out(self._notes, spool, index, self._drops) for index in range(len(self._notes.splits))]
        rows_in = len(spool) + sum(self._drops.dropped.values()) - self._drops.dropped["header_too_long"]
        self._drops.check_budget(rows_in)
        splits = {
            name: self._write_split(spool, layout, name)
            for name, layout in zip(self._notes.splits, layouts, strict=True)
        }
        spooled.unlink()
        if self._drops.quarantine:
            lines = b"".join(canonical_json(position) + b"\n" for position in self._drops.quarantine)
            (self._staged / QUARANTINE).write_bytes(lines)
        ledger = self._ledger(spool, layouts, splits, rows_in, reader.bytes_read)
        ledger.balance(self._month)
        self._require_notes(spool, ledger)
        return Written(
            inputs={"cohort": sha256, "tokenizer": self._plan.stream.tokenizer_digest},
            facts=self._facts(spool, splits),
            ledger=ledger,
        )

    def _write_split(self, spool: Spool, layout: RowLayout, name: str) -> PackedSplit:
        shape, paths = self._plan.shape, packed_paths(self._notes, self._month)[name]
        for path in (paths.jsonl, paths.rows):
            (self._staged / path).parent.mkdir(exist_ok=True)
        rows = tokens = 0
        with (
            open(self._staged / paths.jsonl, "xb") as jsonl,
            PackedRowsWriter(self._staged / paths.rows, shape) as file,
        ):
            for block in layout.blocks(spool, shape.batch_rows):
                self._require_valid(block)
                file.write(block)
                columns = block.columns(shape)
                for row in range(len(block)):
                    values = {column: columns[column][row] for column in shape.columns}
                    jsonl.write(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))
                rows += len(block)
                tokens += block.tokens.size
        patients = sorted({spool.digests[at] for at in np.unique(spool.patients[layout.documents]).tolist()})
        (self._staged / paths.patients).write_bytes(b"".join(patients))
        positions = rows * shape.row_length
        return PackedSplit(
            rows=rows,
            segments=layout.first_lengths.size,
            documents=layout.documents.size,
            patients=len(patients),
            tokens=self._tokens(spool, layout, name, tokens),
            padding=positions - tokens,
            fill=round(tokens / positions, 6) if positions else 1.0,
            truncated_documents=layout.truncated_documents,
        )

    def _require_valid(self, block: RowBlock) -> None:
        """FormatError for a reserved pad id among the tokens; else widens the range of ids by theirs."""
        if not self._notes.pad.may_occur and bool((block.tokens == self._plan.shape.pad_id).any()):
            raise FormatError(
                f"{self._month}: a note holds the pad id {self._plan.shape.pad_id}; choose another, or declare "
                "`pad: {may_occur: true}`"
            )
        if block.tokens.size:
            self._low = min(self._low, int(block.tokens.min()))
            self._high = max(self._high, int(block.tokens.max()))

    def _tokens(self, spool: Spool, layout: RowLayout, name: str, in_rows: int) -> SplitTokens:
        """Where the tokens went; IntegrityError when the rows do not hold those of the notes."""
        headers = int(spool.headers[layout.documents].sum())
        bodies = int(spool.bodies[layout.documents].sum())
        repeated = overlap = 0
        if layout.second_lengths.any():
            repeated = int(layout.first_lengths.sum()) - headers
            overlap = int(layout.second_lengths.sum()) - (bodies - layout.truncated)
        tokens = SplitTokens(
            in_documents=headers + bodies,
            truncated=layout.truncated,
            repeated_headers=repeated,
            overlap=overlap,
            in_rows=in_rows,
        )
        if in_rows != tokens.balance or min(repeated, overlap) < 0:
            raise IntegrityError(
                f"{self._month}: split {name}: its tokens do not balance: {tokens.to_json()}. This is a bug"
            )
        return tokens

    def _ledger(
        self,
        spool: Spool,
        layouts: Sequence[RowLayout],
        splits: Mapping[str, PackedSplit],
        rows_in: int,
        source_bytes: int,
    ) -> Ledger:
        kept = np.concatenate([layout.documents for layout in layouts])
        truncated = sum(layout.truncated_documents for layout in layouts)
        return Ledger(
            rows_in=rows_in,
            documents=int(kept.size),
            dropped=dict(sorted((reason, count) for reason, count in self._drops.dropped.items() if count)),
            tokens=sum(split.tokens.in_rows for split in splits.values()),
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

    def _facts(self, spool: Spool, splits: Mapping[str, PackedSplit]) -> PackedCohortsFacts:
        plan = self._plan
        return PackedCohortsFacts(
            layout=self._notes.layout,
            columns=list(plan.shape.columns),
            row_length=plan.shape.row_length,
            pad_id=plan.shape.pad_id,
            pad_may_occur=self._notes.pad.may_occur,
            separator_id=plan.stream.separator_id,
            bos_id=plan.stream.bos_id,
            tokenizer=plan.tokenizer,
            vocab_size=plan.vocab_size,
            certificate=dict(plan.stream.certificate),
            packing=self._notes.packing.model_dump(),
            long_notes=self._notes.long_notes.model_dump(),
            patients=spool.patients_seen,
            patients_without_notes=spool.patients_without_notes,
            splits=dict(splits),
        )
