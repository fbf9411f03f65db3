"""Every view that there is, as Dagster makes and checks it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from dataprep_assets.pipelines.corpus.view import artifact_name
from dataprep_assets.pipelines.corpus.views import VIEWS
from dataprep_assets_tests.project import Project, failure_of, project, sample_attributes
from dataprep_assets_tests.samples import SAMPLE, SMALL

NAMES = [artifact_name(view) for view in VIEWS]
CHECKS = ("matches_combined_bins", "layout_valid", "no_retracted_document")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    attributes = sample_attributes(
        source={"kind": "local", "path": str(SMALL)},
        splits={"val": ["validation/**"]},
        shards={},
        tokenizer={"path": str(SAMPLE / "tokenizer"), "engine": "tokenizers"},
        views=list(VIEWS),
        mds_sequence_length=128,
        workers=1,
    )
    with project(attributes, tmp_path_factory.mktemp("views")) as made:
        made.run_all()
        yield made


def evaluations(made: Project) -> dict[tuple[str, str], dg.AssetCheckEvaluation]:
    outcome = made.run([made.key(name) for name in NAMES])
    return {(e.asset_key.path[-1], e.check_name): e for e in outcome.get_asset_check_evaluations()}


def test_every_view_is_checked_and_a_second_run_makes_nothing(finished: Project) -> None:
    found = evaluations(finished)
    assert set(found) == {(name, check) for name in NAMES for check in CHECKS}
    assert all(evaluation.passed for evaluation in found.values())
    for name in NAMES:
        event = finished.instance.get_latest_materialization_event(finished.key(name))
        assert event is not None
        assert event.asset_materialization is not None
        assert event.asset_materialization.metadata["reused"].value is True


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
        outcome = made.run([made.key("mds_bins")])
        assert not outcome.success
        assert "Lower `mds_sequence_length`" in failure_of(outcome)
