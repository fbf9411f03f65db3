"""The tokens that end an answer are found, whatever a template writes after answers, after calls, and at the end."""

from collections.abc import Sequence

from dataprep_assets.errors import ConfigError
from dataprep_assets.tokenization.bundle import SpecialToken
from dataprep_assets.tokenization.chat.message_form import find_form
from dataprep_assets.tokenization.chat.stops import Stops, find_quotes, find_stops
from dataprep_assets.tokenization.chat.template import ChatTemplate, compile_template
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.tokenization.chat.templates import CHANNELS, NEXT_ROLE
from dataprep_assets_tests.tokenization.chat.trap import CHATML

_CONTENTS = ("<|im_end|>", "<|s|>", "<|m|>", "<|c|>", "<|e|>", "<|call|>", "<|return|>", "<|user|>", "<|assistant|>")
SPECIALS = tuple(
    SpecialToken(content=content, id=number)
    for number, content in enumerate(("<|im_start|>", *_CONTENTS, "<|observation|>", "<|endoftext|>"))
)


def stops(template: str, declared: str = "auto") -> Stops:
    renderer = compile_template(ChatTemplate.load(template))
    return find_stops(renderer, find_form(renderer), SPECIALS, declared)


def contents(tokens: Sequence[SpecialToken]) -> list[str]:
    return [token.content for token in tokens]


def test_a_turn_of_chatml_has_one_stop() -> None:
    found = stops("chatml_reasoning")
    assert contents(found.tokens) == ["<|im_end|>"]
    assert (found.headers, found.after_answer, found.after_call) == ((), None, None)


def test_last_answers_earlier_answers_and_calls_may_have_three_different_ends() -> None:
    found = stops(CHANNELS)
    assert found.plain_stop.content == "<|return|>"
    assert sorted(contents(found.tokens)) == ["<|call|>", "<|e|>", "<|return|>"]


def test_without_an_end_token_the_header_of_the_next_role_ends_a_turn() -> None:
    found = stops(NEXT_ROLE)
    assert contents(found.tokens) == ["<|user|>", "<|observation|>", "<|assistant|>"]
    assert found.tokens == found.headers
    assert found.after_answer is not None
    assert found.after_call is not None
    assert (found.after_answer.content, found.after_call.content) == ("<|user|>", "<|observation|>")


def test_the_template_must_write_a_declared_stop() -> None:
    assert stops(NEXT_ROLE, "<|user|>") == stops(NEXT_ROLE)
    with raises(ConfigError, "'<|endoftext|>'", "<|im_end|>"):
        stops(CHATML, "<|endoftext|>")


def test_a_template_that_never_ends_an_answer_is_an_error() -> None:
    with raises(ConfigError, "special"):
        stops("{% for m in messages %}{{ m.content }}{% endfor %}")
    with raises(ConfigError, "render"):
        stops("{{ raise_exception('never') }}")


def test_a_token_on_both_sides_of_a_text_is_a_quote() -> None:
    quoted = CHATML.replace(
        "{{ m.content }}",
        "{% for c in m.tool_calls or [] %}{% for value in c.function.arguments.values() %}<|c|>{{ value }}<|c|>"
        "{% endfor %}{% endfor %}{{ m.content }}",
    )
    for template, quotes in ((quoted, ["<|c|>"]), (CHATML, []), (CHANNELS, [])):
        renderer = compile_template(ChatTemplate.load(template))
        assert contents(find_quotes(renderer, find_form(renderer), SPECIALS)) == quotes
    strict = compile_template(ChatTemplate.load("{{ raise_exception('no calls') }}"))
    assert find_quotes(strict, find_form(strict), SPECIALS) == ()
