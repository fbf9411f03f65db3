"""The tokens of each document that steps read are counted from the schedule, through every change."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dataprep_assets.serving.sampler.seen import count_tokens_read
from dataprep_assets_tests.serving.histories import history, readings_of


@pytest.mark.parametrize("seed", range(6))
def test_counted_tokens_of_each_document_equal_those_of_the_spans(seed: int) -> None:
    run = history(seed)
    sampler = run.sampler()
    ledger: Any = SimpleNamespace(
        data=SimpleNamespace(sampler=sampler, open_document_ends=lambda shard: run.world.documents(shard.content).ends)
    )
    until = min(sampler.end, run.schedule.revisions[-1].first_step + 60)
    expected = Counter(token for _, _, token in readings_of(run, until))
    found = Counter[int]()
    distinct: set[int] = set()
    for (_, content), reads in count_tokens_read(ledger, until).items():
        for document, count in zip(run.world.contents[content], reads.tokens.tolist(), strict=True):
            # Add the counts, because a document may be in several shards, before and after a retraction.
            found[document[0]] += count
        bounds = np.column_stack([reads.starts, reads.stops]).ravel()
        assert np.all(np.diff(bounds) > 0)
        numbers = run.world.numbers(content)
        distinct |= {token for start, stop in bounds.reshape(-1, 2).tolist() for token in numbers[start:stop].tolist()}
    by_first = Counter[int]()
    for documents in run.world.contents.values():
        by_first.update({one[0]: sum(expected[token] for token in one) for one in documents if one[0] not in by_first})
    assert {first: count for first, count in found.items() if count} == {k: v for k, v in by_first.items() if v}
    assert sum(found.values()) == sum(expected.values())
    assert distinct == {*expected}
