"""What trainers get from the directories: TFDS, grain, and the two loaders of MaxText that the README speaks of.

`stock` does to a column what MaxText's TFDS pipeline does (tfds_data_processing.py: one column as inputs and targets,
shifted by one, segments and positions computed anew); `pass_through` is the loader that prepacked rows need.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dataprep_assets.formats import example, tfds
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes.maxtext import maxtext_settings
from dataprep_assets.pipelines.notes.packed_files import packed_paths
from dataprep_assets.pipelines.notes.packed_rows import PackedRowsFile
from dataprep_assets_tests.pipelines.notes.pipeline import declaration, run_notes
from dataprep_assets_tests.readers.families import TENSORFLOW
from dataprep_assets_tests.readers.tfds import ByName, read_at, read_rows

pytestmark = pytest.mark.skipif(TENSORFLOW.missing is not None, reason=f"{TENSORFLOW.missing}")
Row = Mapping[str, NDArray[Any]]
LENGTH = 256


@pytest.fixture(scope="module", params=["prepacked", "unpacked"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    notes = declaration(layout=request.param, formats=["tfrecord", "array_record"])
    root = tmp_path_factory.mktemp(request.param)
    assert not run_notes(notes, root).failed
    return notes, root


def packed(notes: Any, root: Path) -> list[dict[str, Any]]:
    """All rows in order, from the JSON lines."""
    store = LocalArtifacts(root)
    lines = []
    for month in notes.months.expected:
        path = store.directory(notes.artifact("packed_cohorts", month)) / packed_paths(notes, month)["train"].jsonl
        lines += [json.loads(line) for line in path.read_bytes().splitlines()]
    return lines


def read(notes: Any, root: Path) -> list[Row]:
    """All rows in file order, by the settings that the asset prints."""
    settings = maxtext_settings(notes, LocalArtifacts(root))
    by_name = ByName(settings["dataset_name"], Path(settings["dataset_path"]))
    return list(read_rows(by_name, settings["train_split"]))


def stock(row: NDArray[Any], length: int) -> dict[str, NDArray[Any]]:
    """A row as stock MaxText has it: one segment, whatever was stored."""
    columns = {"inputs": row[:-1][:length], "targets": row[1:][:length]}
    padded = {name: np.pad(values, (0, length - values.size)) for name, values in columns.items()}
    for name, values in columns.items():
        padded[f"{name}_segmentation"] = (np.arange(length) < values.size).astype(np.int32)
        padded[f"{name}_position"] = np.where(np.arange(length) < values.size, np.arange(length), 0)
    return padded


def pass_through(row: Row, pad_id: int) -> dict[str, NDArray[Any]]:
    """The six arrays of MaxText's train step out of the five stored ones: only `targets` is derived."""
    labels = np.append(row["inputs"][1:], pad_id)
    return {**row, "targets": np.where(row["targets_segmentation"] != 0, labels, pad_id)}


def test_tfds_by_name_gives_the_packed_rows_in_order(made: tuple[Any, Path]) -> None:
    notes, root = made
    assert [{k: v.tolist() for k, v in row.items()} for row in read(notes, root)] == packed(notes, root)


def test_grain_reads_the_array_record_files_in_order_and_at_random(made: tuple[Any, Path]) -> None:
    notes, root = made
    where = LocalArtifacts(root).directory(notes.artifact("array_record_directory")) / notes.dataset / "1.0.0"
    info = tfds.read_metadata(where)
    wanted = packed(notes, root)
    places = [*range(len(wanted)), len(wanted) // 2, 0]
    total, payloads = read_at([where / name for name in info.shard_names(info.splits[0])], places)
    assert total == len(wanted)
    for at, payload in zip(places, payloads, strict=True):
        row = example.decode_rows([payload], info.columns)
        assert {name: values[0].tolist() for name, values in row.items()} == wanted[at]


def test_stock_maxtext_reads_unpacked_rows_and_loses_no_label(made: tuple[Any, Path]) -> None:
    notes, root = made
    if notes.layout != "unpacked":
        pytest.skip("of unpacked rows")
    rows = read(notes, root)
    stream = np.concatenate(list(tokens(notes, root)))
    inputs = np.concatenate([stock(row["tokens"], LENGTH)["inputs"] for row in rows])
    whole = [row["tokens"] for row in rows]
    assert {row.size for row in whole} == {LENGTH + 1}
    # a row of L + 1 tokens has L inputs, each with the token after it as its label
    assert inputs.size == LENGTH * len(rows)
    for row in whole:
        trained = stock(row, LENGTH)
        assert np.array_equal(np.append(trained["inputs"], trained["targets"][-1]), row)
        assert trained["targets_segmentation"].all()
    assert np.array_equal(np.concatenate(whole)[: stream.size], stream)


def tokens(notes: Any, root: Path) -> Iterator[NDArray[Any]]:
    """The tokens of every month without the padding of its last row, where that is not the end."""
    store = LocalArtifacts(root)
    for month in notes.months.expected[:1]:
        path = store.directory(notes.artifact("packed_cohorts", month)) / packed_paths(notes, month)["train"].rows
        file = PackedRowsFile(path)
        yield from (block.tokens for block in file.blocks(64))


def test_stock_maxtext_takes_a_prepacked_row_for_one_document(made: tuple[Any, Path]) -> None:
    notes, root = made
    if notes.layout != "prepacked":
        pytest.skip("of prepacked rows")
    rows = read(notes, root)
    row = max(rows, key=lambda one: int(one["inputs_segmentation"].max()))
    stored, trained = int(row["inputs_segmentation"].max()), stock(row["inputs"], LENGTH)
    assert stored > 1
    assert int(trained["inputs_segmentation"].max()) == 1
    assert int(trained["inputs_position"].max()) == LENGTH - 2 > int(row["inputs_position"].max())
    # labels that lead from one patient's note into another's, and padding that is trained on
    crossing = (row["inputs_segmentation"][:-1] != row["inputs_segmentation"][1:]) & (
        trained["targets_segmentation"][: LENGTH - 1] != 0
    )
    assert int(crossing.sum()) >= stored - 1


def test_the_pass_through_loader_keeps_segments_and_never_trains_across_notes(made: tuple[Any, Path]) -> None:
    notes, root = made
    if notes.layout != "prepacked":
        pytest.skip("of prepacked rows")
    store = LocalArtifacts(root)
    path = store.directory(notes.artifact("packed_cohorts", notes.months.first))
    pad = PackedRowsFile(path / packed_paths(notes, notes.months.first)["train"].rows).shape.pad_id
    for row in read(notes, root):
        batch = pass_through(row, pad)
        assert batch.keys() == {
            f"{side}{what}" for side in ("inputs", "targets") for what in ("", "_segmentation", "_position")
        }
        labelled = np.flatnonzero(batch["targets_segmentation"])
        assert np.array_equal(batch["targets"][labelled], batch["inputs"][labelled + 1])
        assert np.array_equal(row["inputs_segmentation"][labelled], row["inputs_segmentation"][labelled + 1])
        segments = int(row["inputs_segmentation"].max())
        assert labelled.size == int(np.count_nonzero(row["inputs_segmentation"])) - segments
