"""Tests of `dataprep_assets.packing.splitting`."""

from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep_assets.errors import ConfigError, FormatError
from dataprep_assets.packing.splitting import Chunks, Rule, SplitRule, find_without_room, split_documents
from dataprep_assets_tests.messages import raises

RULES: tuple[Rule, ...] = get_args(Rule)


@st.composite
def draw_documents(draw: st.DrawFn) -> tuple[list[int], list[int], SplitRule]:
    """Draw `(header lengths, body lengths, rule)` that can be split."""
    rule: Rule = draw(st.sampled_from(RULES))
    row_length = draw(st.integers(1, 40))
    overlap = 0 if rule == "truncate" else draw(st.integers(0, row_length - 1))
    headers = st.integers(0, row_length - overlap - 1)
    pairs = draw(st.lists(st.tuples(headers, st.integers(0, 200)), max_size=12))
    return [h for h, _ in pairs], [b for _, b in pairs], SplitRule(rule=rule, row_length=row_length, overlap=overlap)


def cut(headers: list[int], bodies: list[int], rule: SplitRule) -> Chunks:
    return split_documents(np.array(headers, np.int64), np.array(bodies, np.int64), rule)


def split_by_hand(header: int, body: int, rule: SplitRule) -> list[tuple[int, int, bool]]:
    """Return the chunks of one document as `(start, stop, with header)`, computed by hand."""
    if body == 0:
        return []
    chunks = [(0, min(body, rule.row_length - header), True)]
    while chunks[-1][1] < body and rule.rule != "truncate":
        again = rule.rule == "repeat_header"
        start = chunks[-1][1] - rule.overlap
        chunks.append((start, min(body, start + rule.row_length - header * again), again))
    return chunks


@given(draw_documents())
def test_chunks_equal_those_made_by_hand(case: tuple[list[int], list[int], SplitRule]) -> None:
    headers, bodies, rule = case
    chunks = cut(headers, bodies, rule)
    columns = (chunks.documents, chunks.starts, chunks.stops, chunks.with_header)
    found = list(zip(*(column.tolist() for column in columns), strict=True))
    assert found == [
        (i, *chunk)
        for i, (header, body) in enumerate(zip(headers, bodies, strict=True))
        for chunk in split_by_hand(header, body, rule)
    ]


@given(draw_documents())
def test_chunks_fit_and_lose_only_counted_tokens(case: tuple[list[int], list[int], SplitRule]) -> None:
    headers, bodies, rule = case
    chunks = cut(headers, bodies, rule)
    assert (chunks.lengths <= rule.row_length).all()
    assert (chunks.starts < chunks.stops).all()
    assert chunks.dropped.size == len(bodies)
    for i, (header, body) in enumerate(zip(headers, bodies, strict=True)):
        mine = np.flatnonzero(chunks.documents == i)
        held = {token for at in mine for token in range(chunks.starts[at], chunks.stops[at])}
        assert held == set(range(body - int(chunks.dropped[i])))
        assert rule.rule == "truncate" or chunks.dropped[i] == 0
        assert [int(n) for n in chunks.lengths[mine]] == [
            int(chunks.stops[at] - chunks.starts[at]) + (header if chunks.with_header[at] else 0) for at in mine
        ]
        # Each chunk except the first repeats exactly the overlap and adds new tokens.
        for before, after in pairwise(mine):
            assert chunks.stops[before] - chunks.starts[after] == rule.overlap
            assert chunks.stops[after] > chunks.stops[before]


@pytest.mark.parametrize("rule", RULES)
def test_a_document_that_fits_is_one_chunk_under_every_rule(rule: Rule) -> None:
    chunks = cut([4, 0, 9], [6, 10, 1], SplitRule(rule=rule, row_length=10))
    assert chunks.documents.tolist() == [0, 1, 2]
    assert chunks.lengths.tolist() == [10, 10, 10]
    assert chunks.with_header.all()
    assert not chunks.dropped.any()


def test_truncation_counts_dropped_tokens() -> None:
    chunks = cut([4, 4], [6, 5_000_000], SplitRule(rule="truncate", row_length=10))
    assert chunks.stops.tolist() == [6, 6]
    assert chunks.dropped.tolist() == [0, 4_999_994]


@pytest.mark.parametrize("rule", RULES)
def test_an_empty_body_has_no_chunk_however_long_its_header(rule: Rule) -> None:
    chunks = cut([3, 10, 99], [0, 0, 0], SplitRule(rule=rule, row_length=10))
    assert chunks.documents.size == 0
    assert chunks.dropped.tolist() == [0, 0, 0]
    assert cut([], [], SplitRule(rule=rule, row_length=10)).lengths.size == 0


@pytest.mark.parametrize("rule", RULES)
def test_a_header_that_leaves_no_space_is_refused_with_numbers(rule: Rule) -> None:
    chosen = SplitRule(rule=rule, row_length=10)
    headers, bodies = np.array([3, 10, 9, 12]), np.array([50, 1, 50, 7])
    assert find_without_room(headers, bodies, chosen).tolist() == [1, 3]
    values = (1, 10, "0 of its 1")
    with raises(FormatError, *values):
        split_documents(headers, bodies, chosen)
    split_documents(headers[[0, 2]], bodies[[0, 2]], chosen)


@pytest.mark.parametrize("rule", ["repeat_header", "header_once"])
def test_an_overlap_that_leaves_no_space_is_refused_only_if_documents_are_split(rule: Rule) -> None:
    chosen = SplitRule(rule=rule, row_length=10, overlap=4)
    headers, bodies = np.array([6, 5, 6]), np.array([4, 50, 5])
    assert find_without_room(headers, bodies, chosen).tolist() == [2]
    with raises(FormatError, 2, 4, 5):
        split_documents(headers, bodies, chosen)


@given(
    headers=st.lists(st.integers(0, 15), min_size=6, max_size=6),
    bodies=st.lists(st.integers(0, 60), min_size=6, max_size=6),
    overlap=st.integers(0, 9),
    rule=st.sampled_from(RULES),
)
def test_split_refuses_exactly_the_documents_that_without_room_names(
    headers: list[int], bodies: list[int], overlap: int, rule: Rule
) -> None:
    chosen = SplitRule(rule=rule, row_length=10, overlap=0 if rule == "truncate" else overlap)
    refused = set(find_without_room(np.array(headers), np.array(bodies), chosen).tolist())
    for i in range(6):
        if i in refused:
            with raises(FormatError, 0):
                cut(headers[i : i + 1], bodies[i : i + 1], chosen)
        else:
            assert cut(headers[i : i + 1], bodies[i : i + 1], chosen).lengths.size == len(
                split_by_hand(headers[i], bodies[i], chosen)
            )


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"rule": "halve"}, ("'halve'", *RULES)),
        ({"row_length": 0}, ("row_length", 0)),
        ({"row_length": 2**31}, ("row_length", 2147483648)),
        ({"overlap": -1}, ("overlap", -1, "0 to 9")),
        ({"overlap": 10}, ("overlap", 10, "0 to 9")),
        ({"rule": "truncate", "overlap": 1}, ("overlap", 1, "truncate")),
    ],
)
def test_impossible_rules_are_refused(settings: dict[str, Any], values: tuple[object, ...]) -> None:
    with raises(ConfigError, *values):
        SplitRule(**{"rule": "repeat_header", "row_length": 10, **settings})


@pytest.mark.parametrize(
    ("headers", "bodies", "values"),
    [
        ([1, -2], [1, 1], (1, "header", -2)),
        ([1], [-1], (0, "body", -1)),
        ([1], [1, 2], (1, 2)),
        ([0.5], [1], ("header", "1-d float64")),
        ([[1]], [[1]], ("header", "2-d int64")),
    ],
)
def test_invalid_lengths_are_refused(headers: Any, bodies: Any, values: tuple[object, ...]) -> None:
    with raises(FormatError, *values):
        split_documents(np.array(headers), np.array(bodies), SplitRule(rule="repeat_header", row_length=10))
