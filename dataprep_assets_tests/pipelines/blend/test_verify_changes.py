"""`verify_path` calls the run of an earlier plan what it is: as it was built, whatever became of its shards since."""

from pathlib import Path

from dataprep_assets.engine.lock.drift import find_copy_drift
from dataprep_assets.engine.lock.lock import build_lock
from dataprep_assets.integrity.verify import read_receipts_below, verify_path
from dataprep_assets_tests.pipelines.blend.pipeline import (
    blend_json,
    finished,
    pretraining,
    small_sources,
    texts,
    write_rows,
)


def test_the_run_of_an_earlier_plan_is_not_damaged(tmp_path: Path) -> None:
    sources, root = small_sources(tmp_path / "sources"), tmp_path / "root"
    weighed = blend_json(sources)
    runs = {finished(pretraining(sources, num_shards=2), root)[1].partition}
    assert not any(one.defects or one.changed_inputs for one in verify_path(root))
    weighed["datasets"][1]["weight"] = 2.0
    runs.add(finished(pretraining(sources, num_shards=2, blend=weighed), root)[1].partition)
    (former,) = build_lock(read_receipts_below(root), "root").obsolete
    assert former in {f"runs/{run}" for run in runs}
    lock = build_lock(read_receipts_below(root), "root")
    assert [one.name for one in find_copy_drift(lock, verify_path(root, strays=True)) if not one.is_obsolete] == []
    assert not any(one.defects or one.changed_inputs for one in verify_path(root))
    # shards of both runs are rebuilt, for another one
    write_rows(sources / "code" / "part-2.jsonl.zst", texts("code", 41))
    write_rows(sources / "web" / "train-00000.parquet", texts("web", 61))
    now = finished(pretraining(sources, num_shards=2, blend=weighed), root)[1].partition
    assert len({*runs, now}) == 3
    found = list(verify_path(root))
    assert not any(one.defects for one in found)
    assert {one.name.rpartition("/")[2] for one in found if one.changed_inputs} == runs
