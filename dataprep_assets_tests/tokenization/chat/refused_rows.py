"""Rows with invalid messages, by mistake, that are refused in every form of row."""

from typing import Any

from dataprep_assets.tokenization.chat.messages import Refusal

USER = {"role": "user", "content": "What is it?"}
ANSWER = {"role": "assistant", "content": "That."}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
TOOLS = [{"type": "function", "function": {"name": "f"}}]

REFUSED: dict[str, tuple[dict[str, Any], Refusal]] = {
    "no field": ({}, Refusal("no_messages")),
    "null": ({"messages": None}, Refusal("no_messages")),
    "no list": ({"messages": "[]"}, Refusal("no_messages")),
    "empty list": ({"messages": []}, Refusal("no_messages")),
    "a text for a message": ({"messages": [USER, "hi"]}, Refusal("message_not_an_object", 1)),
    "unknown role": ({"messages": [USER, {"role": "bot", "content": "x"}]}, Refusal("unknown_role", 1)),
    "no role": ({"messages": [{"content": "x"}]}, Refusal("unknown_role", 0)),
    "a number": ({"messages": [{"role": "user", "content": 3}, ANSWER]}, Refusal("content_not_a_string", 0)),
    "text parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        Refusal("content_not_a_string", 0),
    ),
    "an image": (
        {"messages": [USER, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        Refusal("not_text", 1),
    ),
    "a schema for content": (
        {"messages": [{"role": "user", "content": {"type": ["object", "null"]}}, ANSWER]},
        Refusal("content_not_a_string", 0),
    ),
    "reasoning as a list": (
        {"messages": [USER, {**ANSWER, "reasoning_content": ["x"]}]},
        Refusal("reasoning_not_a_string", 1),
    ),
    "an answer of blanks": (
        {"messages": [USER, {"role": "assistant", "content": " \n"}]},
        Refusal("empty_assistant", 1),
    ),
    "no answer": ({"messages": [USER, {"role": "assistant"}]}, Refusal("empty_assistant", 1)),
    "a call without tools": ({"messages": [USER, CALL]}, Refusal("tool_calls_without_tools", 1)),
    "a call in text without tools": (
        {"messages": [USER, {"role": "assistant", "content": "<tool_call>f</tool_call>"}]},
        Refusal("tool_call_text_without_tools", 1),
    ),
    "tools that are no JSON": ({"messages": [USER, ANSWER], "tools": "{nope"}, Refusal("bad_tools")),
    "tools that are no objects": ({"messages": [USER, ANSWER], "tools": ["f"]}, Refusal("bad_tools")),
    "arguments that are no JSON": (
        {"messages": [USER, {**CALL, "tool_calls": [{"function": {"name": "f", "arguments": "{a"}}]}], "tools": TOOLS},
        Refusal("bad_tool_call", 1),
    ),
    "arguments that are a list": (
        {"messages": [USER, {**CALL, "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}], "tools": TOOLS},
        Refusal("bad_tool_call", 1),
    ),
    "a call without a name": (
        {"messages": [USER, {**CALL, "tool_calls": [{"function": {"arguments": {}}}]}], "tools": TOOLS},
        Refusal("bad_tool_call", 1),
    ),
    "half a weight": ({"messages": [USER, {**ANSWER, "weight": 0.5}]}, Refusal("unclear_weight", 1)),
    "a weight as text": ({"messages": [USER, {**ANSWER, "weight": "0"}]}, Refusal("unclear_weight", 1)),
    "a weight as truth": ({"messages": [USER, {**ANSWER, "weight": False}]}, Refusal("unclear_weight", 1)),
    "truth as a weight": ({"messages": [USER, {**ANSWER, "train": 0}]}, Refusal("unclear_weight", 1)),
    "truth as text": ({"messages": [USER, {**ANSWER, "train": "false"}]}, Refusal("unclear_weight", 1)),
    "no weight, but trained": (
        {"messages": [USER, {**ANSWER, "weight": 0, "train": True}]},
        Refusal("unclear_weight", 1),
    ),
    "a trained question": ({"messages": [{**USER, "train": True}, ANSWER]}, Refusal("unclear_weight", 0)),
    "a weight by another name": ({"messages": [USER, {**ANSWER, "loss": False}]}, Refusal("unclear_weight", 1)),
    "a user who calls": (
        {"messages": [{**USER, "tool_calls": CALL["tool_calls"]}], "tools": TOOLS},
        Refusal("bad_tool_call", 0),
    ),
}
