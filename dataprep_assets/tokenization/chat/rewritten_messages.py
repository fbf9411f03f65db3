"""Rewriting of the texts of a conversation's messages, before anything else reads them.

The content, the reasoning and the arguments of tool calls are rewritten, also in tool results. Roles, names, declared
tools and template variables stay as they are.

Entry points: `TextRewriting`, `rewrite_messages`, `list_rewritable_texts`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

REWRITTEN_EMPTY = "rewritten_empty"
"""Reason for refusing a row in which rewriting leaves a text of a message empty."""
_KEYS = frozenset({"content", "reasoning_content", "reasoning", "thinking"})
_PART_NAMES = frozenset({"type"})
"""Keys of a part of a content whose values are names, not texts."""


class TextRewriting(Protocol):
    """Rewriters of texts, in order."""

    @property
    def version(self) -> str:
        """The values that determine the rewritten texts."""
        ...

    def rewrite_texts(self, texts: Sequence[str]) -> list[str]:
        """Return texts as all rewriters together rewrite them."""
        ...


def list_rewritable_texts(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the texts of messages that are rewritten, in order."""
    texts: list[str] = []

    def collect(text: str) -> str:
        texts.append(text)
        return text

    for message in messages:
        _convert_message(message, collect)
    return texts


def rewrite_messages(messages: Sequence[dict[str, Any]], rewriting: TextRewriting) -> list[dict[str, Any]] | str:
    """Return messages with rewritten texts, or the reason for refusing them. The given messages are not changed."""
    texts = list_rewritable_texts(messages)
    rewritten_texts = rewriting.rewrite_texts(texts)
    if any(before.strip() and not after.strip() for before, after in zip(texts, rewritten_texts, strict=True)):
        return REWRITTEN_EMPTY
    text_iterator: Iterator[str] = iter(rewritten_texts)
    return [_convert_message(message, lambda _: next(text_iterator)) for message in messages]


def _convert_message(message: Mapping[str, Any], convert: Callable[[str], str]) -> dict[str, Any]:
    converted = dict(message)
    for key, value in message.items():
        if key in _KEYS:
            converted[key] = _convert_strings(value, convert)
        elif key == "tool_calls" and value:
            converted[key] = [_convert_call(call, convert) for call in value]
    return converted


def _convert_call(call: Any, convert: Callable[[str], str]) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or "arguments" not in function:
        return call
    return {**call, "function": {**function, "arguments": _convert_strings(function["arguments"], convert)}}


def _convert_strings(value: Any, convert: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return convert(value)
    if isinstance(value, list | tuple):
        return [_convert_strings(item, convert) for item in value]
    if isinstance(value, Mapping):
        return {key: item if key in _PART_NAMES else _convert_strings(item, convert) for key, item in value.items()}
    return value
