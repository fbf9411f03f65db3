"""A shard of generated conversations that a test may damage, and every proof on it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dataprep_assets.formats.packed_sft import schema
from dataprep_assets.graph.finding import Finding, files_intact
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.sft import conversation_proofs, row_proofs
from dataprep_assets.pipelines.blend.sft.answer_proofs import answers_trained
from dataprep_assets.pipelines.blend.sft.shard import PACKED
from dataprep_assets_tests.pipelines.blend.sft.conversations import Shard, conversation
from dataprep_assets_tests.tokenization.chat.tokenizers import chat_bundle

ROWS = [conversation(seed) for seed in range(60)] + [{"id": "bad"}]
"""Sixty conversations and a row that is none."""


def prove_all(shard: Shard) -> dict[str, Finding]:
    """Every proof on a shard."""
    directory, receipt, bundle = shard.directory, shard.receipt, chat_bundle()
    untrained = shard.work.plan.choices.untrained == "kept"
    return {
        "files_intact": files_intact(directory, receipt),
        "ledger_balances": row_proofs.ledger_balances(directory, receipt),
        "counts_match": row_proofs.counts_match(directory, receipt),
        "rows_valid": row_proofs.rows_valid(directory, receipt, untrained_allowed=untrained),
        "ids_in_vocabulary": row_proofs.ids_in_vocabulary(directory, receipt, bundle.vocab_size),
        "stop_tokens_trained": row_proofs.stop_tokens_trained(directory, receipt),
        "specials_not_doubled": row_proofs.specials_not_doubled(
            directory,
            receipt,
            bundle,
            literals_are_special=shard.work.plan.choices.special_literals == "special",
        ),
        "decoded_mask": conversation_proofs.decoded_mask(directory, receipt, bundle, untrained_allowed=untrained),
        "round_trip": conversation_proofs.round_trip(
            directory, receipt, shard.work.sources, shard.work.plan, bundle, count=1000
        ),
        "answers_trained": answers_trained(directory, receipt, shard.work.sources, shard.work.plan, bundle, count=1000),
    }


def failing(shard: Shard) -> dict[str, str]:
    """The proofs that fail on a shard, with what they say."""
    return {name: finding.summary for name, finding in prove_all(shard).items() if not finding.passed}


def edit(shard: Shard, change: Callable[[list[dict[str, list[int]]]], Any], kinds: pa.Schema | None = None) -> None:
    """Rewrite the packed file with its rows changed in place."""
    rows = shard.rows
    change(rows)
    with pq.ParquetWriter(shard.directory / PACKED, kinds or schema()) as writer:
        for start in range(0, len(rows), 4):
            writer.write_table(pa.Table.from_pylist(rows[start : start + 4], kinds or schema()))


def with_facts(shard: Shard, **facts: Any) -> Shard:
    """The shard with other facts in its receipt."""
    return replace(shard, receipt=replace(shard.receipt, facts={**shard.receipt.facts, **facts}))


def with_ledger(receipt: Receipt, **changes: Any) -> Receipt:
    """The receipt with another ledger."""
    assert receipt.ledger is not None
    return replace(receipt, ledger=replace(receipt.ledger, **changes))
