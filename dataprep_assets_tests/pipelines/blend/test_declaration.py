"""Tests of the blend's JSON and of the declaration around it."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from dataprep_assets.errors import ConfigError
from dataprep_assets.pipelines.blend.data_blend import BlendDataset, DataBlend
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.tasks.declaration import TaskDeclaration
from dataprep_assets_tests.messages import raises

ONE = {"name": "a", "path": "a.jsonl"}


def _load(folder: Path, value: Any) -> DataBlend:
    path = folder / "blend.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return DataBlend.load(path)


def test_the_defaults_equal_the_upstream_ones(tmp_path: Path) -> None:
    (unit,) = _load(tmp_path, {"datasets": [ONE]}).list_units()
    dataset = unit.dataset
    assert (unit.name, unit.split, dataset.weight, dataset.split, dataset.subset) == ("a", None, 1.0, None, None)
    assert dataset.text_field == "text"
    # The path is relative to the JSON file, and not to the working folder.
    assert dataset.path == str(tmp_path / "a.jsonl")


def test_fields_of_chat_data_belong_to_an_entry(tmp_path: Path) -> None:
    """Upstream ignores them silently (docs/formats/blend-json.md#nemotron)."""
    blend = _load(tmp_path, {"datasets": [{**ONE, "messages_field": "turns", "tools_field": "functions"}]})
    assert blend.list_units()[0].dataset.messages_field == "turns"


def test_notes_and_categories_are_kept_without_effect(tmp_path: Path) -> None:
    """Nemotron's current SFT blends have them (docs/formats/blend-json.md#declaration)."""
    missing = {"code": {"weight": 14.0}}
    noted = {**ONE, "category": "code", "_note": "§2.3", "_new_in_ultra": True}
    blend = _load(tmp_path, {"_comment": "Phase 1", "_missing_categories": missing, "datasets": [noted]})
    assert blend.notes == {"_comment": "Phase 1", "_missing_categories": missing}
    (dataset,) = (unit.dataset for unit in blend.list_units())
    assert (dataset.category, dataset.notes) == ("code", {"_note": "§2.3", "_new_in_ultra": True})
    plain = _load(tmp_path, {"datasets": [ONE]}).list_units()[0].dataset
    assert dataset.unattributed == plain.unattributed


def test_splits_of_a_blend_are_separate_units(tmp_path: Path) -> None:
    blend = _load(tmp_path, {"train": [ONE], "valid": [ONE], "test": [{"name": "b", "path": "hf://o/b"}]})
    assert [(u.name, u.home) for u in blend.list_units()] == [
        ("a__train", "train"),
        ("a__valid", "valid"),
        ("b__test", "test"),
    ]
    assert blend.has_split_lists


def test_weight_zero_leaves_a_dataset_out(tmp_path: Path) -> None:
    assert [u.name for u in _load(tmp_path, {"datasets": [ONE, {**ONE, "name": "b", "weight": 0}]}).list_units()] == [
        "a"
    ]


@pytest.mark.parametrize(
    ("value", "values"),
    [
        ({}, ("`datasets`", "`train`, `valid` and `test`")),
        ({"datasets": []}, ("blend.json:1", "`datasets`")),
        ({"comment": "x", "datasets": [ONE]}, ("comment",)),
        ({"datasets": [{**ONE, "notes": "text"}]}, ("datasets.0.notes",)),
        ({"datasets": [ONE], "train": []}, ("`datasets`", "train")),
        ({"datasets": [ONE], "train": [ONE]}, ("`datasets`", "train")),
        ({"train": [ONE], "valid": []}, ("`valid`",)),
        ({"datasets": [ONE, ONE]}, ("a", "twice")),
        ({"datasets": [{**ONE, "weight": -1}]}, ("datasets.0.weight", -1)),
        ({"datasets": [{**ONE, "weight": 0}]}, ("weight", 0)),
        ({"datasets": [{**ONE, "wieght": 1}]}, ("blend.json:1", "datasets.0.wieght", "`weight`")),
        ({"datasets": [{"name": "a"}]}, ("blend.json:1", "datasets.0.path", "missing")),
        ({"datasets": [{**ONE, "name": "../a"}]}, ("blend.json:1", "datasets.0.name", "'../a'")),
        ({"dataset": [ONE]}, ("dataset",)),
        ('{"datasets": [{"name": "a", "path": "p", "weight": NaN}]}', ("NaN",)),
        ('{"datasets": [{"name": "a", "path": "p", "weight": Infinity}]}', ("Infinity",)),
        ('{"datasets": [{"name": "a", "path": "p", "path": "q"}]}', ("'path'",)),
        ("[]", ("blend",)),
        ("{", ("blend.json",)),
        ('{"datasets": [' + "0," * (5 << 20) + "0]}", (10_485_777, 8_388_608)),
        (
            '{"datasets": [' + "0," * 10_000 + "0]}",
            (10_001, 10_000),
        ),
        # This mistake is reported without a line number, because finding the line could take a thousand times as much
        # memory as the text.
        ('{"datasets": [0], "_note": "' + "a" * (1 << 20) + '"}', ("datasets.0", "keys")),
    ],
)
def test_mistakes_that_upstream_accepts_are_refused_by_file_and_key(
    tmp_path: Path, value: Any, values: tuple[object, ...]
) -> None:
    with raises(ConfigError, "blend.json", *values):
        _load(tmp_path, value)


def test_a_mistake_is_reported_with_its_own_line(tmp_path: Path) -> None:
    text = json.dumps({"datasets": [ONE, {**ONE, "name": "b", "wieght": 1}]}, indent=1)
    (line,) = [number for number, one in enumerate(text.splitlines(), 1) if "wieght" in one]
    assert line > 5
    with raises(ConfigError, f"blend.json:{line}", "datasets.1.wieght"):
        _load(tmp_path, text)


def _declare(**changes: Any) -> BlendDeclaration:
    base = {"dataset": "d", "stage": "pretrain", "blend": {"datasets": [ONE]}, "tokenizer": {"path": "t"}}
    return BlendDeclaration.model_validate(base | changes)


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"sft": {}}, ("`sft`", "`stage")),
        ({"tokenizer": None}, ("tokenizer",)),
        ({"stage": "rl"}, ("`tokenizer`", "`stage: rl`")),
        ({"sample": {}}, ("`count`", "`percent`")),
        ({"sample": {"count": 1, "percent": 1}}, ("`count`", "`percent`")),
        (
            {"blend": {"train": [ONE]}, "held_out": {"valid": 1}},
            ("`held_out`", "`train`, `valid` and `test`"),
        ),
        ({"blend": {"datasets": [{**ONE, "weight": float("nan")}]}}, ("weight",)),
        ({"pretrain": {"dtype": "uint32"}}, ("dtype",)),
        ({"tolerance": 2}, ("tolerance",)),
        ({"shards": 3}, ("shards",)),
    ],
)
def test_an_impossible_declaration_is_refused(changes: dict[str, Any], values: tuple[str, ...]) -> None:
    with raises(ValidationError, *values):
        _declare(**changes)


def test_paths_are_relative_to_the_yaml(tmp_path: Path) -> None:
    inline = _declare().resolve_paths(tmp_path)
    assert inline.load_data_blend().list_units()[0].dataset.path == str(tmp_path / "a.jsonl")
    assert inline.required_tokenizer.path == tmp_path / "t"
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.json").write_text(json.dumps({"datasets": [ONE, {"name": "h", "path": "hf://o/h"}]}))
    by_path = _declare(blend="sub/b.json").resolve_paths(tmp_path)
    assert [u.dataset.path for u in by_path.load_data_blend().list_units()] == [
        str(tmp_path / "sub" / "a.jsonl"),
        "hf://o/h",
    ]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("~no_such_user/a.jsonl", ("`~no_such_user`", "`./")),
        ("a\0b.jsonl", ("NUL",)),
    ],
)
def test_an_invalid_path_is_refused_with_its_line(tmp_path: Path, path: str, why: tuple[str, ...]) -> None:
    blend = {"datasets": [{**ONE, "path": path}]}
    with raises(ValidationError, *why):
        _declare(blend=blend)
    (tmp_path / "b.json").write_text(json.dumps(blend, indent=1))
    with raises(ConfigError, "datasets.0.path", *why):
        _declare(blend="b.json").resolve_paths(tmp_path).load_data_blend()
    with raises(ConfigError, *why):
        _declare(blend=path).resolve_paths(tmp_path)


def test_a_missing_blend_file_is_named(tmp_path: Path) -> None:
    with raises(ConfigError, "nowhere.json"):
        _declare(blend="nowhere.json").resolve_paths(tmp_path).load_data_blend()


def test_held_out_shards_of_a_file_with_splits_are_refused(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(json.dumps({"train": [ONE]}))
    with raises(ConfigError, "b.json", "`held_out`"):
        _declare(blend="b.json", held_out={"valid": 1}).resolve_paths(tmp_path).load_data_blend()


@pytest.mark.parametrize(("name", "fits"), [("a.b", True), ("a..b-1.", True), ("a...b", False), ("a....", False)])
def test_a_name_that_dagster_parses_as_a_range_of_partitions_is_refused(name: str, fits: bool) -> None:
    models: list[tuple[type[BaseModel], str, dict[str, str]]] = [
        (BlendDataset, "name", {"path": "./a.jsonl"}),
        (TaskDeclaration, "version", {}),
    ]
    for model, key, others in models:
        with nullcontext() if fits else pytest.raises(ValidationError):
            model.model_validate({key: name, **others})


def test_the_json_of_a_blend_may_have_a_byte_order_mark_and_other_content_is_named(tmp_path: Path) -> None:
    path, data = tmp_path / "blend.json", json.dumps({"datasets": [{"name": "a", "path": "./a"}]}).encode()
    path.write_bytes(b"\xef\xbb\xbf" + data)
    assert DataBlend.load(path).datasets
    for other, said in ((data.decode().encode("utf-16"), "iconv"), (b"<html></html> a page", "HTML")):
        path.write_bytes(other)
        with raises(ConfigError, "blend.json", said):
            DataBlend.load(path)
