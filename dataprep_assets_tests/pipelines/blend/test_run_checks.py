"""Every check of a run passes on a good run; those of its shards, files and splits fail on each defect."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.blend_checks import (
    CHECKS,
    blend_run_intact,
    mixture_matches_weights,
    rows_read_once,
    shards_complete,
    splits_disjoint,
)
from dataprep_assets.pipelines.blend.component import TrainingBlend
from dataprep_assets.pipelines.blend.plan.blend_plan import plan_covers_sources, plan_is_current
from dataprep_assets.pipelines.blend.plan.blend_preview import every_dataset_sampled
from dataprep_assets.pipelines.blend.runs import find_contradicted_claims
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.blend.finished_blend import FinishedBlend, finish
from dataprep_assets_tests.pipelines.blend.pipeline import (
    declare_pretraining,
    make_texts,
    write_rows,
    write_small_sources,
)
from dataprep_assets_tests.samples import SAMPLE
from dataprep_assets_tests.tools.drill.box import edit_receipt, reseal, write
from dataprep_assets_tests.tools.drill.judge import failed_proofs


def test_a_good_run_passes_every_check(good: FinishedBlend) -> None:
    found = [
        plan_covers_sources(good.plan),
        plan_is_current(good.blend, good.store),
        every_dataset_sampled(good.store.require(good.blend.artifact("blend_preview"))),
        *(check.run(good.run) for check in CHECKS),
    ]
    assert [finding.summary for finding in found if not finding.passed] == []
    assert mixture_matches_weights(good.run).facts["largest_difference"] < 1e-9


def test_a_grown_file_has_rows_that_were_not_read(good: FinishedBlend, tmp_path: Path) -> None:
    write_rows(tmp_path / "s" / "web" / "train-00000.parquet", make_texts("web", 61))
    finding = rows_read_once(good.run)
    assert not finding.passed
    assert "read 60 of 61 rows" in finding.summary


def test_missing_and_stale_shards_are_named(good: FinishedBlend) -> None:
    shutil.rmtree(good.store.directory(good.blend.artifact("indexed_bins", "web-00001")))
    finding = shards_complete(good.run)
    assert not finding.passed
    assert "missing or failed: web-00001" in finding.summary
    assert (finding.facts["missing"], finding.facts["stale"]) == (1, 0)
    other: Any = [replace(shard, salt="x") for shard in good.shards]
    assert shards_complete(replace(good.run, shards=other)).facts["stale"] == 5


def _cut_bin(good: FinishedBlend) -> None:
    path = next(good.directory.glob("datasets/web/*/*.bin"))
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-2])


def _leftover(good: FinishedBlend) -> None:
    (good.directory / "blend.json.tmp.1f").write_text("{}")


def _second_plan(good: FinishedBlend) -> None:
    folder = next(good.directory.glob("datasets/web/*"))
    shutil.copytree(folder, folder.with_name("0123456789abcdef"))


def _shorter_list(good: FinishedBlend) -> None:
    value = json.loads((good.directory / "blend.json").read_bytes())
    (good.directory / "blend.json").write_text(json.dumps(value | {"train": value["train"][2:]}))
    reseal(good.directory)


def _other_weight(good: FinishedBlend) -> None:
    value = json.loads((good.directory / "blend.json").read_bytes())
    value["train"][0] = str(float(value["train"][0]) * 1.5)
    (good.directory / "blend.json").write_text(json.dumps(value))
    reseal(good.directory)


@pytest.mark.parametrize("damage", [_cut_bin, _leftover, _second_plan, _shorter_list, _other_weight])
def test_a_damaged_run_is_not_intact(good: FinishedBlend, damage: Callable[[FinishedBlend], None]) -> None:
    damage(good)
    assert not blend_run_intact(good.run).passed


def test_files_of_a_run_must_be_its_shards_files_even_if_its_receipt_matches(good: FinishedBlend) -> None:
    def said(receipt: Receipt) -> list[str]:
        return list(
            find_contradicted_claims(good.blend, good.store, good.plan, good.run.finished, good.directory, receipt)
        )

    assert said(good.receipt) == []
    name = next(f.path for f in good.receipt.files if f.path.startswith("datasets/web/") and f.path.endswith(".bin"))
    files = tuple(replace(f, sha256="0" * 64) if f.path == name else f for f in good.receipt.files)
    (defect,) = said(replace(good.receipt, files=files))
    assert f"{name}: differs from" in defect
    assert "web-0000" in defect


def test_a_run_stays_valid_when_its_sources_move_or_its_shards_are_rebuilt(tmp_path: Path) -> None:
    root = tmp_path / "out"
    finish(declare_pretraining(write_small_sources(tmp_path / "s")), root)
    (tmp_path / "s").rename(tmp_path / "moved")
    careful = {
        "path": SAMPLE / "tokenizer",
        "name": "sample-bpe-4096",
        "engine": "tokenizers",
        "refuse": ["east_asian"],
    }
    moved = finish(declare_pretraining(tmp_path / "moved", tokenizer=careful), root)
    place = next(moved.directory.glob("datasets/web/*/plan.json"))
    assert str(tmp_path / "s") in place.read_text()

    def said() -> list[str]:
        finished = moved.run.finished
        return list(
            find_contradicted_claims(moved.blend, moved.store, moved.plan, finished, moved.directory, moved.receipt)
        )

    assert said() == []
    place.chmod(0o644)
    place.write_text(place.read_text().replace('"chosen": [\n  0', '"chosen": [\n  1'))
    assert said() == [f"{place}: does not match the plan and the shards"]


@pytest.mark.parametrize("lie", ["a file twice", "a count", "no plan", "no size", "no etag", "a key twice"])
def test_a_snapshot_lists_each_file_once_with_right_counts(good: FinishedBlend, lie: str) -> None:
    (spec,) = [s for s in TrainingBlend(good.blend).specs if s.name == "blend_snapshot"]
    assert list(failed_proofs(spec, good.store, ["web-00001"])) == []
    folder = good.store.directory(good.blend.artifact("blend_snapshot", "web-00001"))
    if lie == "a count":
        edit_receipt(folder, lambda value: value["facts"].update(files=7))
        wanted = "the file or byte count in the snapshot's receipt differs from the plan"
    elif lie == "no plan":
        edit_receipt(folder, lambda value: value["inputs"].update(plan="0" * 64))
        wanted = "the snapshot's receipt does not name its plan"
    else:
        lines = (folder / "files.jsonl").read_bytes()
        changed, wanted = {
            "a file twice": (lines * 2, "must list each file of the plan exactly once"),
            "no size": (lines.replace(b"size_", b"sise_"), "has different keys"),
            "no etag": (lines.replace(b"etag", b"etaf"), "has different keys"),
            "a key twice": (
                lines.replace(b'"etag":null,', b'"etag":null,"etag":null,'),
                "of the snapshot is not in canonical form",
            ),
        }[lie]
        assert changed != lines
        write(folder / "files.jsonl", changed)
        reseal(folder)
    ((name, words),) = failed_proofs(spec, good.store, ["web-00001"])
    assert name == "digests_match"
    assert wanted in words


def test_a_snapshot_of_unchanged_files_stays_valid_when_settings_change_the_plan(
    good: FinishedBlend, tmp_path: Path
) -> None:
    drop = {"policy": "drop", "budget": 0.1}
    again = finish(declare_pretraining(tmp_path / "s", bad_records=drop), good.store.root)
    assert again.plan.find_shard("web-00001")[0].plan_hash != good.plan.find_shard("web-00001")[0].plan_hash
    (spec,) = [s for s in TrainingBlend(again.blend).specs if s.name == "blend_snapshot"]
    assert list(failed_proofs(spec, again.store, ["web-00001"])) == []


def test_a_run_of_another_plan_is_refused(good: FinishedBlend) -> None:
    finding = blend_run_intact(replace(good.run, plan=replace(good.plan, run_hash="0" * 16)))
    assert not finding.passed
    assert any("belongs to the run" in str(row) for row in finding.table)


def test_splits_that_share_rows_are_found_by_content_not_by_file_name(tmp_path: Path) -> None:
    write_rows(tmp_path / "a" / "one.jsonl", make_texts("a", 9))
    write_rows(tmp_path / "b" / "two.jsonl", make_texts("a", 9))
    blend = {
        "train": [{"name": "a", "path": str(tmp_path / "a")}],
        "valid": [{"name": "b", "path": str(tmp_path / "b")}],
    }
    good = finish(declare_pretraining(tmp_path, blend=blend), tmp_path / "out")
    finding = splits_disjoint(good.run)
    assert not finding.passed
    assert_names(finding.summary, "two.jsonl", "valid", "one.jsonl", "train")


@pytest.mark.parametrize("stage", ["pretrain", "rl"])
def test_equal_content_in_different_files_of_two_splits_is_a_warning(tmp_path: Path, stage: str) -> None:
    write_rows(tmp_path / "a" / "one.jsonl", make_texts("a", 9))
    write_rows(tmp_path / "b" / "two.jsonl", [*make_texts("b", 3), *make_texts("a", 2)])
    blend = {
        "train": [{"name": "a", "path": str(tmp_path / "a")}],
        "valid": [{"name": "b", "path": str(tmp_path / "b")}],
    }
    own = {"tokenizer": None, "pretrain": None} if stage == "rl" else {}
    good = finish(declare_pretraining(tmp_path, blend=blend, stage=stage, **own), tmp_path / "out")
    finding = splits_disjoint(good.run)
    assert (finding.passed, finding.warning, finding.facts["defects"]) == (False, True, 1)
    assert "2 " in finding.summary
    assert "(40.0%" in finding.summary


def test_empty_files_in_two_splits_share_no_row(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_rows(tmp_path / name / "some.jsonl", make_texts(name, 9))
        (tmp_path / name / "none.jsonl").touch()
    blend = {
        "train": [{"name": "a", "path": str(tmp_path / "a")}],
        "valid": [{"name": "b", "path": str(tmp_path / "b")}],
    }
    good = finish(declare_pretraining(tmp_path, blend=blend), tmp_path / "out")
    assert [entry.size_bytes for unit in good.plan.units for entry in unit.entries].count(0) == 2
    assert splits_disjoint(good.run).passed


def test_a_shard_in_two_splits_is_found(good: FinishedBlend) -> None:
    used = good.receipt.facts["used"]
    both = {**used, "valid": [*used["valid"], used["train"][0]]}
    run = good.run
    run.__dict__["receipt"] = replace(good.receipt, facts={**good.receipt.facts, "used": both})
    finding = splits_disjoint(run)
    assert not finding.passed
    assert used["train"][0] in finding.summary
