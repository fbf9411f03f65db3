"""Losses of a blend: rows, parts of sequences, and whole shards.

Entry points: `find_shard_losses`, `find_unused_rows`; `describe_missing_data`, for a dataset without remaining data.
"""

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import partial

from dataprep_assets.curation.benchmarks.columns import BENCHMARK
from dataprep_assets.curation.selection import DUPLICATE
from dataprep_assets.engine.artifact.losses import BAD_RECORD, FILTER, RULE, Loss, count_by_file, find_dropped_rows
from dataprep_assets.errors import count_of
from dataprep_assets.integrity.receipt import RETRACTED, Ledger, Receipt
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.screening.reasons import (
    CHOSEN_REASONS,
    EMPTY,
    LEFT_OUT_BY,
    TOO_LONG,
    TOO_LONG_PAIR,
)
from dataprep_assets.stream.stream_losses import find_tokenizer_losses, stream_losses

_FILES = 3
"""Maximum number of files to list per reason."""
_ROWS = {"pretrain": "document", "sft": "packed row", "pairs": "pair", "rl": "record"}


def count_output_rows(receipt: Receipt) -> int:
    """Return the number of rows in a shard's output: documents, pairs, records, or packed rows (the fact `bins`)."""
    return int(receipt.facts.get("bins", (receipt.ledger or Ledger()).documents))


def describe_by_file(files: Mapping[str, Mapping[str, int]]) -> str:
    """Return the counts by reason and file as text. For each reason, only the files with the largest counts are listed.

    Args:
        files: Number of rows by reason and file.
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


def find_shard_losses(blend: BlendDeclaration, receipts: Sequence[Receipt]) -> Iterator[Loss]:
    """Yield the losses of a blend's shards, dataset by dataset."""
    by_dataset: dict[str, list[Receipt]] = {}
    for receipt in receipts:
        by_dataset.setdefault(parse_dataset_name(receipt.partition), []).append(receipt)
    for name, members in by_dataset.items():
        if blend.stage == "pretrain":
            yield from stream_losses(members, name)
            continue
        yield from find_dropped_rows(members, partial(_classify_reason, {*blend.keep, *blend.drop}), part=name)
        if blend.stage == "rl":
            yield from _find_field_losses(members, name)
        if blend.stage == "sft":
            yield from _find_sequence_losses(members, name)
        if blend.stage in ("sft", "pairs"):
            yield from find_tokenizer_losses(members, name)


def _find_field_losses(receipts: Sequence[Receipt], part: str) -> Iterator[Loss]:
    """Yield the fields that transforms left out of the records, with the number of records that had the field.

    These losses have no total (`of` is 0), because a record may lose several fields.
    """
    counts: dict[str, Counter[str]] = {}
    for receipt in receipts:
        for line in receipt.facts.get("sources", ()):
            for name, count in line.get("fields", {}).items():
                counts.setdefault(name, Counter())[str(line["file"])] += count
    for name, files in sorted(counts.items()):
        yield Loss(action="left out", reason=name, count=files.total(), of=0, unit="field", part=part, files=files)


def parse_dataset_name(partition: str | None) -> str:
    """Return the dataset's name in a shard's partition key. It includes the split if the blend has lists per split."""
    return (partition or "").rpartition("-")[0]


def _classify_reason(rules: Container[str], reason: str) -> str:
    if reason in (RETRACTED, BENCHMARK, DUPLICATE):
        return ""
    if reason in rules:
        return RULE
    return FILTER if reason in CHOSEN_REASONS or reason.startswith(LEFT_OUT_BY) else BAD_RECORD


def _find_sequence_losses(receipts: Sequence[Receipt], part: str) -> Iterator[Loss]:
    """Yield losses of kept conversations: truncated sequences, dropped sequences, and conversations that were cut."""
    drops = _count_dropped_sequences(receipts)
    total = sum(int(receipt.facts["sequences"]) for receipt in receipts) + drops.total()
    cuts = {"max_doc_tokens": "truncated", "pack_size": "truncated_to_pack_size"}
    for reason, fact in cuts.items():
        count = sum(int(receipt.facts[fact]) for receipt in receipts)
        yield Loss(action="cut", reason=reason, count=count, of=total, unit="sequence", part=part)
    for reason, count in sorted(drops.items()):
        yield Loss(action="left out", reason=reason, count=count, of=total, unit="sequence", part=part)
    conversations = _sum_ledgers(receipts).documents
    row_cuts = sum((Counter(receipt.facts.get("conversations_cut", {})) for receipt in receipts), Counter[str]())
    files = count_by_file(receipts, "cuts")
    for reason, count in sorted(row_cuts.items()):
        file_counts = dict(files.get(reason, Counter()).most_common())
        yield Loss(
            action="cut",
            reason=reason,
            count=count,
            of=conversations,
            unit="conversation",
            part=part,
            files=file_counts,
        )


def _count_dropped_sequences(receipts: Sequence[Receipt]) -> Counter[str]:
    return sum((Counter(r.facts.get("sequences_dropped", {})) for r in receipts), Counter[str]())


def find_unused_rows(blend: BlendDeclaration, receipts: Sequence[Receipt], used_names: set[str]) -> Iterator[Loss]:
    """Yield the output rows of shards that no split of a run uses.

    Args:
        blend: The declaration.
        receipts: The receipts of all shards.
        used_names: The partitions that the splits of the run use.
    """
    rows: dict[str, Counter[bool]] = {}
    for receipt in receipts:
        # An empty shard, which no split uses, does not count as left out, because it has no rows.
        rows.setdefault(parse_dataset_name(receipt.partition), Counter())[receipt.partition in used_names] += (
            count_output_rows(receipt)
        )
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
    """Return the reason why no shard of a dataset has data, and the remedy."""
    ledger, drops = _sum_ledgers(receipts), _count_dropped_sequences(receipts)
    if not ledger.rows_in:
        return "the source has no rows. Correct `path`, or set the weight to 0"
    advice = "Correct"
    if blend.stage == "sft" and ledger.dropped.get(EMPTY):
        advice = (
            f"If every answer was cut off at `pack_size: {blend.sft_options.pack_size}`, raise `pack_size`. Otherwise, "
            "correct"
        )
    elif blend.stage == "sft" and ledger.dropped.get(TOO_LONG):
        advice = (
            f"If rows are longer than `pack_size: {blend.sft_options.pack_size}`, raise `pack_size`, or set `too_long: "
            "truncate`. Otherwise, correct"
        )
    elif ledger.dropped.get(TOO_LONG_PAIR):
        advice = (
            f"If pairs are longer than `max_length: {blend.pairs_options.max_length}`, raise `max_length`. Otherwise, "
            "correct"
        )
    elif ledger.dropped.get(BENCHMARK):
        advice = "If rows with benchmark items must be kept, change `decontaminate`. Otherwise, correct"
    elif ledger.dropped.get(DUPLICATE):
        advice = "If duplicates of other rows must be kept, change `duplicates`. Otherwise, correct"
    elif rules := [name for name in (*blend.keep, *blend.drop) if ledger.dropped.get(name)]:
        advice = f"If the rule {rules[0]!r} must not drop these rows, change it. Otherwise, correct"
    if blend.sensitive:
        return f"none of its rows was kept: {', '.join({**ledger.dropped, **drops})}. {advice} the source"
    return (
        f"none of its {count_of(ledger.rows_in, 'row')} was kept: {describe_by_file(count_by_file(receipts))}. "
        f"{advice} the "
        "source or its fields, or set the weight to 0"
    )


def _sum_ledgers(receipts: Sequence[Receipt]) -> Ledger:
    return Ledger.total(receipt.ledger or Ledger() for receipt in receipts)
