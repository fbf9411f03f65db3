"""Recognizes the form of a row with a conversation, and returns its messages and tools.

docs/formats/conversations.md describes the forms, and the normalized form that `messages.py` checks. A row is
recognized by its fields, so files need no declaration. A file with rows of several forms is refused (`spool.py`).
Fields that change the meaning of a row are used or refused. `find_unread_keys` returns the other fields.

Entry points: `unpack_row`, `unpack_preference`; `find_unread_keys`, `count_keys`, `remove_template_keys`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import takewhile
from typing import Any, Literal

import orjson

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.fields import value_at
from dataprep_assets.tokenization.chat.rewritten_messages import TextRewriting
from dataprep_assets.tokenization.chat.template import ALL_KWARGS

Form = Literal["messages", "sharegpt", "alpaca", "prompt_completion", "pairs", "kto"]
Format = Literal["auto", "messages", "sharegpt", "alpaca", "prompt_completion", "pairs", "kto"]

NO_FORM = "no_messages"
"""Reason for refusing a row without a conversation. It may not be chat data at all."""
PAIR, LABELLED, REJECTED = "preference_pair", "labelled_answer", "rejected_answer"
NOT_TRAINED, EQUAL_PAIR, TWO_SYSTEMS = "not_trained", "no_preference", "unclear_system"
UNSUPPORTED = "unsupported_key"
UNCLEAR_PROMPT, UNCLEAR_LABEL, EMPTY_SIDE = "unclear_prompt", "unclear_label", "empty_side"
"""Reasons for refusing a row of a known form."""

_MESSAGES, _CONVERSATIONS = "messages", "conversations"
_SYSTEMS = {"system": "system", "system_prompt": "system", "developer": "developer"}
"""Fields with an instruction for the whole conversation → the role of its message."""
_MEDIA = frozenset({"image", "images", "video", "videos", "audio", "audios"})
_UNSUPPORTED_ROW_KEYS = _MEDIA | {
    "function_call",
    "tool_choice",
    "prefix",
    "continue_final_message",
}
_UNSUPPORTED_MESSAGE_KEYS = _MEDIA | {"prefix", "partial", "channel", "recipient", "tools"}
"""Fields that change the meaning of a row or a message, and that this project does not support."""
_UNCLEAR = frozenset({"loss_mask", "loss_weight", "trainable", "train_detail"})
_COMMON_KEYS = _UNSUPPORTED_ROW_KEYS | _UNCLEAR | _SYSTEMS.keys() | {"functions", "weight", "train", ALL_KWARGS}
_KEYS_BY_FORM: Mapping[Form, frozenset[str]] = {
    "messages": frozenset(),
    "sharegpt": frozenset(),
    "alpaca": frozenset({"instruction", "input", "output", "history"}),
    "prompt_completion": frozenset({"prompt", "completion"}),
    "pairs": frozenset({"prompt", "chosen", "rejected", "instruction", "input", "output", "history"}),
    "kto": frozenset({"prompt", "completion", "label", "instruction", "input", "output", "history"}),
}
_MESSAGE_KEYS = _UNSUPPORTED_MESSAGE_KEYS | {
    "role",
    "content",
    "reasoning_content",
    "reasoning",
    "thinking",
    "tool_calls",
    "tool_call_id",
    "name",
    "weight",
    "train",
}
_MESSAGE_PREFIX = "messages."
"""Prefix for the keys of messages."""
OTHER_KEYS = "other keys"
_MAX_KEYS = 100
"""Maximum number of different keys to count, because any text can be a key."""
_WORD = re.compile(r"\w+")
_CALLS = "function_call"
_SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
    "developer": "developer",
    "function_call": _CALLS,
    "tool_call": _CALLS,
    "observation": "tool",
    "function": "tool",
    "function_response": "tool",
    "tool": "tool",
    "tool_response": "tool",
}
"""ShareGPT's name of a speaker (also with `-` instead of `_`) → role; `_CALLS` for an answer with its calls as JSON."""


@dataclass(frozen=True, kw_only=True)
class ConversationFields:
    """Names of the row's fields.

    Only rows whose `used_in` has a value in `used_in_filter` are kept, or all rows if the filter is empty. `format` is
    the form of the rows; `auto` recognizes it. If `messages` is not the default, only that field is read. The texts of
    messages are rewritten if there is a `rewriting`.
    """

    messages: str = _MESSAGES
    tools: str = "tools"
    used_in: str = "used_in"
    used_in_filter: tuple[str, ...] = ()
    format: Format = "auto"
    rewriting: TextRewriting | None = None

    def key_parts(self) -> dict[str, Any]:
        """Return the values that are part of an artifact key."""
        names = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "rewriting"}
        # Add the rewriting only if it is declared, so that other shards keep their keys.
        return names if self.rewriting is None else {**names, "rewrite": self.rewriting.version}


@dataclass(frozen=True, slots=True)
class UnpackedRow:
    """The unchecked messages and tools of a row in the normalized form, and the form of the row itself."""

    messages: list[Any]
    tools: Any
    form: Form


@dataclass(frozen=True, slots=True)
class UnpackedPreference:
    """The conversations of a preference row: a prompt with the chosen answer, and the prompt with the rejected one.

    A side is None if the row has only one answer, with a label. `prompt` is the number of messages of the prompt.
    """

    chosen_side: UnpackedRow | None
    rejected_side: UnpackedRow | None
    prompt: int


def unpack_row(row: Mapping[str, Any], fields: ConversationFields) -> UnpackedRow | str:
    """Return the messages of a row in any form, or the reason for refusing it."""
    if (reason := _find_unsupported_field(row)) is not None:
        return reason
    unpacked = _unpack(row, fields)
    return unpacked if isinstance(unpacked, str) else _complete_row(row, fields, unpacked.messages, unpacked.form)


def unpack_preference(row: Mapping[str, Any], fields: ConversationFields) -> UnpackedPreference | str:
    """Return the prompt and the answers of a row with `chosen` and `rejected`, or with one answer and its `label`.

    `fields.format` is `pairs`, `kto` or `auto`. Returns the reason if the row has no preference.
    """
    if (reason := _find_unsupported_field(row)) is not None:
        return reason
    row_messages = _parse_message_list(row, fields)
    form = _recognize_form(row, fields, row_messages)
    is_pair = form == "pairs" if fields.format == "auto" else fields.format == "pairs"
    split_row: tuple[list[Any], list[Any] | None, list[Any] | None] | str
    if is_pair:
        split_row = _split_pair(row, row_messages)
    elif form is None or form == "pairs":
        return NO_FORM
    else:
        split_row = _split_labelled(row, form, row_messages)
    if isinstance(split_row, str):
        return split_row
    prompt, *answers = split_row
    if not prompt or not any(answers):
        return NO_FORM
    if not all(answer for answer in answers if answer is not None):
        return EMPTY_SIDE
    form = "pairs" if is_pair else "kto"
    sides: list[UnpackedRow | None] = []
    prompt_length = 0
    for answer in answers:
        side = None if answer is None else _complete_row(row, fields, [*prompt, *answer], form)
        if isinstance(side, str):
            return side
        if side is not None and answer is not None:
            prompt_length = len(side.messages) - len(answer)
        sides.append(side)
    return UnpackedPreference(chosen_side=sides[0], rejected_side=sides[1], prompt=prompt_length)


def _complete_row(
    row: Mapping[str, Any], fields: ConversationFields, messages: list[Any], form: Form
) -> UnpackedRow | str:
    """Return messages with the tools and the instructions of their row."""
    tools = value_at(row, fields.tools)
    if (functions := row.get("functions")) and fields.tools != "functions":
        if not _is_none(tools):
            return f"{UNSUPPORTED}: functions"
        tools = _parse_text(functions)
        tools = [{"type": "function", "function": function} for function in tools] if isinstance(tools, list) else tools
    elif form != "messages":
        tools = _convert_to_functions(_parse_text(tools))
    all_messages = messages if _SYSTEMS.keys().isdisjoint(row) else _add_system_messages(row, messages)
    return all_messages if isinstance(all_messages, str) else UnpackedRow(all_messages, tools, form)


def find_unread_keys(
    row: Mapping[str, Any], messages: Iterable[Mapping[str, Any]], form: Form, fields: ConversationFields
) -> set[str]:
    """Return the unread fields of a row that have a value, and the unread fields of its messages as `messages.KEY`.

    `messages` are the messages of the conversation, and `form` is the form of the row.
    """
    keys = {
        key
        for key in row.keys() - _COMMON_KEYS
        if key not in _KEYS_BY_FORM[form] and row[key] is not None and not _is_declared(key, row, fields)
    }
    for message in messages:
        if other_keys := message.keys() - _MESSAGE_KEYS:
            keys.update(_MESSAGE_PREFIX + key for key in other_keys)
    return keys


def count_keys(counts: Counter[str], keys: Iterable[str]) -> None:
    """Count a row under each of its keys; beyond `_MAX_KEYS` different keys, under `OTHER_KEYS`."""
    if len(counts) < _MAX_KEYS:
        counts.update(keys)
    else:
        counts.update({key if key in counts else OTHER_KEYS for key in keys})


def remove_template_keys(counts: Mapping[str, int], template: str) -> dict[str, int]:
    """Return the counts sorted by key, without keys of messages that occur as a word in the text of a template."""
    words = set(_WORD.findall(template))
    return {
        key: count
        for key, count in sorted(counts.items())
        if not (key.startswith(_MESSAGE_PREFIX) and key.removeprefix(_MESSAGE_PREFIX) in words)
    }


def find_unsupported_field(message: Mapping[str, Any]) -> str | None:
    """Return the reason for refusing a message with a field that changes its meaning; None if it has no such field."""
    if _UNSUPPORTED_MESSAGE_KEYS.isdisjoint(message):
        return None
    return next((f"{UNSUPPORTED}: {key}" for key in sorted(_UNSUPPORTED_MESSAGE_KEYS) if message.get(key)), None)


def _is_declared(key: str, row: Mapping[str, Any], fields: ConversationFields) -> bool:
    if key == _CONVERSATIONS and fields.messages == _MESSAGES and row.get(_MESSAGES) is None:
        return True
    paths = (fields.messages, fields.tools, *((fields.used_in,) if fields.used_in_filter else ()))
    return any(key == path or (path not in row and path.startswith(f"{key}.")) for path in paths)


def _find_unsupported_field(row: Mapping[str, Any]) -> str | None:
    """Return the reason for refusing a row of any form because of a field; None if its fields are acceptable."""
    for key in sorted(_UNSUPPORTED_ROW_KEYS.intersection(row)):
        value = row[key]
        # `auto` lets the model decide, which is also the default, so this value does not change the meaning of a row.
        if value and not (key in ("function_call", "tool_choice") and value == "auto"):
            return f"{UNSUPPORTED}: {key}"
    weight, train = row.get("weight"), row.get("train")
    if train is False or (weight == 0 and weight is not False):
        return NOT_TRAINED
    is_clear = train in (None, True) and weight in (None, 1) and all(row[key] is None for key in _UNCLEAR & row.keys())
    return None if is_clear else "unclear_weight"


def _unpack(row: Mapping[str, Any], fields: ConversationFields) -> UnpackedRow | str:
    form, row_messages = fields.format, _parse_message_list(row, fields)
    if form != "auto" and form != "kto":
        return _build_unpacked_row(_read_messages(form, row, row_messages), form)
    base, label = _recognize_form(row, fields, row_messages), row.get("label")
    if base is None or (base == "pairs" and form == "kto"):
        return NO_FORM
    if base == "pairs":
        return PAIR
    # A row of the form `kto` must have a boolean label, and a row of any other form must not have one.
    if (type(label) is bool) != (form == "kto"):
        return LABELLED
    if form == "kto" and not label:
        return REJECTED
    return _build_unpacked_row(_read_messages(base, row, row_messages), base if form == "auto" else form)


def _build_unpacked_row(messages: list[Any] | str, form: Form) -> UnpackedRow | str:
    return messages if isinstance(messages, str) else UnpackedRow(messages, None, form)


def _recognize_form(row: Mapping[str, Any], fields: ConversationFields, row_messages: list[Any]) -> Form | None:
    """Return the form of a row by its fields; None for an unknown form. `row_messages` are its messages."""
    is_pair = row.get("chosen") is not None and row.get("rejected") is not None
    if row_messages and not (is_pair and _read_speaker(row_messages[-1]) != "assistant"):
        return "sharegpt" if _is_sharegpt(row_messages[0]) else "messages"
    if fields.messages != _MESSAGES:
        return None
    if is_pair:
        return "pairs"
    if row.get("instruction") is not None and (output := row.get("output")) is not None:
        return "pairs" if isinstance(output, list) else "alpaca"
    has_both = row.get("prompt") is not None and row.get("completion") is not None
    return "prompt_completion" if has_both else None


def _parse_message_list(row: Mapping[str, Any], fields: ConversationFields) -> list[Any]:
    """Return the list in the field of messages or in ShareGPT's field, parsed if it is JSON; empty without a list."""
    value = value_at(row, fields.messages)
    if value is None and fields.messages == _MESSAGES:
        value = row.get(_CONVERSATIONS)
    if isinstance(value, str):
        value = _parse_text(value)
    return value if isinstance(value, list) else []


def _read_messages(form: Form, row: Mapping[str, Any], row_messages: list[Any]) -> list[Any] | str:
    """Return the messages of a row with this form, or the reason for refusing it."""
    if form == "messages":
        return row_messages or NO_FORM
    if form == "sharegpt":
        return [*map(_convert_sharegpt, row_messages)] or NO_FORM
    if form == "alpaca":
        return _read_alpaca_messages(row)
    if form == "pairs":
        return _read_pair_messages(row, row_messages)
    return _join_completion(
        _convert_to_messages(row.get("prompt"), "user"), _convert_to_messages(row.get("completion"), "assistant")
    )


def _read_alpaca_messages(row: Mapping[str, Any]) -> list[Any] | str:
    questions = _read_alpaca_prompt(row)
    if row.get("output") is None:
        return NO_FORM
    return questions if isinstance(questions, str) else [*questions, {"role": "assistant", "content": row["output"]}]


def _read_alpaca_prompt(row: Mapping[str, Any]) -> list[Any] | str:
    """Return the messages of Alpaca's `history`, and its question: `instruction` and `input`."""
    questions = [text for key in ("instruction", "input") if (text := row.get(key)) is not None and text != ""]
    if not all(isinstance(text, str) for text in questions):
        return NO_FORM
    history = _parse_text(row.get("history")) or []
    if not isinstance(history, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in history):
        return f"{UNSUPPORTED}: history"
    roles = ("user", "assistant")
    messages = [{"role": role, "content": text} for texts in history for role, text in zip(roles, texts, strict=True)]
    return [*messages, {"role": "user", "content": "\n".join(questions)}]


def _read_pair_messages(row: Mapping[str, Any], row_messages: list[Any]) -> list[Any] | str:
    """Return the prompt of a pair, and its chosen answer."""
    split_row = _split_pair(row, row_messages)
    return split_row if isinstance(split_row, str) else _join_completion(*split_row[:2])


def _split_pair(row: Mapping[str, Any], row_messages: list[Any]) -> tuple[list[Any], list[Any], list[Any]] | str:
    """Return the prompt, the chosen and the rejected messages of a row, or the reason for refusing it."""
    prompt = _convert_to_messages(row.get("prompt"), "user") or [*map(_convert_sharegpt, row_messages)]
    values = [row.get("chosen"), row.get("rejected")]
    if not prompt and row.get("instruction") is not None:
        alpaca_prompt = _read_alpaca_prompt(row)
        if isinstance(alpaca_prompt, str):
            return alpaca_prompt
        prompt = alpaca_prompt
        if values == [None, None] and isinstance(row.get("output"), list) and len(row["output"]) == 2:
            values = row["output"]
    chosen_side, rejected_side = (_convert_to_messages(value, "assistant") for value in values)
    if chosen_side is None or rejected_side is None:
        return NO_FORM
    if chosen_side == rejected_side:
        return EQUAL_PAIR
    has_prompt = [side[: len(prompt)] == prompt for side in (chosen_side, rejected_side)]
    if prompt and all(has_prompt):
        return prompt, chosen_side[len(prompt) :], rejected_side[len(prompt) :]
    if prompt and any(has_prompt):
        return UNCLEAR_PROMPT
    if prompt:
        return prompt, chosen_side, rejected_side
    # Without a separate prompt, the prompt is the common beginning of both sides.
    length = sum(
        1 for _ in takewhile(lambda sides: sides[0] == sides[1], zip(chosen_side, rejected_side, strict=False))
    )
    return chosen_side[:length], chosen_side[length:], rejected_side[length:]


def _split_labelled(
    row: Mapping[str, Any], form: Form, row_messages: list[Any]
) -> tuple[list[Any], list[Any] | None, list[Any] | None] | str:
    """Return the prompt of a row with a `label`, and its answer as the chosen or the rejected answer."""
    label = row.get("label")
    if type(label) is not bool:
        return UNCLEAR_LABEL if label is not None else NO_FORM
    if form == "prompt_completion":
        prompt, answer = (
            _convert_to_messages(row.get("prompt"), "user"),
            _convert_to_messages(row.get("completion"), "assistant"),
        )
    else:
        messages = _read_messages(form, row, row_messages)
        if isinstance(messages, str):
            return messages
        prompt, answer = messages[:-1], messages[-1:]
    if not prompt or not answer:
        return NO_FORM
    return (prompt, answer, None) if label else (prompt, None, answer)


def _join_completion(prompt: list[Any] | None, completion: list[Any] | None) -> list[Any] | str:
    """Return a prompt and its completion as messages; only the completion is trained."""
    return [*map(_mark_untrained, prompt), *completion] if prompt and completion else NO_FORM


def _mark_untrained(message: Any) -> Any:
    is_open = isinstance(message, Mapping) and message.get("role") == "assistant" and message.get("weight") is None
    return {**message, "train": False} if is_open and message.get("train") is None else message


def _convert_to_messages(value: Any, role: str) -> list[Any] | None:
    """Return a list of messages for a text (a message with this role), a message or a list; None for other values."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if isinstance(value, Mapping):
        value = [value]
    return [*map(_convert_sharegpt, value)] if isinstance(value, list) and value else None


def _is_sharegpt(message: Any) -> bool:
    return isinstance(message, Mapping) and "role" not in message and "from" in message


def _read_speaker(message: Any) -> Any:
    if not _is_sharegpt(message):
        return message.get("role") if isinstance(message, Mapping) else None
    name = message["from"]
    return _SPEAKERS.get(name.replace("-", "_"), name) if isinstance(name, str) else name


def _convert_sharegpt(message: Any) -> Any:
    """Return a ShareGPT message with `role` and `content`; other messages unchanged."""
    if not _is_sharegpt(message):
        return message
    role, text = _read_speaker(message), message.get("value")
    other_fields = {key: value for key, value in message.items() if key not in ("from", "value")}
    if role != _CALLS:
        return {"role": role, "content": text, **other_fields}
    calls = _parse_text(text)
    # Leave text that is not JSON unchanged, because it is refused later as an invalid call.
    calls = calls if isinstance(calls, list) else [calls]
    return {"role": "assistant", "content": "", **other_fields, "tool_calls": _convert_to_functions(calls)}


def _convert_to_functions(tools: Any) -> Any:
    """Return tools or calls in OpenAI's form, each as the `function` of an object; other values unchanged."""
    if not isinstance(tools, list):
        return tools
    return [
        {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}
        if isinstance(tool, Mapping) and "name" in tool and "function" not in tool
        else tool
        for tool in tools
    ]


def _add_system_messages(row: Mapping[str, Any], messages: list[Any]) -> list[Any] | str:
    """Return the messages with the instructions in fields of the row put before them.

    An instruction is left out if a message already contains its text.
    """
    added_messages: list[Any] = []
    for key, role in _SYSTEMS.items():
        if (text := row.get(key)) is None or text == "":
            continue
        if not isinstance(text, str):
            return f"{UNSUPPORTED}: {key}"
        contents = [m.get("content") for m in (*messages, *added_messages) if _read_speaker(m) in _SYSTEMS.values()]
        if not text.strip() or any(isinstance(content, str) and text.strip() in content for content in contents):
            continue
        if any(_read_speaker(message) == role for message in (*messages, *added_messages)):
            return TWO_SYSTEMS
        added_messages.append({"role": role, "content": text})
    return [*added_messages, *messages]


def _is_none(tools: Any) -> bool:
    return not tools or (isinstance(tools, str) and _parse_text(tools) in (None, [], {}))


def _parse_text(value: Any) -> Any:
    """Parse JSON text. Other texts and values are returned unchanged."""
    if not isinstance(value, str) or not value.strip():
        return value
    try:
        return parse_json(value)
    except ValueError:
        return value


def parse_json(text: str) -> Any:
    """Return the value of JSON text, with exact integers. Raises ValueError for other text."""
    # Parse with orjson first, because it is strict. Its value is not used, because it converts integers beyond 64 bits
    # to doubles.
    orjson.loads(text)
    return load_untrusted_json(text)
