"""Finds the texts of a conversation that a template drops.

Every content, reasoning, tool and argument of a row must occur in the rendered text: the texts of an answer in its own
part, other texts outside of the answers. A template may strip texts, escape them as JSON, or put other characters
between their words. The reasoning of earlier turns is exempt, because templates drop it by design. It is trained in the
sequence of its own turn.

Entry points: `find_losses`, `find_own_texts`, `occurs_in`, `find_strings`.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

LOST = "lost_in_template"
"""Beginning of the reason for refusing a row, before the feature: `lost_in_template: reasoning`."""
Feature = Literal[
    "system",
    "late_system",
    "developer",
    "reasoning",
    "tools",
    "tool_parameters",
    "calls",
    "parallel_calls",
    "call_text",
    "results",
    "names",
    "template_kwargs",
]
"""Features that some templates cannot write, and that a declaration may allow them to drop."""
_ROLES = {"user": "question", "tool": "results", "developer": "developer"}
_PROSE = frozenset({"reasoning", "answer", "call_text"})
"""Features of an answer's texts outside of calls."""
_ROLES_OF_TOOLS = frozenset({"tool", "function", "ipython"})
"""Roles whose messages have the name of a tool, which their call has too."""
_THINK = re.compile(r"</?think>")
_WORDS = re.compile(r"[^\W_]+")
_GAP = "\0"
"""Character in place of a text that is cut out, so that the texts around it do not form a new one."""
_VALUES_OF_SCHEMA = frozenset({"default", "examples", "const", "enum", "required"})
"""Keys of a JSON schema whose values are not schemas."""


class OwnText(NamedTuple):
    """A text of a message, and the feature that is lost if a template drops the text."""

    feature: str
    text: str


def find_losses(
    text: str,
    spans: Sequence[tuple[int, int, int]],
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
) -> tuple[list[tuple[str, int | None]], set[int]]:
    """Return the lost features, each with the index of its message, and the indexes of answers that lost all text.

    A text must occur at a place of its own: the result of a tool is lost if only the answer quotes it.

    Args:
        text: The rendering of `messages`.
        spans: Index of a message, start and end of each answer's part of `text`, in order.
        messages: The rendered messages.
        tools: The declared tools.
    """
    answers: dict[int, str] = {}
    pieces, position = list[str](), 0
    for index, start, stop in spans:
        answers[index] = answers.get(index, "") + text[start:stop]
        pieces.append(text[position:start])
        position = stop
    outside = _GAP.join((*pieces, text[position:]))
    losses: list[tuple[str, int | None]] = []
    for feature, tool_texts in _find_texts_of_tools(tools or []).items():
        if not losses and not all(occurs_in(tool_text, outside) for tool_text in tool_texts):
            losses.append((feature, None))
    empty_answers, position, is_ordered = set(), 0, True
    for index, message in enumerate(messages):
        part, is_present = answers.get(index), False
        name = message.get("name") if message["role"] not in _ROLES_OF_TOOLS else None
        if isinstance(name, str) and not occurs_in(name, outside) and not occurs_in(name, part or ""):
            losses.append(("names", index))
        # Search verbatim first, because most texts are written verbatim and the other searches take far longer.
        if (end := _find_verbatim_end(message, outside, part, position)) is not None:
            position = position if part else end
            continue
        own_texts = list(find_own_texts(message, index))
        # Compare the texts of calls only with texts outside of calls, because a call may have thousands of texts, and
        # comparing all pairs would be slow.
        prose = [own_text for own_text in own_texts if own_text.feature in _PROSE]
        for own_text in own_texts:
            if part is not None:
                neighbors = own_texts if own_text.feature in _PROSE else prose
                occurs = occurs_in(own_text.text, _cut_others(part, own_text, neighbors))
            elif own_text.feature == "reasoning":
                continue
            else:
                occurs, position, in_order = _find_occurrence(own_text.text, outside, position)
                is_ordered &= in_order or message["role"] == "assistant"
            is_present |= occurs and bool(own_text.text.strip())
            if not occurs and (own_text.feature, index) not in losses:
                losses.append((own_text.feature, index))
        if part is not None and not is_present:
            empty_answers.add(index)
    if not is_ordered:
        losses += [loss for loss in _find_quoted(outside, messages, answers) if loss not in losses]
    return losses, empty_answers


def _cut_others(part: str, own_text: OwnText, neighbors: Sequence[OwnText]) -> str:
    """Return the part of an answer without each of the other texts `neighbors` that quotes a text."""
    text = own_text.text.strip()
    quoting_texts = {
        quoting_text
        for neighbor in neighbors
        if text
        and neighbor is not own_text
        and text in (quoting_text := neighbor.text.strip())
        # If two texts are equal and the answer has only one of them, the text of the content counts as lost.
        and (text != quoting_text or own_text.feature in ("answer", "call_text"))
    }
    for quoting_text in sorted(quoting_texts, key=len, reverse=True):
        part = part.replace(quoting_text, _GAP, 1)
    return part


def _find_quoted(
    outside: str, messages: list[dict[str, Any]], answers: Mapping[int, str]
) -> Iterator[tuple[str, int | None]]:
    """Yield the features of messages whose text occurs only within the texts of other messages."""
    contents = [
        (index, content.strip())
        for index, message in enumerate(messages)
        if index not in answers and isinstance(content := message.get("content"), str)
    ]
    remainder = outside
    # Cut out the longest texts first, so that a text that they quote must also occur elsewhere. If equal texts do not
    # all occur, the last of them count as lost.
    for index, content in sorted(contents, key=lambda pair: -len(pair[1])):
        if content in remainder:
            remainder = remainder.replace(content, _GAP, 1)
        elif content in outside and messages[index]["role"] != "assistant":
            yield next(find_own_texts(messages[index], index)).feature, index


def _find_verbatim_end(message: dict[str, Any], text: str, part: str | None, position: int) -> int | None:
    """Return where the content of a message ends in the text; None if a text of the message is not found verbatim."""
    content = message.get("content")
    if not content or (message["role"] == "assistant" and message.get("tool_calls")):
        return None
    reasoning = message.get("reasoning_content") if part else None
    if reasoning and (reasoning.strip() not in (part or "") or reasoning.strip() in content or content in reasoning):
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


def _find_texts_of_tools(tools: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the texts of tools by the feature that is lost with them: of the tools, and of their parameters."""
    texts: dict[str, list[str]] = {"tools": [], "tool_parameters": []}
    for tool in tools:
        inner = tool.get("function", tool)
        texts["tools"] += [value for key in ("name", "description") if isinstance(value := inner.get(key), str)]
        parameters = inner.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, dict) else None
        texts["tools"] += properties if isinstance(properties, dict) else ()
        texts["tool_parameters"] += _find_texts_of_schema(parameters)
    return texts


def _find_texts_of_schema(schema: Any) -> Iterator[str]:
    """Yield the names, the descriptions and the allowed texts of the parameters in a JSON schema, at every depth."""
    if isinstance(schema, list):
        for inner in schema:
            yield from _find_texts_of_schema(inner)
    for key, value in schema.items() if isinstance(schema, dict) else ():
        if key == "properties" and isinstance(value, dict):
            yield from value
            yield from _find_texts_of_schema(list(value.values()))
        elif key == "description" and isinstance(value, str):
            yield value
        elif key == "enum" and isinstance(value, list):
            yield from (text for text in value if isinstance(text, str))
        elif key in ("$defs", "definitions") and isinstance(value, dict):
            yield from _find_texts_of_schema(list(value.values()))
        elif key not in _VALUES_OF_SCHEMA:
            yield from _find_texts_of_schema(value)


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


def _find_occurrence(own_text: str, text: str, position: int) -> tuple[bool, int, bool]:
    """Return whether a text occurs, where to search for the next text, and whether the text may be after `position`."""
    own_text = own_text.strip()
    if not own_text:
        return True, position, True
    if (start := text.find(own_text, position)) >= 0:
        return True, start + len(own_text), True
    if own_text in text:
        return True, position, False
    if json.dumps(own_text, ensure_ascii=False)[1:-1] in text:
        return True, position, True
    words = _WORDS.findall(own_text)
    # Search single words first, because this is faster, and if a text is missing, one of its words usually is too.
    has_words = bool(words) and all(word in text for word in words) and "".join(words) in "".join(_WORDS.findall(text))
    return has_words, position, True
