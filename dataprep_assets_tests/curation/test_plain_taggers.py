"""The fast taggers of repetition and quality return exactly the values of plain implementations."""

import random
import re
import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep_assets.curation.planted.personal import yield_cases
from dataprep_assets.curation.taggers import personal
from dataprep_assets.curation.tagging import load_tagger
from dataprep_assets.curation.text_arrays import split_texts
from dataprep_assets.curation.text_arrays.split_texts import (
    ALPHABETIC,
    ALPHANUMERIC,
    DIGIT,
    LINE_END,
    SPACE,
    build_kinds,
    number_values,
    split_batch,
)
from dataprep_assets.curation.text_tagger import TextTagger, compose_text, normalize_text
from dataprep_assets_tests.curation.plain_taggers import MEASURES, PATTERNS

_SPACES = (
    *(" ", " ", " ", " ", "  ", "\n", "\n", "\n\n", "\n \n", "\r\n", "\r", "\r\r\n", "\t", "\v", "\f", "\x1c", "\x1f"),
    *("\x85", "\xa0", "\u1680", "\u2009", "\u2028", "\u2029", "\u3000", "\u200b", "\ufeff", "\xad", "", ""),
)
_TEXT = """
the be to of and that have with The them a b cat cat. dog word 42 3.14 ² ½ ٣ ⅷ é ß ſ … ... .. . ! ? 中 日本語。
港は本日閉鎖 한국어 Привет слово. мир! שלום سلام ไทย ኢ 。 ！ " ' ” ’ ) ] ( [ { } # • - — [12] [٣] [edit] [] javascript
JavaScript java\u017fcript cook\u0130es coo\u212aies end." end.)] x?! x”) e\u0301 \u0301 ᄒ ᅡ \U0001f642
\U0001f469\u200d\U0001f680
"""
_WORDS = (
    *_TEXT.split(),
    *("[citation needed]", "lorem ipsum", "LOREM Ipsum", "uses cookies", "Cookie policy", "privacy policy", "- item"),
    *("Terms of use", "\ud800", "\udc00", "\x00", "\x01", "\x7f", "A line of enough words.", "x" * 30, "x" * 31),
    *("w" * 1000, "w" * 1001),
)
pieces = st.lists(st.tuples(st.sampled_from(_WORDS), st.sampled_from(_SPACES)).map("".join), max_size=30).map("".join)
repeated_words = st.lists(st.sampled_from(["a ", "b ", "the ", "cat.\n", "x\n\n"]), max_size=120).map("".join)
texts = st.one_of(pieces, pieces, repeated_words, st.text(st.characters(codec=None), max_size=30))


def assert_equal(name: str, batch: list[str]) -> None:
    """Compare the columns of a tagger and of its plain implementation."""
    tagger = load_tagger(name)
    expected = [MEASURES[name](normalize_text(text)) for text in batch]
    columns = zip(*expected, strict=True) if batch else [()] * len(tagger.columns)
    # Compare representations, because they also differ for values of different types, such as 1 and 1.0.
    assert repr(dict(tagger.tag(batch))) == repr(dict(zip(tagger.columns, map(list, columns), strict=True)))


@pytest.mark.parametrize("name", list(MEASURES))
@settings(max_examples=150, deadline=None)
@given(batch=st.lists(texts, max_size=8))
def test_a_tagger_equals_its_plain_implementation(name: str, batch: list[str]) -> None:
    assert_equal(name, batch)


@pytest.mark.parametrize("name", list(MEASURES))
def test_a_tagger_equals_its_plain_implementation_in_small_groups(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_texts, "_GROUP_CHARACTERS", 2_000)
    rng = random.Random(0)
    batch = [
        "".join(rng.choice(_WORDS) + rng.choice(_SPACES) for _ in range(rng.choice([0, 1, 3, 10, 60])))
        for _ in range(600)
    ]
    assert_equal(name, batch)


@pytest.mark.parametrize("name", [name for name in MEASURES if name != "repetition"])
@pytest.mark.parametrize("text", [" " * 500_000, "\r\n" * 300_000, "x" * 2_000_000, 'a b.")) ' * 100_000])
def test_a_tagger_equals_its_plain_implementation_for_long_texts(name: str, text: str) -> None:
    assert_equal(name, ["before", text, "é after"])


@given(batch=st.lists(texts, max_size=8))
@settings(max_examples=200, deadline=None)
def test_split_texts_are_normalized(batch: list[str]) -> None:
    groups = split_batch(batch, compose_text)
    found = dict(pair for indices, split in groups for pair in zip(indices, split.texts, strict=True))
    assert [found[index] for index in range(len(batch))] == [*map(normalize_text, batch)]


def test_the_kinds_of_code_points_are_those_of_python() -> None:
    characters = [*map(chr, range(sys.maxunicode + 1))]
    assert (build_kinds() & SPACE > 0).tolist() == [*map(str.isspace, characters)]
    assert (build_kinds() & ALPHANUMERIC > 0).tolist() == [*map(str.isalnum, characters)]
    assert (build_kinds() & ALPHABETIC > 0).tolist() == [*map(str.isalpha, characters)]
    assert (build_kinds() & DIGIT > 0).tolist() == [*map(str.isdecimal, characters)]
    line_ends = [len(f"x{character}x".splitlines()) == 2 for character in characters]
    assert np.flatnonzero(build_kinds() & LINE_END).tolist() == np.flatnonzero(line_ends).tolist()


def test_no_other_letter_of_a_normalized_text_becomes_an_ascii_letter_of_a_phrase() -> None:
    # The lower form of this letter has two characters, and the second one is in no phrase.
    found = [
        character
        for character in map(chr, range(128, sys.maxunicode + 1))
        if unicodedata.is_normalized("NFC", character) and any(one.isascii() for one in character.lower())
    ]
    assert found == ["\u0130"]


def test_only_flagged_characters_change_when_a_text_is_composed() -> None:
    uncomposed_codes = set(split_texts._find_uncomposed_characters(compose_text))
    plain_characters = [chr(code) for code in range(128, sys.maxunicode + 1) if code not in uncomposed_codes]
    assert not any(map(unicodedata.combining, plain_characters))
    joined_text = "\n".join(plain_characters)
    assert compose_text(joined_text) == joined_text
    # No plain character is the second part of a character, so none composes with the character before it.
    all_characters = "\n".join(map(chr, range(sys.maxunicode + 1)))
    parts = {part for line in unicodedata.normalize("NFD", all_characters).split("\n") for part in line[1:]}
    assert not parts.intersection(plain_characters)
    assert "\xad" in map(chr, uncomposed_codes)
    assert not [code for code in uncomposed_codes if code < 256 and code != 0xAD]


@pytest.mark.parametrize("largest", [0, 1, 40, 1 << 45, 1 << 62])
def test_values_get_the_same_number_only_if_they_are_equal(largest: int) -> None:
    rng = random.Random(largest)
    values = np.array([min(rng.randrange(50) * (largest // 40 + 1), largest) for _ in range(1000)])
    assert number_values(values).tolist() == [sorted(set(values)).index(value) for value in values]
    assert number_values(values[:0]).tolist() == []


def test_taggers_of_a_batch_share_the_split_texts_and_a_changed_batch_does_not() -> None:
    batch = ["one text", "another"]
    groups = split_batch(batch, compose_text)
    assert split_batch([*batch], compose_text) is groups
    batch[1] = "a different one"
    assert split_batch(batch, compose_text)[0][1].texts == batch


def test_a_tagger_of_another_package_measures_normalized_texts() -> None:
    tagger = TextTagger.with_measure({"size": "integer"}, lambda text: (len(text),), lambda: "1")
    assert tagger.tag(["a  b\r\n", "é", ""]) == {"size": [3, 1, 0]}
    assert tagger.tag([]) == {"size": []}


_NUMBERS = """
a@b.de +49 30 1234567 030/12 345 67 (0 (030) (415) 555-2671 415.555.2671 0 01 00 + +1 2 9 3 . - / ( ) :
8.8.8.8 1.2.3.4.5 2001:4860::8888 fe80::1 12:34:56 ab:cd:ef DE89 3704 0044 GB29NWBK60161331926819 4111
1111-1111-1111 5555555555554444 3782 822463 10005 12/25 1234567890123 ٣ ० x _ é 中 2023-01-02 01.02.2023 , Z A1
"""


def build_number_text(rng: random.Random, length: int) -> str:
    """Return a text of pieces of numbers and addresses."""
    parts = [*_NUMBERS.split(), *" \n0123-.("]
    return "".join(rng.choice(parts) + rng.choice(["", "", " "]) for _ in range(length))


def test_the_fast_patterns_of_personal_data_match_the_same_text() -> None:
    rng = random.Random(0)
    matches = 0
    for _ in range(10_000):
        text = build_number_text(rng, rng.choice([1, 3, 8, 30]))
        for name, pattern in PATTERNS.items():
            spans = [match.span() for match in re.finditer(pattern, text)]
            assert [match.span() for match in getattr(personal, name).finditer(text)] == spans, (name, text)
            matches += len(spans)
        assert personal._V6_PART.search(text) or not re.search(PATTERNS["_V6"], text)
    assert matches > 10_000


@pytest.mark.parametrize("suffix", ["", "é", "中٣"])
def test_the_tagger_of_personal_data_counts_what_its_patterns_find_anywhere(suffix: str) -> None:
    rng = random.Random(1)
    batch = [build_number_text(rng, rng.choice([0, 1, 3, 8, 30])) for _ in range(6_000)]
    batch += [case.text for case in yield_cases()] * 3
    batch = [text + suffix for text in batch]
    rng.shuffle(batch)
    columns = {
        kind: [sum(1 for _ in find(normalize_text(text))) for text in batch] for kind, find in personal.KINDS.items()
    }
    assert load_tagger("personal").tag(batch) == columns
    assert min(map(sum, columns.values())) > 100
