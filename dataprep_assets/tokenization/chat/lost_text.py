"""Finds the texts of a conversation that a template drops.

Every content, reasoning, tool and argument of a row must occur in the rendered text. The texts of a trained answer must
occur in its trained part. A template may strip texts, escape them as JSON, or put other characters between their words.
The reasoning of earlier turns is exempt, because templates drop it by design. It is trained in the sequence of its own
turn.

Entry points: `find_losses`, `find_own_texts`, `occurs_in`, `find_strings`.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

LOST = "lost_in_template"
"""Beginning of the reason for refusing a row, before the feature: `lost_in_template: reasoning`."""
Feature = Literal[
    "system",
    "late_system",
    "developer",
    "reasoning",
    "tools",
    "calls",
    "parallel_calls",
    "call_text",
    "results",
    "template_kwargs",
]
"""Features that some templates cannot write, and that a declaration may allow them to drop."""
_ROLES = {"user": "question", "tool": "results", "developer": "developer"}
_THINK = re.compile(r"</?think>")
_WORDS = re.compile(r"[^\W_]+")


class OwnText(NamedTuple):
    """A text of a message, and the feature that is lost if a template drops the text."""

    feature: str
    text: str


def find_losses(
    text: str, answers: dict[int, str], messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> tuple[list[tuple[str, int | None]], set[int]]:
    """Return the lost features, each with the index of its message, and the indexes of answers that lost all text.

    Args:
        text: The rendering of `messages`.
        answers: Index of a message → its trained part of `text`.
        messages: The rendered messages.
        tools: The declared tools.
    """
    losses: list[tuple[str, int | None]] = []
    if tools and not all(occurs_in(own_text, text) for own_text in _find_texts_of_tools(tools)):
        losses.append(("tools", None))
    empty_answers, position = set(), 0
    for index, message in enumerate(messages):
        part, is_present = answers.get(index), False
        # search verbatim first, because most texts are written verbatim and the other searches take far longer
        if (end := _find_verbatim_end(message, text, part, position)) is not None:
            position = position if part else end
            continue
        for own_text in find_own_texts(message, index):
            if part is not None:
                occurs = occurs_in(own_text.text, part)
            elif own_text.feature == "reasoning":
                continue
            else:
                occurs, position = _find_occurrence(own_text.text, text, position)
            is_present |= occurs and bool(own_text.text.strip())
            if not occurs and (own_text.feature, index) not in losses:
                losses.append((own_text.feature, index))
        if part is not None and not is_present:
            empty_answers.add(index)
    return losses, empty_answers


def _find_verbatim_end(message: dict[str, Any], text: str, part: str | None, position: int) -> int | None:
    """Return the end of a message's content in the text; None if a text of the message is not found verbatim."""
    content = message.get("content")
    if not content or (message["role"] == "assistant" and message.get("tool_calls")):
        return None
    reasoning = message.get("reasoning_content") if part else None
    if reasoning and reasoning.strip() not in (part or ""):
        return None
    start = (part or text).find(content, 0 if part else position)
    return start + len(content) if start >= 0 else None


def find_own_texts(message: dict[str, Any], index: int) -> Iterator[OwnText]:
    """Yield the texts of the message at `index`."""
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
        for text in find_strings(inner["arguments"], numbers=True):
            yield OwnText(feature, text)


def _find_texts_of_tools(tools: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the names, descriptions and parameters of tools."""
    for tool in tools:
        inner = tool.get("function", tool)
        for key in ("name", "description"):
            if isinstance(value := inner.get(key), str):
                yield value
        parameters = inner.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, dict) else None
        yield from properties if isinstance(properties, dict) else ()


def find_strings(value: Any, *, numbers: bool = False) -> Iterator[str]:
    """Yield the keys and texts of a JSON value, and with `numbers` also its numbers as JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from find_strings(inner, numbers=numbers)
    elif isinstance(value, list):
        for inner in value:
            yield from find_strings(inner, numbers=numbers)
    elif numbers and isinstance(value, int | float) and not isinstance(value, bool):
        yield json.dumps(value)


def occurs_in(own_text: str, text: str) -> bool:
    """Return whether `own_text` occurs in `text`, in one of the ways in which templates write texts."""
    return _find_occurrence(own_text, text, 0)[0]


def _find_occurrence(own_text: str, text: str, position: int) -> tuple[bool, int]:
    """Return whether a text occurs, and where to search for the next text, because messages are in order."""
    own_text = own_text.strip()
    if not own_text:
        return True, position
    if (start := text.find(own_text, position)) >= 0:
        return True, start + len(own_text)
    if own_text in text or json.dumps(own_text, ensure_ascii=False)[1:-1] in text:
        return True, position
    words = _WORDS.findall(own_text)
    # search single words first, because a missing text usually lacks a word, which is faster to find
    has_words = bool(words) and all(word in text for word in words) and "".join(words) in "".join(_WORDS.findall(text))
    return has_words, position
