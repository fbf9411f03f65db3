"""Choices on which tools for chat data differ: which rows are conversations, and which of their tokens are trained.

`OURS` is the default of this project. `NEMOTRON` does the same as Nemotron's `data_prep` (`core/chat_template.py`,
`core/chat_sft_shard_core.py`). docs/components/training-blend.md#sftlike lists the differences, with the meanings from
the docstring of `ChatChoices`. A declaration selects one of the two; `answers`, `roles`, `content` and `allow_loss`
have their own keys.
"""

from dataclasses import dataclass
from typing import Any, Literal

Like = Literal["ours", "nemotron"]
Answers = Literal["every", "last_turn"]


@dataclass(frozen=True, kw_only=True)
class ChatChoices:
    """A set of choices.

    Attributes:
        row_form: Accepted rows. `any`: rows in any known form. Another field that changes a row's meaning is used, or
            the row is rejected. `messages`: rows must have messages, unless `format` names a different form. Other
            fields of the row are ignored, except its tools and `used_in_field`. Rows of Parquet and Arrow files also
            keep null fields outside of messages, and their JSON columns stay text.
        turn_end_newline: Whether the template's text after an answer's stop token, such as a newline, is trained.
        unprompted_header: Whether an answer's header is trained if no question or tool result directly precedes the
            answer. In a row with reasoning, an answer without reasoning must also be the first message, or follow
            another answer.
        answers: Trained answers of a sequence: `every` answer, or only answers of the `last_turn`.
        roles: Allowed roles of messages; `any` allows all roles that the template accepts.
        content: Accepted content. `text`: only a string. `join_parts`: also text parts, which are joined with newlines.
            `as_given`: any content. It is passed unchanged to the template, and reasoning keeps the name of its field.
        empty_answers: Treatment of an answer without text, calls and reasoning. `refuse`: its row is rejected. `train`:
            the answer is trained.
        tools: Accepted tools. `parse`: a list or its JSON text; an empty list counts as no tools. `as_given`: only a
            list, which is passed to the template even if it is empty. Rows whose tools are JSON text are rejected.
        undeclared_calls: Treatment of rows with calls, but without declared tools. `refuse`: they are rejected, unless
            a message contains the text `# Tools`. `keep`: they are accepted.
        call_text: Condition for `<tool_call>` in a text. `declared`: the row declares tools, or a message contains the
            text `# Tools`. `heading`: a message contains the text `# Tools`, even if tools are declared.
        call_form: Accepted calls. `any`: calls in answers, with a name. Arguments may be absent, an object, or its JSON
            text. `openai`: calls with `function` and arguments. Arguments that are text must be JSON, and calls outside
            of answers are not checked. Rows with other calls are rejected.
        special_literals: Encoding of special tokens in messages: as `text`, or as `special` tokens. With `text`, tags
            such as `<think>` and `<tool_call>` are special tokens in assistant, system and developer messages.
        inline_reasoning: Treatment of rows with `<think>` in an answer's text. `train`: the answer is trained.
            `refuse`: the row is rejected.
        blank_reasoning: Meaning of reasoning of only white space. `none`: it does not count as reasoning. `reasoning`:
            it counts as reasoning, which splits a row into turns.
        untrained: Treatment of sequences without trained tokens: `left_out` or `kept`.
        system_in_question: How often the beginning of a first question that contains `<|im_start|>system` is written,
            if the row has no system text and is not split into turns.
        question_end: Encoding of a question's text if no answer directly follows the question, in rows that are split
            into turns, such as rows with reasoning. `text`: in one part. `prompt`: in two parts, split at the length of
            the question's prompt.
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
