"""The end of a run is short: sections are cut where they are longest, and say what is left out."""

import re

import pytest

from dataprep_assets.engine.artifact.summary import shorten_sections


@pytest.mark.parametrize("sizes", [(3, 2, 1, 4), (9, 12, 20, 6), (200, 3, 1, 0), (40, 40, 40, 40), (0, 0, 1, 70)])
def test_the_longest_sections_are_cut_and_say_by_how_much(sizes: tuple[int, ...]) -> None:
    sections = [[f"{at}.{line}" for line in range(size)] for at, size in enumerate(sizes)]
    kept = shorten_sections(sections, "dataprep show pages")
    assert sum(map(len, kept)) + len([lines for lines in kept if lines]) <= 30
    for before, after in zip(sections, kept, strict=True):
        if before != after:
            cut = re.fullmatch(r"  and (\d+) more: dataprep show pages", after[-1])
            assert cut is not None
            assert after[:-1] == before[: len(after) - 1]
            assert len(after) - 1 + int(cut[1]) == len(before)
    longest = max(map(len, kept))
    assert all(len(after) >= longest - 1 for before, after in zip(sections, kept, strict=True) if before != after)
