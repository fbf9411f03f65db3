"""A sample of the rows of a document table depends only on the seed and the rows, not on their order or shards."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from dataprep_assets.engine.trace.document_table import DocumentRows

FILES = ("web/a.jsonl", "web/b.jsonl", "books/c.jsonl")
SCHEMA = pa.schema([("file", pa.string()), ("row", pa.int64()), ("words", pa.int64())])
ALL: list[dict[str, object]] = [{"file": file, "row": row, "words": row * 3} for file in FILES for row in range(1, 401)]


def make_rows(*tables: list[dict[str, object]], columns: Sequence[str] | None = None) -> DocumentRows:
    def read(names: Sequence[str] | None) -> Iterator[pa.Table]:
        for table in tables:
            yield pa.Table.from_pylist(table, SCHEMA).select(names or ["file", "row", "words"])

    return DocumentRows(columns=columns, read=read)


def test_the_same_rows_are_drawn_for_any_shards_and_any_order() -> None:
    drawn = make_rows(ALL).sample(20, 7)
    assert len({(row["file"], row["row"]) for row in drawn}) == 20
    assert drawn == sorted(drawn, key=lambda row: (row["file"], row["row"]))
    assert all(row in ALL for row in drawn)
    by_file = [[row for row in ALL if row["file"] == file] for file in FILES]
    assert make_rows(*reversed(by_file)).sample(20, 7) == drawn
    assert make_rows(*([row] for row in ALL)).sample(20, 7) == drawn
    assert make_rows(ALL).sample(20, 8) != drawn
    assert make_rows(ALL).sample(20) == make_rows(ALL).sample(20, 0)


def test_a_row_is_drawn_more_often_the_larger_the_sample_and_from_every_file() -> None:
    small, large = (make_rows(ALL).sample(count, 1) for count in (30, 300))
    assert all(row in large for row in small)
    counts = [sum(row["file"] == file for row in large) for file in FILES]
    assert all(70 <= count <= 130 for count in counts)


@pytest.mark.parametrize("count", [3, 50])
def test_a_sample_of_all_rows_has_every_row_and_only_the_chosen_columns(count: int) -> None:
    assert make_rows([], ALL[:3]).sample(count) == ALL[:3]
    assert make_rows(ALL[:3], columns=["words"]).sample(count) == [{"words": 3}, {"words": 6}, {"words": 9}]
    assert make_rows().sample(count) == []


def test_shards_may_have_different_columns() -> None:
    tables = [
        pa.table({"file": ["a"] * 5, "row": [1, 2, 3, 4, 5], "words": [9] * 5}),
        pa.table({"file": ["b"] * 5, "row": [1, 2, 3, 4, 5], "lines": [2] * 5}),
    ]
    rows = DocumentRows(columns=None, read=lambda _: iter(tables))
    assert rows.sample(10)[4:6] == [
        {"file": "a", "row": 5, "words": 9, "lines": None},
        {"file": "b", "row": 1, "words": None, "lines": 2},
    ]
    assert len(rows.sample(7)) == 7
