"""Fields of the rows of a blend are columns of its document table."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from dataprep_assets.curation.table import CarriedValueError
from dataprep_assets.errors import DataprepError
from dataprep_assets.pipelines.blend.remarks import find_blend_remarks
from dataprep_assets.pipelines.blend.table.row_table import DOCUMENTS, list_table_columns
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.blend.ruled_blend import BUILD, RuledBlend

FIELDS = {"quality": "number", "meta.language": "string"}


def make_blend(folder: Path, stage: str, **changes: Any) -> RuledBlend:
    """Return a blend whose rows have the fields, except the last one, and whose first row is bad."""
    made = RuledBlend(folder, stage, keep_fields=FIELDS, bad_records={"policy": "drop", "budget": 0.2}, **changes)
    for name in ("tag", "tag_text", "keep", "drop"):
        made.changes.pop(name)
    fields = [{"quality": number / 4, "meta": {"language": "en"}} for number in range(len(made.rows))]
    rows = [row | field for row, field in zip(made.rows, [*fields[:-1], {}], strict=True)]
    made.write_rows([{"messages": [], "quality": 7}, *rows])
    return made


def read_table(made: RuledBlend) -> list[dict[str, Any]]:
    folders = [made.store.directory(made.declaration.artifact(DOCUMENTS, name)) for name in made.partitions]
    rows = [row for folder in folders for row in pq.read_table(folder / "documents.parquet").to_pylist()]
    return sorted((row for row in rows if row["source"] == "first"), key=lambda row: (row["file"], row["row"]))


@pytest.mark.parametrize("stage", BUILD)
def test_the_table_has_the_fields_of_every_row(tmp_path: Path, stage: str) -> None:
    made = make_blend(tmp_path, stage)
    made.run()
    bad_row, *rows = read_table(made)
    assert (bad_row["kept"], bad_row["quality"], bad_row["meta_language"]) == (False, 7.0, None)
    assert [row["quality"] for row in rows] == [*(number / 4 for number in range(len(made.rows) - 1)), None]
    assert [row["meta_language"] for row in rows] == [*["en"] * (len(made.rows) - 1), None]
    assert [*rows[0]] == [*list_table_columns(made.declaration)]
    table = made.dataset.documents(made.store)
    assert table.rows(where="quality < 0.6", columns=["row"]).count() == 3
    assert made.run() == []
    # Only the tables are rebuilt for a different field.
    made.changes["keep_fields"] = {"quality": "number"}
    assert {name.partition("/")[0] for name in made.run()} == {DOCUMENTS}


def test_a_value_of_another_type_names_its_row(tmp_path: Path) -> None:
    made = make_blend(tmp_path, "rl")
    made.changes["keep_fields"] = {"quality": "boolean"}
    with raises(CarriedValueError, "f0.jsonl: row 1: quality", 7, "`keep_fields`", "boolean"):
        made.run()


def test_a_field_that_no_row_has_is_reported(tmp_path: Path) -> None:
    made = make_blend(tmp_path, "rl")
    made.changes["keep_fields"] = {"qualty": "number"}
    remarks = [remark for remark in find_blend_remarks(made.declaration) if remark.keys == ("keep_fields", "qualty")]
    assert_names(remarks[0].sentence, "qualty")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"keep_fields": {"turns": "integer"}}, ["keep_fields", "turns", "already a column"]),
        ({"keep_fields": {"reason": "string"}}, ["keep_fields", "reason", "already a column"]),
        ({"keep_fields": {"a.b": "string", "a_b": "string"}}, ["keep_fields", "a_b", "two fields"]),
        ({"tag": ["gopher"], "keep_fields": {"words": "integer"}}, ["keep_fields", "words", "already a column"]),
        ({"drop": {"poor": "quality < 1"}}, ["quality"]),
    ],
)
def test_a_field_that_cannot_be_a_column_is_refused(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    made = make_blend(tmp_path, "rl")
    made.changes |= changes
    with raises((ValidationError, DataprepError), *words):
        _ = made.declaration


def test_text_in_the_table_of_sensitive_rows_is_refused(tmp_path: Path) -> None:
    made = make_blend(tmp_path, "rl")
    blend = {"datasets": [{"name": "first", "path": "hf://chats/first"}]}
    made.changes |= {"sensitive": True, "blend": blend}
    with raises(ValidationError, "keep_fields", "meta.language", "sensitive"):
        _ = made.declaration
