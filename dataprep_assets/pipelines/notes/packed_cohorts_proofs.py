"""Proofs on one packed cohort: its JSON lines, its columnar rows, the digests of its patients, and the receipt.

Each proof recomputes from the bytes what the receipt claims, or from the source what the bytes should be. Files are
read in blocks and the source a patient at a time, so memory does not grow with the cohort. What a proof says names
records, notes, rows and positions: no token, no text, no identifier, no name of a source file.

The source is read once for `notes_recounted` and `round_trip`; the columnar file once for all that count tokens.

Entry points: `COHORT_PROOFS`, `prove_cohort`; `PackedMonth` for the proofs one by one.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from dataprep_assets.errors import DataprepError, FormatError
from dataprep_assets.graph.finding import Finding, Row, fact, files_intact, judged, ledger_of, name_of, verdict
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.packing.row_defects import find_row_defects
from dataprep_assets.packing.splitting import SplitRule, split
from dataprep_assets.pipelines.corpus import token_bins_proofs as token_bins
from dataprep_assets.pipelines.notes.cohort_source import CohortFile, no_file
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.packed_cohorts import QUARANTINE, CohortWork, packed_paths, read_patients
from dataprep_assets.pipelines.notes.packed_rows import PackedRowsFile, RowShape
from dataprep_assets.pipelines.notes.privacy import unquoting
from dataprep_assets.pipelines.notes.reading import DEFECTS, Note, Opened, read_notes
from dataprep_assets.pipelines.notes.spool import split_of
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.engines import ReferenceEngine

__all__ = [
    "COHORT_PROOFS",
    "PackedMonth",
    "certificate_valid",
    "ids_in_vocabulary",
    "jsonl_equals_rows",
    "ledger_balances",
    "notes_recounted",
    "patients_in_their_split",
    "prove_cohort",
    "round_trip",
    "rows_filled",
    "rows_valid",
    "separators_match_notes",
    "token_defects",
    "tokens_conserved",
]

COHORT_PROOFS: Mapping[str, str] = {
    "files_intact": "Every file has the size and digest of the receipt, and no file is unlisted.",
    "ledger_balances": "Notes in = notes kept + notes dropped by reason; what was dropped for a defect has its place.",
    "rows_valid": "No row is empty or too long; sampled JSON lines have every column, segments, positions and labels.",
    "ids_in_vocabulary": "Every id is below len(tokenizer), and none is the pad id, recomputed from the file.",
    "tokens_conserved": "Tokens of the notes, less truncated, plus repeated headers and overlaps, are in the rows.",
    "separators_match_notes": "One separator ends each note, and one BOS begins it; none is doubled or missing.",
    "jsonl_equals_rows": "The JSON lines are as many as the columnar rows, and sampled ones are equal.",
    "certificate_valid": "The engine that encoded the cohort was certified for it.",
    "notes_recounted": "Read again, the source has the notes, drops by reason, headers and patients of the receipt.",
    "round_trip": "Sampled notes, rendered and encoded again by the reference, are in the rows of their split.",
    "patients_in_their_split": "Each patient is in the one split that the keyed digest of the id decides.",
    "rows_filled": "No two rows would fit into one: padding is what the packing algorithm cannot avoid.",
}
"""Name of each proof of a packed cohort, and what it proves."""

SAMPLED_ROWS = 64
"""JSON lines that are parsed, spread over the file; the digests of `files_intact` cover the others."""
SAMPLED_NOTES = 16
_REBUILD = "Materialize this partition of packed_cohorts again"
Int64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class _Scan:
    """What one split's columnar file holds. ``used``: int64, tokens of each row."""

    shape: RowShape
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
class _Sampled:
    """A note of the sample; `chunks` are the parts of it that rows must hold."""

    record: int
    number: int
    split: int
    header: str
    text: str

    def __repr__(self) -> str:
        return f"_Sampled({self.record}, {self.number})"


@dataclass(frozen=True, kw_only=True)
class _Source:
    """What the source of a cohort holds now."""

    sha256: str
    notes: int
    headers: int
    dropped: Mapping[str, int]
    patients: int
    patients_without_notes: int
    digests: frozenset[bytes]
    sampled: tuple[_Sampled, ...]

    def __repr__(self) -> str:
        return f"_Source({self.notes} notes)"


@dataclass(frozen=True, kw_only=True)
class PackedMonth:
    """One packed cohort to prove: where its files lie, what its receipt says, and what was declared."""

    directory: Path
    receipt: Receipt
    notes: NotesDeclaration
    month: str
    bundle: TokenizerBundle
    file: CohortFile | None = None
    key: bytes = b""

    def __repr__(self) -> str:
        return f"PackedMonth({self.month})"

    @cached_property
    def scans(self) -> Mapping[str, _Scan]:
        """Split → what its columnar file holds; FormatError for a row that is empty or too long, or a damaged file."""
        paths = packed_paths(self.notes, self.month)
        return {name: self._scan(self.directory / path.rows) for name, path in paths.items()}

    def _scan(self, path: Path) -> _Scan:
        separator, bos = int(fact(self.receipt, "separator_id")), fact(self.receipt, "bos_id")
        file = PackedRowsFile(path)
        shape = file.shape
        counts: Counter[str] = Counter()
        used: list[Int64] = [np.zeros(0, np.int64)]
        lows, highs = [], []
        for block in file.blocks(shape.batch_rows):
            used.append(np.diff(block.ends))
            empty, long = np.flatnonzero(np.diff(block.offsets) == 0), np.flatnonzero(used[-1] > shape.row_length)
            first = counts["rows"]
            if empty.size:
                raise FormatError(f"{path}: row {first + empty[0]} is all padding. {_REBUILD}")
            if long.size or int(block.segments.min()) < 1:
                raise FormatError(f"{path}: a row from {first} on is too long or has an empty segment. {_REBUILD}")
            stops = np.cumsum(block.segments)
            starts, is_separator = stops - block.segments, block.tokens == separator
            begins = starts[block.tokens[starts] == bos] if bos is not None else starts[:0]
            counts["rows"] += len(block)
            counts["segments"] += stops.size
            counts["tokens"] += block.tokens.size
            counts["pads"] += int(np.count_nonzero(block.tokens == shape.pad_id))
            counts["separators"] += int(np.count_nonzero(is_separator))
            counts["ends"] += int(np.count_nonzero(is_separator[stops - 1]))
            counts["bos"] += begins.size
            counts["doubled"] += int(np.count_nonzero(np.append(block.tokens, -1)[begins + 1] == bos))
            lows.append(int(block.tokens.min()))
            highs.append(int(block.tokens.max()))
        return _Scan(
            shape=shape,
            used=np.concatenate(used),
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

    @property
    def splits(self) -> Mapping[str, Any]:
        """Split → its part of the receipt's facts."""
        of: Mapping[str, Any] = fact(self.receipt, "splits")
        return of

    @property
    def concatenated(self) -> bool:
        """Whether the rows are one stream of notes cut at row ends."""
        return self.notes.layout == "unpacked" or self.notes.packing.algorithm == "concat_then_split"

    @cached_property
    def source(self) -> _Source:
        """The source as it is now, read to its end; errors as the build has them."""
        if self.file is None:
            raise no_file([self.month])
        with unquoting(self.month):
            return self._read(self.file)

    def _read(self, file: CohortFile) -> _Source:
        kept = ledger_of(self.receipt).documents + ledger_of(self.receipt).dropped.get("header_too_long", 0)
        rng = np.random.default_rng(int(digest_value(self.receipt.key)[:16], 16))
        wanted = set(rng.choice(kept, min(SAMPLED_NOTES, kept), replace=False).tolist()) if kept else set()
        reader, shares = file.reader(file.fetch()), list(self.notes.splits.values())
        fields, template = self.notes.cohorts.fields, self.notes.header_template()
        counts: Counter[str] = Counter()
        dropped: Counter[str] = Counter()
        opened: set[bytes] = set()
        digests: set[bytes] = set()
        sampled = []
        for found in read_notes(reader, fields, template, key=self.key, month=self.month):
            if isinstance(found, Note):
                if counts["notes"] in wanted:
                    sampled.append(
                        _Sampled(
                            record=found.record,
                            number=found.number,
                            split=split_of(found.patient, shares),
                            header=found.header,
                            text=found.text,
                        )
                    )
                counts["notes"] += 1
                counts["headers"] += bool(found.header)
                digests.add(found.patient)
            elif isinstance(found, Opened):
                opened.add(found.patient)
                counts["without"] += not found.notes
            else:
                dropped[found.reason] += found.notes
        return _Source(
            sha256=reader.sha256,
            notes=counts["notes"],
            headers=counts["headers"],
            dropped=dict(sorted(dropped.items())),
            patients=len(opened),
            patients_without_notes=counts["without"],
            digests=frozenset(digests),
            sampled=tuple(sampled),
        )


def prove_cohort(work: CohortWork) -> dict[str, Finding]:
    """Every proof of one packed cohort; a missing one fails them all."""
    try:
        with unquoting(work.month):
            receipt, directory = work.store.require(work.artifact), work.store.local(work.artifact)
            bundle = TokenizerBundle.load(work.plan.stream.tokenizer)
    except DataprepError as error:  # a receipt that cannot be read is the finding
        return dict.fromkeys(COHORT_PROOFS, Finding(passed=False, summary=str(error)))
    packed = PackedMonth(
        directory=directory,
        receipt=receipt,
        notes=work.plan.notes,
        month=work.month,
        bundle=bundle,
        file=work.file,
        key=work.plan.key,
    )
    with unquoting(work.month):
        return {
            "files_intact": files_intact(packed.directory, packed.receipt, _REBUILD),
            "ledger_balances": ledger_balances(packed),
            "rows_valid": rows_valid(packed),
            "ids_in_vocabulary": ids_in_vocabulary(packed),
            "tokens_conserved": tokens_conserved(packed),
            "separators_match_notes": separators_match_notes(packed),
            "jsonl_equals_rows": jsonl_equals_rows(packed),
            "certificate_valid": certificate_valid(packed),
            "notes_recounted": notes_recounted(packed),
            "round_trip": round_trip(packed),
            "patients_in_their_split": patients_in_their_split(packed),
            "rows_filled": rows_filled(packed),
        }


@judged
def ledger_balances(packed: PackedMonth) -> Finding:
    """Notes in = kept + dropped; the quarantine has a place for every note that was dropped for a defect."""
    receipt, ledger = packed.receipt, ledger_of(packed.receipt)
    ledger.balance(name_of(receipt))
    in_splits = sum(of["documents"] for of in packed.splits.values())
    defective = {r: n for r, n in ledger.dropped.items() if r in DEFECTS}
    path = packed.directory / QUARANTINE
    quarantined: Counter[str] = Counter()
    for line in path.read_bytes().splitlines() if path.exists() else ():
        place = orjson.loads(line)
        quarantined[place["reason"]] += place["notes"]
    defects = []
    if in_splits != ledger.documents:
        defects.append(f"{name_of(receipt)}: its splits have {in_splits} notes, its ledger {ledger.documents}")
    if dict(quarantined) != defective:
        defects.append(f"{name_of(receipt)}: {QUARANTINE} has {dict(quarantined)}, the ledger {defective}")
    return verdict(
        defects,
        f"{ledger.rows_in} notes in, {ledger.documents} kept, {sum(ledger.dropped.values())} dropped.",
        _REBUILD,
        facts={"rows_in": ledger.rows_in, "documents": ledger.documents, "dropped": sum(ledger.dropped.values())},
        table=[{"reason": reason, "notes": count} for reason, count in ledger.dropped.items()] or None,
    )


def token_defects(columns: Mapping[str, NDArray[Any]], shape: RowShape, vocab_size: int) -> Iterator[str]:
    """What is wrong with some unpacked rows: name → array of shape ``(rows, L)``. Rows count from 0."""
    if set(columns) != {"tokens"} or columns["tokens"].shape[1:] != (shape.row_length,):
        yield f"its columns are {sorted(columns)}, unpacked rows have `tokens` of {shape.row_length} values alone"
        return
    tokens = columns["tokens"]
    wrong = (tokens < 0) | (tokens >= vocab_size)
    if wrong.any():
        row, at = np.argwhere(wrong)[0].tolist()
        yield f"row {row}, position {at}: the id is not below the vocabulary of {vocab_size}"
    padding = (tokens == shape.pad_id).all(axis=1)
    if padding.any():
        yield f"row {int(padding.argmax())} is all padding"


@judged
def rows_valid(packed: PackedMonth) -> Finding:
    """No row is empty or too long; sampled JSON lines hold the invariants of their layout (FORMATS A.9)."""
    defects, looked = [], 0
    for name, scan in packed.scans.items():
        path = packed_paths(packed.notes, packed.month)[name].jsonl
        if scan.shape.row_length != packed.notes.capacity or scan.shape.columns != packed.notes.columns:
            defects.append(f"{path}: rows of {scan.shape.row_length}, {packed.notes.capacity} are declared")
        for line, columns in _lines(packed.directory / path, len(scan.used))[1].items():
            looked += 1
            defects += [f"{path}: line {line + 1}: {d}" for d in _invalid(packed, scan, columns)]
    return verdict(
        defects,
        f"{sum(len(s.used) for s in packed.scans.values())} rows fit; {looked} JSON lines hold every invariant.",
        _REBUILD,
        facts={"rows": sum(len(s.used) for s in packed.scans.values()), "lines_examined": looked},
    )


def _invalid(packed: PackedMonth, scan: _Scan, columns: Mapping[str, NDArray[Any]]) -> Iterator[str]:
    if packed.notes.layout == "unpacked":
        yield from token_defects(columns, scan.shape, packed.bundle.vocab_size)
        return
    if unknown := sorted(columns.keys() ^ set(packed.notes.columns)):
        yield f"columns {unknown} are missing or not declared"
    for defect in find_row_defects(
        columns,
        row_length=scan.shape.row_length,
        pad_id=scan.shape.pad_id,
        vocab_size=packed.bundle.vocab_size,
        pad_is_reserved=not packed.notes.pad.may_occur,
    ):
        yield str(defect)


def _lines(path: Path, rows: int) -> tuple[int, Mapping[int, Mapping[str, NDArray[Any]]]]:
    """How many whole lines a file has, and the columns of sampled ones: the first, the last, and some between.

    FormatError for a last line that was cut and for one that is no row.
    """
    wanted = set(np.linspace(0, max(rows - 1, 0), min(rows, SAMPLED_ROWS)).astype(int).tolist())
    count, found = 0, {}
    with open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                raise FormatError(f"{path}: line {count + 1} has no end; the file was cut. {_REBUILD}")
            if count in wanted:
                try:
                    found[count] = {k: np.array([v], np.int64) for k, v in orjson.loads(line).items()}
                except (ValueError, TypeError, AttributeError, OverflowError):
                    raise FormatError(f"{path}: line {count + 1} is not a row of integers. {_REBUILD}") from None
            count += 1
    return count, found


@judged
def jsonl_equals_rows(packed: PackedMonth) -> Finding:
    """As many JSON lines as columnar rows and as the receipt says, and the sampled ones are equal."""
    defects, total, compared = [], 0, 0
    for name, path in packed_paths(packed.notes, packed.month).items():
        file = PackedRowsFile(packed.directory / path.rows)
        lines, sampled = _lines(packed.directory / path.jsonl, len(file))
        total += lines
        if not lines == len(file) == packed.splits[name]["rows"]:
            defects.append(
                f"{path.jsonl}: {lines} lines for {len(file)} columnar rows; the receipt says "
                f"{packed.splits[name]['rows']}"
            )
        for line, columns in sampled.items():
            compared += 1
            stored = file.block(line, line + 1).columns(file.shape)
            if stored.keys() != columns.keys():
                defects.append(f"{path.jsonl}: line {line + 1} has other columns than {path.rows}")
                continue
            different = [column for column in stored if not np.array_equal(stored[column], columns[column])]
            if different:
                defects.append(f"{path.jsonl}: line {line + 1}, column {different[0]}: not that of {path.rows}")
    return verdict(
        defects,
        f"{total} lines, as many as columnar rows; {compared} compared are equal.",
        _REBUILD,
        facts={"lines": total, "lines_compared": compared},
    )


@judged
def ids_in_vocabulary(packed: PackedMonth) -> Finding:
    """Every id is below len(tokenizer); no note holds the pad id unless declared; the ledger has the true range."""
    size, ledger = packed.bundle.vocab_size, ledger_of(packed.receipt)
    lows = [s.low for s in packed.scans.values() if s.low is not None]
    highs = [s.high for s in packed.scans.values() if s.high is not None]
    low, high = min(lows, default=None), max(highs, default=None)
    pads = sum(s.pads for s in packed.scans.values())
    defects = []
    if low is not None and high is not None and (low < 0 or high >= size):
        defects.append(f"{name_of(packed.receipt)}: ids are {low} to {high}, {packed.bundle.name} has {size}")
    if (low, high) != (ledger.min_id, ledger.max_id):
        defects.append(f"{name_of(packed.receipt)}: ids are {low} to {high}, its ledger says otherwise")
    if pads and not packed.notes.pad.may_occur:
        defects.append(f"{name_of(packed.receipt)}: {pads} tokens of notes are the reserved pad id")
    return verdict(
        defects,
        f"Ids are {low} to {high}, below {size}; {pads} tokens of notes are the pad id.",
        f"The rows were made with another tokenizer, or are damaged. {_REBUILD}",
        facts={"vocab_size": size, "pad_ids_in_notes": pads}
        | ({} if low is None or high is None else {"min_id": low, "max_id": high}),
    )


@judged
def tokens_conserved(packed: PackedMonth) -> Finding:
    """Tokens of notes − truncated + repeated headers + overlaps = tokens in rows, counted from the rows."""
    defects, table = [], list[Row]()
    for name, of in packed.splits.items():
        scan, books = packed.scans[name], of["tokens"]
        where = f"{name_of(packed.receipt)}: split {name}"
        made = books["in_documents"] - books["truncated"] + books["repeated_headers"] + books["overlap"]
        if made != books["in_rows"]:
            defects.append(f"{where}: its notes come to {made} tokens, its rows to {books['in_rows']}")
        counted = {
            "tokens": (scan.tokens, books["in_rows"]),
            "rows": (len(scan.used), of["rows"]),
            "segments": (scan.segments, of["segments"]),
            "padding": (len(scan.used) * scan.shape.row_length - scan.tokens, of["padding"]),
        }
        defects += [
            f"{where}: {a} {what} in the file, {b} in the receipt" for what, (a, b) in counted.items() if a != b
        ]
        table.append({"split": name, **books, "padding": counted["padding"][0]})
    in_rows, ledger = sum(scan.tokens for scan in packed.scans.values()), ledger_of(packed.receipt)
    if in_rows != ledger.tokens:
        defects.append(f"{name_of(packed.receipt)}: {in_rows} tokens in its rows, {ledger.tokens} in its ledger")
    return verdict(defects, f"{in_rows} tokens, none lost or added.", _REBUILD, facts={"tokens": in_rows}, table=table)


@judged
def separators_match_notes(packed: PackedMonth) -> Finding:
    """One separator ends each note and one BOS begins it, counted from the rows; none is doubled."""
    receipt, ledger = packed.receipt, ledger_of(packed.receipt)
    scans = list(packed.scans.values())
    found, inner = sum(s.separators for s in scans), sum(s.inner_separators for s in scans)
    defects = []
    where = name_of(receipt)
    # out of text they come only with `special_tokens: match`; then overlaps and headers may repeat them
    if not ledger.literal_separators:
        if found != ledger.separators:
            defects.append(f"{where}: {found} separators in its rows, {ledger.separators} notes have their end there")
        if inner:
            defects.append(f"{where}: {inner} separators are within a note: doubled, or out of its text")
    bos = fact(receipt, "bos_id")
    begins = sum(s.bos_starts for s in scans)
    if bos is not None and bos != fact(receipt, "separator_id"):
        every = sum(s.segments for s in scans)
        repeats = not packed.concatenated and packed.notes.long_notes.rule == "repeat_header"
        wanted = every if repeats else ledger.documents
        if begins != wanted:
            defects.append(f"{where}: {begins} segments begin with BOS, {wanted} should")
        if doubled := sum(s.doubled_bos for s in scans):
            defects.append(f"{where}: {doubled} segments begin with two BOS")
    return verdict(
        defects,
        f"{found} separators end {ledger.documents} notes"
        + ("." if bos is None else f", {begins} segments begin with BOS."),
        _REBUILD,
        facts={"separators": found, "documents": ledger.documents, "literal_separators": ledger.literal_separators},
    )


@judged
def certificate_valid(packed: PackedMonth) -> Finding:
    """As `token_bins.certificate_valid`. Of each note, header and text are encoded: two documents to an engine."""
    ledger = ledger_of(packed.receipt)
    encoded = 2 * (ledger.documents + ledger.dropped.get("header_too_long", 0))
    receipt = replace(packed.receipt, ledger=replace(ledger, documents=encoded))
    return token_bins.certificate_valid(receipt, packed.bundle, packed.notes.document.special_tokens)


@judged
def notes_recounted(packed: PackedMonth) -> Finding:
    """The source as it is now: the same file, with the notes, drops, headers and patients that the receipt has."""
    receipt, ledger, source = packed.receipt, ledger_of(packed.receipt), packed.source
    where = name_of(receipt)
    late = ledger.dropped.get("header_too_long", 0)
    expected = {
        "sha256": (source.sha256, receipt.inputs["cohort"]),
        "notes that are kept": (source.notes, ledger.documents + late),
        "notes": (source.notes + sum(source.dropped.values()), ledger.rows_in),
        "patients": (source.patients, fact(receipt, "patients")),
        "patients without notes": (source.patients_without_notes, fact(receipt, "patients_without_notes")),
    }
    defects = [f"{where}: the source has {what} {a}, the receipt {b}" for what, (a, b) in expected.items() if a != b]
    dropped = {r: n for r, n in ledger.dropped.items() if r != "header_too_long"}
    if source.dropped != dropped:
        defects.append(f"{where}: the source has drops {dict(source.dropped)}, the receipt {dropped}")
    stored = _digests(packed)
    strangers = len(stored - source.digests)
    if strangers or (not late and len(stored) != len(source.digests)):
        defects.append(
            f"{where}: {len(stored)} patients are in the rows, {len(source.digests)} of the source have notes, "
            f"{strangers} of the former are not among the latter"
        )
    missing = source.dropped.get("missing_metadata", 0)
    return verdict(
        defects,
        f"{source.notes} notes of {source.patients} patients, {source.headers} with a header, {missing} dropped "
        "because a field of theirs is missing.",
        f"The source or the key changed since the cohort was packed. {_REBUILD}",
        facts={
            "notes": source.notes,
            "with_header": source.headers,
            "without_header": source.notes - source.headers,
            "missing_metadata": missing,
            "patients": source.patients,
        },
    )


def _digests(packed: PackedMonth) -> set[bytes]:
    paths = packed_paths(packed.notes, packed.month).values()
    return {d for path in paths for d in _read(packed.directory / path.patients)}


def _read(path: Path) -> list[bytes]:
    return [digest.tobytes() for digest in read_patients(path)]


@judged
def patients_in_their_split(packed: PackedMonth) -> Finding:
    """Digests are sorted, distinct and counted; each is in the split that it decides, so in no other."""
    defects, total = [], 0
    shares = list(packed.notes.splits.values())
    for index, (name, path) in enumerate(packed_paths(packed.notes, packed.month).items()):
        digests = _read(packed.directory / path.patients)
        total += len(digests)
        if digests != sorted(set(digests)):
            defects.append(f"{path.patients}: its digests are not sorted, or one is there twice")
        if len(digests) != packed.splits[name]["patients"]:
            defects.append(
                f"{path.patients}: {len(digests)} patients, the receipt says {packed.splits[name]['patients']}"
            )
        if strays := sum(split_of(digest, shares) != index for digest in digests):
            defects.append(f"{path.patients}: {strays} patients are of another split than {name}")
    return verdict(
        (f"{name_of(packed.receipt)}: {d}" for d in defects),
        f"{total} patients, each in one of {len(shares)} splits.",
        _REBUILD,
        facts={"patients": total, "splits": len(shares)},
    )


@judged
def rows_filled(packed: PackedMonth) -> Finding:
    """What the packing algorithm promises of its rows, whatever the notes."""
    defects, table = [], list[Row]()
    algorithm = "concat_then_split" if packed.concatenated else packed.notes.packing.algorithm
    for name, scan in packed.scans.items():
        length, used = scan.shape.row_length, scan.used
        if algorithm == "concat_then_split":
            wasted = int(np.count_nonzero(used[:-1] < length))
            why = f"{wasted} rows before the last have padding"
        elif algorithm == "concatenative":
            wasted = int(np.count_nonzero(used[:-1] + used[1:] <= length))
            why = f"{wasted} pairs of neighbouring rows would fit into one"
        else:
            emptiest = np.partition(used, 1)[:2] if used.size > 1 else np.array([length])
            wasted = int(emptiest.sum() <= length and used.size > 1)
            why = "two rows would fit into one"
        if wasted:
            defects.append(f"{name_of(packed.receipt)}: split {name}: {why}, which {algorithm} never leaves")
        fill = scan.tokens / (used.size * length) if used.size else 1.0
        table.append({"split": name, "rows": int(used.size), "fill": round(fill, 6)})
    rows, tokens = sum(s.used.size for s in packed.scans.values()), sum(s.tokens for s in packed.scans.values())
    positions = rows * packed.notes.capacity
    fill = round(tokens / positions, 6) if rows else 1.0
    return verdict(
        defects, f"{rows} rows, filled to {fill}.", _REBUILD, facts={"rows": rows, "fill": fill}, table=table
    )


@judged
def round_trip(packed: PackedMonth) -> Finding:
    """Sampled notes, read again from the source, rendered and encoded by the reference, are in their split's rows.

    The sample is seeded by the receipt's key, so a failure repeats. Messages name record, note and chunk.
    """
    receipt, sampled = packed.receipt, packed.source.sampled
    reference = ReferenceEngine(packed.bundle, packed.notes.document.special_tokens)
    separator, bos = int(fact(receipt, "separator_id")), fact(receipt, "bos_id")
    defects, compared = [], 0
    names = list(packed.notes.splits)
    for index, name in enumerate(names):
        notes = [note for note in sampled if note.split == index]
        headers = [([] if bos is None else [bos]) + _ids(reference, note.header) for note in notes]
        bodies = [[*_ids(reference, note.text), separator] for note in notes]
        wanted, at_chunk = _pieces(packed, headers, bodies)
        path = packed.directory / packed_paths(packed.notes, packed.month)[name].rows
        found = _stream_has(path, wanted) if packed.concatenated else _segments_have(path, wanted)
        compared += len(notes)
        for (note, chunk), there in zip(at_chunk, found, strict=True):
            if not there:
                place = notes[note]
                defects.append(
                    f"record {place.record}, note {place.number}: its chunk {chunk + 1} is not in the rows of {name}"
                )
    return verdict(
        (f"{name_of(receipt)}: {d}" for d in defects),
        f"{compared} notes, rendered and encoded again by the reference, are in the rows.",
        f"Source, template or tokenizer changed since it was packed. {_REBUILD}",
        facts={"notes_compared": compared, "notes": packed.source.notes},
    )


def _ids(reference: ReferenceEngine, text: str) -> list[int]:
    ids: list[int] = reference.encode([text])[0].tolist()
    return ids


def _pieces(
    packed: PackedMonth, headers: Sequence[list[int]], bodies: Sequence[list[int]]
) -> tuple[list[bytes], list[tuple[int, int]]]:
    """The bytes (int32) that rows must hold one after another, and of which note and chunk each is."""
    if packed.concatenated:
        whole = [np.array(h + b, "<i4").tobytes() for h, b in zip(headers, bodies, strict=True)]
        return whole, [(note, 0) for note in range(len(whole))]
    rule = SplitRule(
        rule=packed.notes.long_notes.rule,
        row_length=packed.notes.capacity,
        overlap=packed.notes.long_notes.overlap,
    )
    chunks = split(np.array([len(h) for h in headers], np.int64), np.array([len(b) for b in bodies], np.int64), rule)
    pieces, places = [], []
    before: Counter[int] = Counter()
    for note, start, stop, header in zip(
        chunks.documents.tolist(), chunks.starts.tolist(), chunks.stops.tolist(), chunks.with_header, strict=True
    ):
        pieces.append(np.array([*(headers[note] if header else ()), *bodies[note][start:stop]], "<i4").tobytes())
        places.append((note, before[note]))
        before[note] += 1
    return pieces, places


def _segments_have(path: Path, wanted: Sequence[bytes]) -> list[bool]:
    """Which of these are whole segments of a file of packed rows."""
    file, missing = PackedRowsFile(path), set(wanted)
    lengths = np.unique(np.array([len(piece) // 4 for piece in wanted], np.int64))
    for block in file.blocks(file.shape.batch_rows) if wanted else ():
        stops = np.cumsum(block.segments)
        for at in np.flatnonzero(np.isin(block.segments, lengths)).tolist():
            piece = block.tokens[stops[at] - block.segments[at] : stops[at]].astype("<i4", copy=False)
            missing.discard(piece.tobytes())
    return [piece not in missing for piece in wanted]


def _stream_has(path: Path, wanted: Sequence[bytes]) -> list[bool]:
    """Which of these are in the tokens of all rows, read as one stream."""
    file, missing, carried = PackedRowsFile(path), set(wanted), b""
    keep = max((len(piece) for piece in wanted), default=4) - 4
    for block in file.blocks(file.shape.batch_rows) if wanted else ():
        stream = carried + block.tokens.astype("<i4", copy=False).tobytes()
        missing = {piece for piece in missing if not _aligned(stream, piece)}
        carried = stream[len(stream) - min(keep, len(stream)) :]
    return [piece not in missing for piece in wanted]


def _aligned(stream: bytes, piece: bytes) -> bool:
    at = stream.find(piece)
    while at >= 0 and at % 4:
        at = stream.find(piece, at + 1)
    return at >= 0
