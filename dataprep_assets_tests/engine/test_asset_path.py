"""Convert an artifact to the path of its asset and back, which another code location must do with only the path."""

import pytest

from dataprep_assets.engine.artifact.spec import OF_SPLITS, build_asset_path, parse_asset_path
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import Artifact
from dataprep_assets_tests.messages import raises


@pytest.mark.parametrize("name", OF_SPLITS)
@pytest.mark.parametrize("split", ["train", "held_out", "train_bins"])
def test_the_path_of_a_split_artifact_leads_back_to_it(name: str, split: str) -> None:
    path = build_asset_path("corpus", name, split)
    assert path == ("corpus", f"{name}_{split}")
    assert parse_asset_path(path, None) == Artifact(dataset="corpus", name=name, partition=split)
    # The name of a shard contains its split.
    assert parse_asset_path(path, "train-00001") == Artifact(dataset="corpus", name=name, partition="train-00001")


@pytest.mark.parametrize("name", ["manifest", "nanogpt_bins", "packed_cohorts", "blend_snapshot", "snapshot"])
def test_the_path_of_an_artifact_of_all_splits_leads_back_to_it(name: str) -> None:
    assert parse_asset_path(build_asset_path("corpus", name), "2010-11") == Artifact(
        dataset="corpus", name=name, partition="2010-11"
    )
    assert parse_asset_path(build_asset_path("corpus", name), None) == Artifact(dataset="corpus", name=name)


@pytest.mark.parametrize(("name", "split"), [("nanogpt_bins", "train"), ("snapshot_of_files", None)])
def test_an_ambiguous_name_is_refused(name: str, split: str | None) -> None:
    with raises(ValueError, "snapshot", "combined_bins"):
        build_asset_path("corpus", name, split)


@pytest.mark.parametrize("path", [["corpus"], ["corpus", "train", "token_bins"]])
def test_a_path_with_a_different_form_is_named(path: list[str]) -> None:
    with raises(ConfigError, "/".join(path), "<dataset>/<artifact>"):
        parse_asset_path(path, None)
