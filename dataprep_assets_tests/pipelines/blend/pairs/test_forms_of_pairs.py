"""Rows of every form become a prompt with one or two answers, or are refused with a reason."""

from typing import Any

import pytest

from dataprep_assets.tokenization.chat.messages import ConversationFields, Preference, Refusal, read_preference
from dataprep_assets_tests.pipelines.blend.pairs.preference_rows import CALL, TOOL, make_assistant, make_user

QUESTION, YES, NO = make_user("Tide?"), make_assistant("High."), make_assistant("Low.")


def read_row(row: dict[str, Any], **fields: Any) -> tuple[list[Any], list[Any] | None, list[Any] | None] | str:
    """Return the prompt and both answers of a row, or the reason for refusing it."""
    found = read_preference(row, ConversationFields(**fields))
    if isinstance(found, Refusal):
        return found.reason
    assert isinstance(found, Preference)
    sides = [
        None if side is None else side.messages[found.prompt :] for side in (found.chosen_side, found.rejected_side)
    ]
    prompts = [side.messages[: found.prompt] for side in found.sides]
    assert prompts == [prompts[0]] * len(prompts)
    return prompts[0], sides[0], sides[1]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Tide?", "chosen": "High.", "rejected": "Low."},
        {"prompt": [QUESTION], "chosen": [YES], "rejected": [NO]},
        {"prompt": [QUESTION], "chosen": YES, "rejected": NO},
        {"prompt": [QUESTION], "chosen": [QUESTION, YES], "rejected": [QUESTION, NO]},
        {"prompt": "Tide?", "chosen": [QUESTION, YES], "rejected": [QUESTION, NO]},
        {"chosen": [QUESTION, YES], "rejected": [QUESTION, NO]},
        {"messages": [QUESTION], "chosen": YES, "rejected": NO},
        {
            "conversations": [{"from": "human", "value": "Tide?"}],
            "chosen": {"from": "gpt", "value": "High."},
            "rejected": {"from": "gpt", "value": "Low."},
        },
        {"instruction": "Tide?", "input": "", "chosen": "High.", "rejected": "Low."},
        {"instruction": "Tide?", "output": ["High.", "Low."]},
    ],
)
def test_every_form_of_a_pair_gives_the_same_pair(row: dict[str, Any]) -> None:
    assert read_row(row) == read_row(row, format="pairs") == ([QUESTION], [YES], [NO])


def test_a_system_text_and_tools_belong_to_both_sides() -> None:
    row = {"system": "Keeper.", "prompt": "Tide?", "chosen": "High.", "rejected": "Low."}
    system = {"role": "system", "content": "Keeper."}
    assert read_row(row) == ([system, QUESTION], [YES], [NO])
    calls = [make_assistant("", tool_calls=[CALL]), {"role": "tool", "content": "3"}, YES]
    found = read_preference({"prompt": "Tide?", "chosen": calls, "rejected": NO, "tools": [TOOL]}, ConversationFields())
    assert isinstance(found, Preference)
    assert [side.tools for side in found.sides] == [[TOOL], [TOOL]]


def test_equal_first_answers_belong_to_the_prompt() -> None:
    first = [QUESTION, make_assistant("Wait."), make_user("Now?")]
    assert read_row({"chosen": [*first, YES], "rejected": [*first, NO]}) == (first, [YES], [NO])


@pytest.mark.parametrize(
    ("row", "label"),
    [
        ({"prompt": "Tide?", "completion": "High.", "label": True}, True),
        ({"prompt": [QUESTION], "completion": [YES], "label": False}, False),
        ({"messages": [QUESTION, YES], "label": True}, True),
        ({"instruction": "Tide?", "output": "High.", "label": False}, False),
    ],
)
def test_a_labeled_answer_is_the_chosen_or_the_rejected_one(row: dict[str, Any], label: bool) -> None:
    assert (
        read_row(row) == read_row(row, format="kto") == ([QUESTION], [YES] if label else None, None if label else [YES])
    )


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"text": "Tide"}, "no_messages"),
        ({"prompt": "Tide?", "chosen": "High."}, "no_messages"),
        ({"chosen": "High.", "rejected": "Low."}, "no_messages"),
        ({"messages": [QUESTION, YES]}, "no_messages"),
        ({"prompt": "Tide?", "chosen": "High.", "rejected": "High."}, "no_preference"),
        ({"prompt": "Tide?", "chosen": "High.", "rejected": ""}, "empty_assistant"),
        ({"prompt": "Tide?", "chosen": [YES], "rejected": []}, "no_messages"),
        ({"chosen": [QUESTION, YES, QUESTION, NO], "rejected": [QUESTION, YES]}, "empty_side"),
        ({"chosen": [QUESTION, YES], "rejected": [make_user("Wind?"), NO]}, "no_messages"),
        ({"prompt": [QUESTION], "chosen": [QUESTION, YES], "rejected": [NO]}, "unclear_prompt"),
        ({"prompt": [QUESTION], "chosen": [YES, QUESTION], "rejected": [NO]}, "no_answer"),
        ({"prompt": [QUESTION], "chosen": [make_user("Well?"), YES], "rejected": [NO]}, "no_answer"),
        ({"prompt": "Tide?", "chosen": [{**YES, "weight": 0}], "rejected": [NO]}, "untrained_side"),
        ({"prompt": "Tide?", "completion": "High.", "label": 1}, "unclear_label"),
        ({"prompt": "Tide?", "completion": "High."}, "no_messages"),
        ({"prompt": "Tide?", "chosen": "High.", "rejected": "Low.", "images": ["a.png"]}, "unsupported_key: images"),
        (
            {"prompt": "Tide?", "chosen": [make_assistant("", tool_calls=[CALL])], "rejected": NO},
            "tool_calls_without_tools",
        ),
    ],
)
def test_other_rows_are_refused_with_a_reason(row: dict[str, Any], reason: str) -> None:
    assert read_row(row) == reason


def test_a_declared_form_refuses_the_other() -> None:
    assert read_row({"prompt": "Tide?", "completion": "High.", "label": True}, format="pairs") == "no_messages"
    assert read_row({"prompt": "Tide?", "chosen": "High.", "rejected": "Low."}, format="kto") == "no_messages"
