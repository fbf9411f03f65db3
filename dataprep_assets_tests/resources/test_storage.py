"""A storage resource opens its own store, or the store that a dataset declares."""

from pathlib import Path
from typing import Any

from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.bucket import BucketArtifacts
from dataprep_assets.resources import StorageResource
from dataprep_assets.resources.environment import open_storage
from dataprep_assets.stores.connect import S3Address
from dataprep_assets_tests.resources.variables import KEY_ID, R2


def test_a_datasets_own_storage_has_priority_over_the_environments(environment: Any, tmp_path: Path) -> None:
    environment(R2)
    storage = open_storage(tmp_path)
    assert storage.artifacts(str(tmp_path / "mine")) == LocalArtifacts(tmp_path / "mine")
    store = storage.artifacts("s3://mine/deep/er")
    assert isinstance(store, BucketArtifacts)
    assert store.url == "s3://mine/deep/er"
    assert isinstance(store.open_store, S3Address)
    assert store.open_store.access_key_id == KEY_ID
    other = storage.artifacts("gs://mine/deep/er")
    assert isinstance(other, BucketArtifacts)
    assert other.root != store.root


def test_a_plain_resource_needs_only_a_root(tmp_path: Path) -> None:
    assert StorageResource(root=str(tmp_path)).artifacts() == LocalArtifacts(tmp_path)
