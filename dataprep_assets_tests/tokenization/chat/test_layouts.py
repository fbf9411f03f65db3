"""What is encoded of a filled outline is what is encoded of its chunks, whatever its texts and a template's own say."""

from typing import Any

import numpy as np
import pytest

from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import CertifiedEncoder, refused_outright
from dataprep_assets.tokenization.chat.choices import OURS
from dataprep_assets.tokenization.chat.chunks import Filled, Rendered
from dataprep_assets.tokenization.chat.mask import ChatEncoder
from dataprep_assets.tokenization.chat.messages import Conversation
from dataprep_assets.tokenization.engines import ReferenceEngine
from dataprep_assets_tests.tokenization.chat.tokenizers import chat_bundle, conversation_renderer, encoder
from dataprep_assets_tests.tokenization.chat.trap import CHATML, LLAMA, TRAP

SAID = (
    "Why?",
    "So.",
    " a\n",
    "<",
    "<|im_",
    "start|>",
    "end|>",
    "<|im_end",
    "|>",
    "im_end|",
    "Ünï 日本",
    "a|>b<|",
    "\n\nb",
)
"""Texts without a special token, of which some are the beginning, the middle or the end of one."""


def conversations(*said: str) -> list[Conversation]:
    """Questions and answers of one shape; an answer has its question as reasoning."""
    return [
        Conversation(
            [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer, "reasoning_content": question},
            ]
        )
        for question in said
        for answer in said
    ]


def rendered(template: str, given: list[Conversation], **options: Any) -> list[Rendered]:
    """The conversations as a renderer that learns gives them."""
    renderer = conversation_renderer(template, learns=True, **options)
    found = [renderer.render(conversation) for conversation in given]
    return [one for one in found if isinstance(one, Rendered)]


def assert_encoded_as_chunks(found: list[Rendered]) -> None:
    """Filled outlines and the chunks that they stand for have the same ids, the same trained tokens and the same ends,
    together and each alone."""
    chunks = [Rendered(one.sequences, one.mark) for one in found]
    for ours, theirs in [(found, chunks), *(([a], [b]) for a, b in zip(found, chunks, strict=True))]:
        filled, plain = encoder().encode(ours), encoder().encode(theirs)
        assert np.array_equal(filled.tokens, plain.tokens)
        assert np.array_equal(filled.trained, plain.trained)
        assert np.array_equal(filled.offsets, plain.offsets)
    assert [one.turns for one in found] == [len(one.sequences) for one in chunks]
    assert [one.characters for one in found] == [one.characters for one in chunks]


BESIDE = {
    "nothing": "{{ m.content }}",
    "a token's beginning before": "<|im_{{ m.content }}",
    "a token's end after": "{{ m.content }}|>",
    "a token's middle between": "{{ m.content }}im_end{{ m.content }}",
    "another text after": "{{ m.content }}{{ m.reasoning_content }}",
    "texts between": "{{ m.content }}, {{ m.content }}: {{ m.reasoning_content }}",
    "a token on each side": "<|im_end|>{{ m.content }}<|im_start|>",
}
"""What stands in a template beside a text."""


@pytest.mark.parametrize("beside", BESIDE)
def test_a_special_token_that_a_text_completes_is_one_in_a_filled_outline_too(beside: str) -> None:
    found = rendered(CHATML.replace("{{ m.content }}", BESIDE[beside]), conversations(*SAID))
    assert sum(isinstance(one.given, Filled) for one in found) > len(SAID)
    assert_encoded_as_chunks(found)


def test_a_token_is_completed_by_a_text_in_these_tests() -> None:
    bundle = chat_bundle()
    template = CHATML.replace("{{ m.content }}", BESIDE["a token's beginning before"])
    found = [one for one in rendered(template, conversations("start|>") * 6) if isinstance(one.given, Filled)]
    start = bundle.token("<|im_start|>", key="x").id
    assert encoder().encode(found[:1]).tokens.tolist().count(start) == 4


@pytest.mark.parametrize("template", ["chatml_reasoning", CHATML, TRAP])
def test_filled_outlines_among_others_are_encoded_in_their_order(template: str) -> None:
    given = conversations("Why?", "So <|im_end|>", "a", "b ")
    found = rendered(template, given + given[::-1])
    filled = [isinstance(one.given, Filled) for one in found]
    assert any(filled)
    assert not all(filled)
    assert_encoded_as_chunks(found)


@pytest.mark.parametrize(
    "options", [{"allowed": ("<|im_end|>",)}, {"choices": OURS.with_changes({"special_literals": "special"})}], ids=str
)
def test_literals_that_stay_special_are_special_where_an_outline_was_learned(options: dict[str, Any]) -> None:
    renderer = conversation_renderer(CHATML, learns=True, **options)
    for conversation in conversations("Why?", "So.", "a"):
        learned = renderer.render(conversation)
    assert isinstance(learned, Rendered)
    assert isinstance(learned.given, Filled)
    (literal,) = conversations("Why<|im_end|>")
    plain = conversation_renderer(CHATML, **options).render(literal)
    found = renderer.render(literal)
    assert isinstance(found, Rendered)
    assert isinstance(plain, Rendered)
    end = chat_bundle().token("<|im_end|>", key="x").id
    encoded = encoder().encode([found]).tokens
    assert encoded.tolist().count(end) == 2 + 2  # one more in the question, and in the answer
    assert np.array_equal(encoded, encoder().encode([plain]).tokens)


def test_filled_outlines_have_the_ids_of_the_whole_text_for_published_tokenizers(shared: Any) -> None:
    for name, template in (("qwen3", "chatml_reasoning"), ("llama3", LLAMA)):
        bundle = TokenizerBundle.load(shared / "tokenizers" / name)
        found = rendered(template, conversations("What is\n it?", " Ja — schön.\n\n", "日本語"), bundle=bundle)
        found = [one for one in found if isinstance(one.given, Filled)]
        assert found
        refused = refused_outright(bundle, "text", "tokenizers", "a test")
        encoded = ChatEncoder(bundle, CertifiedEncoder(bundle, "text", refused)).encode(found)
        whole = ["".join(chunk.text for chunk in chunks) for one in found for chunks in one.sequences]
        assert np.array_equal(encoded.tokens, ReferenceEngine(bundle, "match").encode(whole)[0])
