"""The proof on a blend's preview fails on a dataset that rounds to zero."""

from pathlib import Path

from dataprep_assets.pipelines.blend.blend_preview import nothing_rounds_to_zero
from dataprep_assets_tests.pipelines.blend.finished_blend import finish
from dataprep_assets_tests.pipelines.blend.pipeline import blend_json, pretraining, small_sources


def test_a_source_that_rounds_to_zero_fails(tmp_path: Path) -> None:
    tiny = blend_json(small_sources(tmp_path / "s"))
    tiny["datasets"][1]["weight"] = 1e-6
    good = finish(pretraining(tmp_path / "s", blend=tiny), tmp_path / "out")
    finding = nothing_rounds_to_zero(good.store.require(good.blend.artifact("blend_preview")))
    assert not finding.passed
    assert finding.summary.startswith("web: a share of 0.000000 is 0 samples")
