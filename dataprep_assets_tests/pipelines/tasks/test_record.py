"""Rows are paired by id; every row is counted once."""

from typing import Any

from dataprep_assets.pipelines.tasks.contract import load_shipped_contracts
from dataprep_assets.pipelines.tasks.record import compare_rows
from dataprep_assets.pipelines.tasks.task_rows import TaskRow, parse_rows
from dataprep_assets_tests.tools.sample.make_sample_tasks import jsonl, rewritten, task_rows

COPA, BOOLQ = load_shipped_contracts()["Copa"], load_shipped_contracts()["BOOLQ"]


def rows(values: list[dict[str, Any]]) -> tuple[TaskRow, ...]:
    return parse_rows(jsonl(values)).rows


def test_a_rewrite_changes_only_texts_and_no_label() -> None:
    original = task_rows("Copa", "train", 24)
    found = compare_rows(rows(original), rows(rewritten("Copa", "version_1", original)), COPA)
    assert found.changed > 0
    assert found.changed + found.unchanged == found.rows == found.original_rows == 24
    assert (found.relabelled, found.missing, found.added, found.repeated) == (0, 0, 0, 0)


def test_missing_added_repeated_and_relabeled_rows_are_counted() -> None:
    original = task_rows("Copa", "train", 6)
    a, b, c, d, *_ = original
    made = [{**a, "label": 1 - a["label"]}, b, b, {**c, "premise": "x"}, {**d, "idx": 77}]
    found = compare_rows(rows(original), rows(made), COPA)
    assert found.model_dump() == {
        "original_rows": 6,
        "rows": 5,
        "unchanged": 2,
        "changed": 2,
        "relabelled": 1,
        "missing": 3,
        "added": 1,
        "repeated": 1,
    }


def test_the_order_of_rows_and_of_keys_does_not_matter() -> None:
    original = task_rows("Copa", "train", 5)
    made = [dict(reversed(row.items())) for row in reversed(original)]
    assert compare_rows(rows(original), rows(made), COPA).unchanged == 5


def test_rows_without_ids_are_paired_by_position() -> None:
    original = task_rows("BOOLQ", "train", 5)
    found = compare_rows(rows(original), rows([*original[1:], original[0]]), BOOLQ)
    assert (found.missing, found.added, found.unchanged) == (0, 0, 0)
