"""The difference between a receipt and the current recipe: the first of version, inputs, sources and settings."""

from typing import Any

import pytest

from dataprep_assets.engine.artifact.recipe import IngredientChange, Recipe, flatten
from dataprep_assets.integrity.artifacts import Artifact
from dataprep_assets.integrity.receipt import Receipt

ARTIFACT = Artifact(dataset="d", name="a", partition=None)
SETTINGS = {"dtype": "uint16", "document": {"bos": None, "separator": "<e>"}}


def recipe(**changes: Any) -> Recipe:
    made: dict[str, Any] = {
        "artifact": ARTIFACT,
        "key": "new",
        "version": 1,
        "settings": SETTINGS,
        "sources": {"x.jsonl": "1", "y.jsonl": "2"},
        "upstream": {"token_bins/train-00000": "3"},
    }
    return Recipe(**made | changes)


def receipt(of: Recipe, key: str = "old") -> Receipt:
    return Receipt(dataset="d", artifact="a", partition=None, key=key, inputs={}, files=(), recipe=of.to_json())


def difference(now: Recipe, before: Recipe) -> tuple[str, str]:
    found = now.find_change(receipt(before))
    assert found is not None
    return found.kind, found.reason


def test_equal_keys_are_no_difference_whatever_was_recorded() -> None:
    assert recipe().find_change(receipt(recipe(version=7, settings={}), key="new")) is None


@pytest.mark.parametrize(
    ("changes", "kind", "reason"),
    [
        ({"version": 3}, "older version", "built by version 1 of this step; the current version is 3"),
        (
            {"upstream": {"token_bins/train-00000": "4"}},
            "input changed",
            "its input changed: token_bins/train-00000",
        ),
        (
            {"upstream": {"token_bins/train-00000": "3", "token_bins/train-00001": "4"}},
            "input changed",
            "its input changed: token_bins/train-00001",
        ),
        ({"upstream": {}}, "input changed", "its input changed: token_bins/train-00000"),
        ({"sources": {"x.jsonl": "9", "y.jsonl": "2"}}, "input changed", "its source changed: x.jsonl"),
        (
            {"sources": {f"{n}.jsonl": "9" for n in range(5)}},
            "input changed",
            "its source changed: 0.jsonl, 1.jsonl, 2.jsonl and 4 more",
        ),
        ({"settings": {**SETTINGS, "dtype": "uint32"}}, "settings changed", "dtype was uint16, now uint32"),
        (
            {"settings": {"dtype": "uint16", "document": {"bos": "<b>", "separator": "<e>"}}},
            "settings changed",
            "document.bos was not set, now <b>",
        ),
        (
            {"settings": {"dtype": "uint32", "document": {"bos": None, "separator": "<f>"}}},
            "settings changed",
            "dtype was uint16, now uint32 (and 1 more)",
        ),
        ({"settings": {**SETTINGS, "extra": 5}}, "settings changed", "extra was not set, now 5"),
        (
            {"settings": {"dtype": "uint16", "document": {"bos": None}}},
            "settings changed",
            "document.separator was <e>, now not set",
        ),
        ({}, "recipe changed", "built from different inputs or settings"),
    ],
)
def test_only_the_first_difference_is_reported(changes: dict[str, Any], kind: str, reason: str) -> None:
    assert difference(recipe(**changes), recipe()) == (kind, reason)


def test_an_older_version_is_reported_before_other_differences() -> None:
    now = recipe(version=2, settings={}, sources={}, upstream={})
    assert difference(now, recipe())[0] == "older version"
    assert difference(recipe(settings={}, sources={}), recipe())[1].startswith("dtype was uint16")


def test_a_step_may_describe_the_change_in_its_sources() -> None:
    now = recipe(sources={}, source_changes=("removed file a", "edited file b"))
    assert difference(now, recipe()) == ("input changed", "its source changed: removed file a, edited file b")


@pytest.mark.parametrize(
    ("name", "before", "now", "line"),
    [
        ("rules.short", "drop: words < 50", "drop: words < 20", "rule short changed: words < 50 → words < 20"),
        (
            "rules.short",
            "drop: words < 50",
            "keep: words < 50",
            "rule short changed: drop: words < 50 → keep: words < 50",
        ),
        ("rules.ours", None, "keep: host == 'a'", "rule ours added: keep: host == 'a'"),
        ("rules.ours", "keep: host == 'a'", None, "rule ours removed: keep: host == 'a'"),
        ("dtype", "uint16", "uint32", "dtype changed: uint16 → uint32"),
        ("splits.val", ["a", "b"], [], "splits.val changed: a, b → empty"),
        ("module", "0" * 64, "1" * 64, "module changed"),
    ],
)
def test_a_change_is_described_in_one_line(name: str, before: Any, now: Any, line: str) -> None:
    assert str(IngredientChange(kind="settings", name=name, before=before, now=now)) == line


def test_a_long_value_is_truncated() -> None:
    _, reason = difference(recipe(settings={**SETTINGS, "dtype": "x" * 500}), recipe())
    assert reason == f"dtype was uint16, now {'x' * 60}…"


def test_two_long_values_are_truncated_around_their_first_difference() -> None:
    texts = [f"drop: {'a' * 200}{middle}{'z' * 200}" for middle in ("before", "now")]
    line = str(IngredientChange(kind="settings", name="rules.long", before=texts[0], now=texts[1]))
    start = f"…{'a' * 20}"
    assert f"{start}before{'z' * 34}…" in line
    assert f"{start}now{'z' * 37}…" in line


def test_a_recipe_in_a_receipt_omits_artifact_and_key() -> None:
    assert recipe().to_json().keys() == {"version", "settings", "sources", "upstream"}


def test_nested_settings_have_dotted_names() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": []}, "e": {}}) == {"a.b.c": 1, "a.d": []}
