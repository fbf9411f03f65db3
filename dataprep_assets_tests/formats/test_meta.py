"""Tests of the metadata files in `dataprep_assets.formats.flat_bins`."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.errors import FormatError
from dataprep_assets.formats import flat_bins
from dataprep_assets_tests.messages import raises

QWEN3 = {"tokenizer": "Qwen/Qwen3", "vocab_size": 151_669, "eos_token_id": 151_645, "dtype": "uint32"}


def test_both_files_contain_the_values_and_a_loader_finds_its_dtype(tmp_path: Path) -> None:
    flat_bins.write_meta(tmp_path, QWEN3)
    loaded = pickle.loads((tmp_path / "meta.pkl").read_bytes())
    assert loaded == QWEN3 == flat_bins.read_meta(tmp_path)
    assert getattr(np, loaded["dtype"]) is np.uint32
    assert (tmp_path / "meta.json").read_text().endswith("}\n")
    assert list(json.loads((tmp_path / "meta.json").read_text())) == sorted(QWEN3)
    flat_bins.validate_meta(tmp_path)


def test_equal_values_give_equal_bytes(tmp_path: Path) -> None:
    shared = "".join(["a", "bc"])
    first: dict[str, Any] = {"dtype": "uint16", "x": shared, "y": [shared, {"q": 1.5, "p": None}]}
    second: dict[str, Any] = {"y": ["abc", {"p": None, "q": 1.5}], "x": "".join(["ab", "c"]), "dtype": "uint16"}
    for name, values in (("1", first), ("2", second)):
        (tmp_path / name).mkdir()
        flat_bins.write_meta(tmp_path / name, values)
    for file in ("meta.pkl", "meta.json"):
        assert (tmp_path / "1" / file).read_bytes() == (tmp_path / "2" / file).read_bytes()


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (np.int64(3), "extra"),
        (np.str_("x"), "extra"),
        (np.float64(1.0), "extra"),
        ((1, 2), "extra"),
        (b"x", "extra"),
        (float("nan"), "extra"),
        ({"deep": [1, np.uint16(3)]}, "extra.deep[1]"),
        ({1: "x"}, "extra"),
        (Path("x"), "extra"),
    ],
)
def test_values_that_need_other_packages_are_refused_by_key(tmp_path: Path, value: Any, key: str) -> None:
    with raises(FormatError, key):
        flat_bins.write_meta(tmp_path, QWEN3 | {"extra": value})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", ["<u4", "u4", "int32", "uint64", "float32", "", None])
def test_dtypes_that_a_loader_cannot_use_are_refused(tmp_path: Path, dtype: Any) -> None:
    with raises(FormatError, repr(dtype) if dtype is not None else "dtype"):
        flat_bins.write_meta(tmp_path, QWEN3 | {"dtype": dtype})


def test_a_missing_dtype_is_refused(tmp_path: Path) -> None:
    with raises(FormatError, "'dtype'"):
        flat_bins.write_meta(tmp_path, {"vocab_size": 5})


@pytest.mark.parametrize("vocab_size", [65_535, 65_536, 65_537])
def test_a_dtype_that_is_too_small_for_the_vocabulary_is_refused(tmp_path: Path, vocab_size: int) -> None:
    values = {"dtype": "uint16", "vocab_size": vocab_size, "eos_token_id": 0}
    if vocab_size <= 65_536:
        flat_bins.write_meta(tmp_path, values)
    else:
        with raises(FormatError, vocab_size, "vocab_size"):
            flat_bins.write_meta(tmp_path, values)


def test_a_separator_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    with raises(FormatError, "eos_token_id", 151643):
        flat_bins.write_meta(tmp_path, QWEN3 | {"vocab_size": 151_643, "eos_token_id": 151_643})


def test_a_changed_pickle_is_found_without_loading_it(tmp_path: Path) -> None:
    flat_bins.write_meta(tmp_path, QWEN3)
    (tmp_path / "meta.pkl").write_bytes(b"cos\nabort\n(tR.")
    with raises(FormatError, tmp_path / "meta.pkl"):
        flat_bins.validate_meta(tmp_path)
    (tmp_path / "meta.pkl").unlink()
    with raises(FormatError, tmp_path / "meta.pkl"):
        flat_bins.validate_meta(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"dtype": "<u4"}', "{}"])
def test_a_damaged_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "meta.json").write_text(text)
    with pytest.raises(FormatError):
        flat_bins.read_meta(tmp_path)
