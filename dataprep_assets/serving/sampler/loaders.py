"""A schedule for the loaders that trainers use: random access for grain and torch, an iterable with a state for torch.

    dataset = SampleSource(data)                                # grain.MapDataset.source(dataset); DataLoader(dataset)
    dataset = torch_steps(data, rank=rank, world_size=ranks)    # StatefulDataLoader(dataset, batch_size=None)

Both give samples in the schedule's own order: a loader's shuffling stays off.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.serving.sampler.training_data import Batch, TrainingData


class SampleSource:
    """Every sample of a run by its number: grain's RandomAccessDataSource, and a map-style dataset of torch.

    Sample `i` is position `i mod batch` of step `i // batch`, as long as the batch does not change. A sample is a
    dictionary of arrays of shape ``(sequence_length,)``: those of `Batch`.
    """

    def __init__(self, data: TrainingData) -> None:
        self.data = data

    def __len__(self) -> int:
        return self.data.sampler.samples

    def __getitem__(self, number: int) -> dict[str, NDArray[Any]]:
        """A sample; raises IndexError for one beyond the last."""
        step, position = self.data.sampler.place(int(number))
        return {name: rows[0] for name, rows in arrays_of(self.data.sample(step, position)).items()}

    def __repr__(self) -> str:
        # grain compares it when it resumes: another schedule must not go on under this one's state
        return f"SampleSource({self.data.schedule.name}, {self.data.schedule.digest[:16]})"


def arrays_of(batch: Batch) -> dict[str, NDArray[Any]]:
    """The arrays of a batch that has them, by name."""
    arrays: dict[str, NDArray[Any]] = {"tokens": batch.tokens, "labels": batch.labels}
    if batch.position_ids is not None and batch.document_ids is not None:
        arrays |= {"position_ids": batch.position_ids, "document_ids": batch.document_ids}
    return arrays


def torch_steps(data: TrainingData, *, rank: int = 0, world_size: int = 1) -> Any:
    """A `torch.utils.data.IterableDataset` of a rank's batches, step by step: dictionaries of tensors.

    It has StatefulDataLoader's protocol, `state_dict` and `load_state_dict`. With workers each makes every so manieth
    step, in turn. Raises ConfigError if torch is not installed, or if the ranks do not divide a batch of the schedule.
    """
    for rule in data.sampler.rules:
        if rule.revision.batch % world_size:
            raise ConfigError(
                f"{data.name}: {count_of(world_size, 'rank does', 'ranks do')} not divide the batch of "
                f"{rule.revision.batch} from step {rule.first} on, so some would wait for others. Use a different "
                "number of ranks, or make a revision"
            )
    return _steps_class()(data, rank, world_size)


@cache
def _steps_class() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ConfigError("torch_steps needs PyTorch: pip install torch. TrainingData needs only NumPy") from error

    class Steps(torch.utils.data.IterableDataset):  # type: ignore[misc, type-arg, unused-ignore]
        """See `torch_steps`."""

        def __init__(self, data: TrainingData, rank: int, world_size: int, step: int = 0) -> None:
            self._data, self._rank, self._world_size = data, rank, world_size
            self._next, self._own = step, False  # the next step: of this worker alone, or of all of them together

        # a class that is made inside of a function has no name by which pickle finds it again
        def __reduce__(self) -> tuple[Any, ...]:
            return _steps_again, (self._data, self._rank, self._world_size, self._next)

        def __iter__(self) -> Iterator[dict[str, Any]]:
            worker = torch.utils.data.get_worker_info()
            step, workers = self._step(), 1 if worker is None else worker.num_workers
            while step < self._data.steps:
                batch = arrays_of(self._data.batch(step, rank=self._rank, world_size=self._world_size))
                step += workers
                # Before the batch is given out: a state that is asked for meanwhile goes on after it.
                self._next, self._own = step, worker is not None
                yield {name: torch.from_numpy(np.ascontiguousarray(rows)) for name, rows in batch.items()}

        def _step(self) -> int:
            worker = torch.utils.data.get_worker_info()
            return self._next if worker is None or self._own else self._next + worker.id

        def state_dict(self) -> dict[str, Any]:
            """The worker's next step; StatefulDataLoader calls it in each worker."""
            return self._data.state(self._step())

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            """Go on from such a state; raises ConfigError if it is of another schedule."""
            # one that is loaded before there are workers is where all of them go on
            self._next, self._own = self._data.restore(state), torch.utils.data.get_worker_info() is not None

    return Steps


def _steps_again(data: TrainingData, rank: int, world_size: int, step: int) -> Any:
    return _steps_class()(data, rank, world_size, step)
