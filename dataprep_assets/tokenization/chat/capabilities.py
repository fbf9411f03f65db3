"""What a chat template can write: the table of features that `dataprep check` and the data card show.

Each feature is tried once per template with an invented conversation, by the renderer of the rows: what is lost there
would be lost in rows.

Entry point: `find_capabilities`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dataprep_assets.tokenization.chat.lost_text import LOST
from dataprep_assets.tokenization.chat.message_form import TOOL, USER, tool_call, tool_result
from dataprep_assets.tokenization.chat.messages import Conversation, Refusal
from dataprep_assets.tokenization.chat.rendering import ConversationRenderer

WRITTEN, DROPPED = "written", "dropped"


@dataclass(frozen=True)
class Capabilities:
    """Feature → `written`, `dropped`, or why a conversation with it is refused."""

    outcomes: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, table: Mapping[str, str]) -> "Capabilities":
        """The capabilities that a receipt has as a table."""
        return cls(tuple(table.items()))

    @property
    def sentence(self) -> str:
        """The table in words."""
        features = {outcome: [f for f, other in self.outcomes if other == outcome] for _, outcome in self.outcomes}
        written = f"writes {', '.join(features.pop(WRITTEN, ['nothing']))}"
        dropped = f"; drops {', '.join(names)}" if (names := features.pop(DROPPED, [])) else ""
        refused = "".join(f"; refuses {', '.join(names)} ({why})" for why, names in features.items())
        return written + dropped + refused

    def to_json(self) -> dict[str, str]:
        """The table, for a receipt."""
        return dict(self.outcomes)


def _answer(text: str, **others: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **others}


def _probes() -> Iterator[tuple[str, list[dict[str, Any]], bool]]:
    """Yield each feature, an invented conversation that uses it, and whether a tool is declared."""
    said, again = _answer("Qanswerq"), _answer("Qsecondq")
    rule = {"content": "Qruleq"}
    call, result = tool_call("Qbuoyq"), tool_result("Qresultq")
    yield "system", [{"role": "system", **rule}, USER, said], False
    yield "late_system", [USER, said, {"role": "system", **rule}, USER, again], False
    yield "developer", [{"role": "developer", **rule}, USER, said], False
    yield "reasoning", [USER, _answer("Qanswerq", reasoning_content="Qthoughtq")], False
    yield "inline_reasoning", [USER, _answer("<think>\nQthoughtq\n</think>\n\nQanswerq")], False
    yield "tools", [USER, said], True
    yield "calls", [USER, _answer("", tool_calls=[call])], True
    yield "results", [USER, _answer("", tool_calls=[call]), result, said], True
    both = [call, tool_call("Qsecondq", "abcdefgh2")]
    results = [result, tool_result("Qotherq", "abcdefgh2")]
    yield "parallel_calls", [USER, _answer("", tool_calls=both), *results, said], True
    yield "call_text", [USER, _answer("Qbeforeq", tool_calls=[call]), result, said], True
    yield "two_answers", [USER, said, again], False
    yield "two_questions", [USER, {"role": "user", "content": "Qmoreq"}, said], False


def find_capabilities(renderer: ConversationRenderer) -> Capabilities:
    """Return what the template of a renderer writes."""
    outcomes = []
    for feature, messages, has_tool in _probes():
        rendered = renderer.render(Conversation(messages, [TOOL] if has_tool else None))
        if not isinstance(rendered, Refusal) or (feature != "tools" and rendered.reason == f"{LOST}: tools"):
            outcomes.append((feature, WRITTEN))
        elif rendered.reason.startswith(LOST):
            outcomes.append((feature, DROPPED))
        else:
            outcomes.append((feature, rendered.words or rendered.reason))
    return Capabilities(tuple(outcomes))
