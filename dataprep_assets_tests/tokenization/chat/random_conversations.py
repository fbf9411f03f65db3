"""Random conversations, and the properties of each rendering."""

from typing import Any

from hypothesis import strategies as st

from dataprep_assets.tokenization.chat.messages import Refusal
from dataprep_assets.tokenization.chat.rendering import RenderedConversation, keep_used_part

STOPS = ("<|im_end|>", "<|return|>", "<|e|>", "<|call|>", "<|user|>", "<|assistant|>", "<|system|>", "<|observation|>")
TOOL = {"type": "function", "function": {"name": "look_up", "description": "Finds a word."}}
TEXTS = st.text(st.sampled_from("ab é\n.\"'<>{}\\日"), max_size=6)


@st.composite
def conversations(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a row in which each text is unique: `Q3` and a random text, in message 3."""
    messages: list[dict[str, Any]] = []
    kinds = draw(st.lists(st.sampled_from(["user", "answer", "thought", "inline", "call", "system"]), max_size=7))
    for kind in ["user", *kinds, "answer"]:
        place, drawn = len(messages), draw(TEXTS)
        if kind in ("user", "system"):
            messages.append({"role": kind, "content": f"Q{place}q{drawn}z"})
        elif kind == "call":
            arguments = {"word": f"A{place}a{drawn}z"}
            call = {"type": "function", "id": "abcdefgh1", "function": {"name": "look_up", "arguments": arguments}}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            messages.append({"role": "tool", "content": f"Q{place + 1}q{drawn}z", "tool_call_id": "abcdefgh1"})
        else:
            answer = {"role": "assistant", "content": f"A{place}a{drawn}z"}
            thought = f"A{place}r{drawn}z"
            if kind == "inline":
                answer["content"] = f"<think>\n{thought}\n</think>\n\n{answer['content']}"
            messages.append(answer | ({"reasoning": thought} if kind == "thought" else {}))
    has_calls = any("tool_calls" in message for message in messages)
    return {"messages": messages, **({"tools": [TOOL]} if has_calls else {})}


def assert_answers_once(
    row: dict[str, Any], found: RenderedConversation | Refusal, stops: tuple[str, ...] = STOPS
) -> None:
    """Assert that the used sequences train each answer of a row once, with a stop, and no question."""
    rendered = keep_used_part(found)
    if not isinstance(rendered, RenderedConversation):
        return
    spans = [chunk.text for chunks in rendered.sequences for chunk in chunks if chunk.trained]
    assert all(span.rstrip().endswith(stops) for span in spans)
    assert not any(f"Q{place}q" in span for span in spans for place in range(len(row["messages"])))
    answers = [f"A{i}a" for i, message in enumerate(row["messages"]) if message["role"] == "assistant"]
    counts = [sum(span.count(answer) for span in spans) for answer in answers]
    if isinstance(found, Refusal) and found.reason == "template_refused":
        answers, counts = answers[: sum(counts)], counts[: sum(counts)]
    assert counts == [1] * len(answers)
