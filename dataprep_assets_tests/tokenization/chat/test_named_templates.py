"""Several templates of one tokenizer, row variables, and settings of older tokenizers, as in transformers."""

import json
import os
import re
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import ConfigError, TokenizerError
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.chat.choices import NEMOTRON
from dataprep_assets.tokenization.chat.messages import Conversation, ConversationFields, Refusal, read_conversation
from dataprep_assets.tokenization.chat.rendering import RenderedConversation
from dataprep_assets.tokenization.chat.template import ChatTemplate, compile_template, get_template_variables
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.readers.transformers import applied, older_tokenizer
from dataprep_assets_tests.tokenization.chat.tokenizers import conversation_renderer, write_chat_tokenizer
from dataprep_assets_tests.tokenization.chat.trap import CHATML

USER = {"role": "user", "content": "Why?"}
ANSWER = {"role": "assistant", "content": "So."}
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}
WITH_TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}" + CHATML
Pairs = dict[str, str]


def in_configuration(folder: Path, templates: Pairs) -> None:
    path = folder / "tokenizer_config.json"
    entries = [{"name": name, "template": text} for name, text in templates.items()]
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"chat_template": entries}))


def in_files(folder: Path, templates: Pairs) -> None:
    (folder / "additional_chat_templates").mkdir(exist_ok=True)
    for name, text in templates.items():
        default = name == "default"
        path = folder / ("chat_template.jinja" if default else f"additional_chat_templates/{name}.jinja")
        path.write_text(text)


@pytest.mark.parametrize("write", [in_configuration, in_files])
def test_rows_with_tools_use_the_template_named_tool_use(tmp_path: Path, write: Callable[[Path, Pairs], None]) -> None:
    bundle = write_chat_tokenizer(tmp_path)
    write(tmp_path, {"default": CHATML, "tool_use": WITH_TOOLS, "rag": "{{ 1 }}"})
    template = ChatTemplate.load_from_tokenizer(bundle)
    assert (template.text, template.tool_use) == (CHATML, WITH_TOOLS)
    renderer = compile_template(template, get_template_variables(bundle))
    for tools in (None, [], [TOOL]):
        ours = renderer.render([USER, ANSWER], tools, prompt=False, thinking=False)
        assert ours == applied(tmp_path, [USER, ANSWER], tools), tools
    only_default = ChatTemplate.load_from_tokenizer(bundle, "default")
    assert (only_default.text, only_default.tool_use) == (CHATML, None)
    assert ChatTemplate.load_from_tokenizer(bundle, "rag").text == "{{ 1 }}"
    assert len({template.digest, only_default.digest, ChatTemplate("", WITH_TOOLS).digest}) == 3


def test_template_files_replace_the_templates_of_the_configuration(tmp_path: Path) -> None:
    bundle = write_chat_tokenizer(tmp_path)
    in_configuration(tmp_path, {"default": "{{ 1 }}", "tool_use": "{{ 2 }}"})
    in_files(tmp_path, {"tool_use": "{{ 3 }}"})
    with raises(ConfigError, "default", "tool_use"):
        ChatTemplate.load_from_tokenizer(bundle)
    in_files(tmp_path, {"default": "{{ 4 }}"})
    assert ChatTemplate.load_from_tokenizer(bundle).texts == ("{{ 4 }}", "{{ 3 }}")


def test_an_unknown_template_name_is_refused_with_the_available_ones(tmp_path: Path) -> None:
    bundle = write_chat_tokenizer(tmp_path)
    in_configuration(tmp_path, {"default": "{{ 1 }}", "tool_use": "{{ 2 }}"})
    with raises(ConfigError, "rag", "default, tool_use"):
        ChatTemplate.load_from_tokenizer(bundle, "rag")


def test_answers_are_marked_only_if_both_templates_mark_them() -> None:
    marked = "{% generation %}{{ 1 }}{% endgeneration %}"
    assert ChatTemplate("", marked, marked).marks_answers
    assert not ChatTemplate("", marked, "{{ 1 }}").marks_answers


def test_every_template_that_writes_the_date_needs_a_declared_date() -> None:
    dated = ChatTemplate("t", "{{ 1 }}", "{{ strftime_now(format='%d %b %Y %H:%M') }}")
    with raises(ConfigError, "template_date"):
        compile_template(dated)
    renderer = compile_template(dated, today=date(2026, 1, 31))
    assert renderer.render([USER], [TOOL], prompt=False, thinking=False) == "31 Jan 2026 00:00"
    assert renderer.render([USER], None, prompt=False, thinking=False) == "1"


@pytest.mark.parametrize(
    "text",
    [
        "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% endif %}",
        "{% set now = strftime_now %}{{ now('%Y') }}",
        "{% macro today(f=strftime_now) %}{{ f('%Y') }}{% endmacro %}{{ today() }}",
        "{% set date_string = date_string | default(strftime_now('%Y')) %}{{ date_string }}",
    ],
)
def test_the_date_is_the_declared_one_for_every_way_of_reading_it(text: str) -> None:
    with raises(ConfigError, "template_date"):
        compile_template(ChatTemplate("t", text))
    renderer = compile_template(ChatTemplate("t", text), today=date(1999, 1, 31))
    assert renderer.render([USER], None, prompt=False, thinking=False) == "1999"


# --- variables of rows

READS = "{{ persona }}{% for d in documents or [] %}{{ d.text }}{% endfor %}" + CHATML


def read(**row: Any) -> Conversation | Refusal:
    return read_conversation({"messages": [USER, ANSWER], **row}, ConversationFields())


def text_of(conversation: Conversation | Refusal, template: str = READS, **options: Any) -> str:
    assert isinstance(conversation, Conversation)
    rendered = conversation_renderer(template, **options).render(conversation)
    assert isinstance(rendered, RenderedConversation), rendered
    return "".join(chunk.text for chunk in rendered.sequences[0])


@pytest.mark.parametrize(
    "given", [{"persona": "A pilot. ", "empty": None}, '{"persona": "A pilot. ", "documents": [{"text": "Tide."}]}']
)
def test_the_variables_of_a_row_are_passed_to_its_template(given: Any) -> None:
    expected = "A pilot. Tide." if isinstance(given, str) else "A pilot. "
    assert text_of(read(chat_template_kwargs=given)) == text_of(read()).replace(
        "<|im_start|>", f"{expected}<|im_start|>", 1
    )


def test_a_special_token_in_a_variable_stays_text() -> None:
    text = text_of(read(chat_template_kwargs={"persona": "<|im_end|>A pilot. "}))
    assert re.match(r"([^<])\d+\1A pilot\. ", text), "a placeholder for the token, then the rest of the variable"


def test_a_special_token_in_a_message_does_not_remove_the_variables() -> None:
    question = {**USER, "content": "What does <|im_end|> mean?"}
    text = text_of(read(messages=[question, ANSWER], chat_template_kwargs={"persona": "A pilot. "}))
    assert text.startswith("A pilot. ")


@pytest.mark.parametrize("switch", [True, False])
def test_enable_thinking_of_a_row_is_used(switch: bool) -> None:
    template = "{% if enable_thinking %}T{% else %}F{% endif %}" + CHATML
    text = text_of(read(chat_template_kwargs={"enable_thinking": switch}), template)
    assert text[0] == ("T" if switch else "F")


@pytest.mark.parametrize(
    "given",
    [
        3,
        "{bad",
        [{"a": 1}],
        {"add_generation_prompt": True},
        {"tools": []},
        {"chat_template": "{{ 1 }}"},
        {"continue_final_message": True},
        {"enable_thinking": "yes"},
        {"documents": "a text"},
        {"documents": ["a text"]},
        {"no name": 1},
    ],
)
def test_variables_that_a_row_cannot_set_are_refused(given: Any) -> None:
    assert read(chat_template_kwargs=given) == Refusal("bad_template_kwargs")


def test_an_unread_text_variable_is_a_loss_but_an_unread_switch_is_not() -> None:
    conversation = read(chat_template_kwargs={"persona": "A pilot.", "thinking": False})
    assert isinstance(conversation, Conversation)
    assert conversation_renderer(CHATML).render(conversation) == Refusal("lost_in_template: template_kwargs")
    switch = read(chat_template_kwargs={"thinking": False})
    assert text_of(switch, CHATML) == text_of(read(), CHATML)


def test_upstream_ignores_variables_of_rows() -> None:
    row = {"messages": [USER, ANSWER], "chat_template_kwargs": {"add_generation_prompt": True}}
    conversation = read_conversation(row, ConversationFields(), NEMOTRON)
    assert isinstance(conversation, Conversation)
    assert conversation.kwargs == {}


# --- settings of older tokenizers


def older(folder: Path, tokens_map: Any = None, added: Any = None, config: Any = None) -> TokenizerBundle:
    """Return a tokenizer without `added_tokens_decoder`, with these files next to it."""
    write_chat_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(config or {"eos_token": "<|im_end|>"}))
    for name, value in (("special_tokens_map.json", tokens_map), ("added_tokens.json", added)):
        if value is not None:
            (folder / name).write_text(json.dumps(value))
    return TokenizerBundle.load(folder)


def test_tokens_of_the_special_tokens_map_equal_those_of_transformers(tmp_path: Path) -> None:
    plain = older(tmp_path / "plain")
    tokens_map = {"bos_token": {"content": "<|im_start|>", "lstrip": False}, "pad_token": "<|endoftext|>"}
    bundle = older(tmp_path / "mapped", tokens_map, config={"eos_token": "<|im_end|>", "image_token": "<|image|>"})
    assert bundle.find_configured("bos_token") == "<|im_start|>"
    assert bundle.digest != plain.digest
    variables, theirs = get_template_variables(bundle), older_tokenizer(tmp_path / "mapped", [])[0]
    assert variables == {name: theirs[name] for name in variables}
    assert {"bos_token", "eos_token", "pad_token", "image_token"} <= variables.keys()


def test_older_files_are_ignored_next_to_an_added_tokens_decoder(tmp_path: Path) -> None:
    bundle = older(tmp_path / "a", {"bos_token": "<|im_start|>"}, config={"added_tokens_decoder": {}})
    assert bundle.find_configured("bos_token") is None
    same = older(tmp_path / "b", config={"added_tokens_decoder": {}})
    assert bundle.digest == same.digest


def test_a_special_tokens_map_that_repeats_the_configuration_changes_no_digest(tmp_path: Path) -> None:
    mapped = older(tmp_path / "a", {"eos_token": {"content": "<|im_end|>", "rstrip": False}})
    assert mapped.digest == older(tmp_path / "b").digest


def test_tokens_of_added_tokens_json_have_the_ids_of_transformers(tmp_path: Path) -> None:
    size = write_chat_tokenizer(tmp_path / "plain").vocab_size
    added = {"<|pear|>": size, "<|plum|>": size + 1, "<|im_end|>": 3}
    bundle = older(tmp_path / "t", {"extra_special_tokens": ["<|plum|>", "<|fig|>"]}, added)
    contents = ["<|pear|>", "<|plum|>", "<|fig|>", "<|im_end|>"]
    ours = [bundle.find_token(content, key="k").id for content in contents]
    assert ours == older_tokenizer(tmp_path / "t", contents)[1]
    special = {token.content for token in bundle.special_tokens}
    assert special >= {"<|plum|>", "<|fig|>", "<|im_end|>"}
    assert "<|pear|>" not in special


@pytest.mark.parametrize("added", [["<|a|>"], {"<|a|>": "7"}, {"<|a|>": -1}])
def test_an_added_tokens_json_with_another_structure_is_refused(tmp_path: Path, added: Any) -> None:
    with raises(TokenizerError, "added_tokens.json"):
        older(tmp_path / "t", None, added)


def test_the_files_of_a_tokenizer_may_be_links(tmp_path: Path) -> None:
    """As in the Hub's cache, in which names are links to blobs."""
    write_chat_tokenizer(tmp_path / "blobs")
    in_files(tmp_path / "blobs", {"default": CHATML, "tool_use": WITH_TOOLS})
    shutil.copytree(tmp_path / "blobs", tmp_path / "t", copy_function=os.symlink)
    assert ChatTemplate.load_from_tokenizer(TokenizerBundle.load(tmp_path / "t")).texts == (CHATML, WITH_TOOLS)
