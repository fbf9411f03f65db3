"""Kinds of conversations with texts that name their part: questions `QQ…`, answers `AA…`, reasoning `RR…`.

A template that drops, changes or repeats one of these texts shows it in its rendering.

Entry points: `KINDS`, `own_texts_of`.
"""

from dataclasses import dataclass
from typing import Any

TOOL = {
    "type": "function",
    "function": {
        "name": "get_tide",
        "description": "DDtool",
        "parameters": {
            "type": "object",
            "properties": {"portkey": {"type": "string", "description": "A port."}},
            "required": ["portkey"],
        },
    },
}
ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True)
class Kind:
    """A kind of conversation.

    Attributes:
        name: Its name in the atlas.
        row: A row of that kind.
        trained: The texts that belong in the loss, each once.
        untrained: The texts that must be in the rendering and not in the loss.
    """

    name: str
    row: dict[str, Any]
    trained: tuple[str, ...]
    untrained: tuple[str, ...]


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _answer(text: str | None, **others: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **others}


def _call(value: str, id: str = "abcdefgh1") -> dict[str, Any]:
    # Use nine characters, because Mistral's templates refuse other ids.
    return {"id": id, "type": "function", "function": {"name": "get_tide", "arguments": {"portkey": value}}}


def _result(text: str, id: str = "abcdefgh1") -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": id, "name": "get_tide"}


def _kind(name: str, messages: list[dict[str, Any]], trained: str, untrained: str) -> Kind:
    has_tools = "DDtool" in untrained
    row = {"messages": messages, **({"tools": [TOOL]} if has_tools else {})}
    return Kind(name, row, tuple(trained.split()), tuple(untrained.split()))


_Q, _A = _user("QQone"), _answer("AAone")
_Q2, _A2 = _user("QQtwo"), _answer("AAtwo")
_CALL, _RESULT = _answer("", tool_calls=[_call("VVport")]), _result("TTres")
_RULE = {"role": "system", "content": "SSrule"}
_CALLS = _answer("", tool_calls=[_call("VVport"), _call("VVsec", "abcdefgh2")])
_REASONED_CALL = _answer("", reasoning_content="RRcall", tool_calls=[_call("VVport")])

KINDS: tuple[Kind, ...] = (
    _kind("plain", [_Q, _A], "AAone", "QQone"),
    _kind("two turns", [_Q, _A, _Q2, _A2], "AAone AAtwo", "QQone QQtwo"),
    _kind("system", [_RULE, _Q, _A], "AAone", "SSrule QQone"),
    _kind("late system", [_Q, _A, _RULE, _Q2, _A2], "AAone AAtwo", "QQone SSrule QQtwo"),
    _kind("developer", [{"role": "developer", "content": "SSrule"}, _Q, _A], "AAone", "SSrule QQone"),
    _kind("reasoning_content", [_Q, _answer("AAone", reasoning_content="RRwhy")], "RRwhy AAone", "QQone"),
    _kind("reasoning", [_Q, _answer("AAone", reasoning="RRwhy")], "RRwhy AAone", "QQone"),
    _kind("thinking", [_Q, _answer("AAone", thinking="RRwhy")], "RRwhy AAone", "QQone"),
    _kind("inline think", [_Q, _answer("<think>\nRRwhy\n</think>\n\nAAone")], "RRwhy AAone", "QQone"),
    _kind("half think", [_Q, _answer("RRwhy\n</think>\n\nAAone")], "RRwhy AAone", "QQone"),
    _kind("tools declared", [_Q, _A], "AAone", "DDtool QQone"),
    _kind("call", [_Q, _CALL, _RESULT, _A], "VVport AAone", "DDtool QQone TTres"),
    _kind("call null content", [_Q, {**_CALL, "content": None}, _RESULT, _A], "VVport AAone", "DDtool QQone TTres"),
    _kind("call last", [_Q, _CALL], "VVport", "DDtool QQone"),
    _kind(
        "call with text",
        [_Q, {**_CALL, "content": "AAbefore"}, _RESULT, _A],
        "AAbefore VVport AAone",
        "DDtool QQone TTres",
    ),
    _kind(
        "call with reasoning",
        [_Q, _REASONED_CALL, _RESULT, _answer("AAone", reasoning_content="RRtwo")],
        "RRcall VVport RRtwo AAone",
        "DDtool QQone TTres",
    ),
    _kind(
        "two calls",
        [_Q, _CALLS, _RESULT, _result("TTsec", "abcdefgh2"), _A],
        "VVport VVsec AAone",
        "DDtool QQone TTres TTsec",
    ),
    _kind("unanswered", [_Q, _Q2, _A], "AAone", "QQone QQtwo"),
    _kind("two answers", [_Q, _A, _A2], "AAone AAtwo", "QQone"),
)
"""The kinds of `sweep.py`, in which each text occurs once."""
