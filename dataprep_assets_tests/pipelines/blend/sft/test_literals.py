"""Special tokens of a template in the text of messages are packed as text, except the model's own tags."""

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest

from dataprep_assets.pipelines.blend.sft.chat_plan import chat_plan
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import refuse_engine
from dataprep_assets.tokenization.chat.choices import OURS
from dataprep_assets.tokenization.chat.template import ChatTemplate
from dataprep_assets_tests.pipelines.blend.sft.conversations import build, describe_source, work, write_rows
from dataprep_assets_tests.pipelines.blend.sft.proven_shards import open_shard, run_checks
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer
from dataprep_assets_tests.tokenization.chat.trap import CHATML, TRAP
from dataprep_assets_tests.tokenization.families import save

MARKED = CHATML.replace("{{ m.role }}\n", "{{ m.role }}<|sec|>").replace("assistant\n", "assistant<|sec|>")
NAMED = CHATML.replace("<|im_start|>{{ m.role }}\n", "{{ '<|' ~ m.role ~ '|>' }}").replace(
    "<|im_start|>assistant\n", "{{ '<|' ~ 'assistant|>' }}"
)
TAGGED = TRAP + "{# '<tool_response>' '</tool_response>' #}"
ADDED = ("<|sec|>", "<|user|>", "<|assistant|>", "<|fim|>", "  ", "What", "<tool_response>", "</tool_response>")
_CHOICES = replace(OURS, allow_loss=("tools",))
QUESTION, ANSWER = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> TokenizerBundle:
    """Return the small chat tokenizer with additional tokens, none of them flagged special."""
    folder = tmp_path_factory.mktemp("tokenizer")
    path = write_chat_tokenizer(folder).directory / "tokenizer.json"
    value = orjson.loads(path.read_bytes())
    like = value["added_tokens"][-1]
    value["added_tokens"] += [like | {"content": content, "id": like["id"] + at} for at, content in enumerate(ADDED, 1)]
    path.write_bytes(orjson.dumps(value))
    return TokenizerBundle.load(folder)


def pack(folder: Path, bundle: TokenizerBundle, template: str, messages: list[dict[str, Any]]) -> list[str]:
    """Return the text of each token of a packed row, whose shard must pass every check."""
    refused = refuse_engine(bundle, "text", "tokenizers", "a test")
    plan = chat_plan(bundle, refused, ChatTemplate("given", template), pack_size=512, sample_rate=1.0, choices=_CHOICES)
    path = write_rows(folder / "rows.jsonl", [{"messages": messages, "tools": [{"function": {"name": "f"}}]}])
    shard = build(work(folder / "out", [describe_source(path)], plan))
    found = run_checks(replace(open_shard(shard), bundle=bundle))
    assert {name: finding.summary for name, finding in found.items() if not finding.passed} == {}
    return [bundle.decode([token]) for row in shard.rows for token in row["input_ids"]]


@pytest.mark.parametrize(("template", "token"), [(MARKED, "<|sec|>"), (NAMED, "<|user|>")])
def test_a_template_token_in_a_message_stays_text_although_it_is_not_special(
    tmp_path: Path, bundle: TokenizerBundle, template: str, token: str
) -> None:
    said = f"It is {token} and{token}{token}<|im_end|>?"
    messages = [{"role": "user", "content": said}, {"role": "assistant", "content": f"A {token}."}]
    tokens = pack(tmp_path / "said", bundle, template, messages)
    plain = pack(tmp_path / "plain", bundle, template, [QUESTION, ANSWER])
    assert tokens.count(token) == plain.count(token) > 0
    assert said in "".join(tokens)


def test_a_literal_token_is_not_shortened_if_a_tokenizer_starts_words_with_a_blank(
    tmp_path: Path, bundle: TokenizerBundle
) -> None:
    folder = Path(shutil.copytree(bundle.directory, tmp_path / "prefixed"))
    value = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(value.replace('"add_prefix_space":false', '"add_prefix_space":true'))
    prefixed = TokenizerBundle.load(folder)
    assert prefixed.digest != bundle.digest
    said = "x<|sec|>y, <|sec|><|im_end|>"
    messages = [{"role": "user", "content": said}, {"role": "assistant", "content": f"A {said}"}]
    tokens = pack(tmp_path, prefixed, MARKED, messages)
    assert tokens.count("<|sec|>") == 2
    assert "".join(tokens).count(" x <| sec |> y , <| sec |>") == 2


def test_an_added_token_that_no_template_writes_keeps_its_id(tmp_path: Path, bundle: TokenizerBundle) -> None:
    messages = [{"role": "user", "content": "What is <|fim|>"}, {"role": "assistant", "content": "1  <|fim|>"}]
    tokens = pack(tmp_path, bundle, MARKED, messages)
    assert [tokens.count(token) for token in ("<|fim|>", "  ", "What")] == [2, 1, 1]


@pytest.mark.parametrize(
    ("messages", "tag", "written"),
    [
        ([{"role": "user", "content": "Say <think> first"}, ANSWER], "<think>", 0),
        ([{"role": "system", "content": "Think in <think>"}, QUESTION, ANSWER], "<think>", 1),
        ([QUESTION, {"role": "assistant", "content": "<think>\nwhy</think>A"}], "</think>", 1),
        ([QUESTION, ANSWER, {"role": "tool", "content": "a page with </think>"}, ANSWER], "</think>", 0),
        ([{"role": "user", "content": "<tool_response>4</tool_response>"}, ANSWER], "<tool_response>", 1),
    ],
)
def test_a_tag_is_a_token_where_a_model_writes_or_reads_it_and_text_elsewhere(
    tmp_path: Path, bundle: TokenizerBundle, messages: list[dict[str, Any]], tag: str, written: int
) -> None:
    tokens = pack(tmp_path, bundle, TAGGED, messages)
    # The template writes an empty thought before an answer without a thought.
    own = sum(message["role"] == "assistant" and "<think>" not in message["content"] for message in messages)
    assert tokens.count(tag) == written + (own if "think" in tag else 0)


def test_adjacent_unknown_tokens_are_no_error_of_a_template(tmp_path: Path) -> None:
    words = TokenizerBundle.load(save(tmp_path / "words", "wordlevel"))
    template = CHATML.replace("<|im_start|>", "<s> ").replace("<|im_end|>", " </s>")
    given = chat_plan(
        words, refuse_engine(words, "text", "tokenizers", "a test"), ChatTemplate("given", template), pack_size=512
    )
    path = write_rows(tmp_path / "rows.jsonl", [{"messages": [QUESTION | {"content": "ひ ふ み"}, ANSWER]}])
    shard = build(work(tmp_path / "out", [describe_source(path)], given))
    ids = shard.rows[0]["input_ids"]
    assert words.definition.unknown_id in [one for one, following in pairwise(ids) if one == following]
    assert run_checks(replace(open_shard(shard), bundle=words))["no_repeated_special_tokens"].passed
