"""Columns of rows that rules can use without a tagger: numbers of messages, calls and characters.

A preference has the messages of its prompt and of both answers. The characters of questions and answers are
counted in the content of messages, without reasoning and tool calls, and without white space at the ends.

Entry points: `COLUMNS`, `measure_rows`, `select_text`, `select_compared_text`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dataprep_assets.curation.benchmarks.decontamination import TextChoice
from dataprep_assets.curation.table import Columns
from dataprep_assets.fields import find_strings
from dataprep_assets.pipelines.blend.screening.row_texts import find_visible_texts, select_complete_text
from dataprep_assets.tokenization.chat.messages import Conversation, Preference, has_visible_reasoning

VERSION = 1
"""Part of the key of each shard with rules. Increase it if a change in this module may change a value."""
COLUMNS: Columns = {
    "source": "string",
    "bytes": "integer",
    "characters": "integer",
    "messages": "integer",
    "turns": "integer",
    "tool_calls": "integer",
    "has_system": "boolean",
    "has_tools": "boolean",
    "has_tool_results": "boolean",
    "has_reasoning": "boolean",
    "question_characters": "integer",
    "answer_characters": "integer",
    "last_answer_characters": "integer",
    "answer_question_ratio": "number",
}
"""Name → type.

`COLUMN_DESCRIPTIONS` describes them.
"""
COLUMN_DESCRIPTIONS = {
    "source": "Name of the blend's dataset.",
    "bytes": "Size of all texts of the row in UTF-8, in bytes.",
    "characters": "Size of all texts of the row, in characters.",
    "messages": "Number of messages.",
    "turns": "Number of messages of the user.",
    "tool_calls": "Number of tool calls.",
    "has_system": "Whether the row has a system message.",
    "has_tools": "Whether the row declares tools.",
    "has_tool_results": "Whether the row has results of tools.",
    "has_reasoning": "Whether the row has reasoning.",
    "question_characters": "Length of the messages of the user, in characters.",
    "answer_characters": "Length of the answers, in characters.",
    "last_answer_characters": "Length of the last answer, in characters; for a pair, of the chosen one.",
    "answer_question_ratio": "`answer_characters` divided by `question_characters`; null without a question.",
}
"""Column → a sentence about it."""


def measure_rows(rows: Sequence[Conversation | Preference], dataset: str) -> dict[str, list[Any]]:
    """Return column → a value for each row of a dataset."""
    value_rows = [_measure_row(row, dataset) for row in rows]
    return {name: [values[name] for values in value_rows] for name in COLUMNS}


def list_messages(row: Conversation | Preference) -> list[dict[str, Any]]:
    """Return the messages of a conversation, or of a preference without repeating its prompt."""
    if isinstance(row, Conversation):
        return row.messages
    side, *other_sides = row.sides
    return [*side.messages, *(message for other_side in other_sides for message in other_side.messages[row.prompt :])]


def select_text(row: Conversation | Preference, choice: TextChoice) -> str:
    """Return the selected texts of a row as one text, with the reasoning; empty if there are none."""
    side = row if isinstance(row, Conversation) else row.sides[0]
    return select_complete_text(list_messages(row), choice, [side.tools, side.kwargs])


def select_compared_text(row: Conversation | Preference, choice: TextChoice) -> str:
    """Return the selected texts of a row for finding duplicates, as one text; empty if there are none.

    System messages and declared tools are left out, because many different rows have them in common.
    """
    messages = list_messages(row)
    if not messages:
        return select_text(row, choice)
    own_messages = [message for message in messages if message["role"] not in _SHARED_ROLES]
    return select_complete_text(own_messages, choice)


_SHARED_ROLES = ("system", "developer")


def _measure_row(row: Conversation | Preference, dataset: str) -> dict[str, Any]:
    messages, text = list_messages(row), select_text(row, "all")
    sides = [row] if isinstance(row, Conversation) else row.sides
    roles = [message["role"] for message in messages]
    questions, answers = (_count_characters(messages, role) for role in ("user", "assistant"))
    return {
        "source": dataset,
        "bytes": len(text.encode(errors="surrogatepass")),
        "characters": len(text),
        "messages": len(messages),
        "turns": roles.count("user"),
        "tool_calls": sum(len(message.get("tool_calls") or ()) for message in messages),
        "has_system": "system" in roles,
        "has_tools": any(side.tools for side in sides),
        "has_tool_results": "tool" in roles,
        "has_reasoning": any(map(_has_reasoning, messages)),
        "question_characters": questions,
        "answer_characters": answers,
        # The first side of a pair is the chosen one, if the pair has it.
        "last_answer_characters": _count_characters(_find_last_answer(sides[0].messages), "assistant"),
        "answer_question_ratio": answers / questions if questions else None,
    }


def _count_characters(messages: Sequence[Mapping[str, Any]], role: str) -> int:
    texts = (text for message in messages if message["role"] == role for text in find_visible_texts(message))
    return sum(len(text.strip()) for text in texts)


def _find_last_answer(messages: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Return the last message of the assistant in a list; the list is empty if there is none."""
    return next(([message] for message in reversed(messages) if message["role"] == "assistant"), [])


def _has_reasoning(message: Mapping[str, Any]) -> bool:
    """Return whether a message has reasoning, also in the text of an answer."""
    if has_visible_reasoning(message):
        return True
    texts = find_strings(message.get("content")) if message["role"] == "assistant" else ()
    return any("</think>" in text for text in texts)
