"""Tests of the JSON lines of an RL blend, from source to manifest."""

import hashlib
import json
import math
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import orjson
import pytest
import zstandard

from dataprep_assets.errors import BadRecordError, CorruptSourceError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.blend.losses import find_shard_losses
from dataprep_assets.pipelines.blend.rl.rl_jsonl import build_rl_shards
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.blend.pipeline import finish_blend, run_blend, write_rows
from dataprep_assets_tests.pipelines.blend.rl.records import (
    check_rl_jsonl,
    declare_rl_blend,
    finish_rl_shards,
    make_rl_rows,
)


def test_every_row_is_a_line_of_its_split_in_order(tmp_path: Path) -> None:
    directory, _, _ = finish_blend(declare_rl_blend(tmp_path / "s"), tmp_path / "out", 2)
    manifest = json.loads((directory / "shards.json").read_bytes())
    for split, count in (("train", 11), ("val", 4), ("test", 3)):
        lines = b"".join(Path(path).read_bytes() for path in manifest[split])
        wanted = [{"messages": row["responses_create_params"]["input"]} for row in make_rl_rows(count)]
        assert lines == b"".join(orjson.dumps(row) + b"\n" for row in wanted)
    assert "ü".encode() in lines


def test_the_manifest_lists_every_shard_of_every_split(tmp_path: Path) -> None:
    """Upstream lists only the first shard (docs/migration/nemotron.md)."""
    directory, receipt, plan = finish_blend(declare_rl_blend(tmp_path / "s", num_shards=3), tmp_path / "out")
    manifest = json.loads((directory / "shards.json").read_bytes())
    assert {split: len(manifest[split]) for split in ("train", "val", "test")} == {"train": 3, "val": 3, "test": 3}
    assert manifest["records"] == {"train": 11, "val": 4, "test": 3}
    assert manifest["run_hash"] == plan.run_hash == receipt.facts["run_hash"]
    assert {p.rpartition("-")[0] for p in plan.partitions} == {"a__train", "a__val", "a__test"}


def test_an_empty_shard_is_not_listed(tmp_path: Path) -> None:
    directory, receipt, _ = finish_blend(declare_rl_blend(tmp_path / "s", num_shards=4), tmp_path / "out")
    manifest = json.loads((directory / "shards.json").read_bytes())
    assert len(manifest["test"]) == 3
    assert len(receipt.facts["empty"]) == 1


def test_the_digest_is_that_of_the_written_file(tmp_path: Path) -> None:
    """Upstream digests the uncompressed lines even for zstd (docs/formats/shard-plan.md#resume)."""
    blend = declare_rl_blend(tmp_path / "s", {"transforms": ["nemotron_rl"], "compression": "zstd"})
    finish_blend(blend, tmp_path / "out")
    plain = declare_rl_blend(tmp_path / "s", num_shards=2)
    finish_blend(plain, tmp_path / "plain")
    for work, other in zip(
        finish_rl_shards(blend, tmp_path / "out"), finish_rl_shards(plain, tmp_path / "plain"), strict=True
    ):
        path = work.store.directory(work.artifact) / "records.jsonl.zst"
        data = path.read_bytes()
        record = work.store.require(work.artifact).file("records.jsonl.zst")
        assert (record.bytes, record.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        lines = (other.store.directory(other.artifact) / "records.jsonl").read_bytes()
        assert zstandard.ZstdDecompressor().stream_reader(data).read() == lines


def test_records_that_a_transform_drops_are_counted_under_its_name(tmp_path: Path) -> None:
    rows = [{"a": 1}, {"b": 2}, {"a": 3, "b": 4}, {}]
    path = write_rows(tmp_path / "a.jsonl", rows)
    blend = declare_rl_blend(
        tmp_path / "s",
        {"transforms": [{"select": ["a"]}]},
        num_shards=1,
        blend={"train": [{"name": "a", "path": str(path)}]},
    )
    _, receipt, _ = finish_blend(blend, tmp_path / "out")
    assert receipt.ledger is not None
    assert (receipt.ledger.rows_in, receipt.ledger.documents) == (4, 2)
    assert receipt.ledger.dropped == {"left_out_by_select": 2}


@pytest.mark.parametrize(
    ("transform", "counts"),
    [
        ("nemotron_rl", {"answer": 2, "responses_create_params.temperature": 1, "uuid": 1}),
        ({"select": ["responses_create_params", "answer"]}, {}),
        ("passthrough", {}),
    ],
)
def test_fields_that_a_transform_drops_are_losses_of_their_file(
    tmp_path: Path, transform: str | dict[str, list[str]], counts: dict[str, int]
) -> None:
    question = {"input": [{"role": "user", "content": "why?"}]}
    rows = [
        {"responses_create_params": {**question, "temperature": 1.0}, "answer": "a", "uuid": "1"},
        {"responses_create_params": question, "answer": "b"},
    ]
    path = write_rows(tmp_path / "a.jsonl", rows)
    blend = declare_rl_blend(
        tmp_path / "s",
        {"transforms": [transform]},
        num_shards=1,
        blend={"train": [{"name": "a", "path": str(path)}]},
    )
    finish_blend(blend, tmp_path / "out")
    (work,) = finish_rl_shards(blend, tmp_path / "out")
    losses = [loss for loss in find_shard_losses(blend, [work.store.require(work.artifact)]) if loss.count]
    assert {loss.reason: loss.count for loss in losses} == counts
    assert all(
        (loss.action, loss.unit, loss.of, sum(loss.files.values())) == ("left out", "field", 0, loss.count)
        for loss in losses
    )


def test_bad_rows_stop_or_are_quarantined(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"a": 1}, b"{broken\n", b"\n", b"[1]\n", {"a": 2}, b'{"a": 1e400}\n'])
    changes = {"num_shards": 1, "blend": {"train": [{"name": "a", "path": str(path)}]}}
    options = {"transforms": ["passthrough"]}
    outcome, _ = run_blend(declare_rl_blend(tmp_path / "s", options, **changes), tmp_path / "out")
    (error,) = outcome.failed.values()
    assert isinstance(error, BadRecordError)
    assert "row 2, byte 9: bad_json" in str(error)
    blend = declare_rl_blend(tmp_path / "s", options, bad_records={"policy": "drop", "budget": 0.6}, **changes)
    _, receipt, _ = finish_blend(blend, tmp_path / "out")
    assert receipt.ledger is not None
    assert receipt.ledger.dropped == {"bad_json": 1, "not_an_object": 1, "not_json": 1}, "a JSON line cannot hold 1e400"
    (work,) = finish_rl_shards(blend, tmp_path / "out")
    lines = (work.store.directory(work.artifact) / "quarantine.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["row"] for line in lines] == [2, 4, 6]
    wide = declare_rl_blend(tmp_path / "s", options, bad_records={"policy": "drop", "budget": 0.9}, **changes)
    assert finish_blend(wide, tmp_path / "out")[1] == receipt
    tight = declare_rl_blend(tmp_path / "s", options, bad_records={"policy": "drop", "budget": 0.1}, **changes)
    outcome, _ = run_blend(tight, tmp_path / "out")
    refused = str(next(iter(outcome.failed.values())))
    assert "3 of 5 rows" in refused
    assert "`bad_records: {policy: drop, budget: 0.6}`" in refused


@pytest.mark.parametrize(
    ("data", "told"),
    [(b'{"messages": [{"ro', "bad_json"), (b"[1]\n[2]\n", "not_an_object"), (b'{"other": 1}\n', "no_prompt")],
)
def test_a_file_without_any_record_fails_under_both_policies(tmp_path: Path, data: bytes, told: str) -> None:
    write_rows(tmp_path / "rl" / "a.jsonl", make_rl_rows(40))
    (tmp_path / "rl" / "z.jsonl").write_bytes(data)
    changes = {"num_shards": 1, "blend": {"train": [{"name": "a", "path": str(tmp_path / "rl")}]}}
    for policy in ({}, {"bad_records": {"policy": "drop", "budget": 1}}):
        outcome, _ = run_blend(declare_rl_blend(tmp_path / "s", **policy, **changes), tmp_path / "out")
        (error,) = outcome.failed.values()
        assert isinstance(error, BadRecordError)
        assert_names(str(error), "z.jsonl")
        assert told in str(error)
        assert "policy: drop" not in str(error)


def test_receipts_count_dropped_rows_by_file(tmp_path: Path) -> None:
    write_rows(tmp_path / "rl" / "a.jsonl", make_rl_rows(4))
    write_rows(tmp_path / "rl" / "b.jsonl", [*make_rl_rows(4), b"broken\n", b"[1]\n", b"[2]\n"])
    changes = {"num_shards": 1, "blend": {"train": [{"name": "a", "path": str(tmp_path / "rl")}]}}
    blend = declare_rl_blend(tmp_path / "s", bad_records={"policy": "drop", "budget": 1}, **changes)
    finish_blend(blend, tmp_path / "out")
    (work,) = finish_rl_shards(blend, tmp_path / "out")
    facts = work.store.require(work.artifact).facts["sources"]
    assert [one.get("dropped", {}) for one in facts] == [{}, {"bad_json": 1, "not_an_object": 2}]


def test_a_number_that_json_cannot_hold_is_a_bad_row_and_is_not_changed(tmp_path: Path) -> None:
    write_rows(tmp_path / "a" / "a.jsonl", [{"n": 1 << 70}, {"n": -(1 << 63) - 1}, {"n": (1 << 64) - 1}, {"n": None}])
    write_rows(tmp_path / "a" / "b.parquet", [{"n": math.nan}])
    blend = declare_rl_blend(
        tmp_path / "s",
        {"transforms": ["passthrough"]},
        num_shards=1,
        blend={"train": [{"name": "a", "path": str(tmp_path / "a")}]},
        bad_records={"policy": "drop", "budget": 0.9},
    )
    directory, receipt, _ = finish_blend(blend, tmp_path / "out")
    assert (directory / "splits" / "train.jsonl").read_bytes() == b'{"n":18446744073709551615}\n{"n":null}\n'
    assert receipt.ledger is not None
    assert receipt.ledger.dropped == {"not_json": 3}
    (work,) = finish_rl_shards(blend, tmp_path / "out")
    assert all(finding.passed for finding in check_rl_jsonl(work).values())


def test_a_field_that_json_cannot_hold_is_named_without_its_value(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.parquet", [{"n": 1, "price": Decimal("1.5")}])
    changes = {"num_shards": 1, "blend": {"train": [{"name": "a", "path": str(path)}]}}
    outcome, _ = run_blend(
        declare_rl_blend(tmp_path / "s", {"transforms": ["passthrough"]}, **changes), tmp_path / "out"
    )
    (error,) = outcome.failed.values()
    assert_names(str(error), "a.parquet", 1, "not_json", 2)
    path = write_rows(tmp_path / "b.jsonl", [{"n": 1, "price": [1 << 70]}])
    changes = {"num_shards": 1, "blend": {"train": [{"name": "b", "path": str(path)}]}}
    outcome, _ = run_blend(
        declare_rl_blend(tmp_path / "t", {"transforms": ["passthrough"]}, **changes), tmp_path / "again"
    )
    (error,) = outcome.failed.values()
    assert_names(str(error), "b.jsonl", "row 1", "byte 0", "not_json", "field 2", "64-bit")


def test_a_placeholder_source_that_changes_during_the_build_stops_it(tmp_path: Path) -> None:
    def written(word: str) -> Path:
        row = {"prompt": [{"content": f"{word} question"}], "reward_model": {"ground_truth": word}}
        return write_rows(tmp_path / "questions.jsonl", [row])

    path = write_rows(tmp_path / "a.jsonl", [{"_hf_placeholder": {"row": 0}, "dataset": "d"}])
    sources = {"d": {"path": str(written("planned")), "kind": "dapo"}}
    blend = declare_rl_blend(
        tmp_path / "s",
        {"transforms": [{"resolve_hf_placeholders": {"sources": sources}}]},
        num_shards=1,
        blend={"train": [{"name": "a", "path": str(path)}]},
    )
    finish_blend(blend, tmp_path / "out")
    (work,) = finish_rl_shards(blend, tmp_path / "out")
    work = replace(work, store=LocalArtifacts(tmp_path / "again"))
    written("another")
    (outcome,) = build_rl_shards([work], workers=1)
    assert isinstance(outcome.error, CorruptSourceError)
    assert_names(str(outcome.error), "questions.jsonl", "sha256")


def test_a_function_that_raises_names_the_row_and_quotes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_raising.py").write_text("def f(record):\n    raise ValueError(record['secret'])\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = write_rows(tmp_path / "a.jsonl", [{"secret": "John Doe"}])
    blend = declare_rl_blend(
        tmp_path / "s",
        {"transforms": ["my_raising:f"]},
        num_shards=1,
        blend={"train": [{"name": "a", "path": str(path)}]},
    )
    outcome, _ = run_blend(blend, tmp_path / "out")
    (error,) = outcome.failed.values()
    assert "a.jsonl: row 1: my_raising:f raised ValueError (my_raising.py:2 in f)." in str(error)
    assert "John" not in str(error)


def test_placeholders_are_resolved_in_a_run(tmp_path: Path) -> None:
    source = write_rows(
        tmp_path / "math.jsonl", [{"prompt": [{"content": "1+1?"}], "reward_model": {"ground_truth": "2"}}]
    )
    name = "nano_v3_sft_profiled_skywork_no_omni"
    placeholder = {"dataset": name, "_hf_placeholder": {"row": 0, "question_template": "Solve {question}"}}
    lost = {"dataset": name, "_hf_placeholder": {"row": 5, "question_template": "Solve {question}"}}
    path = write_rows(tmp_path / "a.jsonl", [placeholder, {"messages": [1]}, lost])
    blend = declare_rl_blend(
        tmp_path / "s",
        {"transforms": [{"resolve_hf_placeholders": {"sources": {name: str(source)}}}]},
        num_shards=1,
        blend={"train": [{"name": "a", "path": str(path)}]},
    )
    directory, receipt, _ = finish_blend(blend, tmp_path / "out")
    file = json.loads((directory / "manifest.json").read_bytes())["train"]
    first, second = map(json.loads, Path(file).read_bytes().splitlines())
    assert first["responses_create_params"]["input"][0]["content"] == "Solve 1+1?"
    assert (first["expected_answer"], second) == ("2", {"messages": [1]})
    assert receipt.ledger is not None
    assert receipt.ledger.dropped == {"left_out_by_resolve_hf_placeholders": 1}


def test_a_record_without_a_prompt_is_counted_under_its_own_reason(tmp_path: Path) -> None:
    rows = [*make_rl_rows(3), {"id": 3}, {"responses_create_params": {"input": []}}]
    path = write_rows(tmp_path / "a.jsonl", rows)
    changes = {"num_shards": 1, "blend": {"train": [{"name": "a", "path": str(path)}]}}
    outcome, _ = run_blend(declare_rl_blend(tmp_path / "s", **changes), tmp_path / "out")
    told = str(next(iter(outcome.failed.values())))
    assert "a.jsonl: row 4, byte " in told
    assert "no_prompt: no prompt found" in told
    dropping = {"bad_records": {"policy": "drop", "budget": 0.5}, **changes}
    blend = declare_rl_blend(tmp_path / "s", **dropping)
    _, receipt, _ = finish_blend(blend, tmp_path / "out")
    assert receipt.ledger is not None
    assert (receipt.ledger.documents, receipt.ledger.dropped) == (3, {"no_prompt": 2})
    (work,) = finish_rl_shards(blend, tmp_path / "out")
    assert {name: found.summary for name, found in check_rl_jsonl(work).items() if not found.passed} == {}
    theirs = declare_rl_blend(tmp_path / "s", {"transforms": ["nemotron_rl"], "like": "nemotron"}, **changes)
    _, receipt, _ = finish_blend(theirs, tmp_path / "theirs")
    assert receipt.ledger is not None
    assert (receipt.ledger.documents, receipt.ledger.dropped) == (4, {"left_out_by_prompt": 1})
    (other,) = finish_rl_shards(theirs, tmp_path / "theirs")
    assert {name: found.summary for name, found in check_rl_jsonl(other).items() if not found.passed} == {}
    assert other.recipe.settings["rl.without_prompt"] == "left_out"
    finding = check_rl_jsonl(replace(other, rules=work.rules))["round_trip"]
    assert_names(f"{finding.summary} {finding.table}", 4, 3)


def test_a_changed_function_rebuilds_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_versioned.py").write_text("def f(record):\n    return {'v': 1}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    blend = declare_rl_blend(tmp_path / "s", {"transforms": ["my_versioned:f"]})
    _, receipt, _ = finish_blend(blend, tmp_path / "out")
    assert not run_blend(blend, tmp_path / "out")[0].built
    (tmp_path / "my_versioned.py").write_text("def f(record):\n    return {'v': 22}\n")
    directory, again, _ = finish_blend(blend, tmp_path / "out")
    assert again.partition != receipt.partition
    first = json.loads((directory / "manifest.json").read_bytes())["train"]
    assert Path(first).read_bytes().startswith(b'{"v":22}\n')


def test_rows_of_parquet_give_the_same_lines_as_json(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a", "tools": [{"name": "f", "parameters": {"x": {"type": "string"}}}], "answer": {"z": 1}},
        {"prompt": "b", "tools": [{"name": "g", "parameters": {"y": {"enum": ["1"]}}}]},
    ]
    shards = {}
    for suffix in ("jsonl", "parquet"):
        path = write_rows(tmp_path / suffix / f"a.{suffix}", rows)
        changes = {"num_shards": 1, "blend": {"train": [{"name": "a", "path": str(path)}]}}
        blend = declare_rl_blend(tmp_path / "s", {"transforms": ["passthrough"]}, **changes)
        run_blend(blend, tmp_path / suffix / "out")
        (work,) = finish_rl_shards(blend, tmp_path / suffix / "out")
        shards[suffix] = (work.store.directory(work.artifact) / "records.jsonl").read_bytes()
    assert shards["parquet"] == shards["jsonl"]
    assert [orjson.loads(line) for line in shards["jsonl"].splitlines()] == rows
