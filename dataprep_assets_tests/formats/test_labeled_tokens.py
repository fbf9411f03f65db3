"""Tests of labeled tokens: blocks are compared sequence by sequence, at any block boundaries."""

from random import Random

import numpy as np
import pytest

from dataprep_assets.formats.conversations.labeled_tokens import LabeledTokens, find_first_difference

SEQUENCES = [([1, 2, 3], [-100, 2, 3]), ([4], [-100]), ([5, 6], [-100, 6]), ([7, 8, 9, 10], [-100, 8, -100, 10])]


def make_blocks(sequences: list[tuple[list[int], list[int]]], seed: int) -> list[LabeledTokens]:
    """Return the sequences in blocks of different sizes, some of them empty."""
    random, found, start = Random(seed), [], 0
    while start < len(sequences):
        part = sequences[start : start + random.randrange(4)]
        start += len(part)
        found.append(
            LabeledTokens(
                ids=np.array([i for ids, _ in part for i in ids], np.int32),
                labels=np.array([i for _, labels in part for i in labels], np.int32),
                lengths=np.array([len(ids) for ids, _ in part], np.int64),
            )
        )
    return found


@pytest.mark.parametrize("seed", range(10))
def test_the_first_difference_is_found_at_any_block_boundaries(seed: int) -> None:
    def compare(changed: list[tuple[list[int], list[int]]]) -> tuple[int, str] | None:
        return find_first_difference(make_blocks(changed, seed), make_blocks(SEQUENCES * 3, seed + 100))

    assert compare(SEQUENCES * 3) is None
    for number in range(12):
        ids, labels = (SEQUENCES * 3)[number]
        for other, part in (
            ((ids[:-1], labels[:-1]), "ids"),
            (([*ids[:-1], 99], labels), "ids"),
            ((ids, [*labels[:-1], 99]), "labels"),
        ):
            changed = SEQUENCES * 3
            changed[number] = other
            assert compare(changed) == (number, part)
    assert compare(SEQUENCES * 2) == (8, "fewer")
    assert compare([*SEQUENCES * 3, ([1], [-100])]) == (12, "more")
    # The same tokens in different sequences are a difference.
    assert compare([([1, 2, 3, 4], [-100, 2, 3, -100]), *(SEQUENCES * 3)[2:]]) == (0, "ids")
