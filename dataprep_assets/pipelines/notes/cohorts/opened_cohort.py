"""Packed cohort, opened for its checks: its files and receipt, and shared passes over its rows and its source.

The checks share three passes: one over the columnar files, one over the JSON Lines files, and one over the source. All
are read in blocks, so memory does not grow with the cohort.

All lines of the JSON Lines files are counted, and a sample is parsed. A line with exactly the bytes that the build
writes for its columnar row is not parsed, because it has that row's values and parsing takes ten times as long.

Entry points: `OpenedCohort`; `load_tokenizer`; `CohortRowScan`, `SourceScan`, `SampledNote` for results of reading.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from dataprep_assets.engine.checks.check import SAMPLED, draw_documents, require_ledger
from dataprep_assets.errors import FormatError, TokenizerError, count_of
from dataprep_assets.formats.packed_rows import PackedFile, find_row_defects, open_packed_file
from dataprep_assets.integrity.receipt import RETRACTED, Receipt
from dataprep_assets.pipelines.notes.cohorts.cohort_source import CohortFile, build_missing_file_error
from dataprep_assets.pipelines.notes.cohorts.packed_cohort import PackedCohort
from dataprep_assets.pipelines.notes.cohorts.packed_files import (
    RETRACTED_NOTES,
    RETRACTED_PATIENTS,
    PackedCohortFacts,
    PackedSplitCounts,
    list_packed_paths,
    read_patients,
)
from dataprep_assets.pipelines.notes.cohorts.row_shape import RowShape
from dataprep_assets.pipelines.notes.cohorts.spool import choose_split
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.privacy import hide_quoted_data
from dataprep_assets.pipelines.notes.reading import (
    DIGEST_BYTES,
    DroppedNote,
    Note,
    RecordStart,
    digest_note,
    read_notes,
)
from dataprep_assets.sources.cohorts import CohortReader
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stream.reencoding import Encode
from dataprep_assets.tokenization.bundle import TokenizerBundle, load_cached

SAMPLED_ROWS = 64
"""Number of sampled lines of a JSON Lines file, spread evenly; `files_intact` verifies other lines by digest."""

Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class SampledLines:
    """Number of lines in a file, columns of the sampled lines by line number (from 0), and verbatim lines.

    A verbatim line has exactly the bytes that the build writes for its columnar row. Columns of verbatim lines are
    int32, other columns are int64; shape ``(1, values)``.
    """

    count: int
    columns: Mapping[int, Columns]
    verbatim: frozenset[int]


def sample_lines(path: Path, rows: PackedFile, shape: RowShape, remedy: str) -> SampledLines:
    """Sample lines of the file ``path``: the first, the last, and lines between them; ``rows`` is the columnar file.

    ``shape`` is the common shape of the rows.

    Raises FormatError, with the ``remedy`` at the end, if the last line is truncated or a line is not a row.
    """
    sampled_numbers = set(np.linspace(0, max(len(rows) - 1, 0), min(len(rows), SAMPLED_ROWS)).astype(int).tolist())
    count, columns_by_line = 0, dict[int, Columns]()
    verbatim = set[int]()
    with open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                raise FormatError(f"{path}: line {count + 1} has no line end, so the file is truncated. {remedy}")
            if count in sampled_numbers:
                columns = _check_verbatim(line, rows, shape, count)
                if columns is not None:
                    verbatim.add(count)
                try:
                    columns_by_line[count] = columns or _parse(line)
                except (ValueError, TypeError, AttributeError, OverflowError):
                    # These errors mean that the line is not JSON, is not an object, or has a value that cannot be
                    # converted to an int64 array.
                    raise FormatError(f"{path}: line {count + 1} is not a row of integers. {remedy}") from None
            count += 1
    return SampledLines(count=count, columns=columns_by_line, verbatim=frozenset(verbatim))


def _check_verbatim(line: bytes, rows: PackedFile, shape: RowShape, position: int) -> Columns | None:
    try:
        block = rows.block(position, position + 1)
        if next(shape.encode_json_lines(block)) != line:
            return None
    except FormatError:  # the checks of the columnar file report the error
        return None
    stop = shape.count_stored_values(block)[0]
    return {name: column[:, :stop] for name, column in shape.values(block).items()}


def _parse(line: bytes) -> dict[str, NDArray[Any]]:
    return {name: np.array([values], np.int64) for name, values in orjson.loads(line).items()}


SAMPLED_RETRACTED = 8
"""Number of retracted notes per cohort for which the rows are searched."""
REBUILD = "Rebuild this partition of packed_cohorts"
Int64 = NDArray[np.int64]


def load_tokenizer(directory: Path, digest: str) -> TokenizerBundle:
    """Return the tokenizer with this digest; raise TokenizerError if its files have changed."""
    bundle = load_cached(directory)
    if bundle.digest != digest:
        raise TokenizerError(f"{directory}: the tokenizer changed during the checks. Run the checks again")
    return bundle


@dataclass(frozen=True, kw_only=True)
class CohortRowScan:
    """Content of one split's columnar file; ``used`` has the number of tokens of each row: int64, ``(rows,)``."""

    used: Int64
    segments: int
    tokens: int
    low: int | None
    high: int | None
    pads: int
    separators: int
    inner_separators: int
    bos_starts: int
    doubled_bos: int


@dataclass(frozen=True, kw_only=True)
class SampledNote:
    """A rendered note of the sample: its position in the cohort, the index of its split, its header and its text."""

    record: int
    number: int
    split: int
    header: str
    text: str

    def __repr__(self) -> str:
        return f"SampledNote({self.record}, {self.number})"


@dataclass(frozen=True, kw_only=True)
class SourceScan:
    """Current content of a cohort's source.

    `digest` is the file's digest in the form of the receipt. `notes` counts all notes, and `retracted` counts only
    retracted notes. `digests` are the patients with kept notes, `retracted_digests` the retracted patients, and
    `retracted_notes` the individually retracted notes. The rows must contain the notes in `sampled`, and must not
    contain the notes in `sampled_retracted`.
    """

    digest: str
    notes: int
    headers: int
    dropped: Mapping[str, int]
    patients: int
    patients_without_notes: int
    digests: frozenset[bytes]
    sampled: tuple[SampledNote, ...]
    retracted: int = 0
    retracted_digests: frozenset[bytes] = frozenset()
    retracted_notes: frozenset[bytes] = frozenset()
    sampled_retracted: tuple[SampledNote, ...] = ()

    def __repr__(self) -> str:
        return f"SourceScan({count_of(self.notes, 'note')})"


@dataclass(frozen=True, kw_only=True)
class OpenedCohort:
    """A packed cohort, opened for checks: its files, receipt and declaration.

    `retracted` are the digests of the patients and notes on the dataset's retraction list. `encode` is the fast engine
    for encoding notes again. The reference engine always encodes a few notes, or all notes without `encode`.
    """

    directory: Path
    receipt: Receipt
    notes: NotesDeclaration
    month: str
    bundle: TokenizerBundle
    file: CohortFile | None = None
    key: bytes = b""
    retracted: frozenset[bytes] = frozenset()
    encode: Encode | None = None
    cohort: PackedCohort | None = None

    def __repr__(self) -> str:
        return f"OpenedCohort({self.month})"

    @cached_property
    def scans(self) -> Mapping[str, CohortRowScan]:
        """Split → content of its columnar file.

        Raises FormatError for a row that is empty or too long, and for a damaged file.
        """
        return {name: self._scan(self.open_rows(name)) for name in list_packed_paths(self.notes, self.month)}

    def _scan(self, file: PackedFile) -> CohortRowScan:
        separator, bos, shape = self.facts.separator_id, self.facts.bos_id, self.shape
        counts: Counter[str] = Counter()
        # Start with an empty array, because `np.concatenate` needs at least one array.
        used_rows: list[Int64] = [np.zeros(0, np.int64)]
        lows, highs = [], []
        for block in file:
            used_rows.append(np.diff(block.rows))
            if defects := find_row_defects(block, shape.row_length):
                raise FormatError(f"{file.path}: {defects[0]}. {REBUILD}")
            # Count the separators at segment ends separately, because all other separators are within notes. Count BOS
            # only at segment starts, because any other BOS is within a note.
            starts, stops = block.bounds()
            is_separator = block.tokens == separator
            begins = starts[block.tokens[starts] == bos] if bos is not None else starts[:0]
            counts["rows"] += len(block)
            counts["segments"] += stops.size
            counts["tokens"] += block.tokens.size
            counts["pads"] += int(np.count_nonzero(block.tokens == shape.pad_id))
            counts["separators"] += int(np.count_nonzero(is_separator))
            counts["ends"] += int(np.count_nonzero(is_separator[stops - 1]))
            counts["bos"] += begins.size
            # Test the token after each BOS that begins a segment. Append -1, which is not the id of a token, because
            # such a BOS may be the last token of the block.
            counts["doubled"] += int(np.count_nonzero(np.append(block.tokens, -1)[begins + 1] == bos))
            lows.append(int(block.tokens.min()))
            highs.append(int(block.tokens.max()))
        return CohortRowScan(
            used=np.concatenate(used_rows),
            segments=counts["segments"],
            tokens=counts["tokens"],
            low=min(lows, default=None),
            high=max(highs, default=None),
            pads=counts["pads"],
            separators=counts["separators"],
            inner_separators=counts["separators"] - counts["ends"],
            bos_starts=counts["bos"],
            doubled_bos=counts["doubled"],
        )

    @cached_property
    def lines(self) -> Mapping[str, SampledLines]:
        """Split → counted and sampled lines of its JSON Lines file; raises FormatError if a file of rows is damaged."""
        paths = list_packed_paths(self.notes, self.month)
        return {
            name: sample_lines(self.directory / path.jsonl, self.open_rows(name), self.shape, REBUILD)
            for name, path in paths.items()
        }

    @cached_property
    def facts(self) -> PackedCohortFacts:
        """Facts in the receipt; raises IntegrityError if a fact is missing."""
        return PackedCohortFacts.from_receipt(self.receipt)

    @property
    def shape(self) -> RowShape:
        """The common shape of all rows."""
        return self.facts.shape

    def open_rows(self, split: str) -> PackedFile:
        """Open the columnar file of a split; raise FormatError if it is damaged."""
        return open_packed_file(self.directory / list_packed_paths(self.notes, self.month)[split].rows, masked=False)

    @property
    def splits(self) -> Mapping[str, PackedSplitCounts]:
        """Split → its counts in the receipt."""
        return self.facts.splits

    @cached_property
    def left_out(self) -> frozenset[bytes]:
        """The digests of the retracted patients, whose notes were left out."""
        return self._read_digests(RETRACTED_PATIENTS, DIGEST_BYTES)

    @cached_property
    def retracted_notes(self) -> frozenset[bytes]:
        """The digests of individually retracted notes, which were left out."""
        return self._read_digests(RETRACTED_NOTES, 2 * DIGEST_BYTES)

    def _read_digests(self, name: str, width: int) -> frozenset[bytes]:
        path = self.directory / name
        return frozenset(digest.tobytes() for digest in read_patients(path, width)) if path.exists() else frozenset()

    def _is_retracted(self, note: Note) -> bool:
        return note.patient in self.retracted or digest_note(self.key, note) in self.retracted

    @cached_property
    def source(self) -> SourceScan:
        """The current source, read to its end; raises the errors of the build."""
        if self.file is None:
            raise build_missing_file_error([self.month])
        with hide_quoted_data(self.month):
            return self._scan_source(self.file)

    def read_kept_notes(self) -> Iterator[SampledNote]:
        """Yield the notes of the current source that are not retracted; each call reads the source."""
        if self.file is None:
            raise build_missing_file_error([self.month])
        with hide_quoted_data(self.month):
            for item in self._read_notes(self.file.open_reader(self.file.fetch())):
                if isinstance(item, Note) and not self._is_retracted(item):
                    yield self._sample_note(item)

    def _read_notes(self, reader: CohortReader) -> Iterator[RecordStart | Note | DroppedNote]:
        fields, template = self.notes.cohorts.fields, self.notes.compile_header()
        return read_notes(reader, fields, template, key=self.key, month=self.month)

    def _sample_note(self, note: Note) -> SampledNote:
        return SampledNote(
            record=note.record,
            number=note.number,
            split=choose_split(note.patient, self.notes.splits.values()),
            header=note.header,
            text=note.text,
        )

    def _scan_source(self, file: CohortFile) -> SourceScan:
        """Read the whole source: count its notes, drops and patients, and sample notes."""
        ledger = require_ledger(self.receipt)
        rng = np.random.default_rng(int(digest_value(self.receipt.key)[:16], 16))
        # Include the notes dropped as `header_too_long`, because packing drops them only in the layout of the rows,
        # which this scan does not compute.
        kept_count = ledger.documents + ledger.dropped.get("header_too_long", 0)
        sampled_numbers = set(draw_documents(self.receipt.key, kept_count, SAMPLED).tolist())
        retracted_numbers = _choose_numbers(rng, ledger.dropped.get(RETRACTED, 0), SAMPLED_RETRACTED)
        reader = file.open_reader(file.fetch())
        counts: Counter[str] = Counter()
        drops: Counter[str] = Counter()
        patients: set[bytes] = set()
        # The key True is for retracted patients, and False is for patients with kept notes.
        digests: dict[bool, set[bytes]] = {False: set(), True: set()}
        single_notes: set[bytes] = set()
        samples: dict[bool, list[SampledNote]] = {False: [], True: []}
        for item in self._read_notes(reader):
            if isinstance(item, Note):
                is_retracted = self._is_retracted(item)
                kind = "retracted" if is_retracted else "kept"
                if counts[kind] in (retracted_numbers if is_retracted else sampled_numbers):
                    samples[is_retracted].append(self._sample_note(item))
                counts[kind] += 1
                counts["headers"] += bool(item.header)
                # Do not count a note of a retracted patient as individually retracted, even if the list also has an
                # entry for the note.
                if is_retracted and item.patient not in self.retracted:
                    single_notes.add(digest_note(self.key, item))
                else:
                    digests[is_retracted].add(item.patient)
            elif isinstance(item, RecordStart):
                patients.add(item.patient)
                counts["without"] += not item.notes
            else:
                drops[item.reason] += item.notes
        return SourceScan(
            digest=self.notes.source_digests(self.key).digest_of(reader.sha256),
            notes=counts["kept"] + counts["retracted"],
            headers=counts["headers"],
            dropped=dict(sorted(drops.items())),
            patients=len(patients),
            patients_without_notes=counts["without"],
            digests=frozenset(digests[False]),
            sampled=tuple(samples[False]),
            retracted=counts["retracted"],
            retracted_digests=frozenset(digests[True]),
            retracted_notes=frozenset(single_notes),
            sampled_retracted=tuple(samples[True]),
        )


def _choose_numbers(rng: np.random.Generator, count: int, max_numbers: int) -> set[int]:
    return set(rng.choice(count, min(max_numbers, count), replace=False).tolist()) if count else set()
