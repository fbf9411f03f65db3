"""What each version of Unicode added, against Python's own tables; which texts have newer characters."""

import unicodedata

import pytest

from dataprep_assets.tokenization.adversarial import adversarial_documents
from dataprep_assets.tokenization.reference import SETTING, touched
from dataprep_assets.tokenization.unicode_versions import VERSIONS, UnicodeVersion, ranges, with_new_characters

PYTHON = float(unicodedata.unidata_version.rpartition(".")[0])


@pytest.mark.parametrize("version", [one for one in VERSIONS if float(one.name) <= PYTHON], ids=lambda one: one.name)
def test_a_version_that_python_knows_has_the_characters_that_it_says(version: UnicodeVersion) -> None:
    every = [chr(p) for given in (version.letters, version.others) for a, b in ranges(given) for p in range(a, b + 1)]
    assert all(unicodedata.category(character) != "Cn" for character in every)
    assert len(set(every)) == len(every)
    assert all(unicodedata.combining(mark) for mark in version.marks)
    for composed, decomposed in version.compositions:
        assert unicodedata.normalize("NFD", composed) == unicodedata.normalize("NFD", decomposed)


def test_versions_are_in_order_and_share_no_character() -> None:
    names = [float(one.name) for one in VERSIONS]
    assert names == sorted(names)
    seen: set[int] = set()
    for one in VERSIONS:
        points = {p for given in (one.letters, one.others) for a, b in ranges(given) for p in range(a, b + 1)}
        assert not seen & points
        seen |= points
        assert {ord(mark) for mark in one.marks} <= points


def test_texts_with_newer_characters_are_found_among_others() -> None:
    texts = [
        "plain",
        "",
        "é € 中文 🙂 한국어",
        "\u0897",
        "x\U00010570",
        "🫠 emoji of 14.0",
        "\U0001fac8 emoji of 17.0",
        "\ufbc3",
    ]
    assert with_new_characters(texts) == [3, 4, 6, 7]
    assert with_new_characters([]) == []
    every = [mark for one in VERSIONS for mark in (*one.marks, *(a for a, _ in one.compositions))]
    assert with_new_characters([f"ж{mark}" for mark in every]) == list(range(len(every)))


def test_the_adversarial_set_has_marks_and_letters_of_every_version() -> None:
    together = set("".join(text for text in adversarial_documents() if len(text) < 1000))
    for one in VERSIONS:
        assert {*one.sample, *one.marks} <= together


def test_a_change_of_tables_says_which_texts_it_touches_and_other_settings_say_nothing() -> None:
    told = touched(f"{SETTING}.normalization", "Unicode 17.0", "Unicode 9.0")
    assert told.startswith("other ids for texts with combining marks and composed letters that Unicode 17.0 has")
    assert told.endswith("and 9.0 has not, for no others")
    assert touched("dtype", "uint16", "uint32") == ""
