"""Proofs on the rows of one shard of packed chat data: what the receipt claims, recomputed from the bytes.

Row groups are read one at a time. A row is a row of the Parquet file, a sequence one of the conversations' sequences in
it; both are counted from 0. A shard whose receipt says that it is empty has no Parquet file and passes.

From cheap to expensive: `ledger_balances`, `counts_match`, `rows_valid`, `ids_in_vocabulary`, `stop_tokens_trained`,
`specials_not_doubled`. Those that need the text are in `conversation_proofs.py`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import FormatError
from dataprep_assets.formats.packed_sft import PackedRows, open_packed, row_defects
from dataprep_assets.graph.finding import Finding, judged, ledger_of, name_of, verdict
from dataprep_assets.graph.ledgers import unbalanced, unbalanced_lines
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.sft.shard import PACKED, QUARANTINE, PackedSftFacts
from dataprep_assets.pipelines.blend.sft.spool import read_quarantine
from dataprep_assets.tokenization.bundle import TokenizerBundle

__all__ = [
    "counts_match",
    "ids_in_vocabulary",
    "ledger_balances",
    "rows_valid",
    "sound_groups",
    "specials_not_doubled",
    "stop_tokens_trained",
]

_REBUILD = "Delete the shard's directory and materialize it again"


def _groups(directory: Path, receipt: Receipt) -> Iterator[PackedRows]:
    """The row groups of a shard, unchecked; none for an empty shard."""
    if PackedSftFacts.of(receipt).empty:
        return
    yield from open_packed(directory / PACKED)


def sound_groups(directory: Path, receipt: Receipt) -> Iterator[PackedRows]:
    """The row groups of a shard; raises FormatError for one whose starts do not bound its sequences."""
    pack_size = PackedSftFacts.of(receipt).pack_size
    for rows in _groups(directory, receipt):
        counts = np.diff(rows.heads)
        begins, ends = rows.sequence_bounds()
        if (counts == 0).any() or (rows.starts[rows.heads[:-1]] != 0).any() or (ends <= begins).any():
            first = (row_defects(rows, pack_size) or ["its sequences have no sound bounds"])[0]
            raise FormatError(f"{name_of(receipt)}: {PACKED}: {first}. {_REBUILD}")
        yield rows


@judged
def ledger_balances(directory: Path, receipt: Receipt) -> Finding:
    """Every row is a conversation or a drop with a reason: in total, for each source, and in the quarantine."""
    ledger = ledger_of(receipt)
    return verdict(
        _unbalanced(directory, receipt, ledger),
        f"{ledger.rows_in} rows are {ledger.documents} conversations and {sum(ledger.dropped.values())} drops, in "
        "total and source by source.",
        _REBUILD,
        facts={
            "rows_in": ledger.rows_in,
            "conversations": ledger.documents,
            "dropped": sum(ledger.dropped.values()),
            **{f"dropped_{reason}": count for reason, count in ledger.dropped.items()},
        },
    )


def _unbalanced(directory: Path, receipt: Receipt, ledger: Ledger) -> Iterator[str]:
    name, sources = name_of(receipt), PackedSftFacts.of(receipt).sources
    yield from unbalanced(receipt)
    yield from unbalanced_lines(receipt, [source.to_json() for source in sources], "conversations")
    held = Counter((row["file"], row["reason"]) for row in read_quarantine(directory / QUARANTINE))
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
def counts_match(directory: Path, receipt: Receipt) -> Finding:
    """Rows, sequences, tokens, trained tokens and fill are those of the receipt; an empty shard has no file."""
    name, facts = name_of(receipt), PackedSftFacts.of(receipt)
    if facts.empty:
        exists = (directory / PACKED).exists()
        return verdict([f"{name}: declared empty, but {PACKED} exists"] * exists, "An empty shard, no file.", _REBUILD)
    bins = sequences = tokens = trained = 0
    for rows in _groups(directory, receipt):
        bins, sequences = bins + len(rows), sequences + len(rows.starts)
        tokens, trained = tokens + len(rows.tokens), trained + int(rows.mask.sum())
    found = {"bins": bins, "sequences": sequences, "tokens": tokens, "trained_tokens": trained}
    defects = [
        f"{name}: {PACKED} has {count} {what}, the receipt says {getattr(facts, what)}"
        for what, count in found.items()
        if count != getattr(facts, what)
    ]
    if ledger_of(receipt).tokens != tokens:
        defects.append(f"{name}: {PACKED} has {tokens} tokens, the ledger {ledger_of(receipt).tokens}")
    filled = tokens / (bins * facts.pack_size) if bins else 1.0
    if abs(filled - facts.fill) > 1e-6:
        defects.append(f"{name}: rows are filled to {filled:.6f}, the receipt says {facts.fill}")
    return verdict(
        defects,
        f"{bins} rows hold {sequences} sequences, {tokens} tokens of which {trained} are trained; fill {filled:.4f}.",
        _REBUILD,
        facts={**found, "fill": round(filled, 6), "trained_share": round(trained / tokens, 6) if tokens else 0.0},
    )


@judged
def rows_valid(directory: Path, receipt: Receipt, *, untrained_allowed: bool = False) -> Finding:
    """Exact schema; in every row starts increase strictly from 0, the mask is 0 or 1 and 0 at each sequence's end,
    every sequence has a trained token, and no row is longer than the pack size. Row groups have the declared size.

    `directory` and `receipt` are the shard's; with `untrained_allowed` a sequence may have no trained token.
    """
    facts = PackedSftFacts.of(receipt)
    if facts.empty:
        return Finding(passed=True, summary="An empty shard, no rows.")
    pack_size, wanted = facts.pack_size, facts.row_group_bins
    file = open_packed(directory / PACKED)
    defects, longest = [], 0
    if any(size != wanted for size in file.group_sizes[:-1]) or not 0 < file.group_sizes[-1] <= wanted:
        defects.append(f"{name_of(receipt)}: row groups of {sorted(set(file.group_sizes))} rows, declared are {wanted}")
    for rows in file:
        longest = max(longest, int(np.diff(rows.rows).max(initial=0)))
        found = row_defects(rows, pack_size, untrained_allowed=untrained_allowed)
        defects += [f"{name_of(receipt)}: {PACKED}: {defect}" for defect in found]
    return verdict(
        defects,
        f"{file.rows} rows are as the trainer needs them; the longest has {longest} of {pack_size} tokens.",
        _REBUILD,
        facts={"rows": file.rows, "row_groups": len(file.group_sizes), "longest_row": longest},
    )


@judged
def ids_in_vocabulary(directory: Path, receipt: Receipt, vocab_size: int) -> Finding:
    """Every id is 0 or more and below `vocab_size` (`len(tokenizer)`), and their range is the ledger's."""
    ledger = ledger_of(receipt)
    ranges: list[tuple[int, int]] = []
    defects = []
    for rows in _groups(directory, receipt):
        if not len(rows.tokens):
            continue
        ranges.append((int(rows.tokens.min()), int(rows.tokens.max())))
        if ranges[-1][0] < 0 or ranges[-1][1] >= vocab_size:
            at = int(np.argmax((rows.tokens < 0) | (rows.tokens >= vocab_size)))
            row = rows.first + int(np.searchsorted(rows.rows, at, side="right")) - 1
            defects.append(f"{name_of(receipt)}: row {row} holds id {rows.tokens[at]}, not in [0, {vocab_size})")
    found = (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else (None, None)
    if found != (ledger.min_id, ledger.max_id):
        defects.append(
            f"{name_of(receipt)}: ids are in [{found[0]}, {found[1]}], the ledger says "
            f"[{ledger.min_id}, {ledger.max_id}]"
        )
    return verdict(
        defects,
        f"Ids are in [{found[0]}, {found[1]}], below {vocab_size}.",
        _REBUILD,
        facts={"vocab_size": str(vocab_size)},
    )


@judged
def stop_tokens_trained(directory: Path, receipt: Receipt) -> Finding:
    """Every run of trained labels ends with the stop token; only sequences that were cut may end inside an answer.

    A mask that was not shifted, or shifted twice, fails here: its runs end beside the stop token.
    """
    facts = PackedSftFacts.of(receipt)
    stop, allowed = facts.stop_id, facts.truncated + facts.truncated_to_pack_size
    runs = unfinished = 0
    defects: list[str] = []
    for rows in sound_groups(directory, receipt):
        _, ends = rows.sequence_bounds()
        following = np.append(rows.mask[1:], np.uint8(0))
        at_end = np.zeros(len(rows.mask), np.bool_)
        at_end[ends - 1] = True
        run_ends = np.flatnonzero((rows.mask == 1) & ((following == 0) | at_end))
        complete = _end_with(rows.tokens, run_ends + 1, (stop,)) | _end_with(
            rows.tokens, run_ends + 1, (stop, *facts.turn_end)
        )
        runs += len(run_ends)
        cut = np.zeros(len(rows.mask), np.bool_)
        cut[np.maximum(ends - 2, 0)] = True  # where the label is the sequence's last token
        wrong = ~complete
        unfinished += int((wrong & cut[run_ends]).sum())
        inside = run_ends[wrong & ~cut[run_ends]]
        if len(inside):
            row = rows.first + int(np.searchsorted(rows.rows, inside[0], side="right")) - 1
            token = int(inside[0] - rows.rows[row - rows.first])
            label = int(rows.tokens[min(int(inside[0]) + 1, len(rows.tokens) - 1)])
            defects.append(
                f"{name_of(receipt)}: row {row}: the trained labels that end at token {token} end with id {label}, not "
                f"with the stop token {stop} ({len(inside)} such in this row group)"
            )
    if unfinished > allowed:
        defects.append(
            f"{name_of(receipt)}: {unfinished} sequences end inside an answer, but only {allowed} were truncated"
        )
    return verdict(
        defects,
        f"{runs - unfinished} answers end with the stop token (id {stop}); {unfinished} were cut before it.",
        _REBUILD,
        facts={"answers": runs, "unfinished": unfinished, "truncated": allowed},
    )


def _end_with(tokens: NDArray[np.int32], places: NDArray[np.int64], ending: Sequence[int]) -> NDArray[np.bool_]:
    """Whether the tokens up to each place, inclusive, end with these ids."""
    last = len(tokens) - 1
    wanted = enumerate(reversed(ending))
    found = [tokens[np.clip(places - back, 0, last)] == token for back, token in wanted]
    return np.logical_and.reduce(found)


@judged
def specials_not_doubled(
    directory: Path, receipt: Receipt, bundle: TokenizerBundle, *, literals_are_special: bool = False
) -> Finding:
    """No special token is followed by itself in a sequence: a template and a tokenizer that both add BOS or EOS.

    `directory` and `receipt` are the shard's, `bundle` is its tokenizer. With `literals_are_special`, what people wrote
    may be special as well: then doubled tokens may be theirs, and are only counted.
    """
    special = np.array(sorted(token.id for token in bundle.special_tokens), np.int64)
    doubled: Counter[int] = Counter()
    first: tuple[int, int] | None = None
    for rows in sound_groups(directory, receipt):
        begins, _ = rows.sequence_bounds()
        same = np.append(rows.tokens[1:] == rows.tokens[:-1], False) & np.isin(rows.tokens, special)
        same[begins[1:] - 1] = False  # the next token belongs to another sequence
        places = np.flatnonzero(same)
        doubled.update(rows.tokens[places].tolist())
        if len(places) and first is None:
            row = int(np.searchsorted(rows.rows, places[0], side="right")) - 1
            first = rows.first + row, int(places[0] - rows.rows[row])
    defects = []
    if first is not None:
        names = {token.id: token.content for token in bundle.special_tokens}
        counts = ", ".join(f"{names[token]!r} {count} times" for token, count in doubled.most_common())
        defects.append(f"{name_of(receipt)}: doubled special tokens: {counts}; the first in row {first[0]}, {first[1]}")
    if literals_are_special and defects:
        return Finding(
            passed=True,
            summary=f"{doubled.total()} special tokens are followed by themselves: literals are special here.",
            facts={"doubled": doubled.total()},
        )
    return verdict(
        defects,
        "No special token is followed by itself.",
        "The template writes a token twice: correct the template",
        facts={"doubled": doubled.total()},
    )
