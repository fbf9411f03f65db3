"""TFDS and array_record can read the directory, which has exactly the packed rows and consists of links."""

import glob
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.errors import ConfigError, IntegrityError, MissingArtifactError
from dataprep_assets.formats.tensorflow import array_record, example, tfds, tfrecord
from dataprep_assets.formats.tensorflow.example import FeatureColumn
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes.cohorts.cohort_shards import plan_sharded_cohorts
from dataprep_assets.pipelines.notes.cohorts.packed_cohort import ensure_packed_cohort
from dataprep_assets.pipelines.notes.cohorts.packed_cohorts import packed_cohorts
from dataprep_assets.pipelines.notes.cohorts.sharded_cohort import ensure_sharded_cohort
from dataprep_assets.pipelines.notes.component import PackedCohorts
from dataprep_assets.pipelines.notes.declaration import FileFormat
from dataprep_assets.pipelines.notes.tfds.maxtext import build_maxtext_settings, format_maxtext_line
from dataprep_assets.pipelines.notes.tfds.provenance import PROVENANCE, read_provenance
from dataprep_assets.pipelines.notes.tfds.tfds_directory import (
    build_tfds_directory,
)
from dataprep_assets_tests.formats.shard_reader import read_directory
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, plain, rows, written
from dataprep_assets_tests.pipelines.notes.pipeline import declaration, run_notes
from dataprep_assets_tests.readers.process import LibraryError
from dataprep_assets_tests.readers.tfds import ByName, read_rows, read_source, split_info


def directory(notes: Any, root: Path, name: str = "tfds_directory") -> Path:
    return LocalArtifacts(root).directory(notes.artifact(name)) / notes.dataset / notes.tfds_version


def packed(notes: Any, root: Path, split: str = "train") -> list[dict[str, list[int]]]:
    return [row for month in notes.months.expected_keys for row in rows(notes, root, month, split)]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sample")
    assert not run_notes(declaration(splits={"train": 0.7, "val": 0.3}), root).failed
    return root


NOTES = declaration(splits={"train": 0.7, "val": 0.3})


@pytest.mark.parametrize("split", ["train", "val"])
def test_consecutive_shards_contain_the_packed_rows_of_all_months_in_order(split: str, sample: Path) -> None:
    where = directory(NOTES, sample)
    info = read_directory(where)
    (found,) = [s for s in info.splits if s.name == split]
    columns = [FeatureColumn(name=name, length=256) for name in NOTES.columns]
    payloads = [r.payload for name in info.list_shard_names(found) for r in tfrecord.read_records(where / name)]
    decoded = example.decode_rows(payloads, columns)
    wanted = packed(NOTES, sample, split)
    assert len(wanted) == found.rows
    for name, column in decoded.items():
        assert column.tolist() == [row[name] for row in wanted]


def test_a_shard_is_a_link_to_the_cohorts_file_and_provenance_names_it(sample: Path) -> None:
    where, store = directory(NOTES, sample), LocalArtifacts(sample)
    provenance = read_provenance(where.parents[1] / PROVENANCE)
    shards = {split.name: len(split.shard_lengths) for split in tfds.read_metadata(where).splits}
    assert {split: len(entries) for split, entries in provenance.items()} == shards
    months = []
    for entries in provenance.values():
        for name, origin in entries:
            source = store.directory(NOTES.artifact("tfrecord_shards", origin.partition)) / origin.source_shard
            assert os.path.samefile(where / name, source)
            assert origin.dataset == "sample_notes"
            months.append(origin.partition)
    assert set(months) == set(NOTES.months.expected_keys)
    assert sorted(os.listdir(where)) == sorted(
        ["dataset_info.json", "features.json", *(name for entries in provenance.values() for name, _ in entries)]
    )


def test_only_the_last_shard_of_a_cohort_is_shorter(sample: Path) -> None:
    store = LocalArtifacts(sample)
    for month in NOTES.months.expected_keys:
        receipt = store.require(NOTES.artifact("tfrecord_shards", month))
        for split in receipt.facts["splits"].values():
            assert all(length == 8 for length in split["shard_lengths"][:-1])
            assert all(1 <= length <= 8 for length in split["shard_lengths"][-1:])


def test_tfds_reads_every_row_in_file_order(sample: Path) -> None:
    where = directory(NOTES, sample)
    wanted = packed(NOTES, sample)
    for builder in (where, ByName("sample_notes:1.0.0", where.parents[1])):
        found = read_rows(builder)
        assert split_info(builder)[0] == len(wanted) == len(found)
        for row, expected in zip(found, wanted, strict=True):
            assert {name: values.tolist() for name, values in row.items()} == expected
            assert {values.dtype for values in row.values()} == {np.dtype("int32")}


def test_the_version_directory_is_read_by_its_path_and_not_found_by_name(tmp_path: Path) -> None:
    notes = plain(written(tmp_path / "in", {"2010-01": [patient("a", note("tea"))]}), tfds_version="1.0")
    assert not run_notes(notes, tmp_path / "out").failed
    where = directory(notes, tmp_path / "out")
    assert where.name == "1.0"
    assert json.loads((where / "dataset_info.json").read_text())["version"] == "1.0.0"
    assert len(read_rows(where)) == 1
    with raises(LibraryError, "DatasetNotFoundError"):
        split_info(ByName("notes", where.parents[1]))


def test_array_record_and_tfrecord_contain_equal_payloads(tmp_path: Path) -> None:
    pytest.importorskip("array_record")
    notes = declaration(formats=["tfrecord", "array_record"])
    assert not run_notes(notes, tmp_path).failed
    places = [directory(notes, tmp_path), directory(notes, tmp_path, "array_record_directory")]
    one, other = [read_directory(place) for place in places]
    assert one.splits == other.splits
    for first, second in zip(one.list_shard_names(one.splits[0]), other.list_shard_names(other.splits[0]), strict=True):
        payloads = [record.payload for record in tfrecord.read_records(places[0] / first)]
        assert list(array_record.read_records(places[1] / second)) == payloads
    assert [row["inputs"].tolist() for row in read_source(places[1]).found] == [
        row["inputs"] for row in packed(notes, tmp_path)
    ]


def test_unpacked_rows_are_one_column_of_the_reader_length(tmp_path: Path) -> None:
    notes = declaration(layout="unpacked")
    assert not run_notes(notes, tmp_path).failed
    info = read_directory(directory(notes, tmp_path))
    assert info.columns == (FeatureColumn(name="tokens", length=None),)
    settings = build_maxtext_settings(notes, LocalArtifacts(tmp_path))
    assert settings["train_data_columns"] == "['tokens']"
    assert settings["dataset_name"] == "sample_notes:1.0.0"
    # The line for prepacked rows requires the shipped loader, because a stock pipeline would train across notes.
    assert format_maxtext_line(notes, LocalArtifacts(tmp_path)).startswith("MaxText: dataset_type=tfds dataset_path=")
    prepacked = format_maxtext_line(declaration(), LocalArtifacts(tmp_path))
    assert prepacked.startswith("MaxText, after dataprep_assets.serving.sampler.maxtext.install()")
    assert settings["tokenizer_type"] == "huggingface"
    assert Path(settings["tokenizer_path"]).joinpath("tokenizer.json").is_file()
    by_name = ByName(settings["dataset_name"], Path(settings["dataset_path"]))
    rows_read = [row["tokens"] for row in read_rows(by_name, settings["train_split"])]
    assert [row.tolist() for row in rows_read] == [row["tokens"] for row in packed(notes, tmp_path)]
    # The stock pipeline removes the last token of a row for `inputs`, and the first token for `targets`.
    assert 1 <= max(row[:-1].size for row in rows_read) <= int(settings["max_target_length"])


def test_missing_months_are_named_and_nothing_is_built(tmp_path: Path) -> None:
    notes = declaration()
    run_notes(notes, tmp_path / "whole")
    store = LocalArtifacts(tmp_path / "whole")
    for name, month in (("tfrecord_shards", "2010-12"), ("packed_cohorts", "2011-02")):
        (store.directory(notes.artifact(name, month)) / "receipt.json").unlink()
    with raises(MissingArtifactError, 2, 4, "2010-12, 2011-02"):
        build_tfds_directory(notes, store)
    assert store.receipt(notes.artifact("tfds_directory")) is not None


def test_shards_older_than_the_rows_or_with_other_settings_are_refused(tmp_path: Path) -> None:
    people = {month: [patient(month, note(f"tea {month}"))] for month in ("2010-01", "2010-02")}
    source, store = written(tmp_path / "in", people), LocalArtifacts(tmp_path / "out")
    notes = plain(source, ("2010-01", "2010-02"))
    assert not run_notes(notes, tmp_path / "out").failed
    written(source, {"2010-02": [patient("new", note("another tea"))]})
    ensure_packed_cohort(packed_cohorts(notes, store, ["2010-02"])[0])
    with raises(IntegrityError, "2010-02", "current", "packed_cohorts"):
        build_tfds_directory(notes, store)
    ensure_sharded_cohort(plan_sharded_cohorts(notes, store, ["2010-02"])[0])
    _, reused = build_tfds_directory(notes, store)
    assert not reused
    longer = plain(source, ("2010-01", "2010-02"), row_length=64)
    with raises(IntegrityError, "row_length"):
        build_tfds_directory(longer, store)


def test_a_split_without_rows_and_an_undeclared_format_are_refused(tmp_path: Path) -> None:
    source = written(tmp_path / "in", {"2010-01": [patient("a", note("tea"))]})
    notes = plain(source, splits={"train": 0.5, "val": 0.5})
    with raises(ConfigError, "train"):
        run_notes(notes, tmp_path / "out")
    with raises(ConfigError, "array_record"):
        build_tfds_directory(notes, LocalArtifacts(tmp_path / "out"), "array_record")


@pytest.mark.parametrize(
    ("pipeline", "format", "wanted"),
    [
        ("tfds", "tfrecord", {"dataset_type": "tfds", "train_split": "train", "packing": "True"}),
        ("grain", "tfrecord", {"dataset_type": "grain", "grain_file_type": "tfrecord", "packing": "False"}),
        ("grain", "array_record", {"dataset_type": "grain", "grain_file_type": "arrayrecord", "packing": "False"}),
        ("hf", "tfrecord", {"dataset_type": "hf", "hf_path": "json", "train_split": "train", "packing": "False"}),
    ],
)
def test_the_settings_are_for_the_declared_pipeline_and_its_tokenizer(
    pipeline: str, format: FileFormat, wanted: dict[str, str], tmp_path: Path
) -> None:
    notes = declaration(layout="unpacked", pipeline=pipeline, formats=["tfrecord", "array_record"])
    settings = build_maxtext_settings(notes, LocalArtifacts(tmp_path), format)
    shared = {"tokenize_train_data": "False", "train_data_columns": "['tokens']", "max_target_length": "256"}
    assert wanted | shared | {"tokenizer_type": "huggingface"} == {
        name: settings[name] for name in (*wanted, *shared, "tokenizer_type")
    }
    assert Path(settings["tokenizer_path"]).is_dir()
    if pipeline == "hf":
        assert settings["hf_train_files"] == f"{tmp_path}/sample_notes/packed_cohorts/*/*-*.jsonl"


@pytest.mark.parametrize(
    ("changes", "format"),
    [
        ({}, "tfrecord"),
        ({"formats": ["tfrecord", "array_record"]}, "array_record"),
        ({"layout": "unpacked", "pipeline": "grain", "pad": None}, "tfrecord"),
        ({"layout": "unpacked", "pipeline": "hf", "pad": None}, "tfrecord"),
    ],
)
def test_the_settings_name_the_second_split_for_evaluation(
    changes: dict[str, Any], format: FileFormat, tmp_path: Path
) -> None:
    notes = declaration(splits={"train": 0.7, "val": 0.3}, **changes)
    assert not run_notes(notes, tmp_path).failed
    store = LocalArtifacts(tmp_path)
    settings = build_maxtext_settings(notes, store, format)
    kind = settings["dataset_type"]
    if kind == "tfds":
        by_name = ByName(settings["eval_dataset_name"], Path(settings["dataset_path"]))
        count = len(read_rows(by_name, settings["eval_split"]))
    else:
        pattern = settings[f"{kind}_eval_files"]
        found = sorted(glob.glob(pattern))
        assert found
        assert not set(found) & set(glob.glob(settings[f"{kind}_train_files"]))
        reads = {"tfrecord": lambda path: len(list(tfrecord.read_records(path))), "array_record": array_record_rows}
        count = sum(len(Path(p).read_bytes().splitlines()) if kind == "hf" else reads[format](Path(p)) for p in found)
    assert count == len(packed(notes, tmp_path, "val")) > 0
    columns = {"eval_data_columns": "['tokens']", "tokenize_eval_data": "False"}
    assert (columns.items() <= settings.items()) is (notes.layout == "unpacked")
    # The end of a run prints a line per declared format, and a hint on how to enable evaluation.
    told = PackedCohorts(notes).describe_trainers(store)
    for one in notes.formats:
        before, _, settings_text = format_maxtext_line(notes, store, one).partition(": ")
        assert told.count(f"MaxText: {settings_text}") == 1
        if notes.layout == "prepacked":
            assert sum(line.startswith(before) for line in told) == 1
            assert told[0].startswith(before), "no settings without the needs of prepacked rows"
    assert told[-1].startswith("to evaluate on val, add, e.g., eval_interval=1000 eval_steps=10")


@pytest.mark.parametrize("pipeline", ["hf", "grain"])
def test_undeclared_months_are_reported_where_the_trainer_reads_them(pipeline: str, tmp_path: Path) -> None:
    months = ("2010-01", "2010-02")
    source = written(tmp_path / "in", {month: [patient(month, note(f"tea {month}"))] for month in months})
    store = LocalArtifacts(tmp_path / "out")

    def told(*declared: str) -> list[str]:
        notes = plain(source, declared, layout="unpacked", pipeline=pipeline)
        assert not run_notes(notes, store.root).failed
        return [
            line
            for line in PackedCohorts(notes).summary(store)
            if "hf also reads months that are no longer declared" in line
        ]

    assert told(*months) == []
    assert told(months[0]) == (
        ["hf also reads months that are no longer declared: 2010-02. Run `dataprep prune notes` first"]
        if pipeline == "hf"
        else []
    )


def array_record_rows(path: Path) -> int:
    return len(list(array_record.read_records(path)))


def test_a_single_split_has_no_evaluation(tmp_path: Path) -> None:
    notes = declaration(layout="unpacked", splits={"train": 1.0})
    settings = build_maxtext_settings(notes, LocalArtifacts(tmp_path))
    assert not [name for name in settings if "eval" in name]
