"""Renders a conversation, and cuts it where the assistant's answers begin and end.

The whole conversation is rendered once; each answer is found by rendering the messages before it with the generation
prompt, and the messages up to and including it without. Both must be prefixes of the whole, or the model would be
trained on a text that it never sees when it answers: then the conversation is refused, naming the message. An answer
runs from after the generation prompt to its stop token, inclusive; what the template writes after that is only trained
if it is chosen (`choices.py`).

A conversation with reasoning becomes one sequence for each user turn, because a template drops the reasoning of earlier
turns: only the answers after the last user message of a sequence are trained in it. Otherwise there is one sequence.
Where a template writes an answer in another way once a tool's result follows, a turn is a sequence for each answer.

Literal tokens of the template in messages stay text. They are replaced by placeholders before rendering, so that every
such token in the result is the template's own, and put back when the result is encoded. The tags of a thought, a call
and a result are no text where a model or the instructions to it write them (`_WRITE_TAGS`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from dataprep_assets.errors import ConfigError
from dataprep_assets.tokenization.bundle import LiteralFinder, SpecialToken
from dataprep_assets.tokenization.chat.choices import OURS, ChatChoices
from dataprep_assets.tokenization.chat.messages import Conversation, Refusal, is_trained, reasons
from dataprep_assets.tokenization.chat.template import Renderer, TemplateRenderError

_MOST_RENDERED = 2 << 30
"""Most characters rendered for one conversation: all before each answer is, twice. A thousand answers of 1 KB are half
of that, as are 4,000 of some words."""
_OF_A_MESSAGE = 256
"""Characters that take as long as a message does besides its own."""

Turns = Literal["reasoning", "always"]
"""When a conversation becomes one sequence for each user turn: if it has `reasoning`, or `always`."""

_COMPARED = 40
"""Characters of an answer that are compared to find it."""
_SYSTEM, _QUESTION, _TURN_END = "<|im_start|>system", "<|im_start|>user", "<|im_end|>\n"
"""What Nemotron looks for in the text of a first question."""
_WRITE_TAGS = frozenset({"assistant", "system", "developer"})
"""Roles in whose messages a tag is that of the template: a thought within an answer, the form of a call in a rule."""
_RESULT_TAGS = frozenset({"<tool_response>", "</tool_response>"})
"""Tags that any message may hold: Qwen's templates take a question within them for a tool's result."""
_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Noncharacters: code points that Unicode reserves for internal use such as this. A row with all is refused."""


class RenderedChunk(NamedTuple):
    """Rendered text between two cuts, and whether its tokens are trained."""

    text: str
    trained: bool


@dataclass(frozen=True, slots=True)
class RenderedConversation:
    """One conversation: the chunks of each of its sequences.

    `mark` is None, or the character around placeholders: `mark + str(i) + mark` stands for token `i` of the template.
    """

    sequences: tuple[tuple[RenderedChunk, ...], ...]
    mark: str | None = None


class ConversationRenderer:
    """Renders conversations into chunks of text, each trained or not.

    `renderer` is the compiled chat template, `tokens` are those that stay text in a message: the tokenizer's special
    ones, and others that the template writes. Those with a content in `tags` stay tokens where a model writes them.
    `stop` is the content of the token that ends an answer. `turns` says which conversations become a sequence for each
    user turn (see `Turns`), `choices` what is trained.
    """

    def __init__(
        self,
        renderer: Renderer,
        tokens: Sequence[SpecialToken],
        *,
        stop: str,
        turns: Turns = "reasoning",
        tags: Collection[str] = (),
        choices: ChatChoices = OURS,
    ) -> None:
        self._renderer, self._stop, self._turns, self._choices = renderer, stop, turns, choices
        self._rendered = 0  # characters of the conversation at work
        self._indexes = {token.content: i for i, token in enumerate(tokens)}
        as_text = self._indexes.keys() if choices.special_literals == "text" else set()
        self._of_models = LiteralFinder(tuple(as_text - set(tags)))
        self._of_others = LiteralFinder(tuple(as_text - (_RESULT_TAGS & set(tags))))

    def render(self, conversation: Conversation) -> RenderedConversation | Refusal:
        """The sequences of a conversation, or why it has none.

        A turn without an answer gives no sequence, unless it is kept.
        """
        mark, self._rendered = None, 0
        try:
            if self._holds_literals(conversation):
                mark, conversation = self._protected(conversation)
            return RenderedConversation(tuple(self._sequences(conversation, mark)), mark)
        except _ChatRefusedError as error:
            return error.refusal

    def _sequences(self, conversation: Conversation, mark: str | None) -> Iterator[tuple[RenderedChunk, ...]]:
        messages = conversation.messages
        users = [i for i, message in enumerate(messages) if message["role"] == "user"]
        if not self._thinks(conversation) and self._turns == "reasoning":
            chunks = self._sequence(conversation, len(messages), self._first_trained(messages, users), mark)
            yield self._question_twice(chunks, conversation)
            return
        for user, stop in pairwise([*users, len(messages)]):
            turn_messages = messages[user + 1 : stop]
            has_answer = any(message["role"] == "assistant" for message in turn_messages)
            if has_answer or (turn_messages and self._choices.untrained == "kept"):
                for chunks in self._render_turn(conversation, user + 1, stop, mark):
                    yield self._question_cut(chunks, conversation, user)

    def _render_turn(
        self, conversation: Conversation, first: int, stop: int, mark: str | None
    ) -> list[tuple[RenderedChunk, ...]]:
        """The sequence of the turn of messages from `first` up to `stop`, or, if its answers change, one of each."""
        try:
            return [self._sequence(conversation, stop, first, mark)]
        except _ChatRefusedError as error:
            if self._is_strict or error.refusal.reason != "template_mismatch":
                raise
            answers = [i for i in range(first, stop) if conversation.messages[i]["role"] == "assistant"]
            if error.refusal.message == answers[-1]:
                raise
        return [self._sequence(conversation, i + 1, i, mark) for i in answers]

    @property
    def _is_strict(self) -> bool:
        """Whether there is one way alone to render a conversation: that of the original."""
        return self._choices.inline_reasoning == "refuse"

    def _thinks(self, conversation: Conversation) -> bool:
        """Return whether the conversation counts as one with reasoning."""
        if self._choices.blank_reasoning == "reasoning":
            return any(message.get("reasoning_content") for message in conversation.messages)
        return conversation.has_reasoning

    def _first_trained(self, messages: list[dict[str, Any]], users: list[int]) -> int:
        """Index of the first message that is trained as an answer, if the conversation is one sequence."""
        if self._choices.answers == "every":
            return 0
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        return max((user for user in users if answers and user < answers[-1]), default=0)

    def _sequence(
        self, conversation: Conversation, stop: int, first: int, mark: str | None
    ) -> tuple[RenderedChunk, ...]:
        """The messages before `stop`, in which the answers from message `first` on are trained."""
        messages, tools, thinking = conversation.messages, conversation.tools, self._thinks(conversation)
        rendering = self._text(messages[:stop], tools, False, thinking, stop - 1)
        # asked of the whole alone: whatever else is rendered has to be a beginning of it
        if mark is not None and not _restorable(rendering, mark):
            raise _ChatRefusedError("template_refused", None)
        chunks: list[RenderedChunk] = []
        position = 0
        for index in range(first, stop):
            if messages[index]["role"] != "assistant":
                continue
            start = self._answer_start(rendering, messages[: index + 1], tools, thinking, index)
            end = len(rendering)
            if index < stop - 1:
                before = self._text(messages[: index + 1], tools, False, thinking, index)
                if not rendering.startswith(before):
                    raise _ChatRefusedError("template_mismatch", index)
                end = len(before)
            answer = rendering[start:end].rstrip()
            # an answer cannot begin within the one before it
            if start < position:
                raise _ChatRefusedError("template_mismatch", index)
            if not answer.endswith(self._stop):
                raise _ChatRefusedError("no_stop_token", index)
            if self._choices.turn_end_newline:
                answer = rendering[start:end]
            chunks += (
                RenderedChunk(rendering[position:start], False),
                RenderedChunk(answer, is_trained(messages[index])),
            )
            position = start + len(answer)
        chunks.append(RenderedChunk(rendering[position:], False))
        return tuple(chunk for chunk in chunks if chunk.text)

    def _question_twice(
        self, chunks: tuple[RenderedChunk, ...], conversation: Conversation
    ) -> tuple[RenderedChunk, ...]:
        """The chunks of a conversation, with the beginning of its first question written twice if that is chosen.

        Nemotron takes a first question that contains the header of a system text for a system text followed by a
        question: everything up to the first end of a turn, then everything from the first header of a question on.
        """
        messages, tools = conversation.messages, conversation.tools
        if self._choices.system_in_question == "once" or messages[0]["role"] != "user" or not chunks:
            return chunks
        has_answer = len(messages) > 1 and messages[1]["role"] == "assistant"
        question = self._text(messages[:1], tools, has_answer, False, 0)
        if _SYSTEM not in question or _QUESTION not in question:
            return chunks
        first_chunk, *other_chunks = chunks
        if not first_chunk.text.startswith(question):
            raise _ChatRefusedError("template_mismatch", 0)
        end = question.find(_TURN_END) + len(_TURN_END)
        return (
            RenderedChunk(first_chunk.text[:end], False),
            RenderedChunk(first_chunk.text[question.find(_QUESTION) :], False),
            *other_chunks,
        )

    def _question_cut(
        self, chunks: tuple[RenderedChunk, ...], conversation: Conversation, user: int
    ) -> tuple[RenderedChunk, ...]:
        """The chunks of a turn, cut where a prompt would end after its question `user`, if that is chosen.

        Nemotron takes that many characters as the question, even if something other than an answer follows.
        """
        behind = conversation.messages[user + 1]["role"]
        if self._choices.question_end == "text" or behind == "assistant" or not chunks:
            return chunks
        before, tools, thinking = conversation.messages[: user + 1], conversation.tools, self._thinks(conversation)
        prompt_length = len(self._text(before, tools, True, thinking, user))
        parts = (chunks[0].text[:prompt_length], chunks[0].text[prompt_length:])
        return (*(RenderedChunk(text, False) for text in parts if text), *chunks[1:])

    def _answer_start(
        self, whole: str, upto: list[dict[str, Any]], tools: list[dict[str, Any]] | None, thinking: bool, index: int
    ) -> int:
        """Return where the answer that ends `upto` begins in `whole`: after the generation prompt.

        An answer without reasoning among others that have it is prompted with thinking off. Some templates end the
        prompt with white space that an answer does not repeat; then the prompt ends before it, and the answer itself
        must follow: otherwise more than the white space is missing (`answer_proof.py`).
        """
        before, reasoned = upto[:-1], reasons(upto[-1])
        if self._choices.unprompted_header and _is_unprompted(before, thinking, reasoned):
            text = self._text(before, tools, False, thinking, index) if before else ""
            if not whole.startswith(text):
                raise _ChatRefusedError("template_mismatch", index)
            return len(text)
        prompts = []
        thought = thinking and reasoned
        # the original tries one prompt alone; an answer with its thought in its text may need the other
        for mode in (thought,) if self._is_strict else (thought, not thought):
            prompt = self._text(before, tools, True, mode, index)
            if whole.startswith(prompt):
                return len(prompt)
            prompts.append(prompt.rstrip())
        for prompt in prompts:
            if prompt and whole.startswith(prompt) and not self._is_strict and _begins_at(whole, len(prompt), upto[-1]):
                return len(prompt)
        raise _ChatRefusedError("template_mismatch", index)

    def _text(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, prompt: bool, thinking: bool, at: int
    ) -> str:
        if self._rendered > _MOST_RENDERED:
            raise _ChatRefusedError("too_many_messages", at)
        try:
            text = self._renderer.render(messages, tools, prompt=prompt, thinking=thinking)
        except TemplateRenderError as failure:
            raise _ChatRefusedError("template_refused", at) from failure
        self._rendered += len(text) + _OF_A_MESSAGE * len(messages)
        return text

    def _holds_literals(self, conversation: Conversation) -> bool:
        text_sources = [(self._literals_of(message), message) for message in conversation.messages]
        values = [*text_sources, (self._of_models, conversation.tools)]
        return any(literals.found_in(text) for literals, value in values for text in _strings(value))

    def _protected(self, conversation: Conversation) -> tuple[str, Conversation]:
        used = "".join(_strings([conversation.messages, conversation.tools]))
        mark = next((m for m in _MARKS if m not in used), None)
        if mark is None:
            raise _ChatRefusedError("all_noncharacters", None)

        def placeholder(literal: str) -> str:
            return f"{mark}{self._indexes[literal]}{mark}"

        def protect(value: Any, literals: LiteralFinder) -> Any:
            if isinstance(value, str):
                return literals.replaced(value, placeholder)
            if isinstance(value, dict):
                # keys, too: a template may write them, as `tojson` does
                return {protect(k, literals): protect(v, literals) for k, v in value.items()}
            return [protect(v, literals) for v in value] if isinstance(value, list) else value

        messages = [protect(message, self._literals_of(message)) for message in conversation.messages]
        return mark, Conversation(messages, protect(conversation.tools, self._of_models))

    def _literals_of(self, message: Mapping[str, Any]) -> LiteralFinder:
        """The literals that stay text in a message."""
        return self._of_models if message["role"] in _WRITE_TAGS else self._of_others


def _is_unprompted(before: list[dict[str, Any]], thinking: bool, reasoned: bool) -> bool:
    """Return whether an answer follows no prompt, by Nemotron's rule: after a question or a tool's result there is one.

    In a conversation with reasoning, an answer without reasoning has a prompt after everything except another answer.
    """
    role = before[-1]["role"] if before else "assistant"
    return role not in ("user", "tool") and (role == "assistant" or reasoned or not thinking)


def _begins_at(text: str, cut: int, message: dict[str, Any]) -> bool:
    """Return whether there is only white space between a cut and the message's text, if it has any.

    The text may begin before the cut: reasoning within an answer's text begins with the tag that ends a prompt.
    """
    texts = [t for key in ("reasoning_content", "content") if isinstance(t := message.get(key), str) and t.strip()]
    for beginning in (t.strip()[:_COMPARED] for t in texts):
        start = text.find(beginning, max(0, cut - len(beginning) + 1))
        if start >= 0 and not text[cut:start].strip():
            return True
    return not texts


def _restorable(text: str, mark: str) -> bool:
    """Return whether every placeholder survived: a template may cut or escape its input."""
    parts = text.split(mark)
    # between two marks is a number; a mark that `tojson` has escaped would not be found again
    return len(parts) % 2 == 1 and all(map(str.isdigit, parts[1::2])) and f"\\u{ord(mark):04x}" not in text.lower()


class _ChatRefusedError(Exception):
    def __init__(self, reason: str, message: int | None) -> None:
        self.refusal = Refusal(reason, message)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def stop_token(renderer: Renderer, specials: Sequence[SpecialToken], declared: str = "auto") -> SpecialToken:
    """The special token with which the template of `renderer` ends an answer.

    `specials` are the tokenizer's special tokens; `declared` is `auto`, or the content that it must have. Raises
    ConfigError when an answer ends with none: a model trained on it never learns to stop (Megatron-Bridge#3927).
    """
    messages = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": "an answer"}]
    try:
        text = renderer.render(messages, None, prompt=False, thinking=False).rstrip()
    except TemplateRenderError as failure:
        raise ConfigError(
            f"chat_template {renderer.name}: it cannot render a question and an answer: {failure}"
        ) from failure
    ending = [s for s in specials if text.endswith(s.content)]
    # the longest, because one special token may end with another
    token = max(ending, key=lambda s: len(s.content), default=None)
    if token is None or declared not in ("auto", token.content):
        end_text = repr(token.content) if token else "no special token of this tokenizer"
        contents = [s.content for s in specials][:12]
        raise ConfigError(
            f"chat_template {renderer.name}: an answer ends with {end_text}, expected {declared!r}; its text ends in "
            f"{text[-24:]!r}. Use a template and a tokenizer that belong together. Available special tokens: {contents}"
        )
    return token
