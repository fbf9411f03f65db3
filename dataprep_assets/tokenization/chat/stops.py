"""The tokens with which a template ends answers and calls, within and at the end of a conversation.

Harmony ends a last answer, an earlier answer and a call with three different tokens. GLM writes no stop token: the
header of the next role ends an answer, and no token ends the last answer, so one is added. `find_stops` finds the
tokens in renderings of invented conversations. `find_quotes` finds the tokens around texts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dataprep_assets.errors import ConfigError
from dataprep_assets.tokenization.bundle import SpecialToken
from dataprep_assets.tokenization.chat.message_form import TOOL, USER, MessageForm, build_tool_call, build_tool_result
from dataprep_assets.tokenization.chat.template import Renderer, TemplateRenderError

_ANSWER_TEXT = "an answer"
_ANSWER = {"role": "assistant", "content": _ANSWER_TEXT}
_CALL = {"role": "assistant", "content": "", "tool_calls": [build_tool_call(_ANSWER_TEXT)]}
_SYSTEM = {"role": "system", "content": "A rule."}


@dataclass(frozen=True)
class Stops:
    """The tokens that end an answer or a call.

    Attributes:
        tokens: All stop tokens; the first ends a plain answer.
        headers: Stop tokens that begin the next message.
        after_answer: The header that is added after a last answer without a stop token; None if there is a stop token.
        after_call: The header that is added after a last call without a stop token; None if there is a stop token.
    """

    tokens: tuple[SpecialToken, ...]
    headers: tuple[SpecialToken, ...] = ()
    after_answer: SpecialToken | None = None
    after_call: SpecialToken | None = None

    @property
    def plain_stop(self) -> SpecialToken:
        """The token that ends a plain answer."""
        return self.tokens[0]


@dataclass(frozen=True)
class _StopProbe:
    """Messages whose last one needs a stop token, and messages that may follow."""

    messages: list[dict[str, Any]]
    next_messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None


def _generate_probes() -> Iterator[_StopProbe]:
    yield _StopProbe([USER, _ANSWER], [USER, _ANSWER])
    yield _StopProbe([USER, _CALL], [build_tool_result("a result"), _ANSWER], [TOOL])
    yield _StopProbe([USER, _CALL, build_tool_result("a result"), _ANSWER], [USER, _ANSWER], [TOOL])
    yield _StopProbe([USER, _ANSWER], [_ANSWER])
    yield _StopProbe([USER, _ANSWER], [_SYSTEM, USER, _ANSWER])


def find_stops(
    renderer: Renderer,
    form: MessageForm,
    specials: Sequence[SpecialToken],
    setting: str = "auto",
    structure: Sequence[SpecialToken] = (),
) -> Stops:
    """Return the tokens with which the template of `renderer` ends answers and calls.

    `specials` are the tokenizer's special tokens. `structure` are other tokens that the template writes, which end an
    answer only if no special token does. `setting` is `auto`, or the content of a required stop token.

    Raises ConfigError if a plain answer has no stop token, because a model trained on such answers never learns to stop
    (Megatron-Bridge#3927).
    """
    stops: list[SpecialToken] = []
    headers: list[SpecialToken] = []
    added: dict[bool, SpecialToken] = {}
    for number, probe in enumerate(_generate_probes()):
        try:
            text, longer = _render_texts(renderer, form, probe)
        except TemplateRenderError as failure:
            if not number:
                raise ConfigError(
                    f"chat_template {renderer.name}: cannot render a question and an answer: {failure}. "
                    "Correct the template"
                ) from failure
            continue
        suffix = longer[len(text) :] if longer.startswith(text) else ""
        last_stop, is_header = _find_stop(specials, text, suffix)
        if last_stop is None:
            last_stop, is_header = _find_stop(structure, text, suffix)
        if last_stop is None and not number:
            raise _build_no_stop_error(renderer, text, specials)
        if last_stop is not None and is_header:
            headers.append(last_stop)
            added.setdefault(probe.messages[-1] is _CALL, last_stop)
        # Also look for the token after an earlier answer, because it may differ from the token after the last answer.
        middle = None if suffix or not longer else _find_first_after(specials, longer)
        stops += [token for token in (last_stop, middle) if token is not None]
    tokens = tuple(dict.fromkeys(stops))
    if setting != "auto" and setting not in [token.content for token in tokens]:
        contents = ", ".join(token.content for token in tokens)
        raise ConfigError(
            f"stop: must be a token that ends an answer in chat_template {renderer.name}, not {setting!r}. "
            f"Available: {contents}"
        )
    return Stops(tokens, tuple(dict.fromkeys(headers)), added.get(False), added.get(True))


def find_quotes(renderer: Renderer, form: MessageForm, specials: Sequence[SpecialToken]) -> tuple[SpecialToken, ...]:
    """Return the tokens that the template writes both before and after a text, so that an empty text leaves a pair.

    Gemma 4 puts texts in calls and tools between two such tokens.
    """
    try:
        text = renderer.render(form.apply_form([USER, _CALL]), [TOOL], prompt=False, thinking=False)
    except TemplateRenderError:
        return ()
    return tuple(token for token in specials if f"{token.content}{_ANSWER_TEXT}{token.content}" in text)


def _render_texts(renderer: Renderer, form: MessageForm, probe: _StopProbe) -> tuple[str, str]:
    """Return the text of the messages, and the text including the next messages, empty if the template refuses them."""
    text = renderer.render(form.apply_form(probe.messages), probe.tools, prompt=False, thinking=False)
    try:
        messages = form.apply_form([*probe.messages, *probe.next_messages])
        return text, renderer.render(messages, probe.tools, prompt=False, thinking=False)
    except TemplateRenderError:
        return text, ""


def _find_stop(tokens: Sequence[SpecialToken], text: str, rest: str) -> tuple[SpecialToken | None, bool]:
    """Return the token that ends a text, and whether it is the header that follows the text."""
    if (token := _choose_longest(tokens, text.rstrip().endswith)) is not None:
        return token, False
    if (token := _choose_longest(tokens, rest.startswith)) is not None:
        return token, True
    return _find_last_inside(tokens, text), False


def _choose_longest(tokens: Sequence[SpecialToken], matches: Any) -> SpecialToken | None:
    # Take the longest match, because a special token may begin or end with another special token.
    return max((t for t in tokens if matches(t.content)), key=lambda t: len(t.content), default=None)


def _find_last_inside(tokens: Sequence[SpecialToken], text: str) -> SpecialToken | None:
    """Return the last token after the answer's own text. Further text may follow the token."""
    rest = text[start:] if (start := text.rfind(_ANSWER_TEXT)) >= 0 else ""
    found_tokens = [token for token in tokens if token.content in rest]
    return max(found_tokens, key=lambda token: (rest.rfind(token.content), len(token.content)), default=None)


def _find_first_after(tokens: Sequence[SpecialToken], text: str) -> SpecialToken | None:
    """Return the first token after the first answer's own text."""
    rest = text[start:] if (start := text.find(_ANSWER_TEXT)) >= 0 else ""
    found_tokens = [token for token in tokens if token.content in rest]
    return min(found_tokens, key=lambda token: (rest.find(token.content), -len(token.content)), default=None)


def _build_no_stop_error(renderer: Renderer, text: str, specials: Sequence[SpecialToken]) -> ConfigError:
    contents = ", ".join(s.content for s in specials[:12])
    return ConfigError(
        f"chat_template {renderer.name}: no special token of this tokenizer ends an answer. The text ends in "
        f"{text.rstrip()[-24:]!r}. Available special tokens: {contents}. Use a template that ends its answers, or a "
        "tokenizer with the template's tokens"
    )
