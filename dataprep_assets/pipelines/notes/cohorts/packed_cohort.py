"""Packing of one month's notes into the files of a cohort, and the values that determine their bytes.

Tokens are conserved: the notes' tokens, minus truncated tokens, plus repeated headers and overlaps, equal the rows'
tokens. A cohort that does not balance is not committed.

Entry points: `PackedCohort`, `ensure_packed_cohort`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.artifact.build import WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.errors import BadRecordError, CorruptSourceError, FormatError, IntegrityError, count_of
from dataprep_assets.execution.run_task import report_work
from dataprep_assets.formats.packed_rows import PackedRowBlock, write_rows
from dataprep_assets.formats.row_origins import write_origins
from dataprep_assets.formats.tensorflow.example import ABSENT
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import RETRACTED, Ledger, Receipt
from dataprep_assets.pipelines.notes.cohorts.cohort_source import CohortFile, build_missing_file_error
from dataprep_assets.pipelines.notes.cohorts.packed_files import (
    QUARANTINE,
    RETRACTED_NOTES,
    RETRACTED_PATIENTS,
    PackedCohortFacts,
    PackedSplitCounts,
    SplitTokens,
    list_packed_paths,
)
from dataprep_assets.pipelines.notes.cohorts.row_layout import NoteLayout, lay_out_rows
from dataprep_assets.pipelines.notes.cohorts.spool import DropCounter, Spool, fill_spool
from dataprep_assets.pipelines.notes.notes_plan import NotesPlan
from dataprep_assets.pipelines.notes.privacy import hide_quoted_data
from dataprep_assets.pipelines.notes.reading import DroppedNote
from dataprep_assets.pipelines.notes.retractions import CohortPatients, find_matching_retractions, summarize_entries
from dataprep_assets.stores.files import canonical_json, sha256_file

# Version 5 stores a month's rows as Parquet, and the origins of the rows as an array. The rows are the same as in
# version 1.
VERSION = 5
_SPOOL = "spool.tokens"


@dataclass(frozen=True, kw_only=True)
class PackedCohort:
    """The cohort of one month, to be packed or checked.

    `file` is None if the source has no file for the month, which fails only this cohort. `retracted` are the digests
    (hex) of the entries on the plan's retraction list that apply here (`retractions.find_matching_retractions`), as far
    as known before packing. `exceeded_budget` is the budget of bad records, if the existing cohort exceeds it.
    """

    artifact: Artifact
    store: ArtifactStore = field(repr=False)
    plan: NotesPlan = field(repr=False)
    month: str
    file: CohortFile | None
    retracted: tuple[str, ...] = field(default=(), repr=False)
    exceeded_budget: float | None = None

    @property
    def source_bytes(self) -> int:
        """Size of the cohort's file as stored."""
        return 0 if self.file is None else self.file.bytes

    def recipe(self, sha256: str) -> Recipe:
        """Return the recipe: the values that determine the cohort's bytes, for a file with this SHA-256."""
        # Build the recipe even without a file, because `status` compares this recipe to report that the source changed.
        digest = self.digest_cohort(sha256) if sha256 else ""
        # Add the entries only if there are any, because the retraction list must not change the keys of months to which
        # no entry applies.
        entries: dict[str, Any] = {"retracted": summarize_entries(self.retracted)} if self.retracted else {}
        if self.exceeded_budget is not None:
            entries["bad_records.budget"] = self.exceeded_budget
        return Recipe.from_ingredients(
            self.artifact,
            VERSION,
            settings={"month": self.month, **self.plan.settings, **entries},
            sources={"cohort": digest, **self.plan.sources},
        )

    def digest_cohort(self, sha256: str) -> str:
        """Return the digest, for keys and receipts, of a file with this SHA-256: keyed if the notes are sensitive."""
        return self.plan.notes.source_digests(self.plan.key).digest_of(sha256)

    @property
    def current_recipe(self) -> Recipe:
        """Recipe for the current source; the file, if the source has it, is downloaded and read completely."""
        if self.file is None:
            return self.recipe("")
        path = self.file.fetch()
        with hide_quoted_data(self.month):
            return self.recipe(sha256_file(path))


def ensure_packed_cohort(cohort: PackedCohort) -> tuple[Receipt, bool]:
    """Build one cohort in this process unless it is up to date; return its receipt and whether it was reused."""
    if cohort.file is None:
        raise build_missing_file_error([cohort.month])
    file = cohort.file
    with hide_quoted_data(cohort.month):
        path = file.fetch()
        # Digest the file first, because the key needs the digest. `write` compares this digest with the digest of the
        # bytes that it reads.
        sha256 = sha256_file(path)

        def write(staged: Path) -> WrittenFiles:
            return _CohortWriter(cohort, staged).write(file, path, sha256)

        return ensure_built(cohort.recipe(sha256), cohort.store, write, cohort.plan.notes.verify)


class _CohortWriter:
    """Writer of one cohort's files into its staging directory."""

    def __init__(self, cohort: PackedCohort, staged: Path) -> None:
        self._cohort, self._plan, self._notes = cohort, cohort.plan, cohort.plan.notes
        self._month, self._staged = cohort.month, staged
        self._drops = DropCounter(cohort.plan, cohort.month)
        # Start with an empty range of ids, which `_require_valid` extends to the range in the ledger.
        self._low, self._high = 1 << 32, -1

    def write(self, file: CohortFile, path: Path, sha256: str) -> WrittenFiles:
        reader = file.open_reader(path)
        spooled = self._staged / _SPOOL
        spool = fill_spool(self._plan, reader, spooled, self._drops, month=self._month, report=report_work)
        if reader.sha256 != sha256:
            raise CorruptSourceError(f"{self._month}: the file changed while it was being read. Run the dataset again")
        # Lay out all splits before writing any row, because the budget must be checked first, and the layout drops more
        # notes.
        layouts = [
            lay_out_rows(self._notes, spool, index, self._drops, self._plan.retracted)
            for index in range(len(self._notes.splits))
        ]
        drop_counts = self._drops.dropped
        # Subtract the notes dropped as `header_too_long` and the retracted notes, because the spool already contains
        # them.
        rows_in = len(spool) + sum(drop_counts.values()) - drop_counts["header_too_long"] - drop_counts[RETRACTED]
        self._drops.check_budget(rows_in)
        splits = {
            name: self._write_split(spool, layout, name)
            for name, layout in zip(self._notes.splits, layouts, strict=True)
        }
        # Remove the spool, because every file in staging becomes a file of the artifact.
        spooled.unlink()
        if self._drops.quarantine:
            (self._staged / QUARANTINE).write_bytes(b"".join(map(_encode_dropped_note, self._drops.quarantine)))
        patients = self._list_left_out(spool, layouts)
        for name, digests in ((RETRACTED_PATIENTS, patients.left_out), (RETRACTED_NOTES, patients.notes)):
            # Write the file only if it has content, because even an empty file would change the content digest of the
            # month.
            if digests:
                (self._staged / name).write_bytes(b"".join(sorted(digests)))
        ledger = self._build_ledger(spool, layouts, splits, rows_in, reader.bytes_read)
        ledger.require_balance(self._month)
        self._require_notes(spool, ledger)
        return WrittenFiles(
            inputs={
                "cohort": self._cohort.digest_cohort(sha256),
                "tokenizer": self._plan.stream.tokenizer_digest,
            },
            facts=self._build_facts(spool, splits, len(patients.left_out)),
            ledger=ledger,
            # Update the recipe, because only packing determines which entries of the retraction list apply to this
            # month.
            recipe=replace(
                self._cohort,
                retracted=find_matching_retractions(self._plan.retracted, patients),
                exceeded_budget=None,
            ).recipe(sha256),
        )

    def _list_left_out(self, spool: Spool, layouts: Sequence[NoteLayout]) -> CohortPatients:
        """Return the patients in the rows, and the patients and notes that were left out."""
        retracted_positions = np.concatenate([layout.retracted for layout in layouts])
        patients = self._plan.retracted.intersection(_list_patients(spool, [retracted_positions]))
        # List a note only if its patient is not retracted, because a retracted patient's entry covers all notes of the
        # patient.
        left_out_notes = (
            index for index in retracted_positions.tolist() if spool.digests[spool.patients[index]] not in patients
        )
        return CohortPatients(
            held=frozenset(_list_patients(spool, (layout.documents for layout in layouts))),
            left_out=patients,
            notes=frozenset(spool.listed[index] for index in left_out_notes),
        )

    def _write_split(self, spool: Spool, layout: NoteLayout, name: str) -> PackedSplitCounts:
        shape, paths = self._plan.shape, list_packed_paths(self._notes, self._month)[name]
        for path in (paths.jsonl, paths.rows):
            (self._staged / path).parent.mkdir(exist_ok=True)
        with open(self._staged / paths.jsonl, "xb") as jsonl:
            write_rows(self._staged / paths.rows, self._iterate_rows(spool, layout, jsonl), masked=False)
        patients = _list_patients(spool, [layout.documents])
        (self._staged / paths.patients).write_bytes(b"".join(patients))
        write_origins(self._staged / paths.origins, layout.build_origins(spool))
        rows, tokens = layout.offsets.size - 1, int(layout.lengths.sum())
        positions = rows * shape.row_length if self._notes.layout == "prepacked" else tokens
        return PackedSplitCounts(
            rows=rows,
            segments=layout.items.size,
            documents=layout.documents.size,
            patients=len(patients),
            tokens=self._balance_tokens(spool, layout, name),
            padding=positions - tokens,
            fill=round(tokens / positions, 6) if positions else 1.0,
            truncated_documents=layout.truncated_documents,
        )

    def _iterate_rows(self, spool: Spool, layout: NoteLayout, jsonl: BinaryIO) -> Iterator[PackedRowBlock]:
        """Yield the rows, one row group at a time, and also write them as JSON Lines."""
        for block in layout.blocks(self._plan.shape.group_rows, spool.read_tokens):
            self._require_valid(block)
            jsonl.writelines(self._plan.shape.encode_json_lines(block))
            yield block

    def _require_valid(self, block: PackedRowBlock) -> None:
        """Raise FormatError if a token is the reserved pad id; otherwise extend the range of ids."""
        # Test the ids of the encoded notes, because `find_pad_id` ran before any note was encoded.
        if not self._notes.pad_may_occur and bool((block.tokens == self._plan.shape.pad_id).any()):
            raise FormatError(
                f"{self._month}: a note contains the pad id {self._plan.shape.pad_id}. Choose a different token for "
                "`pad`, or "
                "declare `pad: {may_occur: true}`"
            )
        if block.tokens.size:
            self._low = min(self._low, int(block.tokens.min()))
            self._high = max(self._high, int(block.tokens.max()))

    def _balance_tokens(self, spool: Spool, layout: NoteLayout, name: str) -> SplitTokens:
        """Return the balance of tokens; raise IntegrityError if rows and notes have different tokens."""
        headers = int(spool.headers[layout.documents].sum())
        bodies = int(spool.bodies[layout.documents].sum())
        repeated = overlap = 0
        # Chunks have two ranges per segment, for the header and for the body, and the chunks of a note may repeat
        # tokens of both. In a stream, every segment is one range, and no token is repeated.
        if layout.lengths.shape[1] == 2:
            of_headers, of_bodies = layout.lengths.sum(axis=0).tolist()
            repeated, overlap = of_headers - headers, of_bodies - (bodies - layout.truncated)
        tokens = SplitTokens(
            in_documents=headers + bodies,
            truncated=layout.truncated,
            repeated_headers=repeated,
            overlap=overlap,
            in_rows=int(layout.lengths.sum()),
        )
        if tokens.in_rows != tokens.balance or min(repeated, overlap) < 0:
            raise IntegrityError(
                f"{self._month}: split {name}: the token counts do not balance: {tokens.to_json()}. This is a bug. "
                "Report it"
            )
        return tokens

    def _build_ledger(
        self,
        spool: Spool,
        layouts: Sequence[NoteLayout],
        splits: Mapping[str, PackedSplitCounts],
        rows_in: int,
        source_bytes: int,
    ) -> Ledger:
        documents = np.concatenate([layout.documents for layout in layouts])
        truncated = sum(layout.truncated_documents for layout in layouts)
        return replace(
            spool.counted,
            rows_in=rows_in,
            documents=int(documents.size),
            dropped=dict(sorted((reason, count) for reason, count in self._drops.dropped.items() if count)),
            tokens=sum(split.tokens.in_rows for split in splits.values()),
            # Subtract the truncated notes, because they have no separator at their end.
            separators=int(documents.size) - truncated,
            source_bytes=source_bytes,
            text_characters=int(spool.characters[documents].sum()),
            min_id=self._low if self._high >= 0 else None,
            max_id=self._high if self._high >= 0 else None,
        )

    def _require_notes(self, spool: Spool, ledger: Ledger) -> None:
        # Reject a month without notes, because a wrong path in `cohorts.fields` finds no notes. Accept it if notes were
        # retracted, or if the month is in `allow_empty`.
        if ledger.documents or ledger.dropped.get(RETRACTED) or self._month in self._notes.months.allow_empty:
            return
        if not spool.patients_seen and not ledger.dropped:
            problem = "the file has no patients"
        elif not ledger.dropped:
            problem = f"all {count_of(spool.patients_seen, 'patient')} have empty lists of notes"
        else:
            reasons = ", ".join(f"{count} for {reason}" for reason, count in ledger.dropped.items())
            problem = f"all notes were dropped: {reasons}"
        raise BadRecordError(
            f"{self._month}: {problem}. Check cohorts.fields, or list the month in months.allow_empty if this is "
            "intended",
            month=self._month,
        )

    def _build_facts(
        self, spool: Spool, splits: Mapping[str, PackedSplitCounts], retracted_count: int
    ) -> PackedCohortFacts:
        plan = self._plan
        return PackedCohortFacts(
            layout=self._notes.layout,
            columns=list(plan.shape.columns),
            row_length=plan.shape.row_length,
            pad_id=plan.shape.pad_id,
            pad_may_occur=self._notes.pad_may_occur,
            separator_id=plan.stream.separator_id,
            bos_id=plan.stream.bos_id,
            tokenizer=plan.tokenizer,
            vocab_size=plan.vocab_size,
            certificate=dict(plan.stream.certificate),
            packing=self._notes.packing.model_dump(),
            long_notes=self._notes.long_notes.model_dump(),
            patients=spool.patients_seen - retracted_count,
            patients_without_notes=spool.patients_without_notes,
            splits=dict(splits),
            **{"pipeline": self._notes.pipeline, "rows": self._notes.rows} if plan.shape.pad_id == ABSENT else {},
        )


def _list_patients(spool: Spool, notes: Iterable[NDArray[np.int64]]) -> list[bytes]:
    """Return the digests of the patients of these notes, sorted."""
    patient_indexes = {patient for indexes in notes for patient in np.unique(spool.patients[indexes]).tolist()}
    return sorted(spool.digests[index] for index in patient_indexes)


def _encode_dropped_note(note: DroppedNote) -> bytes:
    """Return the line of `quarantine.jsonl` for a dropped note or record."""
    position = {"record": note.record, "note": note.number, "byte": note.byte}
    return canonical_json(position | {"notes": note.notes, "reason": note.reason}) + b"\n"
