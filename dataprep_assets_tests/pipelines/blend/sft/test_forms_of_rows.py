"""Rows in JSON lines, Parquet, Arrow and JSON columns give the same tokens; files have one form; unread keys
are known.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

from dataprep_assets.errors import BadRecordError
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatSource
from dataprep_assets.pipelines.blend.sft.packing import build_sft_shard
from dataprep_assets.pipelines.blend.sft.row_remarks import describe_rows
from dataprep_assets.pipelines.blend.sft.shard import PACKED
from dataprep_assets.sources.readers.read_options import RowRange
from dataprep_assets.sources.readers.rows import read_rows
from dataprep_assets.tokenization.chat.choices import NEMOTRON
from dataprep_assets.tokenization.chat.messages import ConversationFields, read_conversation
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.blend.sft.conversations import (
    END,
    Shard,
    decode_trained,
    describe_source,
    plan,
    work,
    write_rows,
)
from dataprep_assets_tests.pipelines.blend.sft.proven_shards import find_failing


def make_tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": sorted(properties)[:1]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def make_row(number: int, tools: list[dict[str, Any]], arguments: Any) -> dict[str, Any]:
    function = {"name": tools[0]["function"]["name"], "arguments": arguments}
    return {
        "messages": [
            {"role": "user", "content": f"Question {number}?"},
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
            {"role": "tool", "content": "06:12"},
            {"role": "assistant", "content": "At 06:12.", "reasoning_content": "It is early."},
        ],
        "tools": tools,
    }


TIDE, MAIL = (
    make_tool("get_tide", port={"type": "string"}),
    make_tool("send_mail", to={"type": "string", "enum": ["Ann"]}),
)
ROWS = [
    make_row(0, [TIDE], {"port": "Odd Harbour", "days": [1, 2]}),
    make_row(1, [MAIL, TIDE], {"to": {"name": "Ann", "mail": "a@example.org"}, "subject": "Tide"}),
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes.", "weight": 1}]},
]
AS_TEXT = [make_row(0, [TIDE], '{"port": null, "depth": {"min": null}}'), ROWS[2]]


def write_parquet(path: Path, table: pa.Table) -> Path:
    pq.write_table(table, path)
    return path


def write_arrow(path: Path, table: pa.Table) -> Path:
    with ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table)
    return path


def make_columns(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist([{"messages": None, "tools": None, **row} for row in rows])


def write_json_text(rows: list[dict[str, Any]], kind: pa.DataType) -> pa.Table:
    texts = {key: [json.dumps(row[key]) if key in row else None for row in rows] for key in ("messages", "tools")}
    return pa.table({key: pa.array(values, kind) for key, values in texts.items()})


def write_json_items(rows: list[dict[str, Any]]) -> pa.Table:
    tools = [[json.dumps(tool) for tool in row["tools"]] if "tools" in row else None for row in rows]
    listed = pa.array(tools, pa.list_(pa.string()))
    values = pa.ExtensionArray.from_storage(pa.json_(pa.string()), listed.values)
    of_json = pa.ListArray.from_arrays(listed.offsets, values, mask=listed.is_null())
    return pa.table({"messages": make_columns(rows)["messages"], "tools": of_json})


WAYS: dict[str, Callable[[Path, list[dict[str, Any]]], Path]] = {
    "lines": lambda path, rows: write_rows(path / "a.jsonl", rows),
    "array": lambda path, rows: write_rows(path / "a.json", [json.dumps(rows).encode()]),
    "parquet": lambda path, rows: write_parquet(path / "a.parquet", make_columns(rows)),
    "arrow": lambda path, rows: write_arrow(path / "a.arrow", make_columns(rows)),
    "text in parquet": lambda path, rows: write_parquet(path / "a.parquet", write_json_text(rows, pa.string())),
    "json in parquet": lambda path, rows: write_parquet(path / "a.parquet", write_json_text(rows, pa.json_())),
    "json in arrow": lambda path, rows: write_arrow(path / "a.arrow", write_json_text(rows, pa.json_())),
    "items of json": lambda path, rows: write_parquet(path / "a.parquet", write_json_items(rows)),
}


def describe_file(path: Path) -> ChatSource:
    format = {".arrow": "arrow", ".json": "json"}.get(path.suffix)
    return describe_source(path, **({"format": format} if format else {}))


def build_shard(folder: Path, *files: ChatSource, budget: float = 0.0, **changes: Any) -> Shard:
    """Return the shard of some files, built in this process."""
    todo = work(folder / "out", files, plan(**{"bad_rows": "fail", **changes}), budget=budget)
    receipt, _ = build_sft_shard(todo, "full", None)
    return Shard(todo.store.directory(todo.artifact), receipt, todo)


def build_rows(folder: Path, rows: list[dict[str, Any]], **changes: Any) -> Shard:
    return build_shard(folder, describe_source(write_rows(folder / "rows.jsonl", rows)), **changes)


@pytest.mark.parametrize("rows", [ROWS, AS_TEXT], ids=["objects", "text"])
def test_equal_rows_are_equal_conversations_in_any_format(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    read = {}
    for name, write in WAYS.items():
        (folder := tmp_path / name).mkdir()
        blocks = describe_file(write(folder, rows)).read_rows(as_json=True)
        read[name] = [read_conversation(row, ConversationFields()) for block in blocks for row in block.rows]
    assert read == {way: [read_conversation(row, ConversationFields()) for row in rows] for way in WAYS}


def test_rows_give_the_same_tokens_as_parquet(tmp_path: Path) -> None:
    shards = [
        build_shard(tmp_path / name, describe_file(WAYS[name](tmp_path, ROWS)))
        for name in ("lines", "parquet", "arrow")
    ]
    assert len({(shard.directory / PACKED).read_bytes() for shard in shards}) == 1
    assert find_failing(shards[1]) == {}


def test_an_intended_null_is_kept(tmp_path: Path) -> None:
    rows = [make_row(0, [TIDE], {"port": None}), make_row(1, [MAIL], {"to": "Ann"})]
    texts = decode_trained(build_shard(tmp_path, describe_file(WAYS["lines"](tmp_path, rows))).rows)
    assert any("<parameter=port>\nnull\n</parameter>" in text for text in texts)
    (folder := tmp_path / "text").mkdir()
    texts = decode_trained(build_shard(folder, describe_file(WAYS["parquet"](folder, AS_TEXT))).rows)
    assert any("<parameter=port>\nnull\n</parameter>" in text for text in texts)


def test_upstream_gets_the_nulls_of_a_schema(tmp_path: Path) -> None:
    path = WAYS["parquet"](tmp_path, ROWS)
    given = [row for block in read_rows(path, format="parquet", compression=None, label="a") for row in block.rows]
    assert "subject" in given[0]["messages"][1]["tool_calls"][0]["function"]["arguments"]
    texts = decode_trained(build_shard(tmp_path, describe_file(path), choices=NEMOTRON).rows)
    assert sum("<parameter=subject>\nnull" in text for text in texts) == 1


def test_a_json_column_with_invalid_json_is_a_bad_row(tmp_path: Path) -> None:
    table = pa.table({"messages": pa.array([json.dumps(ROWS[2]["messages"]), "[{"], pa.json_())})
    with pytest.raises(BadRecordError) as raised:
        build_shard(tmp_path, describe_file(write_parquet(tmp_path / "a.parquet", table)))
    assert raised.value.at["row"] == 2
    assert "bad_json" in str(raised.value)


SHAREGPT = [
    {"conversations": [{"from": "human", "value": f"Q{n}"}, {"from": "gpt", "value": f"A{n}"}], "id": n}
    for n in range(6)
]
ALPACA = [{"instruction": "Count", "output": "3"}]


def test_a_file_of_any_form_is_packed_with_its_form_and_unread_keys_recorded(tmp_path: Path) -> None:
    images = [{**SHAREGPT[0], "images": []}, *({**row, "meta": {"a": 1}} for row in SHAREGPT[1:])]
    shard = build_rows(tmp_path, images)
    assert sorted(decode_trained(shard.rows)) == [f"A{n}{END}" for n in range(6)]
    assert find_failing(shard) == {}
    assert shard.receipt.facts["sources"][0]["form"] == "sharegpt"
    assert shard.receipt.facts["unread_keys"] == {"id": 6, "meta": 5}
    assert list(describe_rows([shard.receipt])) == [
        "rows of chat: form sharegpt; keys that are not read: id (6 rows), meta (5 rows)"
    ]


def test_a_message_key_that_the_template_reads_counts_as_read(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": "Hi", "loop": 1, "mood": 2}, ROWS[2]["messages"][1]]}]
    assert build_rows(tmp_path, rows).receipt.facts["unread_keys"] == {"messages.mood": 1}


def test_key_names_are_not_in_the_facts_of_a_sensitive_dataset(tmp_path: Path) -> None:
    shard = build_rows(tmp_path, SHAREGPT, names_keys=False)
    assert shard.receipt.facts["unread_keys"] == {"": 6}
    assert list(describe_rows([shard.receipt])) == ["rows of chat: form sharegpt; other keys are not read"]


def test_a_row_with_another_form_than_its_file_is_bad(tmp_path: Path) -> None:
    rows = [*SHAREGPT, *ALPACA]
    with raises(BadRecordError, "rows.jsonl", "row 7", "other_form"):
        build_rows(tmp_path, rows)
    shard = build_rows(tmp_path / "dropped", rows, bad_rows="drop", budget=1.0)
    assert shard.receipt.ledger is not None
    assert dict(shard.receipt.ledger.dropped) == {"other_form": 1}
    # A range of rows has the form of the whole file, even if the first row of the range has a different form.
    path = write_rows(tmp_path / "rows.jsonl", rows)
    last = describe_source(path, rows=RowRange(7, None))
    with raises(BadRecordError, "row 7", "other_form"):
        build_shard(tmp_path / "range", last)


def test_two_files_may_have_different_forms(tmp_path: Path) -> None:
    files = [
        describe_source(write_rows(tmp_path / "a.jsonl", SHAREGPT), 0),
        describe_source(write_rows(tmp_path / "b.jsonl", ALPACA), 1),
    ]
    shard = build_shard(tmp_path, *files)
    assert [file["form"] for file in shard.receipt.facts["sources"]] == ["sharegpt", "alpaca"]
    assert sorted(decode_trained(shard.rows))[0] == f"3{END}"


def test_good_answers_are_selected_without_a_budget_and_a_pair_is_reported_as_such(tmp_path: Path) -> None:
    rows = [{"prompt": f"Q{n}", "completion": f"A{n}", "label": n != 1} for n in range(3)]
    fields = ConversationFields(format="kto")
    shard = build_rows(tmp_path, rows, fields=fields)
    assert shard.receipt.ledger is not None
    assert dict(shard.receipt.ledger.dropped) == {"rejected_answer": 1}
    assert sorted(decode_trained(shard.rows)) == [f"A0{END}", f"A2{END}"]
    with raises(BadRecordError, "row 1", "byte 0", "preference_pair", "stage: pairs"):
        build_rows(tmp_path / "pair", [{"prompt": "Q", "chosen": "A", "rejected": "B"}])
