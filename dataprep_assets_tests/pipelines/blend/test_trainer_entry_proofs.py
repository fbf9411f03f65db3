"""The proof on what a trainer reads first fails when it lists too much or too little."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.pipelines.blend.trainer_entry_proofs import entry_lists_every_shard
from dataprep_assets_tests.pipelines.blend.finished_blend import FinishedBlend, finish
from dataprep_assets_tests.pipelines.blend.rl.records import rl_blend


def _edit(good: FinishedBlend, change: Callable[[dict[str, Any]], None]) -> None:
    path = good.directory / "blend.json"
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda v: v.update(test=[]), "empty list"),
        (lambda v: v["train"].extend(["1", v["train"][1] + "9"]), "not all there"),
        (lambda v: v["train"].extend(["1", "/elsewhere/shard_000000"]), "not all there"),
        (lambda v: v["train"].extend(v["train"][:2]), "listed in train already"),
        (lambda v: v["valid"].extend(v["train"][:2]), "listed in train already"),
        (lambda v: v.update(train=v["train"][2:]), "train lists 3 shards, 4 are used"),
    ],
)
def test_a_blend_json_that_lists_too_much_or_too_little_fails(
    good: FinishedBlend, change: Callable[[dict[str, Any]], None], complaint: str
) -> None:
    _edit(good, change)
    finding = entry_lists_every_shard(good.blend, good.directory, good.receipt)
    assert not finding.passed
    assert complaint in finding.summary


def test_an_rl_manifest_lists_its_shards(tmp_path: Path) -> None:
    good = finish(rl_blend(tmp_path / "s"), tmp_path / "out")
    assert entry_lists_every_shard(good.blend, good.directory, good.receipt).passed
    path = good.directory / "manifest.json"
    whole = json.loads(path.read_bytes())
    for change, complaint in (
        ({"train": whole["train"][:1]}, "train lists 1 files, expected 2"),
        ({"val": [*whole["val"], "/gone.jsonl"]}, "val lists 3 files"),
        ({"run_hash": "0"}, "run hash 0"),
    ):
        path.write_text(json.dumps(whole | change))
        finding = entry_lists_every_shard(good.blend, good.directory, good.receipt)
        assert not finding.passed
        assert complaint in finding.summary
