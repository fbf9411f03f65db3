"""From an artifact to the path of its asset and back, which another code location has to do with the path alone."""

import pytest

from dataprep_assets.engine.artifact.spec import OF_SPLITS, build_asset_path, parse_asset_path
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import Artifact
from dataprep_assets_tests.messages import raises


@pytest.mark.parametrize("name", OF_SPLITS)
@pytest.mark.parametrize("split", ["train", "held_out", "train_bins"])
def test_an_artifact_of_a_split_is_found_again(name: str, split: str) -> None:
    path = build_asset_path("corpus", name, split)
    assert path == ("corpus", f"{name}_{split}")
    assert parse_asset_path(path, None) == Artifact(dataset="corpus", name=name, partition=split)
    # a shard's name says its split
    assert parse_asset_path(path, "train-00001") == Artifact(dataset="corpus", name=name, partition="train-00001")


@pytest.mark.parametrize("name", ["manifest", "nanogpt_bins", "packed_cohorts", "blend_snapshot", "snapshot"])
def test_an_artifact_of_all_splits_is_found_again(name: str) -> None:
    assert parse_asset_path(build_asset_path("corpus", name), "2010-11") == Artifact(
        dataset="corpus", name=name, partition="2010-11"
    )
    assert parse_asset_path(build_asset_path("corpus", name), None) == Artifact(dataset="corpus", name=name)


@pytest.mark.parametrize(("name", "split"), [("nanogpt_bins", "train"), ("snapshot_of_files", None)])
def test_a_name_that_could_be_taken_for_another_is_refused(name: str, split: str | None) -> None:
    with raises(ValueError, "snapshot", "combined_bins"):
        build_asset_path("corpus", name, split)


@pytest.mark.parametrize("path", [["corpus"], ["corpus", "train", "token_bins"]])
def test_a_path_of_another_form_is_named(path: list[str]) -> None:
    with raises(ConfigError, "/".join(path), "<dataset>/<artifact>"):
        parse_asset_path(path, None)
