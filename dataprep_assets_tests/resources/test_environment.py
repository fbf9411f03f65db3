"""The environment names a storage: the right one is opened, a missing variable is named, and no secret is shown."""

from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.bucket import BucketArtifacts
from dataprep_assets.integrity.storage import find_local_storage
from dataprep_assets.resources import build_resources
from dataprep_assets.resources.environment import build_storage, open_storage
from dataprep_assets.stores.connect import GcsAddress, S3Address
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.resources.variables import KEY_ID, R2, SECRET


def test_the_default_is_a_folder_of_the_project(environment: Any, tmp_path: Path) -> None:
    environment({})
    assert open_storage(tmp_path).artifacts() == LocalArtifacts(tmp_path / ".dataprep" / "artifacts")
    environment({"DATAPREP_ROOT": "elsewhere"})
    assert open_storage(tmp_path).artifacts() == LocalArtifacts(tmp_path / "elsewhere")
    assert set(build_resources(tmp_path)) == {"storage", "artifacts"}


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {
            "DATAPREP_STORAGE": "local",
            "DATAPREP_ROOT": "elsewhere",
            "DATAPREP_CACHE": "~/c",
            "DATAPREP_CACHE_BYTES": "9",
        },
    ],
)
def test_a_folder_gives_the_same_storage_without_dagsters_resource(
    variables: dict[str, str], environment: Any, tmp_path: Path
) -> None:
    environment(variables)
    resource, found = open_storage(tmp_path), find_local_storage(tmp_path)
    assert found is not None
    assert found.address() == resource.address()
    for declared in (None, "file:///folder", "s3://bucket/prefix"):
        for private in (False, True):
            assert found.artifacts(declared, private=private) == resource.artifacts(declared, private=private)


def test_a_bucket_needs_the_resource(environment: Any, tmp_path: Path) -> None:
    environment(R2)
    assert find_local_storage(tmp_path) is None


def test_the_upstream_variables_name_a_bucket_of_r2(environment: Any, tmp_path: Path) -> None:
    environment(R2)
    place = open_storage(tmp_path).address()
    assert place == S3Address(
        bucket="corpora",
        prefix="remote/tokenized",
        endpoint_url="https://0123456789abcdef.r2.cloudflarestorage.com",
        access_key_id=KEY_ID,
        secret_access_key=SECRET,
        key_names=("R2_DATASET_WRITE_ACCESS_KEY_ID", "R2_DATASET_WRITE_SECRET_ACCESS_KEY"),
    )
    store = open_storage(tmp_path).artifacts()
    assert isinstance(store, BucketArtifacts)
    assert store.url == "s3://corpora/remote/tokenized"
    assert store.root.is_relative_to(tmp_path / ".dataprep" / "cache")


def test_the_projects_own_variables_have_priority(environment: Any, tmp_path: Path) -> None:
    environment(
        R2
        | {
            "DATAPREP_ROOT": "own/",
            "DATAPREP_BUCKET": "other",
            "DATAPREP_ENDPOINT_URL": "http://127.0.0.1:1",
            "DATAPREP_CACHE": str(tmp_path / "c"),
            "DATAPREP_CACHE_BYTES": "1000",
        }
    )
    store = open_storage(tmp_path).artifacts()
    assert isinstance(store, BucketArtifacts)
    assert (store.url, store.budget_bytes) == ("s3://other/own", 1000)
    assert store.root.parent == tmp_path / "c"


def test_read_credentials_are_used_if_there_are_no_others(environment: Any, tmp_path: Path) -> None:
    values = {name.replace("WRITE", "READ"): value for name, value in R2.items()}
    environment(values)
    place = open_storage(tmp_path).address()
    assert isinstance(place, S3Address)
    assert place.key_names[0] == "R2_DATASET_READ_ACCESS_KEY_ID"
    assert place.access_key_id == KEY_ID


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"DATAPREP_STORAGE": "tape"}, ("DATAPREP_STORAGE", "'tape'")),
        ({"DATAPREP_STORAGE": "gcs"}, ("DATAPREP_BUCKET",)),
        ({"DATAPREP_STORAGE": "s3"}, ("DATAPREP_BUCKET", "R2_DATASET_BUCKET_NAME")),
        ({"DATAPREP_STORAGE": "r2", "DATAPREP_BUCKET": "b"}, ("DATAPREP_ENDPOINT_URL",)),
        (
            {"DATAPREP_STORAGE": "r2", "DATAPREP_BUCKET": "b", "R2_DATASET_ACCOUNT_ID": "a"},
            ("R2_DATASET_WRITE_ACCESS_KEY_ID",),
        ),
        (
            {"DATAPREP_STORAGE": "s3", "DATAPREP_BUCKET": "b", "R2_DATASET_WRITE_ACCESS_KEY_ID": KEY_ID},
            ("R2_DATASET_WRITE_SECRET_ACCESS_KEY",),
        ),
        (
            {"DATAPREP_STORAGE": "s3", "DATAPREP_BUCKET": "b", "R2_DATASET_READ_SECRET_ACCESS_KEY": SECRET},
            ("R2_DATASET_READ_ACCESS_KEY_ID",),
        ),
        (
            {"DATAPREP_STORAGE": "s3", "DATAPREP_BUCKET": "b", "R2_DATASET_ACCOUNT_ID": "https://a.b"},
            ("R2_DATASET_ACCOUNT_ID", "URL"),
        ),
        ({"DATAPREP_CACHE_BYTES": "10GB"}, ("DATAPREP_CACHE_BYTES", "10GB")),
    ],
)
def test_a_missing_or_wrong_variable_is_named(
    values: dict[str, str], named: tuple[str, ...], environment: Any, tmp_path: Path
) -> None:
    environment(values)
    with raises(ConfigError, *named) as caught:
        build_storage(tmp_path)
    assert SECRET not in str(caught.value)
    assert KEY_ID not in str(caught.value)


def test_gcs_needs_a_bucket_and_a_project(environment: Any, tmp_path: Path) -> None:
    environment({"DATAPREP_STORAGE": "gcs", "DATAPREP_BUCKET": "b", "DATAPREP_ROOT": "p", "GOOGLE_CLOUD_PROJECT": "x"})
    assert open_storage(tmp_path).address() == GcsAddress(bucket="b", prefix="p", project="x")


def test_no_secret_is_in_any_repr_or_in_the_resources_config(environment: Any, tmp_path: Path) -> None:
    environment(R2)
    storage = build_storage(tmp_path)
    opened = open_storage(tmp_path)
    shown = [repr(x) for x in (storage, opened.address(), opened.artifacts(), build_resources(tmp_path))]
    shown.append(str(storage.address))
    for text in shown:
        assert SECRET not in text
    assert SECRET not in repr(storage._convert_to_config_dictionary())
