"""Every proof on a blend passes on a good run, and fails, naming it, on each defect that it is there for."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend import blend_proofs as proofs
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.finalize import Work
from dataprep_assets.pipelines.blend.plan import BlendPlan, load_blend_plan
from dataprep_assets.pipelines.corpus.declaration import BadRecordPolicy
from dataprep_assets.sources.rows import RowRange
from dataprep_assets_tests.pipelines.blend.pipeline import (
    blend_json,
    finished,
    pretraining,
    small_sources,
    texts,
    works,
    write_rows,
)
from dataprep_assets_tests.pipelines.blend.rl.test_rl_jsonl import rl_blend
from dataprep_assets_tests.pipelines.blend.test_finalize import records


@dataclass(frozen=True)
class Good:
    """A finished run that a test may damage."""

    blend: BlendDeclaration
    store: LocalArtifacts
    plan: BlendPlan
    directory: Path
    receipt: Receipt

    @property
    def works(self) -> Sequence[Work]:
        return works(self.blend, self.store, self.plan)


def _finish(blend: BlendDeclaration, root: Path) -> Good:
    directory, receipt, plan = finished(blend, root)
    return Good(blend, LocalArtifacts(root), plan, directory, receipt)


@pytest.fixture
def good(tmp_path: Path) -> Good:
    return _finish(pretraining(small_sources(tmp_path / "s"), held_out={"valid": 1}), tmp_path / "out")


def test_a_good_run_passes_every_proof(good: Good) -> None:
    found = [
        proofs.plan_covers_sources(good.plan),
        proofs.plan_is_current(good.blend, good.store),
        proofs.rows_read_once(good.blend, good.store, good.plan, good.works),
        proofs.nothing_rounds_to_zero(good.store.require(good.blend.artifact("blend_preview"))),
        proofs.shards_complete(good.store, good.plan, good.works),
        proofs.run_intact(good.directory, good.receipt, good.plan),
        proofs.entry_lists_every_shard(good.blend, good.directory, good.receipt),
        proofs.realised_as_requested(good.blend, good.directory, good.receipt, good.plan),
        proofs.splits_disjoint(good.receipt, good.plan),
    ]
    assert [finding.summary for finding in found if not finding.passed] == []
    assert found[7].facts["largest_difference"] < 1e-9


def _with_parts(plan: BlendPlan, shard: int, rows: RowRange | None) -> BlendPlan:
    """The plan with another range in one shard of `web`, or without the shard's part."""
    unit = plan.units[1]
    old = unit.shards[shard]
    parts = tuple(replace(p, rows=rows) for p in old.parts) if rows else ()
    shards = [replace(old, parts=parts) if s is old else s for s in unit.shards]
    return replace(plan, units=(plan.units[0], replace(unit, shards=tuple(shards))))


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (RowRange(15, 41), "in two shards"),
        (RowRange(25, 41), "rows 21 to 24"),
        (RowRange(21, 35), "rows 35 to 40"),
        (None, "rows 21 to 40"),
    ],
)
def test_rows_twice_or_never_are_found(good: Good, rows: RowRange | None, complaint: str) -> None:
    finding = proofs.plan_covers_sources(_with_parts(good.plan, 1, rows))
    assert not finding.passed
    assert complaint in finding.summary


def test_a_file_twice_or_never_and_a_shard_index_gap_are_found(good: Good) -> None:
    unit = good.plan.units[1]
    missing = replace(unit, shards=())
    twice = replace(unit, shards=(unit.shards[0], *unit.shards))
    gap = replace(unit, shards=(unit.shards[0], *(replace(s, index=s.index + 1) for s in unit.shards[1:])))
    for broken, complaint in ((missing, "in no shard"), (twice, "two shards"), (gap, "numbered [0, 2, 3]")):
        finding = proofs.plan_covers_sources(replace(good.plan, units=(broken,)))
        assert not finding.passed
        assert complaint in " ".join(str(row["defect"]) for row in finding.table)


def test_a_changed_source_is_another_plan(good: Good, tmp_path: Path) -> None:
    write_rows(tmp_path / "s" / "web" / "train-00000.parquet", texts("web", 61))
    finding = proofs.plan_is_current(good.blend, good.store)
    assert not finding.passed
    assert finding.summary.startswith("web: plan hash")


def test_a_file_that_grew_has_rows_that_nobody_read(good: Good, tmp_path: Path) -> None:
    write_rows(tmp_path / "s" / "web" / "train-00000.parquet", texts("web", 61))
    finding = proofs.rows_read_once(good.blend, good.store, good.plan, good.works)
    assert not finding.passed
    assert "read 60 rows of 61" in finding.summary


def test_missing_and_stale_shards_are_named(good: Good) -> None:
    works_ = good.works
    shutil.rmtree(good.store.directory(good.blend.artifact("indexed_bins", "web-00001")))
    finding = proofs.shards_complete(good.store, good.plan, works_)
    assert not finding.passed
    assert "missing or failed: web-00001" in finding.summary
    assert (finding.facts["missing"], finding.facts["stale"]) == (1, 0)
    other: Any = [replace(work, salt="x") for work in works_]
    assert proofs.shards_complete(good.store, good.plan, other).facts["stale"] == 5


def _cut_bin(good: Good) -> None:
    path = next(good.directory.glob("datasets/web/*/*.bin"))
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-2])


def _leftover(good: Good) -> None:
    (good.directory / "blend.json.tmp.1f").write_text("{}")


def _second_plan(good: Good) -> None:
    folder = next(good.directory.glob("datasets/web/*"))
    shutil.copytree(folder, folder.with_name("0123456789abcdef"))


@pytest.mark.parametrize("damage", [_cut_bin, _leftover, _second_plan])
def test_a_damaged_run_is_not_intact(good: Good, damage: Callable[[Good], None]) -> None:
    damage(good)
    assert not proofs.run_intact(good.directory, good.receipt, good.plan).passed


def test_a_run_of_another_plan_is_not_this_one(good: Good) -> None:
    finding = proofs.run_intact(good.directory, good.receipt, replace(good.plan, run_hash="0" * 16))
    assert not finding.passed
    assert "it is the run of" in finding.summary


def _edit(good: Good, change: Callable[[dict[str, Any]], None]) -> None:
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
    good: Good, change: Callable[[dict[str, Any]], None], complaint: str
) -> None:
    _edit(good, change)
    finding = proofs.entry_lists_every_shard(good.blend, good.directory, good.receipt)
    assert not finding.passed
    assert complaint in finding.summary


def test_a_share_beyond_the_tolerance_fails(good: Good) -> None:
    """PAINS 25: requested against realised, computed from the file that the trainer reads."""

    def change(value: dict[str, Any]) -> None:
        value["train"][0] = str(float(value["train"][0]) * 1.5)

    _edit(good, change)
    finding = proofs.realised_as_requested(good.blend, good.directory, good.receipt, good.plan)
    assert not finding.passed
    assert "train: code was to be 0.7500" in finding.summary
    lenient = good.blend.model_copy(update={"tolerance": 0.5})
    assert proofs.realised_as_requested(lenient, good.directory, good.receipt, good.plan).passed


def test_more_epochs_than_allowed_fail(tmp_path: Path) -> None:
    blend = pretraining(small_sources(tmp_path / "s"), max_epochs=1.2)
    good = _finish(blend, tmp_path / "out")
    finding = proofs.realised_as_requested(good.blend, good.directory, good.receipt, good.plan)
    assert not finding.passed
    assert "code would be read 1.26 times" in finding.summary
    enough = blend.model_copy(update={"max_epochs": 1.3})
    assert proofs.realised_as_requested(enough, good.directory, good.receipt, good.plan).passed


def test_splits_that_share_rows_are_found_whatever_their_files_are_called(tmp_path: Path) -> None:
    write_rows(tmp_path / "a" / "one.jsonl", texts("a", 9))
    write_rows(tmp_path / "b" / "two.jsonl", texts("a", 9))
    blend = {
        "train": [{"name": "a", "path": str(tmp_path / "a")}],
        "valid": [{"name": "b", "path": str(tmp_path / "b")}],
    }
    good = _finish(pretraining(tmp_path, blend=blend), tmp_path / "out")
    finding = proofs.splits_disjoint(good.receipt, good.plan)
    assert not finding.passed
    assert "two.jsonl are in valid, and as one.jsonl in train" in finding.summary


def test_a_shard_in_two_splits_is_found(good: Good) -> None:
    used = good.receipt.facts["used"]
    both = {**used, "valid": [*used["valid"], used["train"][0]]}
    receipt = replace(good.receipt, facts={**good.receipt.facts, "used": both})
    finding = proofs.splits_disjoint(receipt, good.plan)
    assert not finding.passed
    assert used["train"][0] in finding.summary


def test_a_source_that_rounds_to_zero_fails(tmp_path: Path) -> None:
    tiny = blend_json(small_sources(tmp_path / "s"))
    tiny["datasets"][1]["weight"] = 1e-6
    good = _finish(pretraining(tmp_path / "s", blend=tiny), tmp_path / "out")
    finding = proofs.nothing_rounds_to_zero(good.store.require(good.blend.artifact("blend_preview")))
    assert not finding.passed
    assert finding.summary.startswith("web: a share of 0.000000 is 0 samples")


def test_an_rl_manifest_lists_its_shards(tmp_path: Path) -> None:
    good = _finish(rl_blend(tmp_path / "s"), tmp_path / "out")
    assert proofs.entry_lists_every_shard(good.blend, good.directory, good.receipt).passed
    path = good.directory / "manifest.json"
    whole = json.loads(path.read_bytes())
    for change, complaint in (
        ({"train": whole["train"][:1]}, "train lists 1 files, it is to list 2"),
        ({"val": [*whole["val"], "/gone.jsonl"]}, "val lists 3 files"),
        ({"run_hash": "0"}, "run hash 0"),
    ):
        path.write_text(json.dumps(whole | change))
        finding = proofs.entry_lists_every_shard(good.blend, good.directory, good.receipt)
        assert not finding.passed
        assert complaint in finding.summary


def test_rl_shares_are_those_of_the_records_that_the_manifest_lists(tmp_path: Path) -> None:
    good = _finish(records(tmp_path / "s", (1.0, 1.0)), tmp_path / "out")
    finding = proofs.realised_as_requested(good.blend, good.directory, good.receipt, good.plan)
    assert finding.passed, finding.summary
    assert finding.facts["largest_difference"] < 1e-9
    path = good.directory / "manifest.json"
    whole = json.loads(path.read_bytes())
    path.write_text(json.dumps(whole | {"train": [*whole["train"], whole["train"][0]]}))
    finding = proofs.realised_as_requested(good.blend, good.directory, good.receipt, good.plan)
    assert not finding.passed
    assert "train: code__train was to be 0.6000 of the blend and is 0.6842" in finding.summary
    assert not proofs.entry_lists_every_shard(good.blend, good.directory, good.receipt).passed


@pytest.mark.parametrize("text", ["{", "[]"])
@pytest.mark.parametrize("name", ["manifest.json", "datasets/code__train/*/receipts/shard_000000.json"])
def test_rl_files_that_cannot_be_read_are_findings(tmp_path: Path, name: str, text: str) -> None:
    good = _finish(records(tmp_path / "datasets" / "s", (1.0, 1.0)), tmp_path / "datasets" / "out")
    assert proofs.realised_as_requested(good.blend, good.directory, good.receipt, good.plan).passed
    (path,) = good.directory.glob(name)
    path.unlink()
    path.write_text(text)
    finding = proofs.realised_as_requested(good.blend, good.directory, good.receipt, good.plan)
    assert not finding.passed
    assert path.name in finding.summary


def test_rl_records_that_a_transform_leaves_out_are_missing_of_the_share(tmp_path: Path) -> None:
    """PAINS 25: a dataset that loses its records to a transform is not the blend that was asked for."""
    blend = records(tmp_path / "s", (1.0, 1.0), rl={"transforms": [{"select": ["text", "id"]}]})
    for file, first in (("part-2.jsonl.zst", 0), ("part-10.jsonl.gz", 40)):
        rows = [row | ({"id": i} if i % 3 == 0 else {}) for i, row in enumerate(texts("code", 45, first))]
        write_rows(tmp_path / "s" / "code" / file, rows)
    write_rows(tmp_path / "s" / "web" / "train-00000.parquet", [row | {"id": 0} for row in texts("web", 60)])
    good = _finish(blend.model_copy(update={"bad_records": BadRecordPolicy(policy="drop", budget=1)}), tmp_path / "out")
    finding = proofs.realised_as_requested(good.blend, good.directory, good.receipt, good.plan)
    assert not finding.passed
    assert "train: code__train was to be 0.6000 of the blend and is 0.3333" in finding.summary
    assert "transform" in finding.summary
    lenient = good.blend.model_copy(update={"tolerance": 0.5})
    assert proofs.realised_as_requested(lenient, good.directory, good.receipt, good.plan).passed


def test_rl_records_that_are_read_too_often_fail(tmp_path: Path) -> None:
    good = _finish(records(tmp_path / "s", (3.0, 1.0), max_epochs=2), tmp_path / "out")
    finding = proofs.realised_as_requested(good.blend, good.directory, good.receipt, good.plan)
    assert not finding.passed
    assert "code__train would be read 3.00 times" in finding.summary


def test_a_plan_that_cannot_be_read_is_a_finding(good: Good) -> None:
    path = good.store.directory(good.blend.artifact("blend_plan")) / "plan.json"
    path.write_text("{}")
    assert not proofs.plan_is_current(good.blend, good.store).passed
    with pytest.raises(Exception, match="not a blend's plan"):
        load_blend_plan(good.blend, good.store)
