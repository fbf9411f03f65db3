"""Beginnings of answers in invented conversations, by the generation prompt and by the template's marks.

A model answers after the generation prompt, so an answer is trained from the end of the prompt on. If no rendering of
the answer begins with the prompt, the prompt without its trailing white space is tried; then the answer itself must
follow directly. If the prompt opens a thought that the rendering does not have, the answer begins where the two differ.
In a template with `{% generation %}`, the marks decide. Differences from the prompt are reported to the user.

Entry point: `compare_readings`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dataprep_assets.errors import ConfigError
from dataprep_assets.tokenization.chat.choices import ChatChoices
from dataprep_assets.tokenization.chat.message_form import TOOL, USER, build_tool_call, build_tool_result
from dataprep_assets.tokenization.chat.messages import Conversation
from dataprep_assets.tokenization.chat.rendering import ConversationRenderer, RenderedChunk, RenderedConversation
from dataprep_assets.tokenization.chat.template import Renderer, TemplateRenderError

_SHOWN = 60
"""Maximum number of characters of a text in a message."""


@dataclass(frozen=True)
class _Probe:
    """An invented conversation in which the text of every answer and reasoning is unique."""

    about: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = field(default=None)


def _build_answer(text: str, reasoning: str | None = None, calls: list[Any] | None = None) -> dict[str, Any]:
    optional_fields = {"reasoning_content": reasoning, "tool_calls": calls}
    return {"role": "assistant", "content": text, **{name: value for name, value in optional_fields.items() if value}}


def _generate_probes(choices: ChatChoices) -> Iterator[_Probe]:
    yield _Probe("an answer", [USER, _build_answer("Yes, one.")])
    yield _Probe("an answer of several lines", [USER, _build_answer("Yes,\n\n\tone  line,\n and <two>.")])
    yield _Probe("two answers", [USER, _build_answer("Yes, one."), USER, _build_answer("Yes, two.")])
    yield _Probe("an answer with reasoning", [USER, _build_answer("Yes, one.", "Thought one.")])
    yield _Probe(
        "an answer without reasoning, after one that has it",
        [USER, _build_answer("Yes, one.", "Thought one."), USER, _build_answer("Yes, two.")],
    )
    calls = [build_tool_call("buoy")]
    yield _Probe(
        "a call of a tool",
        [USER, _build_answer("Yes, one.", calls=calls), build_tool_result("A result."), _build_answer("Yes, two.")],
        [TOOL],
    )
    yield _Probe(
        "a call of a tool with reasoning",
        [
            USER,
            _build_answer("Yes, one.", "Thought one.", calls=calls),
            build_tool_result("A result."),
            _build_answer("Yes, two."),
        ],
        [TOOL],
    )
    if choices.unprompted_header:
        yield _Probe("an answer after an answer", [USER, _build_answer("Yes, one."), _build_answer("Yes, two.")])
        yield _Probe("an answer before a question", [_build_answer("Yes, one."), USER, _build_answer("Yes, two.")])
        system = {"role": "system", "content": "A rule."}
        yield _Probe(
            "an answer after a system text", [system, _build_answer("Yes, one."), USER, _build_answer("Yes, two.")]
        )
        for role in ("system", "developer"):
            thoughts = _build_answer("Yes, one.", "Thought one."), _build_answer("Yes, two.", "Thought two.")
            between = {"role": role, "content": "A rule."}
            yield _Probe(f"an answer with reasoning after a {role} text", [USER, thoughts[0], between, thoughts[1]])


@dataclass(frozen=True)
class Readings:
    """The texts with which a template begins answers.

    Attributes:
        openings: The different texts between the beginning of a trained answer and the answer's own text. Empty for a
            template that does not render answers verbatim, because its answers cannot be found by their text.
        differences: Sentences about answers that begin differently by the generation prompt and by `{% generation %}`.
    """

    openings: tuple[str, ...]
    differences: tuple[str, ...]


def compare_readings(
    renderer: ConversationRenderer, prompted: ConversationRenderer, template: Renderer, choices: ChatChoices
) -> Readings:
    """Return the texts with which a template begins answers.

    Conversations that the template or the choices refuse are skipped, because rows of that kind are also refused.

    Args:
        renderer: The renderer of the rows.
        prompted: The same renderer, but using only the generation prompt.
        template: The compiled template.
        choices: The choices of the renderers.

    Raises ConfigError for a template whose answers can be read in two ways.
    """
    openings: set[str] = set()
    differences: list[str] = []
    is_verbatim = True
    for probe in _generate_probes(choices):
        conversation = Conversation(probe.messages, probe.tools)
        rendered = renderer.render(conversation)
        if not isinstance(rendered, RenderedConversation):
            _refuse_ambiguous(probe, template)
            continue
        for chunk in _list_trained_chunks(rendered):
            if (opening := _find_opening(chunk, probe)) is not None:
                openings.add(opening)
            elif probe.tools is None:  # with tools, a template may omit the text of a message with calls
                is_verbatim = False
        prompted_answers = prompted.render(conversation)
        if not differences and isinstance(prompted_answers, RenderedConversation):
            differences += _find_difference(probe, rendered, prompted_answers)
    return Readings(tuple(sorted(openings)) if is_verbatim else (), tuple(differences))


def _list_trained_chunks(rendered: RenderedConversation) -> list[RenderedChunk]:
    return [chunk for chunks in rendered.sequences for chunk in chunks if chunk.trained]


def _find_difference(probe: _Probe, marked: RenderedConversation, prompted: RenderedConversation) -> Iterator[str]:
    """Yield a sentence about the first answer that begins differently in the two readings."""
    for by_mark, by_prompt in zip(_list_trained_chunks(marked), _list_trained_chunks(prompted), strict=False):
        if by_mark.text != by_prompt.text:
            yield (
                f"for {probe.about}, `{{% generation %}}` puts {by_mark.text[:_SHOWN]!r} in the loss, but the model "
                f"generates {by_prompt.text[:_SHOWN]!r} after the generation prompt. The `{{% generation %}}` blocks "
                "are used"
            )
            return


def _collect_texts(message: dict[str, Any]) -> list[str]:
    return [message[key] for key in ("reasoning_content", "content") if message.get(key)]


def _find_opening(chunk: RenderedChunk, probe: _Probe) -> str | None:
    """Return the trained text before the answer's own text; None if that text is not rendered verbatim."""
    texts = [text for message in probe.messages if message["role"] == "assistant" for text in _collect_texts(message)]
    positions = [position for text in texts if (position := chunk.text.find(text)) >= 0]
    return chunk.text[: min(positions)] if positions else None


def _refuse_ambiguous(probe: _Probe, template: Renderer) -> None:
    """Raise ConfigError if a refused conversation has text between the stripped prompt and an answer's own text."""
    for index, message in enumerate(probe.messages):
        if message["role"] != "assistant":
            continue
        try:
            rendering = template.render(probe.messages[: index + 1], probe.tools, prompt=False, thinking=True)
            prompts = [
                template.render(probe.messages[:index], probe.tools, prompt=True, thinking=mode)
                for mode in (True, False)
            ]
        except TemplateRenderError:
            return
        if any(map(rendering.startswith, prompts)):
            continue
        for prompt in prompts:
            stripped = prompt.rstrip()
            tail = rendering[len(stripped) :]
            own_start = min((tail.find(text) for text in _collect_texts(message) if text in tail), default=0)
            # Refuse text between the prompt and the answer's own text, because it may belong to either.
            if stripped and rendering.startswith(stripped) and tail[:own_start].strip():
                raise _build_ambiguity_error(probe, f"its prompt ends in {prompt[-24:]!r}", tail, tail[own_start:])


def _build_ambiguity_error(probe: _Probe, reason: str, first_answer: str, second_answer: str) -> ConfigError:
    return ConfigError(
        f"chat_template: for {probe.about}, {reason}. The loss could begin at {first_answer[:_SHOWN]!r} or "
        f"{second_answer[:_SHOWN]!r}. Correct the template. An answer must follow its complete generation prompt for "
        "one value of `enable_thinking`, and be inside `{% generation %}` if the template has this block"
    )
