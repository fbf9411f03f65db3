"""Texts of a row for benchmark items and taggers: of a conversation, of a preference or of an RL record.

The texts of the selected messages are joined, because a question and its answer may be in two messages. If the messages
have reasoning, tool calls or tool results, a second text omits these, because they separate a question from its answer.

Entry points: `select_row_texts` for conversations and preferences, `select_record_texts` and `read_record` for RL
records; `find_visible_texts`, `remove_thoughts`, `HOSTS`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dataprep_assets.curation.benchmarks.decontamination import TextChoice
from dataprep_assets.errors import BadRecordError
from dataprep_assets.fields import find_strings
from dataprep_assets.pipelines.blend.rl.record_parts import PartPaths
from dataprep_assets.tokenization.chat.messages import REASONING_KEYS, Conversation, Preference

if TYPE_CHECKING:
    from dataprep_assets.curation.benchmarks.verdict import Hosts

VERSION = 1
"""Part of the key of each screened shard. Increase it if a change in this module may change the texts of a row."""
_ROLES: Mapping[TextChoice, str] = {"questions": "user", "first_question": "user", "answers": "assistant"}
"""Choice of texts → the only role whose messages are selected."""
_SIDES = ("chosen", "rejected")
_THOUGHT = re.compile("<think>.*?</think>", re.DOTALL)

Message = Mapping[str, Any]


def select_row_texts(row: Conversation | Preference, choice: TextChoice) -> list[str]:
    """Return the texts of a conversation, or of each side of a preference together with its prompt."""
    sides = row.sides if isinstance(row, Preference) else [row]
    texts = [text for side in sides for text in select_texts(side.messages, choice, [side.tools, side.kwargs])]
    return list(dict.fromkeys(texts))


def select_texts(messages: Sequence[Message], choice: TextChoice, other_parts: Any = None) -> list[str]:
    """Return the texts of the selected messages of a conversation.

    Args:
        messages: The messages.
        choice: The choice of texts.
        other_parts: Other parts of the row, such as its tools. Their strings are added for the choice `all`.
    """
    selected = _select_messages(messages, choice)
    visible = [text for message in selected if message.get("role") != "tool" for text in find_visible_texts(message)]
    return _join_each(_find_complete_texts(selected, choice, other_parts), visible)


def select_complete_text(messages: Sequence[Message], choice: TextChoice, other_parts: Any = None) -> str:
    """Return the first text of `select_texts`, the one with the reasoning; empty if there is none."""
    # Do not search for the text without reasoning, because it is blank if the complete text is.
    texts = _join_each(_find_complete_texts(_select_messages(messages, choice), choice, other_parts))
    return texts[0] if texts else ""


def _select_messages(messages: Sequence[Message], choice: TextChoice) -> list[Message]:
    role = _ROLES.get(choice)
    selected = [message for message in messages if role in (None, message.get("role"))]
    return selected[:1] if choice == "first_question" else selected


def _find_complete_texts(messages: Sequence[Message], choice: TextChoice, other_parts: Any) -> list[str]:
    texts = [text for message in messages for text in _find_message_texts(message)]
    return [*texts, *find_strings(other_parts)] if choice == "all" else texts


def find_visible_texts(message: Message) -> Iterator[str]:
    """Yield the texts in the content of a message, without reasoning."""
    for text in find_strings(message.get("content")):
        yield remove_thoughts(text).rpartition("</think>")[2]


def remove_thoughts(text: str) -> str:
    """Return a text without the reasoning that is between `<think>` and `</think>`."""
    return _THOUGHT.sub(" ", text) if "</think>" in text else text


def _find_message_texts(message: Message) -> Iterator[str]:
    """Yield the texts of a message in the order in which templates write them."""
    for key in (*REASONING_KEYS, "content"):
        yield from find_strings(message.get(key))
    yield from find_strings(message.get("tool_calls"))


def _join_each(*groups: Sequence[str]) -> list[str]:
    """Return each group of texts as one text, without empty and repeated ones."""
    return list(dict.fromkeys(text for group in groups if (text := "\n".join(group)).strip()))


def select_record_texts(record: dict[str, Any], paths: PartPaths, choice: TextChoice) -> list[str]:
    """Return the texts of an RL record: of its prompt, its answers and, for the choice `all`, of all its fields.

    A record without a prompt is one text.
    """
    prompts, answers = paths.find_values(record)
    every_text = _join_each(list(find_strings(record)))
    if not prompts:
        return every_text
    texts = select_texts(_list_record_messages(record, prompts, answers), choice)
    return list(dict.fromkeys([*every_text, *texts])) if choice == "all" else texts


def read_record(record: dict[str, Any], paths: PartPaths) -> Conversation:
    """Return the prompt, the answers and the tools of an RL record as a conversation.

    Only the first location with a prompt and the first one with an expected answer are read. A record without a prompt
    has no messages, and its texts are all its fields.
    """
    prompts, answers = paths.find_values(record)
    if not prompts:
        return Conversation([], kwargs=record)
    return Conversation(_list_record_messages(record, prompts[:1], answers[:1]), paths.find_tools(record))


def _list_record_messages(
    record: dict[str, Any], prompts: Sequence[Any], answers: Sequence[Any]
) -> list[dict[str, Any]]:
    """Return the messages of an RL record: of its prompts, of `chosen` and `rejected`, and of its expected answers."""
    return [
        *(message for prompt in prompts for message in _read_messages(prompt, "user")),
        *(message for side in _SIDES if side in record for message in _read_messages(record[side], "assistant")),
        *(message for answer in answers for message in _read_messages(answer, "assistant")),
    ]


def _read_messages(value: Any, role: str) -> Sequence[dict[str, Any]]:
    """Return the messages of a prompt or an answer. A value that is no list of messages is one message with a role."""
    # Import the module here, because only RL records need it.
    from dataprep_assets.pipelines.blend.rl.chat_messages import convert_to_chat_messages

    if isinstance(value, list):
        try:
            return convert_to_chat_messages(value)
        except (BadRecordError, TypeError):  # chat messages cannot express the value, but its texts are searched
            pass
    return [{"role": role, "content": value}]


_BEFORE: Sequence[Message] = (
    {"role": "user", "content": "What do you remember about the old harbor?"},
    {"role": "assistant", "content": "Gladly.", "tool_calls": [{"function": {"name": "recall", "arguments": {}}}]},
)
_AFTER: Sequence[Message] = ({"role": "assistant", "content": "That is all that I remember."},)
_MESSAGES: Mapping[str, Callable[[str], Message]] = {
    "user turn": lambda text: {"role": "user", "content": text},
    "tool result": lambda text: {"role": "tool", "content": text},
    "reasoning": lambda text: {"role": "assistant", "content": "Done.", REASONING_KEYS[0]: text},
    "answer": lambda text: {"role": "assistant", "content": text},
}
"""Part of a conversation → a message that contains a text there."""
_OPENINGS: Mapping[TextChoice, Sequence[Message]] = {"first_question": ()}


def _plant_text(choice: TextChoice, host: str, text: str) -> list[str]:
    """Return the texts of a conversation that contains a text in one of its messages."""
    return select_texts([*_OPENINGS.get(choice, _BEFORE), _MESSAGES[host](text), *_AFTER], choice)


_HOST_NAMES: Mapping[TextChoice, Sequence[str]] = {
    "all": tuple(_MESSAGES),
    "questions": ("user turn",),
    "first_question": ("user turn",),
    "answers": ("reasoning", "answer"),
}
HOSTS: "Mapping[TextChoice, Hosts]" = {
    choice: tuple((name, partial(_plant_text, choice, name)) for name in names) for choice, names in _HOST_NAMES.items()
}
"""Choice of texts → the messages in which the check plants items."""
