"""Views of RL records in their trainers: 200 prompts, answers and other fields equal the values in the source."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dataprep_assets_tests.pipelines.blend.dagster_blend import Blend, find_failed, open_blend, read_evaluations
from dataprep_assets_tests.pipelines.blend.rl.view_records import FLAT_TOOL, declare_mixed, make_record
from dataprep_assets_tests.project import failure_of
from dataprep_assets_tests.readers import rl_trainers
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer

pytestmark = pytest.mark.slow

ROWS = 200
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
    "{% for call in m.tool_calls or [] %}{{ '<tool_call>' + call.function.name + ' ' + call.function.arguments }}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blend]:
    home = tmp_path_factory.mktemp("trainers")
    write_chat_tokenizer(home / "tokenizer")
    with open_blend(declare_mixed(home / "sources", ROWS, 10, num_shards=1), home / "artifacts") as finished:
        outcomes = finished.run_all()
        assert all(outcome.success for outcome in outcomes), failure_of(outcomes[-1])
        assert find_failed(read_evaluations(outcomes)) == set()
        yield finished


def read_source(number: int) -> dict[str, Any]:
    """Return the source's record, in the order of the file."""
    return make_record(Random(f"train {number}"), number)


def find_answer(value: dict[str, Any]) -> Any:
    return value["reward_model"]["ground_truth"] if "reward_model" in value else value.get("expected_answer", ...)


def decode(stored: Any, format: str) -> Any:
    """Return a ground truth as a reward function reads it."""
    return ... if format == "none" else json.loads(stored) if format == "json" else stored


def find_texts(value: dict[str, Any]) -> list[str]:
    """Return the texts of a prompt in any form."""
    params = value.get("responses_create_params", {})
    prompt = params.get("input", value.get("messages", value.get("prompt")))
    if isinstance(prompt, str):
        return [prompt]
    texts = []
    for item in prompt:
        content = item.get("content", item.get("output"))
        texts.append("".join(part["text"] for part in content) if isinstance(content, list) else content or "")
    return texts


def assert_same(found: Any, expected: Any) -> None:
    assert (found, type(found)) == (expected, type(expected))


def load_tokenizer(made: Blend) -> Path:
    return made.root.parent / "tokenizer"


def test_verl_reads_every_prompt_and_answer(made: Blend) -> None:
    files = sorted(made.directory("verl").glob("train-*.parquet"))
    rows = rl_trainers.verl_rows(files, load_tokenizer(made), TEMPLATE)
    assert len(rows) == ROWS  # verl's filter of long prompts would also drop a prompt that fails to render
    for number, row in enumerate(rows):
        value, extra = read_source(number), row["extra_info"]
        assert row["index"] == number
        assert row["data_source"] == value.get("data_source", "knots")
        assert [message["content"] or "" for message in row["raw_prompt"]] == find_texts(value)
        assert_same(decode(row["reward_model"]["ground_truth"], extra["ground_truth_format"]), find_answer(value))
        assert json.loads(extra["record"])["level"] == value["level"]
        assert row["ids"]


def test_verls_own_reward_function_reads_a_text(made: Blend) -> None:
    rows = rl_trainers.verl_rows(sorted(made.directory("verl").glob("train-*.parquet")), load_tokenizer(made), TEMPLATE)
    chosen = [
        row for row in rows if row["data_source"] == "openai/gsm8k" and row["reward_model"]["ground_truth"] == "144"
    ]
    assert chosen
    for row in chosen:
        truth, extra = row["reward_model"]["ground_truth"], row["extra_info"]
        assert rl_trainers.verl_score("openai/gsm8k", "So #### 144", truth, extra) == 1
        assert rl_trainers.verl_score("openai/gsm8k", "So #### 145", truth, extra) == 0


def test_grpo_gives_every_answer_to_the_reward_function(made: Blend) -> None:
    rows = rl_trainers.grpo_rewarded(made.directory("grpo"), "train", load_tokenizer(made), TEMPLATE, steps=ROWS // 50)
    assert len(rows) == ROWS
    for number, row in enumerate(rows):
        value = read_source(number)
        assert [message["content"] or "" for message in row["prompt"]] == find_texts(value)
        assert_same(decode(row["solution"], row["solution_format"]), find_answer(value))
        assert row["data_source"] == value.get("data_source", "knots")
        assert json.loads(row["record"])["level"] == value["level"]
        tools = value.get("tools", value.get("responses_create_params", {}).get("tools"))
        assert (None if row["tools"] is None else json.loads(row["tools"])) == tools
        assert row["ids"]


def test_nemo_gym_reads_every_line(made: Blend) -> None:
    rows, offending = rl_trainers.gym_rows(made.directory("nemo_gym") / "train.jsonl")
    assert offending == []
    assert len(rows) == ROWS
    for number, row in enumerate(rows):
        value, params = read_source(number), row["responses_create_params"]
        assert_same(find_answer(row), find_answer(value))
        assert row["level"] == value["level"]
        items = params["input"]
        found = [items] if isinstance(items, str) else [i.get("content", i.get("output")) or "" for i in items]
        found = ["".join(part["text"] for part in text) if isinstance(text, list) else text for text in found]
        assert [text for text in found if text] == [text for text in find_texts(value) if text]
        has_tools = "tools" in value or "tools" in value.get("responses_create_params", {})
        assert [tool["name"] for tool in params.get("tools", [])] == [FLAT_TOOL["name"]] * has_tools
        assert params.get("temperature") == value.get("responses_create_params", {}).get("temperature")
