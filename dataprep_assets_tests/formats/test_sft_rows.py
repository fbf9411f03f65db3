"""Tests of `datasets` folders of conversations: labels, columns, sidecars, and defective files."""

from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dataprep_assets.errors import FormatError
from dataprep_assets.formats.conversations import sft_rows
from dataprep_assets.formats.packed_rows import PackedRowBlock
from dataprep_assets.stores.files import sha256_file
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.readers import hf_datasets

# The first row has sequences of 3 and 2 tokens, and the second row has one sequence of 4. A mask of 1 trains the next
# token.
IDS = [10, 11, 12, 20, 21, 30, 31, 32, 33]
MASK = [0, 1, 0, 1, 0, 1, 0, 1, 0]
LABELS = [[-100, -100, 12], [-100, 21], [-100, 31, -100, 33]]


def block(mask: list[int] = MASK, lengths: list[int] | None = None, heads: list[int] | None = None) -> PackedRowBlock:
    return PackedRowBlock.from_segments(
        np.array(IDS, np.int32),
        np.array([3, 2, 4] if lengths is None else lengths, np.int64),
        np.array([0, 2, 3] if heads is None else heads, np.int64),
        mask=np.array(mask, np.uint8),
    )


def write(folder: Path, *, packed: bool, split: str = "train") -> dict[str, dict[str, str]]:
    """Write a folder with two equal files, and return the digests of its files."""
    names = [sft_rows.build_file_name(split, number, 2) for number in range(2)]
    for name in names:
        sft_rows.write_file(folder / name, [block(), block()], is_packed=packed)
    files = {split: {name: sha256_file(folder / name) for name in names}}
    sft_rows.write_sidecars(folder, files, "chats", "About.")
    return files


def test_a_sequence_is_a_row_with_labels_at_the_positions_of_their_tokens(tmp_path: Path) -> None:
    write(tmp_path / "rows", packed=False)
    rows = hf_datasets.both_ways(tmp_path / "rows", tmp_path / "cache")["train"]
    assert len(rows) == 12
    assert [row["labels"] for row in rows[:3]] == LABELS
    assert rows[0] == {
        "input_ids": [10, 11, 12],
        "labels": [-100, -100, 12],
        "attention_mask": [1, 1, 1],
        "assistant_masks": [0, 0, 1],
        "loss_mask": [0, 0, 1],
        "length": 3,
    }
    assert tuple(rows[0]) == tuple(sft_rows.SEQUENCE_COLUMNS)


def test_a_packed_row_has_the_lengths_and_positions_of_its_sequences(tmp_path: Path) -> None:
    write(tmp_path / "rows", packed=True, split="valid")
    rows = hf_datasets.both_ways(tmp_path / "rows", tmp_path / "cache")["validation"]
    assert len(rows) == 8
    assert rows[0] == {
        "input_ids": [10, 11, 12, 20, 21],
        "labels": LABELS[0] + LABELS[1],
        "assistant_masks": [0, 0, 1, 0, 1],
        "position_ids": [0, 1, 2, 0, 1],
        "seq_lengths": [3, 2],
        "length": 5,
    }
    assert [row["seq_lengths"] for row in rows[:2]] == [[3, 2], [4]]
    assert tuple(rows[0]) == tuple(sft_rows.PACKED_COLUMNS)


@pytest.mark.parametrize("packed", [False, True])
def test_sequences_are_read_back_without_defects(tmp_path: Path, packed: bool) -> None:
    files = write(tmp_path, packed=packed)
    for name in files["train"]:
        found = list(chain.from_iterable(sft_rows.read_sequences(tmp_path / name, is_packed=packed)))
        assert [labels.tolist() for _, labels in found] == LABELS * 2
        assert [ids.tolist() for ids, _ in found] == [IDS[:3], IDS[3:5], IDS[5:]] * 2
        assert list(sft_rows.find_row_defects(tmp_path / name, is_packed=packed)) == []
    present = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert list(sft_rows.find_sidecar_defects(tmp_path, files, "chats", "About.", present)) == []


def test_equal_rows_have_equal_bytes_and_the_fingerprint_depends_on_the_rows(tmp_path: Path) -> None:
    assert write(tmp_path / "a", packed=False) == write(tmp_path / "b", packed=False)
    assert (tmp_path / "a/train/state.json").read_bytes() == (tmp_path / "b/train/state.json").read_bytes()
    before, names = hf_datasets.fingerprints(tmp_path / "a"), list(write(tmp_path / "b", packed=False)["train"])
    sft_rows.write_file(tmp_path / "a" / names[0], [block(lengths=[9], heads=[0, 1])], is_packed=False)
    files = {"train": {name: sha256_file(tmp_path / "a" / name) for name in names}}
    sft_rows.write_sidecars(tmp_path / "a", files, "chats", "About.")
    assert hf_datasets.fingerprints(tmp_path / "a")["train"] != before["train"]
    # The fingerprint changes, so that `load_dataset` does not read the old rows of files with the same names from its
    # cache.
    hf_datasets.both_ways(tmp_path / "b", tmp_path / "cache")
    assert len(hf_datasets.both_ways(tmp_path / "a", tmp_path / "cache")["train"]) == 7


@pytest.mark.parametrize("mask", [[0, 1, 1, 1, 0, 1, 0, 1, 0], [0, 1, 0, 1, 0, 1, 0, 1, 1]])
def test_a_mask_beyond_the_end_of_a_sequence_is_an_error(mask: list[int], tmp_path: Path) -> None:
    with raises(FormatError, "row 0"):
        sft_rows.write_file(tmp_path / "a.arrow", [block(mask)], is_packed=False)
    assert list(tmp_path.iterdir()) == []


def _rewrite(path: Path, packed: bool, **columns: list[object]) -> None:
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
        table = reader.read_all()
    for name, values in columns.items():
        index = table.column_names.index(name)
        table = table.set_column(index, name, pa.array(values, table.schema.field(name).type))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize(
    ("packed", "column", "values"),
    [
        (False, "attention_mask", [[1, 1, 0], [1, 1], [1, 1, 1, 1]]),
        (False, "assistant_masks", [[0, 1, 1], [0, 1], [0, 1, 0, 1]]),
        (False, "loss_mask", [[0, 0, 1], [0], [0, 1, 0, 1]]),
        (True, "position_ids", [[0, 1, 2, 3, 4], [0, 1, 2, 3]]),
        (True, "length", [5, 5]),
    ],
)
def test_a_column_that_contradicts_the_labels_is_named(
    packed: bool, column: str, values: list[object], tmp_path: Path
) -> None:
    path = tmp_path / "a.arrow"
    sft_rows.write_file(path, [block()], is_packed=packed)
    _rewrite(path, packed, **{column: values})
    (defect,) = sft_rows.find_row_defects(path, is_packed=packed)
    assert column in defect


def test_lengths_with_a_wrong_sum_are_named(tmp_path: Path) -> None:
    for packed, columns in ((True, {"seq_lengths": [[3, 3], [4]]}), (False, {"length": [3, 2, 5]})):
        path = tmp_path / f"{packed}.arrow"
        sft_rows.write_file(path, [block()], is_packed=packed)
        _rewrite(path, packed, **columns)
        (defect,) = sft_rows.find_row_defects(path, is_packed=packed)
        assert "lengths" in defect


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    sft_rows.write_file(path, [block()], is_packed=False)
    with raises(FormatError, str(path), "loss_mask"):
        list(sft_rows.read_sequences(path, is_packed=True))
    whole = path.read_bytes()
    for content in (b"", whole[:100], whole[: len(whole) // 2], b"PAR1" + whole, whole + b"more"):
        path.write_bytes(content)
        with raises(FormatError, str(path)):
            list(sft_rows.read_sequences(path, is_packed=False))


def test_an_extra_sidecar_or_file_is_named(tmp_path: Path) -> None:
    files = write(tmp_path, packed=False)
    present = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    (tmp_path / "train/state.json").write_text("{}")
    found = list(sft_rows.find_sidecar_defects(tmp_path, files, "chats", "About.", [*present, "train/more.arrow"]))
    assert [Path(defect.partition(": ")[0]).name for defect in found] == ["state.json", "more.arrow"]
