"""The packing benchmark runs, and its table has every algorithm. Timing is not tested."""

import json
from pathlib import Path

import numpy as np
import pytest

from dataprep_assets.packing.algorithms import ALGORITHMS, pack_items
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.packing.excerpt import to_lists
from dataprep_assets_tests.packing.lengths import make_realistic
from dataprep_assets_tests.tools.bench import packing


def test_the_benchmark_prints_every_algorithm_for_every_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "bench.json"
    code = packing.main(
        ["--counts", "300,700", "--runs", "1", "--naive-runs", "1", "--naive-most", "300", "--json", str(report)]
    )
    printed = capsys.readouterr().out
    found = json.loads(report.read_text())["results"]
    assert code == 0, printed
    names = [*ALGORITHMS, packing.CUT]
    assert [(r["count"], r["algorithm"]) for r in found] == [
        *[(300, name) for name in [packing.BASELINE, *names]],
        *[(700, name) for name in names],
    ]
    assert [r["ratio"] is None for r in found] == [True, *[False] * len(names), *[True] * len(names)]
    assert all(r["rate"] > 0 and 0 < r["fill"] <= 1 for r in found)
    assert all(printed.count(f"\n{name} ") == 2 for name in names)


def test_a_wrong_bin_fails_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = make_realistic(50, capacity=1024)
    right = packing.naive_first_fit_decreasing(lengths.tolist(), 1024)
    bins = pack_items(lengths, 1024, "first_fit_decreasing")
    assert right == to_lists(bins)
    monkeypatch.setattr(packing, "naive_first_fit_decreasing", lambda *_: right[::-1])
    with raises(SystemExit, "scan"):
        packing.compare(np.asarray(lengths), 1024, runs=1, naive_runs=1, say=lambda _: None)
