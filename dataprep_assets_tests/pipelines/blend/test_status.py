"""Stale artifacts of a blend with their reasons, and the files that a sweep removes."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.staleness.rebuild import plan_rebuild
from dataprep_assets.engine.staleness.status import find_stale, remove_leftovers
from dataprep_assets.engine.staleness.step_times import StepTimes
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.bucket import BucketArtifacts
from dataprep_assets.pipelines.blend import runs
from dataprep_assets.pipelines.blend.dataset import build_blend_specs
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.planning.cost import Machine
from dataprep_assets.stores.connect import S3Address
from dataprep_assets_tests.fakes.buckets import new_bucket, new_client
from dataprep_assets_tests.fakes.swift_server import KEY_ID, SECRET
from dataprep_assets_tests.faults.edits import flip_byte
from dataprep_assets_tests.pipelines.blend.pipeline import (
    SEPARATOR,
    declare_pretraining,
    make_texts,
    run_blend,
    write_blend_json,
    write_rows,
    write_small_sources,
)
from dataprep_assets_tests.pipelines.blend.rl.records import declare_weighted_records

Change = Callable[[Path], BlendDeclaration | None]
"""Changes something below a folder of `s` (sources) and `out` (artifacts), or returns a changed declaration."""


def absent(home: Path) -> None:
    shutil.rmtree(home / "out/small_blend/indexed_bins/web-00001")


def damaged(home: Path) -> None:
    flip_byte(home / "out/small_blend/blend_preview/preview.json")


def source_changed(home: Path) -> None:
    write_rows(home / "s/web/train-00000.parquet", make_texts("web", 61))


def declared(**changes: Any) -> Change:
    return lambda home: declare_pretraining(home / "s", **changes)


def other_weight(home: Path) -> BlendDeclaration:
    blend = write_blend_json(home / "s")
    blend["datasets"][1]["weight"] = 2.0
    return declare_pretraining(home / "s", blend=blend)


@pytest.mark.parametrize(
    ("change", "first", "kind", "reason"),
    [
        (absent, "indexed_bins/web-00001", "missing", "missing"),
        (damaged, "blend_preview", "damaged", "damaged: preview.json: "),
        (source_changed, "blend_plan", "input changed", "its source changed: web"),
        (
            declared(pretrain={"separator": SEPARATOR, "sequence_length": 32, "max_doc_tokens": 50}),
            "blend_plan",
            "settings changed",
            "options.max_doc_tokens was not set, now 50",
        ),
        (other_weight, "blend_plan", "settings changed", "blend.web.weight was 1.0, now 2.0"),
        (declared(train_tokens=5000), "blend_preview", "settings changed", "train_tokens was not set, now 5000"),
    ],
)
def test_the_first_stale_artifact_has_the_reason_and_downstream_ones_refer_to_it(
    tmp_path: Path, change: Change, first: str, kind: str, reason: str
) -> None:
    blend, store = declare_pretraining(write_small_sources(tmp_path / "s")), LocalArtifacts(tmp_path / "out")
    run_blend(blend, tmp_path / "out")
    assert list(find_stale(build_blend_specs(blend), store)) == []
    found, *others = find_stale(build_blend_specs(change(tmp_path) or blend), store)
    assert (found.name, found.kind) == (f"small_blend/{first}", kind)
    assert found.reason.startswith(reason)
    # A damaged artifact is rebuilt with the same content, so no artifact downstream changes.
    assert {one.kind for one in others} == (set() if kind == "damaged" else {"input changed"})


def test_pending_builds_of_a_blend_are_listed_before_and_after_its_plan(tmp_path: Path) -> None:
    blend, store = declare_pretraining(write_small_sources(tmp_path / "s")), LocalArtifacts(tmp_path / "out")
    machine, times = Machine(cores=1, bandwidth=1e6), StepTimes(tmp_path / "step_times.json")
    before = plan_rebuild(build_blend_specs(blend), store, machine, times)
    assert {work.stale.kind for work in before.works} == {"missing"}
    assert before.tokenized == []
    run_blend(blend, tmp_path / "out")
    absent(tmp_path)
    (shard, _) = plan_rebuild(build_blend_specs(blend), store, machine, times).works
    assert shard.stale.partition == "web-00001"
    assert shard.reading is not None
    assert shard.reading.tokenized
    assert shard.reading.source_bytes > 0
    assert shard.tokens


def test_a_run_of_an_older_version_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blend = declare_pretraining(write_small_sources(tmp_path / "s"))
    run_blend(blend, tmp_path / "out")
    monkeypatch.setitem(runs.VERSIONS, "pretrain", 3)
    (found,) = find_stale(build_blend_specs(blend), LocalArtifacts(tmp_path / "out"))
    assert (found.kind, found.reason) == ("older version", "built by version 2 of this step; the current version is 3")


def test_records_show_their_settings(tmp_path: Path) -> None:
    before = declare_weighted_records(tmp_path / "s", (1.0, 1.0))
    run_blend(before, tmp_path / "out")
    after = declare_weighted_records(tmp_path / "s", (1.0, 1.0), rl={"compression": "zstd"})
    found = next(find_stale(build_blend_specs(after), LocalArtifacts(tmp_path / "out")))
    assert found.reason == "options.compression was none, now zstd"


def test_abandoned_uploads_of_a_blend_in_a_bucket_are_aborted(moto: str, tmp_path: Path) -> None:
    name = new_bucket(moto)
    place = S3Address(
        bucket=name, endpoint_url=moto, region="us-east-1", access_key_id=KEY_ID, secret_access_key=SECRET
    )
    blend, store = (
        declare_weighted_records(tmp_path / "s", (1.0, 1.0)),
        BucketArtifacts(tmp_path / "out", place, place.url),
    )
    outcome, receipt = run_blend(blend, store)
    assert not outcome.failed
    assert receipt is not None
    client = new_client(moto)
    for key in ("small_blend/rl_jsonl/code__train-00000/records.jsonl", "another/file"):
        client.create_multipart_upload(Bucket=name, Key=key)

    def unfinished() -> list[str]:
        return [upload["Key"] for upload in client.list_multipart_uploads(Bucket=name).get("Uploads", [])]

    assert list(find_stale(build_blend_specs(blend), store)) == []
    remove_leftovers(build_blend_specs(blend), store)  # on this server, every upload counts as started years ago
    assert unfinished() == ["another/file"]
