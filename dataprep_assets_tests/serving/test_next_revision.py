"""Revisions that cannot be made are refused, with the reason and what to do."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.serving.sampler.next_revision import (
    DocumentEnds,
    FoundSource,
    RevisionRequest,
    add_revision,
    changed_between,
)
from dataprep_assets.serving.sampler.packs import pack_shard
from dataprep_assets.serving.sampler.sampler import Sampler
from dataprep_assets.serving.sampler.training_schedule import ScheduleHistory, SourceShard

WANTED = RevisionRequest(name="run", batch=4, sequence_length=8, seed=0, samples="windows", steps=100)
BOOKS = FoundSource(
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
    before: ScheduleHistory | None, wanted: RevisionRequest, *sources: FoundSource, **more: Any
) -> ScheduleHistory:
    return add_revision(before, wanted, sources, documents=DOCUMENTS.__getitem__, packs=packs, **more)


def with_shard(content: str, tokens: int) -> FoundSource:
    return replace(BOOKS, shards=(("train-00000", content, tokens), *BOOKS.shards[1:]))


FIRST = revise(None, WANTED, BOOKS)


def test_a_retracted_document_is_a_range_that_is_gone() -> None:
    made = revise(FIRST, WANTED, with_shard("without 2", 20), from_step=1)
    assert made.revisions[1].sources[0].shards[0].removed == ((10, 20),)


@pytest.mark.parametrize(("now", "gone"), [("the first of them gone", (0, 10)), ("the last of them gone", (20, 30))])
def test_of_two_documents_with_equal_texts_one_may_go(now: str, gone: tuple[int, int]) -> None:
    assert changed_between(DOCUMENTS["two alike"], DOCUMENTS[now]) == ((gone,), ())


def test_a_document_with_another_text_is_gone_and_new() -> None:
    assert changed_between(DOCUMENTS["a"], DOCUMENTS["other"]) == (((10, 30),), ((10, 25),))
    assert changed_between(DOCUMENTS["a"], DOCUMENTS["b"]) == (((0, 30),), ()), "another shard, all of which is new"
    made = revise(FIRST, WANTED, with_shard("other", 25), from_step=1)
    assert ScheduleHistory.of_json(made.to_json()) == made
    assert made.revisions[1].sources[0].shards[0].added == ((10, 25),)
    assert "added" not in FIRST.to_bytes().decode()


def test_a_document_at_another_place_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match="train-00000 has documents that were at a different place before, so they would be read again",
    ):
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
def test_a_document_that_moved_to_a_shard_of_its_own_is_refused(shards: tuple[tuple[str, str, int], ...]) -> None:
    with pytest.raises(
        ConfigError, match="has documents that were at a different place before, so they would be read again"
    ):
        revise(FIRST, WANTED, replace(BOOKS, shards=shards), from_step=1)


def test_a_run_reads_one_tokenizer() -> None:
    other = replace(BOOKS, tokenizer="u")
    with pytest.raises(ConfigError, match="and a model reads only one"):
        revise(FIRST, WANTED, other, from_step=1)
    assert revise(FIRST, WANTED, other, from_step=0).revisions[1].sources[0].tokenizer == "u", "nothing was read before"


def test_what_comes_into_a_shard_that_was_empty_is_read_in_the_epoch_under_way() -> None:
    wanted = replace(WANTED, batch=1, steps=None)
    empty = replace(BOOKS, epochs=1, shards=(("train-00000", "a", 30), ("train-00001", "nothing", 0)))
    first = revise(None, wanted, empty)
    filled = replace(empty, shards=(("train-00000", "a", 30), ("train-00001", "b", 20)))
    assert (Sampler(first).end, Sampler(revise(first, wanted, filled, from_step=2)).end) == (4, 4 + 3)


def test_going_back_takes_the_steps_after_it_back() -> None:
    later = revise(FIRST, replace(WANTED, batch=2), BOOKS, from_step=50)
    back = revise(later, replace(WANTED, batch=3), BOOKS, from_step=20, trained=60)
    assert [(r.revision, r.first, r.stop) for r in back.reigns] == [(0, 0, 20), (2, 20, None)]
    assert [(r.revision, r.first, r.stop) for r in back.taken_back] == [(0, 20, 50), (1, 50, 60)]


def test_a_later_revision_is_undone_by_one_that_reads_what_was_read_before_it() -> None:
    later = revise(FIRST, replace(WANTED, batch=2), BOOKS, from_step=30)
    undone = revise(later, WANTED, BOOKS, from_step=25)
    assert [(r.revision, r.first, r.stop) for r in undone.reigns] == [(0, 0, 25), (2, 25, None)]
    with pytest.raises(ConfigError, match=r"already reads the same at step 40\. A resumed run needs no revision"):
        revise(undone, WANTED, BOOKS, from_step=40)


def test_a_revision_replaces_those_under_which_nothing_was_trained() -> None:
    unmade = revise(FIRST, WANTED, with_shard("without 2", 20), from_step=30, trained=60).revisions[1:]
    replaced = revise(FIRST, replace(WANTED, batch=2), BOOKS, from_step=30, unmade=unmade)
    assert [(r.revision, r.first, r.stop) for r in replaced.taken_back] == [(0, 30, 60)]
    assert [(r.revision, r.first, r.stop) for r in replaced.reigns] == [(0, 0, 30), (1, 30, None)]
    undone = revise(FIRST, WANTED, BOOKS, from_step=30, unmade=unmade)
    assert len(undone.revisions) == 2
    with pytest.raises(ConfigError, match="nothing has changed"):
        revise(FIRST, WANTED, with_shard("without 2", 20), from_step=30, unmade=unmade)


def test_steps_that_were_taken_back_once_are_not_taken_back_again() -> None:
    back = revise(FIRST, replace(WANTED, batch=3), BOOKS, from_step=30, trained=60)
    again = revise(back, replace(WANTED, batch=2), BOOKS, from_step=35)
    assert again.revisions[-1].trained == 35
    assert [(r.revision, r.first, r.stop) for r in again.taken_back] == [(0, 30, 60)]
    assert revise(back, replace(WANTED, batch=2), BOOKS, from_step=20).revisions[-1].trained == 30


@pytest.mark.parametrize(
    ("wanted", "sources", "more", "said"),
    [
        (WANTED, (BOOKS,), {"from_step": 5}, "already reads the same at step 5. A resumed run needs no revision"),
        (WANTED, (BOOKS,), {"from_step": 101}, "--from-step 101: the schedule has steps 0 to 99"),
        (WANTED, (BOOKS,), {"from_step": 5, "trained": 4}, "--trained .4. must not be less than --from-step"),
        (WANTED, (with_shard("nameless", 10),), {"from_step": 5}, "and has no ids, so its order cannot be continued"),
        (replace(WANTED, steps=5), (BOOKS,), {"from_step": 5}, "the run would end before it begins"),
        (WANTED, (BOOKS, replace(BOOKS, name="tales")), {"from_step": 5}, "so its samples would be read twice"),
        (WANTED, (BOOKS, BOOKS), {"from_step": 5}, "two sources have the name books"),
        (WANTED, (BOOKS, replace(BOOKS, tokenizer="u")), {"from_step": 5}, "but a model reads only one"),
        (WANTED, (), {"from_step": 5}, "has no source"),
        (replace(WANTED, steps=None), (BOOKS,), {"from_step": 5}, "never ends"),
        (WANTED, (replace(BOOKS, epochs=1),), {"from_step": 50}, "no step is possible: source books has"),
        (replace(WANTED, samples="words"), (BOOKS,), {"from_step": 5}, "samples must be one of windows, documents"),
    ],
)  # fmt: skip
def test_what_cannot_be_revised_is_refused(wanted: Any, sources: Any, more: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        revise(FIRST, wanted, *sources, **more)


def test_whole_documents_that_would_be_cut_are_refused() -> None:
    packed = replace(WANTED, samples="documents", sequence_length=16)
    first = revise(None, packed, BOOKS)
    assert revise(first, replace(packed, sequence_length=32), BOOKS, from_step=1)
    with pytest.raises(
        ConfigError, match="on, whole documents were packed into samples of 16, and the unread ones would be cut"
    ):
        revise(first, replace(packed, sequence_length=24), BOOKS, from_step=1)


def test_a_first_revision_begins_at_step_0() -> None:
    with pytest.raises(ConfigError, match="its first revision begins at step 0"):
        revise(None, WANTED, BOOKS, from_step=3)
