"""Rows in every form of public datasets: the conversation in each, or the reason for refusing it."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dataprep_assets.tokenization.chat import row_forms
from dataprep_assets.tokenization.chat.choices import NEMOTRON, OURS
from dataprep_assets.tokenization.chat.messages import Conversation, ConversationFields, Refusal, read_conversation
from dataprep_assets.tokenization.chat.row_forms import (
    OTHER_KEYS,
    Format,
    count_keys,
    find_unread_keys,
    remove_template_keys,
)
from dataprep_assets_tests.tokenization.chat.refused_rows import REFUSED

SCHEMA = json.loads(Path(row_forms.__file__).with_name("conversation.schema.json").read_text(encoding="utf-8"))
DOCS = Path(__file__).parents[3] / "docs" / "formats" / "conversations.md"


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def said(speaker: str, text: Any) -> dict[str, Any]:
    return {"from": speaker, "value": text}


def call(**arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "tide", "arguments": arguments}}


HI, YES = user("Hi"), answer("Yes.")
TIDE = {"name": "tide", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": TIDE}]
PAIR = {"chosen": "Nine.", "rejected": "Ten."}
CALLED = [said("human", "Hi"), said("function_call", '{"name": "tide", "arguments": {"port": null}}')]
RESULT = {"role": "tool", "content": "06:12"}

READ: dict[str, tuple[dict[str, Any], str, list[dict[str, Any]], Any]] = {
    "messages": ({"messages": [HI, YES]}, "messages", [HI, YES], None),
    "messages as JSON text": ({"messages": json.dumps([HI, YES])}, "messages", [HI, YES], None),
    "messages under ShareGPT's key": ({"conversations": [HI, YES]}, "messages", [HI, YES], None),
    "messages first": ({"messages": [HI, YES], "conversations": [HI], "prompt": "Hi"}, "messages", [HI, YES], None),
    "a chosen answer within messages": ({"messages": [HI, YES], **PAIR}, "messages", [HI, YES], None),
    "a function_call": (
        {
            "messages": [
                HI,
                {"role": "assistant", "content": None, "function_call": {"name": "tide", "arguments": '{"a": null}'}},
                {"role": "function", "name": "tide", "content": "06:12"},
                YES,
            ],
            "functions": [TIDE],
        },
        "messages",
        [HI, answer("", tool_calls=[call(a=None)]), {"role": "tool", "name": "tide", "content": "06:12"}, YES],
        TOOLS,
    ),
    "calls as JSON text": (
        {"messages": [HI, answer("", tool_calls=json.dumps([call(port="Odd")]))], "tools": json.dumps(TOOLS)},
        "messages",
        [HI, answer("", tool_calls=[call(port="Odd")])],
        TOOLS,
    ),
    "a system text beside the messages": (
        {"messages": [HI, YES], "system": "Be short."},
        "messages",
        [system("Be short."), HI, YES],
        None,
    ),
    "a system text that the messages have": (
        {"messages": [system("Be short. Be kind."), HI, YES], "system_prompt": "Be short.", "developer": "Be kind."},
        "messages",
        [system("Be short. Be kind."), HI, YES],
        None,
    ),
    "a system text that a question has": (
        {"messages": [user("Be short."), YES], "system": "Be short."},
        "messages",
        [system("Be short."), user("Be short."), YES],
        None,
    ),
    "ShareGPT": ({"conversations": [said("human", "Hi"), said("gpt", "Yes.")]}, "sharegpt", [HI, YES], None),
    "ShareGPT in messages": ({"messages": [said("human", "Hi"), said("gpt", "Yes.")]}, "sharegpt", [HI, YES], None),
    "ShareGPT as JSON text": (
        {"conversations": json.dumps([said("user", "Hi"), said("assistant", "Yes.")])},
        "sharegpt",
        [HI, YES],
        None,
    ),
    "ShareGPT with tools": (
        {"conversations": [*CALLED, said("observation", "06:12"), said("gpt", "Yes.")], "tools": json.dumps([TIDE])},
        "sharegpt",
        [HI, answer("", tool_calls=[call(port=None)]), RESULT, YES],
        TOOLS,
    ),
    "ShareGPT with two calls": (
        {
            "conversations": [said("human", "Hi"), said("function-call", '[{"name": "tide"}, {"name": "tide"}]')],
            "system": "Be short.",
            "tools": [TIDE],
        },
        "sharegpt",
        [system("Be short."), HI, answer("", tool_calls=[call(), call()])],
        TOOLS,
    ),
    "ShareGPT with a weight": (
        {"conversations": [said("human", "Hi"), {**said("gpt", "No."), "weight": 0}, said("gpt", "Yes.")]},
        "sharegpt",
        [HI, answer("No.", weight=0), YES],
        None,
    ),
    "Alpaca": (
        {"instruction": "Count", "input": "1 2", "output": "3"},
        "alpaca",
        [user("Count\n1 2"), answer("3")],
        None,
    ),
    "Alpaca with history": (
        {"instruction": "Hi", "input": "", "output": "Yes.", "history": [["A?", "B."]], "system": "Be short."},
        "alpaca",
        [system("Be short."), user("A?"), answer("B."), HI, YES],
        None,
    ),
    "prompt and completion": ({"prompt": "Hi", "completion": "Yes."}, "prompt_completion", [HI, YES], None),
    "messages as prompt and completion": (
        {"prompt": [user("A?"), answer("B."), HI], "completion": [YES]},
        "prompt_completion",
        [user("A?"), answer("B.", train=False), HI, YES],
        None,
    ),
}


def read(row: dict[str, Any], format: Format = "auto", **fields: Any) -> Conversation | Refusal:
    return read_conversation(row, ConversationFields(format=format, **fields))


@pytest.mark.parametrize("name", READ)
def test_a_row_of_each_form_gives_a_conversation_in_the_normalized_form(name: str) -> None:
    row, form, messages, tools = READ[name]
    before = json.dumps(row)
    assert read(row) == Conversation(messages, tools, form=form)  # type: ignore[arg-type]
    assert read(row, form) == read(row)  # type: ignore[arg-type]
    assert json.dumps(row) == before
    normalized = {"messages": messages, "tools": tools, "chat_template_kwargs": {"effort": 3}}
    jsonschema.validate(normalized, SCHEMA)
    assert read(normalized) == Conversation(messages, tools, kwargs={"effort": 3}), (
        "the normalized form is read as it is"
    )
    variables = {"chat_template_kwargs": {"effort": 3}}
    assert read({**row, **variables}) == Conversation(messages, tools, form=form, kwargs={"effort": 3})  # type: ignore[arg-type]
    assert find_unread_keys(variables, [], form, ConversationFields()) == set()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused_messages_violate_the_schema(name: str) -> None:
    row, refusal = REFUSED[name]
    if refusal.reason in ("tool_calls_without_tools", "tool_call_text_without_tools", "unclear_weight", "bad_tools"):
        return  # the schema cannot express these conditions, or allows marks of other tools
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"messages": row.get("messages")}, SCHEMA)


def test_the_schema_has_the_roles_and_keys_that_are_read_and_equals_the_one_in_the_docs() -> None:
    message = SCHEMA["$defs"]["message"]["properties"]
    assert tuple(message["role"]["enum"]) == OURS.roles
    row = {"messages": [], "tools": []}
    assert find_unread_keys(row, [dict.fromkeys([*message, "refusal"])], "messages", ConversationFields()) == {
        "messages.refusal"
    }
    assert json.loads(DOCS.read_text(encoding="utf-8").partition("```json\n")[2].partition("```")[0]) == SCHEMA


REFUSED_FORMS: dict[str, tuple[dict[str, Any], Format, Refusal]] = {
    "no form": ({"question": "Hi", "answer": "Yes."}, "auto", Refusal("no_messages")),
    "an empty list": ({"messages": [], "conversations": None}, "auto", Refusal("no_messages")),
    "no JSON": ({"messages": "Hi"}, "auto", Refusal("no_messages")),
    "a pair": ({"prompt": "Which?", **PAIR}, "auto", Refusal("preference_pair")),
    "a pair of two answers": (
        {"instruction": "Which?", "output": ["Nine.", "Ten."]},
        "auto",
        Refusal("preference_pair"),
    ),
    "a pair after ShareGPT": (
        {"conversations": [said("human", "Hi")], "chosen": said("gpt", "A"), "rejected": said("gpt", "B")},
        "auto",
        Refusal("preference_pair"),
    ),
    "an equal pair": ({"prompt": "Hi", "chosen": "A", "rejected": "A"}, "pairs", Refusal("no_preference")),
    "a pair without prompt": (PAIR, "pairs", Refusal("no_messages")),
    "a label": ({"prompt": "Hi", "completion": "Yes.", "label": True}, "auto", Refusal("labelled_answer")),
    "a label of messages": ({"messages": [HI, YES], "label": False}, "auto", Refusal("labelled_answer")),
    "a bad answer": ({"messages": [HI, YES], "label": False}, "kto", Refusal("rejected_answer")),
    "no label": ({"messages": [HI, YES]}, "kto", Refusal("labelled_answer")),
    "another form than declared": ({"messages": [HI, YES]}, "alpaca", Refusal("no_messages")),
    "an unknown speaker": ({"conversations": [said("narrator", "Hi")]}, "auto", Refusal("unknown_role", 0)),
    "a call that is no JSON": (
        {"conversations": [said("human", "Hi"), said("function_call", "tide()")], "tools": TOOLS},
        "auto",
        Refusal("bad_tool_call", 1),
    ),
    "a call of both kinds": (
        {"messages": [HI, answer("", tool_calls=[call()], function_call={"name": "tide"})], "tools": TOOLS},
        "auto",
        Refusal("bad_tool_call", 1),
    ),
    "two sets of tools": (
        {"messages": [HI, YES], "tools": TOOLS, "functions": [TIDE]},
        "auto",
        Refusal("unsupported_key: functions"),
    ),
    "two system texts": (
        {"messages": [system("A"), HI, YES], "system": "B"},
        "auto",
        Refusal("unclear_system"),
    ),
    "a history of other things": (
        {"instruction": "Hi", "output": "Yes.", "history": ["A?"]},
        "auto",
        Refusal("unsupported_key: history"),
    ),
    "a developer text": ({"messages": [HI, YES], "developer": "D"}, "auto", Refusal("unknown_role", 0)),
    "a row that is not trained": ({"messages": [HI, YES], "train": False}, "auto", Refusal("not_trained")),
    "a row of weight 0": ({"messages": [HI, YES], "weight": 0.0}, "auto", Refusal("not_trained")),
    "half a row": ({"messages": [HI, YES], "weight": 0.5}, "auto", Refusal("unclear_weight")),
    "a mask of a row": ({"messages": [HI, YES], "loss_mask": [0, 1]}, "auto", Refusal("unclear_weight")),
    "a message to continue": (
        {"messages": [HI, {**YES, "prefix": True}]},
        "auto",
        Refusal("unsupported_key: prefix", 1),
    ),
    "an image of a message": (
        {"messages": [{**HI, "images": ["a"]}, YES]},
        "auto",
        Refusal("unsupported_key: images", 0),
    ),
}


@pytest.mark.parametrize("name", REFUSED_FORMS)
def test_a_row_with_another_meaning_is_refused_by_its_reason(name: str) -> None:
    row, format, refusal = REFUSED_FORMS[name]
    assert read(row, format) == refusal


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("images", ["a.png"]),
        ("audio", {"path": "a"}),
        ("function_call", {"name": "tide"}),
        ("tool_choice", "required"),
        ("prefix", "Yes"),
        ("continue_final_message", True),
    ],
)
def test_a_key_that_changes_the_meaning_of_a_row_is_refused_unless_it_has_no_value(key: str, value: Any) -> None:
    row = {"messages": [HI, YES]}
    assert read({**row, key: value}) == Refusal(f"unsupported_key: {key}")
    for nothing in (None, [], {}, "", False):
        assert read({**row, key: nothing}) == Conversation([HI, YES])
    assert read_conversation({**row, key: value}, ConversationFields(), NEMOTRON) == Conversation([HI, YES])


def test_only_chosen_answers_and_good_answers_are_trained_if_the_format_has_them() -> None:
    shared = [user("A?"), answer("B."), HI]
    sides = {"chosen": [*shared, answer("C.")], "rejected": [*shared, answer("D.")]}
    expected = [user("A?"), answer("B.", train=False), HI, answer("C.")]
    for row in (sides, {**sides, "prompt": shared}, {"prompt": shared, "chosen": "C.", "rejected": "D."}):
        assert read(row, "pairs") == Conversation(expected, None, form="pairs")
    assert read({"prompt": "Hi", "completion": "Yes.", "label": True}, "kto") == Conversation(
        [HI, YES], None, form="kto"
    )
    assert read({"messages": [HI, YES], "label": False}, "messages") == Conversation([HI, YES])


def test_only_a_declared_field_is_read() -> None:
    row = {"turns": [said("human", "Hi"), said("gpt", "Yes.")], "instruction": "A", "output": "B"}
    assert read(row, messages="turns") == Conversation([HI, YES], None, form="sharegpt")
    assert read({"instruction": "A", "output": "B"}, messages="turns") == Refusal("no_messages")


def test_upstream_reads_only_messages() -> None:
    for name in ("ShareGPT", "Alpaca", "prompt and completion", "messages as JSON text"):
        row, form, messages, _ = READ[name]
        assert read_conversation(row, ConversationFields(), NEMOTRON) == Refusal("no_messages")
        if form != "messages":
            declared = ConversationFields(format=form)  # type: ignore[arg-type]
            assert read_conversation(row, declared, NEMOTRON) == Conversation(messages, None, form=form)  # type: ignore[arg-type]


def test_unread_keys_are_named_and_counted_up_to_a_limit() -> None:
    fields = ConversationFields()
    row = {"messages": [HI, YES], "tools": None, "id": 3, "images": [], "used_in": "a", "meta": None}
    assert find_unread_keys(row, row["messages"], "messages", fields) == {"id", "used_in"}
    filtered = ConversationFields(used_in_filter=("a",), messages="chat.turns")
    assert find_unread_keys({"chat": {}, "used_in": "a", "messages": 1}, [], "messages", filtered) == {"messages"}
    assert find_unread_keys({"conversations": [], "prompt": ""}, [], "sharegpt", fields) == {"prompt"}
    assert find_unread_keys({"conversations": [], "messages": []}, [], "messages", fields) == {"conversations"}
    counts = Counter[str]()
    for number in range(300):
        count_keys(counts, {"id", f"key-{number}"})
    assert (counts["id"], counts[OTHER_KEYS], len(counts)) == (300, 201, 101)
    assert remove_template_keys(
        {"messages.thoughts": 1, "id": 2, "messages.refusal": 3}, "{{ m.thoughts }} {{ id }}"
    ) == {
        "id": 2,
        "messages.refusal": 3,
    }
