"""A schedule's Megatron indices: megatron-core's own datasets find them, build nothing, and read the scheduled
samples.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.serving.sampler.training_data import IGNORED, TrainingData
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.schedule.training_project import CORPUS, RUN, TrainingProject, copy, make
from dataprep_assets_tests.readers.megatron import scheduled

pytestmark = pytest.mark.slow
TOKENIZER = {"class": "tests", "tokenizer_path": "a/b"}
LENGTH = 64
MEGATRON = {"random_seed": 1234, "tokenizer": TOKENIZER}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TrainingProject:
    project = make(tmp_path_factory.mktemp("indices"))
    project.declare(megatron=MEGATRON)
    project("run", RUN)
    return project


def folder(project: TrainingProject) -> Path:
    return project.artifacts / RUN / "megatron_indices"


def read(project: TrainingProject, which: list[int], cache: Path, **more: Any) -> dict[str, Any]:
    """Return the samples that Megatron reads with the options in the run's summary."""
    (line,) = (line for line in project("show", RUN).stdout.splitlines() if "Megatron-LM" in line)
    words = line.partition("--train-data-path ")[2].split()
    paths = words[: words.index("--train-samples")]
    prefixes, weights = (paths, [1]) if len(paths) == 1 else (paths[1::2], [int(weight) for weight in paths[::2]])
    samples = int(words[words.index("--train-samples") + 1])
    assert f"--seq-length {LENGTH} --seed 1234" in line
    return scheduled(weights, prefixes, samples, cache, which, length=LENGTH, tokenizer=TOKENIZER, **more)


def assert_same(project: TrainingProject, cache: Path, which: list[int]) -> None:
    """Assert that the samples with these numbers equal those of the schedule wherever they are trained on."""
    data = project.data()
    found = read(project, which, cache)
    for row, number in enumerate(which):
        step, position = data.sampler.locate_sample(number)
        wanted = data.sample(step, position)
        learned = wanted.labels[0] != IGNORED
        assert learned.any()
        assert np.array_equal(found["loss_mask"][row] > 0, learned), number
        assert np.array_equal(found["labels"][row][learned], wanted.labels[0][learned]), number
        upto = int(np.flatnonzero(learned)[-1]) + 1
        assert np.array_equal(found["tokens"][row][:upto], wanted.tokens[0][:upto]), number


def test_megatron_builds_nothing_and_reads_the_schedules_samples(made: TrainingProject, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(folder(made), cache)
    before = sorted(path.name for path in cache.iterdir())
    assert_same(made, cache, [*range(240), 1199, 2398, 2399])
    assert sorted(path.name for path in cache.iterdir()) == before


def test_the_files_equal_those_of_megatron_itself(made: TrainingProject, tmp_path: Path) -> None:
    """The files have the same names, descriptions, dtypes and headers."""
    found = read(made, [0], tmp_path, may_build=True)
    assert found["type"] == "BlendedDataset"
    built = {path.name: path for path in tmp_path.iterdir()}
    ours = {path.name: path for path in folder(made).iterdir() if path.name != "receipt.json"}
    assert ours.keys() == built.keys()
    for name, path in ours.items():
        if name.endswith(".txt"):
            assert path.read_bytes() == built[name].read_bytes()
            continue
        mine, theirs = np.load(path), np.load(built[name])
        assert (mine.dtype, mine.ndim) == (theirs.dtype, theirs.ndim)
        np.save(tmp_path / "again.npy", mine)
        assert (tmp_path / "again.npy").read_bytes() == path.read_bytes()


def test_one_source_is_read_without_a_blend(made: TrainingProject, tmp_path: Path) -> None:
    project = copy(made, tmp_path / "one")
    source = {"dataset": CORPUS, "split": "val", "name": "alone", "epochs": 3}
    project.declare(megatron=MEGATRON, sources=[source], steps=None)
    project("schedule", RUN, "--from-step", "0")
    project("run", RUN)
    data = project.data()
    assert read(project, [], folder(project))["type"] == "GPTDataset"
    assert_same(project, folder(project), list(range(data.sampler.samples)))


def test_after_changes_the_later_steps_are_those_of_the_schedule(made: TrainingProject, tmp_path: Path) -> None:
    project = copy(made, tmp_path / "changed")
    project.write_texts("train_2.jsonl", range(300, 340))
    (project.folder / "ids").write_text("train_0.jsonl:7\ntrain_1.jsonl:30\n")
    project("retract", CORPUS, "--ids", str(project.folder / "ids"))
    project("run", CORPUS)
    assert_names(project("run", RUN, code=2).stderr, "shards")
    project.declare(megatron=MEGATRON, batch=9)
    project("schedule", RUN, "--from-step", "30")
    project("run", RUN)
    data = project.data()
    first = data.sampler.find_first_sample(30)
    assert_same(project, folder(project), [*range(first, first + 400), data.sampler.samples - 1])
    # Retracted samples are padding in the steps that read them, so that they are not trained on.
    earlier = read(project, list(range(first)), folder(project))
    empty = np.flatnonzero((earlier["loss_mask"] == 0).all(axis=1))
    old = TrainingData(made.artifacts, RUN)
    for number in set(range(first)) - set(empty.tolist()):
        sample = old.sample(*old.sampler.locate_sample(number))
        assert np.array_equal(earlier["tokens"][number][:8], sample.tokens[0][:8])
    assert 0 < len(empty) < first


def test_a_schedule_that_cannot_have_indices_is_refused_with_the_reason(made: TrainingProject, tmp_path: Path) -> None:
    project = copy(made, tmp_path / "refused")
    project.declare(megatron=MEGATRON, samples="documents")
    assert_names(project("run", RUN, code=2).stderr, "megatron", "`samples: documents`")
    project.declare(megatron=MEGATRON, sequence_length=48)
    project("schedule", RUN, "--from-step", "30")
    assert_names(project("run", RUN, code=2).stderr, "`sequence_length`")
