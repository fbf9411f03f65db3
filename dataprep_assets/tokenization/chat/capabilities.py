"""Features that a chat template writes, drops or refuses: the table in `dataprep check` and in the data card.

Each feature is tested once per template on an invented conversation. Tests and rows have the same renderer, so a text
that is lost in a test is also lost in rows, and vice versa.

Entry point: `find_capabilities`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dataprep_assets.tokenization.chat.lost_text import LOST
from dataprep_assets.tokenization.chat.message_form import TOOL, USER, build_tool_call, build_tool_result
from dataprep_assets.tokenization.chat.messages import Conversation, Refusal
from dataprep_assets.tokenization.chat.rendering import ConversationRenderer

WRITTEN, DROPPED = "written", "dropped"
_TOOLS, _PARAMETERS = f"{LOST}: tools", f"{LOST}: tool_parameters"
_TOOL_LOSSES = {"tools": {_TOOLS}, "tool_parameters": {_TOOLS, _PARAMETERS}}
"""Feature of tools → reasons that show that it is dropped. Other features are tested with a tool, which may be lost."""
_NESTED_TOOL = {
    "type": "function",
    "function": {
        "name": "Qbookq",
        "description": "Qberthq",
        "parameters": {
            "type": "object",
            "properties": {
                "Qshipsq": {
                    "type": "array",
                    "description": "Qlistq",
                    "items": {
                        "type": "object",
                        "properties": {
                            "Qnameq": {"type": "string", "description": "Qbowq"},
                            "Qkindq": {"type": "string", "description": "Qhullq", "enum": ["Qsailq", "Qsteamq"]},
                        },
                    },
                }
            },
        },
    },
}
"""A tool with parameters inside of a parameter, which some templates shorten."""


@dataclass(frozen=True)
class Capabilities:
    """Feature → `written`, `dropped`, or the reason for refusing a conversation with it."""

    outcomes: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_table(cls, table: Mapping[str, str]) -> "Capabilities":
        """Return the capabilities that a receipt records."""
        return cls(tuple(table.items()))

    @property
    def sentence(self) -> str:
        """The table in words."""
        features = {outcome: [f for f, value in self.outcomes if value == outcome] for _, outcome in self.outcomes}
        writes = f"writes {', '.join(features.pop(WRITTEN, ['nothing']))}"
        drops = f"; drops {', '.join(names)}" if (names := features.pop(DROPPED, [])) else ""
        refusals = "".join(f"; refuses {', '.join(names)} ({why})" for why, names in features.items())
        return writes + drops + refusals

    def to_json(self) -> dict[str, str]:
        """Return the table for a receipt."""
        return dict(self.outcomes)


def _build_answer(text: str, **arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **arguments}


def _generate_probes() -> Iterator[tuple[str, list[dict[str, Any]], bool]]:
    """Yield each feature, an invented conversation that uses it, and whether a tool is declared."""
    answer, second_answer = _build_answer("Qanswerq"), _build_answer("Qsecondq")
    rule = {"content": "Qruleq"}
    call, result = build_tool_call("Qbuoyq"), build_tool_result("Qresultq")
    yield "system", [{"role": "system", **rule}, USER, answer], False
    yield "late_system", [USER, answer, {"role": "system", **rule}, USER, second_answer], False
    yield "developer", [{"role": "developer", **rule}, USER, answer], False
    yield "names", [{**USER, "name": "Qspeakerq"}, answer], False
    yield "reasoning", [USER, _build_answer("Qanswerq", reasoning_content="Qthoughtq")], False
    yield "inline_reasoning", [USER, _build_answer("<think>\nQthoughtq\n</think>\n\nQanswerq")], False
    yield "tools", [USER, answer], True
    yield "tool_parameters", [USER, answer], True
    yield "calls", [USER, _build_answer("", tool_calls=[call])], True
    yield "results", [USER, _build_answer("", tool_calls=[call]), result, answer], True
    calls = [call, build_tool_call("Qsecondq", "abcdefgh2")]
    results = [result, build_tool_result("Qotherq", "abcdefgh2")]
    yield "parallel_calls", [USER, _build_answer("", tool_calls=calls), *results, answer], True
    yield "call_text", [USER, _build_answer("Qbeforeq", tool_calls=[call]), result, answer], True
    yield "two_answers", [USER, answer, second_answer], False
    yield "two_questions", [USER, {"role": "user", "content": "Qmoreq"}, answer], False


def find_capabilities(renderer: ConversationRenderer) -> Capabilities:
    """Return the features that the template of a renderer writes."""
    outcomes = []
    for feature, messages, has_tool in _generate_probes():
        tool = _NESTED_TOOL if feature == "tool_parameters" else TOOL
        rendered = renderer.render(Conversation(messages, [tool] if has_tool else None))
        other_losses = {_TOOLS, _PARAMETERS} - _TOOL_LOSSES.get(feature, set())
        if not isinstance(rendered, Refusal) or rendered.reason in other_losses:
            outcomes.append((feature, WRITTEN))
        elif rendered.reason.startswith(LOST):
            outcomes.append((feature, DROPPED))
        else:
            outcomes.append((feature, rendered.words or rendered.reason))
    return Capabilities(tuple(outcomes))
