"""Templates are found or refused by name, digested by text, and rendered exactly as in transformers."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.chat.template import ChatTemplate, TemplateRenderError, compile_template
from dataprep_assets_tests.messages import raises
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
def test_the_shipped_template_renders_as_in_transformers(
    conversation: dict[str, Any], thinking: bool, prompt: bool
) -> None:
    template = ChatTemplate.load("chatml_reasoning")
    ours = compile_template(template).render(
        conversation["messages"], conversation.get("tools"), prompt=prompt, thinking=thinking
    )
    theirs = rendered(template.text, conversation, add_generation_prompt=prompt, enable_thinking=thinking)
    assert ours == theirs


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_the_template_of_a_published_tokenizer_renders_as_in_transformers(
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


def test_loop_controls_the_generation_tag_and_variables_work_as_in_transformers() -> None:
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


def test_the_shipped_template_drops_the_reasoning_of_earlier_turns_and_keeps_the_last() -> None:
    renderer = compile_template(ChatTemplate.load("chatml_reasoning"))
    answer = {"role": "assistant", "content": "So.", "reasoning_content": "FIRST"}
    messages = [USER, answer, USER, {**answer, "reasoning_content": "SECOND"}]
    text = renderer.render(messages, None, prompt=False, thinking=True)
    assert "FIRST" not in text
    assert text.endswith("<think>\nSECOND\n</think>\nSo.<|im_end|>\n")
    assert "FIRST" in renderer.render(messages[:2], None, prompt=False, thinking=True)


def test_a_template_is_given_by_name_by_path_or_as_jinja(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("{{ messages }}")
    assert ChatTemplate.load("chatml_reasoning").name == "chatml_reasoning"
    assert ChatTemplate.load(str(tmp_path / "mine.jinja")).name == "mine.jinja"
    assert ChatTemplate.load("{{ messages }}") == ChatTemplate("inline", "{{ messages }}")


def test_a_mistyped_name_is_not_a_template(tmp_path: Path) -> None:
    """Upstream treats any text that is not a file as a template, which renders every conversation equally."""
    with raises(ConfigError, "'nano33'", "`tokenizer`", "chatml_reasoning, nano3, super3, ultra3, lightning35"):
        ChatTemplate.load("nano33")


def test_the_digest_depends_on_the_text_and_not_on_the_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("{{ messages }}")
    before = ChatTemplate.load(str(path))
    path.write_text("{{ messages }} ")
    after = ChatTemplate.load(str(path))
    assert before.name == after.name
    assert before.digest != after.digest
    assert before.digest == ChatTemplate("another name", "{{ messages }}").digest


def test_a_syntax_error_names_its_line() -> None:
    with raises(ConfigError, "inline", 3, "endfor"):
        compile_template(ChatTemplate.load("{{ bos_token }}\n{% for m in messages %}\n{% endif %}"))


@pytest.mark.parametrize(
    "text",
    [
        "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}",
        "{{ " + "+".join(["1"] * 50_000) + " }}",
        "{% if a %}" * 500 + "{% endif %}" * 500,
        "{{ " + "a[" * 900 + "0" + "]" * 900 + " }}",
    ],
    ids=["brackets", "sums", "ifs", "look-ups"],
)
def test_a_template_nested_too_deeply_to_compile_is_refused_by_name(text: str) -> None:
    with raises(ConfigError, "deep.jinja"):
        compile_template(ChatTemplate("deep.jinja", text))


def test_a_template_that_writes_the_date_needs_one() -> None:
    template = ChatTemplate.load("{{ strftime_now('%d %B %Y') }}")
    with raises(ConfigError, "strftime_now"):
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
        "{{ '{:>4294967296}'.format('x') }}",
        "{{ '{:{}}'.format('x', 4294967296) }}",
        "{{ '{a:{b}}'.format_map({'a': 'x', 'b': 4294967296}) }}",
    ],
)
def test_a_template_that_refuses_fails_or_escapes_the_sandbox_is_a_render_error(text: str) -> None:
    renderer = compile_template(ChatTemplate.load(text))
    with pytest.raises(TemplateRenderError):
        renderer.render([USER], None, prompt=False, thinking=True)


def test_a_format_of_normal_width_is_allowed() -> None:
    renderer = compile_template(ChatTemplate.load("{{ '{:>6}|{:{}}'.format('x', 'y', 3) }}"))
    assert renderer.render([USER], None, prompt=False, thinking=True) == "     x|y  "


@pytest.mark.parametrize(
    "text",
    [
        "{% set ns = namespace(a='', b=[], c=0) %}{{ ns.a }}{{ ns.b }}{{ ns.c + 1 }}{{ ns.d is defined }}",
        "{% set ns = namespace(items=2) %}{{ ns.items }}{{ ns._Namespace__attrs is defined }}",
        "{% set ns = namespace() %}{% set ns.f = '{a.__class__}'.format_map %}{{ ns.f({'a': 1}) }}",
        "{{ ' A b '.strip().lower().split() }}{{ 'a'.nothing is defined }}",
        "{{ 'a-b'.title().startswith('A') }}{{ 'ab'.__len__ is defined }}{{ '{a.__class__}'.format(a=1) }}",
    ],
)
def test_attributes_have_the_values_of_transformers(text: str) -> None:
    renderer = compile_template(ChatTemplate.load(text))
    assert renderer.render([USER], None, prompt=False, thinking=True) == rendered(text, {"messages": [USER]})


def test_a_format_in_a_namespace_is_limited() -> None:
    renderer = compile_template(ChatTemplate.load("{% set ns = namespace(f='{:>4294967296}'.format) %}{{ ns.f('x') }}"))
    with pytest.raises(TemplateRenderError):
        renderer.render([USER], None, prompt=False, thinking=True)


# --- the origin of the template


def tokenizer_with(folder: Path, beside: str | None = None, configured: Any = None) -> TokenizerBundle:
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": configured} if configured else {}))
    if beside is not None:
        (folder / "chat_template.jinja").write_text(beside)
    return TokenizerBundle.load(folder)


def test_a_tokenizers_template_is_the_file_next_to_it_or_else_in_its_configuration(tmp_path: Path) -> None:
    several = [{"name": "rag", "template": "{{ 3 }}"}, {"name": "default", "template": "{{ 2 }}"}]
    found = [
        ChatTemplate.load_from_tokenizer(tokenizer_with(tmp_path / "a", "{{ 1 }}", "{{ 2 }}")),
        ChatTemplate.load_from_tokenizer(tokenizer_with(tmp_path / "b", None, "{{ 2 }}")),
        ChatTemplate.load_from_tokenizer(tokenizer_with(tmp_path / "c", None, several)),
    ]
    assert [template.text for template in found] == ["{{ 1 }}", "{{ 2 }}", "{{ 2 }}"]
    # The path of a folder, such as a clone of a model's repository, is also accepted.
    assert found[0] == ChatTemplate.load(str(tmp_path / "a"))
    assert found[1] == ChatTemplate.load(str(tmp_path / "b"))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("chat_template.jinja", b'{{ "\xe9" }}'),
        ("tokenizer_config.json", b"{bad"),
        ("tokenizer_config.json", b"[]"),
        ("tokenizer_config.json", b"[" * 100_000),
    ],
)
def test_an_unreadable_file_of_a_tokenizer_is_named(tmp_path: Path, file: str, content: bytes) -> None:
    (tmp_path / file).write_bytes(content)
    with raises(ConfigError, file):
        ChatTemplate.load(str(tmp_path))


def test_a_tokenizer_without_a_template_is_refused_with_alternatives(tmp_path: Path) -> None:
    with raises(ConfigError, "t", "chatml_reasoning"):
        ChatTemplate.load_from_tokenizer(tokenizer_with(tmp_path / "t"))


def test_a_template_from_a_package_is_loaded_or_refused_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with raises(ConfigError, "src/nemotron/data_prep/templates/nano3.jinja"):
        ChatTemplate.load("nano3")
    with raises(ConfigError, "super3", "nano3"):
        ChatTemplate.load("super3")
    folder = tmp_path / "nemotron" / "data_prep" / "templates"
    folder.mkdir(parents=True)
    (tmp_path / "nemotron" / "__init__.py").write_text("raise SystemExit('imported')")  # must not be imported
    (folder / "nano3.jinja").write_text("{{ messages }}")
    monkeypatch.syspath_prepend(tmp_path)
    assert ChatTemplate.load("super3") == ChatTemplate("super3", "{{ messages }}")
    with raises(ConfigError, "lightning35.jinja"):
        ChatTemplate.load("lightning35")


# --- the variables of a template


@pytest.mark.parametrize("thinking", [False, True])
def test_a_template_finds_the_thinking_switch_under_either_variable(thinking: bool) -> None:
    kwargs = "{{ chat_template_kwargs.enable_thinking }} {{ chat_template_kwargs.effort }}"
    text = "{{ enable_thinking }} " + kwargs + " {{ effort }}"
    ours = compile_template(ChatTemplate.load(text), kwargs={"effort": "low"})
    given = {"enable_thinking": thinking, "effort": "low"}
    theirs = rendered(text, {"messages": [USER]}, chat_template_kwargs=given, **given)
    assert ours.render([USER], None, prompt=False, thinking=thinking) == theirs == f"{thinking} {thinking} low low"


def test_an_extra_variable_must_not_be_one_that_each_rendering_sets() -> None:
    with raises(ConfigError, "template_kwargs", "enable_thinking, tools"):
        compile_template(ChatTemplate.load("{{ messages }}"), kwargs={"tools": [], "enable_thinking": True})


def test_a_tool_nested_beyond_the_stack_is_refused_without_a_crash() -> None:
    schema: dict[str, Any] = {}
    for _ in range(990):
        schema = {"properties": schema}
    renderer = compile_template(ChatTemplate.load("chatml_reasoning"))
    with raises(TemplateRenderError, "RecursionError"):
        renderer.render([{"role": "user", "content": "x"}], [schema], prompt=False, thinking=False)
