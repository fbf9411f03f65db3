"""Read a training schedule with the loaders of trainers: torch's, StatefulDataLoader, grain's.

Each function returns the tokens of the first batches of a loader, of shape `(batches, samples, length)`.
"""

import pickle
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep_assets.serving.sampler.loaders import SampleSource, torch_steps
from dataprep_assets.serving.sampler.training_data import TrainingData
from dataprep_assets_tests.readers.families import GRAIN, PYTORCH, TORCHDATA
from dataprep_assets_tests.readers.process import in_process_of

Tokens = npt.NDArray[np.int64]


def _first(batches: Iterable[dict[str, Any]], count: int) -> list[Tokens]:
    return [np.asarray(batch["tokens"]).copy() for batch in islice(batches, count)]


@in_process_of(PYTORCH)
def torch_samples(root: Path, name: str, *, batch: int, count: int, workers: int) -> Tokens:
    """Read with torch's `DataLoader` over every sample."""
    from torch.utils.data import DataLoader

    source = SampleSource(TrainingData(root, name))
    context = "spawn" if workers else None
    return np.stack(_first(DataLoader(source, batch, num_workers=workers, multiprocessing_context=context), count))  # type: ignore[arg-type]


@in_process_of(PYTORCH)
def torch_batches(
    root: Path, name: str, *, count: int, workers: int = 0, step: int = 0, rank: int = 0, world_size: int = 1
) -> Tokens:
    """Read with torch's `DataLoader` over a rank's steps, from the state of a step on."""
    from torch.utils.data import DataLoader

    data = TrainingData(root, name)
    steps = torch_steps(data, rank=rank, world_size=world_size)
    if step:
        steps.load_state_dict(data.state(step))
    return np.stack(_first(DataLoader(steps, batch_size=None, num_workers=workers), count))


@in_process_of(PYTORCH)
def torch_refusal(root: Path, name: str, *, world_size: int = 1, state: dict[str, Any] | None = None) -> str:
    """Return the error about a number of ranks, or about a state."""
    try:
        torch_steps(TrainingData(root, name), world_size=world_size).load_state_dict(state or {})
    except Exception as error:
        return str(error)
    return ""


@in_process_of(TORCHDATA)
def stateful_batches(root: Path, name: str, *, count: int, stop: int, workers: int) -> Tokens:
    """Read with `StatefulDataLoader`, stopped after `stop` batches and resumed from its state in another one."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(torch_steps(TrainingData(root, name)), batch_size=None, num_workers=workers)
    first = _first(loader, stop)
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    again = StatefulDataLoader(torch_steps(TrainingData(root, name)), batch_size=None, num_workers=workers)
    again.load_state_dict(state)
    return np.stack(first + _first(again, count - stop))


@in_process_of(GRAIN)
def grain_batches(root: Path, name: str, *, batch: int, count: int, stop: int) -> Tokens:
    """Read with grain's `MapDataset`, stopped after `stop` batches and resumed from its iterator's state in another
    one.
    """
    import grain.python as grain

    source = SampleSource(TrainingData(root, name))
    assert isinstance(source, grain.RandomAccessDataSource)
    dataset = grain.MapDataset.source(source).batch(batch).to_iter_dataset()
    batches = iter(dataset)
    first = _first(batches, stop)
    again = iter(dataset)
    again.set_state(pickle.loads(pickle.dumps(batches.get_state())))
    return np.stack(first + _first(again, count - stop))


@in_process_of(GRAIN)
def grain_loader(root: Path, name: str, *, batch: int, count: int) -> Tokens:
    """Read with grain's `DataLoader` and its sequential sampler."""
    import grain.python as grain

    source = SampleSource(TrainingData(root, name))
    sampler = grain.SequentialSampler(len(source), grain.NoSharding())
    loader = grain.DataLoader(data_source=source, sampler=sampler, operations=[grain.Batch(batch)], worker_count=0)
    return np.stack(_first(loader, count))
