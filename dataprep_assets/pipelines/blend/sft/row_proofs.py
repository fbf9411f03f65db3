"""Proofs on one shard of packed chat data that need its rows and counts: recomputed from the bytes.

The file is read once for all of them (`OpenedShard.scan`). A row is a row of the Parquet file, a sequence one of the
conversations' sequences in it; both are counted from 0. A shard whose receipt says that it is empty has no Parquet file
and passes.

`ledger_balances`, `counts_match`, `rows_valid`, `ids_in_vocabulary`, `stop_tokens_trained`, `specials_not_doubled`.
Those that need the text are in `conversation_proofs.py`.
"""

from collections import Counter
from collections.abc import Iterator

from dataprep_assets.graph.finding import REBUILD, Finding, judged, ledger_of, verdict
from dataprep_assets.graph.ledgers import unbalanced, unbalanced_lines
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.pipelines.blend.sft.opened_shard import OpenedShard
from dataprep_assets.pipelines.blend.sft.shard import PACKED, QUARANTINE
from dataprep_assets.pipelines.blend.sft.spool import read_quarantine


@judged
def ledger_balances(packed: OpenedShard) -> Finding:
    """Every row is a conversation or a drop with a reason: in total, for each source, and in the quarantine."""
    ledger = ledger_of(packed.receipt)
    return verdict(
        _unbalanced(packed, ledger),
        f"{ledger.rows_in} rows are {ledger.documents} conversations and {sum(ledger.dropped.values())} drops, in "
        "total and source by source.",
        REBUILD,
        facts={
            "rows_in": ledger.rows_in,
            "conversations": ledger.documents,
            "dropped": sum(ledger.dropped.values()),
            **{f"dropped_{reason}": count for reason, count in ledger.dropped.items()},
        },
    )


def _unbalanced(packed: OpenedShard, ledger: Ledger) -> Iterator[str]:
    name, sources = packed.name, packed.facts.sources
    yield from unbalanced(packed.receipt)
    yield from unbalanced_lines(packed.receipt, [source.to_json() for source in sources], "conversations")
    held = Counter((row["file"], row["reason"]) for row in read_quarantine(packed.directory / QUARANTINE))
    counted: Counter[tuple[str, str]] = Counter()
    for source in sources:
        counted.update({(source.file, reason): count for reason, count in source.dropped.items()})
    for key in sorted(set(held) | set(counted)):
        if held[key] != counted[key]:
            yield f"{name}: {key[0]}: {counted[key]} rows dropped as {key[1]}, {QUARANTINE} holds {held[key]}"
    for field, total in (("rows_in", ledger.rows_in), ("conversations", ledger.documents), ("tokens", ledger.tokens)):
        if (found := sum(getattr(source, field) for source in sources)) != total:
            yield f"{name}: {field} of the sources sum to {found}, the ledger has {total}"


@judged
def counts_match(packed: OpenedShard) -> Finding:
    """Rows, sequences, tokens, trained tokens and fill are those of the receipt; an empty shard has no file."""
    name, facts, ledger = packed.name, packed.facts, ledger_of(packed.receipt)
    if facts.empty:
        exists = (packed.directory / PACKED).exists()
        return verdict([f"{name}: declared empty, but {PACKED} exists"] * exists, "An empty shard, no file.", REBUILD)
    scan = packed.scan
    tokens, trained = scan.tokens, scan.trained
    found = {"bins": scan.bins, "sequences": scan.sequences, "tokens": tokens, "trained_tokens": trained}
    defects = [
        f"{name}: {PACKED} has {count} {what}, the receipt says {getattr(facts, what)}"
        for what, count in found.items()
        if count != getattr(facts, what)
    ]
    if ledger.tokens != tokens:
        defects.append(f"{name}: {PACKED} has {tokens} tokens, the ledger {ledger.tokens}")
    filled = tokens / (scan.bins * facts.pack_size) if scan.bins else 1.0
    # the receipt has six decimals
    if abs(filled - facts.fill) > 1e-6:
        defects.append(f"{name}: rows are filled to {filled:.6f}, the receipt says {facts.fill}")
    return verdict(
        defects,
        f"{scan.bins} rows hold {scan.sequences} sequences, {tokens} tokens of which {trained} are trained; fill "
        f"{filled:.4f}.",
        REBUILD,
        facts={**found, "fill": round(filled, 6), "trained_share": round(trained / tokens, 6) if tokens else 0.0},
    )


@judged
def rows_valid(packed: OpenedShard) -> Finding:
    """Exact schema; in every row starts increase strictly from 0, the mask is 0 or 1 and 0 at each sequence's end,
    every sequence has a trained token unless the declaration keeps others, and no row is longer than the pack size. Row
    groups have the declared size.
    """
    facts = packed.facts
    if facts.empty:
        return Finding(passed=True, summary="An empty shard, no rows.")
    wanted, scan = facts.row_group_bins, packed.scan
    sizes, defects = scan.group_sizes, []
    if any(size != wanted for size in sizes[:-1]) or not 0 < sizes[-1] <= wanted:
        defects.append(f"{packed.name}: row groups of {sorted(set(sizes))} rows, declared are {wanted}")
    defects += [f"{packed.name}: {PACKED}: {defect}" for defect in scan.defects]
    return verdict(
        defects,
        f"{scan.bins} rows are as the trainer needs them; the longest has {scan.longest} of {facts.pack_size} tokens.",
        REBUILD,
        facts={"rows": scan.bins, "row_groups": len(sizes), "longest_row": scan.longest},
    )


@judged
def ids_in_vocabulary(packed: OpenedShard) -> Finding:
    """Every id is 0 or more and below `len(tokenizer)`, and their range is the ledger's."""
    ledger, scan, size = ledger_of(packed.receipt), packed.scan, packed.bundle.vocab_size
    defects = [f"{packed.name}: row {row} holds id {token}, not in [0, {size})" for row, token in scan.beyond]
    if (scan.low, scan.high) != (ledger.min_id, ledger.max_id):
        defects.append(
            f"{packed.name}: ids are in [{scan.low}, {scan.high}], the ledger says [{ledger.min_id}, {ledger.max_id}]"
        )
    return verdict(
        defects,
        f"Ids are in [{scan.low}, {scan.high}], below {size}.",
        REBUILD,
        facts={"vocab_size": str(size)},
    )


@judged
def stop_tokens_trained(packed: OpenedShard) -> Finding:
    """Every run of trained labels ends with the stop token; only sequences that were cut may end inside an answer.

    A mask that was not shifted, or shifted twice, fails here: its runs end beside the stop token.
    """
    facts, found = packed.facts, packed.sound_scan.stops
    stop, allowed = facts.stop_id, facts.truncated + facts.truncated_to_pack_size
    defects = [
        (
            f"{packed.name}: row {row}: the trained labels that end at token {token} end with id {label}, not "
            f"with the stop token {stop} ({count} such in this row group)"
        )
        for row, token, label, count in found.wrong
    ]
    if found.unfinished > allowed:
        defects.append(
            f"{packed.name}: {found.unfinished} sequences end inside an answer, but only {allowed} were truncated"
        )
    return verdict(
        defects,
        f"{found.runs - found.unfinished} answers end with the stop token (id {stop}); {found.unfinished} were cut "
        "before it.",
        REBUILD,
        facts={"answers": found.runs, "unfinished": found.unfinished, "truncated": allowed},
    )


@judged
def specials_not_doubled(packed: OpenedShard) -> Finding:
    """No special token is followed by itself in a sequence: a template and a tokenizer that both add BOS or EOS.

    Where literals are special, what people wrote may be special as well: then doubled tokens may be theirs, and are
    only counted.
    """
    scan = packed.sound_scan
    doubled, first = scan.doubled, scan.doubled_at
    if first is not None and packed.plan.choices.special_literals == "special":
        return Finding(
            passed=True,
            summary=f"{doubled.total()} special tokens are followed by themselves: literals are special here.",
            facts={"doubled": doubled.total()},
        )
    defects = []
    if first is not None:
        names = {token.id: token.content for token in packed.bundle.special_tokens}
        counts = ", ".join(f"{names[token]!r} {count} times" for token, count in doubled.most_common())
        defects.append(f"{packed.name}: doubled special tokens: {counts}; the first in row {first[0]}, {first[1]}")
    return verdict(
        defects,
        "No special token is followed by itself.",
        "The template writes a token twice: correct the template",
        facts={"doubled": doubled.total()},
    )
