"""Spool of a cohort: its notes as token ids on disk, in source order, with lengths, patients and splits in memory.

Ids are written to a flat file of int32: `[BOS] header body separator` for each note. Memory is therefore about fifty
bytes per note, regardless of its length. Rows are then laid out from the lengths only.

Entry points: `fill_spool`, `Spool`.
"""

import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.documents import sample_rows
from dataprep_assets.errors import BadRecordError, Position, RowPosition, count_of
from dataprep_assets.formats.flat_bins import create_file, read_ranges
from dataprep_assets.formats.packed_rows import view_ids_as_int32
from dataprep_assets.integrity.receipt import RETRACTED, Ledger
from dataprep_assets.pipelines.notes.note_tokens import join_for_encoding, split_header_and_body
from dataprep_assets.pipelines.notes.notes_plan import NotesPlan
from dataprep_assets.pipelines.notes.reading import (
    DIGEST_BYTES,
    MISSING_METADATA,
    DroppedNote,
    Note,
    RecordStart,
    digest_note,
    read_notes,
)
from dataprep_assets.sources.cohorts import REFUSED, CohortReader
from dataprep_assets.sources.readers.row_files import BadRecord
from dataprep_assets.sources.readers.unreadable import describe_place, format_budget_advice
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stream.token_stream import load_encoder
from dataprep_assets.table import format_share
from dataprep_assets.tokenization.losses import Losses, encode_or_locate

# These limits bound the memory for the texts and ids of a batch. The first limit that is reached ends the batch.
_MAX_BATCH_CHARACTERS = 2_000_000
_MAX_BATCH_NOTES = 4096
_MAX_SHOWN = 20
"""Maximum number of rejected records that one error lists."""
_DEFAULTS = "set template.defaults, or `template: {missing: drop}`"
_DROP = "set `bad_records: {policy: drop, budget: 0.01}` to count and skip up to 1% of records"
Int64 = NDArray[np.int64]


class DropCounter:
    """Counts of dropped notes by reason, under the declared policies, with their positions but never their content."""

    def __init__(self, plan: NotesPlan, month: str) -> None:
        self._policy, self._budget = plan.notes.bad_records.policy, plan.notes.bad_records.budget
        self._plan = plan
        # Only `template.missing`, not the policy for bad records, decides how missing metadata is handled.
        self._always_fails = {MISSING_METADATA} if plan.notes.template.missing == "fail" else set()
        self._month = month
        # Collect the first rejected notes, the number of rejected notes and the remedies, so that a single error can
        # report them together.
        self._refused: list[str] = []
        self._first_refused = RowPosition()
        self._refusals = 0
        self._remedies: dict[str, None] = {}
        self.dropped: Counter[str] = Counter()
        self.quarantine: list[DroppedNote] = []

    def drop(self, note: DroppedNote) -> None:
        """Count a dropped note; if the policy is to fail, store its position for the error of `require_none`."""
        if self._plan.is_bad(note.reason):
            if self._policy == "fail" or note.reason in self._always_fails:
                self._refuse(note)
                return
            self.quarantine.append(note)
        self.dropped[note.reason] += note.notes

    def _refuse(self, dropped_note: DroppedNote) -> None:
        self._refusals += 1
        is_missing = dropped_note.reason in self._always_fails
        self._remedies[_DEFAULTS if is_missing else _DROP] = None
        if not self._refused:
            self._first_refused = RowPosition(row=dropped_note.record)
        if len(self._refused) < _MAX_SHOWN:
            self._refused.append(_describe_note(dropped_note))

    @property
    def has_failed(self) -> bool:
        """Whether the cohort can no longer be packed."""
        return bool(self._refusals)

    def require_none(self) -> None:
        """Raise BadRecordError, with up to 20 rejected records, if any record was rejected."""
        if not self._refusals:
            return
        count = "" if self._refusals == 1 else f"{self._refusals} errors: "
        suffix = f"; and {self._refusals - len(self._refused)} more" if self._refusals > len(self._refused) else ""
        raise BadRecordError(
            f"{self._month}: {count}{'; '.join(self._refused)}{suffix}. Correct the source, or "
            f"{', or '.join(self._remedies)}",
            month=self._month,
            **self._first_refused,
        )

    def retract(self, count: int) -> None:
        """Count retracted notes, which are no defects and therefore not in the quarantine."""
        self.dropped[RETRACTED] += count

    def check_budget(self, rows_in: int) -> None:
        """Raise BadRecordError for rejected records, or if defects dropped more notes than the budget allows."""
        # Check for rejected notes again, because notes whose headers are too long are found only when the rows are laid
        # out, after `fill_spool`.
        self.require_none()
        bad_counts = {reason: count for reason, count in sorted(self.dropped.items()) if self._plan.is_bad(reason)}
        if sum(bad_counts.values()) > self._budget * rows_in:
            first = self.quarantine[0]
            raise BadRecordError(
                f"{self._month}: {sum(bad_counts.values())} of {count_of(rows_in, 'note')} would be dropped "
                f"({', '.join(f'{reason}: {count}' for reason, count in bad_counts.items())}), more than the budget of "
                f"{format_share(self._budget)}. First error: {_describe_note(first)}. "
                f"{format_budget_advice(sum(bad_counts.values()), rows_in)}",
                month=self._month,
                **_locate_note(first),
            )


def _locate_note(note: DroppedNote) -> RowPosition:
    """Return the location of a dropped note or record, without the byte if it is not known (-1)."""
    return RowPosition(row=note.record, byte=note.byte) if note.byte >= 0 else RowPosition(row=note.record)


def _describe_note(note: DroppedNote) -> str:
    """Return the location and the reason of a dropped note or record."""
    number = f", note {note.number}" if note.number else ""
    byte = f", byte {note.byte}" if note.byte >= 0 else ""
    return f"record {note.record}{number}{byte}: {note.reason}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Spool:
    """Notes of a cohort, in source order: int64 arrays of shape ``(notes,)``.

    ``headers`` and ``bodies`` are lengths in tokens, including BOS and separator. ``starts`` is the position of each
    note in the file. ``patients`` are indices into ``digests``, and ``splits`` are indices into the declared splits.
    ``listed`` contains the digests of the individually retracted notes. ``counted`` contains the ledger's counts from
    encoding.
    """

    path: Path
    headers: Int64
    bodies: Int64
    starts: Int64
    dates: Int64
    patients: Int64
    splits: Int64
    records: Int64
    numbers: Int64
    characters: Int64
    digests: tuple[bytes, ...]
    listed: Mapping[int, bytes]
    patients_seen: int
    patients_without_notes: int
    counted: Ledger

    def __len__(self) -> int:
        """Number of notes."""
        return self.headers.size

    def read_tokens(self, starts: Int64, lengths: Int64) -> NDArray[np.int32]:
        """Read the tokens of these ranges of the file, concatenated; raise FormatError if the file is too short."""
        tokens: NDArray[np.int32] = read_ranges(self.path, "<i4", starts, lengths)
        return tokens


def choose_split(digest: bytes, shares: Iterable[float]) -> int:
    """Return the index of a patient's split: the digest's first 8 bytes as a fraction, among the cumulative shares."""
    position = int.from_bytes(digest[:8], "big")
    total, index = 0.0, -1
    for index, share in enumerate(shares):
        total += share
        if position < round(total * 2**64):
            return index
    # Assign the remaining digests to the last split, because the shares may add up to slightly less than 1.
    return index


def fill_spool(
    plan: NotesPlan,
    reader: CohortReader,
    path: Path,
    drops: DropCounter,
    *,
    month: str,
    report: Callable[..., None] | None = None,
) -> Spool:
    """Read, render and encode every note of a cohort into the new file ``path``, according to the ``plan``.

    ``reader`` yields the records of ``month``'s file. Unusable notes are counted in ``drops``. If the policy is to
    fail, BadRecordError is raised at the end with the unusable notes, and notes after the first unusable note are read
    but not encoded. ``report`` is called after each batch with its tokens, documents, source bytes and milliseconds of
    CPU. Raises the reader's errors.
    """
    notes = plan.notes
    items = read_notes(reader, notes.cohorts.fields, notes.compile_header(), key=plan.key, month=month)
    with create_file(path) as file:
        writer = _SpoolWriter(plan, month, file, reader, report)
        first_bad, has_read = "", False
        for item in items:
            if isinstance(item, DroppedNote) and item.reason in REFUSED:
                first_bad = first_bad or describe_place(BadRecord(item.record, item.byte, item.reason))
            else:
                has_read = True
            if isinstance(item, Note):
                # After a rejected note, read the rest only to find further defects, because the cohort will not be
                # packed.
                if not drops.has_failed:
                    writer.add(item)
            elif isinstance(item, RecordStart):
                writer.open(item)
            else:
                drops.drop(item)
        # Reject the file under any policy, even for a month that may be empty, because the file's content is not in the
        # format that its name indicates.
        if first_bad and not has_read:
            raise reader.build_unreadable_error(first_bad)
        # Report rejected notes now, because the cohort will not be packed, so encoding the last batch would be wasted
        # work.
        drops.require_none()
        writer.flush()
    return writer.build_spool(path)


class _SpoolWriter:
    """Writer of a cohort's spool, which encodes notes in batches."""

    def __init__(
        self, plan: NotesPlan, month: str, file: BinaryIO, reader: CohortReader, report: Callable[..., None] | None
    ) -> None:
        self._plan, self._month, self._file, self._reader, self._report = plan, month, file, reader, report
        self._encoder = load_encoder(plan.stream)
        # Save the current counts in order to subtract them later, because all cohorts of a process share one encoder.
        self._before = (self._encoder.reference_documents, self._encoder.sampled_documents)
        self._literals = self._encoder.bundle.special_literals
        self._losses = Losses(self._encoder.bundle, plan.stream.special_tokens)
        self._shares = list(plan.notes.splits.values())
        # This dictionary maps each patient's digest to the patient's index, in the order of the records.
        self._patients: dict[bytes, int] = {}
        # Compute note digests only for patients with individually retracted notes, because most patients have none.
        self._with_listed = {entry[:DIGEST_BYTES] for entry in plan.retracted if len(entry) > DIGEST_BYTES}
        self._listed: dict[int, bytes] = {}
        self._batch: list[Note] = []
        self._size = 0
        # Use arrays, because they take eight bytes per value, much less than lists of integers. Except within `flush`,
        # all columns have the same length: the number of encoded notes.
        self._columns = {name: array("q") for name in ("headers", "bodies", "dates", "patients", "splits")}
        self._columns |= {name: array("q") for name in ("records", "numbers", "characters")}
        self._seen = self._without = self._special_literals = self._literal_separators = 0
        self._bos = np.array([] if plan.stream.bos_id is None else [plan.stream.bos_id], np.uint32)
        self._separator = np.array([plan.stream.separator_id], np.uint32)
        self._read, self._cpu = 0, time.process_time()

    def open(self, record: RecordStart) -> None:
        # A patient may have several records, for example one per note.
        if record.patient not in self._patients:
            self._patients[record.patient] = len(self._patients)
            self._seen += 1
        self._without += not record.notes

    def add(self, note: Note) -> None:
        self._batch.append(note)
        self._size += len(note.text) + len(note.header)
        if self._size >= _MAX_BATCH_CHARACTERS or len(self._batch) >= _MAX_BATCH_NOTES:
            self.flush()

    def _locate(self, note: Note) -> tuple[str, Position]:
        """Return the location of a note as text and as a position."""
        return f"{self._month}: record {note.record}, note {note.number}", {"month": self._month, "row": note.record}

    def flush(self) -> None:
        batch, self._batch, self._size = self._batch, [], 0
        if not batch:
            return
        encode = self._plan.notes.template.encode
        texts = [join_for_encoding(note.header, note.text, encode) for note in batch]
        # Encode all headers before all texts, so that the text of the batch's note `i` has the index `len(batch) + i`.
        ids, offsets = encode_or_locate(
            self._encoder.encode,
            [*(note.header for note in batch), *texts],
            self._encoder.bundle.name,
            lambda position: self._locate(batch[position % len(batch)]),
        )
        bounds = offsets.astype(np.int64)
        # Compare before the columns grow, because until then their length is the number of the batch's first note.
        self._compare_with_reference(texts, ids, bounds[len(batch) :])
        bounds_list = bounds.tolist()
        pieces = []
        for position in range(len(batch)):
            header, body = split_header_and_body(
                ids[bounds_list[position] : bounds_list[position + 1]],
                ids[bounds_list[len(batch) + position] : bounds_list[len(batch) + position + 1]],
                encode,
            )
            # Count BOS as part of the header, because chunks that repeat the header also repeat BOS. Count the
            # separator as part of the body, because truncating the body also removes the separator.
            self._columns["headers"].append(self._bos.size + header.size)
            self._columns["bodies"].append(body.size + self._separator.size)
            pieces += [self._bos, header, body, self._separator]
        flat = np.concatenate(pieces, dtype=np.uint32)
        self._file.write(view_ids_as_int32(flat, self._month).astype("<i4", copy=False).data)
        self._count(batch)
        self._special_literals += self._literals.count(texts)
        self._losses.count(texts, ids[bounds[len(batch)] :])
        # Skip the ids of the headers if header and text are encoded together, because these ids are in no row.
        row_ids = ids if encode == "apart" else ids[bounds[len(batch)] :]
        self._literal_separators += int(np.count_nonzero(row_ids == self._plan.stream.separator_id))
        if self._report is not None:
            cpu = time.process_time()
            self._report(
                tokens=flat.size,
                documents=len(batch),
                source_bytes=self._reader.bytes_read - self._read,
                cpu_ms=int((cpu - self._cpu) * 1000),
            )
            self._read, self._cpu = self._reader.bytes_read, cpu

    def _count(self, batch: list[Note]) -> None:
        columns, plan = self._columns, self._plan
        for note in batch:
            ordinal = self._patients[note.patient]
            if note.patient in self._with_listed and (entry := digest_note(plan.key, note)) in plan.retracted:
                # Add the entry before the columns grow, because until then their length is the number of this note.
                self._listed[len(columns["patients"])] = entry
            columns["dates"].append(note.date)
            columns["patients"].append(ordinal)
            columns["splits"].append(choose_split(note.patient, self._shares))
            columns["records"].append(note.record)
            columns["numbers"].append(note.number)
            columns["characters"].append(len(note.text))

    def _compare_with_reference(self, texts: list[str], ids: NDArray[np.uint32], bounds: Int64) -> None:
        rate = self._plan.stream.sample_rate
        if rate <= 0:
            return
        first_number = len(self._columns["headers"])
        # Seed by month and tokenizer, so that every run samples the same notes, and a difference from the reference can
        # be reproduced.
        seed = digest_value([self._month, self._plan.stream.tokenizer_digest])
        for index in sample_rows(np.arange(first_number, first_number + len(texts), dtype=np.uint64), seed, rate):
            location = f"{self._month}: note {first_number + int(index) + 1}, in reading order"
            self._encoder.recheck(texts[index], ids[bounds[index] : bounds[index + 1]], location)

    def build_spool(self, path: Path) -> Spool:
        arrays = {name: np.array(column, np.int64) for name, column in self._columns.items()}
        lengths = arrays["headers"] + arrays["bodies"]
        return Spool(
            path=path,
            starts=np.cumsum(lengths) - lengths,
            digests=tuple(self._patients),
            listed=self._listed,
            patients_seen=self._seen,
            patients_without_notes=self._without,
            counted=Ledger(
                dropped={},
                special_literals=self._special_literals,
                literal_separators=self._literal_separators,
                reference_documents=self._encoder.reference_documents - self._before[0],
                sampled_documents=self._encoder.sampled_documents - self._before[1],
                **self._losses.counts,
            ),
            **arrays,
        )
