"""What a blend lost of its sources, for the end of a run and `dataprep show`: rows, parts of sequences, whole shards.

Entry points: `loss_lines`; `nothing_left`, for a dataset that lost everything.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.sentences import number_of, safe, safe_number_of, sentence, typed

_ROWS = {"pretrain": "documents", "sft": "packed rows", "rl": "records"}
_CUT_OFF, _TOO_LONG = "empty_after_masking", "longer_than_pack_size"


def rows_of(receipt: Receipt) -> int:
    """Rows of a shard's output: documents, records, or the packed rows of SFT (`bins`, a fact that only those have)."""
    return int(receipt.facts.get("bins", (receipt.ledger or Ledger()).documents))


def by_reason(counts: Mapping[str, int]) -> str:
    """Counts by reason, the most frequent first."""
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{count:,} {reason}" for reason, count in ranked if count)


def loss_lines(blend: BlendDeclaration, datasets: Mapping[str, Sequence[Receipt]], used: set[str]) -> list[str]:
    """A line for each kind of loss of each dataset, or one that says that nothing was lost.

    Args:
        blend: The declaration.
        datasets: The receipts of each dataset's shards.
        used: The partitions that the splits of the run have.
    """
    lines = [
        sentence(f"lost of {name}: {typed(line)}")
        for name, receipts in datasets.items()
        for line in _losses(blend, receipts, used)
    ]
    rows = sum(_ledger(receipts).rows_in for receipts in datasets.values())
    return lines or [sentence(f"lost: nothing of {number_of(rows, 'row')}")]


def _losses(blend: BlendDeclaration, receipts: Sequence[Receipt], used: set[str]) -> Iterator[str]:
    ledger = _ledger(receipts)
    if dropped := sum(ledger.dropped.values()):
        share = _share(blend, dropped, ledger.rows_in)
        yield sentence(f"{dropped:,} of {number_of(ledger.rows_in, 'row')} dropped{share}: {by_reason(ledger.dropped)}")
    yield from _cuts(blend, receipts)
    # an empty shard is in no split either, and was not left out to meet a weight
    others = [r for r in receipts if rows_of(r) and r.partition not in used]
    if others:
        left, every = sum(map(rows_of, others)), sum(map(rows_of, receipts))
        yield sentence(
            f"{safe(len(others), ',')} of {safe_number_of(len(receipts), 'shard')} left out to meet the weights: "
            f"{left:,} of {every:,} {_ROWS[blend.stage]}{_share(blend, left, every)}"
        )


def _cuts(blend: BlendDeclaration, receipts: Sequence[Receipt]) -> Iterator[str]:
    """What the packing of conversations cut, and left out of conversations that stayed."""
    if blend.stage != "sft":
        return
    options, dropped = blend.sft_options, _sequences_dropped(receipts)
    counts = {
        f"cut to `max_doc_tokens: {options.max_doc_tokens}`": sum(int(r.facts["truncated"]) for r in receipts),
        f"cut to `pack_size: {options.pack_size}`": sum(int(r.facts["truncated_to_pack_size"]) for r in receipts),
        **{f"left out as {reason}": count for reason, count in sorted(dropped.items())},
    }
    total = sum(int(r.facts["sequences"]) for r in receipts) + dropped.total()
    for what, count in counts.items():
        if count:
            yield sentence(f"{count:,} of {number_of(total, 'sequence')} {what}{_share(blend, count, total)}")


def _sequences_dropped(receipts: Sequence[Receipt]) -> Counter[str]:
    return sum((Counter(r.facts.get("sequences_dropped", {})) for r in receipts), Counter[str]())


def nothing_left(blend: BlendDeclaration, receipts: Sequence[Receipt]) -> str:
    """Why no shard of a dataset has data, and what to do."""
    ledger, dropped = _ledger(receipts), _sequences_dropped(receipts)
    if not ledger.rows_in:
        return "its sources have no rows. Correct its `path`, or set its weight to 0"
    cut = ""
    if blend.stage == "sft" and ledger.dropped.get(_CUT_OFF):
        cut = f"; where every answer lies behind the cut at `pack_size: {blend.sft_options.pack_size}`, raise it"
    elif blend.stage == "sft" and ledger.dropped.get(_TOO_LONG):
        longer = f"; what is longer than `pack_size: {blend.sft_options.pack_size}` goes by `too_long: drop`"
        cut = f"{longer}: raise the one, or let the other be `truncate`"
    if blend.sensitive:
        return f"none of its rows was kept: {', '.join({**ledger.dropped, **dropped})}. Correct its source{cut}"
    return sentence(
        f"none of its {number_of(ledger.rows_in, 'row')} was kept: {by_reason(ledger.dropped)}. Correct its source or "
        f"its fields{cut}; or set its weight to 0"
    )


def _ledger(receipts: Sequence[Receipt]) -> Ledger:
    return Ledger.total(receipt.ledger or Ledger() for receipt in receipts)


def _share(blend: BlendDeclaration, count: int, total: int) -> str:
    """The share in percent; none that tells a count of a sensitive dataset that is not shown."""
    # beside the total, the share tells both what is counted and what is left of it
    hidden = blend.sensitive and min(count, total - count) < blend.small_cell
    return "" if hidden or not total else f" ({100 * count / total:.1f} %)"
