"""A shard of RL records: its sources and settings, its key, its facts, and how it is built.

The build applies the declared transforms to the rows of the source files, and writes each record as a line of compact
JSON in UTF-8, in source order. The file is `records.jsonl`, or `records.jsonl.zst` with one zstd frame and its
checksum. The receipt has the digest of the written bytes. A row that is not a record is dropped for a reason: the
transform that left it out, or its defect. `origins.npy` has the ordinal of the source file and the source row of each
record.
"""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import orjson
from pydantic import Field

from dataprep_assets.curation.benchmarks.columns import BENCHMARK
from dataprep_assets.curation.retractions import describe_ids
from dataprep_assets.curation.selection import DUPLICATE
from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.checks.check import SAMPLE, Level
from dataprep_assets.errors import BadRecordError, count_of
from dataprep_assets.execution.run_task import report_work
from dataprep_assets.formats.row_origins import ORIGINS, write_origins
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import RETRACTED, Ledger, Receipt, Verification
from dataprep_assets.pipelines.blend.duplicates.duplicate_rows import DuplicateRows, Partner
from dataprep_assets.pipelines.blend.removal.row_ids import (
    ReadRows,
    RowRetractions,
    find_current_retractions,
    write_row_ids,
)
from dataprep_assets.pipelines.blend.rl.apply_transforms import RefusedRecord, SkippedRecord, apply_transforms
from dataprep_assets.pipelines.blend.rl.options import OURS, RlRules
from dataprep_assets.pipelines.blend.rl.placeholders import PlaceholderFiles
from dataprep_assets.pipelines.blend.rl.transforms import Record, TransformStep, compose_steps
from dataprep_assets.pipelines.blend.screening.reasons import CHOSEN_REASONS, LEFT_OUT_BY, NO_PREFERENCE, NO_PROMPT
from dataprep_assets.pipelines.blend.screening.row_rules import RowRules
from dataprep_assets.pipelines.blend.screening.row_screen import RowScreen
from dataprep_assets.sources.readers.row_files import BadRecord
from dataprep_assets.sources.readers.rows import RowBlock
from dataprep_assets.sources.readers.unreadable import ADVICE, describe_place, format_budget_advice
from dataprep_assets.stores.files import canonical_json, digest_value, require_digest, sha256_file
from dataprep_assets.stream.declaration import find_exceeded_budget
from dataprep_assets.stream.token_stream import Fetch, ReadBytes, SourcePart, fetch_missing, find_unreadable_error
from dataprep_assets.table import format_share
from dataprep_assets.tokenization.chat.messages import NOT_JSON

VERSION = 6
QUARANTINE = "quarantine.jsonl"
_LEVEL = 3
_BATCH = 256
"""Number of rows to which rules are applied, and that are searched for benchmark items, together."""


@dataclass(frozen=True, kw_only=True)
class RlShard:
    """A shard, ready to build: its source files and the settings for its records. Instances are picklable.

    `budget` is the maximum share of rows that may be dropped as bad. A changed `salt` changes the key, which forces a
    rebuild. `retractions` has the kind of ids and the retraction list. `retracted` are the listed ids whose rows the
    shard has read. Before the build, they are known only from an existing shard. The key of the finished shard covers
    the actual ids. `exceeded_budget` is the budget, if the existing shard exceeds it. `row_rules` drop records,
    `screen` is the search for benchmark items, and `duplicates` are the records to drop as duplicates, if any.
    """

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
    rules: RlRules = OURS
    level: Level = SAMPLE
    retractions: RowRetractions = field(default_factory=RowRetractions)
    retracted: tuple[str, ...] = ()
    exceeded_budget: float | None = None
    row_rules: RowRules | None = None
    screen: RowScreen | None = None
    duplicates: DuplicateRows | None = None

    def compare_existing(self) -> Self:
        """Return a copy with the listed ids that the existing shard has read, and the budget if that exceeds it."""
        return replace(
            self,
            retracted=find_current_retractions(self.store, self.artifact, self.retractions),
            exceeded_budget=find_exceeded_budget(self.bad_records, self.budget, self.store, self.artifact, self.is_bad),
        )

    def is_bad(self, reason: str) -> bool:
        """Return whether rows that are dropped for a reason use up the budget."""
        rules = () if self.row_rules is None else self.row_rules.names
        return reason not in (*CHOSEN_REASONS, *rules) and not reason.startswith(LEFT_OUT_BY)

    @property
    def sources(self) -> tuple[SourcePart, ...]:
        """The source files."""
        return self.files

    @property
    def reads_json(self) -> bool:
        """Whether rows are read as JSON."""
        return self.rules.reads_json

    def open_reader(self) -> Callable[[Record, str], Record | str]:
        """Return a function that returns the record of a row at a location, or the reason why it has none."""
        return partial(_read_record, compose_steps(self.transforms, self.placeholders, self.rules), self.rules)

    @property
    def reading_key_parts(self) -> Mapping[str, Any]:
        """The values that decide which records are read from the sources, and their contents."""
        screening = [part.key_parts() for part in (self.row_rules, self.screen) if part is not None]
        return {"transforms": self.fingerprint, "rules": self.rules.changes, "screening": screening}

    def read_kept_rows(
        self, source: SourcePart, ids: ReadRows, only: Collection[int] | None = None
    ) -> Iterator[Mapping[int, Record]]:
        """Yield the records of a source that nothing drops, in blocks, by number.

        `ids` records the ids of all rows. If `only` some rows are read, the digest of the source is not verified.
        """
        steps = compose_steps(self.transforms, self.placeholders, self.rules)
        reader = source.read_rows(only=only, as_json=self.reads_json)
        for block in reader:
            outcomes = iterate_outcomes(self, source, block, steps, ids)
            yield {row.row: row.outcome for row in outcomes if isinstance(row.outcome, dict)}
        if only is None:
            require_digest(source.label, source.digests.digest_of(reader.sha256), source.sha256, "`blend_plan`")

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
        """Digest of everything that determines the shard's bytes."""
        files = [
            [
                f.label,
                f.sha256,
                f.format,
                f.compression,
                *([f.rows.first, f.rows.stop] if f.rows else []),
                *f.limits.values(),
            ]
            for f in self.files
        ]
        ids = [self.retractions.key_parts(), list(self.retracted)]
        policy: list[Any] = [self.compression, self.bad_records, self.salt, self.rules.changes, ids]
        # Add the budget only if it is exceeded, because it does not change the shard's bytes.
        policy += [] if self.exceeded_budget is None else [self.exceeded_budget]
        # Add what drops records only if it is declared, so that other shards keep their keys.
        policy += [part.key_parts() for part in (self.row_rules, self.screen, self.duplicates) if part is not None]
        return digest_value(["rl_jsonl", VERSION, self.fingerprint, policy, files])

    @property
    def recipe(self) -> Recipe:
        """The named values that the key covers."""
        return Recipe(
            artifact=self.artifact,
            key=self.key,
            version=VERSION,
            settings={
                "compression": self.compression,
                "bad_records.policy": self.bad_records,
                **({} if self.exceeded_budget is None else {"bad_records.budget": self.exceeded_budget}),
                **{name: limit for file in self.files for name, limit in file.limits.items()},
                **({"force": self.salt} if self.salt else {}),
                **{f"rl.{name}": value for name, value in self.rules.changes.items()},
                **self.retractions.key_parts(),
                **({} if self.row_rules is None else self.row_rules.key_parts()),
                **({} if self.screen is None else self.screen.key_parts()),
                **({} if self.duplicates is None else self.duplicates.key_parts()),
                **({"retracted": describe_ids(self.retracted)} if self.retracted else {}),
            },
            sources={
                "transforms": self.fingerprint,
                **{
                    f.label if f.rows is None else f"{f.label}[{f.rows.first}:{f.rows.stop}]": f.sha256
                    for f in self.files
                },
            },
        )


def _read_record(steps: Sequence[TransformStep], rules: RlRules, row: Record, location: str) -> Record | str:
    outcome = apply_transforms(row, steps, rules, location)
    if isinstance(outcome, SkippedRecord):
        return LEFT_OUT_BY + outcome.by
    return outcome.reason if isinstance(outcome, RefusedRecord) else outcome


_MAX_FIELDS = 100
OTHER_FIELDS = "other fields"
"""Name under which left-out fields are counted after the first 100 fields of a file."""


class RlSourceFacts(Facts):
    """Facts of a source file: its range of rows if the shard reads only a part, and its numbers of rows and records.

    `dropped` counts the other rows by reason. `fields` maps each field that a transform left out to the number of
    records that had the field.
    """

    file: str
    ordinal: int
    sha256: str
    rows_in: int
    documents: int
    rows: tuple[int, int | None] | None = None
    dropped: dict[str, int] = Field(default_factory=dict)
    fields: dict[str, int] = Field(default_factory=dict)


class RlJsonlFacts(Facts):
    """Facts of a shard. `file` is the name of the data file, and `records` is its number of lines.

    `retracted` are the ids (16 hex digits) on the retraction list whose rows were left out. `benchmarks` has the
    numbers of items of each declared benchmark.
    """

    file: str
    records: int
    compression: str
    retracted: tuple[str, ...] = ()
    benchmarks: dict[str, dict[str, int]] = Field(default_factory=dict)
    sources: tuple[RlSourceFacts, ...]


def build_rl_shard(
    shard: RlShard, verification: Verification = "full", fetch: Fetch | None = None
) -> tuple[Receipt, bool]:
    """Build one shard unless it is up to date. Runs in a worker.

    Args:
        shard: The shard to build.
        verification: How thoroughly a finished shard is verified before it is reused.
        fetch: Fetches source files that are missing in this machine's mirror.

    Returns:
        The receipt, and whether the shard was reused.
    """

    def write(staged: Path) -> WrittenFiles:
        fetch_missing(shard.files, fetch)
        return _write_shard(shard, staged)

    return ensure_built(shard.recipe, shard.store, write, verification)


@dataclass
class _Tally:
    """Counts of the outcomes of a shard's rows, and the rows' ids."""

    ids: ReadRows
    rows: int = 0
    records: int = 0
    blank: int = 0
    source_bytes: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    quarantine: list[dict[str, Any]] = field(default_factory=list)
    sources: list[RlSourceFacts] = field(default_factory=list)
    # Use arrays instead of lists to save memory, because a shard may have millions of records.
    ordinals: "array[int]" = field(default_factory=lambda: array("q"))
    row_numbers: "array[int]" = field(default_factory=lambda: array("q"))
    # These values are reset for each file: the place of its first bad row, whether any of its rows had a prompt, and
    # the number of its records per left-out field.
    first_bad: str = ""
    has_read: bool = False
    fields: Counter[str] = field(default_factory=Counter)

    def drop(self, part: SourcePart, record: BadRecord, words: str = "") -> None:
        """Count and quarantine a row; `words` describe the reason."""
        self.dropped[record.reason] += 1
        entry = {"file": part.label, "row": record.row, "byte": record.byte, "reason": record.reason}
        self.quarantine.append(entry | ({"words": words} if words else {}))

    def build_ledger(self) -> Ledger:
        """Return the counts as a ledger, in which documents are records."""
        return Ledger(
            rows_in=self.rows,
            documents=self.records,
            dropped=dict(sorted(self.dropped.items())),
            blank_lines=self.blank,
            source_bytes=self.source_bytes,
        )


def _write_shard(shard: RlShard, staged: Path) -> WrittenFiles:
    """Write the files of a shard into its staging directory; return the facts for its receipt."""
    tally = _Tally(ReadRows(shard.retractions))
    steps = compose_steps(shard.transforms, shard.placeholders, shard.rules)
    with open(staged / shard.file_name, "wb") as file:
        if shard.compression == "zstd":
            import zstandard

            compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, threads=0)
            with compressor.stream_writer(file, closefd=False) as compressed_file:
                _write_records(shard, steps, tally, compressed_file.write)
        else:
            _write_records(shard, steps, tally, file.write)
    ledger = tally.build_ledger()
    ledger.require_balance(str(shard.artifact))
    _check_budget(shard, tally)
    write_origins(staged / ORIGINS, [np.array(tally.ordinals, np.int64), np.array(tally.row_numbers, np.int64)])
    retracted = write_row_ids(staged, tally.ids.table, shard.retractions)
    if tally.quarantine:
        (staged / QUARANTINE).write_bytes(b"".join(canonical_json(q) + b"\n" for q in tally.quarantine))
    return WrittenFiles(
        inputs={f.label: f.sha256 for f in shard.files} | {"transforms": shard.fingerprint},
        facts=RlJsonlFacts(
            file=shard.file_name,
            records=tally.records,
            compression=shard.compression,
            **({} if shard.screen is None else shard.screen.record_facts()),
            **({"retracted": retracted} if retracted else {}),
            sources=tuple(tally.sources),
        ),
        ledger=ledger,
        recipe=replace(shard, retracted=retracted, exceeded_budget=None).recipe,
    )


def _write_records(
    shard: RlShard, steps: Sequence[TransformStep], tally: _Tally, write: Callable[[bytes], Any]
) -> None:
    """Write the records of all files of a shard, and count the outcomes of their rows in `tally`."""
    for part in shard.files:
        counts_before, dropped_before = (tally.rows, tally.records), Counter(tally.dropped)
        tally.first_bad, tally.has_read, tally.fields = "", False, Counter()
        reader = part.read_rows(as_json=shard.rules.reads_json)
        read_bytes = ReadBytes(part, reader)
        try:
            for block in reader:
                write(b"".join(_transform_lines(shard, part, block, steps, tally)))
                report_work(source_bytes=read_bytes.take(), documents=len(block.rows))
        except BadRecordError:
            # Verify the file first, because a damaged file must not be reported as a bad row.
            require_digest(part.label, part.digests.digest_of(sha256_file(part.path)), part.sha256, "`blend_plan`")
            _require_readable(shard, part, steps, tally)
            raise
        # Verify the bytes that were read, because the file may have changed since the snapshot.
        require_digest(part.label, part.digests.digest_of(reader.sha256), part.sha256, "`blend_plan`")
        _require_readable(shard, part, steps, tally)
        tally.source_bytes += reader.bytes_read
        optional_facts: dict[str, Any] = {"rows": (part.rows.first, part.rows.stop)} if part.rows else {}
        if drops := tally.dropped - dropped_before:
            optional_facts["dropped"] = dict(sorted(drops.items()))
        if tally.fields:
            optional_facts["fields"] = dict(sorted(tally.fields.items()))
        tally.sources.append(
            RlSourceFacts(
                file=part.label,
                ordinal=part.ordinal,
                sha256=part.sha256,
                rows_in=tally.rows - counts_before[0],
                documents=tally.records - counts_before[1],
                **optional_facts,
            )
        )


def _transform_lines(
    shard: RlShard, part: SourcePart, block: RowBlock, steps: Sequence[TransformStep], tally: _Tally
) -> Iterator[bytes]:
    """Yield the lines of the records of a block, and count the outcomes of its rows in `tally`."""
    tally.rows += len(block.rows) + len(block.bad)
    tally.blank += block.blank_lines
    for bad_row in block.bad:
        _refuse(shard, part, tally, bad_row)
    for row, byte, outcome, unread_fields in iterate_outcomes(shard, part, block, steps, tally.ids):
        if isinstance(outcome, RetractedRecord):
            tally.dropped[RETRACTED] += 1
            continue
        tally.has_read |= outcome != RefusedRecord(NO_PROMPT)
        if isinstance(outcome, SkippedRecord):
            tally.dropped[LEFT_OUT_BY + outcome.by] += 1
            continue
        if isinstance(outcome, RefusedRecord):
            _refuse(shard, part, tally, BadRecord(row, byte, outcome.reason))
            continue
        if isinstance(outcome, RuledRecord):
            tally.drop(part, BadRecord(row, byte, outcome.rule))
            continue
        if isinstance(outcome, LeakedRecord):
            tally.drop(part, BadRecord(row, byte, BENCHMARK), words=outcome.item)
            continue
        if isinstance(outcome, DuplicateRecord):
            tally.drop(part, BadRecord(row, byte, DUPLICATE), words=outcome.partner.words)
            continue
        try:
            line = encode_line(outcome)
        # The record cannot be written, for example because of an integer beyond 64 bits, half a surrogate pair,
        # infinity or NaN.
        except (TypeError, ValueError):
            _refuse(shard, part, tally, BadRecord(row, byte, NOT_JSON, _describe_unwritable(outcome)))
            continue
        tally.records += 1
        tally.ordinals.append(part.ordinal)
        tally.row_numbers.append(row)
        # Limit the number of field names in the receipt, because rows may have any number of different names.
        tally.fields.update(
            name if name in tally.fields or len(tally.fields) < _MAX_FIELDS else OTHER_FIELDS
            for name in dict.fromkeys(unread_fields)
        )
        yield line


@dataclass(frozen=True)
class RetractedRecord:
    """Outcome for a row on the retraction list."""


@dataclass(frozen=True)
class RuledRecord:
    """Outcome for a record that a rule drops, with the rule's name."""

    rule: str


@dataclass(frozen=True)
class LeakedRecord:
    """Outcome for a record that contains a benchmark item, with the item's name."""

    item: str


@dataclass(frozen=True)
class DuplicateRecord:
    """Outcome for a record that duplicates a kept record."""

    partner: Partner


class RowOutcome(NamedTuple):
    """Outcome for a source row: its number and byte, and the record or the reason why there is none.

    `unread_fields` are the fields that transforms left out although no option lists them.
    """

    row: int
    byte: int
    outcome: Record | SkippedRecord | RefusedRecord | RetractedRecord | RuledRecord | LeakedRecord | DuplicateRecord
    unread_fields: list[str]


def iterate_outcomes(
    shard: RlShard, part: SourcePart, block: RowBlock, steps: Sequence[TransformStep], ids: ReadRows
) -> Iterator[RowOutcome]:
    """Yield the outcome for each row of a block, and record the rows' ids."""
    rows = zip(block.rows, block.numbers, block.offsets, strict=True)
    outcomes = (_transform_row(shard, part, steps, ids, *row) for row in rows)
    if shard.row_rules is None and shard.screen is None and shard.duplicates is None:
        yield from outcomes
        return
    while batch := list(islice(outcomes, _BATCH)):
        if shard.row_rules is not None:
            batch = list(_replace_ruled(shard.row_rules, part.label, batch))
        if shard.screen is not None:
            batch = list(_replace_leaks(shard.screen, batch))
        if shard.duplicates is not None:
            batch = list(_replace_duplicates(shard.duplicates, part.ordinal, batch))
        yield from batch


def _transform_row(
    shard: RlShard,
    part: SourcePart,
    steps: Sequence[TransformStep],
    ids: ReadRows,
    record: Record,
    row: int,
    byte: int,
) -> RowOutcome:
    if ids.is_retracted(record, part.ordinal, row):
        return RowOutcome(row, byte, RetractedRecord(), [])
    unread_fields: list[str] = []
    outcome = apply_transforms(record, steps, shard.rules, f"{part.label}: row {row}", unread_fields.append)
    return RowOutcome(row, byte, outcome, unread_fields)


def _replace_ruled(rules: RowRules, file: str, outcomes: Sequence[RowOutcome]) -> Iterator[RowOutcome]:
    """Yield the outcomes, in which records that a rule drops are replaced."""
    records = {row.row: row.outcome for row in outcomes if isinstance(row.outcome, dict)}
    reasons = dict(zip(records, rules.find_reasons([*records.values()], file, [*records]), strict=True))
    for row in outcomes:
        rule = reasons.get(row.row)
        yield row if rule is None else row._replace(outcome=RuledRecord(rule))


def _replace_leaks(screen: RowScreen, outcomes: Sequence[RowOutcome]) -> Iterator[RowOutcome]:
    """Yield the outcomes, in which records that contain a benchmark item are replaced."""
    leaks = iter(screen.find_leaks([row.outcome for row in outcomes if isinstance(row.outcome, dict)]))
    for row in outcomes:
        item = next(leaks) if isinstance(row.outcome, dict) else None
        yield row if item is None else row._replace(outcome=LeakedRecord(item))


def _replace_duplicates(
    duplicates: DuplicateRows, ordinal: int, outcomes: Sequence[RowOutcome]
) -> Iterator[RowOutcome]:
    """Yield the outcomes, in which records that duplicate a kept record are replaced."""
    partners = duplicates.find_partners(ordinal, [row.row for row in outcomes])
    for row, partner in zip(outcomes, partners, strict=True):
        if partner is not None and isinstance(row.outcome, dict):
            row = row._replace(outcome=DuplicateRecord(partner))
        yield row


def encode_line(record: Record) -> bytes:
    """Return the line of a record. Raises TypeError or ValueError if JSON cannot represent the record.

    Infinity and NaN are searched for, because orjson silently writes them as `null`. Sources may contain them: JSON's
    `1e400` is read as infinity, and Parquet has both values.
    """
    line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
    # Search only records whose line has a null, because orjson writes infinity and NaN as null.
    if b"null" in line and _has_nonfinite(record):
        raise ValueError("a number that JSON cannot represent")
    return line


def _describe_unwritable(record: Record) -> str:
    """Return a text with the number and type of the first field that JSON cannot represent, and the reason.

    The text is empty if every field can be represented. It omits the field's name, which may be secret.
    """
    for number, (key, value) in enumerate(record.items(), 1):
        try:
            encode_line({key: value})
        except (TypeError, ValueError) as error:
            # Show only orjson's message about integers, which quotes no data. The other messages add little to the
            # type.
            reason = str(error).replace("Integer exceeds", ": an integer exceeds")
            return f"field {number}, of type {type(value).__name__}{reason if reason.startswith(':') else ''}"
    return ""


def _has_nonfinite(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_nonfinite, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_nonfinite, value))
    return isinstance(value, float) and not math.isfinite(value)


def _require_readable(shard: RlShard, part: SourcePart, steps: Sequence[TransformStep], tally: _Tally) -> None:
    """Raise BadRecordError if the current file has bad rows, and no row of the whole file has a prompt."""
    if tally.has_read or not tally.first_bad:
        return

    def has_prompts(part: SourcePart) -> bool:
        rows = (row for block in part.read_rows(as_json=shard.rules.reads_json) for row in block.rows)
        return any(apply_transforms(row, steps, shard.rules, part.label) != RefusedRecord(NO_PROMPT) for row in rows)

    if (error := find_unreadable_error(part, tally.first_bad, has_prompts)) is not None:
        raise error from None


_DESCRIPTIONS = {
    NO_PROMPT: "no prompt found",
    NO_PREFERENCE: "`chosen` and `rejected` are equal, or one is empty",
}


def _refuse(shard: RlShard, part: SourcePart, tally: _Tally, record: BadRecord) -> None:
    """Count and quarantine a bad row. Raises BadRecordError instead if the policy is `fail`."""
    tally.first_bad = tally.first_bad or describe_place(record)
    if shard.bad_records == "fail":
        sentence = f"{record}: {_DESCRIPTIONS[record.reason]}" if record.reason in _DESCRIPTIONS else str(record)
        hint = ". Set the location in `rl.prompt`" if record.reason == NO_PROMPT else ""
        byte = f", byte {record.byte}" if record.byte >= 0 else ""
        raise BadRecordError(
            f"{part.label}: row {record.row}{byte}: {sentence}{hint}. {ADVICE}",
            file=part.label,
            **record.position,
        )
    tally.drop(part, record)


def _check_budget(shard: RlShard, tally: _Tally) -> None:
    bad_rows = [entry for entry in tally.quarantine if shard.is_bad(entry["reason"])]
    bad_count = len(bad_rows)
    if bad_count and bad_count > shard.budget * tally.rows:
        entry = bad_rows[0]
        raise BadRecordError(
            f"{shard.artifact}: {bad_count} of {count_of(tally.rows, 'row')} would be dropped as bad, more than the "
            f"budget of {format_share(shard.budget)}. First error: {entry['file']}, row {entry['row']}: "
            f"{entry['reason']}. {format_budget_advice(bad_count, tally.rows)}"
        )
