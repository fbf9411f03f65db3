"""A shard of generated conversations that a test may damage, and all checks of it."""

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
from dataprep_assets_tests.pipelines.blend.sft.conversations import Shard, make_conversation
from dataprep_assets_tests.tokenization.chat.tokenizers import chat_bundle

ROWS = [make_conversation(seed) for seed in range(60)] + [{"id": "bad"}]
"""Sixty conversations and an invalid row."""


def open_shard(shard: Shard, **numbers: int) -> OpenedShard:
    """Return a shard opened for its checks, which compare all of its sequences."""
    return OpenedShard(
        directory=shard.directory,
        receipt=shard.receipt,
        sources=shard.work.sources,
        plan=shard.work.plan,
        bundle=chat_bundle(),
        **{"compared": 1000, **numbers},
    )


def run_checks(packed: OpenedShard) -> dict[str, Finding]:
    """Return the findings of every check of an open shard."""
    return {check.name: check.run(packed) for check in PACKED_SFT_CHECKS}


def check_shard(shard: Shard) -> dict[str, Finding]:
    """Return the findings of every check of a shard."""
    return run_checks(open_shard(shard))


def find_failing(shard: Shard) -> dict[str, str]:
    """Return the checks that fail on a shard, with their descriptions."""
    return {name: finding.summary for name, finding in check_shard(shard).items() if not finding.passed}


def edit_rows(
    shard: Shard, change: Callable[[list[dict[str, list[int]]]], Any], kinds: pa.Schema | None = None
) -> None:
    """Change the rows of the packed file in place."""
    rows = shard.rows
    change(rows)
    with pq.ParquetWriter(shard.directory / PACKED, kinds or build_schema()) as writer:
        for start in range(0, len(rows), 4):
            writer.write_table(pa.Table.from_pylist(rows[start : start + 4], kinds or build_schema()))


def set_facts(shard: Shard, **facts: Any) -> Shard:
    """Return the shard with changed facts in its receipt."""
    return replace(shard, receipt=replace(shard.receipt, facts={**shard.receipt.facts, **facts}))


def set_ledger(receipt: Receipt, **changes: Any) -> Receipt:
    """Return the receipt with a changed ledger."""
    assert receipt.ledger is not None
    return replace(receipt, ledger=replace(receipt.ledger, **changes))
