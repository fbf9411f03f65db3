"""Turns rows into conversations, or gives the one reason why a row is not a conversation.

The schema is that of docs/formats/packed-sft.md#conversations (Nemotron, `core/chat_sft_shard_core.py`): `messages`
with role, content, optional `tool_calls` and `reasoning_content`; optional `tools`; optional `used_in`. A row is
checked before any template sees it, so that an error of the template is not caused by the row. Refusals name a message
by its index and never show its text. `choices.py` covers the points on which tools for chat data differ.

Entry point: `read_conversation`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from dataprep_assets.bounds import json_of
from dataprep_assets.fields import value_at
from dataprep_assets.tokenization.chat.choices import OURS, ChatChoices

FILTERED = ("not_used_in",)
"""Reasons that are a declared choice, not a defect of the row: no policy fails on them."""
ADVICE = {
    "no_messages": "the field must contain a list of messages; if it is JSON text, parse it first",
    "unknown_role": "each message needs a supported `role`, and its text as `content`; rename ShareGPT's `from` and "
    "`value`, and its human and gpt to user and assistant, or list other roles in `roles`",
    "empty_assistant": "an answer is empty; `like: nemotron` trains empty answers",
    "unclear_weight": "an answer to exclude from the loss needs `weight: 0` or `train: false`; any other has no mark, "
    "`weight: 1` or `train: true`. Only answers can be trained, and other weights or names for them are "
    "unknown",
    "unclear_reasoning": "`reasoning_content`, `reasoning` and `thinking` are names of one text, but differ; keep one",
    "no_stop_token": "the template writes no special token after this answer; use a template that ends it",
    "unmarked_answer": "the template has `{% generation %}`, but not around this answer; correct the template",
    "lost_in_template": "the template does not write this; use one that does, or list it in `sft.allow_loss`",
    "tool_calls_without_tools": "it calls tools that are not declared in the row's tools field",
}
"""What to know about some of the reasons for which a row is no conversation."""
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""Keys under which rows hold reasoning, and templates read it. A conversation has it under the first."""
_REASONING = frozenset(REASONING_KEYS)
_TOOLS_HEADING, _CALL = "# Tools", "<tool_call>"
_OTHER_MARKS = frozenset({"training", "trainable", "train_detail", "loss", "loss_weight", "loss_mask", "masked"})
"""How else tools let a message say that it is trained, or not: taken for nothing, such a mark would be lost."""
_NOT_TEXT = frozenset({"image", "image_url", "input_image", "video", "video_url", "audio", "input_audio", "file"})


@dataclass(frozen=True, kw_only=True)
class ConversationFields:
    """Names of the row's fields; rows are kept if `used_in` has any of `used_in_filter`, or all if that is empty."""

    messages: str = "messages"
    tools: str = "tools"
    used_in: str = "used_in"
    used_in_filter: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The fields that are read from a row."""
        return (self.messages, self.tools, *((self.used_in,) if self.used_in_filter else ()))


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a row is not used: a reason for the ledger, and the 0-based index of the message at fault, if one is.

    `words` are the template's own, which may quote the row: they must not leave a sensitive dataset. `part` is what can
    be used of the row nevertheless, a `RenderedConversation`.
    """

    reason: str
    message: int | None = None
    words: str = field(default="", compare=False)
    part: object = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.reason if self.message is None else f"{self.reason} (message {self.message})"


NO_MESSAGES = Refusal("no_messages")
"""Of a row without a list of messages: it may be of something else."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Checked messages, with tool-call arguments as objects and without null fields, and the tools or None."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None

    @property
    def has_reasoning(self) -> bool:
        """Whether any message has reasoning that is not blank."""
        return any(map(reasons, self.messages))


def reasons(message: Mapping[str, Any]) -> bool:
    """Return whether a message has reasoning that is not blank."""
    reasoning = message.get("reasoning_content")
    return isinstance(reasoning, str) and bool(reasoning.strip())


def is_trained(answer: Mapping[str, Any]) -> bool:
    """Return whether an answer says nothing against its training, as by OpenAI's `weight: 0` or axolotl's `train:
    false`."""
    return answer.get("weight", 1) != 0 and answer.get("train", True) is not False


def read_conversation(
    row: Mapping[str, Any], fields: ConversationFields, choices: ChatChoices = OURS
) -> Conversation | Refusal:
    """The conversation of a row, or why it has none. The row itself is not changed.

    `fields` names the fields of the row; `choices` say what counts as a conversation.
    """
    # first, so that a row that is used elsewhere is filtered, whatever is wrong with it
    if fields.used_in_filter and not _used_in(value_at(row, fields.used_in)) & set(fields.used_in_filter):
        return Refusal("not_used_in")
    tools = _tools(value_at(row, fields.tools), choices)
    if isinstance(tools, Refusal):
        return tools
    row_messages = value_at(row, fields.messages)
    if not isinstance(row_messages, list) or not row_messages:
        return NO_MESSAGES
    messages = []
    for index, message in enumerate(row_messages):
        if type(message) is not dict and not isinstance(message, Mapping):  # asking an abstract class takes long
            return Refusal("message_not_an_object", index)
        checked_message = _message(message, choices)
        if isinstance(checked_message, str):
            return Refusal(checked_message, index)
        messages.append(checked_message)
    if (refusal := _needs_tools(messages, bool(tools), choices)) is not None:
        return refusal
    return Conversation(messages, tools)


def _used_in(value: Any) -> set[str]:
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    return {part.strip() for part in parts if isinstance(part, str)}


def _tools(value: Any, choices: ChatChoices) -> list[dict[str, Any]] | Refusal | None:
    if choices.tools == "parse":
        if isinstance(value, str):  # a column of JSON text: Parquet has no type for tools of different shapes
            try:
                value = _parse(value) if value.strip() else None
            except ValueError:
                return Refusal("bad_tools")
        value = value or None
    elif value in ("", {}):  # transformers makes of both what it makes of an empty list
        return []
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        return Refusal("bad_tools")
    return value


def _message(message: Mapping[str, Any], choices: ChatChoices) -> dict[str, Any] | str:
    """A checked copy of a message, or the reason against it."""
    copy = {key: value for key, value in message.items() if value is not None}  # Parquet fills absent fields
    role = copy.get("role")
    if not isinstance(role, str) or (choices.roles != "any" and role not in choices.roles):
        return "unknown_role"
    if choices.content != "as_given":
        content = _content(copy.get("content", ""), choices)
        if not isinstance(content, str):
            return "not_text" if _holds_media(content) else "content_not_a_string"
        copy["content"] = content
        if not _REASONING.isdisjoint(copy) and (reason := _name_reasoning(copy)):
            return reason
    if (calls := copy.get("tool_calls")) and (role == "assistant" or choices.call_form == "any"):
        normalized = _tool_calls(calls, choices) if role == "assistant" else None
        if normalized is None:
            return "bad_tool_call"
        del copy["tool_calls"]
        copy["tool_calls"] = normalized  # the last key, because templates see the order
    elif choices.call_form == "any":
        copy.pop("tool_calls", None)
    if _is_unclear(copy):
        return "unclear_weight"
    if choices.empty_answers == "refuse" and role == "assistant" and _says_nothing(copy):
        return "empty_assistant"
    return copy


def _name_reasoning(message: dict[str, Any]) -> str | None:
    """Put the reasoning of a message under the first of `REASONING_KEYS`, or return the reason against it."""
    texts = [message.pop(key) for key in REASONING_KEYS if key in message]
    if not all(isinstance(text, str) for text in texts):
        return "reasoning_not_a_string"
    texts = [text for text in texts if text.strip()] or texts
    if any(text.strip() != texts[0].strip() for text in texts):
        return "unclear_reasoning"
    message["reasoning_content"] = texts[0]
    return None


def _is_unclear(message: Mapping[str, Any]) -> bool:
    """Return whether what a message says of its training cannot be done, or is said in a way that is not known."""
    weight, train = message.get("weight", 1), message.get("train")
    # by type, because True is an int, too: it is no weight, as 1 is no value of `train`
    if type(weight) not in (int, float) or weight not in (0, 1) or (train is not None and type(train) is not bool):
        return True
    is_misplaced = train is True and (message["role"] != "assistant" or weight == 0)
    return is_misplaced or not _OTHER_MARKS.isdisjoint(message)


def _content(content: Any, choices: ChatChoices) -> Any:
    """Content with its text parts joined if that is chosen; other content unchanged."""
    if choices.content != "join_parts" or not isinstance(content, list):
        return content
    parts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    texts = [text for text in parts if isinstance(text, str)]
    return "\n".join(texts) if len(texts) == len(content) else content


def _says_nothing(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    blank = not content.strip() if isinstance(content, str) else not content
    return blank and not message.get("tool_calls") and not reasons(message)


def _holds_media(content: Any) -> bool:
    parts = content if isinstance(content, list) else [content]
    kinds = [part.get("type") for part in parts if isinstance(part, dict)]
    return any(isinstance(kind, str) and kind in _NOT_TEXT for kind in kinds)


def _tool_calls(calls: Any, choices: ChatChoices) -> list[dict[str, Any]] | None:
    """Tool calls with their arguments as objects; None if they are not valid tool calls."""
    if not isinstance(calls, list):
        return None
    normalize = _call if choices.call_form == "any" else _openai_call
    normalized = [normalize(call) for call in calls]
    valid_calls = [call for call in normalized if call is not None]
    return valid_calls if len(valid_calls) == len(calls) else None


def _call(call: Any) -> dict[str, Any] | None:
    inner = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str) or not inner["name"]:
        return None
    arguments = inner.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = _parse(arguments) if arguments.strip() else {}
        except ValueError:
            return None
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return None
    inner = {**inner, "arguments": arguments}
    return {**call, "function": inner} if "function" in call else inner


def _parse(text: str) -> Any:
    """The value of JSON text; raises ValueError for any other."""
    orjson.loads(text)  # strict, but it makes doubles of integers beyond 64 bits
    return json_of(text)


def _openai_call(call: Any) -> dict[str, Any] | None:
    """A call as Nemotron accepts it: arguments are required, and must be JSON if text; the rest is not checked."""
    inner = call.get("function") if isinstance(call, dict) else None
    if not isinstance(inner, dict) or "arguments" not in inner:
        return None
    arguments = inner["arguments"]
    if isinstance(arguments, str):
        try:
            arguments = json_of(arguments)
        except ValueError:
            return None
    return {**call, "function": {**inner, "arguments": arguments}}


def _needs_tools(messages: list[dict[str, Any]], declared: bool, choices: ChatChoices) -> Refusal | None:
    """The refusal of a row that calls undeclared tools; a system text with `# Tools` declares them itself."""
    if declared and choices.call_text == "declared":
        return None
    refuses_calls = not declared and choices.undeclared_calls == "refuse"
    for index, message in enumerate(messages):
        called = refuses_calls and message.get("tool_calls")
        if called or _says(message, _CALL):
            if any(_says(other_message, _TOOLS_HEADING) for other_message in messages):
                return None
            return Refusal("tool_calls_without_tools" if called else "tool_call_text_without_tools", index)
    return None


def _says(message: Mapping[str, Any], text: str) -> bool:
    """Return whether a text is in a message's content or reasoning."""
    content, reasoning = message.get("content"), message.get("reasoning_content")
    return (isinstance(content, str) and text in content) or (isinstance(reasoning, str) and text in reasoning)
