"""`docs/yaml-reference.md` and the page of each component match the current models completely."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from dataprep_assets import components
from dataprep_assets.curation.taggers import TAGGERS
from dataprep_assets.engine.yaml.declaration_model import DeclarationModel
from dataprep_assets.pipelines.blend.rl.options import PRESETS as RL_PRESETS
from dataprep_assets.tokenization.chat.choices import PRESETS as CHAT_PRESETS
from dataprep_assets_tests.docs import reference


def test_the_reference_is_up_to_date() -> None:
    for path, text in reference.pages().items():
        assert path.read_text(encoding="utf-8") == text, "run `make docs-reference`"


def test_every_key_is_described() -> None:
    assert reference.find_undescribed() == []


@pytest.mark.parametrize("name", components.__all__)
def test_every_key_of_a_component_is_on_its_page(name: str) -> None:
    pages = reference.pages()
    common = pages[reference.INDEX].partition("## Keys of every component")[2].partition("\n## ")[0]
    own = pages[reference.find_page(name)].partition("\n## Keys\n")[2].partition("\n## ")[0]
    for key in getattr(components, name).model.model_fields:
        assert f"| `{key}` |" in common + own, key


def test_nested_keys_have_their_yaml_names_types_defaults_and_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Inner(DeclarationModel):
        """The inner model."""

        sender: str = Field(alias="from", description="Who sends.")
        tail: Annotated[int, Field(ge=1)] | None = Field(None, description="Left | right.")

    class Outer(DeclarationModel):
        """The outer model."""

        inner: tuple[Inner, ...] = Field((), description="The inner ones.")
        mode: Literal["a", "b"] = Field("a", description="Which.")
        folder: Path = Field(Path("x"), description="Where.")

    class Component:
        model = Outer

    monkeypatch.setattr(components, "TokenizedCorpus", Component, raising=False)
    monkeypatch.setattr(reference, "samples", lambda: ())  # no samples, because they belong to the real component
    text = reference.pages()[reference.find_page("TokenizedCorpus")]
    assert "| `inner` | list of [Inner](#inner) | empty | The inner ones. |" in text
    assert "| `mode` | one of `a`, `b` | `a` | Which. |" in text
    assert "| `folder` | path | `x` | Where. |" in text
    assert "### Inner\n\nThe inner model.\n" in text
    assert "| `from` | text | required | Who sends. |" in text
    assert "| `tail` | whole number; at least 1 | none | Left \\| right. |" in text


def test_every_link_to_a_nested_model_has_its_table_on_the_page() -> None:
    for path, text in reference.pages().items():
        anchors = {heading.lower() for heading in re.findall(r"^##+ (\w+)$", text, re.MULTILINE)}
        assert set(re.findall(r"\]\(#([a-z]+)\)", text)) <= anchors, path.name


def test_every_column_of_a_built_in_tagger_is_on_the_page_with_its_type() -> None:
    page = reference.pages()[reference.find_page("TokenizedCorpus")]
    section = page.partition("\n## Built-in taggers\n")[2]
    for extension in (TAGGERS[name] for name in TAGGERS if TAGGERS[name].is_own):
        text = section.partition(f"### {extension.name}\n")[2].partition("\n### ")[0]
        rows = dict(re.findall(r"^\| (\w+) \| (`.*`) \|$", text, re.MULTILINE))
        for column, kind in extension.load().columns.items():
            assert f"`{column}`" in rows[kind].split(", "), (extension.name, column)


def test_descriptions_of_attributes_are_read_from_a_docstring() -> None:
    class Described:
        """A class.

        Attributes:
            first: One line
                and `a: b` in its continuation.
            second: Left | right.

        Not an attribute: this text.
        """

    assert reference.read_attributes(Described) == {
        "first": "One line and `a: b` in its continuation.",
        "second": "Left | right.",
    }


@pytest.mark.parametrize("presets", [CHAT_PRESETS, RL_PRESETS])
def test_every_choice_of_a_preset_is_described(presets: Mapping[str, Any]) -> None:
    assert reference.read_attributes(type(presets["ours"])).keys() == vars(presets["ours"]).keys()
