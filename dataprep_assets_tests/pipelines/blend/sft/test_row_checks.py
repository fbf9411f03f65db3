"""Checks of the rows of a shard: each fails on its own planted faults and names the position."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep_assets.formats.packed_rows import build_schema
from dataprep_assets.pipelines.blend.sft.packed_sft_checks import no_repeated_special_tokens
from dataprep_assets.pipelines.blend.sft.shard import PACKED, QUARANTINE
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.blend.sft.conversations import Shard, build_rows
from dataprep_assets_tests.pipelines.blend.sft.proven_shards import (
    ROWS,
    edit_rows,
    find_failing,
    open_shard,
    set_facts,
    set_ledger,
)


def test_an_unbalanced_ledger_is_found(shard: Shard) -> None:
    wrong = replace(shard, receipt=set_ledger(shard.receipt, rows_in=62))
    assert "does not balance" in find_failing(wrong)["ledger_balances"]
    (shard.directory / QUARANTINE).unlink()
    assert_names(find_failing(shard)["ledger_balances"], 1, "no_messages", "quarantine.jsonl", 0)


def test_a_source_line_with_a_wrong_sum_is_found(shard: Shard) -> None:
    (line,) = shard.receipt.facts["sources"]
    wrong = set_facts(shard, sources=[{**line, "conversations": 59}])
    assert_names(find_failing(wrong)["ledger_balances"], "rows.jsonl", 61, 59, 1)


@pytest.mark.parametrize("fact", ["bins", "sequences", "tokens", "trained_tokens", "fill"])
def test_a_count_that_differs_from_the_file_is_found(fact: str, shard: Shard) -> None:
    wrong = set_facts(shard, **{fact: shard.receipt.facts[fact] + 1})
    assert str(wrong.receipt.facts[fact]) in find_failing(wrong)["counts_match"]


def test_another_schema_is_found(shard: Shard) -> None:
    wide = pa.schema([(f.name, pa.list_(pa.int64())) for f in build_schema()])
    edit_rows(shard, lambda rows: None, wide)
    assert_names(find_failing(shard)["rows_valid"], "input_ids", "list<element: int32>")


def test_other_row_groups_are_found(shard: Shard) -> None:
    pq.write_table(pq.read_table(shard.directory / PACKED), shard.directory / PACKED)
    assert "size is 4" in find_failing(shard)["rows_valid"]


def set_starts(rows: list[dict[str, list[int]]]) -> None:
    rows[5]["seq_start_id"][1] = 0


def set_mask(value: int) -> Callable[[list[dict[str, list[int]]]], None]:
    def change(rows: list[dict[str, list[int]]]) -> None:
        rows[5]["loss_mask"][-1] = value

    return change


def clear_mask(rows: list[dict[str, list[int]]]) -> None:
    rows[5]["loss_mask"] = [0] * len(rows[5]["loss_mask"])


ROW_FAULTS: list[tuple[Callable[[list[dict[str, list[int]]]], None], str]] = [
    (set_starts, "row 5: the starts of sequences are not strictly increasing"),
    (set_mask(1), "row 5: the last position of a sequence is in the loss"),
    (set_mask(7), "row 5: loss_mask has a value other than 0 or 1"),
    (clear_mask, "row 5: a sequence has no trained token"),
]


@pytest.mark.parametrize(("change", "said"), ROW_FAULTS)
def test_a_row_that_the_trainer_would_misread_is_found(change: Any, said: str, shard: Shard) -> None:
    edit_rows(shard, change)
    assert said in find_failing(shard)["rows_valid"]


def test_a_row_longer_than_the_pack_size_is_found(shard: Shard) -> None:
    assert_names(find_failing(set_facts(shard, pack_size=600))["rows_valid"], "pack size", 600)


@pytest.mark.parametrize("token", [-1, 4102])
def test_an_id_outside_the_vocabulary_is_found(token: int, shard: Shard) -> None:
    edit_rows(shard, lambda rows: rows[5]["input_ids"].__setitem__(7, token))
    assert_names(find_failing(shard)["ids_in_vocabulary"], 5, token, "0 to 4101")


def test_a_range_of_ids_that_differs_from_the_ledger_is_found(shard: Shard) -> None:
    wrong = replace(shard, receipt=set_ledger(shard.receipt, max_id=4000))
    assert_names(find_failing(wrong)["ids_in_vocabulary"], "to 4000")


def _shifted(rows: list[dict[str, list[int]]], by: int) -> None:
    for row in rows:
        for start, end in zip(row["seq_start_id"], [*row["seq_start_id"][1:], len(row["input_ids"])], strict=True):
            part = row["loss_mask"][start:end]
            row["loss_mask"][start:end] = [0, *part[:-1]] if by < 0 else [*part[1:], 0]


@pytest.mark.parametrize("by", [-1, 1])
def test_a_mask_not_shifted_or_shifted_twice_is_found(by: int, shard: Shard) -> None:
    edit_rows(shard, lambda rows: _shifted(rows, by))
    found = find_failing(shard)
    assert_names(found["stop_tokens_in_loss"], "<|im_end|>")
    assert "its loss mask differ" in found["round_trip"]


def test_a_stop_token_outside_the_mask_is_found(shard: Shard) -> None:
    def change(rows: list[dict[str, list[int]]]) -> None:
        row = rows[5]
        last = max(i for i, on in enumerate(row["loss_mask"]) if on)
        row["loss_mask"][last] = 0

    edit_rows(shard, change)
    assert_names(find_failing(shard)["stop_tokens_in_loss"], "row 5", "labels")


def test_uncounted_truncated_answers_are_found(tmp_path: Path) -> None:
    shard = build_rows(tmp_path, ROWS, pack_size=100)
    wrong = set_facts(shard, truncated_to_pack_size=0)
    assert_names(find_failing(wrong)["stop_tokens_in_loss"], "answer", 0)


TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n"


def test_a_doubled_special_token_is_found_unless_it_starts_the_next_sequence(tmp_path: Path) -> None:
    rows = [{"messages": r["messages"]} for seed, r in enumerate(ROWS[:60]) if seed % 4 < 2]
    twice = f"<|endoftext|><|endoftext|>{TURNS}{PROMPT}{{% endif %}}"
    around = f"<|endoftext|>{TURNS}{PROMPT}{{% else %}}<|endoftext|>{{% endif %}}"
    doubled = build_rows(tmp_path / "a", rows, template=twice)
    single = build_rows(tmp_path / "b", rows, template=around, turns="always")
    found = find_failing(doubled)
    assert found.keys() == {"no_repeated_special_tokens"}
    assert_names(found["no_repeated_special_tokens"], "'<|endoftext|>'", 30, 0)
    assert no_repeated_special_tokens(open_shard(single)).passed


def test_two_quotes_around_no_text_are_not_a_doubled_token(tmp_path: Path) -> None:
    quoted = (
        "{% for t in tools or [] %}{{ t.function.name }}: {{ t.function.description }}{% endfor %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
        "{{ c.function.name }}{% for key, value in c.function.arguments.items() %}{{ key }}=<|endoftext|>{{ value }}"
        "<|endoftext|>{% endfor %}</tool_call>{% endfor %}<|im_end|>{% endfor %}"
        f"{PROMPT}{{% endif %}}"
    )
    tool = {"type": "function", "function": {"name": "look_up", "description": "Finds a word."}}
    call = {"type": "function", "function": {"name": "look_up", "arguments": {"word": "buoy", "hint": ""}}}
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    row = {"messages": [{"role": "user", "content": "What?"}, called], "tools": [tool]}
    shard = build_rows(tmp_path, [row], template=quoted)
    found = open_shard(shard)
    assert [token.content for token in found.plan.quotes] == ["<|endoftext|>"]
    assert no_repeated_special_tokens(found).passed
    assert not no_repeated_special_tokens(replace(found, plan=replace(found.plan, quotes=()))).passed
