"""`verify` misses a shard that a blend's run was laid out from."""

from pathlib import Path

from dataprep_assets_tests.lost_inputs import told_without
from dataprep_assets_tests.pipelines.blend.pipeline import finished, pretraining, small_sources


def test_a_lost_shard_is_missed_by_the_run(tmp_path: Path) -> None:
    blend = pretraining(small_sources(tmp_path / "sources"), num_shards=2)
    _, receipt, plan = finished(blend, tmp_path / "root")
    lost = f"indexed_bins/{plan.partitions[0]}"
    told = told_without(tmp_path / "root", blend.dataset, lost)
    assert told == {f"{blend.dataset}/runs/{receipt.partition}": (f"its input {lost} is missing. Rebuild {lost}",)}
