"""Proofs that need the text of a shard: each fails on its own planted faults, naming the place."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from dataprep_assets.pipelines.blend.sft.conversation_proofs import CLOSE, OPEN, decoded_mask
from dataprep_assets.pipelines.blend.sft.shard import ORIGINS
from dataprep_assets_tests.pipelines.blend.sft.conversations import Shard, source, write_rows
from dataprep_assets_tests.pipelines.blend.sft.proven_shards import ROWS, edit, failing
from dataprep_assets_tests.tokenization.chat.tokenizers import chat_bundle

STOP = "<|im_end|>"


def test_the_decoded_mask_shows_answers_between_brackets(built: Shard) -> None:
    finding = decoded_mask(built.directory, built.receipt, chat_bundle(), count=1000)
    texts = [str(row["text"]) for row in finding.table]
    assert len(texts) == built.receipt.facts["sequences"]
    joined = "".join(texts)
    for row in ROWS[:60]:
        for message in row["messages"]:
            if message["role"] == "assistant" and not message.get("tool_calls"):
                assert f"{message['content']}{STOP}{CLOSE}" in joined
    assert all(f"{OPEN}<|im_start|>" not in text for text in texts)


def test_the_decoded_mask_of_sensitive_data_shows_no_text(built: Shard) -> None:
    finding = decoded_mask(built.directory, built.receipt, chat_bundle(), sensitive=True)
    assert finding.passed
    assert all(row.keys() == {"row", "sequence", "tokens", "trained"} for row in finding.table)


def test_a_decoded_sequence_with_nothing_to_train_fails(shard: Shard) -> None:
    def change(rows: list[dict[str, list[int]]]) -> None:
        rows[0]["loss_mask"] = [0] * len(rows[0]["loss_mask"])

    edit(shard, change)
    assert "row 0: sequence 0 has nothing to train" in failing(shard)["decoded_mask"]


def test_ids_that_are_not_the_conversations_are_found(shard: Shard) -> None:
    edit(shard, lambda rows: rows[5]["input_ids"].__setitem__(3, 77))
    assert "its ids differ from those in row 5" in failing(shard)["round_trip"]


def test_a_source_that_changed_is_found(shard: Shard, tmp_path: Path) -> None:
    changed = json.loads(json.dumps(ROWS))
    changed[3]["messages"][-1]["content"] += " more"
    other = replace(shard, work=replace(shard.work, sources=(source(write_rows(tmp_path / "rows.jsonl", changed)),)))
    assert "rows.jsonl: row 4, sequence 0: its ids differ" in failing(other)["round_trip"]
    short = replace(shard, work=replace(shard.work, sources=(source(write_rows(tmp_path / "rows.jsonl", ROWS[:9])),)))
    assert "is packed, but the source has no such row" in failing(short)["round_trip"]


def test_origins_that_are_short_or_double_are_found(shard: Shard) -> None:
    origins = np.load(shard.directory / ORIGINS)
    np.save(shard.directory / ORIGINS, origins[:-1])
    assert "lines for" in failing(shard)["round_trip"]
    origins[1] = origins[0]
    np.save(shard.directory / ORIGINS, origins)
    assert "names one sequence of a conversation twice" in failing(shard)["round_trip"]
    np.save(shard.directory / ORIGINS, origins.astype(np.float64))
    assert "not int64 triples" in failing(shard)["round_trip"]
