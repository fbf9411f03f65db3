"""Losses of a blend: rows, parts of sequences, and whole shards.

Entry points: `shard_losses`, `unused_rows`; `describe_missing_data`, for a dataset that lost everything.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from dataprep_assets.engine.artifact.losses import BAD_RECORD, FILTER, Loss, dropped_rows, files_of
from dataprep_assets.errors import count_of
from dataprep_assets.integrity.receipt import Ledger, Receipt
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.rl.apply_transforms import LEFT_OUT_BY
from dataprep_assets.stream.stream_losses import stream_losses, tokenizer_losses
from dataprep_assets.tokenization.chat.messages import FILTERED

_FILES = 3
"""Maximum number of files to list per reason."""
_ROWS = {"pretrain": "document", "sft": "packed row", "rl": "record"}
_CUT_OFF, _TOO_LONG = "empty_after_masking", "longer_than_pack_size"


def rows_of(receipt: Receipt) -> int:
    """Return the rows of a shard's output: documents, records, or packed rows (`bins`, a fact of SFT shards only)."""
    return int(receipt.facts.get("bins", (receipt.ledger or Ledger()).documents))


def describe_by_file(files: Mapping[str, Mapping[str, int]]) -> str:
    """Describe counts by reason and file, with the files that have the largest counts.

    Args:
        files: Reason → file → number of its rows.
    """
    phrases: list[str] = []
    for reason, counts in sorted(files.items(), key=lambda pair: (-sum(pair[1].values()), pair[0])):
        ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        if len(ranked) == 1:
            phrases.append(f"{ranked[0][1]:,} {reason} in {ranked[0][0]}")
            continue
        file_counts = ", ".join((f"{file} {count:,}" for file, count in ranked[:_FILES]))
        suffix = f" and {count_of(len(ranked) - _FILES, 'more file')}" if len(ranked) > _FILES else ""
        phrases.append(f"{sum(counts.values()):,} {reason} ({file_counts}{suffix})")
    return ", ".join(phrases)


def shard_losses(blend: BlendDeclaration, receipts: Sequence[Receipt]) -> Iterator[Loss]:
    """Yield the losses of a blend's shards, dataset by dataset."""
    by_dataset: dict[str, list[Receipt]] = {}
    for receipt in receipts:
        by_dataset.setdefault(dataset_of(receipt.partition), []).append(receipt)
    for name, members in by_dataset.items():
        if blend.stage == "pretrain":
            yield from stream_losses(members, name)
            continue
        yield from dropped_rows(members, _kind, part=name)
        if blend.stage == "sft":
            yield from _sequences(members, name)
            yield from tokenizer_losses(members, name)


def dataset_of(partition: str | None) -> str:
    """Return the dataset of a shard, with its split if it has one."""
    return (partition or "").rpartition("-")[0]


def _kind(reason: str) -> str:
    is_chosen = reason in (*FILTERED, _CUT_OFF, _TOO_LONG) or reason.startswith(LEFT_OUT_BY)
    return FILTER if is_chosen else BAD_RECORD


def _sequences(receipts: Sequence[Receipt], part: str) -> Iterator[Loss]:
    """Yield the sequences that packing truncated, and the ones it left out of kept conversations."""
    drops = _sequences_dropped(receipts)
    total = sum(int(receipt.facts["sequences"]) for receipt in receipts) + drops.total()
    cuts = {"max_doc_tokens": "truncated", "pack_size": "truncated_to_pack_size"}
    for reason, fact in cuts.items():
        count = sum(int(receipt.facts[fact]) for receipt in receipts)
        yield Loss(action="cut", reason=reason, count=count, of=total, unit="sequence", part=part)
    for reason, count in sorted(drops.items()):
        yield Loss(action="left out", reason=reason, count=count, of=total, unit="sequence", part=part)
    conversations = _ledger(receipts).documents
    row_cuts = sum((Counter(receipt.facts.get("conversations_cut", {})) for receipt in receipts), Counter[str]())
    for reason, count in sorted(row_cuts.items()):
        yield Loss(action="cut", reason=reason, count=count, of=conversations, unit="conversation", part=part)


def _sequences_dropped(receipts: Sequence[Receipt]) -> Counter[str]:
    return sum((Counter(r.facts.get("sequences_dropped", {})) for r in receipts), Counter[str]())


def unused_rows(blend: BlendDeclaration, receipts: Sequence[Receipt], used: set[str]) -> Iterator[Loss]:
    """Yield the output rows of shards that no split of a run uses.

    Args:
        blend: The declaration.
        receipts: The receipts of all shards.
        used: The partitions that the splits of the run use.
    """
    rows: dict[str, Counter[bool]] = {}
    for receipt in receipts:
        # an empty shard is also in no split, but has no rows to leave out
        rows.setdefault(dataset_of(receipt.partition), Counter())[receipt.partition in used] += rows_of(receipt)
    for name, counts in rows.items():
        yield Loss(
            action="left out",
            reason="weight",
            count=counts[False],
            of=counts.total(),
            unit=_ROWS[blend.stage],
            part=name,
        )


def describe_missing_data(blend: BlendDeclaration, receipts: Sequence[Receipt]) -> str:
    """Return why no shard of a dataset has data, and what to do about it."""
    ledger, drops = _ledger(receipts), _sequences_dropped(receipts)
    if not ledger.rows_in:
        return "its sources have no rows. Correct its `path`, or set its weight to 0"
    advice = ""
    if blend.stage == "sft" and ledger.dropped.get(_CUT_OFF):
        advice = f"; if every answer was cut off at `pack_size: {blend.sft_options.pack_size}`, raise it"
    elif blend.stage == "sft" and ledger.dropped.get(_TOO_LONG):
        longer = f"; rows longer than `pack_size: {blend.sft_options.pack_size}` are dropped by `too_long: drop`"
        advice = f"{longer}: raise `pack_size`, or set `too_long: truncate`"
    if blend.sensitive:
        return f"none of its rows was kept: {', '.join({**ledger.dropped, **drops})}. Correct its source{advice}"
    return (
        f"none of its {count_of(ledger.rows_in, 'row')} was kept: {describe_by_file(files_of(receipts))}. Correct its "
        f"source or its fields{advice}; or set its weight to 0"
    )


def _ledger(receipts: Sequence[Receipt]) -> Ledger:
    return Ledger.total(receipt.ledger or Ledger() for receipt in receipts)
