"""What is a conversation, and which of its tokens are trained: the points on which tools for chat data differ.

`OURS` is what this project does unless told otherwise; `NEMOTRON` is what Nemotron's `data_prep` does
(`core/chat_template.py`, `core/chat_sft_shard_core.py`). docs/formats/packed-sft.md#choices gives the reasons.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

__all__ = ["NEMOTRON", "OURS", "PRESETS", "Answers", "ChatChoices", "Like"]

Like = Literal["ours", "nemotron"]
Answers = Literal["every", "last_turn"]


@dataclass(frozen=True, kw_only=True)
class ChatChoices:
    """One side of each difference.

    Attributes:
        turn_end_newline: train what the template writes behind an answer's stop token, such as a newline.
        unprompted_header: train the header of an answer that no prompt precedes: the first message, or one that follows
            another answer or a system text.
        answers: which answers of a sequence are trained: `every` one, or those of the `last_turn`.
        roles: roles of messages; `any` is whatever the template takes.
        content: a `text` alone; text parts too, which `join_parts` joins by newlines; or `as_given` to the template.
        empty_answers: what becomes of a row with an answer that says nothing.
        tools: `parse` a list or its JSON text, an empty one being none; `as_given` to the template, a text refused.
        undeclared_calls: what becomes of a row that calls tools and declares none.
        call_text: when `<tool_call>` may stand in a text: with tools that are `declared`, or under the `heading` alone.
        call_form: `any` spelling of a call, or `openai`: `function` with `name` and `arguments`.
        special_literals: whether special tokens that stand in a message are `text` or `special`.
        inline_reasoning: what becomes of an answer that holds its `<think>` in its text.
        blank_reasoning: whether a reasoning of white space is `none`, or `reasoning` that cuts a row into turns.
        other_reasoning: whether `reasoning` and `thinking` of a message reach the template `as_given`, or also `copied`
            to its `reasoning_content`, as transformers does from version 5 on.
        untrained: whether a sequence in which nothing is trained is `left_out` or `kept`.
        system_in_question: how often the beginning of a first question is written that holds the header of a system
            text, where there is none: `once` or `twice`.
        question_end: where the tokens of a question end that something else than an answer follows, in a row with
            reasoning: with its `text`, or so many characters further as a `prompt` has.
    """

    turn_end_newline: bool = False
    unprompted_header: bool = False
    answers: Answers = "every"
    roles: tuple[str, ...] | Literal["any"] = ("system", "user", "assistant", "tool")
    content: Literal["text", "join_parts", "as_given"] = "text"
    empty_answers: Literal["refuse", "train"] = "refuse"
    tools: Literal["parse", "as_given"] = "parse"
    undeclared_calls: Literal["refuse", "keep"] = "refuse"
    call_text: Literal["declared", "heading"] = "declared"
    call_form: Literal["any", "openai"] = "any"
    special_literals: Literal["text", "special"] = "text"
    inline_reasoning: Literal["train", "refuse"] = "train"
    blank_reasoning: Literal["none", "reasoning"] = "none"
    other_reasoning: Literal["as_given", "copied"] = "as_given"
    untrained: Literal["left_out", "kept"] = "left_out"
    system_in_question: Literal["once", "twice"] = "once"
    question_end: Literal["text", "prompt"] = "text"

    def with_changes(self, changes: Mapping[str, Any]) -> "ChatChoices":
        """The same but for these, by name."""
        return replace(self, **changes)

    def key_parts(self) -> dict[str, Any]:
        """What differs from `OURS`, by name: the keys of rows made before there was a choice stay."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value != getattr(OURS, name)}


OURS = ChatChoices()
NEMOTRON = ChatChoices(
    turn_end_newline=True,
    unprompted_header=True,
    roles="any",
    content="as_given",
    empty_answers="train",
    tools="as_given",
    undeclared_calls="keep",
    call_text="heading",
    call_form="openai",
    special_literals="special",
    inline_reasoning="refuse",
    blank_reasoning="reasoning",
    untrained="kept",
    system_in_question="twice",
    question_end="prompt",
)
PRESETS: dict[Like, ChatChoices] = {"ours": OURS, "nemotron": NEMOTRON}
