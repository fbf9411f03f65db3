"""Renders a conversation, and cuts it where the assistant's answers begin and end.

The conversation is rendered once, up to its last answer. To find an answer, the messages before it are rendered with
the generation prompt, and the messages up to and including it without. Both renderings must be prefixes of the whole,
because otherwise the model would be trained on text that it never sees when it answers. An answer reaches from the end
of the generation prompt to its stop token, inclusive. The text after that is trained only if the choices include it
(`choices.py`). If a template marks answers with `{% generation %}`, the marks decide.

A conversation with reasoning becomes one sequence per user turn, because templates drop the reasoning of earlier turns.
In each sequence, only the answers after the last user message are trained. Other conversations become one sequence. If
a template writes earlier answers differently once others follow, each turn or each answer becomes a sequence. If an
answer does not follow its generation prompt in the whole rendering, it is written after that prompt and ends its
sequence.

A row is refused unless each sequence contains every text of its messages (`lost_text.py`).

Literal tokens of the template in messages stay text. They are replaced by placeholders before rendering, so that every
such token in the rendering is the template's own. Encoding restores them. The tags of thoughts, calls and results are
tokens in answers and instructions (`_WRITE_TAGS`).
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile
from typing import Any, Literal, NamedTuple

from dataprep_assets.tokenization.bundle import LiteralFinder, SpecialToken
from dataprep_assets.tokenization.chat.choices import OURS, ChatChoices
from dataprep_assets.tokenization.chat.lost_text import LOST, find_losses, find_own_texts, find_strings, occurs_in
from dataprep_assets.tokenization.chat.message_form import MessageForm
from dataprep_assets.tokenization.chat.messages import (
    SEVERAL_SEQUENCES,
    Conversation,
    Refusal,
    has_visible_reasoning,
    is_trained,
)
from dataprep_assets.tokenization.chat.row_kwargs import find_unread_variables
from dataprep_assets.tokenization.chat.stops import Stops
from dataprep_assets.tokenization.chat.template import Renderer, TemplateRenderError

_MAX_RENDERED = 2 << 30
"""Maximum number of characters to render for a conversation. The text before each answer is rendered twice, so 1,000
answers of 1 KB, or 4,000 answers of a few words, need half of it."""
_MESSAGE_COST = 256
"""Number of characters that take as long to render as a message without text."""

Turns = Literal["reasoning", "always"]
"""Conversations that become one sequence per user turn: those with `reasoning`, or all (`always`)."""

_COMPARED_CHARACTERS = 40
"""Number of characters of an answer that are compared to find it."""
_SYSTEM, _QUESTION, _TURN_END = "<|im_start|>system", "<|im_start|>user", "<|im_end|>\n"
"""Texts that Nemotron searches for in the text of a first question."""
_WRITE_TAGS = frozenset({"assistant", "system", "developer"})
"""Roles whose messages may contain the template's tags: answers with thoughts, instructions with examples of calls."""
_RESULT_TAGS = frozenset({"<tool_response>", "</tool_response>"})
"""Tags that any message may contain, because Qwen's templates treat a question within them as a tool's result."""
GENERATION_MARKS = ("\ufdee", "\ufdef")
"""Characters that mark the beginning and end of `{% generation %}`. Unicode reserves noncharacters for internal use."""
_MARKS = [chr(code) for code in range(0xFDD0, 0xFDEE)]
"""Noncharacters for placeholders. A row with all of them is refused."""
_OPEN_THOUGHT, _THOUGHT_END = "<think>", "\n</think>\n\n"
_LOST_TOOLS, _LOST_PARAMETERS = f"{LOST}: tools", f"{LOST}: tool_parameters"
_LOST_KWARGS = f"{LOST}: template_kwargs"
AFTER_LAST = "after_last_answer"
"""Reason for leaving out messages that no answer follows."""
_MAX_MESSAGE_CHARACTERS = 200
"""Maximum number of characters of a template's error message in a refusal."""


class RenderedChunk(NamedTuple):
    """Rendered text between two cuts, and whether its tokens are trained."""

    text: str
    trained: bool


@dataclass(frozen=True, slots=True)
class RenderedConversation:
    """A rendered conversation, as the chunks of each of its sequences.

    `mark` is the character around placeholders: `mark + str(i) + mark` represents token `i` of the renderer. It is None
    if there are no placeholders. `cuts` are the reasons for leaving out parts of the conversation, and `messages` is
    the number of used messages.
    """

    sequences: tuple[tuple[RenderedChunk, ...], ...]
    mark: str | None = None
    cuts: tuple[str, ...] = ()
    messages: int = field(default=0, compare=False)


class ConversationRenderer:
    """Renderer of conversations as chunks of text, each trained or not.

    Args:
        renderer: The compiled chat template.
        tokens: The tokens that stay text in messages: the tokenizer's special tokens, and others that the template
            writes.
        stops: The tokens that end an answer.
        turns: Which conversations become one sequence per user turn.
        tags: Contents of `tokens` that stay tokens in answers and instructions.
        choices: The choices on conversations and trained tokens.
        form: The form in which the template reads a message.
        is_marked: Whether the template is compiled with `GENERATION_MARKS`, which then decide what is trained.
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
        self._rendered = 0  # number of characters rendered for the current conversation
        self._kwargs: Mapping[str, Any] = {}  # variables of the current conversation
        # `_last_judgment` is the last conversation, and whether it is rendered with `enable_thinking`.
        self._last_judgment: tuple[Conversation | None, bool] = (None, False)
        self._cuts: dict[str, None] = {}  # reasons for leaving out parts of the current conversation
        # If the declaration allows the loss of tools, it also allows the loss of their parameters.
        self._allowed_losses = {*choices.allow_loss, *({"tool_parameters"} if "tools" in choices.allow_loss else ())}
        self._indexes = {token.content: i for i, token in enumerate(tokens)}
        as_text = self._indexes.keys() if choices.special_literals == "text" else set()
        self._model_literals = LiteralFinder(tuple(as_text - set(tags)))
        self._other_literals = LiteralFinder(tuple(as_text - (_RESULT_TAGS & set(tags))))
        self._all_literals = LiteralFinder(tuple(as_text))

    def render(self, conversation: Conversation) -> RenderedConversation | Refusal:
        """Return the sequences of a conversation, or its refusal.

        Messages after the last answer are left out. A turn without an answer has no sequence, unless the choices keep
        it. If the template refuses a message, the refusal has the sequences of the messages before it. If the template
        writes the calls of a conversation but not its declared tools, or only a part of its tools, the refusal has all
        sequences.
        """
        mark = None
        try:
            mark, conversation = self._prepare(conversation)
            rendered = self._render_up_to(len(conversation.messages), conversation, mark)
            for reason in (_LOST_TOOLS, _LOST_PARAMETERS):
                if reason in rendered.cuts and reason.removeprefix(f"{LOST}: ") not in self._allowed_losses:
                    return Refusal(reason, part=rendered)
            return rendered
        except _ChatRefusedError as error:
            if self._is_strict or error.refusal.reason != "template_refused" or error.refusal.message is None:
                return error.refusal
            return self._locate_refusal(conversation, mark, error.refusal)

    def render_answers(self, conversation: Conversation, prompt_length: int) -> RenderedConversation | Refusal:
        """Return the sequence that trains only the answers after the prompt, or the refusal of the conversation.

        The prompt has `prompt_length` messages. The next message and the last message are answers. The first chunk is
        the prompt with its generation prompt. Unlike `render`, this method never returns several sequences or only a
        part of the messages.
        """
        try:
            mark, conversation = self._prepare(conversation)
            sequences = self._render_turn(conversation, prompt_length, len(conversation.messages), mark)
            if self._cuts.keys() - {f"{LOST}: {feature}" for feature in self._allowed_losses}:
                return Refusal(next(iter(self._cuts)))
            return RenderedConversation((sequences[0],), mark) if len(sequences) == 1 else Refusal(SEVERAL_SEQUENCES)
        except _ChatRefusedError as error:
            return error.refusal

    def _prepare(self, conversation: Conversation) -> tuple[str | None, Conversation]:
        """Prepare to render a conversation; return the mark of its placeholders, and the conversation with them.

        Raises _ChatRefusedError if it cannot be rendered.
        """
        self._rendered, self._cuts, self._kwargs = 0, {}, conversation.kwargs
        if self._is_marked and any(
            mark in text
            for text in find_strings([conversation.messages, conversation.kwargs])
            for mark in GENERATION_MARKS
        ):
            raise _ChatRefusedError("all_noncharacters", None)
        if "template_kwargs" not in self._allowed_losses and any(find_unread_variables(self._kwargs, self._renderer)):
            raise _ChatRefusedError(_LOST_KWARGS, None)
        if not self._contains_literals(conversation):
            return None, conversation
        mark, conversation = self._protect(conversation)
        self._kwargs = conversation.kwargs
        return mark, conversation

    def _render_up_to(self, stop: int, conversation: Conversation, mark: str | None) -> RenderedConversation:
        """Return the sequences of the messages before `stop`, up to their last answer."""
        messages = conversation.messages[:stop]
        end = max(
            (i + 1 for i, message in enumerate(messages) if message["role"] == "assistant"), default=len(messages)
        )
        if end < len(messages) and not self._is_strict:
            self._cuts[AFTER_LAST] = None
            messages = messages[:end]
        sequences = tuple(self._build_sequences(Conversation(messages, conversation.tools), mark))
        return RenderedConversation(sequences, mark, tuple(self._cuts), len(messages))

    def _locate_refusal(self, conversation: Conversation, mark: str | None, refusal: Refusal) -> Refusal:
        """Return the refusal with the message at fault, and the part of the conversation before it that can be used.

        The message at fault is the earliest one such that every prefix that ends between it and the refused message
        (both included) is refused.
        """
        messages, thinking, fault = conversation.messages, self._enables_thinking(conversation), refusal.message or 0
        for index in range(fault, -1, -1):
            try:
                self._render_text(messages[: index + 1], conversation.tools, False, thinking, index)
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

    def _build_sequences(self, conversation: Conversation, mark: str | None) -> Iterator[tuple[RenderedChunk, ...]]:
        messages = conversation.messages
        users = [i for i, message in enumerate(messages) if message["role"] == "user"]
        if not self._has_reasoning(conversation) and self._turns == "reasoning":
            try:
                chunks = self._build_sequence(
                    conversation, len(messages), self._find_first_trained(messages, users), mark
                )
                yield self._repeat_question(chunks, conversation)
                return
            except _ChatRefusedError as error:
                if self._is_strict or not error.may_be_split:
                    raise
            # With `last_turn`, keep only the last turn, because the single sequence would also have trained only this
            # turn.
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
                    yield self._cut_turn(chunks, conversation, start - 1)

    def _render_turn(
        self, conversation: Conversation, first: int, stop: int, mark: str | None
    ) -> list[tuple[RenderedChunk, ...]]:
        """Return the sequence of the turn from `first` up to `stop`.

        If the template writes earlier answers differently once others follow, return one sequence per trained answer.
        """
        try:
            return [self._build_sequence(conversation, stop, first, mark)]
        except _ChatRefusedError as error:
            if self._is_strict or not error.may_be_split:
                raise
        answers = [i for i in range(first, stop) if conversation.messages[i]["role"] == "assistant"]
        return [
            self._render_single_answer(conversation, i, mark) for i in answers if is_trained(conversation.messages[i])
        ]

    def _render_single_answer(
        self, conversation: Conversation, index: int, mark: str | None
    ) -> tuple[RenderedChunk, ...]:
        """Return the sequence that ends with the answer `index` and trains only this answer."""
        try:
            return self._build_sequence(conversation, index + 1, index, mark)
        except _ChatRefusedError as error:
            chunks = self._render_after_prompt(conversation, index, mark) if error.may_be_split else None
            if chunks is None:
                raise
            return chunks

    @property
    def _is_strict(self) -> bool:
        """Whether a conversation is rendered only as Nemotron renders it."""
        return self._choices.inline_reasoning == "refuse"

    def _has_reasoning(self, conversation: Conversation) -> bool:
        """Return whether the conversation counts as one with reasoning."""
        if self._choices.blank_reasoning == "reasoning":
            return any(message.get("reasoning_content") for message in conversation.messages)
        return conversation.has_reasoning

    def _has_inline_reasoning(self, message: Mapping[str, Any]) -> bool:
        """Return whether an answer has a thought in its text."""
        content = message.get("content")
        return not self._is_strict and isinstance(content, str) and "</think>" in content

    def _enables_thinking(self, conversation: Conversation) -> bool:
        """Return whether a conversation is rendered with `enable_thinking`."""
        if self._last_judgment[0] is not conversation:
            is_thinking = self._has_reasoning(conversation) or any(
                message["role"] == "assistant" and self._has_inline_reasoning(message)
                for message in conversation.messages
            )
            self._last_judgment = (conversation, is_thinking)
        return self._last_judgment[1]

    def _find_first_trained(self, messages: list[dict[str, Any]], users: list[int]) -> int:
        """Return the index of the first trained message if the conversation is one sequence."""
        if self._choices.answers == "every":
            return 0
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        return max((user for user in users if answers and user < answers[-1]), default=0)

    def _build_sequence(
        self, conversation: Conversation, stop: int, first: int, mark: str | None
    ) -> tuple[RenderedChunk, ...]:
        """Return the messages before `stop` as chunks that train the answers from message `first` on."""
        messages, tools, thinking = conversation.messages, conversation.tools, self._enables_thinking(conversation)
        rendering, spans = self._mark_text(messages[:stop], tools, False, thinking, stop - 1)
        # Check only the whole text, because all other renderings must be its prefixes.
        if mark is not None and not _is_restorable(rendering, mark):
            raise _ChatRefusedError("template_refused", None)
        if self._is_marked and first:
            # Skip the spans of earlier answers. Count them with a generation prompt, because without one a template may
            # treat the last message as the end of the text.
            spans = spans[len(self._mark_text(messages[:first], tools, True, thinking, first)[1]) :]
        parts: list[tuple[int, int, int]] = []  # index of the message, start and end of each trained part
        position = 0
        for index in range(first, stop):
            if messages[index]["role"] != "assistant":
                continue
            end = len(rendering)
            if index < stop - 1:
                text_before = self._render_text(messages[: index + 1], tools, False, thinking, index)
                if not rendering.startswith(text_before):
                    raise _ChatRefusedError("template_mismatch", index)
                end = len(text_before)
            if self._is_marked:
                marked_spans = _find_marks(rendering, spans, position, end, messages[:index])
                if not marked_spans:
                    raise _ChatRefusedError("unmarked_answer", index)
                *previous_spans, (start, end) = marked_spans
                parts += [(index, *span) for span in previous_spans]
            else:
                start = self._find_answer_start(rendering, messages[: index + 1], tools, thinking, index)
            # An answer cannot begin within the previous answer.
            if start < position:
                raise _ChatRefusedError("template_mismatch", index)
            rendering, position = self._end_answer(rendering, start, end, messages[index], index)
            parts.append((index, start, position))
        return self._cut_into_chunks(rendering, parts, messages[:stop], tools)

    def _end_answer(self, text: str, start: int, end: int, message: dict[str, Any], index: int) -> tuple[str, int]:
        """Return the text, and the end of the answer in it after its stop token.

        The answer reaches from `start` to about `end`. A stop token is added to the text if necessary.
        """
        answer = text[start:end].rstrip()
        if answer.endswith(self._stop_contents):
            # If a template marks its answers, the marks decide whether the text after the stop token is trained.
            return text, end if self._choices.turn_end_newline or self._is_marked else start + len(answer)
        if not self._is_strict:
            if header := max((h for h in self._headers if text.startswith(h, end)), key=len, default=""):
                return text, end + len(header)
            added = self._stops.after_call if message.get("tool_calls") else self._stops.after_answer
            if added is not None and end == len(text):
                return text + added.content, len(text) + len(added.content)
            # Look for a stop token inside the answer, because a template may write more text after it, such as the
            # header of a tool's result.
            inner = max(((answer.rfind(stop), len(stop)) for stop in self._stop_contents), default=(-1, 0))
            if inner[0] > 0:
                return text, start + sum(inner)
        raise _ChatRefusedError("no_stop_token", index)

    def _cut_into_chunks(
        self,
        text: str,
        parts: list[tuple[int, int, int]],
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
    ) -> tuple[RenderedChunk, ...]:
        """Return the text as chunks. `parts` has the message, start and end of each trained answer.

        Raises _ChatRefusedError if the text lacks a text of a message and the declaration does not allow this loss.
        """
        empty_answers: set[int] = set()
        if not self._is_strict:
            losses, empty_answers = find_losses(text, parts, messages, tools)
            # Consider losses of tools last, because a conversation that loses only tools may still be useful.
            losses.sort(key=lambda loss: loss[0] in ("tools", "tool_parameters"))
            has_calls = any(message.get("tool_calls") for message in messages)
            for feature, fault in losses:
                reason = f"{LOST}: {feature}"
                # A conversation with calls is useful without the tools' declarations, because the calls show how to use
                # them; any conversation is useful without some of the tools' parameters.
                is_usable = reason == _LOST_PARAMETERS or (reason == _LOST_TOOLS and has_calls)
                if feature not in self._allowed_losses and not is_usable:
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

    def _render_after_prompt(
        self, conversation: Conversation, index: int, mark: str | None
    ) -> tuple[RenderedChunk, ...] | None:
        """Return the generation prompt and the answer `index`, which does not follow it in the whole rendering.

        Returns None if the answer's own text cannot be separated from the template's text.
        """
        messages, tools = conversation.messages[: index + 1], conversation.tools
        thinking = self._enables_thinking(conversation)
        for mode in dict.fromkeys((thinking, not thinking)):
            prompt = self._render_text(messages[:-1], tools, True, mode, index) if index else ""
            answer = self._render_thought_after(prompt, messages[-1])
            if answer is None:
                answer = self._find_answer_after(prompt, messages, tools, thinking)
            if answer is None:
                answer = self._find_answer_in_place(messages, tools, mode, thinking)
            if answer is None or (mark is not None and not _is_restorable(prompt + answer, mark)):
                continue
            text, end = self._end_answer(prompt + answer, len(prompt), len(prompt + answer), messages[-1], index)
            with suppress(_ChatRefusedError):
                return self._cut_into_chunks(text, [(index, len(prompt), end)], messages, tools)
        return None

    def _render_thought_after(self, prompt: str, message: dict[str, Any]) -> str | None:
        """Return the answer with its thought after a prompt that opens a thought; None if there is no thought."""
        content, thought = message.get("content") or "", message.get("reasoning_content") or ""
        if not prompt.rstrip().endswith(_OPEN_THOUGHT) or message.get("tool_calls"):
            return None
        if thought.strip():
            content = thought.strip() + _THOUGHT_END + content
        elif "</think>" not in content:
            return None
        return content.strip().removeprefix(_OPEN_THOUGHT).lstrip() + self._stops.plain_stop.content

    def _find_answer_after(
        self, prompt: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, thinking: bool
    ) -> str | None:
        """Return the last answer of `messages`, as the template writes it after the header at the end of the prompt."""
        index = len(messages) - 1
        text_before = self._render_text(messages[:-1], tools, False, thinking, index) if index else ""
        header = prompt[len(text_before) :] if prompt.startswith(text_before) else ""
        if not header.strip():
            return None
        text = self._render_text(messages, tools, False, thinking, index)
        # Find the first header after the previous message, because a thought and the text after it may each have a
        # header.
        texts_end = _find_end_of_texts(text, messages[:-1])
        header_start = text.rfind(header) if texts_end is None else text.find(header, texts_end)
        return None if header_start < 0 else text[header_start + len(header) :]

    def _find_answer_in_place(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, mode: bool, thinking: bool
    ) -> str | None:
        """Return the last answer as the template writes it without the answers directly before it."""
        index = len(messages) - 1
        messages_before = list(messages[:-1])
        while messages_before and messages_before[-1]["role"] == "assistant":
            messages_before.pop()
        if len(messages_before) == index:
            return None
        prompt = self._render_text(messages_before, tools, True, mode, index) if messages_before else ""
        text = self._render_text([*messages_before, messages[-1]], tools, False, thinking, index)
        return text[len(prompt) :] if prompt and text.startswith(prompt) else None

    def _repeat_question(
        self, chunks: tuple[RenderedChunk, ...], conversation: Conversation
    ) -> tuple[RenderedChunk, ...]:
        """Return the chunks with the beginning of the first question written twice if the choices require it.

        If a first question contains the header of a system text, Nemotron reads it as two messages: a system text up to
        the first end of a turn, and a question from the first header of a question on.
        """
        messages, tools = conversation.messages, conversation.tools
        if self._choices.system_in_question == "once" or messages[0]["role"] != "user" or not chunks:
            return chunks
        has_answer = len(messages) > 1 and messages[1]["role"] == "assistant"
        question = self._render_text(messages[:1], tools, has_answer, False, 0)
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

    def _cut_turn(
        self, chunks: tuple[RenderedChunk, ...], conversation: Conversation, user: int
    ) -> tuple[RenderedChunk, ...]:
        """Return the chunks of a turn, cut after the length of its question's prompt if the choices require it.

        The question is the message `user`. Nemotron treats that many characters as the question even without an answer.
        """
        next_role = conversation.messages[user + 1]["role"]
        if self._choices.question_end == "text" or next_role == "assistant" or not chunks:
            return chunks
        messages_before, tools, thinking = (
            conversation.messages[: user + 1],
            conversation.tools,
            self._enables_thinking(conversation),
        )
        prompt_length = len(self._render_text(messages_before, tools, True, thinking, user))
        parts = (chunks[0].text[:prompt_length], chunks[0].text[prompt_length:])
        return (*(RenderedChunk(text, False) for text in parts if text), *chunks[1:])

    def _find_answer_start(
        self, full_text: str, upto: list[dict[str, Any]], tools: list[dict[str, Any]] | None, thinking: bool, index: int
    ) -> int:
        """Return where the last answer of `upto` begins in `full_text`: after the generation prompt.

        An answer without reasoning, in a conversation that has reasoning, is prompted with thinking off. Some templates
        end the prompt with white space that the rendering lacks. Then the answer's own text must follow the stripped
        prompt, because otherwise more than white space is missing (`answer_readings.py`).
        """
        messages_before, has_reasoning = upto[:-1], has_visible_reasoning(upto[-1])
        if self._choices.unprompted_header and _is_unprompted(messages_before, thinking, has_reasoning):
            text = self._render_text(messages_before, tools, False, thinking, index) if messages_before else ""
            if not full_text.startswith(text):
                raise _ChatRefusedError("template_mismatch", index)
            return len(text)
        prompts = []
        thought = thinking and (has_reasoning or self._has_inline_reasoning(upto[-1]))
        # Also try the other prompt, because an answer with a thought in its text may need it. Nemotron tries only one
        # prompt.
        for mode in (thought,) if self._is_strict else (thought, not thought):
            prompt = self._render_text(messages_before, tools, True, mode, index)
            if full_text.startswith(prompt):
                return len(prompt)
            prompts.append(prompt.rstrip())
        # Also try a prompt without the `<think>` at its end, because an answer without a thought may lack it.
        if not self._has_inline_reasoning(upto[-1]):
            headers = [prompt.removesuffix(_OPEN_THOUGHT) for prompt in prompts if prompt.endswith(_OPEN_THOUGHT)]
            prompts += [*headers, *map(str.rstrip, headers)]
        for prompt in prompts:
            if (
                prompt
                and full_text.startswith(prompt)
                and not self._is_strict
                and _begins_at_cut(full_text, len(prompt), upto[-1])
            ):
                return len(prompt)
        # Report a dropped text first, because it is the more specific reason.
        for own_text in () if self._is_strict else find_own_texts(upto[-1], index):
            if own_text.feature not in self._allowed_losses and not occurs_in(own_text.text, full_text):
                raise _ChatRefusedError(f"{LOST}: {own_text.feature}", index)
        raise _ChatRefusedError("template_mismatch", index)

    def _render_text(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        prompt: bool,
        thinking: bool,
        position: int,
    ) -> str:
        return self._mark_text(messages, tools, prompt, thinking, position)[0]

    def _mark_text(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        prompt: bool,
        thinking: bool,
        position: int,
    ) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of messages, and the spans in it that the template marks."""
        if self._rendered > _MAX_RENDERED:
            raise _ChatRefusedError("too_many_messages", position)
        try:
            text = self._renderer.render(
                self._form.apply_form(messages), tools, prompt=prompt, thinking=thinking, kwargs=self._kwargs
            )
        except TemplateRenderError as failure:
            raise _ChatRefusedError("template_refused", position, str(failure)[:_MAX_MESSAGE_CHARACTERS]) from failure
        self._rendered += len(text) + _MESSAGE_COST * len(messages)
        return _remove_marks(text) if self._is_marked else (text, [])

    def _contains_literals(self, conversation: Conversation) -> bool:
        # Search all texts at once first, because most conversations have no literal.
        if not self._all_literals.is_in(
            "\0".join(find_strings([conversation.messages, conversation.tools, conversation.kwargs]))
        ):
            return False
        text_sources = [(self._find_literals(message), message) for message in conversation.messages]
        values = [*text_sources, (self._model_literals, [conversation.tools, conversation.kwargs])]
        return any(literals.is_in(text) for literals, value in values for text in find_strings(value))

    def _protect(self, conversation: Conversation) -> tuple[str, Conversation]:
        """Return the character around placeholders, and the conversation with placeholders for literal tokens."""
        text = "".join(find_strings([conversation.messages, conversation.tools, conversation.kwargs]))
        mark = next((m for m in _MARKS if m not in text), None)
        if mark is None:
            raise _ChatRefusedError("all_noncharacters", None)

        def build_placeholder(literal: str) -> str:
            return f"{mark}{self._indexes[literal]}{mark}"

        def protect(value: Any, literals: LiteralFinder) -> Any:
            if isinstance(value, str):
                return literals.replace_literals(value, build_placeholder)
            if isinstance(value, dict):
                # Also protect keys, because a template may write them, e.g., with `tojson`.
                return {protect(k, literals): protect(v, literals) for k, v in value.items()}
            return [protect(v, literals) for v in value] if isinstance(value, list) else value

        messages = [protect(message, self._find_literals(message)) for message in conversation.messages]
        tools, kwargs = (protect(value, self._model_literals) for value in (conversation.tools, conversation.kwargs))
        return mark, replace(conversation, messages=messages, tools=tools, kwargs=kwargs)

    def _find_literals(self, message: Mapping[str, Any]) -> LiteralFinder:
        """Return the finder of the literals that stay text in a message."""
        return self._model_literals if message["role"] in _WRITE_TAGS else self._other_literals


def _is_unprompted(messages_before: list[dict[str, Any]], thinking: bool, has_reasoning: bool) -> bool:
    """Return whether an answer has no prompt by Nemotron's rule, i.e., does not follow a question or a tool's result.

    In a conversation with reasoning, an answer without reasoning has a prompt unless it follows another answer.
    """
    role = messages_before[-1]["role"] if messages_before else "assistant"
    return role not in ("user", "tool") and (role == "assistant" or has_reasoning or not thinking)


def _begins_at_cut(text: str, cut_position: int, message: dict[str, Any]) -> bool:
    """Return whether only white space is between a cut and the message's text. True for a message without text.

    The text may begin before the cut, because inline reasoning begins with the tag at the end of a prompt.
    """
    texts = [t for key in ("reasoning_content", "content") if isinstance(t := message.get(key), str) and t.strip()]
    for beginning in (t.strip()[:_COMPARED_CHARACTERS] for t in texts):
        start = text.find(beginning, max(0, cut_position - len(beginning) + 1))
        if start >= 0 and not text[cut_position:start].strip():
            return True
    return not texts


def _is_restorable(text: str, mark: str) -> bool:
    """Return whether every placeholder is intact. A template may cut or escape its input."""
    parts = text.split(mark)
    # Each number must be between two marks, and `tojson` must not have escaped a mark.
    return len(parts) % 2 == 1 and all(map(str.isdigit, parts[1::2])) and f"\\u{ord(mark):04x}" not in text.lower()


def _remove_marks(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Return a text without `GENERATION_MARKS`, and the spans between them."""
    begin, end = GENERATION_MARKS
    head, *marked = text.split(begin)
    pieces, spans, length = [head], [], len(head)
    for piece in marked:
        inner_text, _, outside = piece.partition(end)
        spans.append((length, length + len(inner_text)))
        pieces += (inner_text, outside)
        length += len(inner_text) + len(outside)
    return "".join(pieces), spans


def _find_marks(
    text: str, spans: list[tuple[int, int]], start: int, end: int, messages_before: list[dict[str, Any]]
) -> list[tuple[int, int]]:
    """Return the marked spans of the answer that follows `messages_before`, between `start` and `end` of a text.

    Marks around the messages since the previous answer are ignored.
    """
    since_last = list(takewhile(lambda message: message["role"] != "assistant", reversed(messages_before)))
    start = _find_end_of_texts(text, since_last[::-1], start) or start
    return _merge_spans([(a, b) for a, b in spans if start <= a and b <= end and text[a:b].strip()])


def _find_end_of_texts(text: str, messages: list[dict[str, Any]], start: int = 0) -> int | None:
    """Return the end of the last message's content in a text that has all contents in order, from `start` on.

    Returns None if the last message has no content, or if the text has it neither verbatim nor as JSON.
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
    """Return the spans with adjacent spans merged."""
    merged_spans = spans[:1]
    for start, end in spans[1:]:
        if merged_spans[-1][1] == start:
            merged_spans[-1] = (merged_spans[-1][0], end)
        else:
            merged_spans.append((start, end))
    return merged_spans


def keep_used_part(rendered: RenderedConversation | Refusal) -> RenderedConversation | Refusal:
    """Return the usable part of a refused conversation, if there is one; otherwise return `rendered` unchanged."""
    part = rendered.part if isinstance(rendered, Refusal) else None
    return part if isinstance(part, RenderedConversation) else rendered


class _ChatRefusedError(Exception):
    """Error that carries the refusal of a conversation."""

    def __init__(self, reason: str, message: int | None, words: str = "") -> None:
        self.refusal = Refusal(reason, message, words)

    @property
    def may_be_split(self) -> bool:
        """Whether a shorter part of the conversation may still be rendered."""
        return self.refusal.reason == "template_mismatch" or self.refusal.reason.startswith(LOST)
