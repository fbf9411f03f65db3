"""Random conversations in many templates: each answer is trained exactly once, with its stop, and no question is.

A conversation may be refused, but only with a reason, and never for plain questions and answers.
"""

from typing import Any

import pytest
from hypothesis import given, settings

from dataprep_assets.tokenization.chat.messages import ConversationFields, Refusal, read_conversation
from dataprep_assets.tokenization.chat.rendering import ConversationRenderer
from dataprep_assets.tokenization.chat.template import ChatTemplate
from dataprep_assets_tests.tokenization.chat.random_conversations import assert_answers_once, conversations
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
RENDERERS: dict[str, ConversationRenderer] = {}


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
    assert_answers_once(row, found)
