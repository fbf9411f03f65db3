"""A directory in the layout of TensorFlow Datasets, and every possible defect of one, by name."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dataprep_assets.formats.tensorflow import example, tfds, tfrecord
from dataprep_assets.formats.tensorflow.tfds import DatasetInfo, Split
from dataprep_assets_tests.formats.packed import Rows, declare_columns, make_packed_rows

LENGTHS = (4, 3, 5)
ROWS = make_packed_rows(sum(LENGTHS), 40)
TRAIN = [f"notes-train.tfrecord-{index:05d}-of-00003" for index in range(3)]


def write_shards(where: Path, rows: Rows, lengths: tuple[int, ...], split: str = "train") -> Split:
    """Write the rows as shards of these lengths, and return the split's description."""
    start = payload_bytes = 0
    for index, length in enumerate(lengths):
        part = {name: values[start : start + length] for name, values in rows.items()}
        path = where / tfds.build_shard_name("notes", split, index, len(lengths))
        payload_bytes += tfrecord.write(path, example.encode_rows(part)).payload_bytes
        start += length
    return Split(name=split, shard_lengths=lengths, num_bytes=payload_bytes)


def write_dataset(root: Path, **changes: Any) -> tuple[Path, DatasetInfo]:
    """Write a dataset of three shards below `root`, apply `changes`, and return its folder and description."""
    where = root / "notes" / "1.0.0"
    where.mkdir(parents=True)
    split = write_shards(where, ROWS, LENGTHS)
    info = DatasetInfo(name="notes", version="1.0.0", splits=(split,), columns=declare_columns(ROWS))
    info = replace(info, **changes)
    tfds.write_metadata(where, info)
    return where, info


def _edit(name: str, change: Callable[[Any], object]) -> Callable[[Path], object]:
    def damage(where: Path) -> None:
        value = json.loads((where / name).read_bytes())
        change(value)
        (where / name).write_text(json.dumps(value))

    return damage


def _info(change: Callable[[Any], object]) -> Callable[[Path], object]:
    return _edit("dataset_info.json", change)


def change_split(change: Callable[[Any], object]) -> Callable[[Path], object]:
    return _info(lambda info: change(info["splits"][0]))


def change_features(change: Callable[[Any], object]) -> Callable[[Path], object]:
    return _edit("features.json", lambda value: change(value["featuresDict"]["features"]))


def _column(change: Callable[[Any], object]) -> Callable[[Path], object]:
    return change_features(lambda features: change(features["inputs"]))


def change_lengths(*lengths: int) -> Callable[[Path], object]:
    return change_split(lambda split: split.update(shardLengths=[str(length) for length in lengths]))


def _rename(old: str, new: str) -> Callable[[Path], object]:
    return lambda where: (where / old).rename(where / new)


def _at(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda where: (where / name).write_bytes(change((where / name).read_bytes()))


def _keep_records(count: int) -> Callable[[bytes], bytes]:
    """Truncate a shard exactly between two records."""

    def cut(raw: bytes) -> bytes:
        at = 0
        for _ in range(count):
            at += 16 + int.from_bytes(raw[at : at + 8], "little")
        return raw[:at]

    return cut


def _exchange(where: Path) -> None:
    (where / TRAIN[0]).rename(where / "aside")
    (where / TRAIN[1]).rename(where / TRAIN[0])
    (where / "aside").rename(where / TRAIN[1])


def _folder_for_a_shard(where: Path) -> None:
    (where / TRAIN[1]).unlink()
    (where / TRAIN[1]).mkdir()


def _copy(name: str) -> Callable[[Path], object]:
    return lambda where: shutil.copy(where / TRAIN[0], where / name)


def _flip(raw: bytes) -> bytes:
    return raw[:-40] + bytes([raw[-40] ^ 4]) + raw[-39:]


METADATA_DEFECTS: dict[str, tuple[Callable[[Path], object], tuple[object, ...]]] = {
    "no dataset_info.json": (
        lambda where: (where / "dataset_info.json").unlink(),
        ("dataset_info.json",),
    ),
    "no features.json": (lambda where: (where / "features.json").unlink(), ("features.json",)),
    "info cut": (_at("dataset_info.json", lambda raw: raw[:-5]), ("dataset_info.json", "JSON", 16)),
    "features empty": (_at("features.json", lambda raw: b""), ("features.json", "JSON")),
    "info a list": (_at("dataset_info.json", lambda raw: b"[]"), ("dataset_info.json", "object")),
    "a field twice": (
        _at("dataset_info.json", lambda raw: raw.replace(b"{", b'{"name": "x", ', 1)),
        ("dataset_info.json", "name", "twice"),
    ),
    "an unknown field": (
        _info(lambda info: info.update(rows=12)),
        ("['rows']", "TFDS's", "DatasetInfo"),
    ),
    "an unknown field of a split": (
        change_split(lambda split: split.update(rows=12)),
        ("train", "['rows']"),
    ),
    "version of two numbers": (_info(lambda info: info.update(version="1.0")), ("1.0", "TFDS", "x.y.z")),
    "version with a leading zero": (_info(lambda info: info.update(version="1.01.0")), ("1.01.0",)),
    "no version": (_info(lambda info: info.pop("version")), ("dataset_info.json", "version")),
    "a name TFDS never finds": (_info(lambda info: info.update(name="Notes")), ("Notes", "TFDS")),
    "another file format": (_info(lambda info: info.update(fileFormat="parquet")), ("parquet",)),
    "splits by name": (
        _info(lambda info: info.update(splits={"train": {}})),
        ("dataset_info.json", "splits", "dict", "list"),
    ),
    "no splits": (_info(lambda info: info.update(splits=[])), ("'notes'", "splits")),
    "a split twice": (
        _info(lambda info: info["splits"].append(info["splits"][0])),
        ("'notes'", "splits"),
    ),
    "no shard lengths": (change_split(lambda split: split.pop("shardLengths")), ("'train'", "shardLengths")),
    "no shards": (change_lengths(), ("'train'", 0)),
    "a negative length": (change_lengths(4, 3, -5), ("'train'", 3)),
    "a length that is no number": (
        change_split(lambda split: split.update(shardLengths=["4", "3", "five"])),
        ("'train'", "five"),
    ),
    "a length that is a truth": (
        change_split(lambda split: split.update(shardLengths=[4, 3, True])),
        ("'train'", "bool", "True"),
    ),
    "another template": (
        change_split(lambda split: split.update(filepathTemplate="{SPLIT}")),
        ("'train'", "filepathTemplate"),
    ),
    "no features dict": (_edit("features.json", lambda v: v.pop("featuresDict")), ("features.json", "featuresDict")),
    "features of another kind": (
        _edit("features.json", lambda v: v.update(pythonClassName="x")),
        ("features.json", "pythonClassName"),
    ),
    "no columns": (
        change_features(lambda features: features.clear()),
        ("'notes'", "columns", "none"),
    ),
    "a column that is text": (
        _column(lambda column: column.update(pythonClassName="Text")),
        ("'inputs'", "pythonClassName"),
    ),
    "a matrix": (_column(lambda c: c["tensor"]["shape"].update(dimensions=["2", "2"])), ("inputs", 2)),
    "ids that wrap": (_column(lambda c: c["tensor"].update(dtype="uint16")), ("inputs", 40, "uint16")),
    "floats": (_column(lambda c: c["tensor"].update(dtype="float32")), ("inputs", 40, "float32")),
    "another encoding": (_column(lambda c: c["tensor"].update(encoding="zlib")), ("'inputs'", "encoding", "none")),
}

# These defects are visible only in the shards. The last item states whether the first records and the counts are enough
# to find the defect.
SHARD_DEFECTS: dict[str, tuple[Callable[[Path], object], tuple[object, ...], bool]] = {
    "wrong lengths, right sum": (change_lengths(3, 4, 5), (TRAIN[0], 4, "dataset_info.json", 3), True),
    "wrong sum": (change_lengths(4, 3, 6), (TRAIN[2], 5, "dataset_info.json", 6), True),
    "a length less": (change_lengths(4, 8), (2, "[3]"), True),
    "a length more": (change_lengths(4, 3, 5, 1), (4, "[3]"), True),
    "wrong numBytes": (
        change_split(lambda split: split.update(numBytes="7")),
        ("'train'", "numBytes", 7),
        True,
    ),
    "no numBytes": (change_split(lambda split: split.pop("numBytes")), ("'train'", "numBytes", 0), True),
    "another name inside": (
        _info(lambda info: info.update(name="replay")),
        (3, "replay-train.tfrecord-00000-of-00003"),
        True,
    ),
    "a shard missing": (lambda where: (where / TRAIN[1]).unlink(), (1, 3, TRAIN[1]), True),
    "names from 1": (_rename(TRAIN[0], "notes-train.tfrecord-00003-of-00003"), (TRAIN[0],), True),
    "three digits": (_rename(TRAIN[0], "notes-train.tfrecord-000-of-003"), (TRAIN[0],), True),
    "shards of two totals": (
        _copy("notes-train.tfrecord-00000-of-00002"),
        (1, "[2]"),
        True,
    ),
    "a shard of another split": (_copy("notes-test.tfrecord-00000-of-00001"), ("notes-test.tfrecord-00000",), True),
    "a leftover": (_copy("notes.tmp"), ("notes.tmp",), True),
    "a folder": (lambda where: (where / "1.0.0").mkdir(), ("1.0.0",), True),
    "a folder for a shard": (_folder_for_a_shard, (TRAIN[1],), True),
    "a shard cut between records": (_at(TRAIN[2], _keep_records(4)), (TRAIN[2], 4, "dataset_info.json", 5), True),
    "a shard cut within a record": (
        _at(TRAIN[2], lambda raw: raw[:-1]),
        (TRAIN[2], 1951, 4, 1565),
        True,
    ),
    "a shard cut within a header": (
        _at(TRAIN[2], lambda raw: _keep_records(4)(raw) + b"\0" * 11),
        (TRAIN[2], 4),
        True,
    ),
    "an empty shard": (_at(TRAIN[1], lambda raw: b""), (TRAIN[1], 0, "dataset_info.json", 3), True),
    "two shards exchanged": (_exchange, (TRAIN[0], 3, "dataset_info.json", 4), True),
    "a flipped bit": (_at(TRAIN[1], _flip), (TRAIN[1], 2), False),
    "a column not declared": (change_features(lambda f: f.pop("inputs")), (TRAIN[0], 0, "inputs"), True),
    "a column too many": (
        change_features(lambda f: f.update(targets=f["inputs"])),
        (TRAIN[0], 0, "targets"),
        True,
    ),
    "another row length": (
        _column(lambda column: column["tensor"]["shape"].update(dimensions=["41"])),
        ("inputs", 40, 41),
        True,
    ),
}
