"""Built-in taggers find planted cases in any document, count them correctly, and the cases stay the same."""

import pytest

from dataprep_assets.curation.planted import PlantedCase, PlantedCounts, count_found, sum_by_kind
from dataprep_assets.curation.taggers import TAGGERS
from dataprep_assets.curation.tagging import load_tagger

WITH_CASES = ("language", "personal", "repetition")
AROUND = [
    "",
    "A short one.",
    "Two lines\nof a text with 12 numbers 2023-01-02 and (brackets).\n" * 3,
    "日本語。\n\n" * 9,
]


def test_every_tagger_with_a_truth_has_cases() -> None:
    assert [name for name in TAGGERS if load_tagger(name).planted is not None] == list(WITH_CASES)


@pytest.mark.parametrize("name", WITH_CASES)
def test_a_tagger_finds_its_cases_and_no_others(name: str) -> None:
    tagger = load_tagger(name)
    assert tagger.planted is not None
    cases = list(tagger.planted())
    assert [case.text for case in cases] == [case.text for case in tagger.planted()]
    counts = sum_by_kind(count_found(cases, tagger.tag, AROUND))
    assert min(one.planted for one in counts.values()) >= 10
    assert min(one.negatives for one in counts.values()) >= 10
    assert {kind: (one.recall, one.precision) for kind, one in counts.items()} == dict.fromkeys(counts, (1.0, 1.0))


def test_recall_is_a_share_of_planted_cases_and_precision_of_found_ones() -> None:
    def is_found(before: dict[str, int], after: dict[str, int]) -> bool:
        return after["x"] > before["x"]

    def case(text: str, *, positive: bool) -> PlantedCase:
        return PlantedCase(kind="exes, plain", text=text, is_found=is_found, positive=positive)  # type: ignore[arg-type]

    cases = [*(case(text, positive=True) for text in ("x", "xx", "y", "x")), case("xy", positive=False)]
    counts = count_found(cases, lambda texts: {"x": [text.count("x") for text in texts]}, ["x marks"])
    assert counts == {"exes, plain": PlantedCounts(planted=4, found=3, negatives=1, mistaken=1)}
    (one,) = sum_by_kind(counts).values()
    assert (one.recall, one.precision) == (0.75, 0.75)
