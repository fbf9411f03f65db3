"""Every heavy step of every pipeline, and its checks, give the same bytes on a real Ray cluster as on processes."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dataprep_assets.integrity.verify import read_receipts_below

pytestmark = pytest.mark.slow
DATASETS = [
    "sample_notes",
    "sample_release",
    "sample_blend_pretrain",
    "sample_blend_sft",
    "sample_blend_pairs",
    "sample_blend_rl",
]
ON_ENGINES = {
    "token_bins",
    "npy_shards",
    "packed_cohorts",
    "tfrecord_shards",
    "array_record_shards",
    "indexed_bins",
    "packed_sft",
    "pairs",
    "rl_jsonl",
}


def build_on(folder: Path, engine: str) -> tuple[dict[str, bytes], list[str]]:
    """Return the locks of the datasets and the tasks submitted to Ray, and move the artifacts aside."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "dataprep_assets_tests.execution.engine_wings", str(folder), engine, *DATASETS]
    variables = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "DATAPREP_ENGINE")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=variables)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["failed"] == []
    (folder / "artifacts").rename(folder / f"artifacts of {engine}")
    return {name: (folder / f"{name}.lock").read_bytes() for name in DATASETS}, told["given"]


def test_all_heavy_steps_and_their_checks_run_on_ray_with_the_same_bytes(tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("the extra `ray` is not installed")
    expected, nothing = build_on(tmp_path / "built", "processes")
    assert nothing == []
    found, given = build_on(tmp_path / "built", "ray")
    assert found == expected
    heavy = [r for _, r in read_receipts_below(tmp_path / "built" / "artifacts of ray") if r.artifact in ON_ENGINES]
    assert {receipt.artifact for receipt in heavy} >= ON_ENGINES - {"array_record_shards"}
    tasks = [f"{receipt.dataset} {receipt.partition}" for receipt in heavy]
    assert sorted(given) == sorted([*tasks, *(f"{task} (checks)" for task in tasks)])
