"""The proof on what a trainer reads first fails when it lists too much or too little."""

import json
from collections.abc import Callable
from dataclasses import replace
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


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> FinishedBlend:
    """A run of RL with three splits, two shards each."""
    folder = tmp_path_factory.mktemp("tasks")
    return finish(rl_blend(folder / "s"), folder / "out")


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("shards.json", lambda v: v.update(train=v["train"][:1]), "train lists 1 files, expected 2"),
        ("shards.json", lambda v: v["val"].append("/gone.jsonl"), "val lists 3 files"),
        ("shards.json", lambda v: v["train"].reverse(), ""),
        ("shards.json", lambda v: v.update(run_hash="0"), "run hash 0"),
        ("manifest.json", lambda v: v.update(run_hash="0"), "run hash 0"),
        ("manifest.json", lambda v: v.update(train=[v["train"]]), "train is ["),
        ("manifest.json", lambda v: v.update(test=""), "test is ''"),
        ("splits/val.jsonl", None, "val.jsonl: it is not the 2 files of shards.json in one"),
    ],
)
def test_the_files_of_an_rl_run_are_its_shards(
    tasks: FinishedBlend, name: str, change: Callable[[dict[str, Any]], object] | None, complaint: str
) -> None:
    assert entry_lists_every_shard(tasks.blend, tasks.directory, tasks.receipt).passed
    path = tasks.directory / name
    whole = path.read_bytes()
    try:
        if change is None:
            path.write_bytes(whole[:-9])
        else:
            value = json.loads(whole)
            change(value)
            path.write_text(json.dumps(value))
        finding = entry_lists_every_shard(tasks.blend, tasks.directory, tasks.receipt)
    finally:
        path.write_bytes(whole)
    assert finding.passed == (not complaint)
    assert complaint in finding.summary


def test_a_split_that_no_trainer_reads_fails(tasks: FinishedBlend) -> None:
    facts = json.loads(json.dumps(tasks.receipt.facts).replace('"test"', '"math"'))
    finding = entry_lists_every_shard(tasks.blend, tasks.directory, replace(tasks.receipt, facts=facts))
    assert "math is none of the splits that a trainer reads, train, val, test" in finding.summary
