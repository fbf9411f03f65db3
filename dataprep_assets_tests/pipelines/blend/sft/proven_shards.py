"""A shard of generated conversations that a test may damage, and every proof on it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.formats.packed_rows import build_schema
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.sft.opened_shard import OpenedShard
from dataprep_assets.pipelines.blend.sft.packed_sft_checks import PACKED_SFT_CHECKS
from dataprep_assets.pipelines.blend.sft.shard import PACKED
from dataprep_assets_tests.pipelines.blend.sft.conversations import Shard, conversation
from dataprep_assets_tests.tokenization.chat.tokenizers import chat_bundle

ROWS = [conversation(seed) for seed in range(60)] + [{"id": "bad"}]
"""Sixty conversations and a row that is none."""


def opened(shard: Shard, **numbers: int) -> OpenedShard:
    """A shard opened for its proofs, which compare all of its sequences."""
    return OpenedShard(
        directory=shard.directory,
        receipt=shard.receipt,
        sources=shard.work.sources,
        plan=shard.work.plan,
        bundle=chat_bundle(),
        **{"compared": 1000, **numbers},
    )


def findings(packed: OpenedShard) -> dict[str, Finding]:
    """Every check of a shard that is open."""
    return {check.name: check.run(packed) for check in PACKED_SFT_CHECKS}


def prove_all(shard: Shard) -> dict[str, Finding]:
    """Every proof on a shard."""
    return findings(opened(shard))


def failing(shard: Shard) -> dict[str, str]:
    """The proofs that fail on a shard, with what they say."""
    return {name: finding.summary for name, finding in prove_all(shard).items() if not finding.passed}


def edit(shard: Shard, change: Callable[[list[dict[str, list[int]]]], Any], kinds: pa.Schema | None = None) -> None:
    """Rewrite the packed file with its rows changed in place."""
    rows = shard.rows
    change(rows)
    with pq.ParquetWriter(shard.directory / PACKED, kinds or build_schema()) as writer:
        for start in range(0, len(rows), 4):
            writer.write_table(pa.Table.from_pylist(rows[start : start + 4], kinds or build_schema()))


def with_facts(shard: Shard, **facts: Any) -> Shard:
    """The shard with other facts in its receipt."""
    return replace(shard, receipt=replace(shard.receipt, facts={**shard.receipt.facts, **facts}))


def with_ledger(receipt: Receipt, **changes: Any) -> Receipt:
    """The receipt with another ledger."""
    assert receipt.ledger is not None
    return replace(receipt, ledger=replace(receipt.ledger, **changes))
