"""`verify` reports missing token bins from which shards of a release were cut."""

from pathlib import Path

from dataprep_assets_tests.lost_inputs import find_input_defects
from dataprep_assets_tests.pipelines.release.conftest import Bins


def test_lost_token_bins_are_reported_for_every_shard_cut_from_them(bins: Bins, tmp_path: Path) -> None:
    own = bins.copied(tmp_path)
    declared = own.declare(shuffle_seed=None)
    layout = own.build(declared)
    told = find_input_defects(own.root, declared.dataset, "token_bins/train-00000")
    missing = "its input token_bins/train-00000 is missing. Rebuild token_bins/train-00000"
    assert told[f"{declared.dataset}/combined_bins/train"] == (missing,)
    cut = {name for name in told if "/npy_shards/" in name}
    assert f"{declared.dataset}/npy_shards/{layout.partitions[0]}" in cut
    assert all(told[name] == (missing,) for name in cut)
    assert len(cut) < len([p for p in layout.partitions if p.startswith("train")]), "others were cut from other bins"
