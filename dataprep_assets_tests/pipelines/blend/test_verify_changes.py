"""`verify_path` accepts the run of an earlier plan as built, whatever happened to its shards since."""

from pathlib import Path

from dataprep_assets.engine.lock.drift import find_copy_drift
from dataprep_assets.engine.lock.lock import build_lock
from dataprep_assets.integrity.verify import read_receipts_below, verify_path
from dataprep_assets_tests.pipelines.blend.pipeline import (
    declare_pretraining,
    finish_blend,
    make_texts,
    write_blend_json,
    write_rows,
    write_small_sources,
)


def test_the_run_of_an_earlier_plan_is_not_damaged(tmp_path: Path) -> None:
    sources, root = write_small_sources(tmp_path / "sources"), tmp_path / "root"
    weighed = write_blend_json(sources)
    runs = {finish_blend(declare_pretraining(sources, num_shards=2), root)[1].partition}
    assert not any(one.defects or one.changed_inputs for one in verify_path(root))
    weighed["datasets"][1]["weight"] = 2.0
    runs.add(finish_blend(declare_pretraining(sources, num_shards=2, blend=weighed), root)[1].partition)
    (former,) = build_lock(read_receipts_below(root), "root").obsolete
    assert former in {f"runs/{run}" for run in runs}
    lock = build_lock(read_receipts_below(root), "root")
    assert [one.name for one in find_copy_drift(lock, verify_path(root, strays=True)) if not one.is_obsolete] == []
    assert not any(one.defects or one.changed_inputs for one in verify_path(root))
    # Change both sources, so that a third run replaces the shards of both earlier runs.
    write_rows(sources / "code" / "part-2.jsonl.zst", make_texts("code", 41))
    write_rows(sources / "web" / "train-00000.parquet", make_texts("web", 61))
    now = finish_blend(declare_pretraining(sources, num_shards=2, blend=weighed), root)[1].partition
    assert len({*runs, now}) == 3
    found = list(verify_path(root))
    assert not any(one.defects for one in found)
    assert {one.name.rpartition("/")[2] for one in found if one.changed_inputs} == runs
