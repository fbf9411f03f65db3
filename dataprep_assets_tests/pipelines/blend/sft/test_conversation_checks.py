"""Checks that need the text of a shard: each fails on its own planted faults and names the position."""

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.formats.row_origins import ORIGINS
from dataprep_assets.pipelines.blend.sft.packed_sft_checks import answers_in_loss, sampled_sequences_trained
from dataprep_assets.pipelines.blend.sft.trained_turns import CLOSE, OPEN, PARTS, bracket_trained_text
from dataprep_assets.tokenization.chat.choices import NEMOTRON
from dataprep_assets.tokenization.engines import ReferenceEngine
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.blend.sft.conversations import (
    TOOL,
    Shard,
    build_rows,
    decode_trained,
    describe_source,
    write_rows,
)
from dataprep_assets_tests.pipelines.blend.sft.proven_shards import ROWS, edit_rows, find_failing, open_shard
from dataprep_assets_tests.tokenization.chat.tokenizers import chat_bundle
from dataprep_assets_tests.tokenization.chat.trap import CHATML, HERMES, TRAP

STOP = "<|im_end|>"


def test_decoded_sequences_mark_exactly_the_answers_with_brackets(built: Shard) -> None:
    samples = open_shard(built).compared_sequences
    texts = [bracket_trained_text(sample.tokens, sample.mask, chat_bundle()) for sample in samples]
    assert len(texts) == built.receipt.facts["sequences"]
    joined = "".join(texts)
    for row in ROWS[:60]:
        for message in row["messages"]:
            if message["role"] == "assistant" and not message.get("tool_calls"):
                assert f"{message['content']}{STOP}{CLOSE}" in joined
    assert all(f"{OPEN}<|im_start|>" not in text for text in texts)


def test_the_table_has_one_row_per_kind_of_turn_with_its_trained_tokens(built: Shard) -> None:
    rows = [dict(row) for row in sampled_sequences_trained(open_shard(built, shown=1000)).table]
    kinds = {row["turn"]: row for row in rows}
    assert set(kinds) == {"answer", "answer with reasoning", "call"}
    assert sum(int(row[part]) for row in rows for part in PARTS) == built.receipt.facts["trained_tokens"]
    assert all(row["stop"] == row["turns"] for row in rows)
    assert all((row["reasoning"] != 0) == ("reasoning" in kind) for kind, row in kinds.items())
    assert all((row["call"] != 0) == ("call" in kind) for kind, row in kinds.items())
    assert all((row["answer"] != 0) == ("answer" in kind) for kind, row in kinds.items())
    assert all(f"{STOP}{CLOSE}" in str(row["text"]) for row in rows)
    assert kinds["answer"]["template"] == 0


def test_the_parts_of_a_turn_are_counted_in_tokens(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "look_up", "arguments": {"word": "buoy"}}}
    thoughtful = {"role": "assistant", "content": "So it is.", "reasoning_content": "A buoy?", "tool_calls": [call]}
    row = {"messages": [{"role": "user", "content": "Is it?"}, thoughtful], "tools": [TOOL]}
    shard = build_rows(tmp_path, [row])
    (shown,) = sampled_sequences_trained(open_shard(shard)).table
    assert (shown["turn"], shown["turns"], shown["stop"]) == ("call and text with reasoning", 1, 1)
    reference = ReferenceEngine(chat_bundle(), "text")
    for part, text in (("reasoning", "A buoy?"), ("answer", "So it is.")):
        assert shown[part] == len(reference.encode([text])[0])
    (trained,) = decode_trained(shard.rows)
    assert trained.startswith("A buoy?\n</think>\nSo it is.")
    assert 0 < shown["template"] < shard.receipt.facts["trained_tokens"] / 2
    assert sum(int(shown[part]) for part in PARTS) == shard.receipt.facts["trained_tokens"]


def test_a_decoded_sequence_without_trained_tokens_fails(shard: Shard) -> None:
    def change(rows: list[dict[str, list[int]]]) -> None:
        rows[0]["loss_mask"] = [0] * len(rows[0]["loss_mask"])

    edit_rows(shard, change)
    assert_names(find_failing(shard)["sampled_sequences_trained"], "row 0", "sequence 0", "trained")


def test_ids_that_differ_from_the_conversations_are_found(shard: Shard) -> None:
    edit_rows(shard, lambda rows: rows[5]["input_ids"].__setitem__(3, 77))
    assert_names(find_failing(shard)["round_trip"], "ids", "row 5")


def test_a_changed_source_is_found(shard: Shard, tmp_path: Path) -> None:
    changed = json.loads(json.dumps(ROWS))
    changed[3]["messages"][-1]["content"] += " more"
    other = replace(
        shard, work=replace(shard.work, sources=(describe_source(write_rows(tmp_path / "rows.jsonl", changed)),))
    )
    assert_names(find_failing(other)["round_trip"], "rows.jsonl", 4, 0)
    short = replace(
        shard, work=replace(shard.work, sources=(describe_source(write_rows(tmp_path / "rows.jsonl", ROWS[:9])),))
    )
    assert_names(find_failing(short)["round_trip"], "exist")


def test_missing_and_duplicate_origins_are_found(shard: Shard) -> None:
    origins = np.load(shard.directory / ORIGINS)
    np.save(shard.directory / ORIGINS, origins[:-1])
    assert "lines, but" in find_failing(shard)["round_trip"]
    np.save(shard.directory / ORIGINS, origins)
    with (shard.directory / ORIGINS).open("ab") as file:
        file.write(b"more")
    assert "after the array. Rebuild" in find_failing(shard)["round_trip"]
    origins[1] = origins[0]
    np.save(shard.directory / ORIGINS, origins)
    assert_names(find_failing(shard)["round_trip"], "twice")
    np.save(shard.directory / ORIGINS, origins.astype(np.float64))
    assert_names(find_failing(shard)["round_trip"], "int64", 3)


def test_an_answer_whose_first_tokens_are_not_trained_is_found(shard: Shard) -> None:
    """As if a prompt had claimed the beginning of an answer. The check renders nothing."""

    def later(rows: list[dict[str, list[int]]]) -> None:
        at = rows[4]["loss_mask"].index(1)
        rows[4]["loss_mask"][at : at + 2] = [0, 0]

    edit_rows(shard, later)
    assert_names(find_failing(shard)["answers_in_loss"], "answers")


def test_an_answer_trained_together_with_the_end_of_its_prompt_is_found(shard: Shard) -> None:
    def sooner(rows: list[dict[str, list[int]]]) -> None:
        at = rows[4]["loss_mask"].index(1)
        rows[4]["loss_mask"][at - 2 : at] = [1, 1]

    edit_rows(shard, sooner)
    assert_names(find_failing(shard)["answers_in_loss"], "answers")


def test_training_that_continues_from_one_answer_into_the_next_is_found(shard: Shard) -> None:
    def through(rows: list[dict[str, list[int]]]) -> None:
        for row in rows:
            mask, starts = row["loss_mask"], [*row["seq_start_id"], len(row["loss_mask"])]
            for start, end in pairwise(starts):
                on = [at for at in range(start, end) if mask[at]]
                mask[on[0] : on[-1]] = [1] * (on[-1] - on[0])

    edit_rows(shard, through)
    assert_names(find_failing(shard)["answers_in_loss"], "stop")


def test_answers_that_a_template_may_split_are_counted_and_not_compared(built: Shard) -> None:
    found = answers_in_loss(open_shard(built))
    assert found.passed
    assert found.facts["not_compared"] > 0  # tool calls without text are not compared
    runs = sum(len(decode_trained([row])) for row in built.rows)
    assert found.facts["compared"] + found.facts["not_compared"] == runs


def test_a_template_that_changes_the_texts_of_a_row_is_refused(tmp_path: Path) -> None:
    with raises(ConfigError, "lost_in_template", "question", 0):
        build_rows(tmp_path, ROWS[:8], template=CHATML.replace("m.content", "m.content | upper"))


def test_a_shard_in_nemotrons_style_passes_every_check(tmp_path: Path) -> None:
    extra = [{"messages": [said("user", "a"), said("assistant", "b"), said("assistant", f"c{STOP}")]}]
    shard = build_rows(tmp_path, [*ROWS, *extra], choices=NEMOTRON, template=TRAP)
    assert find_failing(shard) == {}
    assert f"b{STOP}\n<|im_start|>assistant\n<think></think>c{STOP}{STOP}\n" in decode_trained(shard.rows)
    assert shard.receipt.facts["turn_end"] == list(shard.work.plan.turn_end) != []


def test_with_header_marks_and_line_ends_consecutive_answers_are_trained_as_one_text(tmp_path: Path) -> None:
    turn = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    marked = (
        f"{{% if m.role == 'assistant' %}}{{% generation %}}{turn}{{% endgeneration %}}{{% else %}}{turn}{{% endif %}}"
    )
    rows = [
        {"messages": [said("user", f"{i}?"), said("assistant", f"{i} a"), said("assistant", f"{i} b")]}
        for i in range(8)
    ]
    shard = build_rows(tmp_path, rows, template=CHATML.replace(turn, marked))
    assert find_failing(shard) == {}
    header = "<|im_start|>assistant\n"
    assert f"{header}7 a{STOP}\n{header}7 b{STOP}\n" in decode_trained(shard.rows)
    assert shard.receipt.facts["turn_end"] == list(shard.work.plan.turn_end) != []


@pytest.mark.parametrize("template", [TRAP, HERMES])
def test_everything_before_a_first_answer_may_be_trained_like_nemotron(tmp_path: Path, template: str) -> None:
    """This may be tools or an empty system text; each sequence is compared."""
    rows = [
        {"messages": [said("assistant", f"{i} a"), said("user", f"{i}?"), said("assistant", f"{i} b")], "tools": tools}
        for i in range(60)
        for tools in ([], [TOOL])
    ]
    shard = build_rows(tmp_path, rows, choices=NEMOTRON, template=template, pack_size=512)
    assert find_failing(shard) == {}
    assert answers_in_loss(open_shard(shard)).facts["compared"] == 2 * len(rows)

    def later(held: list[dict[str, list[int]]]) -> None:
        held[0]["loss_mask"][:3] = [0] * 3

    def other(held: list[dict[str, list[int]]]) -> None:
        """only the header of the first answer"""
        start = held[0]["loss_mask"].index(0)
        held[0]["loss_mask"][start - 6 : start] = [0] * 6

    for damage in (later, other):
        copy = replace(shard, directory=Path(shutil.copytree(shard.directory, tmp_path / damage.__name__)))
        edit_rows(copy, damage)
        assert_names(find_failing(copy)["answers_in_loss"], "answers")


def test_an_answer_with_reasoning_without_a_question_passes_like_nemotron(tmp_path: Path) -> None:
    thought = {"reasoning_content": "so"}
    rows = [
        {"messages": [said("user", "a"), said("assistant", f"b{i}") | thought, said("developer", "c"), last | thought]}
        for i in range(9)
        for last in (said("assistant", f"d{i}"),)
    ]
    shard = build_rows(tmp_path, rows, choices=NEMOTRON, template=TRAP)
    assert find_failing(shard) == {}
    assert "<|im_start|>assistant\n<think>\nso" in "".join(decode_trained(shard.rows))


def test_an_answer_trained_with_a_wrong_weight_is_found(tmp_path: Path) -> None:
    rows = [{"messages": [said("user", "a"), said("assistant", "no") | {"weight": 0}, *PLAIN_TURN]} for _ in range(3)]
    shard = build_rows(tmp_path, rows)
    assert find_failing(shard) == {}
    assert decode_trained(shard.rows) == [f"yes{STOP}"] * 3
    every = build_rows(tmp_path / "b", [json.loads(json.dumps(r).replace('"weight": 0', '"weight": 1')) for r in rows])
    assert decode_trained(every.rows) == [f"no{STOP}", f"yes{STOP}"] * 3
    wrong = replace(shard, directory=every.directory, receipt=every.receipt)
    assert_names(find_failing(wrong)["answers_in_loss"], "answers")


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


PLAIN_TURN = (said("user", "b"), said("assistant", "yes"))
