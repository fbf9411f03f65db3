"""Rows that are conversations, and the single reason for each row that is not."""

import copy
from typing import Any

import pytest

from dataprep_assets.tokenization.chat.choices import NEMOTRON, OURS
from dataprep_assets.tokenization.chat.messages import (
    Conversation,
    ConversationFields,
    Refusal,
    is_trained,
    read_conversation,
)
from dataprep_assets_tests.tokenization.chat.refused_rows import ANSWER, CALL, REFUSED, TOOLS, USER


def read(*messages: Any, **others: Any) -> Conversation | Refusal:
    return read_conversation({"messages": list(messages), **others}, ConversationFields())


@pytest.mark.parametrize("name", REFUSED)
def test_an_invalid_conversation_is_refused_by_reason_and_message(name: str) -> None:
    row, refusal = REFUSED[name]
    assert read_conversation(row, ConversationFields()) == refusal


def test_arguments_given_as_json_become_objects_without_changing_the_row() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Bonn", "n": 2}'}}
    row = {"messages": [USER, {**CALL, "tool_calls": [call]}], "tools": TOOLS}
    before = copy.deepcopy(row)
    found = read_conversation(row, ConversationFields())
    assert isinstance(found, Conversation)
    assert found.messages[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Bonn", "n": 2}
    assert found.messages[1]["content"] == ""
    assert row == before


def test_integers_in_json_text_are_exact_and_invalid_json_is_refused() -> None:
    called = {"function": {"name": "send", "arguments": '{"wei": 1000000000000000000001}'}}
    tools = '[{"type": "function", "function": {"name": "send", "maximum": -10000000000000000000001}}]'
    found = read(USER, {"role": "assistant", "tool_calls": [called]}, tools=tools)
    assert isinstance(found, Conversation)
    assert found.messages[1]["tool_calls"][0]["function"]["arguments"] == {"wei": 10**21 + 1}
    assert found.tools is not None
    assert found.tools[0]["function"]["maximum"] == -(10**22) - 1
    for bad in ('{"wei": NaN}', '{"wei": 1e400}', r'{"wei": "\ud800"}'):
        called["function"]["arguments"] = bad
        assert read(USER, {"role": "assistant", "tool_calls": [called]}, tools=TOOLS) == Refusal("bad_tool_call", 1)


def test_nulls_that_parquet_adds_do_not_count_as_fields() -> None:
    found = read({**USER, "tool_calls": None, "reasoning_content": None}, {**ANSWER, "tool_calls": []}, tools=None)
    assert found == Conversation([USER, ANSWER])
    # transformers 4.57, which Nemotron pins, passes the nulls to a template; `like: nemotron` does not.
    row = {"messages": [{**USER, "reasoning_content": None}, {**ANSWER, "tool_calls": None}], "tools": None}
    assert read_conversation(row, ConversationFields(), NEMOTRON) == Conversation([USER, ANSWER])


def test_marks_that_only_disable_training_are_accepted_under_both_presets() -> None:
    said = [{**USER, "train": False, "weight": 1}, {**ANSWER, "weight": 1.0}, {**ANSWER, "train": True, "loss": None}]
    for choices in (OURS, NEMOTRON):
        found = read_conversation({"messages": said}, ConversationFields(), choices)
        assert isinstance(found, Conversation)
        assert [is_trained(message) for message in found.messages[1:]] == [True, True]
    for spelled in ({"weight": 2}, {"training": True}):
        row = {"messages": [USER, {**ANSWER, **spelled}]}
        assert read_conversation(row, ConversationFields(), NEMOTRON) == Refusal("unclear_weight", 1)


@pytest.mark.parametrize(("tools", "ours", "theirs"), [("", None, []), ({}, None, []), (" ", None, None)])
def test_invalid_tools_are_dropped_or_passed_as_in_transformers(tools: Any, ours: Any, theirs: Any) -> None:
    row = {"messages": [USER, ANSWER], "tools": tools}
    assert read_conversation(row, ConversationFields()) == Conversation([USER, ANSWER], ours)
    found = read_conversation(row, ConversationFields(), NEMOTRON)
    assert found == (Refusal("bad_tools") if theirs is None else Conversation([USER, ANSWER], theirs))


def test_tools_in_a_json_column_are_tools() -> None:
    found = read(USER, CALL, tools='[{"function": {"name": "f"}}]')
    assert isinstance(found, Conversation)
    assert found.tools == [{"function": {"name": "f"}}]


def test_a_system_text_may_declare_the_tools() -> None:
    system = {"role": "system", "content": "# Tools\nf"}
    assert isinstance(read(system, USER, CALL), Conversation)


@pytest.mark.parametrize(
    ("value", "kept"),
    [("nano", True), ("a, nano ,b", True), (["nano"], True), ("nano2", False), (None, False), ([], False)],
)
def test_rows_are_selected_by_used_in(value: Any, kept: bool) -> None:
    fields = ConversationFields(used_in_filter=("nano", "super"))
    found = read_conversation({"messages": [USER, ANSWER], "used_in": value}, fields)
    assert found == (Conversation([USER, ANSWER]) if kept else Refusal("not_used_in"))


def test_fields_have_the_declared_names() -> None:
    fields = ConversationFields(messages="conversation", tools="functions")
    found = read_conversation({"conversation": [USER, ANSWER], "functions": TOOLS, "messages": 3}, fields)
    assert found == Conversation([USER, ANSWER], TOOLS)
