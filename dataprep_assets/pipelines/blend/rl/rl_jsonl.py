"""RL records (`<dataset>/rl_jsonl`, one partition per shard), one JSON line each."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from dataprep_assets.bounds import alive
from dataprep_assets.engine.artifact.losses import (
    unbalanced,
    unbalanced_lines,
    wrong_drops,
    wrong_quarantine,
    wrong_sums,
)
from dataprep_assets.engine.checks.check import (
    EVERY_DOCUMENT,
    FILES_INTACT,
    SHOWN,
    Check,
    Finding,
    OpenedPartition,
    ledger_of,
    verdict,
)
from dataprep_assets.engine.checks.scratch_rebuild import by_content, made_again, other_bytes
from dataprep_assets.errors import ConfigError, FormatError, count_of
from dataprep_assets.execution.jobs import Outcome, run_tasks
from dataprep_assets.execution.pool import ON_PROCESSES, TaskEngine
from dataprep_assets.execution.progress import Progress
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt, Verification
from dataprep_assets.pipelines.blend.blend_shards import BlendShards
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.blend_snapshot import shard_parts
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan
from dataprep_assets.pipelines.blend.rl.apply_transforms import LEFT_OUT_BY, Refused, SkippedRecord, apply_transforms
from dataprep_assets.pipelines.blend.rl.options import RESOLVE
from dataprep_assets.pipelines.blend.rl.placeholders import fetch_sources
from dataprep_assets.pipelines.blend.rl.shard import (
    QUARANTINE,
    VERSION,
    RlJsonlFacts,
    RlShard,
    build_rl_shard,
    compact_line,
)
from dataprep_assets.pipelines.blend.rl.transforms import (
    Declared,
    DeclaredTransform,
    compose,
    declared_sources,
    fingerprint,
    parse,
)
from dataprep_assets.sources.readers.blocks import BlockReader
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stream.shard_job import whole_shard_jobs
from dataprep_assets.stream.token_stream import Fetch

_MADE = {
    "sft": {"input": "string", "output": "string"},
    "openai_chat": {"messages": "list<object>"},
    "sharegpt": {"conversations": "list<object>"},
    "nemotron_rl": {"messages": "list<object>", "tools": "list<object>"},
}
_AS_IN_THE_SOURCE = "any"


def columns_after(declared: Declared) -> Mapping[str, str]:
    """Return name → type of each column of the transforms' output; empty if the source or a user function decides.

    Columns copied from the source have the type `any`.
    """
    columns: dict[str, str] = {}
    try:
        for transform in parse(declared):
            columns = _after(transform, columns)
    except ConfigError:  # the plan reports such transforms
        return {}
    return columns


def _after(transform: DeclaredTransform, before: Mapping[str, str]) -> dict[str, str]:
    if transform.name in ("passthrough", RESOLVE):
        return dict(before)
    options = transform.options
    if transform.name == "select" and isinstance(options, list):
        return {name: before.get(name, _AS_IN_THE_SOURCE) for name in options}
    if transform.name == "rename" and isinstance(options, Mapping):
        return {new: before.get(old, _AS_IN_THE_SOURCE) for new, old in options.items()}
    fields = dict(_MADE.get(transform.name, {}))
    if transform.name == "sft" and isinstance(options, Mapping) and options.get("system"):
        fields["system"] = "string"
    return fields


RL_JSONL = "rl_jsonl"
_REBUILD = "Materialize this partition of rl_jsonl again"


def rl_shards(
    blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, partitions: Iterable[str]
) -> list[RlShard]:
    """Return the shards with these partition keys, ready to build, with placeholder sources fetched.

    `blend` is the declaration, `store` contains the artifacts, and `plan` is the committed plan. Raises
    MissingArtifactError without a snapshot.
    """
    options = blend.rl_options
    digests = blend.source_digests()
    # fetched before the fingerprint, so that the key describes exactly the files that are read
    placeholders = fetch_sources(declared_sources(options.transforms), blend.sources, digests)
    made_of = digest_value(fingerprint(options.transforms, blend.sources, digests, placeholders))
    return [
        RlShard(
            artifact=blend.artifact(RL_JSONL, partition),
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
            rules=options.rules,
            level=blend.prove.level,
        )
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
) -> Iterator[Outcome]:
    """Build the shards that are out of date, one task each.

    Args:
        shards: The shards to build.
        workers: Number of workers.
        engine: The engine that runs the tasks.
        verification: How thoroughly a finished shard is verified before it is reused.
        fetches: Partition → a function that fetches its sources to a worker on another machine.
        progress: Counts and shows the work. None shows nothing.

    Yields each shard's outcome as soon as it is verified, built or failed. A failed shard does not stop the others. A
    shard whose workers keep dying stops the build (WorkerDiedError); finished shards are kept.
    """
    jobs = whole_shard_jobs(shards, build_rl_shard, verification, fetches)
    return run_tasks(jobs, workers=workers, engine=engine, progress=progress)


# --- checks of a shard


class OpenedRecords(OpenedPartition[RlShard]):
    """The records of a shard, opened for checks."""


def ledger_balances(shard: OpenedRecords) -> Finding:
    """Check that every row is a record or a drop with a reason, sums per file match, and bad rows are in quarantine."""
    ledger = ledger_of(shard.receipt)
    return verdict(
        _unbalanced(shard.directory, shard.receipt),
        f"{count_of(ledger.rows_in, 'row is', 'rows are')} {count_of(ledger.documents, 'record')} and "
        f"{count_of(sum(ledger.dropped.values()), 'drop')}.",
        _REBUILD,
        facts={"rows_in": ledger.rows_in, "records": ledger.documents, **ledger.dropped},
    )


def _unbalanced(directory: Path, receipt: Receipt) -> Iterator[str]:
    # a file without drops has no counts
    lines = [{"dropped": {}, **source.to_json()} for source in RlJsonlFacts.of(receipt).sources]
    yield from unbalanced(receipt)
    yield from wrong_sums(receipt, lines, ("rows_in", "documents"))
    yield from unbalanced_lines(receipt, lines)
    yield from wrong_drops(replace(receipt, sources=tuple(lines)))
    drops = ledger_of(receipt).dropped
    bad = sum(count for reason, count in drops.items() if not reason.startswith(LEFT_OUT_BY))
    yield from wrong_quarantine(receipt, directory / QUARANTINE, bad)


def lines_of(directory: Path, receipt: Receipt) -> Iterator[bytes]:
    """Yield each line of the data file with its line end; raise FormatError for a last line without one."""
    path = directory / RlJsonlFacts.of(receipt).file
    compression = "zstd" if path.suffix == ".zst" else None
    tail = b""
    for data in BlockReader(path, compression):
        # the last piece may continue in the next block; after a complete last line it is empty
        *lines, tail = (tail + data).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if tail:
        raise FormatError(f"{path}: the last line has no line end, so the file is truncated. {_REBUILD}")


def round_trip(shard: OpenedRecords) -> Finding:
    """Check that the source's rows, transformed again, equal the lines of the file, byte for byte and in order.

    This also shows that every line is a record of the declared form. At level `every document`, the quarantine is
    rebuilt as well.
    """
    planned_shard, receipt = shard.planned, shard.receipt
    made_count = stored_count = 0
    defects: list[str] = []
    for expected_line, line in zip_longest(_make(planned_shard), lines_of(shard.directory, receipt)):
        made_count, stored_count = made_count + (expected_line is not None), stored_count + (line is not None)
        if expected_line is not None and line is not None and line != expected_line[1] and len(defects) < SHOWN:
            defects.append(f"line {made_count}, from {expected_line[0]}: differs from the result of the transforms")
    receipt_count = ledger_of(receipt).documents
    if len({made_count, stored_count, receipt_count}) > 1:
        defects.append(
            f"{count_of(stored_count, 'line')}, but the source gives {made_count} and the receipt has {receipt_count}"
        )
    if planned_shard.level == EVERY_DOCUMENT and not defects:  # at this level, dropped rows are compared as well

        def build(store: ArtifactStore) -> None:
            build_rl_shard(replace(planned_shard, store=store))

        with made_again(planned_shard.artifact, planned_shard.store, build) as folder:
            left_out = by_content(receipt, {RlJsonlFacts.of(receipt).file})
            defects += other_bytes(shard.directory, folder, left_out=left_out)
    return verdict(
        (f"{shard.name}: {defect}" for defect in defects),
        f"{count_of(made_count, 'record')}, read and transformed again, match the stored lines.",
        f"Source or transforms changed since the build. {_REBUILD}",
        facts={"documents": made_count, "documents_compared": made_count, "level": planned_shard.level},
    )


def _make(shard: RlShard) -> Iterator[tuple[str, bytes]]:
    steps = compose(shard.transforms, shard.placeholders, shard.rules)
    for part in shard.files:
        for block in part.read_rows():
            alive()
            for record, row in zip(block.rows, block.numbers, strict=True):
                where = f"{part.label} row {row}"
                outcome = apply_transforms(record, steps, shard.rules, where)
                if not isinstance(outcome, SkippedRecord | Refused):
                    try:
                        yield where, compact_line(outcome)
                    # such a record was rejected when the shard was built, so it has no line
                    except (TypeError, ValueError):
                        continue


RL_JSONL_CHECKS: tuple[Check[OpenedRecords], ...] = (
    FILES_INTACT,
    Check(
        "ledger_balances",
        "Rows in = records + rows dropped by reason, in total and per source file.",
        ledger_balances,
    ),
    Check(
        "round_trip",
        "Reading and transforming every source row again reproduces the lines.",
        round_trip,
        version=2,
        samples=True,
    ),
)
RL_JSONL_SHARDS = BlendShards(
    name=RL_JSONL,
    description="Records of each shard, after the declared transforms.",
    kinds={"json"},
    shards=rl_shards,
    build=build_rl_shards,
    checks=RL_JSONL_CHECKS,
    open=OpenedRecords.open,
    version=VERSION,
    columns=lambda blend: columns_after(blend.rl_options.transforms),
)
