"""Every heavy step of every pipeline, and its checks, give the same bytes on a real Ray cluster as on processes."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from dataprep_assets.integrity.verify import read_receipts_below
from dataprep_assets_tests.curation.models_of_users import needs_fasttext, needs_onnx, train_fasttext, write_classifier
from dataprep_assets_tests.deploy.tiny_corpus import make_attributes, write_corpus

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


def build_on(folder: Path, engine: str, datasets: Sequence[str]) -> tuple[dict[str, bytes], list[str]]:
    """Return the locks of the datasets and the tasks submitted to Ray, and move the artifacts aside."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "dataprep_assets_tests.execution.engine_wings", str(folder), engine, *datasets]
    variables = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "DATAPREP_ENGINE")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=variables)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["failed"] == []
    (folder / "artifacts").rename(folder / f"artifacts of {engine}")
    return {path.stem: path.read_bytes() for path in folder.glob("*.lock")}, told["given"]


@pytest.fixture(autouse=True)
def needs_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("the extra `ray` is not installed")


def test_all_heavy_steps_and_their_checks_run_on_ray_with_the_same_bytes(tmp_path: Path) -> None:
    expected, nothing = build_on(tmp_path / "built", "processes", DATASETS)
    assert nothing == []
    found, given = build_on(tmp_path / "built", "ray", DATASETS)
    assert found == expected
    heavy = [r for _, r in read_receipts_below(tmp_path / "built" / "artifacts of ray") if r.artifact in ON_ENGINES]
    assert {receipt.artifact for receipt in heavy} >= ON_ENGINES - {"array_record_shards"}
    tasks = [f"{receipt.dataset} {receipt.partition}" for receipt in heavy]
    assert sorted(given) == sorted([*tasks, *(f"{task} (checks)" for task in tasks)])


@needs_fasttext
@needs_onnx
def test_taggers_with_models_run_on_ray_with_the_same_bytes(tmp_path: Path) -> None:
    declaration = tmp_path / "tiny.json"
    model = {"label": "__label__hq", "model": str(train_fasttext(tmp_path))}
    classifier = {"label": "high", "model": str(write_classifier(tmp_path / "classifier"))}
    attributes = make_attributes(
        write_corpus(tmp_path / "corpus", 4, documents=20),
        2,
        tag=["language", {"fasttext": {"column": "quality", **model}}, {"onnx": {"column": "good", **classifier}}],
        keep={"scored": "quality >= 0 and good > 0"},
    )
    declaration.write_text(json.dumps(attributes))
    expected, nothing = build_on(tmp_path / "built", "processes", [str(declaration)])
    assert nothing == []
    found, given = build_on(tmp_path / "built", "ray", [str(declaration)])
    assert found == expected
    assert {*expected} == {"tiny"}
    tags = [r for _, r in read_receipts_below(tmp_path / "built" / "artifacts of ray") if r.artifact == "tags"]
    assert len(tags) == 2
    tasks = [f"{declaration} {receipt.partition}" for receipt in tags]
    assert {*tasks, *(f"{task} (checks)" for task in tasks)} <= {*given}
