"""Characters of each Unicode version, compared with Python's own tables, and in the adversarial set."""

import unicodedata

import pytest

from dataprep_assets.tokenization.certificate import generate_adversarial_documents
from dataprep_assets.tokenization.reference import SETTING, VERSIONS, UnicodeVersion, describe_affected_texts

PYTHON = float(unicodedata.unidata_version.rpartition(".")[0])


@pytest.mark.parametrize("version", [one for one in VERSIONS if float(one.name) <= PYTHON], ids=lambda one: one.name)
def test_a_version_known_to_python_has_its_characters(version: UnicodeVersion) -> None:
    assert all(unicodedata.category(character) != "Cn" for character in version.sample)
    assert all(unicodedata.combining(mark) for mark in version.marks)
    for composed, decomposed in version.compositions:
        assert unicodedata.normalize("NFD", composed) == unicodedata.normalize("NFD", decomposed)


def test_versions_are_in_order_and_disjoint() -> None:
    names = [float(one.name) for one in VERSIONS]
    assert names == sorted(names)
    every = [character for one in VERSIONS for character in (*one.sample, *(a for a, _ in one.compositions))]
    assert len(every) == len(set(every))


def test_the_adversarial_set_has_characters_of_every_version() -> None:
    together = set("".join(text for text in generate_adversarial_documents() if len(text) < 1000))
    for one in VERSIONS:
        assert {*one.sample, *one.marks, *(a for a, _ in one.compositions)} <= together


def test_a_change_of_tables_names_the_affected_texts_and_other_settings_none() -> None:
    told = describe_affected_texts(f"{SETTING}.normalization", "Unicode 17.0", "Unicode 9.0")
    assert told.startswith("different ids for texts with combining marks and composed letters added between Unicode")
    assert told.endswith("all other ids are unchanged")
    assert describe_affected_texts("dtype", "uint16", "uint32") == ""
