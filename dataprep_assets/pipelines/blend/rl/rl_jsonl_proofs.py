"""Proofs on a shard of RL data: every line is a record, and equals its transformed row.

Entry points: `RL_JSONL_PROOFS`, `prove_rl_jsonl`, and the proofs one by one.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import orjson

from dataprep_assets.bounds import alive
from dataprep_assets.errors import FormatError
from dataprep_assets.graph.finding import SHOWN, Finding, files_intact, judged, ledger_of, name_of, verdict
from dataprep_assets.graph.ledgers import unbalanced, unbalanced_lines, wrong_drops, wrong_quarantine, wrong_sums
from dataprep_assets.graph.made_again import by_content, made_again, other_bytes
from dataprep_assets.graph.proof_level import EVERY_DOCUMENT
from dataprep_assets.graph.spec import Proof
from dataprep_assets.graph.verdicts import proven
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.rl.options import RESOLVE
from dataprep_assets.pipelines.blend.rl.shard import QUARANTINE, RlJsonlFacts, RlShard, build_rl_shard, compact_line
from dataprep_assets.pipelines.blend.rl.through import LEFT_OUT_BY, Refused, SkippedRecord, lacks_prompt, through
from dataprep_assets.pipelines.blend.rl.transforms import compose
from dataprep_assets.sources.blocks import BlockReader

RL_JSONL_PROOFS = (
    Proof("files_intact", "Every file has the size and digest of the receipt, and no file is unlisted."),
    Proof("ledger_balances", "Rows in = records + rows dropped by reason, in total and over the source files."),
    Proof(
        "lines_are_records",
        "Every line is one JSON object with a prompt; there are as many as the receipt says, and no placeholder.",
    ),
    Proof("round_trip", "All rows, read and transformed again, are the lines.", samples=True),
)

_REBUILD = "Materialize this partition of rl_jsonl again"


def prove_rl_jsonl(shard: RlShard) -> dict[str, Finding]:
    """Every proof of one shard; a missing shard fails them all."""

    def prove(directory: Path, receipt: Receipt) -> dict[str, Finding]:
        return {
            "files_intact": files_intact(directory, receipt),
            "ledger_balances": ledger_balances(directory, receipt),
            "lines_are_records": lines_are_records(directory, receipt, shard),
            "round_trip": round_trip(directory, receipt, shard),
        }

    return proven(shard.artifact, shard.store, RL_JSONL_PROOFS, prove)


@judged
def ledger_balances(directory: Path, receipt: Receipt) -> Finding:
    """Every row is a record or a drop with a reason; the source files add up; bad rows are in the quarantine."""
    ledger = ledger_of(receipt)
    return verdict(
        _unbalanced(directory, receipt),
        f"{ledger.rows_in} rows are {ledger.documents} records and {sum(ledger.dropped.values())} drops.",
        _REBUILD,
        facts={"rows_in": ledger.rows_in, "records": ledger.documents, **ledger.dropped},
    )


def _unbalanced(directory: Path, receipt: Receipt) -> Iterator[str]:
    # a file of which nothing was dropped says nothing of it
    lines = [{"dropped": {}, **source.to_json()} for source in RlJsonlFacts.of(receipt).sources]
    yield from unbalanced(receipt)
    yield from wrong_sums(receipt, lines, ("rows_in", "documents"))
    yield from unbalanced_lines(receipt, lines)
    yield from wrong_drops(replace(receipt, sources=tuple(lines)))
    dropped = ledger_of(receipt).dropped
    bad = sum(count for reason, count in dropped.items() if not reason.startswith(LEFT_OUT_BY))
    yield from wrong_quarantine(receipt, directory / QUARANTINE, bad)


def lines_of(directory: Path, receipt: Receipt) -> Iterator[bytes]:
    """Each line of the data file with its end; raises FormatError for a last line without one."""
    path = directory / RlJsonlFacts.of(receipt).file
    compression = "zstd" if path.suffix == ".zst" else None
    tail = b""
    for data in BlockReader(path, compression):
        # the last piece may go on in the next block; behind a whole last line it is empty
        *lines, tail = (tail + data).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if tail:
        raise FormatError(f"{path}: the last line has no line end; the file was cut. {_REBUILD}")


@judged
def lines_are_records(directory: Path, receipt: Receipt, shard: RlShard) -> Finding:
    """Every line is one JSON object, written compactly; none holds a placeholder that should be resolved.

    If the transforms or `prompt` determine where the prompt is, every record has one. `directory` and `receipt` are
    the shard's, `shard` says how it was made.
    """
    steps = compose(shard.transforms, shard.placeholders, shard.rules)
    resolves = any(step.name == RESOLVE for step in steps)
    count, defects = 0, []
    for count, line in enumerate(lines_of(directory, receipt), 1):
        why = _defect(line, resolves)
        if why is None and lacks_prompt(orjson.loads(line), steps, shard.rules):
            why = "no prompt; set `force` to make a shard again that was made when none was asked for"
        if why is not None:
            defects.append(f"{name_of(receipt)}: line {count}: {why}")
    if count != ledger_of(receipt).documents:
        defects.append(f"{name_of(receipt)}: {count} lines, the receipt says {ledger_of(receipt).documents}")
    return verdict(defects, f"{count} lines are records.", _REBUILD, facts={"records": count})


def _defect(line: bytes, resolves: bool) -> str | None:
    try:
        value: Any = orjson.loads(line)
    except orjson.JSONDecodeError:
        return "not JSON"
    if not isinstance(value, dict):
        return f"a {type(value).__name__}, not an object"
    # written again it is the same only if nothing was lost on reading: orjson keeps the last of two equal keys
    if orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE) != line:
        return "not written compactly, or with a key twice"
    return "an unresolved placeholder" if resolves and "_hf_placeholder" in value else None


@judged
def round_trip(directory: Path, receipt: Receipt, shard: RlShard) -> Finding:
    """The rows of the source, transformed again, are the lines of the file, byte for byte and in their order.

    `directory` and `receipt` are the shard's, `shard` says how it was made. With every document, so is the quarantine.
    """
    made = stored = 0
    defects: list[str] = []
    for wanted, line in zip_longest(_made(shard), lines_of(directory, receipt)):
        made, stored = made + (wanted is not None), stored + (line is not None)
        if wanted is not None and line is not None and line != wanted[1] and len(defects) < SHOWN:
            defects.append(f"{name_of(receipt)}: line {made}, from {wanted[0]}: is not what the transforms make of it")
    if stored != made:
        defects.append(f"{name_of(receipt)}: {stored} lines, the source gives {made}")
    if shard.level == EVERY_DOCUMENT and not defects:  # what was left out, too

        def build(store: ArtifactStore) -> None:
            build_rl_shard(replace(shard, store=store))

        with made_again(shard.artifact, shard.store, build) as folder:
            found = other_bytes(directory, folder, left_out=by_content(receipt, {RlJsonlFacts.of(receipt).file}))
            defects += [f"{name_of(receipt)}: {defect}" for defect in found]
    return verdict(
        defects,
        f"{made} records, made again, are the stored lines.",
        f"Source or transforms changed since it was built. {_REBUILD}",
        facts={"documents": made, "documents_compared": made, "level": shard.level},
    )


def _made(shard: RlShard) -> Iterator[tuple[str, bytes]]:
    steps = compose(shard.transforms, shard.placeholders, shard.rules)
    for part in shard.files:
        for block in part.read_rows():
            alive()
            for record, row in zip(block.rows, block.numbers, strict=True):
                where = f"{part.label} row {row}"
                made = through(record, steps, shard.rules, where)
                if not isinstance(made, SkippedRecord | Refused):
                    try:
                        yield where, compact_line(made)
                    # it was refused when the shard was built, and has no line
                    except (TypeError, ValueError):
                        continue
