"""`verify` reports a missing shard from which a blend's run was built."""

from pathlib import Path

from dataprep_assets_tests.lost_inputs import find_input_defects
from dataprep_assets_tests.pipelines.blend.pipeline import declare_pretraining, finish_blend, write_small_sources


def test_a_lost_shard_is_reported_for_the_run(tmp_path: Path) -> None:
    blend = declare_pretraining(write_small_sources(tmp_path / "sources"), num_shards=2)
    _, receipt, plan = finish_blend(blend, tmp_path / "root")
    lost = f"indexed_bins/{plan.partitions[0]}"
    told = find_input_defects(tmp_path / "root", blend.dataset, lost)
    assert told == {f"{blend.dataset}/runs/{receipt.partition}": (f"its input {lost} is missing. Rebuild {lost}",)}
