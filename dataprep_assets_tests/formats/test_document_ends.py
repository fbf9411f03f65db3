"""Tests of `dataprep_assets.formats.document_ends`."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.errors import FormatError
from dataprep_assets.formats import document_ends
from dataprep_assets_tests.formats.streams import SHAPES, make_ends
from dataprep_assets_tests.messages import raises


@pytest.mark.parametrize("block", [1, 2, 1 << 18])
@pytest.mark.parametrize("shape", SHAPES)
def test_ends_are_read_back_with_any_block_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str, block: int
) -> None:
    monkeypatch.setattr(document_ends, "BLOCK", block)
    ends = make_ends(SHAPES[shape])
    document_ends.write(tmp_path / "ends", ends)
    found = document_ends.open_ends(tmp_path / "ends")
    assert np.array_equal(found, ends)
    assert (tmp_path / "ends").stat().st_size == 8 * ends.size
    assert not found.flags.writeable
    document_ends.validate(tmp_path / "ends", sum(SHAPES[shape]))


def test_any_integers_in_any_blocks_give_the_same_bytes(tmp_path: Path) -> None:
    ends = make_ends(SHAPES["many"])
    document_ends.write(tmp_path / "a", ends)
    document_ends.write(tmp_path / "b", ends.astype(">i4"))
    document_ends.write(tmp_path / "c", iter([ends[:3], ends[3:3], ends[3:]]))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()


@pytest.mark.parametrize(
    "ends",
    [
        np.array([5, 4]),
        np.array([-1, 4]),
        np.array([1.0, 2.0]),
        np.array([[1, 2]]),
        [np.array([1, 9], dtype=np.uint64), np.array([8], dtype=np.uint64)],
        # As a uint64 difference, this decrease would be an increase.
        np.array([2**63 + 5, 1], dtype=np.uint64),
    ],
    ids=["falls", "negative", "floats", "2-d", "falls between blocks", "falls far"],
)
def test_invalid_ends_are_refused_and_leave_no_file(tmp_path: Path, ends: Any) -> None:
    with pytest.raises(FormatError):
        document_ends.write(tmp_path / "ends", ends)
    assert not (tmp_path / "ends").exists()


def test_the_error_names_file_and_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_ends, "BLOCK", 2)
    np.array([1, 5, 9, 12, 11], dtype="<u8").tofile(tmp_path / "ends")
    with raises(FormatError, tmp_path / "ends", 4, 11, 12):
        document_ends.validate(tmp_path / "ends", 11)


@pytest.mark.parametrize(("cut", "tokens"), [(0, 1), (23, 9), (16, 9), (24, 8), (24, 10)])
def test_a_file_that_does_not_match_the_stream_is_refused(tmp_path: Path, cut: int, tokens: int) -> None:
    document_ends.write(tmp_path / "ends", np.array([2, 2, 9]))
    os.truncate(tmp_path / "ends", cut)
    with raises(FormatError, tmp_path / "ends"):
        document_ends.validate(tmp_path / "ends", tokens)


def test_joined_ends_are_the_ends_of_the_joined_stream(tmp_path: Path) -> None:
    parts, lengths = [], []
    for number, shape in enumerate(SHAPES.values()):
        document_ends.write(tmp_path / f"{number}", make_ends(shape))
        parts.append((tmp_path / f"{number}", sum(shape)))
        lengths += shape
    assert document_ends.concatenate(parts, tmp_path / "all") == len(lengths)
    assert np.array_equal(document_ends.open_ends(tmp_path / "all"), make_ends(lengths))
    document_ends.validate(tmp_path / "all", sum(lengths))


def test_joined_ends_pass_two_to_the_32_tokens(tmp_path: Path) -> None:
    parts = []
    for number in range(5):
        document_ends.write(tmp_path / f"{number}", np.array([1, 2**31 - 1], dtype=np.uint64))
        parts.append((tmp_path / f"{number}", 2**31 - 1))
    document_ends.concatenate(parts, tmp_path / "all")
    expected = [base * (2**31 - 1) + end for base in range(5) for end in (1, 2**31 - 1)]
    assert document_ends.open_ends(tmp_path / "all").tolist() == expected
    assert expected[-1] > 2**33


def test_a_part_that_does_not_match_its_stream_stops_the_join(tmp_path: Path) -> None:
    document_ends.write(tmp_path / "a", np.array([3]))
    with raises(FormatError, 3, 4):
        document_ends.concatenate([(tmp_path / "a", 3), (tmp_path / "a", 4)], tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_an_existing_file_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ends").touch()
    with pytest.raises(FileExistsError):
        document_ends.write(tmp_path / "ends", np.array([3]))
