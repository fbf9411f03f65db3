"""A field inside an object, `data.text`, is read equally from every format, and only the necessary parts are read."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep_assets.fields import find_siblings, select_fields, value_at
from dataprep_assets.pipelines.blend.plan.fields import get_conversation_fields
from dataprep_assets.pipelines.blend.sft.options import SftOptions
from dataprep_assets.sources.readers.first_rows import describe_absent_field
from dataprep_assets.sources.readers.records import AbsentColumnError, Block, RecordFields, read_records
from dataprep_assets.sources.readers.row_files import ParquetBlocks
from dataprep_assets.sources.readers.rows import read_rows
from dataprep_assets.tokenization.chat.messages import Conversation, read_conversation
from dataprep_assets_tests.messages import raises

ROWS: list[dict[str, Any]] = [
    {"data": {"text": "one", "meta": {"id": 1}, "html": "<p>one</p>"}, "wide": "x"},
    {"data": {"text": None, "meta": {"id": 2}, "html": ""}, "wide": "x"},
    {"data": None, "wide": "x"},
    {"data": {"text": "four", "meta": None, "html": ""}, "wide": "x"},
    {"data": {"text": "five", "meta": {"id": 5}, "html": ""}, "wide": "x"},
]


def written(folder: Path, format: str, rows: list[dict[str, Any]]) -> Path:
    """Write a file of these rows."""
    path = folder / f"rows.{format}"
    if format == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif format == "arrow":
        table = pa.Table.from_pylist(rows)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    elif format == "json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path, text: str, id_: str | None = None) -> list[Block]:
    """Return the records of a file."""
    kind = path.suffix[1:]
    return list(read_records(path, fields=RecordFields(text, id_), format=kind, compression=None, label=path.name))


@pytest.mark.parametrize("format", ["jsonl", "json", "parquet", "arrow"])
def test_a_nested_text_and_id_are_read_and_bad_rows_refused(tmp_path: Path, format: str) -> None:
    blocks = read(written(tmp_path, format, ROWS), "data.text", "data.meta.id")
    assert [text for block in blocks for text in block.texts] == ["one", "five"]
    assert [one for block in blocks for one in block.ids or ()] == ["1", "5"]
    refused = {bad.row: bad.reason for block in blocks for bad in block.bad}
    assert refused == {2: "null_text", 3: "missing_text", 4: "missing_id"}
    whole = read(written(tmp_path, format, [ROWS[0], ROWS[4]]), "data.text", "data.meta.id")
    assert [(block.texts, block.ids) for block in whole] == [(["one", "five"], ["1", "5"])]


@pytest.mark.parametrize("format", ["jsonl", "json", "parquet", "arrow"])
def test_a_field_with_the_full_dotted_name_has_priority(tmp_path: Path, format: str) -> None:
    rows = [{"data.text": "whole name", "data": {"text": "inside", "other": 1}}] * 2
    (block,) = read(written(tmp_path, format, rows), "data.text")
    assert block.texts == ["whole name"] * 2


def test_a_csv_column_may_have_a_dot(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("data.text,other\nhello,1\n")
    (block,) = read(path, "data.text")
    assert block.texts == ["hello"]


def test_only_the_needed_fields_of_a_struct_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[pa.Schema] = []
    batches = ParquetBlocks._read_batches

    def spied(self: Any, *arguments: Any) -> Any:
        for batch in batches(self, *arguments):
            seen.append(batch.schema)
            yield batch

    monkeypatch.setattr(ParquetBlocks, "_read_batches", spied)
    path = written(tmp_path, "parquet", ROWS)
    read(path, "data.text", "data.meta.id")
    list(read_rows(path, format="parquet", compression=None, label="rows", columns=["data.meta.id", "data.none", "no"]))
    assert [[field.name for field in schema.field("data").type] for schema in seen] == [["text", "meta"], ["meta"]]
    assert all(schema.names == ["data"] for schema in seen)
    arrow = written(tmp_path, "arrow", ROWS)
    (block,) = read_rows(arrow, format="arrow", compression=None, label="rows", columns=["data.text", "no"])
    assert block.rows[:3] == [{"data": {"text": "one"}}, {"data": {"text": None}}, {"data": None}]


def test_slices_of_a_batch_are_narrowed_like_the_whole() -> None:
    batch = pa.RecordBatch.from_pylist(ROWS)
    assert select_fields(batch.slice(2, 2), ["data.meta.id", "wide"]).to_pylist() == [
        {"data": None, "wide": "x"},
        {"data": {"meta": None}, "wide": "x"},
    ]
    assert select_fields(batch, ["data", "data.text"]).to_pylist() == [{"data": row["data"]} for row in ROWS]


def test_a_missing_field_is_reported_with_the_names_at_its_level(tmp_path: Path) -> None:
    path = written(tmp_path, "parquet", ROWS)
    with raises(AbsentColumnError, "rows.parquet", "'data.txt'", "'data'", "text", "meta", "html"):
        read(path, "data.txt")
    with raises(AbsentColumnError, "'data.meta.no'", "'data.meta'", "id"):
        read(path, "data.text", "data.meta.no")
    with raises(AbsentColumnError, "'text'", "data", "wide"):
        read(path, "text")
    told = describe_absent_field(ROWS, "text_field", "data.txt", "split train", (str,), hidden=False)
    assert told is not None
    assert told.endswith("`data` has `text`, `meta`, `html`")
    hidden = describe_absent_field(ROWS, "text_field", "data.txt", "split train", (str,), hidden=True)
    assert hidden is not None
    assert "html" not in hidden
    assert describe_absent_field(ROWS, "text_field", "data.text", "split train", (str,), hidden=False) is None


def test_a_field_inside_an_object_is_suggested(tmp_path: Path) -> None:
    with raises(AbsentColumnError, "rows.parquet", "`text_field: data.text`"):
        read(written(tmp_path, "parquet", ROWS), "text")
    told = describe_absent_field(ROWS, "text_field", "text", "split train", (str,), hidden=False)
    assert told is not None
    assert told.endswith("has this field; did you mean `data.text`? Their fields: `data`, `wide`")
    hidden = describe_absent_field(ROWS, "text_field", "text", "split train", (str,), hidden=True)
    assert hidden is not None
    assert "data" not in hidden


def test_listed_names_are_those_of_the_innermost_existing_object() -> None:
    assert find_siblings(ROWS, "data.meta.no") == ("data.meta", ["id"])
    assert find_siblings(ROWS, "date.text") == ("", ["data", "wide"])
    assert value_at({"a": {"b.c": 1}}, "a.b.c") == 1
    assert value_at({"a": 3}, "a.b", "none") == "none"


def test_messages_of_a_chat_may_be_nested() -> None:
    options = SftOptions(messages_field="chat.turns", tools_field="chat.tools")
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]

    class Row:
        messages_field = tools_field = format = None

    fields = get_conversation_fields(options, Row())  # type: ignore[arg-type]
    found = read_conversation({"chat": {"turns": turns, "tools": None}}, fields)
    assert isinstance(found, Conversation)
    assert [message["content"] for message in found.messages] == ["hi", "hello"]
