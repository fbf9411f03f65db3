"""Every available template, rendered by us and by transformers: equal texts, or a named difference."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from importlib.util import find_spec
from pathlib import Path

import pytest

from dataprep_assets.tokenization.chat.choices import OURS
from dataprep_assets.tokenization.chat.message_form import find_form
from dataprep_assets.tokenization.chat.messages import Conversation, ConversationFields, read_conversation
from dataprep_assets.tokenization.chat.template import ChatTemplate, TemplateRenderError, compile_template
from dataprep_assets_tests.readers.transformers import rendered_rows
from dataprep_assets_tests.tokenization.chat import templates, trap
from dataprep_assets_tests.tokenization.chat.kinds_of_rows import ROWS, SENTINELS

TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}
NAMED = frozenset({"equal", "both refuse", "transformers refuses", "transformers loses text", "null is a text"})
"""Outcomes in which no text of ours is missing. The third and fourth occur for messages in a form that the template
does not read, such as reasoning under another name, which `MessageForm` translates."""


def list_own_templates() -> Iterator[tuple[str, str]]:
    """Return the templates of the tests."""
    for module in (templates, trap):
        for name, value in vars(module).items():
            if name.isupper() and not name.startswith("_") and isinstance(value, str) and "{%" in value:
                yield f"{module.__name__.rpartition('.')[2]}.{name}", value


def list_published_templates() -> Iterator[tuple[str, str]]:
    """Return the templates in trl's wheel, without importing it."""
    package = find_spec("trl")
    for folder in (package.submodule_search_locations or ()) if package else ():
        for path in sorted(Path(folder, "chat_templates").glob("*.jinja")):
            yield path.stem, path.read_text(encoding="utf-8")


TEMPLATES = {**dict(list_own_templates()), **dict(list_published_templates())}


def outcome(ours: str | None, theirs: str | None) -> str:
    """Name the difference between two renderings of a row."""
    if ours == theirs:
        return "equal" if ours is not None else "both refuse"
    if ours is None:
        return "we refuse"
    if theirs is None:
        return "transformers refuses"
    # Find texts of the row that only one of the renderings contains.
    missing, lost = ({s for s in SENTINELS if s in a and s not in b} for a, b in ((theirs, ours), (ours, theirs)))
    if missing:
        return f"we lose {', '.join(sorted(missing))}"
    if lost:
        return "transformers loses text"
    has_null = any(theirs.count(null) > ours.count(null) for null in ("None", "null"))
    return "null is a text" if has_null else "different"


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_renders_each_kind_of_row_as_in_transformers(name: str) -> None:
    renderer = compile_template(ChatTemplate(name, TEMPLATES[name]), TOKENS, today=date.today())
    form, choices = find_form(renderer), replace(OURS, roles=(*OURS.roles, "developer"))
    found = {}
    for thinking in (True, False):
        all_theirs = rendered_rows(TEMPLATES[name], list(ROWS.values()), enable_thinking=thinking, **TOKENS)
        for (kind, row), theirs in zip(ROWS.items(), all_theirs, strict=True):
            conversation = read_conversation(row, ConversationFields(), choices)
            assert isinstance(conversation, Conversation)
            messages = form.apply_form(conversation.messages)
            try:
                ours = renderer.render(messages, conversation.tools, prompt=False, thinking=thinking)
            except TemplateRenderError:
                ours = None
            found[kind, thinking] = outcome(ours, theirs)
    print(name, dict(Counter(found.values())))
    assert {cell: difference for cell, difference in found.items() if difference not in NAMED} == {}


def test_the_published_templates_are_found() -> None:
    if find_spec("trl") is None:
        pytest.skip("trl is not installed")
    assert len(dict(list_published_templates())) >= 72
