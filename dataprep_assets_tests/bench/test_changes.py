"""The benches of a corpus that changes: seeded changes are judged, and the judge is not blind."""

from pathlib import Path

import pytest

from dataprep_assets.graph.status import Stale
from dataprep_assets.pipelines.corpus.manifest import load_manifest
from dataprep_assets_tests.bench import retract
from dataprep_assets_tests.bench.changes.__main__ import main
from dataprep_assets_tests.bench.changes.corpus import DATASET, Corpus
from dataprep_assets_tests.bench.changes.mutations import Happened
from dataprep_assets_tests.bench.changes.rounds import _other_bytes, _untrue
from dataprep_assets_tests.faults.edits import edit_ids
from dataprep_assets_tests.pipelines.corpus.pipeline import run_pipeline

pytestmark = pytest.mark.slow


def test_every_kind_of_change_rebuilds_what_it_decides_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--count", "12", "--seed", "7"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert printed.out.splitlines()[-2].split() == ["all", "12", *printed.out.splitlines()[-2].split()[2:-1], "0"]


def test_other_bytes_and_an_untrue_reason_are_found(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, seed=0)
    assert run_pipeline(corpus.declared(), corpus.root).failed == {}
    plan = load_manifest(corpus.declared(), corpus.store).plan
    assert list(_other_bytes(corpus)) == []
    tokens = f"{DATASET}/token_bins/{next(iter(plan))}/tokens.bin"
    edit_ids(corpus.root / tokens, lambda ids: ids.__setitem__(0, 1))
    assert list(_other_bytes(corpus)) == [f"other than from scratch: {tokens}"]
    told = Stale(name=f"{DATASET}/manifest", kind="settings changed", reason="shards.count was 3, is 4 now")
    happened = Happened("added a file", {"manifest": ("input changed", "1 file added")})
    assert len(list(_untrue({"manifest": told}, happened))) == 1
    inherited = Stale(name="x", kind="input changed", reason="its input y is stale", provisional=True)
    assert len(list(_untrue({"x": inherited}, happened))) == 1


def test_retracting_of_a_few_thousand_documents_leaves_no_trace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retract, "TARGET_SECONDS", 600.0)  # nothing about time here
    assert retract.main(["--documents", "1600", "--retracted", "100"]) == 0
    printed = capsys.readouterr().out
    assert "only the 8 shards that held them rebuilt: True" in printed
    assert "traces: 0 in" in printed
