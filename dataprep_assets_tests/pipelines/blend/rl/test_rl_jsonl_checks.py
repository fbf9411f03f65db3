"""Every check of a shard of RL data passes on a good shard and fails on each of its defects."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from dataprep_assets.pipelines.blend.rl.rl_jsonl import RL_JSONL_CHECKS, OpenedRecords, ledger_balances
from dataprep_assets.pipelines.blend.rl.shard import RlShard
from dataprep_assets_tests.pipelines.blend.pipeline import finish_blend, write_rows
from dataprep_assets_tests.pipelines.blend.rl.records import (
    check_rl_jsonl,
    declare_rl_blend,
    finish_rl_shards,
    make_rl_rows,
)


@pytest.fixture(params=["none", "zstd"])
def work(tmp_path: Path, request: pytest.FixtureRequest) -> RlShard:
    blend = declare_rl_blend(
        tmp_path / "s", {"transforms": ["nemotron_rl"], "compression": request.param}, num_shards=1
    )
    finish_blend(blend, tmp_path / "out")
    return finish_rl_shards(blend, tmp_path / "out")[0]


def _rewrite(work: RlShard, change: Any) -> None:
    path = work.store.directory(work.artifact) / work.file_name
    packed = work.compression == "zstd"
    data = path.read_bytes()
    data = zstandard.ZstdDecompressor().stream_reader(data).read() if packed else data
    path.unlink()
    path.write_bytes(zstandard.compress(change(data)) if packed else change(data))


def test_a_good_shard_passes_every_check(work: RlShard) -> None:
    found = check_rl_jsonl(work)
    assert set(found) == {check.name for check in RL_JSONL_CHECKS}
    assert {name: f.summary for name, f in found.items() if not f.passed} == {}
    assert found["round_trip"].facts["documents_compared"] == 11


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda data: data[:-1], "no line end"),
        (lambda data: data + b"[1]\n", "12 lines, but the source gives 11"),
        (lambda data: data + b'{"a":1}\n', "12 lines, but the source gives 11"),
        (lambda data: data[data.index(b"\n") + 1 :], "10 lines, but the source gives 11"),
        (lambda data: data.replace(b":", b": ", 1), "line 1, from train-0.jsonl row 1"),
    ],
)
def test_lines_that_are_not_records_are_found(work: RlShard, change: Any, complaint: str) -> None:
    _rewrite(work, change)
    found = check_rl_jsonl(work)
    assert not found["files_intact"].passed
    assert not found["round_trip"].passed
    assert complaint in " ".join([found["round_trip"].summary, *map(str, found["round_trip"].table)])


def test_a_line_that_the_transforms_do_not_produce_is_found(work: RlShard) -> None:
    _rewrite(work, lambda data: data.replace(b"Frage 3", b"Frage 4"))
    finding = check_rl_jsonl(work)["round_trip"]
    assert not finding.passed
    assert "line 4, from train-0.jsonl row 4" in finding.summary
    assert "Frage" not in finding.summary


def test_a_changed_source_is_found(work: RlShard) -> None:
    write_rows(work.files[0].path, make_rl_rows(12))
    assert not check_rl_jsonl(work)["round_trip"].passed


@pytest.mark.parametrize("change", [{"rows_in": 12}, {"documents": 10}, {"rows_in": 12, "dropped": {"bad_json": 1}}])
def test_an_unbalanced_ledger_is_found(work: RlShard, change: dict[str, Any]) -> None:
    opened = OpenedRecords.open(work)
    assert opened.receipt.ledger is not None
    assert ledger_balances(opened).passed
    opened.__dict__["receipt"] = replace(opened.receipt, ledger=replace(opened.receipt.ledger, **change))
    assert not ledger_balances(opened).passed


def test_a_missing_shard_fails_every_check(work: RlShard) -> None:
    (work.store.directory(work.artifact) / "receipt.json").unlink()
    assert not any(f.passed for f in check_rl_jsonl(work).values())
