"""A schedule through the loaders of trainers: torch's, with and without a state, and grain's, stopped and resumed."""

import json
import pickle
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.serving.loaders import SampleSource, torch_steps
from dataprep_assets.serving.training_data import TrainingData
from dataprep_assets_tests.pipelines.schedule.training_project import RUN, make

pytestmark = pytest.mark.slow
STEPS = 12


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    return make(tmp_path_factory.mktemp("loaders")).data(boundaries=True)


def tokens_of(data: TrainingData, steps: range) -> list[list[list[int]]]:
    return [data.batch(step).tokens.tolist() for step in steps]


def plain(batches: Iterator[dict[str, Any]], steps: int) -> list[list[list[int]]]:
    return [np.asarray(batch["tokens"]).tolist() for batch in islice(batches, steps)]


def test_a_sample_by_its_number_is_that_of_its_step(data: TrainingData) -> None:
    source = SampleSource(data)
    assert len(source) == 400 * 6
    for number in (0, 5, 6, 2399):
        batch = data.batch(number // 6)
        for name in ("tokens", "labels", "position_ids", "document_ids"):
            assert np.array_equal(source[number][name], getattr(batch, name)[number % 6])
    with pytest.raises(IndexError, match="sample 2400 of 2400"):
        source[2400]
    assert data.sampler.number(399, 5) == 2399


def test_grain_reads_steps_and_resumes_where_it_stopped(data: TrainingData) -> None:
    grain = pytest.importorskip("grain.python")
    assert isinstance(SampleSource(data), grain.RandomAccessDataSource)
    dataset = grain.MapDataset.source(SampleSource(data)).batch(6).to_iter_dataset()
    batches = iter(dataset)
    first = plain(batches, 5)
    state = pickle.loads(pickle.dumps(batches.get_state()))
    again = iter(dataset)
    again.set_state(state)
    assert first + plain(again, STEPS - 5) == tokens_of(data, range(STEPS))


def test_grains_data_loader_takes_it_with_a_sequential_sampler(data: TrainingData) -> None:
    grain = pytest.importorskip("grain.python")
    source = SampleSource(data)
    sampler = grain.SequentialSampler(len(source), grain.NoSharding())
    loader = grain.DataLoader(data_source=source, sampler=sampler, operations=[grain.Batch(6)], worker_count=0)
    assert plain(iter(loader), STEPS) == tokens_of(data, range(STEPS))


@pytest.mark.parametrize("workers", [0, 2])
def test_torch_reads_samples_and_steps(data: TrainingData, workers: int) -> None:
    torch = pytest.importorskip("torch")
    loader = torch.utils.data.DataLoader(
        SampleSource(data), batch_size=6, num_workers=workers, multiprocessing_context="spawn" if workers else None
    )
    assert plain(iter(loader), STEPS) == tokens_of(data, range(STEPS))
    steps = torch.utils.data.DataLoader(torch_steps(data), batch_size=None, num_workers=workers)
    assert plain(iter(steps), STEPS) == tokens_of(data, range(STEPS))


def test_torch_begins_at_the_step_of_a_state_on_another_number_of_ranks(data: TrainingData) -> None:
    torch = pytest.importorskip("torch")
    state = json.loads(json.dumps(data.state(7)))
    ranks = [torch_steps(data, rank=rank, world_size=3) for rank in range(3)]
    for dataset in ranks:
        dataset.begin_at(data.restore(state))
    found = [plain(iter(torch.utils.data.DataLoader(one, batch_size=None)), 4) for one in ranks]
    for at, step in enumerate(tokens_of(data, range(7, 11))):
        assert [step[position] == found[position % 3][at][position // 3] for position in range(6)] == [True] * 6
    with pytest.raises(ConfigError, match="4 ranks do not divide the batch of 6 from step 0 on"):
        torch_steps(data, world_size=4)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [4, 5])
def test_stateful_data_loader_resumes(data: TrainingData, workers: int, stop: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    loader = stateful.StatefulDataLoader(torch_steps(data), batch_size=None, num_workers=workers)
    batches = iter(loader)
    first = plain(batches, stop)
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    again = stateful.StatefulDataLoader(torch_steps(data), batch_size=None, num_workers=workers)
    again.load_state_dict(state)
    assert first + plain(iter(again), STEPS - stop) == tokens_of(data, range(STEPS))


def test_a_state_of_another_schedule_is_refused(data: TrainingData, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ConfigError, match="this one was never that"):
        torch_steps(data).load_state_dict({"schedule": RUN, "digest": "0" * 64, "step": 1})
