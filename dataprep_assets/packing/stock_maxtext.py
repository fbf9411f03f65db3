"""The labels on which unmodified MaxText trains in unpacked rows, by the rules of its three input pipelines.

MaxText copies the single column to inputs and targets, and shifts the targets. It pads rows to `max_target_length` with
the pad id of its own tokenizer, and then trains on every label that is not this id. If the stored padding has a
different id, MaxText trains on it.

Source: AI-Hypercomputer/maxtext at e591f30, `src/maxtext/input_pipeline/` (`tfds_data_processing.py`,
`data_processing_utils.py`, `hf_data_processing.py`, and `input_pipeline_utils.py` with `PadOrTrimToMaxLength`,
`shift_and_refine`) and `trainers/pre_train/train.py`, `loss_fn`.

Entry points: `Pipeline`, `StockRule`, `StockLabels`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Pipeline = Literal["tfds", "grain", "hf"]
_WITHOUT_PAD: Mapping[Pipeline, int] = {"tfds": -1, "grain": 0, "hf": -1}
"""Padding of each pipeline for a tokenizer with neither a pad nor an unknown token."""

Int32 = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, eq=False)
class StockLabels:
    """A batch without packing: arrays of shape ``(rows, row_length)``.

    `inputs` and `targets` are ids. `trained` is True at positions whose label counts in the loss. `masked` is True at
    real labels that do not count, because MaxText ignores their id.
    """

    inputs: Int32
    targets: Int32
    trained: NDArray[np.bool_]
    masked: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class StockRule:
    """A pipeline with a tokenizer: `row_length` is `max_target_length`, the ids are the tokenizer's."""

    pipeline: Pipeline
    row_length: int
    pad_id: int | None
    unk_id: int | None
    bos_id: int | None

    @property
    def fill_id(self) -> int:
        """The id that pads rows in the pipeline; labels with this id are not in the loss."""
        fill_ids = [token_id for token_id in (self.pad_id, self.unk_id) if token_id is not None]
        return fill_ids[0] if fill_ids else _WITHOUT_PAD[self.pipeline]

    @property
    def ignored(self) -> frozenset[int]:
        """Ids that do not count as labels: the fill id and, for `hf`, the tokenizer's BOS."""
        bos = {self.bos_id} if self.pipeline == "hf" and self.bos_id is not None else set()
        return frozenset({self.fill_id, *bos})

    def labels(self, rows: list[NDArray[Any]]) -> StockLabels:
        """Return the batch of these rows without packing; each row is an array of integers of shape ``(values,)``."""
        shape = (len(rows), self.row_length)
        inputs, targets = np.full(shape, self.fill_id, np.int32), np.full(shape, self.fill_id, np.int32)
        is_label = np.zeros(shape, np.bool_)
        for index, row in enumerate(rows):
            # The tfds pipeline reads `row_length` + 1 values, so that every position has a label. The other pipelines
            # read `row_length` values, so their last position has no label.
            ids = row[: self.row_length + (self.pipeline == "tfds")]
            trained_from = ids[:-1] if self.pipeline == "tfds" else ids
            inputs[index, : trained_from.size] = trained_from
            next_ids = ids[1:]
            targets[index, : next_ids.size] = next_ids
            is_label[index, : next_ids.size] = True
        ignored = np.isin(targets, list(self.ignored))
        return StockLabels(inputs=inputs, targets=targets, trained=is_label & ~ignored, masked=is_label & ignored)
