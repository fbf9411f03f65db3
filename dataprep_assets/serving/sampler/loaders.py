"""Adapters of a schedule for trainers' loaders: random access for grain and torch, and a stateful torch iterable.

    dataset = SampleSource(data)                                # grain.MapDataset.source(dataset); DataLoader(dataset)
    dataset = torch_steps(data, rank=rank, world_size=ranks)    # StatefulDataLoader(dataset, batch_size=None)

Both return samples in the schedule's order, so do not let the loader shuffle.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.serving.sampler.training_data import Batch, TrainingData


class SampleSource:
    """All samples of a run by number: a RandomAccessDataSource for grain, and a map-style dataset for torch.

    While the batch size is constant, sample `i` is position `i mod batch` of step `i // batch`. A sample is a
    dictionary of arrays of shape ``(sequence_length,)``, named as in `Batch`.
    """

    def __init__(self, data: TrainingData) -> None:
        self.data = data

    def __len__(self) -> int:
        return self.data.sampler.samples

    def __getitem__(self, number: int) -> dict[str, NDArray[Any]]:
        """Return a sample; raise IndexError beyond the last one."""
        step, position = self.data.sampler.locate_sample(int(number))
        return {name: rows[0] for name, rows in list_arrays(self.data.sample(step, position)).items()}

    def __repr__(self) -> str:
        # grain compares this text when it restores a state, so a run cannot resume with a different schedule.
        return f"SampleSource({self.data.schedule.name}, {self.data.schedule.digest[:16]})"


def list_arrays(batch: Batch) -> dict[str, NDArray[Any]]:
    """Return the arrays of a batch by name, without those that are None."""
    arrays: dict[str, NDArray[Any]] = {"tokens": batch.tokens, "labels": batch.labels}
    if batch.position_ids is not None and batch.document_ids is not None:
        arrays |= {"position_ids": batch.position_ids, "document_ids": batch.document_ids}
    return arrays


def torch_steps(data: TrainingData, *, rank: int = 0, world_size: int = 1) -> Any:
    """Return a `torch.utils.data.IterableDataset` of a rank's batches, one per step, as dictionaries of tensors.

    It implements StatefulDataLoader's protocol, `state_dict` and `load_state_dict`. With n workers, each worker builds
    every n-th step.

    Raises ConfigError if torch is not installed, or if a batch is not divisible by the number of ranks.
    """
    for rule in data.sampler.rules:
        if rule.revision.batch % world_size:
            raise ConfigError(
                f"{data.name}: the batch of {rule.revision.batch} from step {rule.first} on is not divisible by "
                f"{count_of(world_size, 'rank')}. Use a number of ranks that divides it, or change `batch` and make a "
                f"revision: dataprep schedule {data.name} --from-step N"
            )
    return _build_steps_class()(data, rank, world_size)


@cache
def _build_steps_class() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ConfigError(
            "torch_steps: torch is not installed. Run `pip install torch`, or use TrainingData, which needs only NumPy"
        ) from error

    class Steps(torch.utils.data.IterableDataset):  # type: ignore[misc, type-arg, unused-ignore]
        """Dataset of `torch_steps`."""

        def __init__(self, data: TrainingData, rank: int, world_size: int, step: int = 0) -> None:
            self._data, self._rank, self._world_size = data, rank, world_size
            self._next, self._own = step, False  # if `_own`, `_next` applies only to this worker

        # Rebuild through a module-level function, because pickle cannot find a class defined inside a function.
        def __reduce__(self) -> tuple[Any, ...]:
            return _rebuild_steps, (self._data, self._rank, self._world_size, self._next)

        def __iter__(self) -> Iterator[dict[str, Any]]:
            worker = torch.utils.data.get_worker_info()
            step, workers = self._step(), 1 if worker is None else worker.num_workers
            while step < self._data.steps:
                batch = list_arrays(self._data.batch(step, rank=self._rank, world_size=self._world_size))
                step += workers
                # Update the position before the yield, so that a state saved at that point continues after this batch.
                self._next, self._own = step, worker is not None
                yield {name: torch.from_numpy(np.ascontiguousarray(rows)) for name, rows in batch.items()}

        def _step(self) -> int:
            worker = torch.utils.data.get_worker_info()
            return self._next if worker is None or self._own else self._next + worker.id

        def state_dict(self) -> dict[str, Any]:
            """Return the state of this worker's next step; StatefulDataLoader calls this in each worker."""
            return self._data.state(self._step())

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            """Continue from a state; raise ConfigError if it belongs to a different schedule."""
            # A state that is loaded outside of a worker is the starting point of all workers, so `_own` is true only
            # inside a worker.
            self._next, self._own = self._data.restore(state), torch.utils.data.get_worker_info() is not None

    return Steps


def _rebuild_steps(data: TrainingData, rank: int, world_size: int, step: int) -> Any:
    return _build_steps_class()(data, rank, world_size, step)
