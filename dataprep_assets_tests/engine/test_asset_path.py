"""From an artifact to the path of its asset and back, which another code location has to do with the path alone."""

import pytest

from dataprep_assets.engine.artifact.spec import OF_SPLITS, artifact_at, asset_path
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import Artifact


@pytest.mark.parametrize("name", OF_SPLITS)
@pytest.mark.parametrize("split", ["train", "held_out", "train_bins"])
def test_an_artifact_of_a_split_is_found_again(name: str, split: str) -> None:
    path = asset_path("corpus", name, split)
    assert path == ("corpus", f"{name}_{split}")
    assert artifact_at(path, None) == Artifact(dataset="corpus", name=name, partition=split)
    # a shard's name says its split
    assert artifact_at(path, "train-00001") == Artifact(dataset="corpus", name=name, partition="train-00001")


@pytest.mark.parametrize("name", ["manifest", "nanogpt_bins", "packed_cohorts", "blend_snapshot", "snapshot"])
def test_an_artifact_of_all_splits_is_found_again(name: str) -> None:
    assert artifact_at(asset_path("corpus", name), "2010-11") == Artifact(
        dataset="corpus", name=name, partition="2010-11"
    )
    assert artifact_at(asset_path("corpus", name), None) == Artifact(dataset="corpus", name=name)


@pytest.mark.parametrize(("name", "split"), [("nanogpt_bins", "train"), ("snapshot_of_files", None)])
def test_a_name_that_could_be_taken_for_another_is_refused(name: str, split: str | None) -> None:
    with pytest.raises(ValueError, match=r"only snapshot, .*combined_bins exist per split"):
        asset_path("corpus", name, split)


@pytest.mark.parametrize("path", [["corpus"], ["corpus", "train", "token_bins"]])
def test_a_path_of_another_form_is_named(path: list[str]) -> None:
    with pytest.raises(
        ConfigError, match=f"{'/'.join(path)}: not an asset of this project. Must be <dataset>/<artifact>"
    ):
        artifact_at(path, None)
