"""The hashed words of a batch of texts equal the words of each text, for any characters."""

import random
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep_assets.curation.duplicates.words import fold_text, is_unspaced, split_words
from dataprep_assets.curation.planted.language import SENTENCES
from dataprep_assets.curation.text_arrays.word_hashes import hash_words
from dataprep_assets.tokenization.document_ids import hash_id

_HOSTILE_WORDS = (
    "ab AB c\u0327 e\u0301 \u0301 \u0302\u0327 q\u0307\u0323 <\u0338 \u1100\u1161\u11a8 \uac00\u11a8 "
    "\ud55c \u0928\u093c \u0958 \u0995\u09cb \u09c7\u09be \u0e01\u0e34\u0e19 \u1780\u17b6 \u4e2d\u6587 "
    "\uff76\uff9e \uff21\uff22 \ufb01 \ufb03 \u00df \u0130 \u0149 \u1e9e \u03c2 \u03a3 \u1fb3 \u0345 "
    "\u2126 \u212a \u212b \u00bd \u00b2 \u2083 \u2122 \u2026 \u203d \u00b4 \u037a \u2474 \u2103 \u00a0 "
    "\u3000 \u200d \u00ad \ufe0f \ufeff \u2019 \u201c \u2013 \u2212 \u3002 \uff0c \U0001f600 "
    "\U0001f469\u200d\U0001f680 \U00020000 \U0001d400 \ufdfa \u01c5 \u023a \u10a0 \u13a0 \uab70 \x00 \x1c "
    "\x85 \u2028 _ - . 42 "
)
_PARTS = _HOSTILE_WORDS.split(" ")
_CHARACTERS = sorted({*"".join(_PARTS), "\ud800", "\n"})
texts = st.one_of(
    st.text(st.sampled_from(_CHARACTERS), max_size=30),
    st.lists(st.sampled_from(_PARTS), max_size=20).map("".join),
    st.text(max_size=20),
)


def assert_words_equal(batch: list[str]) -> None:
    """Compare the hashed words of a batch with the words of each text."""
    for signs in (False, True):
        split = [split_words(text, signs=signs) for text in batch]
        words = hash_words(batch, signs=signs)
        assert words.counts.tolist() == [*map(len, split)]
        flat = [word for text_words in split for word in text_words]
        assert words.hashes.tolist() == [*map(hash_id, flat)]
        begins = [word[0].encode()[0] if is_unspaced(word[0]) else 0 for word in flat]
        if not signs:
            assert words.letters.tolist() == begins


@settings(max_examples=100, deadline=None)
@given(batch=st.lists(texts.filter(lambda text: not text or any(map(str.isalnum, text))), max_size=6))
def test_hashed_words_equal_the_words_of_each_text(batch: list[str]) -> None:
    assert_words_equal(batch)


def test_hashed_words_equal_the_words_of_texts_in_many_languages() -> None:
    sentences = [sentence for language in SENTENCES.values() for sentence in language]
    decomposed = [unicodedata.normalize("NFKD", sentence) for sentence in sentences]
    assert_words_equal([*sentences, *map(str.upper, sentences), *decomposed, " ".join(sentences) * 20])


def test_hashed_words_equal_the_words_of_any_character_next_to_others() -> None:
    draw = random.Random(11)
    characters = [chr(code) for code in draw.sample([*range(0xD800), *range(0xE000, 0x20000)], 4_000)]
    assert_words_equal([f"a{character}b {character}9 {character}{character} z" for character in characters])
    assert_words_equal(["x ".join(characters)])


@pytest.mark.slow
def test_each_character_of_a_folded_text_is_its_own_folded_form() -> None:
    every_character = " ".join(map(chr, range(0x110000)))
    for signs in (False, True):
        folded = fold_text(every_character, signs=signs)
        assert fold_text(folded, signs=signs) == folded
