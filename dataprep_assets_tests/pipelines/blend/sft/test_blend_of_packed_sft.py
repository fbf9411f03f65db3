"""An SFT blend from its sources to the split directories that a trainer reads."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dataprep_assets.engine.artifact.spec import list_folders
from dataprep_assets.engine.staleness.status import find_stale, remove_leftovers
from dataprep_assets.errors import IntegrityError
from dataprep_assets.formats import blend_json
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.integrity.verify import verify_path
from dataprep_assets.pipelines.blend.blend_checks import CHECKS, OpenedRun, blend_run_intact, mixture_matches_weights
from dataprep_assets.pipelines.blend.blend_sample import build_blend_engine
from dataprep_assets.pipelines.blend.dataset import build_blend_specs
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.blend_plan import build_blend_plan
from dataprep_assets.pipelines.blend.plan.blend_preview import build_blend_preview
from dataprep_assets.pipelines.blend.plan.blend_snapshot import build_blend_snapshot
from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
from dataprep_assets.pipelines.blend.runs import build_blend_run
from dataprep_assets.pipelines.blend.sft.packed_sft import build_packed_sft, prepare_sft_shards
from dataprep_assets.pipelines.blend.sft.spool import get_spool_artifact
from dataprep_assets.stores.files import sha256_file
from dataprep_assets.stream.engine_certificate import ensure_certificate
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.blend.pipeline import declare_pretraining, make_text, write_rows
from dataprep_assets_tests.tools.drill.box import reseal

TEMPLATE = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '<|endoftext|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def _chat(name: str, count: int) -> list[dict[str, Any]]:
    return [
        {"turns": [{"role": "user", "content": f"{name} {i}?"}, {"role": "assistant", "content": make_text(name, i)}]}
        for i in range(count)
    ]


def _blend(folder: Path, **changes: Any) -> BlendDeclaration:
    entries = []
    for name, rows, weight in (("big", 80, 1.0), ("small", 20, 1.0)):
        path = write_rows(folder / f"{name}.jsonl.zst", _chat(name, rows))
        entries.append({"name": name, "path": str(path), "weight": weight, "messages_field": "turns"})
    return declare_pretraining(
        folder,
        stage="sft",
        pretrain=None,
        blend={"datasets": entries},
        **{"tolerance": 0.05, "num_shards": 8, "sft": {"pack_size": 64, "chat_template": TEMPLATE}} | changes,
    )


def _run(blend: BlendDeclaration, root: Path) -> tuple[Receipt, Path]:
    store = LocalArtifacts(root)
    build_blend_plan(blend, store)
    plan = load_blend_plan(blend, store)
    build_blend_preview(blend, store, plan)
    for partition in plan.partitions:
        build_blend_snapshot(blend, store, plan, partition)
    ensure_certificate(build_blend_engine(blend), store)
    shards = prepare_sft_shards(blend, store, plan, plan.partitions)
    results = list(build_packed_sft(shards, workers=1))
    assert not [result.error for result in results if result.error]
    receipt, _ = build_blend_run(blend, store, plan, shards)
    return receipt, store.directory(blend.artifact("runs", plan.run_hash))


def test_split_directories_contain_rows_in_proportion_to_the_weights(tmp_path: Path) -> None:
    blend = _blend(tmp_path / "s")
    receipt, directory = _run(blend, tmp_path / "out")
    files = sorted((directory / "splits" / "train").iterdir())
    rows: dict[str, int] = {"big": 0, "small": 0}
    for position, path in enumerate(files):
        name = path.name.split("__")[1]
        assert path.name.startswith(f"{position:06d}__{name}__shard_")
        # A link to a file outside the folder would break when the folder is moved
        # (docs/formats/blend-json.md#output).
        assert not path.is_symlink()
        rows[name] += pq.read_metadata(path).num_rows
    table = {row["name"]: row for row in receipt.facts["realised"]}
    assert {name: table[name]["rows"] for name in rows} == rows
    assert table["small"]["realised"] == pytest.approx(0.5, abs=0.05)
    assert table["small"]["shards"] == 8
    assert table["big"]["shards"] < 8  # whole shards are left out to meet the weights


def test_its_blend_json_lists_the_shards_in_the_split_directories(tmp_path: Path) -> None:
    """Nemotron's `stage1_sft/data_prep.py` writes it next to the split directories, and its trainer reads it."""
    blend = _blend(tmp_path / "s", held_out={"valid": 1})
    _, directory = _run(blend, tmp_path / "out")
    splits = blend_json.read_blend(directory / "blend.json")
    assert set(splits) == {"train", "valid"}
    for split, entries in splits.items():
        stored = {sha256_file(Path(f"{entry.prefix}.parquet")) for entry in entries}
        assert stored == {sha256_file(path) for path in (directory / "splits" / split).iterdir()}
        assert sum(entry.weight for entry in entries) == pytest.approx(1)
    store = LocalArtifacts(tmp_path / "out")
    assert blend_run_intact(OpenedRun.open(blend, store)).passed
    value = json.loads((directory / "blend.json").read_bytes())
    (directory / "blend.json").write_text(json.dumps(value | {"train": value["train"][2:]}))
    reseal(directory)
    assert_names(blend_run_intact(OpenedRun.open(blend, store)).summary, "blend.json")


def test_its_run_passes_the_checks_and_nothing_is_stale(tmp_path: Path) -> None:
    blend = _blend(tmp_path / "s")
    _, directory = _run(blend, tmp_path / "out")
    store = LocalArtifacts(tmp_path / "out")
    plan = load_blend_plan(blend, store)
    shards = prepare_sft_shards(blend, store, plan, plan.partitions)
    for check in CHECKS:
        finding = check.run(OpenedRun.open(blend, store))
        assert finding.passed, finding.summary
    assert list(find_stale(build_blend_specs(blend), store)) == []
    # Create the leftovers of two killed builds: one of a shard that no longer exists, and one of an existing shard,
    # which another run may be building.
    spools, gone = LocalArtifacts(shards[0].scratch), get_spool_artifact(blend.artifact("packed_sft", "gone-00000"), 0)
    for spool in (gone, get_spool_artifact(shards[0].artifact, 0)):
        spools.directory(spool).mkdir(parents=True)
        (spools.directory(spool) / "tokens.bin").touch()
    # The spools must be in a folder that `permissions_private` checks.
    assert spools.root.is_relative_to(list_folders(store, blend.dataset)[0])
    assert [str(one) for one in verify_path(tmp_path / "out") if one.defects] == []
    remove_leftovers(build_blend_specs(blend), store)
    assert spools.partitions(blend.dataset, "sft_spool") == [f"{shards[0].artifact.partition}.00000000"]
    next((directory / "splits" / "train").iterdir()).unlink()
    assert not blend_run_intact(OpenedRun.open(blend, store)).passed


def test_shards_too_large_for_the_weights_fail_the_check(tmp_path: Path) -> None:
    blend = _blend(tmp_path / "s", num_shards=2)
    _run(blend, tmp_path / "out")
    finding = mixture_matches_weights(OpenedRun.open(blend, LocalArtifacts(tmp_path / "out")))
    assert not finding.passed
    assert_names(finding.summary, "0.5000")


def test_held_out_shards_are_not_compared_with_the_weights(tmp_path: Path) -> None:
    blend = _blend(tmp_path / "s", held_out={"valid": 1})
    _run(blend, tmp_path / "out")
    run = OpenedRun.open(blend, LocalArtifacts(tmp_path / "out"))
    realized = {(row.split, row.name): row.realised for row in run.facts.realised}
    assert realized["valid", "big"] > 0.7
    assert mixture_matches_weights(run).passed
    exact = OpenedRun.open(blend.model_copy(update={"tolerance": 0.0}), LocalArtifacts(tmp_path / "out"))
    finding = mixture_matches_weights(exact)
    assert finding.passed == (realized["train", "big"] == 0.5)
    assert {row["split"] for row in finding.table} == {"train", "valid"}


def test_a_dataset_that_lost_everything_names_the_reason(tmp_path: Path) -> None:
    blend = _blend(tmp_path / "s", num_shards=1, sft={"chat_template": TEMPLATE, "pack_size": 4})
    with pytest.raises(IntegrityError) as raised:
        _run(blend, tmp_path / "out")
    assert str(raised.value) == (
        "small_blend: big (first file: big.jsonl.zst): has a weight of 1.0, but no data in any shard: none of its 80 "
        "rows was kept: 80 empty_after_masking in big.jsonl.zst. If every answer was cut off at `pack_size: 4`, raise "
        "`pack_size`. Otherwise, correct the source or its fields, or set the weight to 0"
    )
    dropping = {"chat_template": TEMPLATE, "pack_size": 4, "too_long": "drop"}
    with raises(IntegrityError, "longer_than_pack_size", 80, "`pack_size`", "`too_long: truncate`") as raised:
        _run(_blend(tmp_path / "t", num_shards=1, sft=dropping), tmp_path / "dropped")
