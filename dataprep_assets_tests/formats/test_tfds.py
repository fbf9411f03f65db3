"""Claims about `dataprep_assets.formats.tfds`, some of them tested on TensorFlow Datasets itself."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.errors import FormatError
from dataprep_assets.formats import example, tfds, tfrecord
from dataprep_assets.formats.example import Column
from dataprep_assets.formats.tfds import DatasetInfo, Split
from dataprep_assets_tests.formats import packed, shard_reader
from dataprep_assets_tests.formats.packed import Rows, columns_of, packed_rows
from dataprep_assets_tests.readers.process import LibraryError
from dataprep_assets_tests.readers.tfds import (
    ByName,
    read_columns,
    read_shifted,
    relative_shard_paths,
    split_info,
    write_metadata,
)

LENGTHS = (4, 3, 5)
ROWS = packed_rows(sum(LENGTHS), 40)
TRAIN = [f"notes-train.tfrecord-{index:05d}-of-00003" for index in range(3)]


def _shards(where: Path, rows: Rows, lengths: tuple[int, ...], split: str = "train") -> Split:
    """Write the rows as shards of these lengths; the split's description."""
    start = payload_bytes = 0
    for index, length in enumerate(lengths):
        part = {name: values[start : start + length] for name, values in rows.items()}
        path = where / tfds.shard_name("notes", split, index, len(lengths))
        payload_bytes += tfrecord.write(path, example.encode_rows(part)).payload_bytes
        start += length
    return Split(name=split, shard_lengths=lengths, num_bytes=payload_bytes)


def _dataset(root: Path, **changes: Any) -> tuple[Path, DatasetInfo]:
    where = root / "notes" / "1.0.0"
    where.mkdir(parents=True)
    split = _shards(where, ROWS, LENGTHS)
    info = DatasetInfo(name="notes", version="1.0.0", splits=(split,), columns=columns_of(ROWS))
    info = replace(info, **changes)
    tfds.write_metadata(where, info)
    return where, info


def _assert_rows(found: Rows, rows: slice = slice(None)) -> None:
    packed.assert_same(found, {name: values[rows] for name, values in ROWS.items()})


def test_a_written_directory_is_valid_and_says_what_was_written(tmp_path: Path) -> None:
    where, info = _dataset(tmp_path)
    assert sorted(path.name for path in where.iterdir()) == ["dataset_info.json", "features.json", *TRAIN]
    assert tfds.read_metadata(where) == info
    assert shard_reader.read_directory(where) == shard_reader.read_directory(where, records="first") == info
    assert info.splits[0].rows == 12


def test_columns_are_in_the_order_of_their_names_however_they_are_declared(tmp_path: Path) -> None:
    _, info = _dataset(tmp_path)
    assert replace(info, columns=info.columns[::-1]) == info
    assert [column.name for column in info.columns] == sorted(ROWS)


@pytest.mark.parametrize("description", ["", 'Notes: "packed" rows, 8192 a row; Größe'])
def test_metadata_are_those_of_write_metadata_byte_for_byte(tmp_path: Path, description: str) -> None:
    where, info = _dataset(tmp_path)
    validation = _shards(where, packed_rows(7, 40, seed=9), (6, 1), "validation")
    columns = tuple(replace(column, dtype="int64" if "pos" in column.name else "int32") for column in info.columns)
    for name in ("dataset_info.json", "features.json"):
        (where / name).unlink()
    write_metadata(where, "1.0.0", [(column.name, column.length, column.dtype) for column in columns], description)
    ours = tmp_path / "ours"
    ours.mkdir()
    tfds.write_metadata(
        ours, replace(info, splits=(info.splits[0], validation), columns=columns, description=description)
    )
    for name in ("dataset_info.json", "features.json"):
        assert (ours / name).read_bytes() == (where / name).read_bytes()
        assert json.loads((ours / name).read_bytes()) == json.loads((where / name).read_bytes())
    assert shard_reader.read_directory(where).splits == (info.splits[0], validation)


def test_names_of_shards_are_those_of_tfds() -> None:
    numbers = [(0, 1), (255, 256), (99_998, 99_999), (0, 100_000), (123_456, 1_234_567)]
    expected = relative_shard_paths("notes", "train", numbers)
    assert [tfds.shard_name("notes", "train", index, total) for index, total in numbers] == expected


def test_builder_from_directory_reads_every_row_in_file_order(tmp_path: Path) -> None:
    where, _ = _dataset(tmp_path)
    assert split_info(where) == (12, [4, 3, 5])
    _assert_rows(read_columns(where))


@pytest.mark.parametrize("rows", [slice(0, 4), slice(3, 8), slice(11, 12)])
def test_slices_are_the_rows_they_name(tmp_path: Path, rows: slice) -> None:
    where, _ = _dataset(tmp_path)
    _assert_rows(read_columns(where, f"train[{rows.start}:{rows.stop}]"), rows)


def test_a_builder_finds_the_dataset_by_name_and_version(tmp_path: Path) -> None:
    _dataset(tmp_path)
    _assert_rows(read_columns(ByName("notes:1.0.0", tmp_path)))


def test_a_column_of_one_longer_rows_is_read_as_maxtext_reads_it(tmp_path: Path) -> None:
    """MaxText's TFDS input takes one column and shifts it: rows of L + 1 give inputs and targets of L."""
    rows: Rows = {"tokens": packed_rows(6, 65)["inputs"]}
    split = _shards(tmp_path, rows, (4, 2))
    info = DatasetInfo(name="notes", version="1.0.0", splits=(split,), columns=columns_of(rows))
    tfds.write_metadata(tmp_path, info)
    shard_reader.read_directory(tmp_path)
    inputs, targets = read_shifted(tmp_path, "tokens", 64)
    assert np.array_equal(inputs, rows["tokens"][:, :64])
    assert np.array_equal(targets, rows["tokens"][:, 1:])


def _edit(name: str, change: Callable[[Any], object]) -> Callable[[Path], object]:
    def damage(where: Path) -> None:
        value = json.loads((where / name).read_bytes())
        change(value)
        (where / name).write_text(json.dumps(value))

    return damage


def _info(change: Callable[[Any], object]) -> Callable[[Path], object]:
    return _edit("dataset_info.json", change)


def _split(change: Callable[[Any], object]) -> Callable[[Path], object]:
    return _info(lambda info: change(info["splits"][0]))


def _features(change: Callable[[Any], object]) -> Callable[[Path], object]:
    return _edit("features.json", lambda value: change(value["featuresDict"]["features"]))


def _column(change: Callable[[Any], object]) -> Callable[[Path], object]:
    return _features(lambda features: change(features["inputs"]))


def _lengths(*lengths: int) -> Callable[[Path], object]:
    return _split(lambda split: split.update(shardLengths=[str(length) for length in lengths]))


def _rename(old: str, new: str) -> Callable[[Path], object]:
    return lambda where: (where / old).rename(where / new)


def _at(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda where: (where / name).write_bytes(change((where / name).read_bytes()))


def _first_records(count: int) -> Callable[[bytes], bytes]:
    """Cut a shard exactly between two records."""

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


METADATA_DEFECTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no dataset_info.json": (lambda where: (where / "dataset_info.json").unlink(), "dataset_info.json: missing"),
    "no features.json": (lambda where: (where / "features.json").unlink(), "features.json: missing"),
    "info cut": (_at("dataset_info.json", lambda raw: raw[:-5]), "dataset_info.json: not JSON"),
    "features empty": (_at("features.json", lambda raw: b""), "features.json: not JSON"),
    "info a list": (_at("dataset_info.json", lambda raw: b"[]"), "expected an object"),
    "a field twice": (_at("dataset_info.json", lambda raw: raw.replace(b"{", b'{"name": "x", ', 1)), "twice"),
    "an unknown field": (_info(lambda info: info.update(rows=12)), r"fields \['rows'\] are not of"),
    "an unknown field of a split": (_split(lambda split: split.update(rows=12)), r"split 'train': fields \['rows'\]"),
    "version of two numbers": (_info(lambda info: info.update(version="1.0")), "version '1.0': TFDS needs x.y.z"),
    "version with a leading zero": (_info(lambda info: info.update(version="1.01.0")), "version '1.01.0'"),
    "no version": (_info(lambda info: info.pop("version")), "version is missing, expected a string"),
    "a name TFDS never finds": (_info(lambda info: info.update(name="Notes")), "dataset 'Notes': TFDS needs"),
    "another file format": (_info(lambda info: info.update(fileFormat="parquet")), "unknown file format 'parquet'"),
    "splits by name": (_info(lambda info: info.update(splits={"train": {}})), "splits is dict .*expected a list"),
    "no splits": (_info(lambda info: info.update(splits=[])), "it needs at least one"),
    "a split twice": (_info(lambda info: info["splits"].append(info["splits"][0])), "each name once"),
    "no shard lengths": (_split(lambda split: split.pop("shardLengths")), "shardLengths is missing"),
    "no shards": (_lengths(), "a split has at least one shard"),
    "a negative length": (_lengths(4, 3, -5), "no negative number"),
    "a length that is no number": (_split(lambda split: split.update(shardLengths=["4", "3", "five"])), "whole number"),
    "a length that is a truth": (_split(lambda split: split.update(shardLengths=[4, 3, True])), "is bool True"),
    "another template": (_split(lambda split: split.update(filepathTemplate="{SPLIT}")), "filepathTemplate must be"),
    "no features dict": (_edit("features.json", lambda v: v.pop("featuresDict")), "featuresDict is missing"),
    "features of another kind": (_edit("features.json", lambda v: v.update(pythonClassName="x")), "pythonClassName"),
    "no columns": (_features(lambda features: features.clear()), r"columns \[\]; it needs at least one"),
    "a column that is text": (
        _column(lambda column: column.update(pythonClassName="Text")),
        "column 'inputs': pythonCl",
    ),
    "a matrix": (_column(lambda c: c["tensor"]["shape"].update(dimensions=["2", "2"])), "'inputs': 2 dimensions"),
    "a variable length": (_column(lambda c: c["tensor"]["shape"].update(dimensions=["-1"])), "'inputs' of -1 int32"),
    "ids that wrap": (_column(lambda c: c["tensor"].update(dtype="uint16")), "'inputs' of 40 uint16 values"),
    "floats": (_column(lambda c: c["tensor"].update(dtype="float32")), "'inputs' of 40 float32 values"),
    "another encoding": (_column(lambda c: c["tensor"].update(encoding="zlib")), "'inputs': encoding must be none"),
}


@pytest.mark.parametrize("defect", METADATA_DEFECTS)
def test_every_defect_of_the_metadata_is_refused(tmp_path: Path, defect: str) -> None:
    where, _ = _dataset(tmp_path)
    damage, complaint = METADATA_DEFECTS[defect]
    damage(where)
    for read in (tfds.read_metadata, shard_reader.read_directory):
        with pytest.raises(FormatError, match=rf"1\.0\.0/(dataset_info|features)\.json: .*{complaint}|{complaint}"):
            read(where)


# What only the shards give away; `first` says whether looking at first records and counts is enough.
SHARD_DEFECTS: dict[str, tuple[Callable[[Path], object], str, bool]] = {
    "wrong lengths, right sum": (_lengths(3, 4, 5), f"{TRAIN[0]}: 4 records, dataset_info.json says 3", True),
    "wrong sum": (_lengths(4, 3, 6), f"{TRAIN[2]}: 5 records, dataset_info.json says 6", True),
    "a length less": (_lengths(4, 8), r"2 of 2 shards are not there.*other totals, \[3\]", True),
    "a length more": (_lengths(4, 3, 5, 1), "4 of 4 shards are not there", True),
    "wrong numBytes": (_split(lambda split: split.update(numBytes="7")), "split 'train': numBytes 7, counted", True),
    "no numBytes": (_split(lambda split: split.pop("numBytes")), "split 'train': numBytes 0, counted", True),
    "another name inside": (_info(lambda info: info.update(name="replay")), "3 of 3 shards are not there", True),
    "a shard missing": (lambda where: (where / TRAIN[1]).unlink(), f"1 of 3 shards .*, first {TRAIN[1]}", True),
    "names from 1": (_rename(TRAIN[0], "notes-train.tfrecord-00003-of-00003"), f"first {TRAIN[0]}", True),
    "three digits": (_rename(TRAIN[0], "notes-train.tfrecord-000-of-003"), f"first {TRAIN[0]}", True),
    "shards of two totals": (
        _copy("notes-train.tfrecord-00000-of-00002"),
        r"1 entries are not of this dataset, .*other totals, \[2\]",
        True,
    ),
    "a shard of another split": (_copy("notes-test.tfrecord-00000-of-00001"), "first notes-test.tfrecord-00000", True),
    "a leftover": (_copy("notes.tmp"), "first notes.tmp", True),
    "a folder": (lambda where: (where / "1.0.0").mkdir(), "first 1.0.0", True),
    "a folder for a shard": (_folder_for_a_shard, f"{TRAIN[1]} is not a file", True),
    "a shard cut between records": (_at(TRAIN[2], _first_records(4)), f"{TRAIN[2]}: 4 records, dataset_info.js", True),
    "a shard cut within a record": (_at(TRAIN[2], lambda raw: raw[:-1]), f"{TRAIN[2]}: the file ends", True),
    "a shard cut within a header": (
        _at(TRAIN[2], lambda raw: _first_records(4)(raw) + b"\0" * 11),
        f"{TRAIN[2]}: the file ends .* header of record 4",
        True,
    ),
    "an empty shard": (_at(TRAIN[1], lambda raw: b""), f"{TRAIN[1]}: 0 records, dataset_info.json says 3", True),
    "two shards exchanged": (_exchange, f"{TRAIN[0]}: 3 records, dataset_info.json says 4", True),
    "a flipped bit": (_at(TRAIN[1], _flip), f"{TRAIN[1]}: record 2 at byte .* checksum", False),
    "a column not declared": (_features(lambda f: f.pop("inputs")), r"record 0.*not declared: \['inputs'\]", True),
    "a column too many": (_features(lambda f: f.update(targets=f["inputs"])), r"record 0.*: \['targets'\]", True),
    "another row length": (
        _column(lambda column: column["tensor"]["shape"].update(dimensions=["41"])),
        "'inputs' has 40 values, expected 41",
        True,
    ),
}


@pytest.mark.parametrize("defect", SHARD_DEFECTS)
def test_every_defect_of_the_shards_is_refused(tmp_path: Path, defect: str) -> None:
    where, info = _dataset(tmp_path)
    damage, complaint, first = SHARD_DEFECTS[defect]
    damage(where)
    with pytest.raises(FormatError, match=complaint):
        shard_reader.read_directory(where)
    if first:
        with pytest.raises(FormatError, match=complaint):
            shard_reader.read_directory(where, records="first")
    else:
        assert shard_reader.read_directory(where, records="first") == info


def test_a_wrong_row_behind_the_first_needs_all_records(tmp_path: Path) -> None:
    rows = {name: values[:3] for name, values in ROWS.items()}
    payloads = list(example.encode_rows(rows))
    payloads[1] = next(example.encode_rows({name: values[:, :-1] for name, values in rows.items()}))
    written = tfrecord.write(tmp_path / tfds.shard_name("notes", "train", 0, 1), payloads)
    split = Split(name="train", shard_lengths=(3,), num_bytes=written.payload_bytes)
    info = DatasetInfo(name="notes", version="1.0.0", splits=(split,), columns=columns_of(rows))
    tfds.write_metadata(tmp_path, info)
    assert shard_reader.read_directory(tmp_path, records="first") == info
    with pytest.raises(FormatError, match=r"record 1 at byte .* has 39 values, expected 40"):
        shard_reader.read_directory(tmp_path)


def test_files_that_are_named_may_stand_beside_the_dataset(tmp_path: Path) -> None:
    where, info = _dataset(tmp_path)
    (where / "receipt.json").write_text("{}")
    with pytest.raises(FormatError, match="first receipt\\.json; TFDS would ignore"):
        shard_reader.read_directory(where)
    assert shard_reader.read_directory(where, besides={"receipt.json", "provenance.json"}) == info


def test_metadata_are_never_written_over(tmp_path: Path) -> None:
    where, info = _dataset(tmp_path)
    before = (where / "features.json").read_bytes()
    with pytest.raises(FileExistsError):
        tfds.write_metadata(where, info)
    assert (where / "features.json").read_bytes() == before


def test_numbers_may_be_numbers(tmp_path: Path) -> None:
    where, info = _dataset(tmp_path)
    _split(lambda split: split.update(shardLengths=[4, 3, 5], numBytes=info.splits[0].num_bytes))(where)
    assert shard_reader.read_directory(where) == info


# How TFDS itself takes some of these directories: why our proofs are stricter.


def test_tfds_reads_all_of_wrong_lengths_with_a_right_sum_and_slices_wrongly(tmp_path: Path) -> None:
    where, _ = _dataset(tmp_path)
    _lengths(3, 4, 5)(where)
    _assert_rows(read_columns(where))
    _assert_rows(read_columns(where, "train[3:5]"), slice(4, 6))


@pytest.mark.parametrize("defect", ["shards of two totals", "a leftover", "wrong numBytes", "no numBytes"])
def test_tfds_ignores(tmp_path: Path, defect: str) -> None:
    where, _ = _dataset(tmp_path)
    SHARD_DEFECTS[defect][0](where)
    _assert_rows(read_columns(where))


@pytest.mark.parametrize(
    ("defect", "error"),
    [
        ("wrong sum", "FailedPreconditionError"),
        ("a shard cut between records", "FailedPreconditionError"),
        ("a shard cut within a record", "DataLossError"),
        ("a flipped bit", "DataLossError"),
        ("a shard missing", "NotFoundError"),
        ("a length more", "NotFoundError"),
        ("a column too many", "InvalidArgumentError"),
        ("another row length", "InvalidArgumentError"),
    ],
)
def test_tfds_refuses_while_it_reads(tmp_path: Path, defect: str, error: str) -> None:
    where, _ = _dataset(tmp_path)
    SHARD_DEFECTS[defect][0](where)
    split_info(where)
    with pytest.raises(LibraryError, match=rf"^tensorflow\..*\.{error}: "):
        read_columns(where)


@pytest.mark.parametrize("defect", ["no features.json", "version of two numbers", "no dataset_info.json"])
def test_tfds_refuses_to_open(tmp_path: Path, defect: str) -> None:
    where, _ = _dataset(tmp_path)
    METADATA_DEFECTS[defect][0](where)
    with pytest.raises((ValueError, LibraryError)) as caught:
        split_info(where)
    assert caught.type is not LibraryError or "dataset_info.DatasetInfoFileError: " in str(caught.value)


def test_tfds_wraps_ids_in_a_narrow_dtype_and_drops_an_undeclared_column(tmp_path: Path) -> None:
    where, _ = _dataset(tmp_path)
    METADATA_DEFECTS["ids that wrap"][0](where)
    _features(lambda features: features.pop("targets_position"))(where)
    found = read_columns(where)
    assert "targets_position" not in found
    assert np.array_equal(found["inputs"], ROWS["inputs"].astype(np.uint16))
    assert not np.array_equal(found["inputs"], ROWS["inputs"])


def test_a_directory_named_otherwise_is_only_found_by_its_path(tmp_path: Path) -> None:
    where, _ = _dataset(tmp_path)
    where.rename(where.with_name("1.0"))
    _assert_rows(read_columns(where.with_name("1.0")))
    with pytest.raises(LibraryError, match=r"\.registered\.DatasetNotFoundError: "):
        split_info(ByName("notes", tmp_path))


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "no-tes"},
        {"name": ""},
        {"version": "1.0.0\n"},
        {"version": "v1.0.0"},
        {"file_format": "riegeli"},
        {"splits": ()},
        {"columns": ()},
        {"columns": (Column(name="a", length=1), Column(name="a", length=2))},
    ],
)
def test_a_description_that_tfds_would_not_take_cannot_be_made(changes: dict[str, Any]) -> None:
    good = DatasetInfo(
        name="notes",
        version="1.0.0",
        splits=(Split(name="train", shard_lengths=(1,), num_bytes=1),),
        columns=(Column(name="a", length=1),),
    )
    with pytest.raises(FormatError):
        replace(good, **changes)


def test_shards_that_cannot_be_have_no_name() -> None:
    for index, total in [(-1, 3), (3, 3), (0, 0)]:
        with pytest.raises(FormatError, match="invalid shard index"):
            tfds.shard_name("notes", "train", index, total)


def test_links_to_shards_are_shards(tmp_path: Path) -> None:
    where, info = _dataset(tmp_path)
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in where.iterdir():
        os.symlink(path, linked / path.name)
    assert shard_reader.read_directory(linked) == info
