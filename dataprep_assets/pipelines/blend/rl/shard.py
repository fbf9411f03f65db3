"""One shard of RL records: applies the declared transforms to the records of its source files, and writes JSON Lines.

Lines are compact JSON in UTF-8, one record each, in source order. The file is `records.jsonl`, or `records.jsonl.zst`
as one zstd frame with its checksum. The receipt has the digest of the file as written. Every row is a record, or is
dropped with a reason: the transform that left it out, or its defect.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import Field

from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.checks.check import SAMPLE, Level
from dataprep_assets.errors import BadRecordError, count_of
from dataprep_assets.execution.run_task import report
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Ledger, Receipt, Verification
from dataprep_assets.pipelines.blend.rl.apply_transforms import (
    LEFT_OUT_BY,
    NO_PREFERENCE,
    NO_PROMPT,
    Refused,
    SkippedRecord,
    apply_transforms,
)
from dataprep_assets.pipelines.blend.rl.options import OURS, RlRules
from dataprep_assets.pipelines.blend.rl.placeholders import PlaceholderFiles
from dataprep_assets.pipelines.blend.rl.transforms import Record, TransformStep, compose
from dataprep_assets.sources.readers.row_files import BadRecord
from dataprep_assets.sources.readers.rows import RowBlock
from dataprep_assets.sources.readers.unreadable import place_of
from dataprep_assets.stores.files import canonical_json, digest_value, require_digest, sha256_file
from dataprep_assets.stream.token_stream import Fetch, SourcePart, fetch_missing, unreadable_part

# Version 2 added counts of dropped rows by file and reason to the receipt, with the same records as version 1.
VERSION = 3
QUARANTINE = "quarantine.jsonl"
_LEVEL = 3


@dataclass(frozen=True, kw_only=True)
class RlShard:
    """One shard to build: its source files and the settings for its records. Picklable.

    `budget` is the maximum share of rows that may be dropped as bad. A changed `salt` changes the key, which forces a
    rebuild.
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
        policy = [self.compression, self.bad_records, self.budget, self.salt, self.rules.changes]
        return digest_value(["rl_jsonl", VERSION, self.fingerprint, policy, files])

    @property
    def recipe(self) -> Recipe:
        """The named values whose digest is the key."""
        return Recipe(
            artifact=self.artifact,
            key=self.key,
            version=VERSION,
            settings={
                "compression": self.compression,
                "bad_records.policy": self.bad_records,
                "bad_records.budget": self.budget,
                **{name: limit for file in self.files for name, limit in file.limits.items()},
                **({"force": self.salt} if self.salt else {}),
                **{f"rl.{name}": value for name, value in self.rules.changes.items()},
            },
            sources={
                "transforms": self.fingerprint,
                **{
                    f.label if f.rows is None else f"{f.label}[{f.rows.first}:{f.rows.stop}]": f.sha256
                    for f in self.files
                },
            },
        )


class RlSourceFacts(Facts):
    """A source file, with its range of rows if only a part is read, and its numbers of rows and records.

    `dropped` counts the other rows by reason.
    """

    file: str
    ordinal: int
    sha256: str
    rows_in: int
    documents: int
    rows: tuple[int, int | None] | None = None
    dropped: dict[str, int] = Field(default_factory=dict)


class RlJsonlFacts(Facts):
    """Facts of a shard: `file` is the name of the data file, `records` its number of lines."""

    file: str
    records: int
    compression: str
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
        return _write(shard, staged)

    return ensure(shard.recipe, shard.store, write, verification)


@dataclass
class _Tally:
    """Counts of the outcomes of a shard's rows."""

    rows: int = 0
    records: int = 0
    blank: int = 0
    source_bytes: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    quarantine: list[dict[str, Any]] = field(default_factory=list)
    sources: list[RlSourceFacts] = field(default_factory=list)
    # for the current file: the position and reason of its first bad row, and whether any row had a prompt
    first_bad: str = ""
    has_read: bool = False

    def ledger(self) -> Ledger:
        """Return the counts as a ledger, in which documents are records."""
        return Ledger(
            rows_in=self.rows,
            documents=self.records,
            dropped=dict(sorted(self.dropped.items())),
            blank_lines=self.blank,
            source_bytes=self.source_bytes,
        )


def _write(shard: RlShard, staged: Path) -> WrittenFiles:
    tally = _Tally()
    steps = compose(shard.transforms, shard.placeholders, shard.rules)
    with open(staged / shard.file_name, "wb") as file:
        if shard.compression == "zstd":
            import zstandard

            compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, threads=0)
            with compressor.stream_writer(file, closefd=False) as out:
                _write_records(shard, steps, tally, out.write)
        else:
            _write_records(shard, steps, tally, file.write)
    ledger = tally.ledger()
    ledger.balance(str(shard.artifact))
    _check_budget(shard, tally)
    if tally.quarantine:
        (staged / QUARANTINE).write_bytes(b"".join(canonical_json(q) + b"\n" for q in tally.quarantine))
    return WrittenFiles(
        inputs={f.label: f.sha256 for f in shard.files} | {"transforms": shard.fingerprint},
        facts=RlJsonlFacts(
            file=shard.file_name,
            records=tally.records,
            compression=shard.compression,
            sources=tuple(tally.sources),
        ),
        ledger=ledger,
    )


def _write_records(
    shard: RlShard, steps: Sequence[TransformStep], tally: _Tally, write: Callable[[bytes], Any]
) -> None:
    for part in shard.files:
        before, dropped_before = (tally.rows, tally.records), Counter(tally.dropped)
        tally.first_bad, tally.has_read = "", False
        reader = part.read_rows()
        read = 0
        try:
            for block in reader:
                write(b"".join(_lines(shard, part, block, steps, tally)))
                report(source_bytes=reader.bytes_read - read, documents=len(block.rows))
                read = reader.bytes_read
        except BadRecordError:
            # a damaged file must not be reported as a bad row
            require_digest(part.label, part.digests.digest_of(sha256_file(part.path)), part.sha256, "`blend_plan`")
            _require_readable(shard, part, steps, tally)
            raise
        # digested while it was read, so the bytes that were read are the snapshot's
        require_digest(part.label, part.digests.digest_of(reader.sha256), part.sha256, "`blend_plan`")
        _require_readable(shard, part, steps, tally)
        tally.source_bytes += reader.bytes_read
        optional_facts: dict[str, Any] = {"rows": (part.rows.first, part.rows.stop)} if part.rows else {}
        if drops := tally.dropped - dropped_before:
            optional_facts["dropped"] = dict(sorted(drops.items()))
        tally.sources.append(
            RlSourceFacts(
                file=part.label,
                ordinal=part.ordinal,
                sha256=part.sha256,
                rows_in=tally.rows - before[0],
                documents=tally.records - before[1],
                **optional_facts,
            )
        )


def _lines(
    shard: RlShard, part: SourcePart, block: RowBlock, steps: Sequence[TransformStep], tally: _Tally
) -> Iterator[bytes]:
    tally.rows += len(block.rows) + len(block.bad)
    tally.blank += block.blank_lines
    for bad in block.bad:
        _refuse(shard, part, tally, bad)
    for record, row, byte in zip(block.rows, block.numbers, block.offsets, strict=True):
        outcome = apply_transforms(record, steps, shard.rules, f"{part.label}: row {row}")
        tally.has_read |= outcome != Refused(NO_PROMPT)
        if isinstance(outcome, SkippedRecord):
            tally.dropped[LEFT_OUT_BY + outcome.by] += 1
            continue
        if isinstance(outcome, Refused):
            _refuse(shard, part, tally, BadRecord(row, byte, outcome.reason))
            continue
        try:
            line = compact_line(outcome)
        # the record has an integer beyond 64 bits, half a surrogate pair, infinity, NaN, or a type that JSON lacks
        except (TypeError, ValueError):
            _refuse(shard, part, tally, BadRecord(row, byte, "not_json", _not_written(outcome)))
            continue
        tally.records += 1
        yield line


def compact_line(record: Record) -> bytes:
    """Return the line of a record; raise TypeError or ValueError if it cannot be written as JSON.

    orjson silently writes infinity and NaN as `null`. JSON's `1e400` is read as infinity, and Parquet may contain both.
    """
    line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
    # only a line with a null can hide one, so most records are not searched
    if b"null" in line and _holds_not_finite(record):
        raise ValueError("a number that JSON cannot represent")
    return line


def _not_written(record: Record) -> str:
    """Return number and type of the first field that JSON cannot represent; its name is omitted, as it may be
    secret."""
    for number, (key, value) in enumerate(record.items(), 1):
        try:
            compact_line({key: value})
        except (TypeError, ValueError):
            return f"field {number}, of type {type(value).__name__}"
    return ""


def _holds_not_finite(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_not_finite, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_holds_not_finite, value))
    return isinstance(value, float) and not math.isfinite(value)


def _require_readable(shard: RlShard, part: SourcePart, steps: Sequence[TransformStep], tally: _Tally) -> None:
    """Raise BadRecordError if the current file has rows, but none is a record with a prompt."""
    if tally.has_read or not tally.first_bad:
        return

    def has_prompts(whole: SourcePart) -> bool:
        rows = (row for block in whole.read_rows() for row in block.rows)
        return any(apply_transforms(row, steps, shard.rules, part.label) != Refused(NO_PROMPT) for row in rows)

    if (error := unreadable_part(part, tally.first_bad, has_prompts)) is not None:
        raise error from None


_TOLD = {
    NO_PROMPT: "no prompt found",
    NO_PREFERENCE: "`chosen` and `rejected` are equal, or one is empty",
}


def _refuse(shard: RlShard, part: SourcePart, tally: _Tally, bad: BadRecord) -> None:
    tally.first_bad = tally.first_bad or place_of(bad)
    if shard.bad_records == "fail":
        sentence = f"{bad}: {_TOLD[bad.reason]}" if bad.reason in _TOLD else str(bad)
        hint = ", set the location in `rl.prompt`" if bad.reason == NO_PROMPT else ""
        byte = f", byte {bad.byte}" if bad.byte >= 0 else ""
        raise BadRecordError(
            f"{part.label}: row {bad.row}{byte}: {sentence}. Correct the source{hint}, or set `bad_records: {{policy: "
            "drop}` to count and skip such rows",
            file=part.label,
            **bad.position,
        )
    tally.dropped[bad.reason] += 1
    tally.quarantine.append({"file": part.label, "row": bad.row, "byte": bad.byte, "reason": bad.reason})


def _check_budget(shard: RlShard, tally: _Tally) -> None:
    bad = len(tally.quarantine)
    if bad and bad > shard.budget * tally.rows:
        entry = tally.quarantine[0]
        raise BadRecordError(
            f"{shard.artifact}: {bad} of {count_of(tally.rows, 'row')} would be dropped as bad, more than the budget "
            f"of {shard.budget:.4%}. First error: {entry['file']}, row {entry['row']}: {entry['reason']}. Correct "
            "the source, or raise `bad_records.budget`"
        )
