"""Converts rows to conversations, or returns the reason why a row is not a conversation.

docs/formats/conversations.md has the normalized form: `messages` with role, content, optional `tool_calls` and
`reasoning_content`; optional `tools`; optional `used_in`. `row_forms.py` reads it from rows of other forms. Rows are
checked before they are rendered, so that a template's error is not caused by an invalid row. Refusals name a message by
its index and never show its text. `choices.py` has the points on which tools for chat data differ.

Entry points: `read_conversation`, `read_preference`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.fields import value_at
from dataprep_assets.tokenization.chat.choices import OURS, ChatChoices
from dataprep_assets.tokenization.chat.rewritten_messages import rewrite_messages
from dataprep_assets.tokenization.chat.row_forms import (
    EMPTY_SIDE,
    EQUAL_PAIR,
    LABELLED,
    NO_FORM,
    NOT_TRAINED,
    PAIR,
    REJECTED,
    TWO_SYSTEMS,
    UNCLEAR_LABEL,
    UNCLEAR_PROMPT,
    UNSUPPORTED,
    ConversationFields,
    Form,
    UnpackedRow,
    find_unsupported_field,
    parse_json,
    unpack_preference,
    unpack_row,
)
from dataprep_assets.tokenization.chat.row_kwargs import read_kwargs
from dataprep_assets.tokenization.chat.template import ALL_KWARGS

__all__ = [
    "ADVICE",
    "EQUAL_PAIR",
    "FILTERED",
    "NOT_JSON",
    "NO_MESSAGES",
    "OTHER_FORM",
    "REASONING_KEYS",
    "REFUSALS",
    "Conversation",
    "ConversationFields",
    "Preference",
    "Refusal",
    "has_visible_reasoning",
    "is_trained",
    "read_conversation",
    "read_preference",
]

NOT_ANSWER, UNTRAINED_SIDE = "no_answer", "untrained_side"
DIFFERENT_PROMPTS, SEVERAL_SEQUENCES = "different_prompts", "several_sequences"
"""Reasons for refusing a preference row."""
OTHER_FORM = "other_form"
"""Reason for refusing a row whose form differs from the first form in its file."""
NOT_JSON = "not_json"
"""Reason for refusing a row or record with a value that JSON cannot express, such as NaN."""
FILTERED = ("not_used_in", NOT_TRAINED, REJECTED)
"""Reasons that depend on the declaration. They are no defects of a row, so the policy for bad records ignores them."""
ADVICE = {
    NO_FORM: "a row needs a list of `messages`, ShareGPT's `conversations`, Alpaca's `instruction` and `output`, or "
    "`prompt` and `completion`; `messages_field` names a different list",
    PAIR: "the row has a chosen and a rejected answer; use `stage: pairs`, or train only the chosen one with `format: "
    "pairs`",
    LABELLED: "a boolean `label` marks the row's answer as good or bad (KTO); `format: kto` trains only good answers, "
    "`format: messages` ignores the label",
    EQUAL_PAIR: "`chosen` and `rejected` are equal; remove the row, or correct one of them",
    EMPTY_SIDE: "`chosen` or `rejected` has no message after the prompt",
    UNCLEAR_PROMPT: "one side begins with the prompt and the other does not; repeat the prompt in both or in none",
    UNCLEAR_LABEL: "`label` must be true or false",
    NOT_ANSWER: "each side must begin and end with an answer of the assistant",
    UNTRAINED_SIDE: "`chosen` and `rejected` cannot have `weight: 0` or `train: false`; remove the mark or the row",
    DIFFERENT_PROMPTS: "the template writes the prompt differently for the two sides; use a different template",
    SEVERAL_SEQUENCES: "the template writes an answer of this side differently if other messages follow; use a "
    "different template, or make each answer its own pair",
    OTHER_FORM: "all rows of a file must have the same form; write each form to its own file",
    UNSUPPORTED: "this key changes the meaning of the row and is not supported; remove the key or the row",
    TWO_SYSTEMS: "a key of the row and its messages have different system texts; keep one",
    "unknown_role": "each message needs a supported `role`, and its text as `content`; list other roles in `roles`",
    "empty_assistant": "an answer is empty; `like: nemotron` trains empty answers",
    "unclear_weight": "to exclude an answer from the loss, set `weight: 0` or `train: false`; to include it, set no "
    "mark, `weight: 1` or `train: true`. Only answers can be trained, and other weights or keys are not supported",
    "unclear_reasoning": "`reasoning_content`, `reasoning` and `thinking` have different texts; keep one",
    "no_stop_token": "the template writes no special token after this answer; use a template that ends each answer",
    "unmarked_answer": "the template has `{% generation %}`, but not around this answer; correct the template",
    "lost_in_template": "the template does not write this feature; use a template that does, or list the feature "
    "(except `question` and `answer`) in `allow_loss`",
    "bad_template_kwargs": f"`{ALL_KWARGS}` must be an object with variables of the template. `enable_thinking` must "
    "be true or false, and `documents` a list of objects; remove other arguments, such as `add_generation_prompt`",
    "tool_calls_without_tools": "a message calls a tool, but the row's tools field declares no tools",
}
"""Reason for refusing a row → its explanation and remedy."""
REFUSALS = frozenset(
    (
        *(*FILTERED, *ADVICE, "all_noncharacters", "bad_tool_call", "bad_tools", "content_not_a_string"),
        *("message_not_an_object", NOT_JSON, "not_text", "reasoning_not_a_string", "template_mismatch"),
        *("template_refused", "too_many_messages", "tool_call_text_without_tools"),
    )
)
"""All reasons for refusing a row, without the details that some of them have after a colon."""
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""Keys of reasoning in rows and templates. A conversation uses the first."""
_REASONING = frozenset(REASONING_KEYS)
_TOOLS_HEADING, _CALL = "# Tools", "<tool_call>"
_OTHER_MARKS = frozenset({"training", "trainable", "train_detail", "loss", "loss_weight", "loss_mask", "masked"})
"""Keys with which other tools mark messages as trained or not. Ignoring them would lose the mark."""
_PLAIN_KEYS, _PLAIN_ROLES = {"role", "content"}, ("system", "user", "assistant")
_REASONED_KEYS = _PLAIN_KEYS | {"reasoning_content"}
_NOT_TEXT = frozenset({"image", "image_url", "input_image", "video", "video_url", "audio", "input_audio", "file"})


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a row is refused.

    Attributes:
        reason: The reason in the ledger.
        message: The 0-based index of the message at fault, if there is one.
        words: The template's error message. It may quote the row, so it must not leave a sensitive dataset.
        part: The part of the row that can still be used, a `RenderedConversation`.
    """

    reason: str
    message: int | None = None
    words: str = field(default="", compare=False)
    part: object = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.reason if self.message is None else f"{self.reason} (message {self.message})"


NO_MESSAGES = Refusal(NO_FORM)
"""The refusal of a row without a list of messages, which may not be chat data at all."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Checked messages, with tool-call arguments as objects and without null fields, and the declared tools, if any.

    `form` is the form of the source row. `kwargs` are the template variables of the row.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    form: Form = field(default="messages", kw_only=True)
    kwargs: dict[str, Any] = field(default_factory=dict, kw_only=True)

    @property
    def has_reasoning(self) -> bool:
        """Whether any message has reasoning that is not blank."""
        return any(map(has_visible_reasoning, self.messages))


def has_visible_reasoning(message: Mapping[str, Any]) -> bool:
    """Return whether a message has reasoning that is not blank."""
    reasoning = message.get("reasoning_content")
    return isinstance(reasoning, str) and bool(reasoning.strip())


def is_trained(answer: Mapping[str, Any]) -> bool:
    """Return whether an answer is trained, i.e., not excluded by OpenAI's `weight: 0` or axolotl's `train: false`."""
    return answer.get("weight", 1) != 0 and answer.get("train", True) is not False


def read_conversation(
    row: Mapping[str, Any], fields: ConversationFields, choices: ChatChoices = OURS
) -> Conversation | Refusal:
    """Return the conversation of a row, or its refusal. The row itself is not changed.

    `fields` has the names of the row's fields. `choices` decide which rows are conversations.
    """
    # Filter first, so that a row that is not used is not reported as bad.
    if fields.used_in_filter and not _find_used_fields(value_at(row, fields.used_in)) & set(fields.used_in_filter):
        return Refusal("not_used_in")
    if choices.row_form == "messages" and fields.format in ("auto", "messages"):
        row_messages = value_at(row, fields.messages)
        if not isinstance(row_messages, list) or not row_messages:
            return NO_MESSAGES
        unpacked: UnpackedRow | str = UnpackedRow(row_messages, value_at(row, fields.tools), "messages")
    else:
        unpacked = unpack_row(row, fields)
    if isinstance(unpacked, str):
        return Refusal(unpacked)
    return _rewrite(_check_row(row, unpacked, choices), fields)


@dataclass(frozen=True, slots=True)
class Preference:
    """A prompt with two answers or with one labeled answer, as one checked conversation per answer.

    `prompt` is the number of messages of the prompt, with which both conversations begin.
    """

    chosen_side: Conversation | None
    rejected_side: Conversation | None
    prompt: int

    @property
    def sides(self) -> list[Conversation]:
        """The conversations that the row has, the chosen one first."""
        return [side for side in (self.chosen_side, self.rejected_side) if side is not None]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of all sides."""
        return [message for side in self.sides for message in side.messages]

    @property
    def form(self) -> Form:
        """The form of the row."""
        return self.sides[0].form


def read_preference(
    row: Mapping[str, Any], fields: ConversationFields, choices: ChatChoices = OURS
) -> Preference | Refusal:
    """Return the preference of a row, or its refusal. The arguments are the same as for `read_conversation`."""
    if fields.used_in_filter and not _find_used_fields(value_at(row, fields.used_in)) & set(fields.used_in_filter):
        return Refusal("not_used_in")
    unpacked = unpack_preference(row, fields)
    if isinstance(unpacked, str):
        return Refusal(unpacked)
    sides: list[Conversation | None] = []
    for unpacked_side in (unpacked.chosen_side, unpacked.rejected_side):
        side = None if unpacked_side is None else _rewrite(_check_row(row, unpacked_side, choices), fields)
        if isinstance(side, Refusal):
            return side
        sides.append(side)
    preference = Preference(chosen_side=sides[0], rejected_side=sides[1], prompt=unpacked.prompt)
    for conversation in preference.sides:
        answers = conversation.messages[preference.prompt :]
        if any(answers[end]["role"] != "assistant" for end in (0, -1)):
            return Refusal(NOT_ANSWER)
        if not all(is_trained(message) for message in answers if message["role"] == "assistant"):
            return Refusal(UNTRAINED_SIDE)
    is_equal = len(preference.sides) == 2 and preference.sides[0].messages == preference.sides[1].messages
    return Refusal(EQUAL_PAIR) if is_equal else preference


def _rewrite(conversation: Conversation | Refusal, fields: ConversationFields) -> Conversation | Refusal:
    """Return a conversation with rewritten texts, if texts are rewritten."""
    if fields.rewriting is None or isinstance(conversation, Refusal):
        return conversation
    messages = rewrite_messages(conversation.messages, fields.rewriting)
    return Refusal(messages) if isinstance(messages, str) else replace(conversation, messages=messages)


def _check_row(row: Mapping[str, Any], unpacked: UnpackedRow, choices: ChatChoices) -> Conversation | Refusal:
    """Return the conversation of a row's unpacked messages and tools, or its refusal."""
    tools = _read_tools(unpacked.tools, choices)
    if isinstance(tools, Refusal):
        return tools
    messages = []
    for index, message in enumerate(unpacked.messages):
        # Compare the type first, because `isinstance` with an abstract class is slow.
        if type(message) is not dict and not isinstance(message, Mapping):
            return Refusal("message_not_an_object", index)
        checked_message = _check_message(message, choices)
        if isinstance(checked_message, str):
            return Refusal(checked_message, index)
        messages.append(checked_message)
    if (refusal := _refuse_undeclared_calls(messages, bool(tools), choices)) is not None:
        return refusal
    # Nemotron, which accepts only rows with messages, ignores the template variables of a row.
    kwargs = read_kwargs(row.get(ALL_KWARGS)) if choices.row_form == "any" else {}
    if kwargs is None:
        return Refusal("bad_template_kwargs")
    return Conversation(messages, tools, form=unpacked.form, kwargs=kwargs)


def _find_used_fields(value: Any) -> set[str]:
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    return {part.strip() for part in parts if isinstance(part, str)}


def _read_tools(value: Any, choices: ChatChoices) -> list[dict[str, Any]] | Refusal | None:
    if choices.tools == "parse":
        if isinstance(value, str):  # tools may be JSON text, because Parquet has no type for tools of different shapes
            try:
                value = parse_json(value) if value.strip() else None
            except ValueError:
                return Refusal("bad_tools")
        value = value or None
    elif value in ("", {}):  # transformers treats both like an empty list
        return []
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        return Refusal("bad_tools")
    return value


def _check_message(message: Mapping[str, Any], choices: ChatChoices) -> dict[str, Any] | str:
    """Return a checked copy of a message, or the reason for refusing it."""
    # Return early, because most messages have only a role, a text and perhaps reasoning.
    reasoning = message.get("reasoning_content") if message.keys() == _REASONED_KEYS else None
    if (type(reasoning) is str or message.keys() == _PLAIN_KEYS) and message["role"] in _PLAIN_ROLES:
        content = message["content"]
        if type(content) is str and content.strip() and (choices.roles == "any" or message["role"] in choices.roles):
            checked = dict(message)
            if reasoning is not None and choices.content != "as_given":
                checked["reasoning_content"] = checked.pop("reasoning_content")  # last, as `_rename_reasoning` puts it
            return checked
    copy = {key: value for key, value in message.items() if value is not None}  # Parquet fills missing fields with null
    role = copy.get("role")
    if choices.row_form == "any":
        if (reason := find_unsupported_field(copy)) is not None:
            return reason
        if role == "function" and "function" not in choices.roles:
            copy["role"] = role = "tool"  # `function` is OpenAI's earlier name of this role
        if "function_call" in copy and not _convert_function_call(copy):
            return "bad_tool_call"
    if not isinstance(role, str) or (choices.roles != "any" and role not in choices.roles):
        return "unknown_role"
    if choices.content != "as_given":
        content = _convert_content(copy.get("content", ""), choices)
        if not isinstance(content, str):
            return "not_text" if _has_media(content) else "content_not_a_string"
        copy["content"] = content
        if not _REASONING.isdisjoint(copy) and (reason := _rename_reasoning(copy)):
            return reason
    if isinstance(calls := copy.get("tool_calls"), str) and choices.row_form == "any":
        copy["tool_calls"] = calls = _parse_calls(calls)
    if calls and (role == "assistant" or choices.call_form == "any"):
        normalized = _normalize_calls(calls, choices) if role == "assistant" else None
        if normalized is None:
            return "bad_tool_call"
        del copy["tool_calls"]
        copy["tool_calls"] = normalized  # put this key last, because a template may write the keys in order
    elif choices.call_form == "any":
        copy.pop("tool_calls", None)
    if _has_unclear_mark(copy):
        return "unclear_weight"
    if choices.empty_answers == "refuse" and role == "assistant" and _is_empty(copy):
        return "empty_assistant"
    return copy


def _convert_function_call(message: dict[str, Any]) -> bool:
    """Convert OpenAI's earlier `function_call` of a message to `tool_calls`; return whether that is possible."""
    call = message.pop("function_call")
    if not isinstance(call, Mapping) or message.get("tool_calls"):
        return False
    message["tool_calls"] = [{"type": "function", "function": dict(call)}]
    return True


def _parse_calls(text: str) -> Any:
    """Parse calls that are stored as JSON text; return other text unchanged."""
    try:
        return parse_json(text) if text.strip() else None
    except ValueError:
        return text


def _rename_reasoning(message: dict[str, Any]) -> str | None:
    """Move the reasoning of a message to the first of `REASONING_KEYS`, or return the reason for refusing it."""
    texts = [message.pop(key) for key in REASONING_KEYS if key in message]
    if not all(isinstance(text, str) for text in texts):
        return "reasoning_not_a_string"
    texts = [text for text in texts if text.strip()] or texts
    if any(text.strip() != texts[0].strip() for text in texts):
        return "unclear_reasoning"
    message["reasoning_content"] = texts[0]
    return None


def _has_unclear_mark(message: Mapping[str, Any]) -> bool:
    """Return whether a message's training mark is invalid or unknown."""
    weight, train = message.get("weight", 1), message.get("train")
    # Compare exact types, because True is an int but not a weight, and 1 is not a value of `train`.
    if type(weight) not in (int, float) or weight not in (0, 1) or (train is not None and type(train) is not bool):
        return True
    is_misplaced = train is True and (message["role"] != "assistant" or weight == 0)
    return is_misplaced or not _OTHER_MARKS.isdisjoint(message)


def _convert_content(content: Any, choices: ChatChoices) -> Any:
    """Return content with its text parts joined if the choices require it; otherwise unchanged content."""
    if choices.content != "join_parts" or not isinstance(content, list):
        return content
    parts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    texts = [text for text in parts if isinstance(text, str)]
    return "\n".join(texts) if len(texts) == len(content) else content


def _is_empty(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    blank = not content.strip() if isinstance(content, str) else not content
    return blank and not message.get("tool_calls") and not has_visible_reasoning(message)


def _has_media(content: Any) -> bool:
    parts = content if isinstance(content, list) else [content]
    kinds = [part.get("type") for part in parts if isinstance(part, dict)]
    return any(isinstance(kind, str) and kind in _NOT_TEXT for kind in kinds)


def _normalize_calls(calls: Any, choices: ChatChoices) -> list[dict[str, Any]] | None:
    """Return tool calls with their arguments as objects; None if any tool call is invalid."""
    if not isinstance(calls, list):
        return None
    normalize = _normalize_call if choices.call_form == "any" else _normalize_openai_call
    normalized = [normalize(call) for call in calls]
    valid_calls = [call for call in normalized if call is not None]
    return valid_calls if len(valid_calls) == len(calls) else None


def _normalize_call(call: Any) -> dict[str, Any] | None:
    inner = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str) or not inner["name"]:
        return None
    arguments = inner.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments) if arguments.strip() else {}
        except ValueError:
            return None
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return None
    inner = {**inner, "arguments": arguments}
    return {**call, "function": inner} if "function" in call else inner


def _normalize_openai_call(call: Any) -> dict[str, Any] | None:
    """Return a call by Nemotron's rules: arguments are required, and must be JSON if they are text.

    Nothing else is checked.
    """
    inner = call.get("function") if isinstance(call, dict) else None
    if not isinstance(inner, dict) or "arguments" not in inner:
        return None
    arguments = inner["arguments"]
    if isinstance(arguments, str):
        try:
            arguments = load_untrusted_json(arguments)
        except ValueError:
            return None
    return {**call, "function": {**inner, "arguments": arguments}}


def _refuse_undeclared_calls(
    messages: list[dict[str, Any]], has_declared: bool, choices: ChatChoices
) -> Refusal | None:
    """Return the refusal of a row that calls undeclared tools; None otherwise. The heading `# Tools` declares tools."""
    if has_declared and choices.call_text == "declared":
        return None
    refuses_calls = not has_declared and choices.undeclared_calls == "refuse"
    for index, message in enumerate(messages):
        calls_tools = refuses_calls and message.get("tool_calls")
        if calls_tools or _contains_text(message, _CALL):
            if any(_contains_text(other_message, _TOOLS_HEADING) for other_message in messages):
                return None
            return Refusal("tool_calls_without_tools" if calls_tools else "tool_call_text_without_tools", index)
    return None


def _contains_text(message: Mapping[str, Any], text: str) -> bool:
    """Return whether a text is in a message's content or reasoning."""
    content, reasoning = message.get("content"), message.get("reasoning_content")
    return (isinstance(content, str) and text in content) or (isinstance(reasoning, str) and text in reasoning)
