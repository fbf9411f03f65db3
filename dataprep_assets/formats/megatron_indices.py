"""The index files in the cache of Megatron-Core's datasets, and the names that Megatron expects.

A `GPTDataset` maps sample `i` to `sample = shuffle_index[i]`. Its tokens are from `sample_index[sample]` to
`sample_index[sample + 1]`, which are pairs of a position in `document_index` and an offset in that document. The token
at the second pair also belongs to the sample, as its last label. Padding, whose loss is masked, fills a short sample. A
`BlendedDataset` maps sample `i` to dataset `dataset_index[i]` and its sample `dataset_sample_index[i]`. The files are
`.npy` files: int32, shape ``(documents,)``; int32 or int64, shape ``(samples + 1, 2)``; uint32 or int64, shape
``(samples,)``; int16 and int64, shape ``(size,)``.

File names contain the MD5 of a description. The description is JSON of all properties that distinguish datasets
for Megatron: the prefix as passed to the trainer, number of requested samples, seed, length, tokenizer, weights.

Source: Megatron-LM, `megatron/core/datasets/{megatron_dataset,gpt_dataset,blended_dataset,
blended_megatron_dataset_builder}.py`, megatron-core 0.16.1. `dataprep_assets_tests/readers/megatron.py` compares the
files with it.

Entry points: `TrainBlend`, `write_array`.
"""

import hashlib
import json
import math
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

GPT, BLENDED = "GPTDataset", "BlendedDataset"
SURPLUS = 0.005
"""Surplus of samples that Megatron requests from each dataset of a blend (default of `mid_level_dataset_surplus`)."""


@dataclass(frozen=True, kw_only=True)
class TrainBlend:
    """The train split that Megatron reads with `--train-data-path` and `--train-samples`.

    Attributes:
        prefixes: Prefix of each dataset's `.bin` and `.idx`, as passed to the trainer.
        weights: Weight of each dataset.
        samples: Samples of the whole run.
        sequence_length: Tokens per sample.
        random_seed: `--seed`.
        tokenizer: `unique_identifiers` of the trainer's tokenizer.
    """

    prefixes: tuple[str, ...]
    weights: tuple[int, ...]
    samples: int
    sequence_length: int
    random_seed: int
    tokenizer: Mapping[str, Any]

    @property
    def is_one(self) -> bool:
        """Whether the blend has a single dataset, which Megatron then reads without a `BlendedDataset`."""
        return len(self.prefixes) == 1

    @cached_property
    def _normalized(self) -> list[float]:
        # Compute shares with NumPy, as Megatron does, because different last digits would change the description and
        # therefore the file names.
        weights = np.array(self.weights, np.float64)
        shares: list[float] = (weights / np.sum(weights)).tolist()
        return shares

    @property
    def size(self) -> int:
        """Samples of the blend: slightly more than the run reads, because each dataset's share is rounded up."""
        return sum(math.ceil(self.samples * weight) for weight in self._normalized)

    def count_requested_samples(self, number: int) -> int:
        """Return the number of samples that Megatron requests from a dataset."""
        if self.is_one:
            return self.samples
        # Round up twice, as Megatron does: first the share, then the share with its surplus.
        return math.ceil(math.ceil(self.samples * self._normalized[number]) * (1 + SURPLUS))

    def _list_identifiers(self, number: int) -> dict[str, Any]:
        # Use Megatron's key order and nulls, because the MD5 covers the serialized text.
        return {
            "class": GPT,
            "dataset_path": self.prefixes[number],
            "num_samples": self.count_requested_samples(number),
            "index_split": "train",
            "random_seed": self.random_seed,
            "sequence_length": self.sequence_length,
            "split": None,
            "split_matrix": None,
            "tokenizer": dict(self.tokenizer),
        }

    def build_description(self, number: int | None = None) -> str:
        """Return the text of a dataset's `description.txt`, or of the blend's if `number` is None."""
        if number is not None:
            return json.dumps(self._list_identifiers(number), indent=4)
        # Normalize the weights twice, because Megatron's builder and dataset each normalize them.
        doubled_weights = np.array(self._normalized, np.float64)
        value = {
            "class": BLENDED,
            "datasets": [self._list_identifiers(index) for index in range(len(self.prefixes))],
            "split": "train",
            "weights": (doubled_weights / np.sum(doubled_weights)).tolist(),
            "size": self.size,
        }
        return json.dumps(value, indent=4)

    def build_name_prefix(self, number: int | None = None) -> str:
        """Return the common prefix of a dataset's file names, or of the blend's if `number` is None."""
        digest = hashlib.md5(self.build_description(number).encode(), usedforsecurity=False).hexdigest()
        return f"{digest}-{BLENDED if number is None else GPT}-train-"

    @property
    def arguments(self) -> str:
        """Megatron-LM options, shell-quoted, with which Megatron-LM finds these index files."""
        quoted = [shlex.quote(prefix) for prefix in self.prefixes]
        weighed = zip(self.weights, quoted, strict=True)
        paths = quoted[0] if self.is_one else " ".join(f"{weight} {prefix}" for weight, prefix in weighed)
        return (
            f"--train-data-path {paths} --train-samples {self.samples} --seq-length {self.sequence_length} "
            f"--seed {self.random_seed}"
        )


def write_array(path: Path, blocks: Iterable[NDArray[Any]], dtype: str, columns: int | None = None) -> None:
    """Write rows, given as blocks, to a `.npy` file with the same bytes as `numpy.save` of the whole array.

    Args:
        path: The new file.
        blocks: Blocks of rows, of shape ``(n,)`` or ``(n, columns)``.
        dtype: The dtype, stored little-endian.
        columns: Columns per row; None for an array of one dimension.
    """
    stored_dtype, rows = np.dtype(dtype).newbyteorder("<"), 0
    with path.open("xb") as file:
        _write_header(file, rows, stored_dtype, columns)
        for block in blocks:
            file.write(np.ascontiguousarray(block, stored_dtype).tobytes())
            rows += len(block)
        # Overwrite the header in place. NumPy pads it for any number of rows, so its length does not change.
        file.seek(0)
        _write_header(file, rows, stored_dtype, columns)


def _write_header(file: BinaryIO, rows: int, dtype: np.dtype[Any], columns: int | None) -> None:
    shape = (rows,) if columns is None else (rows, columns)
    np.lib.format.write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": shape})


def choose_sample_dtype(documents: int, longest: int) -> str:
    """Return the dtype of a sample index for this number of documents whose longest has this many tokens."""
    return "int32" if max(documents, longest) <= np.iinfo(np.int32).max else "int64"


def choose_shuffle_dtype(samples: int) -> str:
    """Return the dtype of a shuffle index of this many samples."""
    # Megatron's limit is slightly below the maximum of uint32.
    return "int64" if samples >= np.iinfo(np.uint32).max - 1 else "uint32"
