"""What counts as a conversation, and which of its tokens are trained: the points on which tools for chat data differ.

`OURS` is the default of this project; `NEMOTRON` is what Nemotron's `data_prep` does
(`core/chat_template.py`, `core/chat_sft_shard_core.py`). docs/formats/packed-sft.md#choices gives the reasons. A
declaration takes one of the two; `answers`, `roles`, `content` and `allow_loss` have keys of their own.
"""

from dataclasses import dataclass
from typing import Any, Literal

Like = Literal["ours", "nemotron"]
Answers = Literal["every", "last_turn"]


@dataclass(frozen=True, kw_only=True)
class ChatChoices:
    """The choice made on each of these points.

    Attributes:
        turn_end_newline: train what the template writes after an answer's stop token, such as a newline.
        unprompted_header: train the header of an answer that no prompt precedes: the first message, or one that follows
            another answer or a system text.
        answers: which answers of a sequence are trained: `every` one, or those of the `last_turn`.
        roles: roles of messages; `any` are all that the template accepts.
        content: only `text`; or also text parts, which `join_parts` joins with newlines; or `as_given` to the template.
        empty_answers: what to do with a row that has an empty answer.
        tools: `parse` a list or its JSON text, an empty one being none; or `as_given` to the template, refusing a text.
        undeclared_calls: what to do with a row that calls tools and declares none.
        call_text: when a text may contain `<tool_call>`: if tools are `declared`, or only under the `heading`.
        call_form: `any` form of a call, or `openai`: `function` with `name` and `arguments`.
        special_literals: whether special tokens in a message are `text` or `special`.
        inline_reasoning: what to do with an answer that has its `<think>` in its text.
        blank_reasoning: whether a reasoning of white space counts as `none`, or as `reasoning`, which cuts a row into
            turns.
        untrained: whether a sequence in which nothing is trained is `left_out` or `kept`.
        system_in_question: without a system text, how often to write the beginning of a first question that contains
            the header of one: `once` or `twice`.
        question_end: in a row with reasoning, where the tokens of a question end if no answer follows: with its `text`,
            or further by the length of a `prompt`.
        allow_loss: features that a template may drop from a row (`lost_text.py`).
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
    untrained: Literal["left_out", "kept"] = "left_out"
    system_in_question: Literal["once", "twice"] = "once"
    question_end: Literal["text", "prompt"] = "text"
    allow_loss: tuple[str, ...] = ()

    @property
    def changes(self) -> dict[str, Any]:
        """The choices that differ from `OURS`, by name."""
        return {name: value for name, value in vars(self).items() if value != getattr(OURS, name)}


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
