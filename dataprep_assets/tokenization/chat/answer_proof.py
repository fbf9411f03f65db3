"""Proves, on invented conversations, that the first trained token of an answer is the first that a model generates.

A template writes a generation prompt, after which the model answers. So an answer is trained from the end of the prompt
on. If no rendering of the answer begins with the prompt, the prompt without its trailing white space is tried, and then
the answer itself must follow: a prompt that ends in `<think>` and a rendering that continues with `</think>` can be
read in two ways, and a mask by either of them may be silently wrong. Such a template is refused, and the error shows
both readings. If a template marks answers itself, with `{% generation %}`, its marks must begin there too.

Entry point: `prove_answers`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dataprep_assets.errors import ConfigError
from dataprep_assets.tokenization.chat.choices import ChatChoices
from dataprep_assets.tokenization.chat.messages import Conversation
from dataprep_assets.tokenization.chat.rendering import ConversationRenderer, RenderedChunk, RenderedConversation
from dataprep_assets.tokenization.chat.template import Renderer, TemplateRenderError

GENERATION_MARKS = ("\ufdee", "\ufdef")
"""The characters that mark the begin and end of `{% generation %}` in a template compiled for this proof."""
_TOOL = {"type": "function", "function": {"name": "look_up", "description": "Finds a word.", "parameters": {}}}
_CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"word": "buoy"}}}
_USER = {"role": "user", "content": "A question."}
_RESULT = {"role": "tool", "content": "A result."}
_SHOWN = 60


@dataclass(frozen=True)
class _Probe:
    """An invented conversation, in which the text of every answer and reasoning is unique."""

    about: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = field(default=None)


def _answer(text: str, reasoning: str | None = None, calls: list[Any] | None = None) -> dict[str, Any]:
    optional_fields = {"reasoning_content": reasoning, "tool_calls": calls}
    return {"role": "assistant", "content": text, **{name: value for name, value in optional_fields.items() if value}}


def _probes(choices: ChatChoices) -> Iterator[_Probe]:
    yield _Probe("an answer", [_USER, _answer("Yes, one.")])
    yield _Probe("an answer of several lines", [_USER, _answer("Yes,\n\n\tone  line,\n and <two>.")])
    yield _Probe("two answers", [_USER, _answer("Yes, one."), _USER, _answer("Yes, two.")])
    yield _Probe("an answer with reasoning", [_USER, _answer("Yes, one.", "Thought one.")])
    yield _Probe(
        "an answer without reasoning, after one that has it",
        [_USER, _answer("Yes, one.", "Thought one."), _USER, _answer("Yes, two.")],
    )
    calls = [_CALL]
    yield _Probe("a call of a tool", [_USER, _answer("Yes, one.", calls=calls), _RESULT, _answer("Yes, two.")], [_TOOL])
    yield _Probe(
        "a call of a tool with reasoning",
        [_USER, _answer("Yes, one.", "Thought one.", calls=calls), _RESULT, _answer("Yes, two.")],
        [_TOOL],
    )
    if choices.unprompted_header:
        yield _Probe("an answer after an answer", [_USER, _answer("Yes, one."), _answer("Yes, two.")])
        yield _Probe("an answer before a question", [_answer("Yes, one."), _USER, _answer("Yes, two.")])
        system = {"role": "system", "content": "A rule."}
        yield _Probe("an answer after a system text", [system, _answer("Yes, one."), _USER, _answer("Yes, two.")])
        for role in ("system", "developer"):
            thoughts = _answer("Yes, one.", "Thought one."), _answer("Yes, two.", "Thought two.")
            between = {"role": role, "content": "A rule."}
            yield _Probe(f"an answer with reasoning after a {role} text", [_USER, thoughts[0], between, thoughts[1]])


def prove_answers(
    renderer: ConversationRenderer, template: Renderer, marked: Renderer | None, choices: ChatChoices
) -> tuple[str, ...]:
    """The different texts that the template writes between the beginning of a trained answer and the answer's own text.

    Empty for a template that does not render answers verbatim: then no answer can be found by its text. Conversations
    that the template or the choices refuse prove nothing: rows of that kind are refused as well.

    Args:
        renderer: Makes the sequences that are trained on.
        template: The compiled template.
        marked: The template compiled with `GENERATION_MARKS`, or None if it has no `{% generation %}`.
        choices: The choices of the renderer.

    Raises ConfigError for a template whose answers can be read in two ways.
    """
    openings: set[str] = set()
    as_given = True
    for probe in _probes(choices):
        rendered = renderer.render(Conversation(probe.messages, probe.tools))
        if not isinstance(rendered, RenderedConversation):
            _refuse_ambiguous(probe, template)
            continue
        for chunks in rendered.sequences:
            for index, chunk in enumerate(chunks):
                if not chunk.trained:
                    continue
                if (opening := _opening(chunk, probe)) is not None:
                    openings.add(opening)
                elif probe.tools is None:  # some templates leave out the text beside calls
                    as_given = False
                if marked is not None:
                    _compare_marks(chunks, index, probe, marked)
    return tuple(sorted(openings)) if as_given else ()


def _own_texts(message: dict[str, Any]) -> list[str]:
    return [message[key] for key in ("reasoning_content", "content") if message.get(key)]


def _opening(chunk: RenderedChunk, probe: _Probe) -> str | None:
    """Return what is trained before the answer's own text; None if that text is not rendered verbatim."""
    texts = [text for message in probe.messages if message["role"] == "assistant" for text in _own_texts(message)]
    positions = [position for text in texts if (position := chunk.text.find(text)) >= 0]
    return chunk.text[: min(positions)] if positions else None


def _refuse_ambiguous(probe: _Probe, template: Renderer) -> None:
    """Raise ConfigError if an answer in a refused conversation follows a prompt that lost more than white space."""
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
            own = min((tail.find(text) for text in _own_texts(message) if text in tail), default=0)
            # what stands between the prompt and the answer's own text may belong to either
            if stripped and rendering.startswith(stripped) and tail[:own].strip():
                raise _two_readings(probe, f"its prompt ends in {prompt[-24:]!r}", tail, tail[own:])


def _compare_marks(chunks: tuple[RenderedChunk, ...], at: int, probe: _Probe, marked: Renderer) -> None:
    """Raise ConfigError if the template's own marks begin an answer elsewhere than at the end of the prompt."""
    rendering = "".join(chunk.text for chunk in chunks)
    start = sum(len(chunk.text) for chunk in chunks[:at])
    for stop in range(1, len(probe.messages) + 1):
        for mode in (True, False):
            try:
                text = marked.render(probe.messages[:stop], probe.tools, prompt=False, thinking=mode)
            except TemplateRenderError:
                continue
            # only a rendering that is this sequence, but for the marks, says where its answers begin
            pieces = text.replace(GENERATION_MARKS[1], "").split(GENERATION_MARKS[0])
            if "".join(pieces) == rendering:
                begins = [sum(map(len, pieces[: i + 1])) for i in range(len(pieces) - 1)]
                if start not in begins:
                    nearest = min(begins, key=lambda place: abs(place - start), default=len(rendering))
                    raise _two_readings(
                        probe,
                        "its prompt places the answer differently from `{% generation %}`",
                        rendering[start:],
                        rendering[nearest:],
                    )
                return


def _two_readings(probe: _Probe, why: str, first: str, second: str) -> ConfigError:
    return ConfigError(
        f"chat_template: for {probe.about}, {why}. The loss would begin at {first[:_SHOWN]!r} or "
        f"{second[:_SHOWN]!r}, and the template does not decide which. Correct the template: an answer must follow "
        "its complete generation prompt, for one value of `enable_thinking`, and be inside `{% generation %}` if "
        "the template has it"
    )
