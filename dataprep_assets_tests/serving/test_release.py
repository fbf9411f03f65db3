"""The release manifest has equal bytes for equal shards, and damaged or inconsistent manifests are refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dataprep_assets.errors import ConfigError, FormatError, MissingArtifactError
from dataprep_assets.serving.window.release import Release, ReleaseLocation, locate_release, read_release
from dataprep_assets.stores.connect import S3Address, parse_place
from dataprep_assets.stores.local import LocalStore
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.serving.releases import make_release, published


def test_a_manifest_is_read_back_unchanged(tmp_path: Path) -> None:
    release = make_release(tmp_path, (8, 4), val=1)
    data = release.to_bytes()
    again = Release.from_bytes(data, "x")
    assert again == release
    assert again.to_bytes() == data
    assert [f.key for f in release.files] == [
        "train_000000.npy",
        "sample_ids_000000.bin",
        "train_000001.npy",
        "sample_ids_000001.bin",
        "val/val_000000.npy",
        "val/sample_ids_000000.bin",
    ]


def test_a_changed_manifest_is_refused(tmp_path: Path) -> None:
    data = make_release(tmp_path).to_bytes()
    value = json.loads(data)
    value["shards"]["train"][0]["token_file"]["sha256"] = "0" * 64
    for spoilt, values in (
        (json.dumps(value).encode(), ("digest",)),
        (data[:-30], ("manifest",)),
        (b"[]", ("manifest",)),
        (json.dumps({**value, "schema_version": 9}).encode(), (9,)),
        (json.dumps({**value, "shards": {"train": [{}]}}).encode(), ("manifest",)),
        (json.dumps({**value, "vocab_size": float("nan")}).encode(), ("manifest",)),
        (json.dumps({**value, "dataset": "\ud800"}).encode(), ("manifest",)),
    ):
        with raises(FormatError, "release.json", *values):
            Release.from_bytes(spoilt, "release.json")


def test_a_manifest_of_100_mib_is_refused_before_parsing() -> None:
    with raises(FormatError, "release.json", 104_857_614, 100_663_296):
        Release.from_bytes(b'{"shards": [' + b"0," * (50 << 20) + b"0]", "release.json")
    with raises(FormatError, "release.json", 4_194_304):
        Release.from_bytes(b'{"shards": [' + b"0," * (5 << 20) + b"0]}", "release.json")


def test_gaps_wrong_sizes_and_partial_sequences_are_refused(tmp_path: Path) -> None:
    """See docs/formats/npy-shards.md#layout: shards contiguous from 0, sizes by formula, whole sequences."""
    release = make_release(tmp_path)
    first, second, third = release.shards_of("train")
    with raises(FormatError, 1, 2, "train"):
        replace(release, shards={"train": (first, third)})
    short = replace(first, token_file=replace(first.token_file, bytes=first.token_file.bytes - 128))
    with raises(FormatError, "files"):
        replace(release, shards={"train": (short, second)})
    with raises(FormatError, 48):
        replace(release, sequence_length=48)
    with raises(FormatError, "shard 0 of val", "train_000000.npy"):
        replace(release, shards={"val": (first,)})
    with raises(ConfigError, "'eval'"):
        release.shards_of("eval")


def test_locations_are_found_by_path_url_store_and_manifest(tmp_path: Path) -> None:
    place = published(tmp_path)
    store = tmp_path / "store"
    for name in (store, str(store), store / "release.json", store.as_uri(), f"{store.as_uri()}/release.json"):
        assert read_release(locate_release(name)).dataset == "tiny"
    assert locate_release(place) is place
    assert read_release(locate_release(LocalStore(store))).dataset == "tiny"
    assert read_release(ReleaseLocation(LocalStore(tmp_path), "store/")).dataset == "tiny"
    with pytest.raises(MissingArtifactError):
        read_release(locate_release(tmp_path / "built"))
    with raises(ConfigError, "ftp://x", "s3://bucket/prefix"):
        locate_release("ftp://x")
    for address in ("http://[", "s3://bucket:port/x"):
        with raises(ConfigError, "URL"):
            locate_release(address)
    with raises(ConfigError, "http://host", "unencrypted"):
        locate_release("http://host/x")
    with raises(ConfigError, "URL", "credentials") as caught:
        locate_release("s3://key:hidden@bucket/x")
    assert "hidden" not in str(caught.value)


def test_the_trainers_variables_configure_the_client_and_are_never_shown() -> None:
    """Upstream, R2_DATASET_BUCKET_LIST replaces the credentials; here it changes nothing.

    See docs/formats/shard-window.md#other-faults.
    """
    full = {
        "R2_DATASET_ACCOUNT_ID": "acc",
        "R2_DATASET_READ_ACCESS_KEY_ID": "hidden-id",
        "R2_DATASET_READ_SECRET_ACCESS_KEY": "hidden-secret",
    }
    found = parse_place("s3://dataset/tokenized", full)
    assert isinstance(found, S3Address)
    assert found.endpoint_url == "https://acc.r2.cloudflarestorage.com"
    assert (found.bucket, found.prefix, found.secret_access_key) == ("dataset", "tokenized", "hidden-secret")
    assert "hidden" not in repr(found)
    assert parse_place("s3://dataset/tokenized", {**full, "R2_DATASET_BUCKET_LIST": "[]"}) == found
    assert parse_place("s3://dataset/tokenized", {}) == S3Address(bucket="dataset", prefix="tokenized")
    del full["R2_DATASET_READ_SECRET_ACCESS_KEY"]
    with raises(ConfigError, "R2_DATASET_READ_SECRET_ACCESS_KEY") as caught:
        parse_place("s3://dataset/tokenized", full)
    assert "hidden" not in str(caught.value)
