"""Random conversations in many templates: each answer is trained exactly once, with its stop, and no question is.

A conversation may be refused, but only with a reason, and never for plain questions and answers.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep_assets.tokenization.chat.messages import ConversationFields, Refusal, read_conversation
from dataprep_assets.tokenization.chat.rendering import ConversationRenderer, RenderedConversation, used_part
from dataprep_assets.tokenization.chat.template import ChatTemplate
from dataprep_assets_tests.tokenization.chat.templates import (
    ALTERNATING,
    CHANNELS,
    CUT_THOUGHTS,
    FORGETFUL,
    MARKED,
    MERGED,
    NEXT_ROLE,
    PARTS,
    TOKENS,
    chat_bundle_of,
)
from dataprep_assets_tests.tokenization.chat.tokenizers import conversation_renderer
from dataprep_assets_tests.tokenization.chat.trap import CHATML, HERMES, QWEN, TRAP

TEMPLATES = {
    "alternating": ALTERNATING,
    "channels": CHANNELS,
    "chatml": CHATML,
    "chatml_reasoning": ChatTemplate.load("chatml_reasoning").text,
    "cut thoughts": CUT_THOUGHTS,
    "forgetful": FORGETFUL,
    "hermes": HERMES,
    "marked": MARKED,
    "merged": MERGED,
    "next role": NEXT_ROLE,
    "parts": PARTS,
    "qwen": QWEN,
    "trap": TRAP,
}
STOPS = ("<|im_end|>", "<|return|>", "<|e|>", "<|call|>", "<|user|>", "<|assistant|>", "<|system|>", "<|observation|>")
TOOL = {"type": "function", "function": {"name": "look_up", "description": "Finds a word."}}
RENDERERS: dict[str, ConversationRenderer] = {}
TEXTS = st.text(st.sampled_from("ab é\n.\"'<>{}\\日"), max_size=6)


@st.composite
def conversations(draw: st.DrawFn) -> dict[str, Any]:
    """A row in which each text is unique: `Q3` and what was drawn, in message 3."""
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


def renderer(name: str) -> ConversationRenderer:
    if name not in RENDERERS:
        RENDERERS[name] = conversation_renderer(TEMPLATES[name], chat_bundle_of(TOKENS))
    return RENDERERS[name]


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=60)
@given(row=conversations())
def test_each_answer_is_trained_once_with_its_stop_and_no_question_is(name: str, row: dict[str, Any]) -> None:
    conversation = read_conversation(row, ConversationFields())
    assert not isinstance(conversation, Refusal)
    found = renderer(name).render(conversation)
    if isinstance(found, Refusal):
        kinds = {message["role"] for message in row["messages"]}
        is_plain = kinds == {"user", "assistant"} and not any(
            "reasoning" in str(m) or "think" in str(m) for m in row["messages"]
        )
        assert found.reason.startswith(("lost_in_template: ", "template_refused", "template_mismatch"))
        assert not is_plain or name == "alternating", found
    rendered = used_part(found)
    if not isinstance(rendered, RenderedConversation):
        return
    spans = [chunk.text for chunks in rendered.sequences for chunk in chunks if chunk.trained]
    assert all(span.rstrip().endswith(STOPS) for span in spans)
    assert not any(f"Q{place}q" in span for span in spans for place in range(len(row["messages"])))
    answers = [f"A{i}a" for i, message in enumerate(row["messages"]) if message["role"] == "assistant"]
    counts = [sum(span.count(answer) for span in spans) for answer in answers]
    if isinstance(found, Refusal) and found.reason == "template_refused":
        answers, counts = answers[: sum(counts)], counts[: sum(counts)]
    assert counts == [1] * len(answers)
