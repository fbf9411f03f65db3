"""Random conversations in the templates of TRL: each answer is trained once, with its stop, and no question is."""

from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from dataprep_assets.pipelines.blend.sft.chat_plan import chat_plan, load_conversation_renderer
from dataprep_assets.tokenization.certificate import refuse_engine
from dataprep_assets.tokenization.chat.messages import ConversationFields, Refusal, read_conversation
from dataprep_assets.tokenization.chat.rendering import ConversationRenderer
from dataprep_assets.tokenization.chat.template import ChatTemplate
from dataprep_assets_tests.tokenization.chat.random_conversations import assert_answers_once, conversations
from dataprep_assets_tests.tools.atlas.template_folder import templates_in, write_tokenizer_of

_SPEC = find_spec("trl")
TEMPLATES = templates_in(Path(str(_SPEC.origin)).parent / "chat_templates") if _SPEC else {}
RENDERERS: dict[str, tuple[ConversationRenderer, tuple[str, ...]]] = {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("templates")


def renderer(name: str, folder: Path) -> tuple[ConversationRenderer, tuple[str, ...]]:
    """The renderer of a template, and the texts that its answers may end with."""
    if name not in RENDERERS:
        bundle = write_tokenizer_of(name, TEMPLATES[name], folder / name)
        certificate = refuse_engine(bundle, "text", "tokenizers", "a test")
        template = ChatTemplate.load_from_tokenizer(bundle)
        plan = chat_plan(bundle, certificate, template, pack_size=8192, template_date=date(2026, 1, 31))
        RENDERERS[name] = load_conversation_renderer(plan, bundle), tuple(token.content for token in plan.stops.tokens)
    return RENDERERS[name]


@pytest.mark.slow
@pytest.mark.skipif(not TEMPLATES, reason="no templates of TRL: pip install trl")
@pytest.mark.parametrize("name", TEMPLATES or [""])
def test_each_answer_is_trained_once_with_its_stop_and_no_question_is(name: str, folder: Path) -> None:
    of_template, stops = renderer(name, folder)

    @settings(max_examples=20)
    @given(row=conversations())
    def is_right(row: dict[str, Any]) -> None:
        conversation = read_conversation(row, ConversationFields())
        assert not isinstance(conversation, Refusal)
        assert_answers_once(row, of_template.render(conversation), stops)

    is_right()
