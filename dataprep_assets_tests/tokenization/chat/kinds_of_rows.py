"""A row of each kind of chat data: turns, rules, reasoning under each of its names, tools, calls and results."""

from typing import Any

Message = dict[str, Any]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_tide",
            "description": "SENTINELDESC",
            "parameters": {
                "type": "object",
                "properties": {"port": {"type": "string", "description": "a port"}},
                "required": ["port"],
            },
        },
    }
]


def _call(value: str, id: str = "abcdefgh1") -> Message:
    return {"id": id, "type": "function", "function": {"name": "get_tide", "arguments": {"portkey": value}}}


def _result(text: str, id: str = "abcdefgh1") -> Message:
    return {"role": "tool", "content": text, "tool_call_id": id, "name": "get_tide"}


def _said(text: str | None, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


ASKED, ASKED_AGAIN = {"role": "user", "content": "QQone"}, {"role": "user", "content": "QQtwo"}
ANSWERED, RULE = _said("AAone"), {"role": "system", "content": "SSrule"}
CALLED, RESULT = _said("", tool_calls=[_call("portval")]), _result("TTres")
_TWO = [_call("portval"), _call("secval", "abcdefgh2")]

ROWS: dict[str, Message] = {
    "plain": {"messages": [ASKED, ANSWERED]},
    "two turns": {"messages": [ASKED, ANSWERED, ASKED_AGAIN, _said("AAtwo")]},
    "system": {"messages": [RULE, ASKED, ANSWERED]},
    "late system": {"messages": [ASKED, ANSWERED, RULE, ASKED_AGAIN, _said("AAtwo")]},
    "developer": {"messages": [{"role": "developer", "content": "DDrule"}, ASKED, ANSWERED]},
    "reasoning_content": {"messages": [ASKED, _said("AAone", reasoning_content="RRwhy")]},
    "reasoning": {"messages": [ASKED, _said("AAone", reasoning="RRwhy")]},
    "thinking": {"messages": [ASKED, _said("AAone", thinking="RRwhy")]},
    "inline thought": {"messages": [ASKED, _said("<think>\nRRwhy\n</think>\n\nAAone")]},
    "half a thought": {"messages": [ASKED, _said("RRwhy\n</think>\n\nAAone")]},
    "tools": {"messages": [ASKED, ANSWERED], "tools": TOOLS},
    "call": {"messages": [ASKED, CALLED, RESULT, ANSWERED], "tools": TOOLS},
    "call with null": {"messages": [ASKED, {**CALLED, "content": None}, RESULT, ANSWERED], "tools": TOOLS},
    "call last": {"messages": [ASKED, CALLED], "tools": TOOLS},
    "call with text": {"messages": [ASKED, {**CALLED, "content": "CCtext"}, RESULT, ANSWERED], "tools": TOOLS},
    "call with reasoning": {
        "messages": [
            ASKED,
            {**CALLED, "reasoning_content": "RRwhy"},
            RESULT,
            _said("AAone", reasoning_content="RRtwo"),
        ],
        "tools": TOOLS,
    },
    "two calls": {
        "messages": [ASKED, _said("", tool_calls=_TWO), RESULT, _result("TTsec", "abcdefgh2"), ANSWERED],
        "tools": TOOLS,
    },
    "two questions": {"messages": [ASKED, ASKED_AGAIN, ANSWERED]},
    "two answers": {"messages": [ASKED, ANSWERED, _said("AAtwo")]},
}
SENTINELS = (
    *("QQone", "QQtwo", "AAone", "AAtwo", "SSrule", "DDrule", "RRwhy", "RRtwo", "CCtext", "TTres", "TTsec"),
    *("get_tide", "SENTINELDESC", "portkey", "portval", "secval"),
)
"""The texts, some of which each row contains."""
