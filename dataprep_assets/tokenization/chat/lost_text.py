"""Finds texts that a template drops: the texts of a conversation that its rendering does not have.

Every content, reasoning, tool and argument of a row must occur in the rendered text, or for a trained answer in its
trained part. A template may strip them, escape them as JSON, or write other signs between their words. The reasoning of
earlier turns is exempt, because templates drop it by design, and it is trained in the sequence of its own turn.

Entry points: `find_losses`, `own_texts`, `occurs_in`, `strings_of`.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

LOST = "lost_in_template"
"""The reason of a refused row; the feature follows: `lost_in_template: reasoning`."""
Feature = Literal[
    "system", "late_system", "developer", "reasoning", "tools", "calls", "parallel_calls", "call_text", "results"
]
"""What a template may not be able to write, and what a declaration may allow it to lose."""
_ROLES = {"user": "question", "tool": "results", "developer": "developer"}
_THINK = re.compile(r"</?think>")
_PLAIN = {"role", "content"}
_WORDS = re.compile(r"[^\W_]+")


class OwnText(NamedTuple):
    """A text of a message, and the feature that it is lost with."""

    feature: str
    text: str


def find_losses(
    text: str, answers: dict[int, str], messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> tuple[list[tuple[str, int | None]], set[int]]:
    """Return the lost features with the message at fault, and the answers that are lost as a whole.

    Args:
        text: The rendering of `messages`.
        answers: Index of a message → the part of `text` that is trained for it.
        messages: The rendered messages.
        tools: The declared tools.
    """
    losses: list[tuple[str, int | None]] = []
    if tools and not all(occurs_in(own, text) for own in _texts_of_tools(tools)):
        losses.append(("tools", None))
    empty_answers, position = set(), 0
    for index, message in enumerate(messages):
        part, content, is_present = answers.get(index), message.get("content"), False
        # most messages are a text that is there as it is
        if (
            message.keys() == _PLAIN
            and content
            and (start := (part or text).find(content, 0 if part else position)) >= 0
        ):
            position = position if part else start + len(content)
            continue
        for own in own_texts(message, index):
            if part is not None:
                occurs = occurs_in(own.text, part)
            elif own.feature == "reasoning":
                continue
            else:
                occurs, position = _occurs(own.text, text, position)
            is_present |= occurs and bool(own.text.strip())
            if not occurs and (own.feature, index) not in losses:
                losses.append((own.feature, index))
        if part is not None and not is_present:
            empty_answers.add(index)
    return losses, empty_answers


def own_texts(message: dict[str, Any], index: int) -> Iterator[OwnText]:
    """Yield the texts of a message that is at `index`."""
    role, content = message["role"], message.get("content")
    if role != "assistant":
        feature = _ROLES.get(role, role) if role != "system" else "late_system" if index else "system"
        if isinstance(content, str):
            yield OwnText(feature, content)
        return
    calls = message.get("tool_calls") or ()
    if isinstance(reasoning := message.get("reasoning_content"), str):
        yield OwnText("reasoning", reasoning)
    if isinstance(content, str):
        *thoughts, answer = _THINK.split(content) if "think>" in content else (content,)
        for thought in thoughts:
            yield OwnText("reasoning", thought)
        yield OwnText("call_text" if calls else "answer", answer)
    for number, call in enumerate(calls):
        inner = call.get("function", call)
        feature = "parallel_calls" if number else "calls"
        yield OwnText(feature, inner["name"])
        for text in strings_of(inner["arguments"], numbers=True):
            yield OwnText(feature, text)


def _texts_of_tools(tools: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the names, descriptions and parameters of tools."""
    for tool in tools:
        inner = tool.get("function", tool)
        for key in ("name", "description"):
            if isinstance(value := inner.get(key), str):
                yield value
        parameters = inner.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, dict) else None
        yield from properties if isinstance(properties, dict) else ()


def strings_of(value: Any, *, numbers: bool = False) -> Iterator[str]:
    """Yield the keys and texts of a JSON value, with `numbers` also its numbers as JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from strings_of(inner, numbers=numbers)
    elif isinstance(value, list):
        for inner in value:
            yield from strings_of(inner, numbers=numbers)
    elif numbers and isinstance(value, int | float) and not isinstance(value, bool):
        yield json.dumps(value)


def occurs_in(own: str, text: str) -> bool:
    """Return whether a text occurs in another, in one of the ways in which templates write texts."""
    return _occurs(own, text, 0)[0]


def _occurs(own: str, text: str, position: int) -> tuple[bool, int]:
    """Return whether a text occurs, and where the search for the next one begins: messages come in order."""
    own = own.strip()
    if not own:
        return True, position
    if (start := text.find(own, position)) >= 0:
        return True, start + len(own)
    if own in text or json.dumps(own, ensure_ascii=False)[1:-1] in text:
        return True, position
    words = _WORDS.findall(own)
    # most texts that are not there are without a word, which is found sooner
    is_there = bool(words) and all(word in text for word in words) and "".join(words) in "".join(_WORDS.findall(text))
    return is_there, position
