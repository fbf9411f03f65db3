"""Tests of a blend's run: the files for the trainer below `runs/<run_hash>/`."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.errors import ConfigError, IntegrityError, MissingArtifactError
from dataprep_assets.formats import blend_json
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.blend.dataset import build_blend_specs
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.blend_preview import preview_blend
from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
from dataprep_assets.pipelines.blend.runs import build_blend_run
from dataprep_assets_tests.fakes.gcs_server import GcsServer
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.blend.pipeline import (
    SEPARATOR,
    declare_pretraining,
    finish_blend,
    make_texts,
    plan_shards,
    run_blend,
    write_rows,
    write_small_sources,
)
from dataprep_assets_tests.pipelines.blend.rl.records import declare_weighted_records


def _shares(entries: list[blend_json.Entry]) -> dict[str, float]:
    found: dict[str, float] = {}
    for entry in entries:
        name = entry.prefix.split("/datasets/")[1].split("/")[0]
        found[name] = found.get(name, 0.0) + entry.weight
    return {name: weight / sum(found.values()) for name, weight in found.items()}


def test_shares_follow_the_weights_and_within_a_dataset_the_tokens_of_shards(tmp_path: Path) -> None:
    """Upstream gives each shard of a dataset the same weight, whatever its size.

    See docs/formats/blend-json.md#weights.
    """
    directory, receipt, _ = finish_blend(declare_pretraining(write_small_sources(tmp_path / "s")), tmp_path / "out")
    entries = blend_json.read_blend(directory / "blend.json")["train"]
    assert _shares(entries) == pytest.approx({"code": 0.75, "web": 0.25})
    code = [entry for entry in entries if "/code/" in entry.prefix]
    sizes = [Path(entry.prefix + ".bin").stat().st_size for entry in code]
    assert len({round(e.weight / size, 12) for e, size in zip(code, sizes, strict=True)}) == 1
    assert len(set(sizes)) > 1
    assert (directory / "data_args.txt").read_text().split()[1::2] == [entry.prefix for entry in entries]
    assert {row["name"]: row["realised"] for row in receipt.facts["realised"]} == pytest.approx(_shares(entries))


def test_the_layout_equals_the_upstream_one(tmp_path: Path) -> None:
    directory, receipt, plan = finish_blend(
        declare_pretraining(write_small_sources(tmp_path / "s"), num_shards=2), tmp_path / "out"
    )
    assert directory == tmp_path / "out" / "small_blend" / "runs" / plan.run_hash
    wanted = {"blend.json", "config.json", "data_args.txt", "realised.json"}
    for unit in plan.units:
        folder = f"datasets/{unit.name}/{unit.plan_hash}"
        wanted |= {f"{folder}/plan.json"}
        wanted |= {f"{folder}/receipts/shard_{i:06d}.json" for i in range(2)}
        wanted |= {f"{folder}/shard_{i:06d}.{s}" for i in range(2) for s in ("bin", "idx")}
    assert {record.path for record in receipt.files} == wanted
    assert json.loads((directory / "config.json").read_bytes())["run_hash"] == plan.run_hash
    books = json.loads((directory / f"{folder}/receipts/shard_000001.json").read_bytes())
    assert (books["status"], books["plan_hash"], books["partition"]) == ("completed", unit.plan_hash, "web-00001")


def test_shards_without_rows_are_declared_empty_and_not_listed(tmp_path: Path) -> None:
    """With 31 rows in 40 shards, upstream wrote 10 dangling entries (docs/formats/blend-json.md#nemotron)."""
    path = write_rows(tmp_path / "a.jsonl", make_texts("a", 5))
    blend = declare_pretraining(tmp_path, num_shards=8, blend={"datasets": [{"name": "a", "path": str(path)}]})
    directory, receipt, _ = finish_blend(blend, tmp_path / "out")
    entries = blend_json.read_blend(directory / "blend.json")["train"]
    assert len(entries) == 5
    assert len(receipt.facts["empty"]) == 3
    assert blend_json.find_defects(directory / "blend.json", lambda p: Path(p + ".bin").stat().st_size > 0) == []
    assert len(list(directory.glob("datasets/a/*/*.bin"))) == 5


def test_splits_of_the_blend_are_splits_of_the_run(tmp_path: Path) -> None:
    write_small_sources(tmp_path)
    blend = {
        "train": [{"name": "code", "path": str(tmp_path / "code")}, {"name": "web", "path": str(tmp_path / "web")}],
        "test": [{"name": "code", "path": str(tmp_path / "code" / "part-2.jsonl.zst")}],
    }
    directory, receipt, _ = finish_blend(declare_pretraining(tmp_path, blend=blend, num_shards=1), tmp_path / "out")
    value = json.loads((directory / "blend.json").read_bytes())
    assert [len(value["train"]), value["valid"], len(value["test"])] == [4, None, 2]
    assert not (directory / "data_args.txt").exists()
    assert receipt.facts["used"] == {"train": ["code__train-00000", "web__train-00000"], "test": ["code__test-00000"]}


def test_held_out_shards_come_from_every_dataset_and_are_in_one_split(tmp_path: Path) -> None:
    blend = declare_pretraining(write_small_sources(tmp_path / "s"), num_shards=5, held_out={"valid": 1, "test": 2})
    directory, receipt, plan = finish_blend(blend, tmp_path / "out")
    splits = blend_json.read_blend(directory / "blend.json")
    assert {split: len(entries) for split, entries in splits.items()} == {"train": 4, "valid": 2, "test": 4}
    for entries in splits.values():
        assert _shares(entries) == pytest.approx({"code": 0.75, "web": 0.25})
    used = [p for members in receipt.facts["used"].values() for p in members]
    assert sorted(used) == sorted(plan.partitions)


def test_missing_and_failed_shards_are_refused_by_name(tmp_path: Path) -> None:
    """Upstream counts the existing shards and never compares them with the plan.

    See docs/formats/shard-plan.md#missing-shards.
    """
    blend = declare_pretraining(write_small_sources(tmp_path / "s"))
    finish_blend(blend, tmp_path / "out")
    store = LocalArtifacts(tmp_path / "out")
    plan = load_blend_plan(blend, store)
    shutil.rmtree(store.directory(blend.artifact("indexed_bins", "code-00001")))
    (store.directory(blend.artifact("indexed_bins", "web-00002")) / "receipt.json").unlink()
    with raises(MissingArtifactError, 2, 6, "code-00001, web-00002"):
        build_blend_run(blend, store, plan, plan_shards(blend, store, plan))


def test_a_shard_with_other_settings_is_refused_by_name(tmp_path: Path) -> None:
    blend = declare_pretraining(write_small_sources(tmp_path / "s"))
    finish_blend(blend, tmp_path / "out")
    store = LocalArtifacts(tmp_path / "out")
    plan = load_blend_plan(blend, store)
    other = declare_pretraining(tmp_path / "s", pretrain={"separator": SEPARATOR, "max_doc_tokens": 5})
    with raises(IntegrityError, 6):
        build_blend_run(other, store, plan, plan_shards(other, store, plan))


def test_receipts_without_their_data_are_refused(tmp_path: Path) -> None:
    blend = declare_pretraining(write_small_sources(tmp_path / "s"))
    directory, _, plan = finish_blend(blend, tmp_path / "out")
    store = LocalArtifacts(tmp_path / "out")
    shutil.rmtree(directory)
    path = store.directory(blend.artifact("indexed_bins", "code-00000")) / "tokens.bin"
    path.write_bytes(path.read_bytes()[:-2] + b"\0\0")
    with raises(IntegrityError, "indexed_bins/code-00000"):
        build_blend_run(blend, store, plan, plan_shards(blend, store, plan))
    assert not directory.exists()


def test_a_dataset_without_data_is_refused(tmp_path: Path) -> None:
    write_small_sources(tmp_path)
    write_rows(tmp_path / "web" / "train-00000.parquet", make_texts("web", 60))
    options = {"separator": SEPARATOR, "min_doc_chars": 10_000}
    with raises(IntegrityError, "code", 3.0):
        run_blend(declare_pretraining(tmp_path, pretrain=options), tmp_path / "out")


def test_a_changed_weight_keeps_every_shard(tmp_path: Path) -> None:
    blend = declare_pretraining(write_small_sources(tmp_path / "s"))
    finish_blend(blend, tmp_path / "out")
    declared: Any = blend.model_dump()
    declared["blend"]["datasets"][0]["weight"] = 1.0
    outcome, receipt = run_blend(type(blend).model_validate(declared), tmp_path / "out")
    assert receipt is not None
    assert sorted(outcome.built) == ["blend_plan", "blend_preview", f"runs/{receipt.partition}"]
    assert {row["name"]: row["realised"] for row in receipt.facts["realised"]} == pytest.approx(
        {"code": 0.5, "web": 0.5}
    )


def test_a_trainer_may_see_the_storage_under_another_path(tmp_path: Path) -> None:
    blend = declare_pretraining(write_small_sources(tmp_path / "s"), trainer_root="/mnt/data/")
    directory, _, plan = finish_blend(blend, tmp_path / "out")
    root = f"/mnt/data/small_blend/runs/{plan.run_hash}/"
    assert all(e.prefix.startswith(root) for e in blend_json.read_blend(directory / "blend.json")["train"])


def _find_stale(blend: BlendDeclaration, root: Path) -> dict[str, str]:
    """Return stale artifacts with their reasons."""
    return {one.name: one.reason for one in find_stale(build_blend_specs(blend), LocalArtifacts(root))}


def test_nothing_is_stale_after_a_run_and_each_loss_is_detected(tmp_path: Path) -> None:
    blend, root = declare_pretraining(write_small_sources(tmp_path / "s")), tmp_path / "out"
    directory, _, _ = finish_blend(blend, root)
    store = LocalArtifacts(root)
    run = f"small_blend/runs/{directory.name}"
    assert _find_stale(blend, root) == {}
    (directory / "blend.json").unlink()
    assert _find_stale(blend, root) == {run: "damaged: blend.json: missing"}
    shard = store.directory(blend.artifact("indexed_bins", "code-00000"))
    (shard / "tokens.idx").write_bytes(b"")
    assert list(_find_stale(blend, root)) == ["small_blend/indexed_bins/code-00000", run]
    write_rows(tmp_path / "s" / "web" / "train-00000.parquet", make_texts("web", 9))
    found = _find_stale(blend, root)
    assert found.pop("small_blend/blend_plan") == "its source changed: web"
    assert next(iter(found.items())) == ("small_blend/blend_preview", "its input small_blend/blend_plan is out of date")
    assert set(found.values()) >= {"its input small_blend/blend_preview is out of date"}
    shutil.rmtree(root / "small_blend" / "blend_plan")
    assert next(iter(_find_stale(blend, root).items())) == ("small_blend/blend_plan", "missing")


def _count_lines(manifest: dict[str, Any]) -> dict[str, int]:
    """Return the number of records of each dataset that a reader of all listed files gets."""
    found: dict[str, int] = {}
    for path in manifest["train"]:
        for line in Path(path).read_bytes().splitlines():
            name = json.loads(line)["text"].split()[0]
            found[name] = found.get(name, 0) + 1
    return found


@pytest.mark.parametrize(
    ("weights", "read"),
    [((1.0, 1.0), {"code": 90, "web": 60}), ((0.3, 0.1), {"code": 270, "web": 60}), ((1, 2), {"code": 90, "web": 120})],
)
def test_rl_records_are_listed_according_to_the_weights(
    tmp_path: Path, weights: tuple[float, float], read: dict[str, int]
) -> None:
    blend = declare_weighted_records(tmp_path / "s", weights)
    directory, receipt, plan = finish_blend(blend, tmp_path / "out")
    manifest = json.loads((directory / "shards.json").read_bytes())
    assert _count_lines(manifest) == read
    assert manifest["records"] == {"train": sum(read.values())}
    assert len(set(manifest["train"])) == 4  # every file is stored once
    for row in receipt.facts["realised"]:
        share = read[row["name"].removesuffix("__train")] / sum(read.values())
        assert (row["requested"], row["realised"]) == pytest.approx((share, share))
        assert row["rows"] * row["epochs"] == read[row["name"].removesuffix("__train")]
    preview = {source.name: source for source in preview_blend(blend, plan)}
    for row in receipt.facts["realised"]:
        expected = preview[row["name"]]
        assert (expected.requested, expected.realisable) == pytest.approx((row["requested"], row["realised"]))
        assert (expected.epochs, expected.samples) == (row["epochs"], row["rows"] * row["epochs"])


def test_rl_weights_that_no_list_can_realize_are_shown_with_both_values(tmp_path: Path) -> None:
    blend = declare_weighted_records(tmp_path / "s", (3.0, 2.0))
    _, receipt, plan = finish_blend(blend, tmp_path / "out")
    asked, had = pytest.approx((270 / 390, 120 / 390)), pytest.approx((180 / 240, 60 / 240))
    assert tuple(row["requested"] for row in receipt.facts["realised"]) == asked
    assert tuple(row["realised"] for row in receipt.facts["realised"]) == had
    preview = preview_blend(blend, plan)
    assert tuple(source.requested for source in preview) == asked
    assert tuple(source.realisable for source in preview) == had


def test_an_rl_weight_that_would_list_endless_records_is_refused(tmp_path: Path) -> None:
    with raises(ConfigError, "web__train", 100):
        run_blend(declare_weighted_records(tmp_path / "s", (1e-3, 1.0)), tmp_path / "out")


def test_a_blend_is_built_from_google_buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("google.cloud.storage")
    local = declare_weighted_records(tmp_path / "s", (1.0, 1.0))
    with GcsServer() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "project")
        for path in (p for p in (tmp_path / "s").rglob("*") if p.is_file()):
            server.store(path.relative_to(tmp_path / "s").as_posix(), path.read_bytes())
        entries = [
            {"name": "code", "path": f"gs://{server.bucket}/code"},
            {"name": "web", "path": f"gs://{server.bucket}/web/*.parquet"},
        ]
        blend = declare_weighted_records(
            tmp_path / "s", (1.0, 1.0), blend={"train": entries}, sources={"object_cache": tmp_path / "objects"}
        )
        directory, _, _ = finish_blend(blend, tmp_path / "out")
        assert list(find_stale(build_blend_specs(blend), LocalArtifacts(tmp_path / "out"))) == []
    of_folders, _, _ = finish_blend(local, tmp_path / "of folders")
    made, wanted = (
        sorted((path.relative_to(place).parts[1], path.name, path.read_bytes()) for path in place.rglob("*.jsonl"))
        for place in (directory, of_folders)
    )
    assert made == wanted
    assert len(made) == 5  # four shards, and one file for the whole split
