"""Proofs on one shard of packed chat data: `packed.parquet`, `origins.npy`, `quarantine.jsonl` and the receipt.

Each recomputes from the bytes what the receipt claims (FORMATS D.13). Row groups are read one at a time. A row is a
row of the Parquet file, a sequence one of the conversations' sequences in it; both are counted from 0. A shard whose
receipt says that it is empty has no Parquet file and passes.

From cheap to dear: `ledger_balances`, `counts_match`, `rows_valid`, `ids_in_vocabulary`, `stop_tokens_trained`,
`specials_not_doubled`, `decoded_mask`, `round_trip`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import FormatError
from dataprep_assets.formats.packed_sft import PackedRows, open_packed, row_defects
from dataprep_assets.graph.finding import Finding, Row, fact, judged, ledger_of, name_of, verdict
from dataprep_assets.graph.ledgers import unbalanced
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.sft.packed_sft import ORIGINS, PACKED, QUARANTINE, read_quarantine
from dataprep_assets.pipelines.blend.sft.spool import ChatPlan, ChatSource, conversation_renderer
from dataprep_assets.sources.rows import read_rows
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import CertifiedEncoder, refused_outright
from dataprep_assets.tokenization.chat.mask import ChatEncoder, label_aligned
from dataprep_assets.tokenization.chat.messages import Refusal, read_conversation

__all__ = [
    "counts_match",
    "decoded_mask",
    "ids_in_vocabulary",
    "ledger_balances",
    "round_trip",
    "rows_valid",
    "specials_not_doubled",
    "stop_tokens_trained",
]

OPEN, CLOSE = "⟦", "⟧"
"""Around the trained tokens of a decoded sequence."""
SHOWN_CHARACTERS = 4000
"""Of one decoded sequence; of a longer one the end is shown, where the last answer is."""
_REBUILD = "Delete the shard's directory and materialize it again"


def _groups(directory: Path, receipt: Receipt) -> Iterator[PackedRows]:
    """The row groups of a shard as they are; none for an empty one."""
    if fact(receipt, "empty"):
        return
    yield from open_packed(directory / PACKED)


def _sound_groups(directory: Path, receipt: Receipt) -> Iterator[PackedRows]:
    """The row groups of a shard; FormatError for one whose starts do not bound sequences."""
    pack_size = int(fact(receipt, "pack_size"))
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
    name, sources = name_of(receipt), fact(receipt, "sources")
    yield from unbalanced(receipt)
    held = Counter((row["file"], row["reason"]) for row in read_quarantine(directory / QUARANTINE))
    booked: Counter[tuple[str, str]] = Counter()
    for line in sources:
        dropped = sum(line["dropped"].values())
        if line["rows_in"] != line["conversations"] + dropped:
            yield (
                f"{name}: source {line['file']}: {line['rows_in']} rows in, but {line['conversations']} conversations "
                f"+ {dropped} dropped"
            )
        booked.update({(line["file"], reason): count for reason, count in line["dropped"].items()})
    for key in sorted(set(held) | set(booked)):
        if held[key] != booked[key]:
            yield f"{name}: {key[0]}: {booked[key]} rows dropped as {key[1]}, {QUARANTINE} holds {held[key]}"
    for field, total in (("rows_in", ledger.rows_in), ("conversations", ledger.documents), ("tokens", ledger.tokens)):
        if (found := sum(line[field] for line in sources)) != total:
            yield f"{name}: {field} of the sources sum to {found}, the ledger has {total}"


@judged
def counts_match(directory: Path, receipt: Receipt) -> Finding:
    """Rows, sequences, tokens, trained tokens and fill are those of the receipt; an empty shard has no file."""
    name = name_of(receipt)
    if fact(receipt, "empty"):
        there = (directory / PACKED).exists()
        return verdict([f"{name}: declared empty, but {PACKED} is there"] * there, "An empty shard, no file.", _REBUILD)
    bins = sequences = tokens = trained = 0
    for rows in _groups(directory, receipt):
        bins, sequences = bins + len(rows), sequences + len(rows.starts)
        tokens, trained = tokens + len(rows.tokens), trained + int(rows.mask.sum())
    found = {"bins": bins, "sequences": sequences, "tokens": tokens, "trained_tokens": trained}
    defects = [
        f"{name}: {PACKED} has {count} {what}, the receipt says {fact(receipt, what)}"
        for what, count in found.items()
        if count != fact(receipt, what)
    ]
    if ledger_of(receipt).tokens != tokens:
        defects.append(f"{name}: {PACKED} has {tokens} tokens, the ledger {ledger_of(receipt).tokens}")
    filled = tokens / (bins * int(fact(receipt, "pack_size"))) if bins else 1.0
    if abs(filled - float(fact(receipt, "fill"))) > 1e-6:
        defects.append(f"{name}: rows are filled to {filled:.6f}, the receipt says {fact(receipt, 'fill')}")
    return verdict(
        defects,
        f"{bins} rows hold {sequences} sequences, {tokens} tokens of which {trained} are trained; fill {filled:.4f}.",
        _REBUILD,
        facts={**found, "fill": round(filled, 6), "trained_share": round(trained / tokens, 6) if tokens else 0.0},
    )


@judged
def rows_valid(directory: Path, receipt: Receipt) -> Finding:
    """Exact schema; in every row starts increase strictly from 0, the mask is 0 or 1 and 0 at each sequence's end,
    every sequence has a trained token, and no row is longer than the pack size. Row groups have the declared size."""
    if fact(receipt, "empty"):
        return Finding(passed=True, summary="An empty shard, no rows.")
    pack_size, wanted = int(fact(receipt, "pack_size")), int(fact(receipt, "row_group_bins"))
    file = open_packed(directory / PACKED)
    defects, longest = [], 0
    if any(size != wanted for size in file.group_sizes[:-1]) or not 0 < file.group_sizes[-1] <= wanted:
        defects.append(f"{name_of(receipt)}: row groups of {sorted(set(file.group_sizes))} rows, declared are {wanted}")
    for rows in file:
        longest = max(longest, int(np.diff(rows.rows).max(initial=0)))
        defects += [f"{name_of(receipt)}: {PACKED}: {defect}" for defect in row_defects(rows, pack_size)]
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
        facts={"vocab_size": vocab_size},
    )


@judged
def stop_tokens_trained(directory: Path, receipt: Receipt) -> Finding:
    """Every run of trained labels ends with the stop token; only sequences that were cut may end inside an answer.

    A mask that was not shifted, or shifted twice, fails here: its runs end beside the stop token.
    """
    stop = int(fact(receipt, "stop_id"))
    allowed = int(fact(receipt, "truncated")) + int(fact(receipt, "truncated_to_pack_size"))
    runs = unfinished = 0
    defects: list[str] = []
    for rows in _sound_groups(directory, receipt):
        _, ends = rows.sequence_bounds()
        following = np.append(rows.mask[1:], np.uint8(0))
        at_end = np.zeros(len(rows.mask), np.bool_)
        at_end[ends - 1] = True
        run_ends = np.flatnonzero((rows.mask == 1) & ((following == 0) | at_end))
        labels = rows.tokens[np.minimum(run_ends + 1, len(rows.tokens) - 1)]
        runs += len(run_ends)
        cut = np.zeros(len(rows.mask), np.bool_)
        cut[np.maximum(ends - 2, 0)] = True  # where the label is the sequence's last token
        wrong = labels != stop
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


@judged
def specials_not_doubled(directory: Path, receipt: Receipt, bundle: TokenizerBundle) -> Finding:
    """No special token is followed by itself in a sequence: a template and a tokenizer that both add BOS or EOS."""
    special = np.array(sorted(token.id for token in bundle.special_tokens), np.int64)
    doubled: Counter[int] = Counter()
    first: tuple[int, int] | None = None
    for rows in _sound_groups(directory, receipt):
        begins, _ = rows.sequence_bounds()
        same = np.append(rows.tokens[1:] == rows.tokens[:-1], False) & np.isin(rows.tokens, special)
        same[begins[1:] - 1] = False  # the next token is another sequence's
        places = np.flatnonzero(same)
        doubled.update(rows.tokens[places].tolist())
        if len(places) and first is None:
            row = int(np.searchsorted(rows.rows, places[0], side="right")) - 1
            first = rows.first + row, int(places[0] - rows.rows[row])
    defects = []
    if first is not None:
        names = {token.id: token.content for token in bundle.special_tokens}
        said = ", ".join(f"{names[token]!r} {count} times" for token, count in doubled.most_common())
        defects.append(f"{name_of(receipt)}: doubled special tokens: {said}; the first in row {first[0]}, {first[1]}")
    return verdict(
        defects,
        "No special token is followed by itself.",
        "The template writes a token that it writes once already: mend the template",
        facts={"doubled": doubled.total()},
    )


@judged
def decoded_mask(
    directory: Path, receipt: Receipt, bundle: TokenizerBundle, *, count: int = 4, sensitive: bool = False
) -> Finding:
    """A few sequences decoded, what is trained between ⟦ and ⟧, spread over the shard; for somebody to look at.

    Fails when a decoded sequence has nothing to train. `sensitive` shows lengths alone.
    """
    if fact(receipt, "empty"):
        return Finding(passed=True, summary="An empty shard, nothing to show.")
    table: list[Row] = []
    defects = []
    for sample in _sampled(directory, receipt, count):
        trained = int(sample.mask.sum())
        row: dict[str, str | int | float] = {
            "row": sample.row,
            "sequence": sample.number,
            "tokens": len(sample.tokens),
            "trained": trained,
        }
        if not sensitive:
            row["text"] = bracketed(sample.tokens, sample.mask, bundle)[-SHOWN_CHARACTERS:]
        table.append(row)
        if not trained:
            defects.append(f"{name_of(receipt)}: row {sample.row}: sequence {sample.number} has nothing to train")
    return verdict(
        defects, f"{len(table)} sequences decoded, trained text between {OPEN} and {CLOSE}.", _REBUILD, table=table
    )


def bracketed(tokens: NDArray[np.int32], mask: NDArray[np.uint8], bundle: TokenizerBundle) -> str:
    """The text of a sequence with brackets around the labels that its (label-aligned) mask trains."""
    trained = np.zeros(len(tokens), np.bool_)
    trained[1:] = mask[:-1] == 1
    cuts = [0, *(np.flatnonzero(np.diff(trained.astype(np.int8))) + 1).tolist(), len(tokens)]
    pieces = []
    for start, stop in pairwise(cuts):
        text = bundle.decode(tokens[start:stop])
        pieces.append(f"{OPEN}{text}{CLOSE}" if start < stop and trained[start] else text)
    return "".join(pieces)


@dataclass(frozen=True, eq=False)
class _Sampled:
    number: int
    row: int
    tokens: NDArray[np.int32]
    mask: NDArray[np.uint8]


def _sampled(directory: Path, receipt: Receipt, count: int) -> Iterator[_Sampled]:
    """Sequences spread evenly over the packed file, the first and the last included."""
    total = int(fact(receipt, "sequences"))
    wanted = {(total - 1) * i // max(1, count - 1) for i in range(count)} if total else set()
    first = 0
    for rows in _sound_groups(directory, receipt):
        begins, ends = rows.sequence_bounds()
        for number in sorted(n for n in wanted if first <= n < first + len(begins)):
            start, stop = int(begins[number - first]), int(ends[number - first])
            row = rows.first + int(np.searchsorted(rows.heads, number - first, side="right")) - 1
            yield _Sampled(number, row, rows.tokens[start:stop], rows.mask[start:stop])
        first += len(begins)


@judged
def round_trip(
    directory: Path,
    receipt: Receipt,
    sources: Sequence[ChatSource],
    plan: ChatPlan,
    bundle: TokenizerBundle,
    *,
    count: int = 64,
) -> Finding:
    """Sampled sequences are those of their source rows: rendered again, encoded by the reference, masked again.

    Also: every sequence has an origin, and no two have the same. Messages name files and rows, never text.
    """
    if fact(receipt, "empty"):
        return Finding(passed=True, summary="An empty shard, nothing to compare.")
    name, origins = name_of(receipt), _origins(directory)
    defects: list[str] = []
    if len(origins) != fact(receipt, "sequences"):
        defects.append(f"{name}: {ORIGINS} has {len(origins)} lines for {fact(receipt, 'sequences')} sequences")
    elif len(np.unique(origins, axis=0)) != len(origins):
        defects.append(f"{name}: {ORIGINS} names one sequence of a conversation twice")
    else:
        samples = list(_sampled(directory, receipt, count))
        defects += _differences(samples, origins, sources, plan, bundle)
    return verdict(
        [f"{name}: {d}" if not d.startswith(name) else d for d in defects],
        f"{min(count, len(origins))} of {len(origins)} sequences are those of their source rows.",
        _REBUILD,
        facts={"sequences": len(origins), "compared": min(count, len(origins))},
    )


def _origins(directory: Path) -> NDArray[np.int64]:
    try:
        origins: NDArray[Any] = np.load(directory / ORIGINS, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise FormatError(f"{directory / ORIGINS}: cannot be read: {error}. {_REBUILD}") from error
    if origins.ndim != 2 or origins.shape[1] != 3 or origins.dtype != np.int64:
        raise FormatError(f"{directory / ORIGINS}: {origins.dtype} of shape {origins.shape}, not int64 triples")
    return origins


def _differences(
    samples: list[_Sampled],
    origins: NDArray[np.int64],
    sources: Sequence[ChatSource],
    plan: ChatPlan,
    bundle: TokenizerBundle,
) -> Iterator[str]:
    refused = refused_outright(bundle, "text", "tokenizers", "a proof encodes with the reference")
    renderer = conversation_renderer(plan, bundle)
    encoder = ChatEncoder(bundle, CertifiedEncoder(bundle, "text", refused))
    wanted: dict[int, dict[int, list[_Sampled]]] = {}
    for sample in samples:
        ordinal, row, _ = origins[sample.number].tolist()
        wanted.setdefault(ordinal, {}).setdefault(row, []).append(sample)
    limit = min(plan.max_doc_tokens or plan.pack_size, plan.pack_size)
    for source in sources:
        left = wanted.pop(source.ordinal, {})
        for row, values in _rows_of(source, set(left), plan):
            where = f"{source.label}: row {row}"
            conversation = read_conversation(values, plan.fields)
            rendered = conversation if isinstance(conversation, Refusal) else renderer.render(conversation)
            if isinstance(rendered, Refusal):
                yield f"{where} is packed, but is no conversation: {rendered}"
                left.pop(row)
                continue
            encoded = encoder.encode([rendered])
            for sample in left.pop(row):
                turn = int(origins[sample.number, 2])
                if turn >= len(rendered.sequences):
                    yield f"{where}: has no sequence {turn}"
                    continue
                start = int(encoded.offsets[turn])
                stop = min(int(encoded.offsets[turn + 1]), start + limit)
                tokens, trained = encoded.tokens[start:stop], encoded.trained[start:stop]
                mask = label_aligned(trained, np.array([0, stop - start]))
                for what, made, held in (("ids", tokens, sample.tokens), ("loss mask", mask, sample.mask)):
                    if not np.array_equal(made, held):
                        yield f"{where}, sequence {turn}: its {what} differ from those in row {sample.row} of {PACKED}"
        for row in sorted(left):
            yield f"{source.label}: row {row} is packed, but the source has no such row"
    for ordinal in sorted(wanted):
        yield f"{ORIGINS} names source {ordinal}, which this shard does not have"


def _rows_of(source: ChatSource, wanted: set[int], plan: ChatPlan) -> Iterator[tuple[int, dict[str, Any]]]:
    if not wanted:
        return
    reader = read_rows(
        source.path,
        format=source.format,
        compression=source.compression,
        label=source.label,
        rows=source.rows,
        columns=plan.fields.names,
    )
    for block in reader:
        for number, values in zip(block.numbers, block.rows, strict=True):
            if number in wanted:
                yield number, values
