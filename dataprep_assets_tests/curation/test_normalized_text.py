"""No built-in tagger, and no word that deduplication compares, depends on how a text was typed."""

import random
import re
import unicodedata
from collections.abc import Callable, Mapping

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dataprep_assets.curation.duplicates.words import split_words
from dataprep_assets.curation.taggers import TAGGERS
from dataprep_assets.curation.tagging import load_tagger
from dataprep_assets.curation.text_tagger import normalize_text

_TEXT = """
the river was high with cold water and people of Zürich, Łódź or Đà Nẵng had to walk; café naïve # ... … - • { [12]
lorem ipsum 港は本日閉鎖 한국어 Привет ada@example.org +49 30 1234567 DE89 3704 0044 0532 0130 00 8.8.8.8 \U0001f642
"""
_WORDS = _TEXT.split()
_MARKS = (".", ".", "!", "?", "...", "…", "。", "", '."')

words = st.lists(st.sampled_from(_WORDS), min_size=1, max_size=25)
line_texts = st.tuples(words, st.sampled_from(_MARKS)).map(lambda both: " ".join(both[0]) + both[1])
paragraphs = st.lists(line_texts, min_size=1, max_size=5).map("\n".join)
pages = (
    st.lists(paragraphs, min_size=0, max_size=6).map("\n\n".join).map(lambda text: unicodedata.normalize("NFC", text))
)

TYPINGS: Mapping[str, Callable[[str], str]] = {
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "CR": lambda text: text.replace("\n", "\r"),
    "U+2028": lambda text: text.replace("\n", "\u2028"),
    "NEL": lambda text: text.replace("\n", "\x85"),
    "form feeds": lambda text: text.replace("\n\n", "\n\f\n"),
    "blanks on empty lines": lambda text: text.replace("\n\n", "\n \t\n"),
    "blanks at line ends": lambda text: text.replace("\n", " \n") + "\t ",
    "indented": lambda text: re.sub(r"(?m)^(?=.)", "    ", text),
    "more empty lines": lambda text: text.replace("\n\n", "\n\n\n \n"),
    "blanks and lines around": lambda text: " " * 1_000 + "\n\n" + text + "\r\n\r\n",
    "two blanks after a sentence": lambda text: text.replace(". ", ".  "),
    "tabs": lambda text: text.replace(" ", "\t"),
    "no-break spaces": lambda text: text.replace(" ", "\u00a0"),
    "narrow and ideographic spaces": lambda text: text.replace(" ", "\u202f", 3).replace(" ", "\u3000", 2),
    "NFD": lambda text: unicodedata.normalize("NFD", text),
    "byte order mark": lambda text: "\ufeff" + text,
    "zero-width spaces": lambda text: text.replace("e", "e\u200b"),
    "soft hyphens": lambda text: text.replace("er", "e\u00adr"),
    "marks of direction": lambda text: "\u200e" + text.replace("\n", "\u200f\n"),
}
_LINE_ENDS = ("CRLF", "CR", "U+2028", "NEL")


@pytest.mark.parametrize("name", list(TAGGERS))
@settings(max_examples=25, deadline=None)
@given(page=pages)
def test_line_ends_white_space_and_unicode_form_change_no_tagger_column(name: str, page: str) -> None:
    tag = load_tagger(name).tag
    plain = tag([page])
    for typing, typed in TYPINGS.items():
        assert tag([typed(page)]) == plain, typing


@settings(max_examples=50, deadline=None)
@given(page=pages, seed=st.integers(0, 1_000))
def test_combined_typing_variants_are_normalized_and_a_normalized_text_stays(page: str, seed: int) -> None:
    plain = normalize_text(page)
    assert normalize_text(plain) == plain
    chosen = random.Random(seed).sample([name for name in TYPINGS if name not in _LINE_ENDS], 6)
    typed = page
    # Line ends come last, because the other variants search for `\n`.
    for name in [*chosen, random.Random(seed).choice(_LINE_ENDS)]:
        typed = TYPINGS[name](typed)
    assert normalize_text(typed) == plain


@settings(max_examples=50, deadline=None)
@given(page=pages)
def test_the_words_for_deduplication_do_not_depend_on_typing(page: str) -> None:
    assume(any(map(str.isalnum, page)))
    for typing, typed in TYPINGS.items():
        assert split_words(typed(page)) == split_words(page), typing


def test_spelling_is_not_normalized_away() -> None:
    for text in ("می\u200cخواهم", "\U0001f469\u200d\U0001f680", "ﬁne", "Ａ", "x\n\ny", "x\ny", "x y"):
        assert normalize_text(text) == text
    assert normalize_text(" \ufeff\r\n\u200b") == ""
