"""A recipe is nothing but its taggers and rules: they are added to the declaration's own before it is validated."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from dataprep_assets.curation.declaration import ConfiguredTagger
from dataprep_assets.curation.filter_recipes.recipe import list_recipes, load_recipe
from dataprep_assets.pipelines.corpus.dataset import build_card_sections
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.project import sample_attributes

CLASSIFIER = {"fasttext": {"model": "model.bin", "label": "__label__hq", "column": "dclm_quality"}}
NAMES = ("gopher", "c4", "fineweb", "dclm", "fineweb2/deu_Latn", "fineweb2/cmn_Hani", "fineweb2/tha_Thai")


def declare(recipe: str, **changes: Any) -> CorpusDeclaration:
    """Return a corpus with a recipe, and the classifier that `dclm` needs."""
    own = [CLASSIFIER] if recipe == "dclm" and "tag" not in changes else []
    return CorpusDeclaration.model_validate(sample_attributes(recipe=recipe, tag=own, **changes))


def name_taggers(corpus: CorpusDeclaration) -> list[str]:
    return [tagger.name for tagger in corpus.taggers]


def test_the_recipes_are_those_that_the_key_names() -> None:
    assert list_recipes() == ["c4", "dclm", "fineweb", "fineweb2", "gopher"]


@pytest.mark.parametrize("name", NAMES)
def test_every_rule_of_a_recipe_uses_its_taggers_and_has_a_source(name: str) -> None:
    recipe, corpus = load_recipe(name), declare(name)
    assert list(corpus.rules) == list(recipe.drop)
    used = {column for _, rule in corpus.rules.values() for column in rule.columns}
    for tagger in corpus.taggers:
        assert used & tagger.columns.keys(), tagger.name
    assert recipe.published
    assert all(address.startswith("https://") for address in recipe.published)
    assert "{" not in "".join([recipe.title, *recipe.not_included])


def test_every_language_of_fineweb2_has_all_settings() -> None:
    with raises(ValidationError, "fineweb2/LANGUAGE", "deu_Latn") as caught:
        declare("fineweb2")
    languages = re.findall(r"\b[a-z]{3}_[A-Z][a-z]{3}\b", str(caught.value))
    assert len(set(languages)) >= 30
    for language in set(languages):
        corpus = declare(f"fineweb2/{language}")
        assert name_taggers(corpus) == ["repetition", "fineweb", "gopher"]
        assert len(corpus.rules) == 6


def test_the_thresholds_of_fineweb2_are_those_of_the_language() -> None:
    german, chinese = declare("fineweb2/deu_Latn"), declare("fineweb2/cmn_Hani")
    thresholds = [dict(corpus.rules["fineweb2_words"][1].thresholds) for corpus in (german, chinese)]
    assert thresholds == [
        {"mean_word_length": (0, 15), "alphabetic_words": (0.774,), "stop_words": (2,)},
        {"mean_word_length": (1, 5), "alphabetic_words": (0.735,), "stop_words": (2,)},
    ]
    assert german.rules["fineweb2_ngrams"][1].thresholds["repeated_10grams"] == (0.098,)
    gopher = chinese.tag[-1]
    assert isinstance(gopher, ConfiguredTagger)
    assert gopher.gopher is not None
    assert (gopher.gopher.words, (gopher.gopher.stop_words or ())[:2]) == ("zh", ("的", "年"))


def test_fineweb_measures_what_c4_keeps_without_its_rule_on_punctuation() -> None:
    (fineweb,) = [tagger for tagger in declare("fineweb").taggers if tagger.name == "fineweb"]
    assert vars(fineweb)["settings"] == {"words": "en", "c4": {"punctuation": False}}


def test_own_taggers_and_rules_are_added() -> None:
    corpus = CorpusDeclaration.model_validate(
        sample_attributes(recipe="c4", tag=["gopher"], keep={"long": "words > 20"}, drop={"short": "words < 5"})
    )
    assert name_taggers(corpus) == ["gopher", "c4"]
    assert [(name, keeps) for name, (keeps, _) in corpus.rules.items()] == [
        ("long", True),
        ("c4_length", False),
        ("c4", False),
        ("short", False),
    ]


def test_a_written_out_declaration_means_the_same() -> None:
    """The taggers and rules that are printed make the same dataset without the recipe, and with it."""
    corpus, recipe = declare("fineweb"), load_recipe("fineweb")
    again = CorpusDeclaration.model_validate(corpus.model_dump())
    alone = CorpusDeclaration.model_validate(sample_attributes(tag=recipe.tag, drop=recipe.drop))
    for other in (again, alone):
        assert [tagger.name for tagger in other.taggers] == name_taggers(corpus)
        assert [vars(tagger) for tagger in other.taggers] == [vars(tagger) for tagger in corpus.taggers]
        assert {name: rule.text for name, (_, rule) in other.rules.items()} == recipe.drop


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recipe": "gopper"}, ["gopper", "gopher, …"[:6]]),
        ({"recipe": "gopher/en"}, ["gopher/en"]),
        ({"recipe": "fineweb2/xxx_Latn"}, ["xxx_Latn", "fra_Latn"]),
        ({"recipe": "dclm"}, ["dclm", "dclm_quality", "fasttext"]),
        ({"recipe": "gopher", "drop": {"gopher_length": "words < 9"}}, ["drop.gopher_length", "gopher", "Rename"]),
        ({"recipe": "gopher", "keep": {"gopher_length": "words > 9"}}, ["keep.gopher_length", "gopher", "Rename"]),
        ({"recipe": "gopher", "tag": ["gopher"]}, ["gopher", '{"words": "en"}', "Remove"]),
        ({"recipe": "c4", "tag": {"gopher": {"stop_words": ["a"]}}}, ["tag", "tuple"]),
        ({"recipe": "c4", "tag": "gopher"}, ["tag", "tuple"]),
        ({"recipe": "c4", "tag": 5}, ["tag", "tuple"]),
        ({"recipe": "c4", "keep": "words > 9"}, ["keep", "dictionary"]),
    ],
)
def test_a_recipe_that_cannot_apply_is_refused(changes: Mapping[str, Any], words: list[str]) -> None:
    with raises(ValidationError, *words):
        CorpusDeclaration.model_validate(sample_attributes(**changes))


@pytest.mark.parametrize("name", NAMES)
def test_the_card_and_the_terminal_show_what_a_recipe_stands_for(name: str) -> None:
    recipe = load_recipe(name)
    (section,) = build_card_sections(declare(name), {})
    assert section.title == "Recipe"
    lines = recipe.to_lines()
    for text in (section.text, "\n".join(lines)):
        assert all(step in text for step in recipe.not_included)
        assert all(rule in text for rule in recipe.drop)
    assert all(f"<{address}>" in section.text for address in recipe.published)
    assert lines[0] == f"recipe {name}: {recipe.title}"
