"""The index files that Megatron-Core's data sets keep in their cache, and the names under which they look for them.

A `GPTDataset` maps sample `i` to `sample = shuffle_index[i]`, and that to the tokens from `sample_index[sample]` to
`sample_index[sample + 1]`, which are pairs of a place in `document_index` and an offset in that document; the token at
the second pair belongs to the sample, too, as its last label. What is shorter than a sample is filled with padding,
whose loss is masked. A `BlendedDataset` maps sample `i` to data set `dataset_index[i]` and its sample
`dataset_sample_index[i]`. The files are NumPy's: int32, shape ``(documents,)``; int32 or int64, shape
``(samples + 1, 2)``; uint32 or int64, shape ``(samples,)``; int16 and int64, shape ``(size,)``.

They are found by the MD5 of a description, which is JSON of everything by which Megatron tells data sets apart: the
prefix of the pair as the trainer is given it, how many samples are asked for, seed, length, tokenizer, weights.

Source: Megatron-LM, `megatron/core/datasets/{megatron_dataset,gpt_dataset,blended_dataset,
blended_megatron_dataset_builder}.py`, megatron-core 0.16.1; `dataprep_assets_tests/readers/megatron.py` holds the files
against it.

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
"""What Megatron asks of each data set of a blend beyond its share (`mid_level_dataset_surplus`, by default)."""


@dataclass(frozen=True, kw_only=True)
class TrainBlend:
    """The train split as Megatron is asked for it with `--train-data-path` and `--train-samples`.

    Attributes:
        prefixes: The prefix of each data set's `.bin` and `.idx`, as the trainer is given it.
        weights: The weight of each.
        samples: Samples of the whole run.
        sequence_length: Tokens of a sample.
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
        """Whether there is one data set, which Megatron then reads without a `BlendedDataset`."""
        return len(self.prefixes) == 1

    @cached_property
    def _normalized(self) -> list[float]:
        # By NumPy, as Megatron does it: other last digits would give another description, and files that are not found.
        weights = np.array(self.weights, np.float64)
        shares: list[float] = (weights / np.sum(weights)).tolist()
        return shares

    @property
    def size(self) -> int:
        """Samples of the blend: a few more than of the run, because each data set's are rounded up."""
        return sum(math.ceil(self.samples * weight) for weight in self._normalized)

    def requested_samples(self, number: int) -> int:
        """Return how many samples of a data set Megatron asks for."""
        if self.is_one:
            return self.samples
        # rounded up twice, as Megatron does: the share, then the share with its surplus
        return math.ceil(math.ceil(self.samples * self._normalized[number]) * (1 + SURPLUS))

    def _identifiers(self, number: int) -> dict[str, Any]:
        # in Megatron's order, with its nulls: the MD5 is of the text that this becomes
        return {
            "class": GPT,
            "dataset_path": self.prefixes[number],
            "num_samples": self.requested_samples(number),
            "index_split": "train",
            "random_seed": self.random_seed,
            "sequence_length": self.sequence_length,
            "split": None,
            "split_matrix": None,
            "tokenizer": dict(self.tokenizer),
        }

    def description(self, number: int | None = None) -> str:
        """The text of a data set's `description.txt`; without a number that of the blend."""
        if number is not None:
            return json.dumps(self._identifiers(number), indent=4)
        # normalized by the builder, and by the data set once more
        twice = np.array(self._normalized, np.float64)
        value = {
            "class": BLENDED,
            "datasets": [self._identifiers(index) for index in range(len(self.prefixes))],
            "split": "train",
            "weights": (twice / np.sum(twice)).tolist(),
            "size": self.size,
        }
        return json.dumps(value, indent=4)

    def base(self, number: int | None = None) -> str:
        """Return what the names of a data set's files begin with; without a number those of the blend."""
        digest = hashlib.md5(self.description(number).encode(), usedforsecurity=False).hexdigest()
        return f"{digest}-{BLENDED if number is None else GPT}-train-"

    @property
    def arguments(self) -> str:
        """Megatron-LM options, shell-quoted, with which it finds these index files."""
        quoted = [shlex.quote(prefix) for prefix in self.prefixes]
        weighed = zip(self.weights, quoted, strict=True)
        paths = quoted[0] if self.is_one else " ".join(f"{weight} {prefix}" for weight, prefix in weighed)
        return (
            f"--train-data-path {paths} --train-samples {self.samples} --seq-length {self.sequence_length} "
            f"--seed {self.random_seed}"
        )


def write_array(path: Path, blocks: Iterable[NDArray[Any]], dtype: str, columns: int | None = None) -> None:
    """Write a `.npy` file of blocks of its rows, byte for byte as `numpy.save` writes the whole array.

    Args:
        path: The new file.
        blocks: Its rows; shape ``(n,)``, or ``(n, columns)``.
        dtype: Its dtype, little-endian.
        columns: Columns of a row; None for an array of one dimension.
    """
    stored_dtype, rows = np.dtype(dtype).newbyteorder("<"), 0
    with path.open("xb") as file:
        _write_header(file, rows, stored_dtype, columns)
        for block in blocks:
            file.write(np.ascontiguousarray(block, stored_dtype).tobytes())
            rows += len(block)
        # NumPy leaves room for any number of rows, so it is as long as the first one
        file.seek(0)
        _write_header(file, rows, stored_dtype, columns)


def _write_header(file: BinaryIO, rows: int, dtype: np.dtype[Any], columns: int | None) -> None:
    shape = (rows,) if columns is None else (rows, columns)
    np.lib.format.write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": shape})


def sample_dtype(documents: int, longest: int) -> str:
    """The dtype of a sample index over so many documents, of which the longest has so many tokens."""
    return "int32" if max(documents, longest) <= np.iinfo(np.int32).max else "int64"


def shuffle_dtype(samples: int) -> str:
    """The dtype of a shuffle index of so many samples."""
    # Megatron's own limit, which is a little below what uint32 holds
    return "int64" if samples >= np.iinfo(np.uint32).max - 1 else "uint32"
