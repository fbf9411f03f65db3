"""The tokens with which a template ends what a model writes: after answers and calls, in the middle and at the end.

Harmony ends a last answer, an earlier answer and a call with three tokens. GLM writes no end: the header of the next
role ends an answer, and nothing ends the last one, so its end is added there. `find_stops` reads them from invented
conversations.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dataprep_assets.errors import ConfigError
from dataprep_assets.tokenization.bundle import SpecialToken
from dataprep_assets.tokenization.chat.message_form import TOOL, USER, MessageForm, tool_call, tool_result
from dataprep_assets.tokenization.chat.template import Renderer, TemplateRenderError

_SAID = "an answer"
_ANSWER = {"role": "assistant", "content": _SAID}
_CALL = {"role": "assistant", "content": "", "tool_calls": [tool_call(_SAID)]}
_SYSTEM = {"role": "system", "content": "A rule."}


@dataclass(frozen=True)
class Stops:
    """The tokens that end an answer or a call.

    Attributes:
        tokens: All of them; the first ends a plain answer.
        headers: Those that begin the next message, which ends the one before it.
        after_answer: The header that is added to a last answer without an end; None if it has one.
        after_call: The same for a last call.
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
class _Probe:
    """Messages whose last one needs a stop, and messages that may follow it."""

    messages: list[dict[str, Any]]
    next_messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None


def _probes() -> Iterator[_Probe]:
    yield _Probe([USER, _ANSWER], [USER, _ANSWER])
    yield _Probe([USER, _CALL], [tool_result("a result"), _ANSWER], [TOOL])
    yield _Probe([USER, _CALL, tool_result("a result"), _ANSWER], [USER, _ANSWER], [TOOL])
    yield _Probe([USER, _ANSWER], [_ANSWER])
    yield _Probe([USER, _ANSWER], [_SYSTEM, USER, _ANSWER])


def find_stops(
    renderer: Renderer,
    form: MessageForm,
    specials: Sequence[SpecialToken],
    declared: str = "auto",
    structure: Sequence[SpecialToken] = (),
) -> Stops:
    """Return the tokens with which the template of `renderer` ends answers and calls.

    `specials` are the tokenizer's special tokens, `structure` others that the template writes, which end an answer only
    if no special token does. `declared` is `auto`, or the content of one that must be among the stops.

    Raises ConfigError when a plain answer ends with none: a model trained on it never learns to stop
    (Megatron-Bridge#3927).
    """
    stops: list[SpecialToken] = []
    headers: list[SpecialToken] = []
    added: dict[bool, SpecialToken] = {}
    for number, probe in enumerate(_probes()):
        try:
            text, longer = _texts(renderer, form, probe)
        except TemplateRenderError as failure:
            if not number:
                raise ConfigError(
                    f"chat_template {renderer.name}: it cannot render a question and an answer: {failure}"
                ) from failure
            continue
        suffix = longer[len(text) :] if longer.startswith(text) else ""
        last_stop, is_header = _stop_of(specials, text, suffix)
        if last_stop is None:
            last_stop, is_header = _stop_of(structure, text, suffix)
        if last_stop is None and not number:
            raise _no_stop(renderer, text, specials)
        if last_stop is not None and is_header:
            headers.append(last_stop)
            added.setdefault(probe.messages[-1] is _CALL, last_stop)
        # an earlier answer may end in another token than the last one
        middle = None if suffix or not longer else _first_after(specials, longer)
        stops += [token for token in (last_stop, middle) if token is not None]
    tokens = tuple(dict.fromkeys(stops))
    if declared != "auto" and declared not in [token.content for token in tokens]:
        contents = ", ".join(token.content for token in tokens)
        raise ConfigError(
            f"stop: must be a token with which chat_template {renderer.name} ends an answer, not {declared!r}. "
            f"Available: {contents}"
        )
    return Stops(tokens, tuple(dict.fromkeys(headers)), added.get(False), added.get(True))


def _texts(renderer: Renderer, form: MessageForm, probe: _Probe) -> tuple[str, str]:
    """Return the text of the messages, and their text with the next messages; empty if the template refuses these."""
    text = renderer.render(form.applied(probe.messages), probe.tools, prompt=False, thinking=False)
    try:
        messages = form.applied([*probe.messages, *probe.next_messages])
        return text, renderer.render(messages, probe.tools, prompt=False, thinking=False)
    except TemplateRenderError:
        return text, ""


def _stop_of(tokens: Sequence[SpecialToken], text: str, rest: str) -> tuple[SpecialToken | None, bool]:
    """Return the token that ends a text, and whether it is the header that follows the text."""
    if (token := _longest(tokens, text.rstrip().endswith)) is not None:
        return token, False
    if (token := _longest(tokens, rest.startswith)) is not None:
        return token, True
    return _last_inside(tokens, text), False


def _longest(tokens: Sequence[SpecialToken], matches: Any) -> SpecialToken | None:
    # the longest, because one special token may end with another
    return max((t for t in tokens if matches(t.content)), key=lambda t: len(t.content), default=None)


def _last_inside(tokens: Sequence[SpecialToken], text: str) -> SpecialToken | None:
    """Return the last token after the answer's own text, where further text follows it."""
    rest = text[start:] if (start := text.rfind(_SAID)) >= 0 else ""
    found_tokens = [token for token in tokens if token.content in rest]
    return max(found_tokens, key=lambda token: (rest.rfind(token.content), len(token.content)), default=None)


def _first_after(tokens: Sequence[SpecialToken], text: str) -> SpecialToken | None:
    """Return the first token after the first answer's own text."""
    rest = text[start:] if (start := text.find(_SAID)) >= 0 else ""
    found_tokens = [token for token in tokens if token.content in rest]
    return min(found_tokens, key=lambda token: (rest.find(token.content), -len(token.content)), default=None)


def _no_stop(renderer: Renderer, text: str, specials: Sequence[SpecialToken]) -> ConfigError:
    contents = ", ".join(s.content for s in specials[:12])
    return ConfigError(
        f"chat_template {renderer.name}: no special token of this tokenizer ends an answer; its text ends in "
        f"{text.rstrip()[-24:]!r}. Available special tokens: {contents}. Use a template that ends its answers, or a "
        "tokenizer with the tokens of the template"
    )
