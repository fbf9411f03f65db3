"""Packed rows like those of the notes pipeline, and a simple Example encoder as a reference."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep_assets.formats.tensorflow.example import FeatureColumn

Rows = dict[str, npt.NDArray[Any]]

VOCABULARY = 128_256
"""Token ids of the Llama-3 tokenizer."""


def make_packed_rows(rows: int, length: int, seed: int = 0) -> Rows:
    """Return five int32 columns of shape ``(rows, length)``: consecutive documents, and padding where no further one
    fits.

    Ids and document lengths are distributed like those of Llama-3 over real text: 16 % of the ids take one byte, 60 %
    two, the others three; the median document has 530 tokens, and one in ten has 2,600 or more.
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
    # The target of a token is the next token if both are in the same document.
    labeled = np.zeros((rows, length), np.bool_)
    labeled[:, :-1] = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    return {
        "inputs": np.where(segments > 0, inputs, 0).astype(np.int32),
        "inputs_segmentation": segments,
        "inputs_position": positions,
        "targets_segmentation": np.where(labeled, segments, 0).astype(np.int32),
        "targets_position": np.where(labeled, positions, 0).astype(np.int32),
    }


def declare_columns(rows: Rows) -> tuple[FeatureColumn, ...]:
    """Return the declaration that matches these arrays."""
    return tuple(FeatureColumn(name=name, length=v.shape[1], dtype=str(v.dtype)) for name, v in rows.items())


def assert_same(found: Mapping[str, npt.NDArray[Any]], expected: Rows) -> None:
    """Assert equal names, dtypes, shapes and values."""
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        assert np.array_equal(found[name], values), name


def encode_varint(value: int) -> bytes:
    """Encode one varint, with a negative value as a 64-bit two's complement."""
    value %= 1 << 64
    out = b""
    while value > 127:
        out += bytes([value % 128 + 128])
        value //= 128
    return out + bytes([value])


def encode_field(number: int, content: bytes) -> bytes:
    """Encode a length-delimited protobuf field."""
    return encode_varint(number << 3 | 2) + encode_varint(len(content)) + content


def encode_entry(name: bytes, values: Iterable[int]) -> bytes:
    """Encode a map entry with an integer list."""
    packed = b"".join(encode_varint(int(value)) for value in values)
    return encode_field(
        1, encode_field(1, name) + encode_field(2, encode_field(3, encode_field(1, packed) if packed else b""))
    )


def encode_example(entries: Iterable[bytes]) -> bytes:
    """Encode an Example of map entries."""
    return encode_field(1, b"".join(entries))
