"""Renderings by patterns are those of the template, whatever it does with its texts."""

import json
import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.tokenization.chat.choices import NEMOTRON, OURS
from dataprep_assets.tokenization.chat.chunks import Rendered
from dataprep_assets.tokenization.chat.messages import Conversation
from dataprep_assets.tokenization.chat.patterns import Patterns, shape_of
from dataprep_assets.tokenization.chat.template import ChatTemplate, compile_template
from dataprep_assets_tests.tokenization.chat.tokenizers import conversation_renderer
from dataprep_assets_tests.tokenization.chat.trap import CHATML, NO_KWARGS, TRAP

TEXTS = (
    *(
        "yes",
        "Yes.",
        " yes ",
        "\n\nyes\n",
        "no",
        "Nothing <think> of it",
        "Thought </think> said",
        "</think>",
        "a",
        "ab",
    ),
    *(
        "abc",
        "b",
        "<b> & 'it'",
        "%s",
        "{}",
        "ünï",
        "  ",
        "",
        "\t",
        "2",
        "yes\u00a0",
        "x" * 50,
        "assistant",
        "<|im_",
        "user",
    ),
)
SAYS = (
    *(
        "content | upper",
        "content[:2]",
        "content[-1:]",
        "content[0]",
        "content[::-1]",
        "'%s!' % content",
        "content % ()",
    ),
    *("content | length", "(content ~ 'a') | length", "'a' if content in 'abcdef' else 'b'", "messages", "[content]"),
    *("messages | tojson", "content | tojson", "content | e", "content | safe", "content.split()[0]", "content * 2"),
    *("content.replace('e', 'a')", "'a' if content < 'm' else 'b'", "{'yes': 1}[content]", "'{}'.format(content)"),
    *(
        "content.format(1)",
        "'%d' | format(1) ~ content",
        "'a' if loop.changed(content) else 'b'",
        "content | join('-')",
    ),
    *("[content, 'a'] | join", "content | list", "dict(a=content)['a'] | upper", "'a' if content is eq 'yes' else 'b'"),
    *("'a' if content == 'yes' else 'b'", "'a' if 'yes' == content else 'b'", "'a' if content != 'no' else 'b'"),
    *("'a' if content.startswith('y') else content", "'a' if content.endswith('s') else content.strip()"),
    *("content | trim", "content.rstrip('\\n')", "content.strip('y')", "content.lstrip()", "content | trim | length"),
    *("'a' if content in ['yes', 'no'] else 'b'", "'a' if 'e' not in content else content", "content.upper()"),
    *(
        "'a' if content and content | trim else 'b'",
        "content | default('none')",
        "content | first",
        "content.index('e')",
    ),
    *(
        "content | replace('e', 'a')",
        "content | int",
        "content ~ content",
        "content + '!' + content",
        "('!' + content) * 2",
    ),
    *("content.split('</think>')[-1].lstrip('\\n') if '</think>' in content else content", "content.encode() | string"),
    *("'a' if content is in ['yes'] else 'b'", "'a' if content == messages[0].content else 'b'", "content | title"),
    *(
        "messages | map(attribute='content') | join(' ')",
        "messages | selectattr('content', 'eq', 'yes') | list | length",
    ),
    *(
        "'a' if messages[0].content == content else 'b'",
        "content | wordcount",
        "'a' if not content else 'b'",
        "content",
    ),
    *("(content ~ '!').startswith('yes!')", "(content ~ '!')[:1]", "content.join(['1', '2'])", "content is string"),
    *(
        "('a' ~ content).find('e')",
        "'a'.join([content, content])",
        "content | string",
        "content if 'yes' in content ~ '!'",
    ),
    *(
        "'a' if content in {'yes': 1} else 'b'",
        "content is upper",
        "content | indent",
        "'x' if content is sequence else 'y'",
    ),
    *("[content] | first", "('!' ~ content) | trim", "'a' if 1 < content | length < 3 else 'b'", "content | center(9)"),
    *("'a' if 'e' in content == true else 'b'", "'a' if 'a' < content else 'b'", "(content ~ '') ~ loop.index"),
)
"""What a template may write of a message."""
WAYS = {
    "macro": (
        "{% macro said(text) %}{{ text }}{% endmacro %}",
        "{% set content = said(content) | trim %}{{ content if content else 'nothing' }}",
    ),
    "set block": ("", "{% set content %} {{ content }}!{% endset %}{{ content | trim }}{{ content | length }}"),
    "filter block": ("", "{% filter upper %}{{ content }}{% endfilter %}"),
    "trimming block": ("", "{% filter trim %} {{ content }} {% endfilter %}"),
    "characters": ("", "{% for c in content %}{{ c }}.{% endfor %}"),
    "escaping": ("", "{% autoescape true %}{{ content }}{{ content ~ '<' }}{% endautoescape %}"),
    "namespace": ("{% set ns = namespace(last='') %}", "{{ ns.last ~ content }}{% set ns.last = content | trim %}"),
    "refusing": ("", "{% if content == 'no' %}{{ raise_exception('no: ' ~ content) }}{% endif %}{{ content }}"),
    "items": ("", "{% for key, value in m.items() %}{{ key ~ value }}{% endfor %}"),
    "call": (
        "{% macro twice() %}{{ caller() }}{{ caller() }}{% endmacro %}",
        "{% call twice() %}{{ content }}{% endcall %}",
    ),
    "earlier": ("", "{{ messages[loop.index0 - 1].content ~ content }}"),
    "last": ("", "{{ content }}{{ messages[-1].content | upper if loop.last }}"),
}


def template_of(says: str, before: str = "") -> str:
    """A template that says something in place of each message's content."""
    return before + CHATML.replace("{{ m.content }}", "{% set content = m.content %}" + says)


def conversations(seed: int, count: int = 60) -> list[Conversation]:
    """Conversations of few shapes, with texts that are often alike."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        messages: list[dict[str, Any]] = []
        reasoned = draw.random() < 0.4
        for _ in range(draw.choice((1, 1, 2))):
            messages.append({"role": "user", "content": draw.choice(TEXTS)})
            reasoning = {"reasoning_content": draw.choice(TEXTS)} if reasoned else {}
            messages.append({"role": "assistant", "content": draw.choice(TEXTS), **reasoning})
        found.append(Conversation(messages))
    return found


def same_by_patterns(template: str, seeds: int = 3, **options: Any) -> int:
    """How many conversations are rendered; each must be the same with patterns and without, or refused alike."""
    plain, learning = (conversation_renderer(template, learns=learns, **options) for learns in (False, True))
    rendered = 0
    for seed in range(seeds):
        for conversation in conversations(seed):
            expected = plain.render(conversation)
            assert learning.render(conversation) == expected, conversation
            rendered += isinstance(expected, Rendered)
    patterns = learning._patterns
    assert patterns is None or not patterns._is_refuted  # so it was the watching that found out, not the comparison
    return rendered


@pytest.mark.parametrize("says", SAYS)
def test_whatever_a_template_does_with_a_text_its_patterns_render_the_same(says: str) -> None:
    same_by_patterns(template_of("{{ " + says + " }}"))


@pytest.mark.parametrize("way", WAYS)
def test_texts_that_go_through_a_block_or_a_macro_are_rendered_the_same(way: str) -> None:
    before, says = WAYS[way]
    same_by_patterns(template_of(says, before))


@pytest.mark.parametrize("template", ["chatml_reasoning", CHATML, TRAP, NO_KWARGS])
@pytest.mark.parametrize("turns", ["reasoning", "always"])
def test_templates_of_these_tests_are_rendered_the_same(template: str, turns: str) -> None:
    assert same_by_patterns(template, seeds=8, turns=turns) > 100


@pytest.mark.parametrize(
    "changes",
    [
        *({name: getattr(NEMOTRON, name)} for name in OURS.with_changes({}).__dataclass_fields__),
        {"answers": "last_turn"},
        {"other_reasoning": "copied"},
    ],
    ids=str,
)
def test_every_choice_is_rendered_the_same(changes: dict[str, Any]) -> None:
    for template in ("chatml_reasoning", TRAP):
        same_by_patterns(template, seeds=2, choices=OURS.with_changes(changes))


def test_the_template_of_a_published_tokenizer_is_rendered_the_same(shared: Path) -> None:
    config = json.loads((shared / "tokenizers" / "qwen3" / "tokenizer_config.json").read_bytes())
    assert same_by_patterns(config["chat_template"], seeds=8) > 100


def _counting(template: str) -> tuple[Any, list[int]]:
    """A renderer that learns, and the number of its renderings by the template."""
    renderer = conversation_renderer(template, learns=True)
    inner, calls = renderer._renderer._render, [0]

    def render(**given: Any) -> str:
        calls[0] += 1
        return inner(**given)

    renderer._renderer._render = render
    return renderer, calls


@pytest.mark.parametrize("template", ["chatml_reasoning", CHATML, TRAP])
def test_after_the_first_conversations_of_a_shape_the_template_is_not_asked(template: str) -> None:
    renderer, calls = _counting(template)
    for number, (question, answer) in enumerate(product(("Why?", "So?"), ("One.", "Two.", "Three.", "Four."))):
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        before = calls[0]
        found = renderer.render(Conversation(messages))
        assert isinstance(found, Rendered)
        assert question in found.sequences[0][0].text
        assert answer in found.sequences[0][1].text
        assert (calls[0] > before) == (number < 4)


def test_a_conversation_with_tools_or_other_fields_has_no_shape() -> None:
    user = {"role": "user", "content": "Why?"}
    assert shape_of(Conversation([user], [{"name": "f"}])) is None
    assert shape_of(Conversation([{**user, "name": "Ann"}])) is None
    assert shape_of(Conversation([{**user, "content": ["a"]}])) is None
    assert shape_of(Conversation([user])) != shape_of(Conversation([user, user]))
    blank, text = (shape_of(Conversation([{"role": "user", "content": content}])) for content in (" ", "Why?"))
    assert blank is not None
    assert text is not None
    assert blank[0] != text[0]
    assert (blank[1], text[1]) == ([], ["Why?"])


def test_patterns_that_are_wrong_once_are_never_used_again() -> None:
    renderer = conversation_renderer(CHATML)
    other = conversation_renderer(CHATML.replace("\n{{", "\nSaid: {{"))
    # the patterns are those of another template than the one that they are compared with
    patterns = Patterns(lambda conversation: other._watched(conversation))
    for text in ("One.", "Two.", "Three.", "Four.", "Five."):
        conversation = Conversation([{"role": "user", "content": "Why?"}, {"role": "assistant", "content": text}])
        shaped = shape_of(conversation)
        assert shaped is not None
        rendered = renderer.render(conversation)
        assert isinstance(rendered, Rendered)
        assert patterns.filled(*shaped) is None
        patterns.learn(*shaped, conversation, rendered.sequences)
    assert patterns.filled(*shaped) is None


def test_a_text_within_a_template_tells_nothing_but_what_holds_for_every_text() -> None:
    renderer = compile_template(ChatTemplate.load("{{ messages[0].content[:1] }}"))
    whole = renderer.render([{"content": "abc"}], None, prompt=False, thinking=False)
    assert whole == "a"
