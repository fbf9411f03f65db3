"""The benchmark runs, its contenders give the same stream, and its judge finds mistakes. Timing is not tested."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.samples import SAMPLE
from dataprep_assets_tests.tools.bench import pretrain
from dataprep_assets_tests.tools.bench.runner import CommandFailedError, measure
from dataprep_assets_tests.tools.bench.verdict import Judge


@pytest.mark.slow
def test_contenders_give_the_same_stream_and_the_table_has_a_row_for_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs the usual script, the corpus pipeline, and a blend of the same texts as JSON lines and as Parquet."""
    arguments = [
        "--data",
        str(SAMPLE / "data" / "train"),
        "--tokenizer",
        str(SAMPLE / "tokenizer"),
        "--runs",
        "1",
        "--repeat",
        "1",
        "--workers",
        "1",
        "--only",
        "a,d,e,f,floor",
        "--scratch",
        str(tmp_path),
    ]
    code = pretrain.main([*arguments, "--json", str(tmp_path / "bench.json")])
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "bench.json").read_text())
    assert code == 0, printed
    assert list(found["contenders"]) == ["a", "d", "e", "f", "floor"]
    assert {c["tokens"] for c in found["contenders"].values()} == {found["facts"]["tokens"]}
    assert found["facts"]["tokens"] > 100_000
    assert all(c["faults"] == [] for c in found["contenders"].values())
    assert all(c["full"][0]["cpu"] > 0 and c["peak_rss"] > 0 for c in found["contenders"].values())
    for row in ("(a) research script", "(d) ours", "(e) ours, a blend", "(f) a blend, Parquet", "floor: no tokenizing"):
        assert f"\n{row}" in printed
    assert printed.count("agree") == 4
    assert len(found["targets"]) == 8
    assert len(found["blends"]) == 16


def _stream(out: Path, ids: list[int]) -> Path:
    out.mkdir()
    np.array(ids, np.uint16).tofile(out / "all.bin")
    (out / "streams.json").write_text(json.dumps([[str(out / "all.bin"), [0, 1, 0]]]))
    return out


def test_judge_names_a_wrong_id_and_a_wrong_count(tmp_path: Path) -> None:
    judge = Judge([2, 1], "uint16")
    assert judge.faults("a", _stream(tmp_path / "a", [1, 2, 3, 1, 2]), ids=True) == []
    assert judge.faults("d", _stream(tmp_path / "same", [1, 2, 3, 1, 2]), ids=True) == []
    (wrong_id,) = judge.faults("d", _stream(tmp_path / "id", [1, 2, 4, 1, 2]), ids=True)
    (wrong_count,) = judge.faults("d", _stream(tmp_path / "count", [1, 2, 3, 1]), ids=True)
    assert "ids of file 1 differ from those of (a)" in wrong_id
    assert "4 tokens, expected 5" in wrong_count


def test_runner_counts_the_cpu_of_grandchildren_and_orphans() -> None:
    burn = "import time; [None for _ in iter(lambda: time.process_time() < 0.4, False)]"
    waited = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {burn!r}])"
    for code in (burn, waited, orphan):
        assert measure([sys.executable, "-c", code]).cpu > 0.35
    with raises(CommandFailedError, 3):
        measure([sys.executable, "-c", "raise SystemExit(3)"])
