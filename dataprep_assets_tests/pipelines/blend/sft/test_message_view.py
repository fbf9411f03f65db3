"""The view `messages` has exactly the run's conversations, with equal values through `datasets` and in JSON lines."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep_assets.engine.trace.trace import trace_documents
from dataprep_assets.errors import FormatError
from dataprep_assets.formats.conversations import message_rows
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.blend.dagster_blend import (
    REFERENCE,
    Blend,
    find_failed,
    open_blend,
    read_evaluations,
)
from dataprep_assets_tests.pipelines.blend.pipeline import write_rows
from dataprep_assets_tests.pipelines.blend.sft.equal_conversations import CALL, EQUAL, TEMPLATE, TOOL, make_conversation
from dataprep_assets_tests.project import failure_of
from dataprep_assets_tests.readers import hf_datasets, trl
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer

QUESTION, ANSWER = {"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ann."}
ARGUMENTS: dict[str, Any] = {
    "none": None,
    "nested": {"a": [1, {"b": None}], "é": "灯"},
    "big": 2**70,
    "float": 0.1,
    "flag": False,
    "empty": {},
}
OTHER_TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"properties": {"a": {"enum": [1, "x", None]}}}},
}


def make_call(arguments: Any, **keys: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "look", "arguments": arguments}, **keys}


def make_called_messages(*calls: dict[str, Any]) -> list[dict[str, Any]]:
    return [QUESTION, {"role": "assistant", "content": "", "tool_calls": list(calls)}]


HARD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "arguments of any type": (
        {"messages": make_called_messages(make_call(ARGUMENTS)), "tools": [OTHER_TOOL]},
        {"messages": make_called_messages(make_call(ARGUMENTS)), "tools": [OTHER_TOOL]},
    ),
    "arguments and tools as text, with an id": (
        {"messages": make_called_messages(make_call('{"x": [1, null]}', id="abc")), "tools": json.dumps([OTHER_TOOL])},
        {"messages": make_called_messages(make_call({"x": [1, None]}, id="abc")), "tools": [OTHER_TOOL]},
    ),
    "two calls, one with another key": (
        {"messages": make_called_messages(make_call({"y": 1}), make_call({}, index=3)), "tools": [OTHER_TOOL]},
        {"messages": make_called_messages(make_call({"y": 1}), make_call({}, index=3)), "tools": [OTHER_TOOL]},
    ),
    "null keys, and messages after the last answer": (
        {"messages": [QUESTION, {**ANSWER, "tool_calls": None, "name": None}, QUESTION], "tools": None},
        {"messages": [QUESTION, ANSWER]},
    ),
    "marks of what is trained, and other keys": (
        {"messages": [QUESTION, {**ANSWER, "train": False}, QUESTION, {**ANSWER, "weight": 1, "note": [1, {}]}]},
        {"messages": [QUESTION, {**ANSWER, "train": False}, QUESTION, {**ANSWER, "weight": 1, "note": [1, {}]}]},
    ),
    "ShareGPT is another file": ({"messages": [QUESTION, ANSWER]}, {"messages": [QUESTION, ANSWER]}),
}
BAD: list[dict[str, Any]] = [
    {"messages": [QUESTION]},
    {"messages": [QUESTION, {"role": "assistant", "content": ""}]},
    {"text": "no conversation"},
]
ROWS = [*map(make_conversation, range(EQUAL)), *BAD, *(row for row, _ in HARD.values())]


def declare_chats(home: Path, rows: list[dict[str, Any]], **changes: Any) -> BlendDeclaration:
    share = [
        {"conversations": [{"from": "human", "value": f"Hello {n}?"}, {"from": "gpt", "value": "Hi."}]}
        for n in range(9)
    ]
    write_rows(home / "rows" / "chat.jsonl", rows)
    write_rows(home / "rows" / "share.jsonl", share)
    datasets = [{"name": "chat", "path": str(home / "rows")}]
    return BlendDeclaration.model_validate(
        {
            "dataset": "chats",
            "stage": "sft",
            "blend": {"datasets": datasets},
            "tokenizer": {"path": write_chat_tokenizer(home / "tokenizer").directory, "engine": "tokenizers"},
            "sft": {"pack_size": 2048, "chat_template": TEMPLATE},
            "bad_records": {"policy": "drop", "budget": 0.1},
            "num_shards": 3,
            "held_out": {"valid": 1},
            "views": ["messages", "sft_rows"],
            **changes,
        }
    )


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blend]:
    home = tmp_path_factory.mktemp("messages")
    with open_blend(declare_chats(home, ROWS), home / "artifacts") as made:
        outcomes = made.run_all()
        assert all(outcome.success for outcome in outcomes), failure_of(outcomes[-1])
        assert find_failed(read_evaluations(outcomes)) == REFERENCE
        yield made


def read_lines(made: Blend, split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in open(made.directory("messages") / f"{split}.jsonl", "rb")]


def group_by_source(rows: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    found = {(row["extra_info"]["file"], row["extra_info"]["row"]): row for row in rows}
    assert len(found) == len(rows)
    return found


def test_the_view_has_each_conversation_of_the_run_once(chats: Blend) -> None:
    rows = group_by_source([*read_lines(chats, "train"), *read_lines(chats, "validation")])
    sources = {("chat.jsonl", number) for number in range(1, len(ROWS) + 1)}
    bad = {("chat.jsonl", number) for number in range(EQUAL + 1, EQUAL + 1 + len(BAD))}
    assert rows.keys() == sources - bad | {("share.jsonl", number) for number in range(1, 10)}
    for number in range(EQUAL):
        row = rows["chat.jsonl", number + 1]
        assert {key: value for key, value in row.items() if key != "extra_info"} == ROWS[number]
    for number, (name, (_, wanted)) in enumerate(HARD.items(), EQUAL + len(BAD) + 1):
        row = rows["chat.jsonl", number]
        assert {key: value for key, value in row.items() if key != "extra_info"} == wanted, name
    assert rows["share.jsonl", 4]["messages"][0] == {"role": "user", "content": "Hello 3?"}


def test_rows_are_in_the_order_of_their_sources(chats: Blend) -> None:
    for split in ("train", "validation"):
        for path in sorted((chats.directory("messages") / split).glob("*.parquet")):
            rows = [row["extra_info"] for row in pq.read_table(path).to_pylist()]
            assert rows == sorted(rows, key=lambda row: (row["file"], row["row"]))


def remove_nulls(row: dict[str, Any]) -> dict[str, Any]:
    """Return a Parquet row as a trainer uses it: with parsed texts and without null keys."""
    messages = []
    for message in row["messages"]:
        values = {key: value for key, value in message.items() if value is not None}
        for tool_call in values.get("tool_calls", ()):
            tool_call["function"]["arguments"] = json.loads(tool_call["function"]["arguments"])
            if tool_call["id"] is None:
                del tool_call["id"]
        values |= json.loads(values.pop("other_keys", "{}"))
        messages.append(values)
    found = {"messages": messages, "extra_info": {k: v for k, v in row["extra_info"].items() if v is not None}}
    return found | ({} if row["tools"] is None else {"tools": json.loads(row["tools"])})


@pytest.mark.slow
def test_values_are_read_back_equal_through_datasets(chats: Blend, tmp_path: Path) -> None:
    found = hf_datasets.all_rows(chats.directory("messages"), tmp_path)
    assert list(found) == ["train", "validation"]
    for split, rows in found.items():
        assert [remove_nulls(row) for row in rows] == read_lines(chats, split)


@pytest.mark.slow
def test_trl_renders_the_tokens_and_labels_of_the_run(chats: Blend) -> None:
    """TRL's own preparation of the view's messages gives the rows of `sft_rows`, for all conversations of equal
    kinds.
    """
    tracer = chats.component.tracer(chats.store)
    view_rows = trl.view_rows(chats.directory("sft_rows"), "train")
    tokens = {}
    for number, row in enumerate(view_rows):
        (one,) = trace_documents(tracer, view="sft_rows", split="train", sample=number, decode=False)
        tokens[one.file, one.row] = (row["input_ids"], row["labels"])
    equal = [row for row in read_lines(chats, "train") if row["extra_info"]["row"] <= EQUAL]
    own = trl.own_rows(chats.declaration.required_tokenizer.path, TEMPLATE, equal)  # type: ignore[arg-type]
    assert len(own) > EQUAL // 2
    for row, prepared in zip(equal, own, strict=True):
        key = (row["extra_info"]["file"], row["extra_info"]["row"])
        assert (prepared["input_ids"], prepared["labels"]) == tokens[key]


def test_a_row_is_traced_to_its_source_and_back(chats: Blend) -> None:
    tracer = chats.component.tracer(chats.store)
    for split, rows in (("train", read_lines(chats, "train")), ("valid", read_lines(chats, "validation"))):
        for number in range(0, len(rows), 25):
            (found,) = trace_documents(tracer, view="messages", split=split, sample=number)
            info = rows[number]["extra_info"]
            assert (found.file, found.row) == (info["file"], info["row"])
            (place,) = (p for p in found.places if p.artifact == "chats/messages")
            assert place.at == {"sample": number}
            assert (chats.directory("messages") / place.file).exists()
            assert "tokens [0, 0)" not in "".join(found.lines())


def test_a_different_packing_of_the_same_conversations_changes_no_byte(tmp_path: Path) -> None:
    rows = ROWS[:30]
    files = []
    for algorithm in ("first_fit_shuffle", "best_fit"):
        sft = {"pack_size": 512, "chat_template": TEMPLATE, "algorithm": algorithm}
        home = tmp_path / algorithm
        with open_blend(declare_chats(home, rows, sft=sft, num_shards=2), home / "artifacts") as made:
            assert all(outcome.success for outcome in made.run_all())
            folder = made.directory("messages")
            files.append({p.relative_to(folder): p.read_bytes() for p in folder.rglob("*.parquet")})
            assert not (folder / "parts").exists()
    assert files[0] == files[1]


def test_a_view_without_calls_has_no_column_for_them(tmp_path: Path) -> None:
    """Templates such as Llama 3's treat a message with the key `tool_calls` as a call, even if it is null."""
    rows = [row for row in ROWS[:20] if "tools" not in row]
    with open_blend(declare_chats(tmp_path, rows, num_shards=2), tmp_path / "artifacts") as made:
        assert all(outcome.success for outcome in made.run_all())
        for path in made.directory("messages").rglob("*.parquet"):
            (message,) = (pq.read_schema(path).field("messages").type.value_type,)
            assert [field.name for field in message] == ["role", "content"]


def test_content_that_is_not_text_is_refused() -> None:
    parts = [{"type": "text", "text": "x"}]
    with raises(FormatError, "a.jsonl", 7, "message 0", "join_text_parts", "messages"):
        message_rows.build_row([{"role": "user", "content": parts}], None, {}, "a.jsonl", 7)


def test_a_call_without_a_function_gets_one() -> None:
    row = message_rows.build_row(make_called_messages({"name": "look", "arguments": {"y": 1}}), None, {}, "a.jsonl", 7)
    assert row["messages"] == make_called_messages(make_call({"y": 1}))


def test_keys_of_rows_and_kwargs_are_kept(tmp_path: Path) -> None:
    row = message_rows.build_row([QUESTION, ANSWER], [TOOL], {"enable_thinking": False}, "a.jsonl", 7)
    call_row = message_rows.build_row(make_called_messages(CALL, {**CALL, "id": 4}), None, {}, "a.jsonl", 8)
    message_rows.write_files(tmp_path / "a.jsonl", tmp_path / "a.parquet", [row, call_row])
    assert list(message_rows.read_parquet(tmp_path / "a.parquet")) == [row, call_row]
    assert list(message_rows.read_lines(tmp_path / "a.jsonl")) == [row, call_row]
    first = pq.read_table(tmp_path / "a.parquet").to_pylist()[0]
    assert json.loads(first["extra_info"]["chat_template_kwargs"]) == {"enable_thinking": False}
    assert pa.types.is_string(pq.read_schema(tmp_path / "a.parquet").field("tools").type)


@pytest.mark.parametrize("calls", [0, 1])
def test_parquet_is_written_in_the_first_pass_unless_a_late_row_has_a_further_key(calls: int, tmp_path: Path) -> None:
    row = message_rows.build_row([QUESTION, ANSWER], None, {}, "a.jsonl", 7)
    call_row = message_rows.build_row(make_called_messages(CALL), None, {}, "a.jsonl", 8)
    rows = [*[row] * 1000, *[call_row] * calls, row]
    keys = message_rows.write_files(tmp_path / "a.jsonl", tmp_path / "a.parquet", rows)
    assert keys.message == {"role", "content", *["tool_calls"] * calls}
    assert list(message_rows.read_lines(tmp_path / "a.jsonl")) == rows
    assert (tmp_path / "a.parquet").exists() == (not calls)
    message_rows.write_parquet(tmp_path / "b.parquet", iter(rows), keys.build_schema())
    assert list(message_rows.read_parquet(tmp_path / "b.parquet")) == rows
    if not calls:
        assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert not list(tmp_path.glob("*.draft"))
