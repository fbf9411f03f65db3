"""Packed rows as the notes pipeline makes them, and an Example encoder too simple to be wrong."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep_assets.formats.tensorflow.example import FeatureColumn

Rows = dict[str, npt.NDArray[Any]]

VOCABULARY = 128_256
"""Ids of the Llama-3 tokenizer."""


def packed_rows(rows: int, length: int, seed: int = 0) -> Rows:
    """Five int32 columns of shape ``(rows, length)``: documents one after another, a padded tail where none fits.

    Ids and document lengths are spread as those of Llama-3 over real text: 16 % of the ids take one byte, 60 % two, the
    others three; a document has 530 tokens in the median, one in ten has 2,600 or more.
    """
    random = np.random.default_rng(seed)
    wide = 2 ** random.uniform(7, np.log2(VOCABULARY), (rows, length))
    inputs = np.where(random.random((rows, length)) < 0.16, random.integers(0, 128, (rows, length)), wide)
    segments = np.zeros((rows, length), np.int32)
    positions = np.zeros((rows, length), np.int32)
    for row in range(rows):
        start = document = 0
        while start < length - 16:
            stop = min(length, start + 1 + int(random.lognormal(np.log(530), 1.25)))
            document += 1
            segments[row, start:stop] = document
            positions[row, start:stop] = np.arange(stop - start)
            start = stop
    # A token's target is the next one, if that is of the same document.
    labeled = np.zeros((rows, length), np.bool_)
    labeled[:, :-1] = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    return {
        "inputs": np.where(segments > 0, inputs, 0).astype(np.int32),
        "inputs_segmentation": segments,
        "inputs_position": positions,
        "targets_segmentation": np.where(labeled, segments, 0).astype(np.int32),
        "targets_position": np.where(labeled, positions, 0).astype(np.int32),
    }


def columns_of(rows: Rows) -> tuple[FeatureColumn, ...]:
    """The declaration that these arrays fulfill."""
    return tuple(FeatureColumn(name=name, length=v.shape[1], dtype=str(v.dtype)) for name, v in rows.items())


def assert_same(found: Mapping[str, npt.NDArray[Any]], expected: Rows) -> None:
    """Equal names, dtypes, shapes and values."""
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        assert np.array_equal(found[name], values), name


def varint(value: int) -> bytes:
    """One varint, a negative value in two's complement of 64 bits."""
    value %= 1 << 64
    out = b""
    while value > 127:
        out += bytes([value % 128 + 128])
        value //= 128
    return out + bytes([value])


def field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def entry(name: bytes, values: Iterable[int]) -> bytes:
    """A map entry with an integer list."""
    packed = b"".join(varint(int(value)) for value in values)
    return field(1, field(1, name) + field(2, field(3, field(1, packed) if packed else b"")))


def example(entries: Iterable[bytes]) -> bytes:
    """An Example of map entries."""
    return field(1, b"".join(entries))
