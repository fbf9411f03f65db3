"""Tests of the frozen plan of a blend and of its hashes."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.artifact.metadata_values import Markdown
from dataprep_assets.errors import ConfigError, FormatError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.blend.dataset import build_blend_specs
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.blend_plan import build_blend_plan, build_plan_rows, plan_covers_sources
from dataprep_assets.pipelines.blend.plan.plan import VERSION, BlendPlan, decode_plan, load_blend_plan
from dataprep_assets.pipelines.blend.plan.planner import plan_blend
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.blend.pipeline import (
    declare_pretraining,
    make_texts,
    write_blend_json,
    write_rows,
    write_small_sources,
)
from dataprep_assets_tests.pipelines.blend.rl.records import declare_rl_blend, make_rl_rows
from dataprep_assets_tests.samples import SAMPLE


def test_notes_and_categories_are_shown_and_do_not_change_the_plan(tmp_path: Path) -> None:
    plain = write_blend_json(write_small_sources(tmp_path))
    noted = {
        "_comment": "Phase 1",
        "datasets": [{**plain["datasets"][0], "category": "source code", "_note": "new"}, plain["datasets"][1]],
    }
    first, second = declare_pretraining(tmp_path, blend=plain), declare_pretraining(tmp_path, blend=noted)
    plan = plan_blend(first)
    assert plan_blend(second).to_json() == plan.to_json()
    assert "category" not in str(plan.to_json())
    shown = [(row["category"], row["notes"]) for row in build_plan_rows(second, plan)]
    assert shown == [("source code", "note: new"), ("", "")]
    assert "category" not in build_plan_rows(first, plan)[0]
    store = LocalArtifacts(tmp_path / "out")
    receipt, _ = build_blend_plan(second, store)
    (spec, *_) = build_blend_specs(second)
    assert spec.metadata(store, receipt)["notes"] == Markdown("- comment: Phase 1")
    assert build_blend_plan(first, store)[1]


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return write_small_sources(tmp_path / "sources")


def _rows(plan: BlendPlan, unit: int) -> list[list[tuple[str, int, int | None]]]:
    return [
        [(p.entry.relpath, p.rows.first if p.rows else 1, p.rows.stop if p.rows else None) for p in shard.parts]
        for shard in plan.units[unit].shards
    ]


def test_files_stay_whole_unless_there_are_more_shards_than_files(sources: Path) -> None:
    two = plan_blend(declare_pretraining(sources, num_shards=2))
    assert _rows(two, 0) == [[("part-2.jsonl.zst", 1, None)], [("part-10.jsonl.gz", 1, None)]]
    assert _rows(two, 1) == [[("train-00000.parquet", 1, 31)], [("train-00000.parquet", 31, None)]]
    assert two.partitions == ["code-00000", "code-00001", "web-00000", "web-00001"]
    one = plan_blend(declare_pretraining(sources, num_shards=1))
    assert _rows(one, 0) == [[("part-2.jsonl.zst", 1, None), ("part-10.jsonl.gz", 1, None)]]


@pytest.mark.parametrize("shards", [1, 2, 3, 4, 7, 100])
def test_every_row_is_in_exactly_one_shard_for_any_number_of_shards(sources: Path, shards: int) -> None:
    plan = plan_blend(declare_pretraining(sources, num_shards=shards))
    finding = plan_covers_sources(plan)
    assert finding.passed, finding.summary
    assert [len(unit.shards) for unit in plan.units] == [shards, shards]


def test_skewed_sizes_are_split_although_they_crash_upstream(tmp_path: Path) -> None:
    """Upstream raises an IndexError for sizes 1000, 1, 1 over 4 shards."""
    for name, rows in (("a", 500), ("b", 1), ("c", 1)):
        write_rows(tmp_path / f"{name}.jsonl", make_texts(name, rows))
    blend = declare_pretraining(tmp_path, num_shards=4, blend={"datasets": [{"name": "skewed", "path": str(tmp_path)}]})
    assert _rows(plan_blend(blend), 0) == [
        [("a.jsonl", 1, 251)],
        [("a.jsonl", 251, None)],
        [("b.jsonl", 1, None)],
        [("c.jsonl", 1, None)],
    ]


def _hashes(blend: BlendDeclaration) -> tuple[str, list[str]]:
    plan = plan_blend(blend)
    return plan.run_hash, [unit.plan_hash for unit in plan.units]


def test_hashes_do_not_depend_on_times_folders_or_workers(sources: Path, tmp_path: Path) -> None:
    before = _hashes(declare_pretraining(sources))
    moved = shutil.copytree(sources, tmp_path / "elsewhere")
    for path in moved.rglob("*.*"):
        os.utime(path, (1, 1))
    tokenizer = shutil.copytree(SAMPLE / "tokenizer", tmp_path / "tokenizer")
    options = {"separator": "<|endoftext|>", "sequence_length": 99, "sample_rate": 1.0}
    same = declare_pretraining(
        moved,
        tokenizer={"path": tokenizer, "name": "another"},
        workers=7,
        storage=str(tmp_path / "out"),
        description="other words",
        tolerance=0.5,
        pretrain=options,
    )
    assert _hashes(same) == before


def _changed(sources: Path, tmp_path: Path, what: str) -> BlendDeclaration:
    if what == "data":
        write_rows(sources / "web" / "train-00000.parquet", make_texts("web", 59))
        return declare_pretraining(sources)
    if what == "tokenizer bytes":
        tokenizer = shutil.copytree(SAMPLE / "tokenizer", tmp_path / "tokenizer")
        with open(tokenizer / "tokenizer_config.json", "a") as file:
            file.write(" ")
        return declare_pretraining(sources, tokenizer={"path": tokenizer})
    changes: dict[str, Any] = {
        "shards": {"num_shards": 4},
        "option": {"pretrain": {"separator": "<|endoftext|>", "add_eos": False}},
        "rows": {"max_rows": 5},
        "force": {"force": "2"},
        "policy": {"bad_records": {"policy": "drop"}},
    }
    return declare_pretraining(sources, **changes[what])


@pytest.mark.parametrize("what", ["data", "tokenizer bytes", "shards", "option", "rows", "force", "policy"])
def test_hashes_change_with_content(sources: Path, tmp_path: Path, what: str) -> None:
    run, plans = _hashes(declare_pretraining(sources))
    new_run, new_plans = _hashes(_changed(sources, tmp_path, what))
    assert new_run != run
    assert new_plans[1] != plans[1]
    # A change of the data affects only the plan of the changed dataset.
    assert (new_plans[0] == plans[0]) == (what == "data")


def test_the_text_of_a_template_is_hashed_and_not_its_name(tmp_path: Path) -> None:
    """Upstream hashes only the name, so an edited file kept its old data.

    See docs/migration/nemotron.md.
    """
    write_rows(tmp_path / "chat.jsonl", [{"messages": [{"role": "user", "content": "a"}]}])
    text = "{% for m in messages %}{{ m.content }}{% endfor %}"

    def hashed(template: Path, text: str) -> tuple[str, list[str]]:
        template.write_text(text)
        blend = declare_pretraining(
            tmp_path,
            stage="sft",
            pretrain=None,
            sft={"chat_template": str(template)},
            blend={"datasets": [{"name": "chat", "path": str(tmp_path / "chat.jsonl")}]},
        )
        return _hashes(blend)

    first = hashed(tmp_path / "a.jinja", text)
    assert hashed(tmp_path / "b.jinja", text) == first
    assert hashed(tmp_path / "a.jinja", text + " ") != first


def test_weights_change_the_run_but_not_the_shards(sources: Path) -> None:
    other = write_blend_json(sources)
    other["datasets"][0]["weight"] = 1.0
    run, plans = _hashes(declare_pretraining(sources))
    new_run, new_plans = _hashes(declare_pretraining(sources, blend=other))
    assert (new_run != run, new_plans) == (True, plans)


def test_a_sample_keeps_some_shards_of_each_dataset(sources: Path) -> None:
    plan = plan_blend(declare_pretraining(sources, num_shards=10, sample={"percent": 20}))
    assert [len(unit.chosen) for unit in plan.units] == [2, 2]
    assert len(plan.partitions) == 4
    assert plan.partitions == plan_blend(declare_pretraining(sources, num_shards=10, sample={"percent": 20})).partitions
    counted = plan_blend(declare_pretraining(sources, num_shards=10, sample={"count": 3}))
    assert [len(unit.chosen) for unit in counted.units] == [3, 3]
    # The size of the sample does not change the plan hash, so that a full run can reuse the shards of a sample.
    assert [u.plan_hash for u in plan.units] == [u.plan_hash for u in counted.units]


def test_max_rows_are_the_first_rows_of_each_shard(sources: Path) -> None:
    plan = plan_blend(declare_pretraining(sources, num_shards=1, max_rows=45))
    assert _rows(plan, 0) == [[("part-2.jsonl.zst", 1, None), ("part-10.jsonl.gz", 1, 6)]]
    assert _rows(plan, 1) == [[("train-00000.parquet", 1, 46)]]
    cut = plan_blend(declare_pretraining(sources, num_shards=2, max_rows=5))
    assert _rows(cut, 1) == [[("train-00000.parquet", 1, 6)], [("train-00000.parquet", 31, 36)]]
    assert plan_covers_sources(cut, max_rows=5).passed


def test_a_dataset_with_too_few_shards_to_hold_some_out_is_refused_before_a_build(sources: Path) -> None:
    with raises(ConfigError, "code", 1, 0):
        plan_blend(declare_pretraining(sources, num_shards=None, held_out={"valid": 1}))
    sampled = {"num_shards": 8, "sample": {"percent": 20}}
    with raises(ConfigError, "code", 2, 1):
        plan_blend(declare_pretraining(sources, **sampled, held_out={"valid": 1, "test": 1}))


def test_no_shards_are_held_out_from_files_that_name_their_split(tmp_path: Path) -> None:
    with raises(ConfigError, "held_out", "a", "`val`"):
        plan_blend(declare_rl_blend(tmp_path, held_out={"valid": 1}))
    alone = {"datasets": [{"name": "a", "path": str(write_rows(tmp_path / "more" / "a.jsonl", make_rl_rows(8)))}]}
    plan = plan_blend(declare_rl_blend(tmp_path, held_out={"valid": 1}, blend=alone))
    assert [unit.home for unit in plan.units] == ["train"]


@pytest.mark.parametrize(("split", "home"), [("math", "train"), ("dev", "val"), ("test", "test")])
def test_an_unknown_split_of_rl_selects_training_files(tmp_path: Path, split: str, home: str) -> None:
    for name in (split, "code"):
        write_rows(tmp_path / "s" / name / "a.jsonl", make_rl_rows(8))
    sky = {"datasets": [{"name": "sky", "path": str(tmp_path / "s"), "split": split}]}
    (unit,) = plan_blend(declare_rl_blend(tmp_path, blend=sky)).units
    assert (unit.name, unit.home, [entry.relpath for entry in unit.entries]) == (
        f"sky__{home}",
        home,
        [f"{split}/a.jsonl"],
    )


def test_a_plan_is_frozen_and_read_back(sources: Path, tmp_path: Path) -> None:
    blend, store = declare_pretraining(sources), LocalArtifacts(tmp_path / "out")
    receipt, reused = build_blend_plan(blend, store)
    assert not reused
    assert load_blend_plan(blend, store) == plan_blend(blend)
    assert receipt.facts["run_hash"] == plan_blend(blend).run_hash
    assert build_blend_plan(blend, store)[1]
    for path in sources.rglob("*.*"):
        os.utime(path, (1, 1))
    assert build_blend_plan(blend, store)[1]


def test_an_invalid_plan_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", make_texts("a", 1))
    blend = {"datasets": [{"name": "a", "path": str(tmp_path)}]}
    value = plan_blend(declare_pretraining(tmp_path, blend=blend)).to_json()
    assert decode_plan(value, "here").to_json() == value
    with raises(FormatError, "here", 7):
        decode_plan(value | {"version": 7}, "here")
    with raises(FormatError, "here"):
        decode_plan({"version": VERSION, "run_hash": "x"}, "here")
