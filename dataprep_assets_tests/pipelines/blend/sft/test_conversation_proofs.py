"""Proofs that need the text of a shard: each fails on its own planted faults, naming the place."""

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
    source,
    trained_texts,
    write_rows,
)
from dataprep_assets_tests.pipelines.blend.sft.proven_shards import ROWS, edit, failing, opened
from dataprep_assets_tests.tokenization.chat.tokenizers import chat_bundle
from dataprep_assets_tests.tokenization.chat.trap import CHATML, HERMES, TRAP

STOP = "<|im_end|>"


def test_decoded_sequences_have_brackets_around_exactly_the_answers(built: Shard) -> None:
    samples = opened(built).compared_sequences
    texts = [bracket_trained_text(sample.tokens, sample.mask, chat_bundle()) for sample in samples]
    assert len(texts) == built.receipt.facts["sequences"]
    joined = "".join(texts)
    for row in ROWS[:60]:
        for message in row["messages"]:
            if message["role"] == "assistant" and not message.get("tool_calls"):
                assert f"{message['content']}{STOP}{CLOSE}" in joined
    assert all(f"{OPEN}<|im_start|>" not in text for text in texts)


def test_the_table_has_a_row_per_kind_of_turn_with_its_trained_tokens(built: Shard) -> None:
    rows = [dict(row) for row in sampled_sequences_trained(opened(built, shown=1000)).table]
    kinds = {row["turn"]: row for row in rows}
    assert set(kinds) == {"answer", "answer with reasoning", "call"}
    assert sum(int(row[part]) for row in rows for part in PARTS) == built.receipt.facts["trained_tokens"]
    assert all(row["stop"] == row["turns"] for row in rows)
    assert all((row["reasoning"] != 0) == ("reasoning" in kind) for kind, row in kinds.items())
    assert all((row["call"] != 0) == ("call" in kind) for kind, row in kinds.items())
    assert all((row["answer"] != 0) == ("answer" in kind) for kind, row in kinds.items())
    assert all(f"{STOP}{CLOSE}" in str(row["text"]) for row in rows)
    assert kinds["answer"]["template"] == 0


def test_the_parts_of_a_turn_are_counted_by_their_tokens(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "look_up", "arguments": {"word": "buoy"}}}
    thoughtful = {"role": "assistant", "content": "So it is.", "reasoning_content": "A buoy?", "tool_calls": [call]}
    row = {"messages": [{"role": "user", "content": "Is it?"}, thoughtful], "tools": [TOOL]}
    shard = build_rows(tmp_path, [row])
    (shown,) = sampled_sequences_trained(opened(shard)).table
    assert (shown["turn"], shown["turns"], shown["stop"]) == ("call and text with reasoning", 1, 1)
    reference = ReferenceEngine(chat_bundle(), "text")
    for part, text in (("reasoning", "A buoy?"), ("answer", "So it is.")):
        assert shown[part] == len(reference.encode([text])[0])
    (trained,) = trained_texts(shard.rows)
    assert trained.startswith("A buoy?\n</think>\nSo it is.")
    assert 0 < shown["template"] < shard.receipt.facts["trained_tokens"] / 2
    assert sum(int(shown[part]) for part in PARTS) == shard.receipt.facts["trained_tokens"]


def test_a_decoded_sequence_with_nothing_to_train_fails(shard: Shard) -> None:
    def change(rows: list[dict[str, list[int]]]) -> None:
        rows[0]["loss_mask"] = [0] * len(rows[0]["loss_mask"])

    edit(shard, change)
    assert_names(failing(shard)["sampled_sequences_trained"], "row 0", "sequence 0", "trained")


def test_ids_that_are_not_the_conversations_are_found(shard: Shard) -> None:
    edit(shard, lambda rows: rows[5]["input_ids"].__setitem__(3, 77))
    assert_names(failing(shard)["round_trip"], "ids", "row 5")


def test_a_source_that_changed_is_found(shard: Shard, tmp_path: Path) -> None:
    changed = json.loads(json.dumps(ROWS))
    changed[3]["messages"][-1]["content"] += " more"
    other = replace(shard, work=replace(shard.work, sources=(source(write_rows(tmp_path / "rows.jsonl", changed)),)))
    assert_names(failing(other)["round_trip"], "rows.jsonl", 4, 0)
    short = replace(shard, work=replace(shard.work, sources=(source(write_rows(tmp_path / "rows.jsonl", ROWS[:9])),)))
    assert_names(failing(short)["round_trip"], "exist")


def test_origins_that_are_short_or_double_are_found(shard: Shard) -> None:
    origins = np.load(shard.directory / ORIGINS)
    np.save(shard.directory / ORIGINS, origins[:-1])
    assert "lines for" in failing(shard)["round_trip"]
    np.save(shard.directory / ORIGINS, origins)
    with (shard.directory / ORIGINS).open("ab") as file:
        file.write(b"more")
    assert "after the array. Rebuild" in failing(shard)["round_trip"]
    origins[1] = origins[0]
    np.save(shard.directory / ORIGINS, origins)
    assert_names(failing(shard)["round_trip"], "twice")
    np.save(shard.directory / ORIGINS, origins.astype(np.float64))
    assert_names(failing(shard)["round_trip"], "int64", 3)


def test_an_answer_of_which_the_first_tokens_are_not_trained_is_found(shard: Shard) -> None:
    """As by a prompt that takes the beginning of an answer for its own. Nothing is rendered to see it."""

    def later(rows: list[dict[str, list[int]]]) -> None:
        at = rows[4]["loss_mask"].index(1)
        rows[4]["loss_mask"][at : at + 2] = [0, 0]

    edit(shard, later)
    assert_names(failing(shard)["answers_in_loss"], "answers")


def test_an_answer_that_is_trained_with_the_end_of_its_prompt_is_found(shard: Shard) -> None:
    def sooner(rows: list[dict[str, list[int]]]) -> None:
        at = rows[4]["loss_mask"].index(1)
        rows[4]["loss_mask"][at - 2 : at] = [1, 1]

    edit(shard, sooner)
    assert_names(failing(shard)["answers_in_loss"], "answers")


def test_what_is_trained_from_one_answer_into_the_next_is_found(shard: Shard) -> None:
    def through(rows: list[dict[str, list[int]]]) -> None:
        for row in rows:
            mask, starts = row["loss_mask"], [*row["seq_start_id"], len(row["loss_mask"])]
            for start, end in pairwise(starts):
                on = [at for at in range(start, end) if mask[at]]
                mask[on[0] : on[-1]] = [1] * (on[-1] - on[0])

    edit(shard, through)
    assert_names(failing(shard)["answers_in_loss"], "stop")


def test_answers_whose_text_a_template_may_take_apart_are_counted_and_not_compared(built: Shard) -> None:
    found = answers_in_loss(opened(built))
    assert found.passed
    assert found.facts["not_compared"] > 0  # calls without a text of their own
    runs = sum(len(trained_texts([row])) for row in built.rows)
    assert found.facts["compared"] + found.facts["not_compared"] == runs


def test_a_template_that_writes_other_texts_than_a_row_has_is_refused(tmp_path: Path) -> None:
    with raises(ConfigError, "lost_in_template", "question", 0):
        build_rows(tmp_path, ROWS[:8], template=CHATML.replace("m.content", "m.content | upper"))


def test_a_shard_like_those_of_nemotron_passes_every_proof(tmp_path: Path) -> None:
    extra = [{"messages": [said("user", "a"), said("assistant", "b"), said("assistant", f"c{STOP}")]}]
    shard = build_rows(tmp_path, [*ROWS, *extra], choices=NEMOTRON, template=TRAP)
    assert failing(shard) == {}
    assert f"b{STOP}\n<|im_start|>assistant\n<think></think>c{STOP}{STOP}\n" in trained_texts(shard.rows)
    assert shard.receipt.facts["turn_end"] == list(shard.work.plan.turn_end) != []


def test_marks_around_headers_and_line_ends_train_consecutive_answers_as_one_text(tmp_path: Path) -> None:
    turn = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    marked = (
        f"{{% if m.role == 'assistant' %}}{{% generation %}}{turn}{{% endgeneration %}}{{% else %}}{turn}{{% endif %}}"
    )
    rows = [
        {"messages": [said("user", f"{i}?"), said("assistant", f"{i} a"), said("assistant", f"{i} b")]}
        for i in range(8)
    ]
    shard = build_rows(tmp_path, rows, template=CHATML.replace(turn, marked))
    assert failing(shard) == {}
    header = "<|im_start|>assistant\n"
    assert f"{header}7 a{STOP}\n{header}7 b{STOP}\n" in trained_texts(shard.rows)
    assert shard.receipt.facts["turn_end"] == list(shard.work.plan.turn_end) != []


@pytest.mark.parametrize("template", [TRAP, HERMES])
def test_all_that_precedes_a_first_answer_may_be_trained_like_nemotron(tmp_path: Path, template: str) -> None:
    """Whatever it is: tools, or an empty system text, and each sequence is compared."""
    rows = [
        {"messages": [said("assistant", f"{i} a"), said("user", f"{i}?"), said("assistant", f"{i} b")], "tools": tools}
        for i in range(60)
        for tools in ([], [TOOL])
    ]
    shard = build_rows(tmp_path, rows, choices=NEMOTRON, template=template, pack_size=512)
    assert failing(shard) == {}
    assert answers_in_loss(opened(shard)).facts["compared"] == 2 * len(rows)

    def later(held: list[dict[str, list[int]]]) -> None:
        held[0]["loss_mask"][:3] = [0] * 3

    def other(held: list[dict[str, list[int]]]) -> None:  # of the first answer its header alone
        start = held[0]["loss_mask"].index(0)
        held[0]["loss_mask"][start - 6 : start] = [0] * 6

    for damage in (later, other):
        copy = replace(shard, directory=Path(shutil.copytree(shard.directory, tmp_path / damage.__name__)))
        edit(copy, damage)
        assert_names(failing(copy)["answers_in_loss"], "answers")


def test_an_answer_with_reasoning_that_follows_no_question_passes_like_nemotron(tmp_path: Path) -> None:
    thought = {"reasoning_content": "so"}
    rows = [
        {"messages": [said("user", "a"), said("assistant", f"b{i}") | thought, said("developer", "c"), last | thought]}
        for i in range(9)
        for last in (said("assistant", f"d{i}"),)
    ]
    shard = build_rows(tmp_path, rows, choices=NEMOTRON, template=TRAP)
    assert failing(shard) == {}
    assert "<|im_start|>assistant\n<think>\nso" in "".join(trained_texts(shard.rows))


def test_an_answer_that_is_trained_against_its_weight_is_found(tmp_path: Path) -> None:
    rows = [{"messages": [said("user", "a"), said("assistant", "no") | {"weight": 0}, *PLAIN_TURN]} for _ in range(3)]
    shard = build_rows(tmp_path, rows)
    assert failing(shard) == {}
    assert trained_texts(shard.rows) == [f"yes{STOP}"] * 3
    every = build_rows(tmp_path / "b", [json.loads(json.dumps(r).replace('"weight": 0', '"weight": 1')) for r in rows])
    assert trained_texts(every.rows) == [f"no{STOP}", f"yes{STOP}"] * 3
    wrong = replace(shard, directory=every.directory, receipt=every.receipt)
    assert_names(failing(wrong)["answers_in_loss"], "answers")


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


PLAIN_TURN = (said("user", "b"), said("assistant", "yes"))
