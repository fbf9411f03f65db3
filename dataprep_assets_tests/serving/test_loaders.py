"""A schedule with the loaders of trainers: torch's, with and without a state, and grain's, stopped and resumed."""

import json
from pathlib import Path

import numpy as np
import pytest

from dataprep_assets.serving.sampler.loaders import SampleSource
from dataprep_assets.serving.sampler.training_data import TrainingData
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.schedule.training_project import RUN, make
from dataprep_assets_tests.readers import schedules

pytestmark = pytest.mark.slow
STEPS, BATCH = 12, 6


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("loaders")).artifacts


def wanted(root: Path, steps: range = range(STEPS)) -> np.ndarray:
    data = TrainingData(root, RUN)
    return np.stack([data.batch(step).tokens for step in steps])


def test_a_sample_by_number_equals_the_one_of_its_step(root: Path) -> None:
    data = TrainingData(root, RUN, boundaries=True)
    source = SampleSource(data)
    assert len(source) == 400 * BATCH
    for number in (0, 5, 6, 2399):
        batch, sample = data.batch(number // BATCH), source[number]
        for name in ("tokens", "labels", "position_ids", "document_ids"):
            assert np.array_equal(sample[name], getattr(batch, name)[number % BATCH])
    with raises(IndexError, 2400):
        source[2400]
    assert data.sampler.find_first_sample(399) == 2394


def test_grain_reads_the_steps_and_resumes_where_it_stopped(root: Path) -> None:
    assert np.array_equal(schedules.grain_batches(root, RUN, batch=BATCH, count=STEPS, stop=5), wanted(root))
    assert np.array_equal(schedules.grain_loader(root, RUN, batch=BATCH, count=STEPS), wanted(root))


@pytest.mark.parametrize("workers", [0, 2])
def test_torch_reads_samples_and_steps(root: Path, workers: int) -> None:
    found = schedules.torch_samples(root, RUN, batch=BATCH, count=STEPS, workers=workers)
    assert np.array_equal(found, wanted(root))
    assert np.array_equal(schedules.torch_batches(root, RUN, count=STEPS, workers=workers), wanted(root))


@pytest.mark.parametrize("workers", [0, 2])
def test_torch_starts_at_the_step_of_a_state_on_another_number_of_ranks(root: Path, workers: int) -> None:
    data = TrainingData(root, RUN)
    step = data.restore(json.loads(json.dumps(data.state(7))))
    for rank in range(3):
        found = schedules.torch_batches(root, RUN, count=4, workers=workers, step=step, rank=rank, world_size=3)
        assert np.array_equal(found, wanted(root, range(7, 11))[:, rank::3])


@pytest.mark.parametrize(("workers", "stop"), [(0, 4), (2, 0), (2, 5), (3, 1)])
def test_stateful_data_loader_resumes(root: Path, workers: int, stop: int) -> None:
    found = schedules.stateful_batches(root, RUN, count=STEPS, stop=stop, workers=workers)
    assert np.array_equal(found, wanted(root))


def test_ranks_that_do_not_divide_a_batch_and_foreign_states_are_refused(root: Path) -> None:
    assert_names(schedules.torch_refusal(root, RUN, world_size=4), "4 ranks", "batch of 6", "step 0")
    other = {"schedule": RUN, "digest": "0" * 64, "step": 1}
    assert_names(schedules.torch_refusal(root, RUN, state=other), "schedule", "step 0")
