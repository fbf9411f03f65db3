"""The prompt of a record as chat messages, which chat templates render, and as input items of OpenAI's Responses API.

A prompt may be a text, a list of messages (`role`, `content`), ShareGPT turns (`from`, `value`), or Responses API items
(messages, function calls and their outputs). Parts of a message's content are joined. Images, audio and reasoning items
are refused.

Entry points: `convert_to_chat_messages`, `convert_to_response_input`, `convert_to_response_tool`.
"""

from collections.abc import Mapping
from typing import Any

from dataprep_assets.errors import BadRecordError
from dataprep_assets.formats.conversations.record_parquet import MESSAGE_TEXTS, OPTIONAL_KEYS, TOOL_CALLS
from dataprep_assets.formats.json_columns import to_json

_MESSAGE_KEYS = frozenset({"role", "content", *OPTIONAL_KEYS})
# Ignore these keys of the Responses API, because no chat template reads them.
_IGNORED = frozenset({"type", "id", "status"})
_SHAREGPT = {"human": "user", "gpt": "assistant", "observation": "tool"}
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_TEXTS_ONLY = "These views have only text. Remove the view, or change the records with a transform"

Message = dict[str, Any]


def convert_to_chat_messages(prompt: Any) -> list[Message]:
    """Return a prompt as chat messages. Raises BadRecordError for a prompt that chat messages cannot express."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list) or not prompt:
        raise BadRecordError(f"the prompt must be a string or a list of messages, not {_describe_kind(prompt)}")
    messages: list[Message] = []
    for number, item in enumerate(prompt):
        try:
            _add_message(messages, item)
        except BadRecordError as error:
            raise BadRecordError(f"message {number}: {error}") from None
    return messages


def _add_message(messages: list[Message], item: Any) -> None:
    """Append an item of a prompt to the messages, or add a function call to an assistant message directly before it."""
    if not isinstance(item, dict):
        raise BadRecordError(f"must be an object, not {_describe_kind(item)}")
    kind = item.get("type", "message")
    if kind == "function_call":
        call = {
            "id": item.get("call_id"),
            "type": "function",
            "function": {"name": item.get("name"), "arguments": _format_arguments(item.get("arguments"))},
        }
        # Add the call to the preceding message of the assistant, because parallel calls are separate items in the
        # Responses API but one message in a chat.
        if messages and messages[-1]["role"] == "assistant":
            messages[-1].setdefault(TOOL_CALLS, []).append(call)
        else:
            messages.append({"role": "assistant", "content": None, TOOL_CALLS: [call]})
    elif kind == "function_call_output":
        messages.append(
            {"role": "tool", "content": _join_text(item.get("output")), "tool_call_id": item.get("call_id")}
        )
    elif kind != "message":
        raise BadRecordError(f"unsupported type {kind}. {_TEXTS_ONLY}")
    elif "from" in item:
        messages.append({"role": _SHAREGPT.get(item["from"], item["from"]), "content": _join_text(item.get("value"))})
    else:
        messages.append(_convert_message(item))


def _convert_message(item: Mapping[str, Any]) -> Message:
    if unknown_keys := sorted(item.keys() - _MESSAGE_KEYS - _IGNORED):
        raise BadRecordError(f"unknown key {unknown_keys[0]!r}. Available: {', '.join(sorted(_MESSAGE_KEYS))}")
    if not isinstance(item.get("role"), str):
        raise BadRecordError("`role` is missing")
    message: Message = {"role": item["role"], "content": _join_text(item.get("content"))}
    for key in MESSAGE_TEXTS:
        if (value := item.get(key)) is not None:
            if not isinstance(value, str):
                raise BadRecordError(f"`{key}` must be a string, not {_describe_kind(value)}")
            message[key] = value
    if calls := item.get(TOOL_CALLS):
        message[TOOL_CALLS] = [_convert_call(call) for call in calls]
    return message


def _convert_call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRecordError("a tool call must have a `function` with a `name`")
    if unknown_keys := sorted((call.keys() - {"id", "type", "function"}) | (function.keys() - {"name", "arguments"})):
        raise BadRecordError(
            f"unknown key {unknown_keys[0]!r} of a tool call. Available: id, type, function, name, arguments"
        )
    return {
        "id": call.get("id"),
        "type": call.get("type", "function"),
        "function": {"name": function["name"], "arguments": _format_arguments(function.get("arguments"))},
    }


def _format_arguments(arguments: Any) -> str | None:
    return arguments if arguments is None or isinstance(arguments, str) else to_json(arguments)


def _join_text(content: Any) -> str | None:
    """Return a message's content as one text. Parts are joined without a separator, as in chat templates."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRecordError(f"`content` must be a string or a list of parts, not {_describe_kind(content)}")
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, dict) else _describe_kind(part)
            raise BadRecordError(f"`content` has an unsupported part ({kind}). {_TEXTS_ONLY}")
    return "".join(texts)


def convert_to_response_input(prompt: Any) -> str | list[dict[str, Any]]:
    """Return a prompt as the `input` of the Responses API. Raises BadRecordError if `input` cannot express it."""
    if isinstance(prompt, str):
        return prompt
    items: list[dict[str, Any]] = []
    for number, message in enumerate(convert_to_chat_messages(prompt)):
        if unsupported_keys := sorted(message.keys() & {"name", "reasoning_content"}):
            raise BadRecordError(
                f"message {number}: the Responses API does not support `{unsupported_keys[0]}`. Remove the view, or "
                "remove the key with a transform"
            )
        if message["role"] == "tool":
            call_id, output = message.get("tool_call_id"), message["content"]
            items.append({"type": "function_call_output", "call_id": call_id, "output": output})
            continue
        if message["content"] is not None:
            items.append({"role": message["role"], "content": message["content"]})
        items += [
            {"type": "function_call", "call_id": call["id"], **call["function"]} for call in message.get(TOOL_CALLS, ())
        ]
    return items


def convert_to_response_tool(tool: Any) -> Any:
    """Return a function in the form of the Responses API, in which it is not nested; return other tools unchanged."""
    match tool:
        case {"type": "function", "function": dict(function)}:
            return {"type": "function", **function, "strict": function.get("strict", False)}
    return tool


def _describe_kind(value: Any) -> str:
    names = {"NoneType": "null", "dict": "an object", "list": "an empty list" if value == [] else "a list"}
    return names.get(type(value).__name__, f"a {type(value).__name__}")
