"""Words of a language, and the settings of the taggers that use them."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from dataprep_assets.curation.declaration import Tags
from dataprep_assets.curation.languages.word_splitter import describe_words
from dataprep_assets.curation.taggers import fineweb
from dataprep_assets.curation.tagging import BuiltInTagger, load_tagger
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity import receipt
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.readers import words

WORDS = {
    "en": ("Don't stop, e.g. here.", ["Do", "n't", "stop", ",", "e.g.", "here", "."]),
    "de": ("Das ist z.B. gut.", ["Das", "ist", "z.B.", "gut", "."]),
    "ja": ("吾輩は猫である。", ["吾輩", "は", "猫", "で", "ある", "。"]),
    "ko": ("집에 갔다.", ["집", "에", "갔", "갔", "다", "."]),
    "th": ("ฉันกินข้าว", ["ฉัน", "กินข้าว"]),
    "zh": ("我来到北京清华大学。", ["我", "来到", "北京", "清华大学", "。"]),
}


def tag(name: str, text: str, **settings: Any) -> dict[str, Any]:
    """Return the columns of one text by a tagger with settings."""
    tagger = BuiltInTagger(name=name, columns=load_tagger(name).columns, settings=settings)
    return {column: values[0] for column, values in tagger.load().tag([text]).items()}


@pytest.mark.parametrize("language", WORDS)
def test_words_are_those_of_the_language_s_library(language: str) -> None:
    text, expected = WORDS[language]
    assert words.words(language, text) == expected
    assert words.words(language, "") == words.words(language, " \n ") == []


def test_words_of_long_and_damaged_texts() -> None:
    text = "吾輩は猫である。" * 3000
    assert "".join(words.words("ja", text)) == text
    assert words.words("en", "a \ud800 b") == ["a", "\ufffd", "b"]
    assert all("1" not in word for word in words.words("ko", "집에 갔다. " + "1" * 30))


def test_sentences_are_those_of_the_language_s_rules() -> None:
    assert words.sentences("en", "Dr. Smith came. Two? Three") == 3
    assert words.columns("c4", "e.g. Dr. Smith came.\n", sentences="en")["c4_sentences"] == 1
    assert tag("c4", "e.g. Dr. Smith came.\n")["c4_sentences"] == 3


def test_taggers_count_the_words_of_the_language() -> None:
    text = WORDS["zh"][0]
    assert (tag("gopher", text)["words"], words.columns("gopher", text, words="zh")["words"]) == (1, 4)
    assert words.columns("gopher", text, words="zh", stop_words=["我", "来到", "他"])["stop_words"] == 2
    assert words.columns("repetition", text * 4, words="zh")["repeated_5grams"] == 3 / 4
    assert tag("repetition", text * 4)["repeated_5grams"] == 0
    assert words.columns("fineweb", f"{text}\n{text}", words="zh")["newlines_per_word"] == 1 / 10


def test_stop_words_can_be_set_without_a_library() -> None:
    assert tag("gopher", "der und die", stop_words=["der", "die", "das"])["stop_words"] == 2
    assert tag("gopher", "the and die")["stop_words"] == 2


def test_c4_keeps_lines_by_its_settings() -> None:
    text = "A line without an end\nFour words are here.\nFive words are in here.\njavascript is in this line."
    assert tag("c4", text)["c4_lines"] == 2
    assert tag("c4", text, min_words=5)["c4_lines"] == 1
    assert tag("c4", text, punctuation=False)["c4_lines"] == 3


def test_fineweb_measures_only_the_lines_that_c4_keeps() -> None:
    text = "Menu\nHome\nThis line has more than thirty characters in it.[3]\nuses cookies in this line\n\nAbout us"
    alone = tag("fineweb", "This line has more than thirty characters in it.")
    assert tag("fineweb", text, c4={"punctuation": False}) == alone
    assert tag("fineweb", text)["short_lines"] == 4 / 5


def test_a_measure_of_c4_s_lines_has_the_version_of_c4(monkeypatch: pytest.MonkeyPatch) -> None:
    tagger = BuiltInTagger(name="fineweb", columns={}, settings={"c4": {}})
    version, version_of_all_lines = tagger.version, load_tagger("fineweb").version()
    monkeypatch.setattr(fineweb, "C4_VERSION", "changed")
    assert tagger.version != version
    assert load_tagger("fineweb").version() == version_of_all_lines


def test_settings_are_part_of_the_version() -> None:
    taggers = [
        BuiltInTagger(name="gopher", columns={}, settings=settings)
        for settings in ({}, {"stop_words": ("a",)}, {"stop_words": ("b",)})
    ]
    assert taggers[0].version == load_tagger("gopher").version()
    assert len({tagger.version for tagger in taggers}) == 3


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipt, "find_installed_version", lambda _: None)
    with raises(ConfigError, "words", "spacy", "'dataprep-assets[words]'"):
        describe_words("en")


@pytest.mark.parametrize(
    "tagger",
    [
        {"gopher": {"words": "xx"}},
        {"gopher": {}, "c4": {}},
        {"gopher": None},
        {"c4": {"sentences": "zh"}},
        {"c4": {"min_words": 0}},
        {"fasttext": {"model": "m.bin"}},
    ],
)
def test_unfit_settings_are_refused(tagger: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Tags).validate_python([tagger])
