"""Templates: found or refused by name, digested by text, rendered exactly as transformers renders them."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.tokenization.chat.template import ChatTemplate, TemplateRenderError, compile_template
from dataprep_assets_tests.readers.transformers import rendered

USER = {"role": "user", "content": "What is <b> & 'it'?"}
TOOLS = [
    {"type": "function", "function": {"name": "wetter", "description": "für <b>", "parameters": {"b": 1, "a": [None]}}}
]
CALL = {"function": {"name": "wetter", "arguments": {"ort": "Köln", "tage": 3, "wie": {"x": [True]}}}}
CONVERSATIONS: list[dict[str, Any]] = [
    {"messages": [USER]},
    {"messages": [{"role": "system", "content": "Kurz."}, USER, {"role": "assistant", "content": " Das.\n"}]},
    {
        "messages": [
            USER,
            {"role": "assistant", "content": "", "reasoning_content": " Hm.\n", "tool_calls": [CALL, CALL]},
            {"role": "tool", "content": "12°"},
            {"role": "tool", "content": "13°"},
            {"role": "assistant", "content": "Warm.", "reasoning_content": "12 or 13"},
            USER,
            {"role": "assistant", "content": "So."},
        ],
        "tools": TOOLS,
    },
]


@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_nano3_renders_as_transformers_renders_it(conversation: dict[str, Any], thinking: bool, prompt: bool) -> None:
    template = ChatTemplate.load("nano3")
    ours = compile_template(template).render(
        conversation["messages"], conversation.get("tools"), prompt=prompt, thinking=thinking
    )
    theirs = rendered(template.text, conversation, add_generation_prompt=prompt, enable_thinking=thinking)
    assert ours == theirs


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_the_template_of_a_published_tokenizer_renders_as_transformers_renders_it(
    conversation: dict[str, Any], shared: Path
) -> None:
    config = json.loads((shared / "tokenizers" / "qwen3" / "tokenizer_config.json").read_bytes())
    template = ChatTemplate("qwen3", config["chat_template"])
    ours = compile_template(template).render(
        conversation["messages"], conversation.get("tools"), prompt=True, thinking=True
    )
    assert ours == rendered(template.text, conversation, add_generation_prompt=True, enable_thinking=True)


FEATURES = (
    "{% for m in messages %}\n  {% if m.role == 'tool' %}{% continue %}{% endif %}\n"
    "  {%- generation -%}{{ m | tojson(sort_keys=true) }}{%- endgeneration -%}\n{% endfor %}\n{{ bos_token }}"
)


def test_loop_controls_the_generation_tag_and_variables_are_those_of_transformers() -> None:
    messages = [
        USER,
        {"role": "tool", "content": "left out"},
        {"role": "assistant", "content": "Ja.", "tool_calls": [CALL]},
    ]
    ours = compile_template(ChatTemplate.load(FEATURES), {"bos_token": "<s>"}).render(
        messages, None, prompt=False, thinking=True
    )
    assert ours == rendered(FEATURES, {"messages": messages}, bos_token="<s>")
    assert "<b> & " in ours
    assert "left out" not in ours


def test_nano3_forgets_the_reasoning_of_earlier_turns_and_keeps_that_of_the_last() -> None:
    renderer = compile_template(ChatTemplate.load("nano3"))
    answer = {"role": "assistant", "content": "So.", "reasoning_content": "FIRST"}
    messages = [USER, answer, USER, {**answer, "reasoning_content": "SECOND"}]
    text = renderer.render(messages, None, prompt=False, thinking=True)
    assert "FIRST" not in text
    assert text.endswith("<think>\nSECOND\n</think>\nSo.<|im_end|>\n")
    assert "FIRST" in renderer.render(messages[:2], None, prompt=False, thinking=True)


def test_a_template_is_a_name_a_path_or_jinja(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("{{ messages }}")
    assert ChatTemplate.load("nano3").name == "nano3"
    assert ChatTemplate.load("mine.jinja", tmp_path).text == "{{ messages }}"
    assert ChatTemplate.load(str(tmp_path / "mine.jinja")).name == "mine.jinja"
    assert ChatTemplate.load("{{ messages }}") == ChatTemplate("inline", "{{ messages }}")


def test_a_mistyped_name_is_no_template(tmp_path: Path) -> None:
    """The original takes any text that is no file for a template, which renders every conversation alike."""
    with pytest.raises(ConfigError, match=r"'nano33' is not a bundled template \(nano3\)"):
        ChatTemplate.load("nano33", tmp_path)


def test_the_digest_is_of_the_text_not_of_the_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("{{ messages }}")
    before = ChatTemplate.load(str(path))
    path.write_text("{{ messages }} ")
    after = ChatTemplate.load(str(path))
    assert before.name == after.name
    assert before.digest != after.digest
    assert before.digest == ChatTemplate("another name", "{{ messages }}").digest


def test_a_syntax_error_names_its_line() -> None:
    with pytest.raises(ConfigError, match=r"chat_template inline: line 3: .*endfor"):
        compile_template(ChatTemplate.load("{{ bos_token }}\n{% for m in messages %}\n{% endif %}"))


def test_a_template_that_writes_the_date_needs_one() -> None:
    template = ChatTemplate.load("{{ strftime_now('%d %B %Y') }}")
    with pytest.raises(ConfigError, match="Declare `template_date`"):
        compile_template(template)
    rendered = compile_template(template, today=date(2025, 3, 1)).render([USER], None, prompt=False, thinking=True)
    assert rendered == "01 March 2025"


@pytest.mark.parametrize(
    "text",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[0].content + 3 }}",
        "{{ messages.append(1) }}",
        "{{ [].__class__.__mro__ }}",
    ],
)
def test_a_template_that_refuses_fails_or_reaches_out_is_a_render_error(text: str) -> None:
    renderer = compile_template(ChatTemplate.load(text))
    with pytest.raises(TemplateRenderError):
        renderer.render([USER], None, prompt=False, thinking=True)


def test_a_tool_nested_beyond_the_stack_is_a_refusal_and_no_crash() -> None:
    schema: dict[str, Any] = {}
    for _ in range(990):
        schema = {"properties": schema}
    renderer = compile_template(ChatTemplate.load("nano3"))
    with pytest.raises(TemplateRenderError, match="RecursionError"):
        renderer.render([{"role": "user", "content": "x"}], [schema], prompt=False, thinking=False)
