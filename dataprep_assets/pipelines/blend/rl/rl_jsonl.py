"""The artifact `<dataset>/rl_jsonl`, one partition per shard: RL records as JSON Lines."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import orjson

from dataprep_assets.bounds import report_progress
from dataprep_assets.engine.artifact.losses import (
    find_ledger_imbalance,
    find_unbalanced_lines,
    find_wrong_drops,
    find_wrong_quarantine,
    find_wrong_sums,
)
from dataprep_assets.engine.checks.check import (
    EVERY_DOCUMENT,
    FILES_INTACT,
    NO_RETRACTED,
    SHOWN,
    Check,
    Finding,
    OpenedPartition,
    build_verdict,
    require_ledger,
)
from dataprep_assets.engine.checks.scratch_rebuild import (
    choose_compared_by_content,
    find_byte_differences,
    rebuild_artifact,
)
from dataprep_assets.errors import ConfigError, FormatError, count_of
from dataprep_assets.execution.jobs import Outcome, run_tasks
from dataprep_assets.execution.pool import ON_PROCESSES, TaskEngine
from dataprep_assets.execution.progress import Progress
from dataprep_assets.formats.row_origins import ORIGINS, Origins, read_origins
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import RETRACTED, Receipt, Verification
from dataprep_assets.pipelines.blend.blend_shards import BlendShards
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.duplicates.duplicate_rows import DuplicateRows, load_duplicate_rows
from dataprep_assets.pipelines.blend.plan.blend_snapshot import load_shard_parts
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan
from dataprep_assets.pipelines.blend.removal.retracted_rows import ABOUT, no_retracted_row
from dataprep_assets.pipelines.blend.removal.row_ids import ReadRows, load_row_retractions
from dataprep_assets.pipelines.blend.rl.options import RESOLVE
from dataprep_assets.pipelines.blend.rl.placeholders import fetch_sources
from dataprep_assets.pipelines.blend.rl.shard import (
    QUARANTINE,
    VERSION,
    RlJsonlFacts,
    RlShard,
    build_rl_shard,
    encode_line,
    iterate_outcomes,
)
from dataprep_assets.pipelines.blend.rl.transforms import (
    DeclaredTransform,
    DeclaredTransforms,
    Record,
    build_fingerprint,
    compose_steps,
    list_declared_sources,
    parse_transforms,
)
from dataprep_assets.pipelines.blend.screening.contamination import KeptRowSearch, describe_origin
from dataprep_assets.pipelines.blend.screening.reasons import LEFT_OUT_BY
from dataprep_assets.pipelines.blend.screening.recorded_rules import load_recorded_rules
from dataprep_assets.pipelines.blend.screening.row_rules import RowRules, load_row_rules
from dataprep_assets.pipelines.blend.screening.row_screen import RowScreen, load_row_screen
from dataprep_assets.sources.readers.blocks import BlockReader
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stream.shard_job import build_whole_shard_jobs
from dataprep_assets.stream.token_stream import Fetch, SourcePart

_OUTPUT_COLUMNS = {
    "sft": {"input": "string", "output": "string"},
    "openai_chat": {"messages": "list<object>"},
    "sharegpt": {"conversations": "list<object>"},
    "nemotron_rl": {"messages": "list<object>", "tools": "list<object>"},
}
_DESCRIPTIONS = {
    "input": "Text of the question.",
    "output": "Text of the answer.",
    "system": "Text of the system message.",
    "messages": "Messages, each with a role and its content.",
    "conversations": "Messages in ShareGPT's form.",
    "tools": "Declared tools.",
}
_AS_IN_THE_SOURCE = "any"


def infer_columns(transforms: DeclaredTransforms) -> Mapping[str, str]:
    """Return the type of each column of the transforms' output, by name.

    The result is empty if the source or a user's function determines the columns. Columns that are copied from the
    source have the type `any`.
    """
    columns: dict[str, str] = {}
    try:
        for transform in parse_transforms(transforms):
            columns = _infer_columns_after(transform, columns)
    except ConfigError:  # the plan reports invalid transforms
        return {}
    return columns


def _infer_columns_after(transform: DeclaredTransform, types: Mapping[str, str]) -> dict[str, str]:
    if transform.name in ("passthrough", RESOLVE):
        return dict(types)
    options = transform.options
    if transform.name == "select" and isinstance(options, list):
        return {name: types.get(name, _AS_IN_THE_SOURCE) for name in options}
    if transform.name == "rename" and isinstance(options, Mapping):
        return {new: types.get(old, _AS_IN_THE_SOURCE) for new, old in options.items()}
    fields = dict(_OUTPUT_COLUMNS.get(transform.name, {}))
    if transform.name == "sft" and isinstance(options, Mapping) and options.get("system"):
        fields["system"] = "string"
    return fields


RL_JSONL = "rl_jsonl"
_REBUILD = "Rebuild this partition of rl_jsonl"


def prepare_rl_shards(
    blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, partitions: Iterable[str]
) -> list[RlShard]:
    """Download the placeholder sources; return the shards with these partition keys, ready to build.

    `blend` is the declaration, `store` contains the artifacts, and `plan` is the committed plan. Raises
    MissingArtifactError if a snapshot is missing.
    """
    options = blend.rl_options
    digests, retractions, screen = blend.source_digests(), load_row_retractions(blend), load_row_screen(blend)
    # Download the sources before computing the fingerprint, so that the key covers exactly the files that are read.
    placeholders = fetch_sources(list_declared_sources(options.transforms), blend.sources, digests)
    inputs_digest = digest_value(build_fingerprint(options.transforms, blend.sources, digests, placeholders))
    return [
        RlShard(
            artifact=blend.artifact(RL_JSONL, partition),
            store=store,
            files=load_shard_parts(blend, store, plan, partition),
            transforms=options.transforms,
            fingerprint=inputs_digest,
            placeholders=placeholders,
            compression=options.compression,
            bad_records=blend.bad_records.policy,
            budget=blend.bad_records.budget,
            source_bytes=plan.find_shard(partition)[1].total_bytes,
            salt=blend.force,
            rules=options.rules,
            level=blend.prove.level,
            retractions=retractions,
            row_rules=load_row_rules(blend, plan.find_shard(partition)[0].dataset.name),
            screen=screen,
            duplicates=load_duplicate_rows(blend, store, partition),
        ).compare_existing()
        for partition in partitions
    ]


def build_rl_shards(
    shards: Sequence[RlShard],
    *,
    workers: int,
    engine: TaskEngine = ON_PROCESSES,
    verification: Verification = "full",
    fetches: Mapping[str, Fetch] | None = None,
    progress: Progress | None = None,
    prepare: Callable[[], object] | None = None,
) -> Iterator[Outcome]:
    """Build the shards that are out of date, with one task per shard.

    Args:
        shards: The shards to build.
        workers: Number of workers.
        engine: The engine that runs the tasks.
        verification: How thoroughly a finished shard is verified before it is reused.
        fetches: Partition → function that downloads the shard's sources to a worker on a different machine.
        progress: Counts and shows the work; with None, nothing is shown.
        prepare: Loads what workers share, before they are forked.

    Yields each shard's outcome as soon as it is verified, built or failed. A failed shard does not stop the others. A
    shard whose workers keep dying stops the build (WorkerDiedError); finished shards are kept.
    """
    jobs = build_whole_shard_jobs(shards, build_rl_shard, verification, fetches)
    return run_tasks(jobs, workers=workers, engine=engine, progress=progress, prepare=prepare)


class OpenedRecords(OpenedPartition[RlShard]):
    """A shard of RL records that is opened for checks."""

    @property
    def sources(self) -> Sequence[SourcePart]:
        """The shard's source files."""
        return self.planned.sources

    @property
    def row_rules(self) -> RowRules | None:
        return self.planned.row_rules

    @property
    def kept_origins(self) -> Origins:
        """The ordinal of the source file and the row in it, for each record."""
        return read_origins(self.directory / ORIGINS, 2)

    def read_source(self, source: SourcePart, rows: set[int]) -> Iterator[tuple[int, Record]]:
        """Yield the records of some rows of a source file, with their row numbers."""
        read_row = self.planned.open_reader()
        for block in source.read_rows(only=rows, as_json=self.planned.reads_json) if rows else ():
            for number, values in zip(block.numbers, block.rows, strict=True):
                if isinstance(record := read_row(values, f"{source.label}: row {number}"), dict):
                    yield number, record

    @property
    def duplicates(self) -> DuplicateRows | None:
        """The records that are dropped as duplicates."""
        return self.planned.duplicates

    @property
    def screen(self) -> RowScreen | None:
        return self.planned.screen

    def search_kept_rows(self, search: KeptRowSearch) -> None:
        for number, line in enumerate(read_shard_lines(self.directory, self.receipt), 1):
            search.add(search.screen.select_texts(self._parse_line(number, line)))
        search.flush()
        origins = read_origins(self.directory / ORIGINS, 2)
        labels = {part.ordinal: part.label for part in self.planned.files}
        search.locate_leaks(lambda number: describe_origin(labels, origins, number))

    def _parse_line(self, number: int, line: bytes) -> Record:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            record = None
        if not isinstance(record, dict):
            raise FormatError(f"{self.name}: line {number} is not a JSON object. {_REBUILD}")
        return record


def ledger_balances(shard: OpenedRecords) -> Finding:
    """Check that each row is a record or was dropped for a reason, per file and in total; bad rows are quarantined."""
    ledger = require_ledger(shard.receipt)
    return build_verdict(
        _find_ledger_defects(shard.directory, shard.receipt),
        f"{count_of(ledger.rows_in, 'row')} read: {count_of(ledger.documents, 'record')} and "
        f"{count_of(sum(ledger.dropped.values()), 'dropped row')}. The counts add up for each source file.",
        _REBUILD,
        facts={"rows_in": ledger.rows_in, "records": ledger.documents, **ledger.dropped},
    )


def _find_ledger_defects(directory: Path, receipt: Receipt) -> Iterator[str]:
    # Add an empty `dropped`, because the facts of a file without dropped rows omit it.
    lines = [{"dropped": {}, **source.to_json()} for source in RlJsonlFacts.from_receipt(receipt).sources]
    yield from find_ledger_imbalance(receipt)
    yield from find_wrong_sums(receipt, lines, ("rows_in", "documents"))
    yield from find_unbalanced_lines(receipt, lines)
    yield from find_wrong_drops(replace(receipt, sources=tuple(lines)))
    drops = require_ledger(receipt).dropped
    bad_count = sum(count for reason, count in drops.items() if not reason.startswith((LEFT_OUT_BY, RETRACTED)))
    yield from find_wrong_quarantine(receipt, directory / QUARANTINE, bad_count)


def read_shard_lines(directory: Path, receipt: Receipt) -> Iterator[bytes]:
    """Yield each line of a shard's data file, including its line ending. Raises the errors of `read_lines`."""
    return read_lines(directory / RlJsonlFacts.from_receipt(receipt).file)


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield each line of a file, including its line ending. Raises FormatError if the last line has no line ending."""
    compression = "zstd" if path.suffix == ".zst" else None
    tail = b""
    for data in BlockReader(path, compression):
        # Keep the last piece, which may continue in the next block. It is empty if the block ends with a complete line.
        *lines, tail = (tail + data).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if tail:
        raise FormatError(f"{path}: the last line has no line end, so the file is truncated. {_REBUILD}")


def round_trip(shard: OpenedRecords) -> Finding:
    """Check that transforming the source rows again yields the lines of the file, byte for byte and in order.

    The check also compares `origins.npy` with the source file and row of each line. At the level `every document`, it
    also rebuilds the shard and compares all files, including the quarantine.
    """
    receipt = shard.receipt
    rules = load_recorded_rules(shard.row_rules, shard.directory / QUARANTINE)
    planned_shard = replace(shard.planned, row_rules=rules)
    new_count = stored_count = 0
    defects: list[str] = []
    origins = read_origins(shard.directory / ORIGINS, 2)
    for expected_line, line in zip_longest(
        _iterate_expected_lines(planned_shard), read_shard_lines(shard.directory, receipt)
    ):
        new_count, stored_count = new_count + (expected_line is not None), stored_count + (line is not None)
        if expected_line is None or line is None or len(defects) >= SHOWN:
            continue
        if line != expected_line.line:
            defects.append(f"line {new_count}, from {expected_line}: differs from the result of the transforms")
        elif new_count <= len(origins) and tuple(origins[new_count - 1].tolist()) != expected_line.origin:
            defects.append(f"line {new_count}, from {expected_line}: {ORIGINS} has a different file or row")
    receipt_count = require_ledger(receipt).documents
    if len(origins) != receipt_count:
        defects.append(f"{ORIGINS} has {count_of(len(origins), 'row')}, but the receipt has {receipt_count}")
    if len({new_count, stored_count, receipt_count}) > 1:
        defects.append(
            f"has {count_of(stored_count, 'line')}, but the source gives {count_of(new_count, 'record')} and "
            f"the receipt has {receipt_count}"
        )
    # Rebuild the shard, because the comparison of lines does not cover the dropped rows.
    if planned_shard.level == EVERY_DOCUMENT and not defects:

        def build(store: ArtifactStore) -> None:
            build_rl_shard(replace(planned_shard, store=store))

        with rebuild_artifact(planned_shard.artifact, planned_shard.store, build) as folder:
            left_out = choose_compared_by_content(receipt, {RlJsonlFacts.from_receipt(receipt).file})
            defects += find_byte_differences(shard.directory, folder, left_out=left_out)
    return build_verdict(
        (f"{shard.name}: {defect}" for defect in defects),
        f"Read and transformed the source again: the result matches {count_of(new_count, 'stored line')}.",
        f"The source or the transforms have changed since the build. {_REBUILD}",
        facts={"documents": new_count, "documents_compared": new_count, "level": planned_shard.level},
    )


class _ExpectedLine(NamedTuple):
    """A line that a source row should produce: the file's label and ordinal, the row, and the line's bytes."""

    file: str
    ordinal: int
    row: int
    line: bytes

    def __str__(self) -> str:
        return f"{self.file} row {self.row}"

    @property
    def origin(self) -> tuple[int, int]:
        """The line's row in `origins.npy`: the ordinal of the file, and the source row."""
        return self.ordinal, self.row


def _iterate_expected_lines(shard: RlShard) -> Iterator[_ExpectedLine]:
    steps, ids = compose_steps(shard.transforms, shard.placeholders, shard.rules), ReadRows(shard.retractions)
    for part in shard.files:
        for block in part.read_rows(as_json=shard.rules.reads_json):
            report_progress()
            for row, _, outcome, _ in iterate_outcomes(shard, part, block, steps, ids):
                if isinstance(outcome, dict):
                    try:
                        yield _ExpectedLine(part.label, part.ordinal, row, encode_line(outcome))
                    except (TypeError, ValueError):  # skip the record, because the build also rejects it
                        continue


def _no_retracted_row(shard: OpenedRecords) -> Finding:
    planned_shard = shard.planned
    return no_retracted_row(
        shard.directory,
        shard.receipt,
        planned_shard.retractions,
        planned_shard.files,
        as_json=planned_shard.rules.reads_json,
    )


RL_JSONL_CHECKS: tuple[Check[OpenedRecords], ...] = (
    FILES_INTACT,
    Check(
        "ledger_balances",
        "The count of rows read equals the records plus the rows dropped for each reason, in total and per source "
        "file.",
        ledger_balances,
    ),
    Check(
        "round_trip",
        (
            "Reading and transforming every source row again reproduces the stored lines, and the source row of "
            "each line."
        ),
        round_trip,
        version=3,
        samples=True,
    ),
    Check(NO_RETRACTED, ABOUT, _no_retracted_row),
)
RL_JSONL_SHARDS = BlendShards(
    name=RL_JSONL,
    description="Records of each shard, after the declared transforms.",
    kinds={"json"},
    shards=prepare_rl_shards,
    build=build_rl_shards,
    checks=RL_JSONL_CHECKS,
    open=OpenedRecords.open,
    version=VERSION,
    columns=lambda blend: infer_columns(blend.rl_options.transforms),
    column_descriptions=_DESCRIPTIONS,
)
