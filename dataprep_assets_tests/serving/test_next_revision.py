"""Impossible revisions are refused with the reason and the remedy."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.serving.sampler.next_revision import (
    CurrentSource,
    DocumentEnds,
    RevisionRequest,
    add_revision,
    find_changed_ranges,
)
from dataprep_assets.serving.sampler.packs import pack_shard
from dataprep_assets.serving.sampler.sampler import Sampler
from dataprep_assets.serving.sampler.training_schedule import ScheduleHistory, SourceShard
from dataprep_assets_tests.messages import raises

WANTED = RevisionRequest(name="run", batch=4, sequence_length=8, seed=0, samples="windows", steps=100)
BOOKS = CurrentSource(
    name="books",
    dataset="books",
    split="train",
    dtype="uint16",
    tokenizer="t",
    weight=1.0,
    shards=(("train-00000", "a", 30), ("train-00001", "b", 20)),
)
DOCUMENTS = {
    "a": DocumentEnds(ends=np.array([10, 20, 30], np.uint64), ids=np.array([1, 2, 3], np.uint64)),
    "without 2": DocumentEnds(ends=np.array([10, 20], np.uint64), ids=np.array([1, 3], np.uint64)),
    "two alike": DocumentEnds(ends=np.array([10, 20, 30], np.uint64), ids=np.array([1, 3, 1], np.uint64)),
    "the first of them gone": DocumentEnds(ends=np.array([10, 20], np.uint64), ids=np.array([3, 1], np.uint64)),
    "the last of them gone": DocumentEnds(ends=np.array([10, 20], np.uint64), ids=np.array([1, 3], np.uint64)),
    "other": DocumentEnds(ends=np.array([10, 25], np.uint64), ids=np.array([1, 3], np.uint64)),
    "in another order": DocumentEnds(ends=np.array([10, 20, 30], np.uint64), ids=np.array([2, 1, 3], np.uint64)),
    "2": DocumentEnds(ends=np.array([10], np.uint64), ids=np.array([2], np.uint64)),
    "nameless": DocumentEnds(ends=np.array([10], np.uint64), ids=None),
    "nothing": DocumentEnds(ends=np.empty(0, np.uint64), ids=np.empty(0, np.uint64)),
    "b": DocumentEnds(ends=np.array([20], np.uint64), ids=np.array([9], np.uint64)),
}


def packs(shard: SourceShard, length: int) -> Any:
    return pack_shard(DOCUMENTS[shard.content].ends, length)


def revise(
    before: ScheduleHistory | None, wanted: RevisionRequest, *sources: CurrentSource, **more: Any
) -> ScheduleHistory:
    return add_revision(before, wanted, sources, documents=DOCUMENTS.__getitem__, packs=packs, **more)


def with_shard(content: str, tokens: int) -> CurrentSource:
    return replace(BOOKS, shards=(("train-00000", content, tokens), *BOOKS.shards[1:]))


FIRST = revise(None, WANTED, BOOKS)


def test_a_retracted_document_is_a_missing_range() -> None:
    made = revise(FIRST, WANTED, with_shard("without 2", 20), from_step=1)
    assert made.revisions[1].sources[0].shards[0].removed == ((10, 20),)


@pytest.mark.parametrize(("now", "gone"), [("the first of them gone", (0, 10)), ("the last of them gone", (20, 30))])
def test_one_of_two_documents_with_equal_texts_may_be_removed(now: str, gone: tuple[int, int]) -> None:
    assert find_changed_ranges(DOCUMENTS["two alike"], DOCUMENTS[now]) == ((gone,), ())


def test_a_document_with_a_changed_text_is_removed_and_new() -> None:
    assert find_changed_ranges(DOCUMENTS["a"], DOCUMENTS["other"]) == (((10, 30),), ((10, 25),))
    assert find_changed_ranges(DOCUMENTS["a"], DOCUMENTS["b"]) == (((0, 30),), ()), "another shard, all of which is new"
    made = revise(FIRST, WANTED, with_shard("other", 25), from_step=1)
    assert ScheduleHistory.from_json(made.to_json()) == made
    assert made.revisions[1].sources[0].shards[0].added == ((10, 25),)
    assert "added" not in FIRST.to_bytes().decode()


def test_a_moved_document_is_refused() -> None:
    with raises(ConfigError, "train-00000", "moved"):
        revise(FIRST, WANTED, with_shard("in another order", 30), from_step=1)


@pytest.mark.parametrize(
    "shards",
    [
        (("train-00000", "without 2", 20), ("train-00001", "b", 20), ("train-00002", "2", 10)),
        (("train-00001", "b", 20), ("train-00002", "a", 30)),
        (("train-00000", "b", 20), ("train-00001", "a", 30)),
    ],
    ids=["one to a new shard", "a shard with another name", "two shards change places"],
)
def test_a_document_moved_to_its_own_shard_is_refused(shards: tuple[tuple[str, str, int], ...]) -> None:
    with raises(ConfigError, "moved"):
        revise(FIRST, WANTED, replace(BOOKS, shards=shards), from_step=1)


def test_a_run_with_a_second_tokenizer_is_refused() -> None:
    other = replace(BOOKS, tokenizer="u")
    with raises(ConfigError, "tokenizer"):
        revise(FIRST, WANTED, other, from_step=1)
    assert revise(FIRST, WANTED, other, from_step=0).revisions[1].sources[0].tokenizer == "u", "nothing was read before"


def test_documents_added_to_an_empty_shard_are_read_in_the_current_epoch() -> None:
    wanted = replace(WANTED, batch=1, steps=None)
    empty = replace(BOOKS, epochs=1, shards=(("train-00000", "a", 30), ("train-00001", "nothing", 0)))
    first = revise(None, wanted, empty)
    filled = replace(empty, shards=(("train-00000", "a", 30), ("train-00001", "b", 20)))
    assert (Sampler(first).end, Sampler(revise(first, wanted, filled, from_step=2)).end) == (4, 4 + 3)


def test_going_back_discards_the_later_steps() -> None:
    later = revise(FIRST, replace(WANTED, batch=2), BOOKS, from_step=50)
    back = revise(later, replace(WANTED, batch=3), BOOKS, from_step=20, trained=60)
    assert [(r.revision, r.first, r.stop) for r in back.intervals] == [(0, 0, 20), (2, 20, None)]
    assert [(r.revision, r.first, r.stop) for r in back.withdrawn_intervals] == [(0, 20, 50), (1, 50, 60)]


def test_a_later_revision_is_undone_by_one_that_reads_the_earlier_data() -> None:
    later = revise(FIRST, replace(WANTED, batch=2), BOOKS, from_step=30)
    undone = revise(later, WANTED, BOOKS, from_step=25)
    assert [(r.revision, r.first, r.stop) for r in undone.intervals] == [(0, 0, 25), (2, 25, None)]
    with raises(ConfigError, 40, "nothing"):
        revise(undone, WANTED, BOOKS, from_step=40)


def test_a_revision_replaces_revisions_without_trained_steps() -> None:
    unmade = revise(FIRST, WANTED, with_shard("without 2", 20), from_step=30, trained=60).revisions[1:]
    replaced = revise(FIRST, replace(WANTED, batch=2), BOOKS, from_step=30, unmade=unmade)
    assert [(r.revision, r.first, r.stop) for r in replaced.withdrawn_intervals] == [(0, 30, 60)]
    assert [(r.revision, r.first, r.stop) for r in replaced.intervals] == [(0, 0, 30), (1, 30, None)]
    undone = revise(FIRST, WANTED, BOOKS, from_step=30, unmade=unmade)
    assert len(undone.revisions) == 2
    with raises(ConfigError, "changed"):
        revise(FIRST, WANTED, with_shard("without 2", 20), from_step=30, unmade=unmade)


def test_discarded_steps_are_not_discarded_again() -> None:
    back = revise(FIRST, replace(WANTED, batch=3), BOOKS, from_step=30, trained=60)
    again = revise(back, replace(WANTED, batch=2), BOOKS, from_step=35)
    assert again.revisions[-1].trained == 35
    assert [(r.revision, r.first, r.stop) for r in again.withdrawn_intervals] == [(0, 30, 60)]
    assert revise(back, replace(WANTED, batch=2), BOOKS, from_step=20).revisions[-1].trained == 30


@pytest.mark.parametrize(
    ("wanted", "sources", "more", "values"),
    [
        (WANTED, (BOOKS,), {"from_step": 5}, (5, "nothing")),
        (WANTED, (BOOKS,), {"from_step": 101}, ("--from-step", 101, 0, 100)),
        (WANTED, (BOOKS,), {"from_step": 5, "trained": 4}, ("--trained", 4, "--from-step", 5)),
        (WANTED, (with_shard("nameless", 10),), {"from_step": 5}, ("books", "ids")),
        (replace(WANTED, steps=5), (BOOKS,), {"from_step": 5}, ("steps", 5)),
        (WANTED, (BOOKS, replace(BOOKS, name="tales")), {"from_step": 5}, ("twice",)),
        (WANTED, (BOOKS, BOOKS), {"from_step": 5}, ("books", "name")),
        (WANTED, (BOOKS, replace(BOOKS, tokenizer="u")), {"from_step": 5}, ("tokenizer",)),
        (WANTED, (), {"from_step": 5}, ("sources",)),
        (replace(WANTED, steps=None), (BOOKS,), {"from_step": 5}, ("ends",)),
        (WANTED, (replace(BOOKS, epochs=1),), {"from_step": 50}, ("books",)),
        (replace(WANTED, samples="words"), (BOOKS,), {"from_step": 5}, ("samples", "windows", "documents")),
    ],
)  # fmt: skip
def test_an_impossible_revision_is_refused(wanted: Any, sources: Any, more: Any, values: tuple[object, ...]) -> None:
    with raises(ConfigError, *values):
        revise(FIRST, wanted, *sources, **more)


def test_whole_documents_that_would_be_truncated_are_refused() -> None:
    packed = replace(WANTED, samples="documents", sequence_length=16)
    first = revise(None, packed, BOOKS)
    assert revise(first, replace(packed, sequence_length=32), BOOKS, from_step=1)
    with raises(ConfigError, 16):
        revise(first, replace(packed, sequence_length=24), BOOKS, from_step=1)


def test_a_first_revision_starts_at_step_0() -> None:
    with raises(ConfigError, 0):
        revise(None, WANTED, BOOKS, from_step=3)
