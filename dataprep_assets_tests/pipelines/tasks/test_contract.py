"""Contracts are data: the shipped ones are complete, a new task needs a few lines, and an invalid line is named."""

from typing import Any

import pytest
from pydantic import ValidationError

from dataprep_assets.errors import ConfigError
from dataprep_assets.fields import value_at
from dataprep_assets.pipelines.tasks.contract import load_shipped_contracts, parse_contract
from dataprep_assets_tests.messages import raises


def test_the_six_tasks_of_the_guide_ship_with_its_file_names() -> None:
    assert {name: c.folder for name, c in load_shipped_contracts().items()} == {
        name: name for name in load_shipped_contracts()
    }
    assert {c.folder: [c.files[s].name for s in c.splits] for c in load_shipped_contracts().values()} == {
        "Copa": ["copa_train.jsonl", "copa_validation.jsonl", "copa_test.jsonl"],
        "BOOLQ": ["boolq_train.jsonl", "boolq_validation.jsonl"],
        "CB": ["cb_train.jsonl", "cb_validation.jsonl", "cb_test.jsonl"],
        "RTE": ["rte_train.jsonl", "rte_validation.jsonl", "rte_test.jsonl"],
        "ArcC_Cloze": [f"ARC-Challenge_{s}.jsonl" for s in ("train", "validation", "test")],
        "ArcC_MC": [f"ARC-Challenge_{s}.jsonl" for s in ("train", "validation", "test")],
    }
    assert all(spec.required == (s != "test") for c in load_shipped_contracts().values() for s, spec in c.files.items())


def test_hidden_labels_are_allowed_only_in_test() -> None:
    for contract in load_shipped_contracts().values():
        assert {s for s, labels in contract.labels.items() if -1 in labels} <= {"test"}


def test_like_changes_only_the_named_keys() -> None:
    changed = parse_contract({"like": "Copa", "folder": "Copa2", "files": {"train": {"rows": 12}}}, "here")
    copa = load_shipped_contracts()["Copa"]
    assert changed.files["train"].rows == (12,)
    assert changed.files["train"].name == "copa_train.jsonl"
    assert changed.model_copy(update={"folder": "Copa", "files": copa.files}) == copa


@pytest.mark.parametrize(
    ("change", "values"),
    [
        (
            {"like": "Capo"},
            ("like", "'Capo'", "ArcC_Cloze, ArcC_MC, BOOLQ, CB, Copa, RTE"),
        ),
        ({"colour": 1}, ("colour", 1)),
        ({"id": "index"}, ("id", "'index'", "choice1")),
        ({"label": "labels"}, ("label", "'labels'")),
        ({"text": ["premise", "choices.text"]}, ("choices.text",)),
        ({"keys": {"label": "float"}}, ("keys.label.type", "'string', 'integer'")),
        ({"keys": {"label": "object"}}, ("keys", "object")),
        ({"files": {"train": {"name": "../copa_train.jsonl"}}}, ("files.train.name",)),
        ({"files": {"validation": {"name": "copa_train.jsonl"}}}, ("files", "name")),
        ({"files": {"dev": {"name": "copa_dev.jsonl"}}}, ("files.dev", "'train'")),
        ({"loader": {"bad_line": "stops"}}, ("loader",)),
        ({"labels": {"test": None}}, ("labels.test",)),
    ],
)
def test_an_invalid_line_is_named_with_the_allowed_values(change: dict[str, Any], values: tuple[object, ...]) -> None:
    with raises(ConfigError, "here", *values):
        parse_contract({"like": "Copa", **change}, "here")


def test_a_contract_without_validation_or_with_labels_of_some_splits_is_refused() -> None:
    copa = load_shipped_contracts()["Copa"].model_dump()
    files = {"train": copa["files"]["train"]}
    with raises(ConfigError, "files", "validation"):
        parse_contract({**copa, "files": files}, "here")
    with raises(ConfigError, "labels"):
        parse_contract({**copa, "labels": {"train": [0, 1]}}, "here")


def test_contracts_are_immutable() -> None:
    with raises(ValidationError, "frozen"):
        load_shipped_contracts()["Copa"].folder = "CB"  # type: ignore[misc]


def test_paths_reach_into_rows() -> None:
    assert value_at({"a": {"b": [1]}}, "a.b") == [1]
    assert value_at({"a": [1]}, "a.b") is None
    assert value_at({}, "a.b") is None
