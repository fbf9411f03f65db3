"""Texts of messages are rewritten before anything else reads them, and only within the replaced spans."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from dataprep_assets.curation.rewriters.rewriting import RewritingError
from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.engine.trace.trace import trace_documents
from dataprep_assets.pipelines.blend.table.row_table import DOCUMENTS
from dataprep_assets.tokenization.chat import rewritten_messages
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.blend.pipeline import declare_pretraining, write_small_sources
from dataprep_assets_tests.pipelines.blend.ruled_blend import PLAIN, RuledBlend
from dataprep_assets_tests.pipelines.blend.screened_blend import TOOLS, make_answer, make_user

ADDRESS, PLACEHOLDER = "ada.brandvold@ostervag.org", "<EMAIL>"
STAGES = ("sft", "pairs")
REWRITE = [{"personal": {"emails": PLACEHOLDER}}]


def make_rows(stage: str) -> list[dict[str, Any]]:
    """Return rows with an address in each part of a conversation, and rows without one."""
    line = f"Write to {ADDRESS}  —  or sing, naïvely."
    call = {"type": "function", "function": {"name": "look", "arguments": {"query": line, "deep": [line]}}}
    answers = [
        [make_answer(line)],
        [make_answer("A bird.", reasoning_content=line)],
        [make_answer("", tool_calls=[call]), {"role": "tool", "content": line}, make_answer("A bird.")],
    ]
    rows: list[dict[str, Any]] = []
    for number in range(PLAIN):
        question = make_user(line if number == 3 else f"Who sings song {number}, and  why?")
        side = answers[number] if number < 3 else [make_answer(f"Bird {number}.")]
        tools = {"tools": TOOLS} if number == 2 else {}
        if stage == "sft":
            rows.append({"messages": [question, *side], **tools})
        else:
            # The other side also has the reasoning, because templates write the prompt differently without it.
            other = [{**message, "content": "No."} for message in side[-1:]]
            rows.append({"prompt": [question], "chosen": side, "rejected": other, **tools})
    return rows


def make_blend(folder: Path, stage: str, rewrite: Sequence[Any] = REWRITE) -> RuledBlend:
    made = RuledBlend(folder, stage, rewrite=rewrite)
    for name in ("tag", "tag_text", "keep", "drop"):
        made.changes.pop(name)
    made.write_rows(make_rows(stage))
    return made


def read_table(made: RuledBlend) -> list[dict[str, Any]]:
    folders = [made.store.directory(made.declaration.artifact(DOCUMENTS, name)) for name in made.partitions]
    rows = [row for folder in folders for row in pq.read_table(folder / "documents.parquet").to_pylist()]
    return sorted((row for row in rows if row["source"] == "first"), key=lambda row: (row["file"], row["row"]))


def read_shards(made: RuledBlend) -> dict[str, Any]:
    """Return the rows of the shards of the first dataset, by partition."""
    name = {"sft": "packed.parquet", "pairs": "pairs.parquet"}[made.stage]
    partitions = [partition for partition in made.partitions if partition.startswith("first")]
    return {partition: pq.read_table(made.store.directory(made.shard(partition)) / name) for partition in partitions}


@pytest.mark.parametrize("stage", STAGES)
def test_every_part_of_a_message_is_rewritten_and_nothing_else(tmp_path: Path, stage: str) -> None:
    made = make_blend(tmp_path / "rewritten", stage)
    views = ["messages"] if stage == "sft" else []
    made.changes["views"] = views
    made.run()
    # The same rows with placeholders in the sources give the same tokens.
    expected = make_blend(tmp_path / "expected", stage, rewrite=[])
    text = json.dumps(make_rows(stage), ensure_ascii=False).replace(ADDRESS, PLACEHOLDER)
    expected.write_rows(orjson.loads(text))
    expected.run()
    shards, expected_shards = read_shards(made), read_shards(expected)
    assert {name: table.to_pylist() for name, table in shards.items()} == {
        name: table.to_pylist() for name, table in expected_shards.items()
    }
    folders = [made.store.directory(made.declaration.artifact(view)) for view in views]
    contents = b"".join(path.read_bytes() for folder in folders for path in folder.rglob("*.jsonl"))
    assert ADDRESS.encode() not in contents
    assert (PLACEHOLDER.encode() in contents) == bool(views)
    assert made.failing() == {}
    assert made.run() == []


@pytest.mark.parametrize("stage", STAGES)
def test_the_table_and_the_trace_show_what_was_changed(tmp_path: Path, stage: str) -> None:
    made = make_blend(tmp_path, stage)
    made.run()
    counts = [row["rewritten_personal"] for row in read_table(made)]
    # A replaced address counts as its own length, which is longer than the placeholder.
    assert counts[:4] == [number * len(ADDRESS) for number in (1, 2 if stage == "pairs" else 1, 3, 1)]
    assert set(counts[4:]) == {0}
    tracer = made.dataset.tracer(made.store)
    (trace,) = trace_documents(tracer, file="f0.jsonl", row=1)
    source = tracer.source_text(trace)
    assert source is not None
    assert ADDRESS in source.text
    assert dict(source.changes) == {"personal": len(ADDRESS)}
    assert trace.text is not None
    assert ADDRESS not in trace.text
    spec = made.dataset.spec(DOCUMENTS)
    assert [name for name, one in spec.examine(made.store, made.partitions) if not one.passed] == []


def write_function(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> dict[str, Any]:
    """Write a function from text to text; return its rewriter."""
    module = f"rewriting_{folder.name}"
    (folder / f"{module}.py").write_text(f"def change(text):\n    {body}\n")
    monkeypatch.syspath_prepend(str(folder))
    return {"function": f"{module}:change", "version": "1"}


def test_a_row_whose_text_becomes_empty_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewriter = write_function(tmp_path, monkeypatch, "return '' if text == 'Bird 7.' else text")
    made = make_blend(tmp_path, "sft", [rewriter])
    made.run()
    assert made.dropped() == {"rewritten_empty": 1}
    assert [row["reason"] for row in read_table(made) if not row["kept"]] == ["rewritten_empty"]
    assert made.failing() == {}


def test_a_failing_function_names_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewriter = write_function(tmp_path, monkeypatch, "return text if text != 'Bird 7.' else 1 / 0")
    made = make_blend(tmp_path, "sft", [rewriter])
    with raises(RewritingError, "f0.jsonl: row 8", "'change'", "ZeroDivisionError"):
        made.run()


def test_another_rewriter_rebuilds_the_shards(tmp_path: Path) -> None:
    made = make_blend(tmp_path, "sft")
    made.run()
    made.changes["rewrite"] = [{"personal": {"emails": "<MAIL>"}}]
    rebuilt = {name.partition("/")[0] for name in made.run()}
    assert {"packed_sft", "documents", "blend"} <= rebuilt


def test_ids_are_computed_from_the_source_rows(tmp_path: Path) -> None:
    made = make_blend(tmp_path, "sft")
    made.run()
    ids = [row["id"] for row in read_table(made)]
    made.changes["rewrite"] = []
    made.changes["keep_fields"] = {}
    made.run()
    assert [row["id"] for row in read_table(made)] == ids


def test_stages_without_messages_refuse_rewriters(tmp_path: Path) -> None:
    made = RuledBlend(tmp_path / "rl", "rl", rewrite=REWRITE)
    with raises(ValidationError, "`rewrite`", "stage: rl"):
        _ = made.declaration
    write_small_sources(tmp_path)
    with raises(ValidationError, "`rewrite`", "stage: pretrain", "`TokenizedCorpus`"):
        declare_pretraining(tmp_path, rewrite=REWRITE)


def test_rewriters_that_cannot_be_found_are_reported(tmp_path: Path) -> None:
    made = make_blend(tmp_path, "sft", ["ftfi"])
    with raises(ValidationError, "rewrite", "ftfi", "ftfy"):
        _ = made.declaration
    made.changes["rewrite"] = [{"function": "nothing_here:change"}]
    remarks = [remark.sentence for remark in made.dataset.remarks() if remark.keys[:1] == ("rewrite",)]
    assert_names(remarks[0], "nothing_here")


def find_recall(made: RuledBlend) -> Finding:
    """Return the finding of the check of planted personal data."""
    return dict(made.dataset.spec(DOCUMENTS).examine(made.store, made.partitions))["personal_data_replaced"]


@pytest.mark.parametrize("stage", STAGES)
def test_planted_personal_data_is_replaced_in_every_place_of_a_message(
    tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_blend(tmp_path, stage, [{"personal": {"emails": PLACEHOLDER, "phones": "<PHONE>"}}])
    made.run()
    finding = find_recall(made)
    assert finding.passed
    assert {**finding.facts, "recall_emails": 1.0, "recall_phones": 1.0, "documents": 32} == finding.facts
    locations = {"content", "reasoning", "call arguments", "tool results"}
    assert {row["location"] for row in finding.table} == locations
    assert all(row["found"] == row["planted"] for row in finding.table if row["planted"])
    # If a part of the messages is not rewritten, the check names the place, and blocks the run.
    monkeypatch.setattr(rewritten_messages, "_KEYS", rewritten_messages._KEYS - {"reasoning_content"})
    finding = find_recall(made)
    assert not finding.passed
    assert not finding.warning
    assert {row["location"] for row in finding.table if row["found"] != row["planted"]} == {"reasoning"}
    assert DOCUMENTS in {spec.name for spec in made.dataset.spec("blend").inputs}
