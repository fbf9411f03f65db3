"""Read shards of rows, and TFDS directories of them, completely: decode every record, compare every name and count.

The tests of the writers verify their files with it. It reads with the product's own functions (`records`, `count`,
`decode_rows`, `read_metadata`) and adds only comparisons, which the checks of the notes pipeline also make on
artifacts.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy.typing as npt

from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.formats.tensorflow import array_record, example, tfds, tfrecord
from dataprep_assets.formats.tensorflow.example import FeatureColumn
from dataprep_assets.formats.tensorflow.tfds import DatasetInfo
from dataprep_assets.formats.tensorflow.tfrecord import ROWS_PER_SHARD, ShardCount

_TOTAL = re.compile(r"-[0-9]+-of-(?P<total>[0-9]+)$")


def decode_tfrecord(path: Path, columns: Sequence[FeatureColumn]) -> ShardCount:
    """Decode every record of a TFRecord file. Raises FormatError with file, record and byte."""
    found = payload_bytes = 0
    for record in tfrecord.read_records(path):
        with _add_location(f"{path}: record {record.number} at byte {record.offset}"):
            example.decode_rows([record.payload], columns)
        found += 1
        payload_bytes += len(record.payload)
    return ShardCount(records=found, payload_bytes=payload_bytes)


def decode_array_record(path: Path, columns: Sequence[FeatureColumn]) -> ShardCount:
    """Decode every record of an ArrayRecord file. Raises FormatError with file and record."""
    found = payload_bytes = 0
    for payload in array_record.read_records(path):
        with _add_location(f"{path}: record {found}"):
            example.decode_rows([payload], columns)
        found += 1
        payload_bytes += len(payload)
    return ShardCount(records=found, payload_bytes=payload_bytes)


def read_batches(
    path: Path, columns: Sequence[FeatureColumn], *, rows: int = ROWS_PER_SHARD
) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """Yield the columns of up to `rows` rows of a TFRecord file at a time: name to array of shape `(rows, length)`."""
    records = tfrecord.read_records(path)
    while batch := list(islice(records, rows)):
        try:
            yield example.decode_rows([record.payload for record in batch], columns)
        except FormatError:
            decode_tfrecord(path, columns)  # raises an error with the number of the record in the file
            raise


def read_directory(
    where: Path, *, records: Literal["all", "first"] = "all", besides: Collection[str] = ()
) -> DatasetInfo:
    """Return the metadata of a TFDS directory. Raises FormatError if its shards do not match the metadata.

    The directory contains the two JSON files, shards 0 to N - 1 of every split, the files named in `besides`, and
    nothing else. Each shard has the number of records in `shardLengths`, and each split the payload bytes in
    `numBytes`. With `records="first"` only the first record of each shard is decoded and the others are counted.
    """
    info = tfds.read_metadata(where)
    _check_names(where, info, besides)
    for split in info.splits:
        payload_bytes: int | None = 0
        for name, length in zip(info.list_shard_names(split), split.shard_lengths, strict=True):
            count, size = _count(where / name, info, records)
            if count != length:
                raise FormatError(f"{where / name}: {count} records, {tfds.DATASET_INFO} says {length}")
            payload_bytes = None if size is None or payload_bytes is None else payload_bytes + size
        if payload_bytes not in (None, split.num_bytes):
            raise FormatError(
                f"{where / tfds.DATASET_INFO}: split {split.name!r}: numBytes {split.num_bytes}, counted "
                f"{payload_bytes}"
            )
    return info


def _count(path: Path, info: DatasetInfo, records: Literal["all", "first"]) -> tuple[int, int | None]:
    """Return the number of records of a shard and their payload bytes; None for bytes that only a full read shows."""
    if records == "all":
        found = (decode_tfrecord if info.file_format == "tfrecord" else decode_array_record)(path, info.columns)
        return found.records, found.payload_bytes
    if info.file_format == "tfrecord":
        payloads: Iterator[bytes] = (record.payload for record in tfrecord.read_records(path))
        found = tfrecord.count(path)
        counted: tuple[int, int | None] = found.records, found.payload_bytes
    else:
        payloads = array_record.read_records(path)
        counted = array_record.count(path), None
    for payload in islice(payloads, 1):
        with _add_location(f"{path}: record 0"):
            example.decode_rows([payload], info.columns)
    return counted


def _check_names(where: Path, info: DatasetInfo, besides: Collection[str]) -> None:
    expected = {name for split in info.splits for name in info.list_shard_names(split)}
    with os.scandir(where) as entries:
        present = {entry.name: entry.is_file() for entry in entries}
    strays = present.keys() - expected - {tfds.DATASET_INFO, tfds.FEATURES, *besides}
    if missing := sorted(expected - present.keys()):
        raise FormatError(
            f"{where}: {len(missing)} of {len(expected)} shards are not there, "
            f"first {missing[0]}{_describe_totals(strays)}"
        )
    if strays:
        raise FormatError(
            f"{where}: {count_of(len(strays), 'entry is', 'entries are')} not of this dataset, "
            f"first {min(strays)}{_describe_totals(strays)}; TFDS would"
            " ignore them"
        )
    if odd := sorted(name for name, is_file in present.items() if not is_file):
        raise FormatError(f"{where}: {odd[0]} is not a file")


def _describe_totals(strays: Iterable[str]) -> str:
    """Return a remark if the extra files contain shards of another run."""
    totals = {int(found["total"]) for name in strays if (found := _TOTAL.search(name))}
    return f"; there are shards of other totals, {sorted(totals)}" if totals else ""


@contextmanager
def _add_location(where: str) -> Iterator[None]:
    """Put file and record in front of an error about its single row."""
    try:
        yield
    except FormatError as error:
        raise FormatError(f"{where}: {str(error).removeprefix('row 0: ')}") from error
