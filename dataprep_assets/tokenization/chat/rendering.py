"""Renders a conversation, and cuts it where the assistant's answers begin and end.

The conversation is rendered once, up to its last answer. Each answer is found by rendering the messages before it with
the generation prompt, and the messages up to and including it without. Both must be prefixes of the whole, because
otherwise the model would be trained on a text that it never sees when it answers. An answer runs from after the
generation prompt to its stop token, inclusive; text after that is only trained if it is chosen (`choices.py`). Where a
template marks answers with `{% generation %}`, the marks decide what is trained.

A conversation with reasoning becomes one sequence for each user turn, because a template drops the reasoning of earlier
turns: only the answers after the last user message of a sequence are trained in it. Otherwise there is one sequence.
Where a template writes earlier answers differently once others follow, each turn is a sequence, or each answer. An
answer that does not follow its own generation prompt in the whole is written after that prompt, and ends its sequence.

Each sequence must have every text of its messages (`lost_text.py`), or the row is refused.

Literal tokens of the template in messages stay text. They are replaced by placeholders before rendering, so that every
such token in the result is the template's own, and put back when the result is encoded. The tags of a thought, a call
and a result are no text where a model or the instructions to it write them (`_WRITE_TAGS`).
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from typing import Any, Literal, NamedTuple

from dataprep_assets.tokenization.bundle import LiteralFinder, SpecialToken
from dataprep_assets.tokenization.chat.choices import OURS, ChatChoices
from dataprep_assets.tokenization.chat.lost_text import LOST, find_losses, occurs_in, own_texts, strings_of
from dataprep_assets.tokenization.chat.message_form import MessageForm
from dataprep_assets.tokenization.chat.messages import Conversation, Refusal, is_trained, reasons
from dataprep_assets.tokenization.chat.stops import Stops
from dataprep_assets.tokenization.chat.template import Renderer, TemplateRenderError

_MOST_RENDERED = 2 << 30
"""Most characters rendered for one conversation: all before each answer is, twice. A thousand answers of 1 KB are half
of that, as are 4,000 of some words."""
_MESSAGE_COST = 256
"""Characters that take as long to render as a message without text."""

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
GENERATION_MARKS = ("\ufdee", "\ufdef")
"""The characters that mark the beginning and end of `{% generation %}`: noncharacters, which Unicode reserves for
internal use."""
_MARKS = [chr(code) for code in range(0xFDD0, 0xFDEE)]
"""Noncharacters for placeholders. A row with all of them is refused."""
_OPEN_THOUGHT, _THOUGHT_END = "<think>", "\n</think>\n\n"
_LOST_TOOLS = f"{LOST}: tools"
AFTER_LAST = "after_last_answer"
"""Why messages of a used conversation are left out: no answer follows them."""
_MOST_WORDS = 200
"""Characters of a template's own words that a refusal has."""


class RenderedChunk(NamedTuple):
    """Rendered text between two cuts, and whether its tokens are trained."""

    text: str
    trained: bool


@dataclass(frozen=True, slots=True)
class RenderedConversation:
    """One conversation: the chunks of each of its sequences.

    `mark` is None, or the character around placeholders: `mark + str(i) + mark` stands for token `i` of the template.
    `cuts` are the reasons for which a part of the conversation is left out.
    """

    sequences: tuple[tuple[RenderedChunk, ...], ...]
    mark: str | None = None
    cuts: tuple[str, ...] = ()


class ConversationRenderer:
    """Renders conversations into chunks of text, each trained or not.

    `renderer` is the compiled chat template, `tokens` are those that stay text in a message: the tokenizer's special
    ones, and others that the template writes. Those with a content in `tags` stay tokens where a model writes them.
    `stops` are the tokens that end an answer. `turns` says which conversations become a sequence for each user turn
    (see `Turns`), `choices` what is trained, `form` how the template reads a message. With `is_marked`, the template is
    compiled with `GENERATION_MARKS`, which decide what is trained.
    """

    def __init__(
        self,
        renderer: Renderer,
        tokens: Sequence[SpecialToken],
        *,
        stops: Stops,
        turns: Turns = "reasoning",
        tags: Collection[str] = (),
        choices: ChatChoices = OURS,
        form: MessageForm | None = None,
        is_marked: bool = False,
    ) -> None:
        self._renderer, self._turns, self._choices = renderer, turns, choices
        self._form, self._is_marked = form or MessageForm(), is_marked
        self._stops, self._stop_contents = stops, tuple(token.content for token in stops.tokens)
        self._headers = tuple(token.content for token in stops.headers)
        self._rendered = 0  # characters of the conversation at work
        self._cuts: dict[str, None] = {}  # reasons of the conversation at work, in order
        self._indexes = {token.content: i for i, token in enumerate(tokens)}
        as_text = self._indexes.keys() if choices.special_literals == "text" else set()
        self._model_literals = LiteralFinder(tuple(as_text - set(tags)))
        self._other_literals = LiteralFinder(tuple(as_text - (_RESULT_TAGS & set(tags))))

    def render(self, conversation: Conversation) -> RenderedConversation | Refusal:
        """Return the sequences of a conversation, or why it has none.

        Messages after the last answer are left out. A turn without an answer gives no sequence, unless it is kept. If
        the template refuses a message, the refusal has the sequences of the messages before it; if it writes the calls
        of a conversation but not the declared tools, all sequences.
        """
        mark, self._rendered, self._cuts = None, 0, {}
        try:
            if self._is_marked and any(
                mark in text for text in strings_of(conversation.messages) for mark in GENERATION_MARKS
            ):
                return Refusal("all_noncharacters")
            if self._holds_literals(conversation):
                mark, conversation = self._protected(conversation)
            rendered = self._render_up_to(len(conversation.messages), conversation, mark)
            is_refused = _LOST_TOOLS in rendered.cuts and "tools" not in self._choices.allow_loss
            return Refusal(_LOST_TOOLS, part=rendered) if is_refused else rendered
        except _ChatRefusedError as error:
            if self._is_strict or error.refusal.reason != "template_refused" or error.refusal.message is None:
                return error.refusal
            return self._refused_at(conversation, mark, error.refusal)

    def _render_up_to(self, stop: int, conversation: Conversation, mark: str | None) -> RenderedConversation:
        """Return the sequences of the messages before `stop`, up to their last answer."""
        messages = conversation.messages[:stop]
        end = max(
            (i + 1 for i, message in enumerate(messages) if message["role"] == "assistant"), default=len(messages)
        )
        if end < len(messages) and not self._is_strict:
            self._cuts[AFTER_LAST] = None
            messages = messages[:end]
        sequences = tuple(self._sequences(Conversation(messages, conversation.tools), mark))
        return RenderedConversation(sequences, mark, tuple(self._cuts))

    def _refused_at(self, conversation: Conversation, mark: str | None, refusal: Refusal) -> Refusal:
        """Return the refusal with the message at fault, and what can be used before it.

        At fault is the last of the shortest messages from which on all are refused.
        """
        messages, thinking, fault = conversation.messages, self._is_thinking(conversation), refusal.message or 0
        for index in range(fault, -1, -1):
            try:
                self._text(messages[: index + 1], conversation.tools, False, thinking, index)
                break
            except _ChatRefusedError as error:
                fault, refusal = index, replace(error.refusal, message=index)
        if not any(message["role"] == "assistant" for message in messages[:fault]):
            return refusal
        self._cuts = {}
        with suppress(_ChatRefusedError):
            rendered = self._render_up_to(fault, conversation, mark)
            return replace(refusal, part=replace(rendered, cuts=(refusal.reason,)) if rendered.sequences else None)
        return refusal

    def _sequences(self, conversation: Conversation, mark: str | None) -> Iterator[tuple[RenderedChunk, ...]]:
        messages = conversation.messages
        users = [i for i, message in enumerate(messages) if message["role"] == "user"]
        if not self._thinks(conversation) and self._turns == "reasoning":
            try:
                chunks = self._sequence(conversation, len(messages), self._first_trained(messages, users), mark)
                yield self._question_twice(chunks, conversation)
                return
            except _ChatRefusedError as error:
                if self._is_strict or not error.may_be_split:
                    raise
            # of one sequence only the last turn would be trained
            users = users[-1:] if self._choices.answers == "last_turn" else users
        starts = [user + 1 for user in users]
        if not self._is_strict and (not users or any(m["role"] == "assistant" for m in messages[: users[0]])):
            starts.insert(0, 0)
        for start, end in pairwise([*starts, len(messages) + 1]):
            stop = end - 1
            answers = [i for i in range(start, stop) if messages[i]["role"] == "assistant"]
            if not self._is_strict and answers:
                stop = answers[-1] + 1
            if answers or (start < stop and self._choices.untrained == "kept"):
                for chunks in self._render_turn(conversation, start, stop, mark):
                    yield self._question_cut(chunks, conversation, start - 1)

    def _render_turn(
        self, conversation: Conversation, first: int, stop: int, mark: str | None
    ) -> list[tuple[RenderedChunk, ...]]:
        """Return the sequence of the turn from `first` up to `stop`, or one of each answer if answers change."""
        try:
            return [self._sequence(conversation, stop, first, mark)]
        except _ChatRefusedError as error:
            if self._is_strict or not error.may_be_split:
                raise
        answers = [i for i in range(first, stop) if conversation.messages[i]["role"] == "assistant"]
        return [self._answer_alone(conversation, i, mark) for i in answers if is_trained(conversation.messages[i])]

    def _answer_alone(self, conversation: Conversation, index: int, mark: str | None) -> tuple[RenderedChunk, ...]:
        """Return the sequence that ends with the answer `index`, the only trained answer in it."""
        try:
            return self._sequence(conversation, index + 1, index, mark)
        except _ChatRefusedError as error:
            chunks = self._prompted(conversation, index, mark) if error.may_be_split else None
            if chunks is None:
                raise
            return chunks

    @property
    def _is_strict(self) -> bool:
        """Whether a conversation is rendered only as the original renders it."""
        return self._choices.inline_reasoning == "refuse"

    def _thinks(self, conversation: Conversation) -> bool:
        """Return whether the conversation counts as one with reasoning."""
        if self._choices.blank_reasoning == "reasoning":
            return any(message.get("reasoning_content") for message in conversation.messages)
        return conversation.has_reasoning

    def _thinks_inline(self, message: Mapping[str, Any]) -> bool:
        """Return whether an answer has a thought in its text."""
        content = message.get("content")
        return not self._is_strict and isinstance(content, str) and "</think>" in content

    def _is_thinking(self, conversation: Conversation) -> bool:
        """Return whether a conversation is rendered with `enable_thinking`."""
        return self._thinks(conversation) or any(
            message["role"] == "assistant" and self._thinks_inline(message) for message in conversation.messages
        )

    def _first_trained(self, messages: list[dict[str, Any]], users: list[int]) -> int:
        """Index of the first message that is trained as an answer, if the conversation is one sequence."""
        if self._choices.answers == "every":
            return 0
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        return max((user for user in users if answers and user < answers[-1]), default=0)

    def _sequence(
        self, conversation: Conversation, stop: int, first: int, mark: str | None
    ) -> tuple[RenderedChunk, ...]:
        """Return the messages before `stop` as chunks, in which the answers from message `first` on are trained."""
        messages, tools, thinking = conversation.messages, conversation.tools, self._is_thinking(conversation)
        rendering, spans = self._marked_text(messages[:stop], tools, False, thinking, stop - 1)
        # checked only in the whole text, because all other renderings must be prefixes of it
        if mark is not None and not _restorable(rendering, mark):
            raise _ChatRefusedError("template_refused", None)
        if self._is_marked and first:
            # spans of earlier answers are not trained; with a prompt, because a template may mark the end of a text
            spans = spans[len(self._marked_text(messages[:first], tools, True, thinking, first)[1]) :]
        parts: list[tuple[int, int, int]] = []  # index of the message, start and end of a trained part
        position = 0
        for index in range(first, stop):
            if messages[index]["role"] != "assistant":
                continue
            end = len(rendering)
            if index < stop - 1:
                before = self._text(messages[: index + 1], tools, False, thinking, index)
                if not rendering.startswith(before):
                    raise _ChatRefusedError("template_mismatch", index)
                end = len(before)
            if self._is_marked:
                marked_spans = _marks_of(rendering, spans, position, end, messages[:index])
                if not marked_spans:
                    raise _ChatRefusedError("unmarked_answer", index)
                *previous_spans, (start, end) = marked_spans
                parts += [(index, *span) for span in previous_spans]
            else:
                start = self._answer_start(rendering, messages[: index + 1], tools, thinking, index)
            # an answer cannot begin within the one before it
            if start < position:
                raise _ChatRefusedError("template_mismatch", index)
            rendering, position = self._end_answer(rendering, start, end, messages[index], index)
            parts.append((index, start, position))
        return self._chunks(rendering, parts, messages[:stop], tools)

    def _end_answer(self, text: str, start: int, end: int, message: dict[str, Any], index: int) -> tuple[str, int]:
        """Return the text and where the answer from `start` to about `end` ends in it, inclusive of its stop token."""
        answer = text[start:end].rstrip()
        if answer.endswith(self._stop_contents):
            return text, end if self._choices.turn_end_newline else start + len(answer)
        if not self._is_strict:
            if header := max((h for h in self._headers if text.startswith(h, end)), key=len, default=""):
                return text, end + len(header)
            added = self._stops.after_call if message.get("tool_calls") else self._stops.after_answer
            if added is not None and end == len(text):
                return text + added.content, len(text) + len(added.content)
            # the template itself writes something after the end, such as the header of a tool's result
            inner = max(((answer.rfind(stop), len(stop)) for stop in self._stop_contents), default=(-1, 0))
            if inner[0] > 0:
                return text, start + sum(inner)
        raise _ChatRefusedError("no_stop_token", index)

    def _chunks(
        self,
        text: str,
        parts: list[tuple[int, int, int]],
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
    ) -> tuple[RenderedChunk, ...]:
        """Return the text as chunks. The `parts` are the trained answers: message, start and end of each.

        Raises _ChatRefusedError if a text of a message is lost that the declaration does not allow to be lost.
        """
        empty_answers: set[int] = set()
        if not self._is_strict:
            answers: dict[int, str] = {}
            for index, start, end in parts:
                answers[index] = answers.get(index, "") + text[start:end]
            losses, empty_answers = find_losses(text, answers, messages, tools)
            # other losses first, because only a conversation without them is of use
            losses.sort(key=lambda loss: loss[0] == "tools")
            has_calls = any(message.get("tool_calls") for message in messages)
            for feature, fault in losses:
                reason = f"{LOST}: {feature}"
                # a call says by itself how a tool is used, so the conversation is of use without the declaration
                if feature not in self._choices.allow_loss and not (reason == _LOST_TOOLS and has_calls):
                    raise _ChatRefusedError(reason, fault)
                self._cuts[reason] = None
        chunks: list[RenderedChunk] = []
        position = 0
        for index, start, end in parts:
            in_loss = is_trained(messages[index]) and index not in empty_answers
            chunks += (RenderedChunk(text[position:start], False), RenderedChunk(text[start:end], in_loss))
            position = end
        chunks.append(RenderedChunk(text[position:], False))
        return tuple(chunk for chunk in chunks if chunk.text)

    def _prompted(self, conversation: Conversation, index: int, mark: str | None) -> tuple[RenderedChunk, ...] | None:
        """Return the generation prompt and after it the answer `index`, where the whole has another text before it.

        None if the answer's own text cannot be separated from the template's text around it.
        """
        messages, tools = conversation.messages[: index + 1], conversation.tools
        thinking = self._is_thinking(conversation)
        for mode in dict.fromkeys((thinking, not thinking)):
            prompt = self._text(messages[:-1], tools, True, mode, index) if index else ""
            answer = self._thought_after(prompt, messages[-1])
            if answer is None:
                answer = self._answer_after(prompt, messages, tools, thinking)
            if answer is None:
                answer = self._answer_in_place(messages, tools, mode, thinking)
            if answer is None or (mark is not None and not _restorable(prompt + answer, mark)):
                continue
            text, end = self._end_answer(prompt + answer, len(prompt), len(prompt + answer), messages[-1], index)
            with suppress(_ChatRefusedError):
                return self._chunks(text, [(index, len(prompt), end)], messages, tools)
        return None

    def _thought_after(self, prompt: str, message: dict[str, Any]) -> str | None:
        """Return the answer after a prompt that opens a thought, if it has one that the template would drop."""
        content, thought = message.get("content") or "", message.get("reasoning_content") or ""
        if not prompt.rstrip().endswith(_OPEN_THOUGHT) or message.get("tool_calls"):
            return None
        if thought.strip():
            content = thought.strip() + _THOUGHT_END + content
        elif "</think>" not in content:
            return None
        return content.strip().removeprefix(_OPEN_THOUGHT).lstrip() + self._stops.plain_stop.content

    def _answer_after(
        self, prompt: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, thinking: bool
    ) -> str | None:
        """Return the answer that ends `messages`, as the template writes it after the header that ends the prompt."""
        index = len(messages) - 1
        before = self._text(messages[:-1], tools, False, thinking, index) if index else ""
        header = prompt[len(before) :] if prompt.startswith(before) else ""
        if not header.strip():
            return None
        text = self._text(messages, tools, False, thinking, index)
        # a thought and the text after it may have a header each; where the message before ends, the first one is meant
        texts_end = _end_of_texts(text, messages[:-1])
        header_start = text.rfind(header) if texts_end is None else text.find(header, texts_end)
        return None if header_start < 0 else text[header_start + len(header) :]

    def _answer_in_place(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, mode: bool, thinking: bool
    ) -> str | None:
        """Return the last answer as the template writes it in the place of the answers right before it."""
        index = len(messages) - 1
        before = list(messages[:-1])
        while before and before[-1]["role"] == "assistant":
            before.pop()
        if len(before) == index:
            return None
        prompt = self._text(before, tools, True, mode, index) if before else ""
        text = self._text([*before, messages[-1]], tools, False, thinking, index)
        return text[len(prompt) :] if prompt and text.startswith(prompt) else None

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
        before, tools, thinking = conversation.messages[: user + 1], conversation.tools, self._is_thinking(conversation)
        prompt_length = len(self._text(before, tools, True, thinking, user))
        parts = (chunks[0].text[:prompt_length], chunks[0].text[prompt_length:])
        return (*(RenderedChunk(text, False) for text in parts if text), *chunks[1:])

    def _answer_start(
        self, whole: str, upto: list[dict[str, Any]], tools: list[dict[str, Any]] | None, thinking: bool, index: int
    ) -> int:
        """Return where the answer that ends `upto` begins in `whole`: after the generation prompt.

        An answer without reasoning among others that have it is prompted with thinking off. Some templates end the
        prompt with white space that an answer does not repeat; then the prompt ends before it, and the answer itself
        must follow: otherwise more than the white space is missing (`answer_readings.py`).
        """
        before, reasoned = upto[:-1], reasons(upto[-1])
        if self._choices.unprompted_header and _is_unprompted(before, thinking, reasoned):
            text = self._text(before, tools, False, thinking, index) if before else ""
            if not whole.startswith(text):
                raise _ChatRefusedError("template_mismatch", index)
            return len(text)
        prompts = []
        thought = thinking and (reasoned or self._thinks_inline(upto[-1]))
        # the original tries one prompt alone; an answer with its thought in its text may need the other
        for mode in (thought,) if self._is_strict else (thought, not thought):
            prompt = self._text(before, tools, True, mode, index)
            if whole.startswith(prompt):
                return len(prompt)
            prompts.append(prompt.rstrip())
        # the history may lack the thought that a prompt opens; an answer that has one is written after that prompt
        if not self._thinks_inline(upto[-1]):
            headers = [prompt.removesuffix(_OPEN_THOUGHT) for prompt in prompts if prompt.endswith(_OPEN_THOUGHT)]
            prompts += [*headers, *map(str.rstrip, headers)]
        for prompt in prompts:
            if prompt and whole.startswith(prompt) and not self._is_strict and _begins_at(whole, len(prompt), upto[-1]):
                return len(prompt)
        # a text that the template drops is the more exact reason
        for own in () if self._is_strict else own_texts(upto[-1], index):
            if own.feature not in self._choices.allow_loss and not occurs_in(own.text, whole):
                raise _ChatRefusedError(f"{LOST}: {own.feature}", index)
        raise _ChatRefusedError("template_mismatch", index)

    def _text(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, prompt: bool, thinking: bool, at: int
    ) -> str:
        return self._marked_text(messages, tools, prompt, thinking, at)[0]

    def _marked_text(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, prompt: bool, thinking: bool, at: int
    ) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of messages, and the spans of it that the template marks, if it marks answers."""
        if self._rendered > _MOST_RENDERED:
            raise _ChatRefusedError("too_many_messages", at)
        try:
            text = self._renderer.render(self._form.applied(messages), tools, prompt=prompt, thinking=thinking)
        except TemplateRenderError as failure:
            raise _ChatRefusedError("template_refused", at, str(failure)[:_MOST_WORDS]) from failure
        self._rendered += len(text) + _MESSAGE_COST * len(messages)
        return _without_marks(text) if self._is_marked else (text, [])

    def _holds_literals(self, conversation: Conversation) -> bool:
        text_sources = [(self._literals_of(message), message) for message in conversation.messages]
        values = [*text_sources, (self._model_literals, conversation.tools)]
        return any(literals.found_in(text) for literals, value in values for text in strings_of(value))

    def _protected(self, conversation: Conversation) -> tuple[str, Conversation]:
        used = "".join(strings_of([conversation.messages, conversation.tools]))
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
        return mark, Conversation(messages, protect(conversation.tools, self._model_literals))

    def _literals_of(self, message: Mapping[str, Any]) -> LiteralFinder:
        """The literals that stay text in a message."""
        return self._model_literals if message["role"] in _WRITE_TAGS else self._other_literals


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


def _without_marks(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Return a text without `GENERATION_MARKS`, and the spans between them."""
    begin, end = GENERATION_MARKS
    head, *marked = text.split(begin)
    pieces, spans, length = [head], [], len(head)
    for piece in marked:
        inside, _, outside = piece.partition(end)
        spans.append((length, length + len(inside)))
        pieces += (inside, outside)
        length += len(inside) + len(outside)
    return "".join(pieces), spans


def _marks_of(
    text: str, spans: list[tuple[int, int]], start: int, end: int, before: list[dict[str, Any]]
) -> list[tuple[int, int]]:
    """Return the marked spans of the answer that follows `before`, between `start` and `end` of a text.

    Marks around the messages since the last answer are none of the answer's, whatever the template does.
    """
    since_last = list(takewhile(lambda message: message["role"] != "assistant", reversed(before)))
    start = _end_of_texts(text, since_last[::-1], start) or start
    return _merge_spans([(a, b) for a, b in spans if start <= a and b <= end and text[a:b].strip()])


def _end_of_texts(text: str, messages: list[dict[str, Any]], start: int = 0) -> int | None:
    """Return where the content of the last message ends in a text that has all in order, from `start` on.

    None if the last message has no content, or the text does not have it as it is or as JSON.
    """
    end = None
    for message in messages:
        content = (message.get("content") or "").strip()
        forms = (content, json.dumps(content, ensure_ascii=False)[1:-1])
        end = next(
            (start_of_form + len(form) for form in forms if form and (start_of_form := text.find(form, start)) >= 0),
            None,
        )
        start = end or start
    return end


def _merge_spans(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans in which adjacent ones are one."""
    merged_spans = spans[:1]
    for start, end in spans[1:]:
        if merged_spans[-1][1] == start:
            merged_spans[-1] = (merged_spans[-1][0], end)
        else:
            merged_spans.append((start, end))
    return merged_spans


def used_part(rendered: RenderedConversation | Refusal) -> RenderedConversation | Refusal:
    """Return what of a conversation is used: of a refused one the part that is of use, if there is one."""
    part = rendered.part if isinstance(rendered, Refusal) else None
    return part if isinstance(part, RenderedConversation) else rendered


class _ChatRefusedError(Exception):
    def __init__(self, reason: str, message: int | None, words: str = "") -> None:
        self.refusal = Refusal(reason, message, words)

    @property
    def may_be_split(self) -> bool:
        """Whether a shorter part of the conversation may be rendered nevertheless."""
        return self.refusal.reason == "template_mismatch" or self.refusal.reason.startswith(LOST)
