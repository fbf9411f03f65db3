"""The copied views as Dagster makes and checks them."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from dataprep_assets.pipelines.corpus.views_checks import CHECKS
from dataprep_assets_tests.project import SAMPLE, Project, failure_of, project, sample_attributes

VIEWS = ("mds_bins", "hf_parquet_bins")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    attributes = sample_attributes(
        source={"kind": "local", "path": str(SAMPLE / "data")},
        splits={"val": ["validation/**"]},
        shards={},
        tokenizer={"path": str(SAMPLE / "tokenizer"), "engine": "tokenizers"},
        views=["mds", "hf_parquet"],
        mds_sequence_length=128,
        workers=1,
    )
    with project(attributes, tmp_path_factory.mktemp("views")) as made:
        made.run_all()
        yield made


def evaluations(made: Project) -> dict[tuple[str, str], dg.AssetCheckEvaluation]:
    outcome = made.run([made.dataset.key(view) for view in VIEWS])
    return {(e.asset_key.path[-1], e.check_name): e for e in outcome.get_asset_check_evaluations()}


def test_both_are_checked_and_a_second_run_makes_nothing(finished: Project) -> None:
    found = evaluations(finished)
    assert set(found) == {(view, check) for view in VIEWS for check in CHECKS}
    assert all(evaluation.passed for evaluation in found.values())
    for view in VIEWS:
        event = finished.instance.get_latest_materialization_event(finished.dataset.key(view))
        assert event is not None
        assert event.asset_materialization is not None
        assert event.asset_materialization.metadata["up_to_date"].value is True


def test_a_damaged_view_is_made_again_by_the_next_run(finished: Project) -> None:
    directory = finished.directory("mds_bins")
    shard = directory / "val" / "shard.00000.mds"
    whole = shard.read_bytes()
    shard.unlink()
    shard.write_bytes(whole[:-1])
    assert all(evaluation.passed for evaluation in evaluations(finished).values())
    assert shard.read_bytes() == whole


def test_a_view_of_no_whole_sample_fails_and_says_what_to_set(finished: Project, tmp_path: Path) -> None:
    shutil.copytree(finished.root, tmp_path / "artifacts")
    attributes = {
        **sample_attributes(splits={"val": ["validation/**"]}, shards={}, views=["mds"], workers=1),
        "tokenizer": {"path": str(SAMPLE / "tokenizer"), "engine": "tokenizers"},
        "mds_sequence_length": 1 << 20,
    }
    with project(attributes, tmp_path) as made:
        outcome = made.run([made.dataset.key("mds_bins")])
        assert not outcome.success
        assert "Set `mds_sequence_length`" in failure_of(outcome)
