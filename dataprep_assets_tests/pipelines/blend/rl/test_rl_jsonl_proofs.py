"""Every proof on a shard of RL data passes on a good one, and fails on each defect that it is there for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from dataprep_assets.pipelines.blend.rl import rl_jsonl_proofs as proofs
from dataprep_assets.pipelines.blend.rl.shard import RlShard
from dataprep_assets_tests.pipelines.blend.pipeline import finished, write_rows
from dataprep_assets_tests.pipelines.blend.rl.records import finished_rl_shards, rl_blend, rl_rows


@pytest.fixture(params=["none", "zstd"])
def work(tmp_path: Path, request: pytest.FixtureRequest) -> RlShard:
    blend = rl_blend(tmp_path / "s", {"transforms": ["nemotron_rl"], "compression": request.param}, num_shards=1)
    finished(blend, tmp_path / "out")
    return finished_rl_shards(blend, tmp_path / "out")[0]


def _rewrite(work: RlShard, change: Any) -> None:
    path = work.store.directory(work.artifact) / work.file_name
    packed = work.compression == "zstd"
    data = path.read_bytes()
    data = zstandard.ZstdDecompressor().stream_reader(data).read() if packed else data
    path.unlink()
    path.write_bytes(zstandard.compress(change(data)) if packed else change(data))


def test_a_good_shard_passes_every_proof(work: RlShard) -> None:
    found = proofs.prove_rl_jsonl(work)
    assert set(found) == {proof.name for proof in proofs.RL_JSONL_PROOFS}
    assert {name: f.summary for name, f in found.items() if not f.passed} == {}
    assert found["round_trip"].facts["documents_compared"] == 11


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda data: data[:-1], "no line end"),
        (lambda data: data + b"[1]\n", "not an object"),
        (lambda data: data + b"{broken\n", "not JSON"),
        (lambda data: data + b'{"a": 1}\n', "not written compactly"),
        (lambda data: data + b'{"a":1}\n', "12 lines, the receipt says 11"),
        (lambda data: data[data.index(b"\n") + 1 :], "10 lines, the receipt says 11"),
    ],
)
def test_lines_that_are_no_records_are_found(work: RlShard, change: Any, complaint: str) -> None:
    _rewrite(work, change)
    found = proofs.prove_rl_jsonl(work)
    assert not found["files_intact"].passed
    assert not found["lines_are_records"].passed
    assert complaint in " ".join([found["lines_are_records"].summary, *map(str, found["lines_are_records"].table)])


def test_an_unresolved_placeholder_is_found(work: RlShard) -> None:
    _rewrite(work, lambda data: b'{"messages":[1],"_hf_placeholder":{"row":1}}\n' + data[data.index(b"\n") + 1 :])
    resolving = replace(work, transforms=({"resolve_hf_placeholders": {"sources": {"x": "y"}}},))
    receipt, directory = work.store.require(work.artifact), work.store.local(work.artifact)
    assert proofs.lines_are_records(directory, receipt, work).passed
    finding = proofs.lines_are_records(directory, receipt, resolving)
    assert not finding.passed
    assert "line 1: an unresolved placeholder" in finding.summary


def test_a_line_that_the_transforms_do_not_make_is_found(work: RlShard) -> None:
    _rewrite(work, lambda data: data.replace(b"Frage 3", b"Frage 4"))
    finding = proofs.prove_rl_jsonl(work)["round_trip"]
    assert not finding.passed
    assert "line 4, from train-0.jsonl row 4" in finding.summary
    assert "Frage" not in finding.summary


def test_a_source_that_changed_is_found(work: RlShard) -> None:
    write_rows(work.files[0].path, rl_rows(12))
    assert not proofs.prove_rl_jsonl(work)["round_trip"].passed


@pytest.mark.parametrize("change", [{"rows_in": 12}, {"documents": 10}, {"rows_in": 12, "dropped": {"bad_json": 1}}])
def test_books_that_do_not_balance_are_found(work: RlShard, change: dict[str, Any]) -> None:
    receipt, directory = work.store.require(work.artifact), work.store.local(work.artifact)
    assert receipt.ledger is not None
    assert proofs.ledger_balances(directory, receipt).passed
    broken = replace(receipt, ledger=replace(receipt.ledger, **change))
    assert not proofs.ledger_balances(directory, broken).passed


def test_a_missing_shard_fails_them_all(work: RlShard) -> None:
    (work.store.directory(work.artifact) / "receipt.json").unlink()
    assert not any(f.passed for f in proofs.prove_rl_jsonl(work).values())
