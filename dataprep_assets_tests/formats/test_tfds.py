"""Tests of `dataprep_assets.formats.tensorflow.tfds`, some with TensorFlow Datasets itself."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.errors import FormatError
from dataprep_assets.formats.tensorflow import example, tfds, tfrecord
from dataprep_assets.formats.tensorflow.example import FeatureColumn
from dataprep_assets.formats.tensorflow.tfds import DatasetInfo, Split
from dataprep_assets_tests.formats import packed, shard_reader
from dataprep_assets_tests.formats.packed import Rows, declare_columns, make_packed_rows
from dataprep_assets_tests.formats.tfds_directory import (
    METADATA_DEFECTS,
    ROWS,
    SHARD_DEFECTS,
    TRAIN,
    change_features,
    change_lengths,
    change_split,
    write_dataset,
    write_shards,
)
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.readers.process import LibraryError
from dataprep_assets_tests.readers.tfds import (
    ByName,
    read_columns,
    read_shifted,
    relative_shard_paths,
    split_info,
    write_metadata,
)


def _assert_rows(found: Rows, rows: slice = slice(None)) -> None:
    packed.assert_same(found, {name: values[rows] for name, values in ROWS.items()})


def test_a_written_directory_is_valid_and_describes_its_contents(tmp_path: Path) -> None:
    where, info = write_dataset(tmp_path)
    assert sorted(path.name for path in where.iterdir()) == ["dataset_info.json", "features.json", *TRAIN]
    assert tfds.read_metadata(where) == info
    assert shard_reader.read_directory(where) == shard_reader.read_directory(where, records="first") == info
    assert info.splits[0].rows == 12


def test_columns_are_sorted_by_name_however_they_are_declared(tmp_path: Path) -> None:
    _, info = write_dataset(tmp_path)
    assert replace(info, columns=info.columns[::-1]) == info
    assert [column.name for column in info.columns] == sorted(ROWS)


@pytest.mark.parametrize("description", ["", 'Notes: "packed" rows, 8192 a row; Größe'])
def test_metadata_equal_those_of_write_metadata_byte_for_byte(tmp_path: Path, description: str) -> None:
    where, info = write_dataset(tmp_path)
    validation = write_shards(where, make_packed_rows(7, 40, seed=9), (6, 1), "validation")
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


def test_names_of_shards_equal_those_of_tfds() -> None:
    numbers = [(0, 1), (255, 256), (99_998, 99_999), (0, 100_000), (123_456, 1_234_567)]
    expected = relative_shard_paths("notes", "train", numbers)
    assert [tfds.build_shard_name("notes", "train", index, total) for index, total in numbers] == expected


def test_builder_from_directory_reads_every_row_in_file_order(tmp_path: Path) -> None:
    where, _ = write_dataset(tmp_path)
    assert split_info(where) == (12, [4, 3, 5])
    _assert_rows(read_columns(where))


@pytest.mark.parametrize("rows", [slice(0, 4), slice(3, 8), slice(11, 12)])
def test_slices_return_the_requested_rows(tmp_path: Path, rows: slice) -> None:
    where, _ = write_dataset(tmp_path)
    _assert_rows(read_columns(where, f"train[{rows.start}:{rows.stop}]"), rows)


def test_a_builder_finds_the_dataset_by_name_and_version(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    _assert_rows(read_columns(ByName("notes:1.0.0", tmp_path)))


def test_maxtext_reads_a_column_of_rows_that_are_one_token_longer(tmp_path: Path) -> None:
    """MaxText's TFDS input takes one column and shifts it: rows of L + 1 give inputs and targets of L."""
    rows: Rows = {"tokens": make_packed_rows(6, 65)["inputs"]}
    split = write_shards(tmp_path, rows, (4, 2))
    info = DatasetInfo(name="notes", version="1.0.0", splits=(split,), columns=declare_columns(rows))
    tfds.write_metadata(tmp_path, info)
    shard_reader.read_directory(tmp_path)
    inputs, targets = read_shifted(tmp_path, "tokens", 64)
    assert np.array_equal(inputs, rows["tokens"][:, :64])
    assert np.array_equal(targets, rows["tokens"][:, 1:])


@pytest.mark.parametrize("defect", METADATA_DEFECTS)
def test_every_defect_of_the_metadata_is_refused(tmp_path: Path, defect: str) -> None:
    where, _ = write_dataset(tmp_path)
    damage, values = METADATA_DEFECTS[defect]
    damage(where)
    for read in (tfds.read_metadata, shard_reader.read_directory):
        with raises(FormatError, *values):
            read(where)


@pytest.mark.parametrize("defect", SHARD_DEFECTS)
def test_every_defect_of_the_shards_is_refused(tmp_path: Path, defect: str) -> None:
    where, info = write_dataset(tmp_path)
    damage, values, first = SHARD_DEFECTS[defect]
    damage(where)
    with raises(FormatError, *values):
        shard_reader.read_directory(where)
    if first:
        with raises(FormatError, *values):
            shard_reader.read_directory(where, records="first")
    else:
        assert shard_reader.read_directory(where, records="first") == info


def test_a_wrong_row_after_the_first_is_found_only_by_reading_all_records(tmp_path: Path) -> None:
    rows = {name: values[:3] for name, values in ROWS.items()}
    payloads = list(example.encode_rows(rows))
    payloads[1] = next(example.encode_rows({name: values[:, :-1] for name, values in rows.items()}))
    written = tfrecord.write(tmp_path / tfds.build_shard_name("notes", "train", 0, 1), payloads)
    split = Split(name="train", shard_lengths=(3,), num_bytes=written.payload_bytes)
    info = DatasetInfo(name="notes", version="1.0.0", splits=(split,), columns=declare_columns(rows))
    tfds.write_metadata(tmp_path, info)
    assert shard_reader.read_directory(tmp_path, records="first") == info
    with raises(FormatError, 1, 39, 40):
        shard_reader.read_directory(tmp_path)


def test_named_extra_files_are_allowed_next_to_the_dataset(tmp_path: Path) -> None:
    where, info = write_dataset(tmp_path)
    (where / "receipt.json").write_text("{}")
    with raises(FormatError, "receipt.json"):
        shard_reader.read_directory(where)
    assert shard_reader.read_directory(where, besides={"receipt.json", "provenance.json"}) == info


def test_metadata_are_never_overwritten(tmp_path: Path) -> None:
    where, info = write_dataset(tmp_path)
    before = (where / "features.json").read_bytes()
    with pytest.raises(FileExistsError):
        tfds.write_metadata(where, info)
    assert (where / "features.json").read_bytes() == before


def test_counts_may_be_json_numbers(tmp_path: Path) -> None:
    where, info = write_dataset(tmp_path)
    change_split(lambda split: split.update(shardLengths=[4, 3, 5], numBytes=info.splits[0].num_bytes))(where)
    assert shard_reader.read_directory(where) == info


# The following tests show which of these directories TFDS itself accepts, and so why our checks are stricter.


def test_tfds_accepts_wrong_lengths_with_a_right_sum_and_slices_wrongly(tmp_path: Path) -> None:
    where, _ = write_dataset(tmp_path)
    change_lengths(3, 4, 5)(where)
    _assert_rows(read_columns(where))
    _assert_rows(read_columns(where, "train[3:5]"), slice(4, 6))


@pytest.mark.parametrize("defect", ["shards of two totals", "a leftover", "wrong numBytes", "no numBytes"])
def test_tfds_ignores_the_defect(tmp_path: Path, defect: str) -> None:
    where, _ = write_dataset(tmp_path)
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
def test_tfds_refuses_the_defect_while_it_reads(tmp_path: Path, defect: str, error: str) -> None:
    where, _ = write_dataset(tmp_path)
    SHARD_DEFECTS[defect][0](where)
    split_info(where)
    with raises(LibraryError, error):
        read_columns(where)


@pytest.mark.parametrize("defect", ["no features.json", "version of two numbers", "no dataset_info.json"])
def test_tfds_refuses_to_open_a_directory_with_the_defect(tmp_path: Path, defect: str) -> None:
    where, _ = write_dataset(tmp_path)
    METADATA_DEFECTS[defect][0](where)
    with pytest.raises((ValueError, LibraryError)) as caught:
        split_info(where)
    assert caught.type is not LibraryError or "dataset_info.DatasetInfoFileError: " in str(caught.value)


def test_tfds_wraps_ids_in_a_narrow_dtype_and_drops_an_undeclared_column(tmp_path: Path) -> None:
    where, _ = write_dataset(tmp_path)
    METADATA_DEFECTS["ids that wrap"][0](where)
    change_features(lambda features: features.pop("targets_position"))(where)
    found = read_columns(where)
    assert "targets_position" not in found
    assert np.array_equal(found["inputs"], ROWS["inputs"].astype(np.uint16))
    assert not np.array_equal(found["inputs"], ROWS["inputs"])


def test_a_directory_with_another_name_is_found_only_by_its_path(tmp_path: Path) -> None:
    where, _ = write_dataset(tmp_path)
    where.rename(where.with_name("1.0"))
    _assert_rows(read_columns(where.with_name("1.0")))
    with raises(LibraryError, "DatasetNotFoundError"):
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
        {"columns": (FeatureColumn(name="a", length=1), FeatureColumn(name="a", length=2))},
    ],
)
def test_a_description_that_tfds_would_refuse_cannot_be_created(changes: dict[str, Any]) -> None:
    good = DatasetInfo(
        name="notes",
        version="1.0.0",
        splits=(Split(name="train", shard_lengths=(1,), num_bytes=1),),
        columns=(FeatureColumn(name="a", length=1),),
    )
    with pytest.raises(FormatError):
        replace(good, **changes)


def test_impossible_shards_have_no_name() -> None:
    for index, total in [(-1, 3), (3, 3), (0, 0)]:
        with raises(FormatError, "notes-train", index, total):
            tfds.build_shard_name("notes", "train", index, total)


def test_links_to_shards_count_as_shards(tmp_path: Path) -> None:
    where, info = write_dataset(tmp_path)
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in where.iterdir():
        os.symlink(path, linked / path.name)
    assert shard_reader.read_directory(linked) == info
