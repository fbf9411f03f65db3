"""The check of a run's shares: the trainer reads as much of each dataset as requested."""

import json
from dataclasses import replace
from pathlib import Path

from dataprep_assets.pipelines.blend.blend_checks import blend_run_intact, mixture_matches_weights
from dataprep_assets.stream.declaration import BadRecordPolicy
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.blend.finished_blend import finish
from dataprep_assets_tests.pipelines.blend.pipeline import (
    declare_pretraining,
    make_texts,
    write_rows,
    write_small_sources,
)
from dataprep_assets_tests.pipelines.blend.rl.records import declare_weighted_records
from dataprep_assets_tests.tools.drill.box import reseal


def test_more_epochs_than_allowed_fail(tmp_path: Path) -> None:
    blend = declare_pretraining(write_small_sources(tmp_path / "s"), max_epochs=1.2)
    good = finish(blend, tmp_path / "out")
    finding = mixture_matches_weights(good.run)
    assert not finding.passed
    assert_names(finding.summary, "code", "1.26")
    enough = blend.model_copy(update={"max_epochs": 1.3})
    assert mixture_matches_weights(replace(good.run, blend=enough)).passed


def test_rl_shares_are_computed_from_the_records_in_the_manifest(tmp_path: Path) -> None:
    good = finish(declare_weighted_records(tmp_path / "s", (1.0, 1.0)), tmp_path / "out")
    finding = mixture_matches_weights(good.run)
    assert finding.passed, finding.summary
    assert finding.facts["largest_difference"] < 1e-9
    path = good.directory / "shards.json"
    whole = json.loads(path.read_bytes())
    path.write_text(json.dumps(whole | {"train": [*whole["train"], whole["train"][0]]}))
    reseal(good.directory)
    assert not blend_run_intact(good.run).passed


def test_rl_records_that_a_transform_drops_reduce_the_share(tmp_path: Path) -> None:
    """A dataset that loses records to a transform no longer gives the requested blend.

    See docs/known-failures.md.
    """
    blend = declare_weighted_records(tmp_path / "s", (1.0, 1.0), rl={"transforms": [{"select": ["text", "id"]}]})
    for file, first in (("part-2.jsonl.zst", 0), ("part-10.jsonl.gz", 40)):
        rows = [row | ({"id": i} if i % 3 == 0 else {}) for i, row in enumerate(make_texts("code", 45, first))]
        write_rows(tmp_path / "s" / "code" / file, rows)
    write_rows(tmp_path / "s" / "web" / "train-00000.parquet", [row | {"id": 0} for row in make_texts("web", 60)])
    good = finish(blend.model_copy(update={"bad_records": BadRecordPolicy(policy="drop", budget=1)}), tmp_path / "out")
    finding = mixture_matches_weights(good.run)
    assert not finding.passed
    assert_names(finding.summary, "train", "code__train", "0.6000", "0.3333")
    assert "transform" in finding.summary
    lenient = good.blend.model_copy(update={"tolerance": 0.5})
    assert mixture_matches_weights(replace(good.run, blend=lenient)).passed


def test_rl_records_that_are_read_too_often_fail_the_check(tmp_path: Path) -> None:
    good = finish(declare_weighted_records(tmp_path / "s", (3.0, 1.0), max_epochs=2), tmp_path / "out")
    finding = mixture_matches_weights(good.run)
    assert not finding.passed
    assert_names(finding.summary, "code__train", "3.00")
