"""A schedule stays when its sources or its declaration change, and reports it; a damaged schedule replaces nothing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.verify import verify_path
from dataprep_assets.pipelines.schedule.dataset import ScheduleDataset
from dataprep_assets.pipelines.schedule.schedule_artifact import (
    build_schedule,
    load_current_schedule,
    revise_schedule,
    write_revisions,
)
from dataprep_assets.serving.sampler.changes import describe_changes
from dataprep_assets.serving.sampler.training_data import TrainingData
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.serving.training_runs import RUN, TrainingRun


@pytest.fixture
def run(tmp_path: Path) -> TrainingRun:
    """Return a run of windows over two corpora of two shards, with its schedule built."""
    made = TrainingRun(tmp_path, 1)
    made.corpora.shards = {}
    for name in ("books", "web"):
        held = made.corpora.shards[name] = {}
        for at in range(2):
            held[f"train-{at:05d}"] = made.corpora.new_documents(12) + made.corpora.new_documents(12)
    made.read_now, made.weights = ["books", "web"], {"books": 3.0, "web": 1.0}
    made.declared |= {"batch": 2, "sequence_length": 8, "samples": "windows", "megatron": None}
    made.write()
    build_schedule(made.declaration, made.store)
    return made


def pending(run: TrainingRun) -> list[str]:
    return [one.sentence for one in ScheduleDataset(run.declaration).pending(run.store)]


def revise(run: TrainingRun, step: int) -> None:
    declaration = run.declaration
    present = load_current_schedule(declaration, run.store)
    write_revisions(declaration, revise_schedule(declaration, run.store, present, from_step=step))
    build_schedule(declaration, run.store)


def test_changes_that_a_schedule_does_not_read_yet_are_reported_until_a_revision(run: TrainingRun) -> None:
    assert pending(run) == []
    assert ScheduleDataset(run.declaration).describe_state(run.store) == []
    run.corpora.shards["books"]["train-00002"] = run.corpora.new_documents(5)
    run.corpora.shards["web"]["train-00001"].pop(0)
    run.write()
    run.declared |= {"batch": 4, "sequence_length": 16, "steps": 300}
    run.weights["web"] = 3.0
    assert pending(run) == [
        "`batch`: the declaration has 4, but the schedule has 2",
        "`sequence_length`: the declaration has 16, but the schedule has 8",
        "`steps`: the declaration has 300, but the schedule has 400",
        "source books: share of the samples: the declaration has 50.0%, but the schedule has 75.0%",
        "source web: share of the samples: the declaration has 50.0%, but the schedule has 25.0%",
        "source books: 1 new shard: train-00002",
        "source web: 1 changed shard: train-00001",
    ]
    standing = ScheduleDataset(run.declaration).describe_state(run.store)
    assert f"dataprep schedule {RUN} --from-step N" in standing[-1]
    assert build_schedule(run.declaration, run.store)[1], "a run takes nothing of it up"
    # No defect is found, because a schedule stays valid when the shards of its sources change.
    assert not any(one.defects or one.changed_inputs for one in verify_path(run.store.root) if one.name.startswith(RUN))
    revise(run, 10)
    assert pending(run) == []
    assert describe_changes(TrainingData(run.store, RUN).schedule, 1) == [
        "batch 2 → 4", "sequence_length 8 → 16", "steps 400 → 300",
        "books 75.0% → 50.0%", "shards of books: 1 new", "web 25.0% → 50.0%", "shards of web: 1 changed",
    ]  # fmt: skip


@pytest.mark.parametrize("change", ["removal", "length"])
def test_packed_documents_are_read_after_a_revision(run: TrainingRun, change: str) -> None:
    run.declared |= {"samples": "documents"}
    revise(run, 5)
    if change == "removal":
        run.corpora.shards["books"]["train-00000"].pop(1)
        run.write()
    else:
        run.declared["sequence_length"] = 16
    revise(run, 9)
    data = TrainingData(run.store, RUN, boundaries=True)
    assert all(len(data.batch(step).tokens) for step in (9, 10, 60))


def test_the_only_remaining_megatron_dataset_has_padding_in_place_of_the_others(run: TrainingRun) -> None:
    run.declared["megatron"] = {"tokenizer": {"class": "t"}}
    run.meet()
    step = run.train(0, 20)
    run.read_now = ["web"]
    assert run.revise(step)
    run.train(step, 20)
    run.compare_megatron()
    assert run.told.wrong == []
    assert run.told.megatron == run.told.samples == 40 * 2


@pytest.mark.parametrize(("step", "said"), [(-5, (-5,)), (401, (401,)), (400, None)])
def test_a_state_must_belong_to_a_step_of_the_run(run: TrainingRun, step: int, said: tuple[int, ...] | None) -> None:
    data = TrainingData(run.store, RUN)
    state: dict[str, Any] = data.state(step)
    if said is None:
        assert data.restore(state) == step
    else:
        with raises(ConfigError, *said, "0 to 400"):
            data.restore(state)


@pytest.mark.parametrize("key", ["tokens", "samples", "removed"])
def test_an_edited_file_of_revisions_replaces_nothing(run: TrainingRun, key: str) -> None:
    declaration, store = run.declaration, run.store
    path = write_revisions(declaration, load_current_schedule(declaration, store))
    before = TrainingData(store, RUN).handle.receipt
    value = json.loads(path.read_bytes())
    shard = value["revisions"][0]["sources"][0]["shards"][0]
    shard[key] = [[0, 1]] if key == "removed" else shard[key] - 1
    path.write_text(json.dumps(value))
    with raises(ConfigError, "`dataprep schedule`"):
        build_schedule(declaration, store)
    assert TrainingData(store, RUN).handle.receipt == before


def test_consecutive_spans_are_joined_as_one_document(run: TrainingRun) -> None:
    run.corpora.shards = {"books": {"train-00000": [range(1, 25)]}}
    run.read_now = ["books"]
    run.write()
    joined = 0
    # After the first step, five of the six samples of four tokens remain. With some seeds, two samples with consecutive
    # tokens are read one after the other.
    for seed in range(8):
        run.declared |= {"batch": 1, "sequence_length": 4, "seed": seed}
        revise(run, 0)
        run.declared["sequence_length"] = 8
        revise(run, 1)
        data = TrainingData(run.store, RUN, boundaries=True)
        for step in range(1, 3):
            batch = data.batch(step)
            assert batch.document_ids is not None
            assert batch.position_ids is not None
            tokens, documents, places = batch.tokens[0], batch.document_ids[0], batch.position_ids[0]
            follows = np.diff(tokens) == 1
            assert ((np.diff(documents) == 0) == follows)[documents[1:] >= 0].all()
            assert (np.diff(places)[follows] == 1).all()
            joined += int(follows[3])
    assert joined
