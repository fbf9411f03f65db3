"""Choices on which tools for chat data differ: which rows are conversations, and which of their tokens are trained.

`OURS` is the default of this project. `NEMOTRON` does the same as Nemotron's `data_prep` (`core/chat_template.py`,
`core/chat_sft_shard_core.py`). docs/formats/packed-sft.md#choices lists the differences. A declaration selects one of
the two; `answers`, `roles`, `content` and `allow_loss` have their own keys.
"""

from dataclasses import dataclass
from typing import Any, Literal

Like = Literal["ours", "nemotron"]
Answers = Literal["every", "last_turn"]


@dataclass(frozen=True, kw_only=True)
class ChatChoices:
    """A set of choices.

    Attributes:
        row_form: Accepted rows. `any`: rows in any known form, whose other keys are used or refused if they change the
            row's meaning. `messages`: only rows with `messages`, whose other keys and nulls are left unchanged.
        turn_end_newline: Whether the template's text after an answer's stop token, such as a newline, is trained.
        unprompted_header: Whether the header of an answer without a prompt is trained. Such an answer is the first
            message, or follows another answer or a system text.
        answers: Trained answers of a sequence: `every` answer, or only answers of the `last_turn`.
        roles: Allowed roles of messages; `any` allows all roles that the template accepts.
        content: Accepted content. `text`: only text. `join_parts`: also text parts, which are joined with newlines.
            `as_given`: any content, which is passed unchanged to the template.
        empty_answers: Whether a row with an empty answer is refused or trained.
        tools: `parse` accepts a list or its JSON text, and treats an empty list as no tools. `as_given` passes a list
            to the template, and refuses text.
        undeclared_calls: Whether a row that calls undeclared tools is refused or kept.
        call_text: When a text may contain `<tool_call>`: if tools are `declared`, or only after the `heading`.
        call_form: Accepted form of a call: `any`, or `openai`, which is `function` with `name` and `arguments`.
        special_literals: Whether special tokens in a message are `text` or `special`.
        inline_reasoning: Whether an answer with `<think>` in its text is trained or refused.
        blank_reasoning: Whether blank reasoning counts as `none`, or as `reasoning`, which splits a row into turns.
        untrained: Whether a sequence without trained tokens is `left_out` or `kept`.
        system_in_question: Whether the beginning of a first question is written `once` or `twice` if there is no system
            text and the question contains the header of one.
        question_end: Where the tokens of a question end in a row with reasoning if no answer follows: at the end of its
            `text`, or after as many characters as its `prompt` has.
        allow_loss: Features that a template may drop from a row (`lost_text.py`).
    """

    row_form: Literal["any", "messages"] = "any"
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
    def reads_json(self) -> bool:
        """Whether Parquet rows are read as JSON, so that they equal rows in JSON Lines."""
        return self.row_form == "any"

    @property
    def changes(self) -> dict[str, Any]:
        """The choices that differ from `OURS`, by name."""
        return {name: value for name, value in vars(self).items() if value != getattr(OURS, name)}


OURS = ChatChoices()
NEMOTRON = ChatChoices(
    row_form="messages",
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
