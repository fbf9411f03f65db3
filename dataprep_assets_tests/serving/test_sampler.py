"""The samples of a step: nothing twice, nothing lost, the declared shares, through every change; and the inverse
lookup.
"""

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dataprep_assets.errors import ConfigError, FormatError, NotFoundError
from dataprep_assets.serving.sampler import source_order
from dataprep_assets.serving.sampler.next_revision import CurrentSource, DocumentEnds, RevisionRequest, add_revision
from dataprep_assets.serving.sampler.sampler import Sampler
from dataprep_assets.serving.sampler.training_schedule import ScheduleHistory
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.serving.histories import EDITS, History, history, readings_of, resumed, tell

SEEDS = (*range(24), 229, 579, 650, 683, 709, 720)
"""The last six seeds once had a sample without a token, or an epoch that started before any of its samples was read."""


@pytest.fixture(scope="module")
def histories() -> list[History]:
    return [history(seed) for seed in SEEDS]


def test_no_change_repeats_or_loses_a_sample(histories: list[History]) -> None:
    changes = Counter[str]()
    for run in histories:
        told = tell(run)
        changes += run.changes
        assert (told.twice, told.lost, told.empty, told.too_long) == (0, 0, 0, 0)
        assert told.off_share < 1
        assert told.epochs
        steps, wrong = resumed(run, 0)
        assert steps
        assert not wrong
    assert set(changes) >= {"append", "retract", "add", "remove", "back", "weights", "batch", "length", "seed"}


def test_documents_edited_in_place_are_read_as_new_ones() -> None:
    changes = Counter[str]()
    for seed in range(12):
        run = history(seed, kinds=EDITS)
        told = tell(run)
        changes += run.changes
        assert (told.twice, told.lost, told.empty, told.too_long) == (0, 0, 0, 0)
        assert told.off_share < 1
        assert resumed(run, seed)[1] == 0
        assert_steps_of_tokens(run)
    assert changes["edit"] > 25


def test_the_test_detects_an_order_that_ignores_earlier_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = source_order.Remainder.__init__

    def off_by_one(self: Any, order: Any, done: int, *rest: Any) -> None:
        begin(self, order, max(done - 1, 0), *rest)

    monkeypatch.setattr(source_order.Remainder, "__init__", off_by_one)
    assert sum(tell(history(seed)).twice for seed in range(6)) > 0


def test_the_steps_of_a_token_are_exactly_those_that_read_it(histories: list[History]) -> None:
    for run in histories[:8]:
        assert_steps_of_tokens(run)


def assert_steps_of_tokens(run: History) -> None:
    sampler = run.sampler()
    steps = min(sampler.end, run.schedule.revisions[-1].first_step + 30)
    seen: dict[int, Counter[tuple[int, int]]] = defaultdict(Counter)
    for step, position, token in readings_of(run, steps):
        seen[token][step, position] += 1
    told: dict[int, Counter[tuple[int, int]]] = defaultdict(Counter)
    contents = {s.content for r in sampler.rules for source in r.revision.sources for s in source.shards}
    for content in contents:
        numbers, start = run.world.numbers(content), 0
        for document in run.world.contents[content]:
            for one in sampler.find_readings(content, start, start + len(document), until=steps):
                for token in numbers[one.start : one.stop].tolist():
                    told[token][one.step, one.position] += 1
            start += len(document)
    assert told == seen


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_a_step_is_equal_for_every_number_of_ranks(histories: list[History], ranks: int) -> None:
    sampler = histories[0].sampler()
    for step in (0, sampler.rules[-1].first):
        whole, found = sampler.find_step_spans(step), []
        for rank in range(ranks):
            positions = sampler.find_positions(step, rank, ranks)
            own = sampler.find_step_spans(step, positions)
            found += list(zip(positions[own.row].tolist(), *(c.tolist() for c in own[1:]), strict=True))
        assert sorted(found) == sorted(zip(*(column.tolist() for column in whole), strict=True))


def test_adding_a_revision_does_not_change_earlier_steps() -> None:
    run = history(3)
    for upto in range(1, len(run.schedule.revisions)):
        before, after = Sampler(run.schedule.take_first_revisions(upto), run.world.packs), run.sampler()
        first = run.schedule.revisions[upto].first_step
        later = [r.first_step for r in run.schedule.revisions[upto:]]
        for step in range(min(first, *later)):
            for then, now in zip(before.find_step_spans(step), after.find_step_spans(step), strict=True):
                assert np.array_equal(then, now)


def make(tokens: int, **changed: Any) -> tuple[RevisionRequest, CurrentSource]:
    wanted = RevisionRequest(name="run", batch=4, sequence_length=8, seed=0, samples="windows", steps=None)
    shards = (("train-00000", "a" * 64, tokens),)
    source = CurrentSource(
        name="books", dataset="books", split="train", dtype="uint16", tokenizer="t", weight=1.0, shards=shards, epochs=1
    )
    return replace(wanted, **{k: v for k, v in changed.items() if hasattr(wanted, k)}), source


def whole(_: str) -> DocumentEnds:
    raise AssertionError("no shard has changed")


def begin(wanted: RevisionRequest, *sources: CurrentSource, **more: Any) -> ScheduleHistory:
    found: dict[str, Any] = {"documents": whole, "packs": lambda shard, length: None} | more
    return add_revision(None, wanted, sources, **found)


def test_a_step_beyond_the_end_is_refused_with_reason_and_remedy() -> None:
    sampler = Sampler(begin(*make(330)))  # 42 windows give ten whole steps of four windows
    assert sampler.end == 10
    with raises(NotFoundError, 10, "0 to 9", "books", "dataprep schedule run --from-step 10"):  # fmt: skip
        sampler.find_step_spans(10)
    with raises(NotFoundError, -1, 0):
        sampler.find_step_spans(-1)
    with raises(NotFoundError, "0 to 4", 4):
        sampler.find_step_spans(0, [0, 4])
    with raises(ConfigError, 2):
        sampler.find_positions(0, 2, 2)


def test_a_billion_samples_need_no_memory_and_no_startup_time() -> None:
    wanted, source = make(8 * 10**9, steps=10**9)
    sampler = Sampler(begin(wanted, replace(source, epochs=None)))
    last = sampler.find_step_spans(sampler.end - 1)
    assert len(last.row) == 4
    reading = list(sampler.find_readings("a" * 64, 8 * 123_456_789, 8 * 123_456_789 + 8, until=250_000_000))
    assert len(reading) == 1
    again = sampler.find_step_spans(reading[0].step, [reading[0].position])
    assert again.start.tolist() == [8 * 123_456_789]


def test_a_file_that_is_not_a_schedule_is_reported(tmp_path: Any) -> None:
    path = tmp_path / "schedule.json"
    path.write_bytes(b"{")
    with raises(FormatError, path, "JSON"):
        ScheduleHistory.read(path)
    schedule = begin(*make(330))
    path.write_bytes(schedule.to_bytes())
    assert ScheduleHistory.read(path) == schedule
    path.write_bytes(schedule.to_bytes().replace(b'"batch": 4', b'"batch": 0'))
    with raises(FormatError, path, "batch", 1, 0):
        ScheduleHistory.read(path)
    path.write_bytes(schedule.to_bytes().replace(b'"batch"', b'"batsch"'))
    with raises(FormatError, path):
        ScheduleHistory.read(path)
