"""The version of an asset's columns, for a shard, is derived from the values of its rows."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep_assets.curation.external_taggers.asset_tagger import AssetTagger

ROWS: dict[str, list[Any]] = {
    "file": ["a", "b", "a", "b", "c"],
    "row": [1, 1, 2, 2, 1],
    "score": [0.5, None, 1.5, -0.0, 2.0],
    "label": ["x", "yes", None, "", "é"],
    "ok": [True, None, False, True, True],
}


def tagger(*paths: Path) -> AssetTagger:
    columns = {"score": "number", "label": "string", "ok": "boolean"}
    return AssetTagger(name="scores", columns=columns, key=("team", "scores"), paths=paths)  # type: ignore[arg-type]


def versions(*paths: Path) -> list[str]:
    return [tagger(*paths).limit_to_files([file]).version for file in "abc"]


@pytest.mark.parametrize(
    ("column", "value"), [("score", 9.0), ("score", None), ("label", "es"), ("ok", False), ("row", 3)]
)
def test_a_changed_value_changes_the_version_of_its_file_only(column: str, value: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table(ROWS), tmp_path / "old.parquet")
    changed = {**ROWS, column: [*ROWS[column][:3], value, ROWS[column][4]]}
    pq.write_table(pa.table(changed), tmp_path / "new.parquet")
    old, new = versions(tmp_path / "old.parquet"), versions(tmp_path / "new.parquet")
    assert [one == other for one, other in zip(old, new, strict=True)] == [True, False, True]
    assert len(set(old)) == 3
    assert tagger(tmp_path / "old.parquet").version != tagger(tmp_path / "new.parquet").version


def test_equal_values_in_other_files_row_groups_and_types_have_equal_versions(tmp_path: Path) -> None:
    table = pa.table(ROWS)
    pq.write_table(table, tmp_path / "whole.parquet")
    pq.write_table(table, tmp_path / "cut.parquet", row_group_size=2)
    pq.write_table(table.slice(0, 3), tmp_path / "1.parquet")
    narrow = table.slice(3).set_column(1, "row", table.slice(3)["row"].cast("int32"))
    pq.write_table(narrow.append_column("more", pa.array([1, 2])), tmp_path / "2.parquet")
    wanted = versions(tmp_path / "whole.parquet")
    assert versions(tmp_path / "cut.parquet") == wanted
    assert versions(tmp_path / "1.parquet", tmp_path / "2.parquet") == wanted


def test_files_with_other_columns_than_declared_have_the_version_of_their_bytes(tmp_path: Path) -> None:
    for name, table in {"lacks": {"file": ["a"], "row": [1]}, "other": {**ROWS, "score": ["x"] * 5}}.items():
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    (tmp_path / "none.parquet").write_text("no Parquet")
    for name in ("lacks", "other", "none"):
        assert len(set(versions(tmp_path / f"{name}.parquet"))) == 1
