"""Tests of `blend.json`, with Megatron's own reader if it is installed."""

import json
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import FormatError
from dataprep_assets.formats import blend_json
from dataprep_assets.formats.blend_json import Entry
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.readers.megatron import blend_from_list

GOOD = {"train": ["0.75", "/a", "0.25", "/b"], "valid": None, "test": ["1", "/c"]}


def test_the_file_is_flat_with_null_for_missing_values(tmp_path: Path) -> None:
    entries = {"train": [Entry(0.75, "/a"), Entry(0.25, "/b")], "test": [Entry(1.0, "/c")]}
    blend_json.write_blend(tmp_path / "blend.json", entries)
    assert json.loads((tmp_path / "blend.json").read_bytes()) == GOOD
    assert blend_json.read_blend(tmp_path / "blend.json") == entries


def test_megatron_accepts_every_split_of_the_file(tmp_path: Path) -> None:
    blend_json.write_blend(tmp_path / "blend.json", {"train": [Entry(0.1 + 0.2, "/a"), Entry(1e-7, "/b")]})
    value = json.loads((tmp_path / "blend.json").read_bytes())
    assert blend_from_list(value["train"]) == (["/a", "/b"], [0.3, 1e-7])
    assert blend_from_list(value["valid"]) is None
    args = blend_json.format_data_args([Entry(0.5, "/a"), Entry(0.5, "/b")]).split()
    assert blend_from_list(args) == (["/a", "/b"], [0.5, 0.5])


def test_megatron_refuses_the_forms_that_we_refuse_to_write() -> None:
    """These are an empty list and the nested list in the upstream documentation.

    See docs/formats/blend-json.md#output.
    """
    with raises(ValueError):
        blend_from_list([])
    with pytest.raises((TypeError, AttributeError)):
        blend_from_list([["1.0", "/a"]])


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ({"train": []}, ("train", "empty")),
        ({"train": [["1.0", "/a"]]}, ("train", "flat")),
        ({"train": ["1.0"]}, ("train", 1, "prefix")),
        ({"train": ["/a", "/b"]}, ("train", "weight")),
        ({"train": ["-1", "/a"]}, ("train", "weight")),
        ({"train": ["nan", "/a"]}, ("train", "weight")),
        ({"train": ["0", "/a"]}, ("train", 0)),
        ({"train": ["1", "17"]}, ("train", "'17'")),
        ({"train": ["1", "/a", "1", "/a"]}, ("train", "listed")),
        ({"train": ["1", "/c"]}, ("train", "listed")),
        ({"train": None, "test": None}, ("split",)),
        ({"more": None}, (*blend_json.SPLITS,)),
    ],
)
def test_every_defect_is_refused(tmp_path: Path, change: dict[str, Any], values: tuple[object, ...]) -> None:
    path = tmp_path / "blend.json"
    path.write_text(json.dumps({**GOOD, **change}))
    with raises(FormatError, *values):
        blend_json.read_blend(path)
    assert_names("\n".join(blend_json.find_defects(path, lambda _: True)), *values)


def test_a_missing_key_or_invalid_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "blend.json"
    path.write_text('{"train": ["1", "/a"]}')
    with raises(FormatError, path, *blend_json.SPLITS):
        blend_json.read_blend(path)
    path.write_text("{")
    with raises(FormatError, path, "JSON"):
        blend_json.read_blend(path)


def test_a_dangling_prefix_is_a_defect(tmp_path: Path) -> None:
    path = tmp_path / "blend.json"
    path.write_text(json.dumps(GOOD))
    assert blend_json.find_defects(path, lambda prefix: True) == []
    (defect,) = blend_json.find_defects(path, lambda prefix: prefix != "/b")
    assert defect.startswith("/b: listed")


@pytest.mark.parametrize("entries", [[], [Entry(float("nan"), "/a")], [Entry(1.0, "/a"), Entry(1.0, "/a")]])
def test_a_blend_that_cannot_be_read_is_not_written(tmp_path: Path, entries: list[Entry]) -> None:
    with pytest.raises(FormatError):
        blend_json.write_blend(tmp_path / "blend.json", {"train": entries})
    assert not (tmp_path / "blend.json").exists()
    with raises(FormatError, "validation", *blend_json.SPLITS):
        blend_json.write_blend(tmp_path / "blend.json", {"validation": [Entry(1.0, "/a")]})


def test_data_args_cannot_contain_white_space() -> None:
    with raises(FormatError, "/my data/a", "--data-args-path"):
        blend_json.format_data_args([Entry(1.0, "/my data/a")])
