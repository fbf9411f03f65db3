"""The RL manifest has Nemotron's form, at a path that does not depend on the run's name."""

import json
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.blend.blend import describe_run
from dataprep_assets.pipelines.blend.dataset import build_blend_specs
from dataprep_assets.pipelines.blend.output.rl_manifest import OpenedRlManifest, points_to_latest_run
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.blend.finished_blend import FinishedBlend, finish
from dataprep_assets_tests.pipelines.blend.pipeline import write_rows
from dataprep_assets_tests.pipelines.blend.rl.records import declare_rl_blend, declare_weighted_records, make_rl_rows
from dataprep_assets_tests.tools.drill.box import reseal, write


def _opened(good: FinishedBlend) -> OpenedRlManifest:
    return OpenedRlManifest(good.blend.artifact("rl_manifest"), good.store, good.blend)


def resolve(folder: Path, key: str) -> str:
    """Return the value of `${manifest:<folder>,<key>}` in the settings of Nemotron's recipes."""
    return str(json.loads((folder / "manifest.json").read_text())[key])


def _home(good: FinishedBlend) -> Path:
    return good.store.directory(good.blend.artifact("rl_manifest"))


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_split_is_one_file_and_a_missing_one_is_an_empty_text(tmp_path: Path, compression: str) -> None:
    blend = declare_rl_blend(tmp_path / "s", {"transforms": ["nemotron_rl"], "compression": compression}, num_shards=3)
    (tmp_path / "s" / "test.parquet").unlink()
    good = finish(blend, tmp_path / "out")
    value = json.loads((_home(good) / "manifest.json").read_bytes())
    assert set(value) == {"train", "val", "test", "mode", "source_splits", "run_hash"}
    assert (value["mode"], value["test"], value["run_hash"]) == ("resolve", "", good.plan.run_hash)
    listed = json.loads((_home(good) / "shards.json").read_bytes())
    for key, count in (("train", 11), ("val", 4)):
        path = Path(resolve(_home(good), key))
        assert path.read_bytes() == b"".join(Path(part).read_bytes() for part in listed[key])
        data = path.read_bytes()
        if compression == "zstd":
            import zstandard

            data = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
        wanted = [row["responses_create_params"]["input"] for row in make_rl_rows(count)]
        assert [json.loads(line)["messages"] for line in data.splitlines()] == wanted


def test_the_path_stays_when_the_run_changes(tmp_path: Path) -> None:
    blend = declare_rl_blend(tmp_path / "s", num_shards=1)
    first = finish(blend, tmp_path / "out")
    line = f"{tmp_path}/out/small_blend/rl_manifest/manifest.json"
    assert describe_run(first.receipt) == ["NeMo-RL:", line]
    before = resolve(_home(first), "train")
    write_rows(tmp_path / "s" / "train-0.jsonl", make_rl_rows(12))
    second = finish(blend, tmp_path / "out")
    assert describe_run(second.receipt) == ["NeMo-RL:", line]
    after = resolve(_home(second), "train")
    assert before != after
    assert len(Path(before).read_bytes().splitlines()) == 11  # a trainer can continue with the old run
    assert len(Path(after).read_bytes().splitlines()) == 12
    assert list(find_stale(build_blend_specs(blend), LocalArtifacts(tmp_path / "out"))) == []


def test_records_are_repeated_according_to_the_weights(tmp_path: Path) -> None:
    good = finish(declare_weighted_records(tmp_path / "s", (2.0, 1.0)), tmp_path / "out")
    lines = Path(resolve(_home(good), "train")).read_bytes().splitlines()
    names = [json.loads(line)["text"].split()[0] for line in lines]
    assert (names.count("code"), names.count("web")) == (180, 60)


def test_a_manifest_has_the_paths_where_the_trainer_finds_the_files(tmp_path: Path) -> None:
    good = finish(declare_rl_blend(tmp_path / "s", trainer_root="/mnt/data/"), tmp_path / "out")
    run = f"/mnt/data/small_blend/runs/{good.plan.run_hash}"
    assert resolve(_home(good), "train") == f"{run}/splits/train.jsonl"
    assert describe_run(good.receipt) == ["NeMo-RL:", "/mnt/data/small_blend/rl_manifest/manifest.json"]
    assert points_to_latest_run(_opened(good)).passed


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"run_hash": "0"}, "to the run 0"),
        ({"train": ["a.jsonl"]}, "train is not a string"),
        ({"val": "/gone/val.jsonl"}, "val is /gone/val.jsonl, which is not a file of small_blend/runs/"),
    ],
)
def test_a_manifest_of_another_run_fails_its_check(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    good = finish(declare_rl_blend(tmp_path / "s"), tmp_path / "out")
    assert points_to_latest_run(_opened(good)).passed
    path = _home(good) / "manifest.json"
    value = json.loads(path.read_bytes())
    path.unlink()  # the file is a link to the run's file, which must not change
    path.write_text(json.dumps(value | change))
    finding = points_to_latest_run(_opened(good))
    assert not finding.passed
    assert told in finding.summary


def test_the_manifest_equals_the_run_s_own_byte_for_byte(tmp_path: Path) -> None:
    good = finish(declare_rl_blend(tmp_path / "s"), tmp_path / "out")
    path = _home(good) / "shards.json"
    text = path.read_bytes()
    write(path, text.replace(b'"train":', b'"train": [],\n "train":', 1))
    assert path.read_bytes() != text
    assert json.loads(path.read_bytes()) == json.loads(text), "no reader sees it"
    reseal(_home(good))
    finding = points_to_latest_run(_opened(good))
    assert_names(finding.summary, "shards.json")
