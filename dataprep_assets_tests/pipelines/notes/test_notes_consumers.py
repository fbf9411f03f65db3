"""Trainers read the directories: TFDS, grain, stock MaxText by its documented rules, and the shipped loader.

`python -m dataprep_assets_tests.tools.parity --maxtext DIR` tests the same with MaxText's own pipelines.
"""

import json
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError, FormatError
from dataprep_assets.formats.tensorflow import example, tfds
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.packing.rows import COLUMNS, TARGETS
from dataprep_assets.packing.stock_maxtext import StockRule
from dataprep_assets.pipelines.notes.cohorts.packed_files import list_packed_paths
from dataprep_assets.pipelines.notes.tfds.maxtext import build_maxtext_settings
from dataprep_assets.serving.sampler.maxtext import six_columns
from dataprep_assets_tests.docs.run_blocks import find_blocks
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.notes.pipeline import declaration, run_notes
from dataprep_assets_tests.readers.families import TENSORFLOW
from dataprep_assets_tests.readers.tfds import ByName, block_of_batches, maxtext_batches, read_at, read_rows

pytestmark = pytest.mark.skipif(TENSORFLOW.missing is not None, reason=f"{TENSORFLOW.missing}")
Row = Mapping[str, NDArray[Any]]
LENGTH = 256
PAGE = Path(__file__).resolve().parents[3] / "docs" / "pipelines" / "notes.md"


@pytest.fixture(scope="module", params=["prepacked", "unpacked"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    notes = declaration(layout=request.param, formats=["tfrecord", "array_record"])
    root = tmp_path_factory.mktemp(request.param)
    assert not run_notes(notes, root).failed
    return notes, root


def packed(notes: Any, root: Path) -> list[dict[str, Any]]:
    """Return all rows in order, from the JSON lines."""
    store = LocalArtifacts(root)
    lines = []
    for month in notes.months.expected_keys:
        path = store.directory(notes.artifact("packed_cohorts", month)) / list_packed_paths(notes, month)["train"].jsonl
        lines += [json.loads(line) for line in path.read_bytes().splitlines()]
    return lines


def read(notes: Any, root: Path) -> list[Row]:
    """Return all rows in file order, with the settings that the asset prints."""
    settings = build_maxtext_settings(notes, LocalArtifacts(root))
    by_name = ByName(settings["dataset_name"], Path(settings["dataset_path"]))
    return list(read_rows(by_name, settings["train_split"]))


def test_tfds_by_name_returns_the_packed_rows_in_order(made: tuple[Any, Path]) -> None:
    notes, root = made
    assert [{k: v.tolist() for k, v in row.items()} for row in read(notes, root)] == packed(notes, root)


def test_grain_reads_the_array_record_files_in_sequence_and_at_random(made: tuple[Any, Path]) -> None:
    notes, root = made
    where = LocalArtifacts(root).directory(notes.artifact("array_record_directory")) / notes.dataset / "1.0.0"
    info = tfds.read_metadata(where)
    wanted = packed(notes, root)
    places = [*range(len(wanted)), len(wanted) // 2, 0]
    total, payloads = read_at([where / name for name in info.list_shard_names(info.splits[0])], places)
    assert total == len(wanted)
    for at, payload in zip(places, payloads, strict=True):
        row = example.decode_rows([payload], info.columns)
        assert {name: values[0].tolist() for name, values in row.items()} == wanted[at]


@pytest.mark.parametrize("pad", [None, 3, 4000])
def test_stock_maxtext_trains_every_label_of_a_note_and_no_padding_with_any_pad_id(
    made: tuple[Any, Path], pad: int | None
) -> None:
    notes, root = made
    if notes.layout != "unpacked":
        pytest.skip("`rows: stream` is for unpacked rows")
    rows = [row["tokens"] for row in read(notes, root)]
    assert 1 < max(row.size for row in rows) <= LENGTH + 1
    rule = StockRule(pipeline="tfds", row_length=LENGTH, pad_id=pad, unk_id=None, bos_id=None)
    found = rule.labels(rows)
    labels = sum(row.size - 1 for row in rows)
    lost = sum(int(np.count_nonzero(row[1:] == rule.fill_id)) for row in rows)
    assert int(found.trained.sum()) == labels - lost
    assert int(found.masked.sum()) == lost
    trained = zip(found.inputs[found.trained].tolist(), found.targets[found.trained].tolist(), strict=True)
    assert Counter(trained) == Counter(
        (int(a), int(b)) for row in rows for a, b in pairwise(row.tolist()) if b != rule.fill_id
    )


def test_stock_maxtext_treats_a_prepacked_row_as_one_document(made: tuple[Any, Path]) -> None:
    notes, root = made
    if notes.layout != "prepacked":
        pytest.skip("of prepacked rows")
    rows = read(notes, root)
    row = max(rows, key=lambda one: int(one["inputs_segmentation"].max()))
    stored = int(row["inputs_segmentation"].max())
    assert stored > 1
    rule = StockRule(pipeline="tfds", row_length=LENGTH, pad_id=None, unk_id=None, bos_id=None)
    trained = rule.labels([row["inputs"]]).trained[0]
    # Count the trained labels where the segment changes: from one note to the next, or to padding.
    crossing = (row["inputs_segmentation"][:-1] != row["inputs_segmentation"][1:]) & trained[: LENGTH - 1]
    assert int(crossing.sum()) >= stored - 1


def test_the_shipped_loader_keeps_segments_and_never_trains_across_notes(made: tuple[Any, Path]) -> None:
    notes, root = made
    if notes.layout != "prepacked":
        pytest.skip("of prepacked rows")
    settings = build_maxtext_settings(notes, LocalArtifacts(root))
    where = LocalArtifacts(root).directory(notes.artifact("array_record_directory")) / notes.dataset / "1.0.0"
    stored = packed(notes, root)
    by_name = ByName(settings["dataset_name"], Path(settings["dataset_path"]))
    batches = maxtext_batches(by_name, sorted(where.glob("*array_record-*")), 4, LENGTH)
    # tfds drops the last batch if it is incomplete, but grain completes it with rows without labels.
    assert [len(batches["tfds"]), len(batches["grain"])] == [len(stored) // 4, -(-len(stored) // 4)]
    for name, found in batches.items():
        rows = {column: np.concatenate([batch[column] for batch in found]) for column in found[0]}
        assert set(rows) == {*COLUMNS, TARGETS}
        assert {values.dtype for values in rows.values()} == {np.dtype(np.int32)}
        count = len(stored) // 4 * 4 if name == "tfds" else len(stored)
        for column in COLUMNS:
            assert rows[column][:count].tolist() == [row[column] for row in stored[:count]]
        assert not rows["targets_segmentation"][count:].any()
        row, at = np.nonzero(rows["targets_segmentation"])
        assert np.array_equal(rows["targets"][row, at], rows["inputs"][row, at + 1])
        assert np.array_equal(rows["inputs_segmentation"][row, at], rows["inputs_segmentation"][row, at + 1])
        segments = int(rows["inputs_segmentation"].max(axis=1).sum())
        assert row.size == int(np.count_nonzero(rows["inputs_segmentation"])) - segments


def test_a_custom_loop_gets_batches_as_on_the_page(made: tuple[Any, Path], tmp_path: Path) -> None:
    notes, root = made
    if notes.layout != "prepacked":
        pytest.skip("of prepacked rows")
    (tmp_path / ".dataprep").mkdir()
    (tmp_path / ".dataprep" / "artifacts").symlink_to(root)
    found = block_of_batches(find_blocks(PAGE)[1], tmp_path)
    assert found["inputs"].shape == found["targets"].shape == found["weights"].shape == (4, LENGTH)
    assert set(found["batch"]) == set(found["row"]) == {*COLUMNS, TARGETS}
    assert {column: values.tolist() for column, values in found["row"].items() if column != TARGETS} in packed(
        notes, root
    )


def test_the_loader_refuses_rows_with_other_columns() -> None:
    with raises(ConfigError, "inputs_position"):
        six_columns({"inputs": np.zeros(3, np.int32)})
    with raises(FormatError, "(3,), (4,)"):
        six_columns({name: np.zeros(3 + (name == "inputs"), np.int32) for name in COLUMNS})
