"""The message of each token, compared with the decoded text, for templates that strip, split, escape and drop texts."""

import re
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.chat.mask import ChatEncoder
from dataprep_assets.tokenization.chat.message_spans import (
    TEMPLATE,
    LocatedSequence,
    MessageLocator,
    MessageNotFoundError,
)
from dataprep_assets.tokenization.chat.messages import Conversation, ConversationFields, Refusal, read_conversation
from dataprep_assets.tokenization.chat.rendering import RenderedConversation, keep_used_part
from dataprep_assets_tests.tokenization.chat import templates
from dataprep_assets_tests.tokenization.chat.random_conversations import TOOL, conversations
from dataprep_assets_tests.tokenization.chat.tokenizers import chat_bundle, conversation_renderer, encoder
from dataprep_assets_tests.tokenization.chat.trap import CHATML

EXAMINED = CHATML.replace(
    "{{ m.content }}",
    "{% if m.content.startswith('<result>') and m.content.endswith('</result>') %}R: {% endif %}{{ m.content | trim }}",
)
"""A template that examines the start and end of a text, like Qwen's for results of tools."""
TEMPLATES = {
    "chatml_reasoning": "chatml_reasoning",
    "chatml": CHATML,
    "examined": EXAMINED,
    "next_role": templates.NEXT_ROLE,
    "channels": templates.CHANNELS,
    "forgetful": templates.FORGETFUL,
    "merged": templates.MERGED,
    "cut_thoughts": templates.CUT_THOUGHTS,
    "alternating": templates.ALTERNATING,
    "marked": templates.MARKED,
    "parts": templates.PARTS,
}
CALL = {"function": {"name": "look_up", "arguments": {"word": 'a "b"\n', "n": 17, "deep": [{"x": None}], "yes": True}}}


def locate(
    row: dict[str, Any], template: str = "chatml_reasoning", **options: Any
) -> tuple[Conversation, list[LocatedSequence]] | None:
    """Return the conversation of a row and its located sequences, whose ids are those of the encoder; None if
    refused.
    """
    conversation = read_conversation(row, ConversationFields())
    assert isinstance(conversation, Conversation)
    bundle, found = bundle_and_encoder(template)
    renderer = conversation_renderer(template, bundle, **options)
    rendered = keep_used_part(renderer.render(conversation))
    located = MessageLocator(renderer, found).locate(conversation)
    if not isinstance(rendered, RenderedConversation):
        assert isinstance(located, Refusal)
        return None
    assert not isinstance(located, Refusal)
    encoded = found.encode([rendered])
    assert len(located) == len(rendered.sequences)
    for sequence, start, stop in zip(located, encoded.offsets[:-1], encoded.offsets[1:], strict=True):
        assert np.array_equal(sequence.ids, encoded.tokens[start:stop])
        assert len(sequence.ids) == len(sequence.owners)
    return conversation, located


def bundle_and_encoder(template: str) -> tuple[TokenizerBundle, ChatEncoder]:
    bundle = templates.chat_bundle_of(templates.TOKENS) if "<|s|>" in template or "<|user|>" in template else None
    return bundle or chat_bundle(), encoder(bundle)


def runs(sequence: LocatedSequence, bundle: TokenizerBundle) -> list[tuple[int, str]]:
    """Return message and decoded text of each run of tokens."""
    tokens = zip(sequence.owners.tolist(), sequence.ids.tolist(), strict=True)
    return [(owner, bundle.decode([id_ for _, id_ in run])) for owner, run in groupby(tokens, key=lambda pair: pair[0])]


@pytest.mark.parametrize("template", TEMPLATES)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(row=conversations())
def test_each_text_is_in_the_tokens_of_its_message(template: str, row: dict[str, Any]) -> None:
    found = locate(row, TEMPLATES[template])
    if found is None:
        return
    bundle = bundle_and_encoder(TEMPLATES[template])[0]
    for sequence in found[1]:
        for owner, text in runs(sequence, bundle):
            # Each text starts with a letter and the number of its message, and ends with z.
            assert {int(number) for number in re.findall(r"[QA](\d+)[qar]", text)} == ({owner} - {TEMPLATE}), text
            if owner == TEMPLATE:
                assert "z" not in text, text


def test_a_run_is_exactly_the_text_of_a_message() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "user"},
        {"role": "user", "content": "assistant"},
        {"role": "assistant", "reasoning_content": "think", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "a"},
        {"role": "assistant", "reasoning_content": " look_up\n", "content": "user <|im_end|> Köln 日本 </think>"},
        {"role": "user", "content": "<|im_start|>user"},
        {"role": "assistant", "content": "a"},
    ]
    found = locate({"messages": messages[:4] + messages[4:5], "tools": [TOOL]})
    assert found is not None
    (sequence,) = found[1]
    (call,) = [text for owner, text in runs(sequence, chat_bundle()) if owner == 2 and "look_up" in text]
    assert call.startswith("look_up")
    assert call.rstrip().endswith("True") or call.rstrip().endswith("true")
    texts = [(owner, text.strip()) for owner, text in runs(sequence, chat_bundle()) if owner != TEMPLATE]
    assert texts[:3] == [(0, "user"), (1, "assistant"), (2, "think")]
    assert (3, "a") in texts
    assert texts[-2:] == [(4, "look_up"), (4, "user <|im_end|> Köln 日本 </think>")]

    found = locate({"messages": [*messages[:2], messages[6], *messages[5:]]}, CHATML)
    assert found is not None
    (sequence,) = found[1]
    texts = [(owner, text) for owner, text in runs(sequence, chat_bundle()) if owner != TEMPLATE]
    assert texts == [(0, "user"), (1, "assistant"), (2, "a"), (3, "<|im_start|>user"), (4, "a")]


@pytest.mark.parametrize("content", ["user </think>", "<think>\nx\n</think>\n\ny", "<think>x</think>y", "a </think> b"])
def test_tags_in_a_text_belong_to_it_if_the_template_keeps_them(content: str) -> None:
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]}
    for template in ("chatml_reasoning", CHATML):
        found = locate(row, template)
        assert found is not None
        texts = [(owner, text) for owner, text in runs(found[1][0], chat_bundle()) if owner != TEMPLATE]
        assert texts == [(0, "q"), (1, content)]


@pytest.mark.parametrize("text", ["\n a \n", " a", "a\n\n"])
def test_white_space_belongs_to_a_message_if_the_template_keeps_it(text: str) -> None:
    row = {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": text}]}
    for template, expected in ((CHATML, text), (templates.ALTERNATING, "a")):
        found = locate(row, template)
        assert found is not None
        (sequence,) = found[1]
        decoded = [(owner, part) for owner, part in runs(sequence, chat_bundle()) if owner != TEMPLATE]
        # Strip the texts, because a token may contain characters of both the header and the text.
        assert [(owner, part.strip()) for owner, part in decoded] == [(0, "a"), (1, "a")]
        assert all(part.endswith(expected.lstrip()) for _, part in decoded)


def test_a_text_that_the_template_examines_is_located() -> None:
    row = {"messages": [{"role": "user", "content": "<result>x</result>"}, {"role": "assistant", "content": "y"}]}
    found = locate(row, EXAMINED)
    assert found is not None
    # Strip the texts, because a token contains the template's space and the beginning of the text.
    texts = [(owner, text.strip()) for owner, text in runs(found[1][0], chat_bundle()) if owner != TEMPLATE]
    assert texts == [(0, "<result>x</result>"), (1, "y")]


def test_a_text_that_cannot_be_located_is_an_error() -> None:
    template = CHATML.replace("{{ m.content }}", "{{ m.content | length }}{{ m.content }}")
    row = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}
    with pytest.raises(MessageNotFoundError) as raised:
        locate(row, template)
    assert raised.value.message == 0
    row["messages"][0]["content"] = "\U0001fffe"
    with pytest.raises(MessageNotFoundError):
        locate(row, CHATML)
