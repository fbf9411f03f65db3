"""The fast language model gives the values of py3langid, and its assumption about the automaton holds."""

import random
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep_assets.curation.languages.language_model import _GAP, _WINDOW, LanguageModel
from dataprep_assets.curation.planted.language import SENTENCES, yield_cases
from dataprep_assets.curation.tagging import load_tagger
from dataprep_assets.curation.text_tagger import normalize_text

langid = pytest.importorskip("py3langid.langid")


@cache
def load_identifier() -> Any:
    """Return py3langid's own implementation."""
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)


@cache
def load_model() -> LanguageModel:
    """Return the fast implementation."""
    return LanguageModel(load_identifier())


def assert_equal(texts: list[str]) -> None:
    """Compare languages, and scores to the last bit."""
    assert load_model().classify(texts) == [load_identifier().classify(text) for text in texts]


def test_planted_cases_and_parts_of_them_get_the_values_of_py3langid() -> None:
    texts = [case.text for case in yield_cases()]
    assert_equal([*texts, *[text[:size] for text in texts for size in (0, 1, 2, 5, 12, 40)], *map(str.upper, texts)])


def test_mixed_and_strange_texts_get_the_values_of_py3langid() -> None:
    rng = random.Random(0)
    words = " ".join(text for texts in SENTENCES.values() for text in texts).split()
    texts = [" ".join(rng.choices(words, k=rng.choice([1, 4, 30, 200]))) for _ in range(300)]
    texts += ["".join(chr(rng.randrange(sys.maxunicode + 1)) for _ in range(50)) for _ in range(50)]
    assert_equal([*texts, "\ud800", "\x00", "ÿ" * 1000, "a" * 5000])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(st.characters(codec=None), max_size=60), min_size=1, max_size=5))
def test_generated_texts_get_the_values_of_py3langid(texts: list[str]) -> None:
    assert_equal(texts)


def test_the_tagger_classifies_the_first_characters_of_a_normalized_text() -> None:
    text = "The  harbour is\r\nclosed. " * 30 + "Der Hafen ist geschlossen. " * 100
    language, score = load_identifier().classify(normalize_text(text)[:1000])
    assert load_tagger("language").tag([text, ""]) == {
        "language": [language, None],
        "language_score": [round(score, 4), None],
    }


def test_the_last_bytes_determine_the_state_of_the_automaton() -> None:
    identifier = load_identifier()
    rows, next_states = np.asarray(identifier.tk_row), np.asarray(identifier.tk_nextmove).reshape(-1, 256)
    # Two states are equal after some bytes if their successors for each byte are equal after one byte less.
    rng = np.random.default_rng(0)
    weights = rng.integers(1, 1 << 63, 256, np.uint64) | np.uint64(1)
    classes = np.arange(len(rows), dtype=np.uint64)
    for _ in range(_WINDOW):
        assert len(np.unique(classes)) > 1
        classes = ((classes[next_states] + np.uint64(1)) * weights).sum(axis=1, dtype=np.uint64)[rows]
    assert len(np.unique(classes)) == 1
    assert next_states[rows[0], _GAP[0]] == 0
