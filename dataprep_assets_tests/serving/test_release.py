"""The release manifest: the same bytes for the same shards, and nothing damaged or inconsistent is read."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dataprep_assets.errors import ConfigError, FormatError, MissingArtifactError
from dataprep_assets.serving.window.release import Release, ReleaseLocation, locate, read_release
from dataprep_assets.stores.connect import S3Place, place_of
from dataprep_assets.stores.local import LocalStore
from dataprep_assets_tests.serving.releases import make_release, published


def test_a_manifest_is_read_back_as_it_was(tmp_path: Path) -> None:
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


def test_an_altered_manifest_is_refused(tmp_path: Path) -> None:
    data = make_release(tmp_path).to_bytes()
    value = json.loads(data)
    value["shards"]["train"][0]["token_file"]["sha256"] = "0" * 64
    for spoilt, said in (
        (json.dumps(value).encode(), "changed or damaged: its digest is"),
        (data[:-30], "not a release manifest"),
        (b"[]", "not a release manifest"),
        (json.dumps({**value, "schema_version": 9}).encode(), "schema 9"),
        (json.dumps({**value, "shards": {"train": [{}]}}).encode(), "not a release manifest"),
        (json.dumps({**value, "vocab_size": float("nan")}).encode(), "not a release manifest"),
        (json.dumps({**value, "dataset": "\ud800"}).encode(), "not a release manifest"),
    ):
        with pytest.raises(FormatError, match=said):
            Release.from_bytes(spoilt, "release.json")


def test_a_manifest_of_100_mib_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(
        FormatError, match=r"release\.json: not a release manifest \(104,857,614 bytes, but at most 100,663,296 are"
    ):
        Release.from_bytes(b'{"shards": [' + b"0," * (50 << 20) + b"0]", "release.json")
    with pytest.raises(FormatError, match=r"release\.json: not a release manifest \(more than 4,194,304 values"):
        Release.from_bytes(b'{"shards": [' + b"0," * (5 << 20) + b"0]}", "release.json")


def test_gaps_wrong_sizes_and_partial_sequences_are_refused(tmp_path: Path) -> None:
    """docs/formats/npy-shards.md#invariants: shards contiguous from 0, sizes by formula, whole sequences."""
    release = make_release(tmp_path)
    first, second, third = release.shards_of("train")
    with pytest.raises(FormatError, match="shard 1 of train is missing: shard 2"):
        replace(release, shards={"train": (first, third)})
    short = replace(first, token_file=replace(first.token_file, bytes=first.token_file.bytes - 128))
    with pytest.raises(FormatError, match="files of"):
        replace(release, shards={"train": (short, second)})
    with pytest.raises(FormatError, match="not whole sequences of 48"):
        replace(release, sequence_length=48)
    with pytest.raises(FormatError, match=r"where readers do not look for it\. Publish it again"):
        replace(release, shards={"val": (first,)})
    with pytest.raises(ConfigError, match="no shards of 'eval'"):
        release.shards_of("eval")


def test_places_are_found_by_path_url_store_and_manifest(tmp_path: Path) -> None:
    place = published(tmp_path)
    store = tmp_path / "store"
    for name in (store, str(store), store / "release.json", store.as_uri(), f"{store.as_uri()}/release.json"):
        assert read_release(locate(name)).dataset == "tiny"
    assert locate(place) is place
    assert read_release(locate(LocalStore(store))).dataset == "tiny"
    assert read_release(ReleaseLocation(LocalStore(tmp_path), "store/")).dataset == "tiny"
    with pytest.raises(MissingArtifactError):
        read_release(locate(tmp_path / "built"))
    with pytest.raises(ConfigError, match="is not a storage URL; use s3://bucket/prefix"):
        locate("ftp://x")
    for address in ("http://[", "s3://bucket:port/x"):
        with pytest.raises(ConfigError, match="URL is invalid"):
            locate(address)
    with pytest.raises(ConfigError, match="http://host would send credentials and data unencrypted"):
        locate("http://host/x")
    with pytest.raises(
        ConfigError, match=r"a URL must not contain credentials\. Set them in the environment"
    ) as caught:
        locate("s3://key:hidden@bucket/x")
    assert "hidden" not in str(caught.value)


def test_the_consumers_variables_give_the_client_and_are_never_shown() -> None:
    """R2_DATASET_BUCKET_LIST replaces the original's credentials; here it changes nothing.

    See docs/formats/shard-window.md#bucket-list.
    """
    full = {
        "R2_DATASET_ACCOUNT_ID": "acc",
        "R2_DATASET_READ_ACCESS_KEY_ID": "hidden-id",
        "R2_DATASET_READ_SECRET_ACCESS_KEY": "hidden-secret",
    }
    found = place_of("s3://dataset/tokenized", full)
    assert isinstance(found, S3Place)
    assert found.endpoint_url == "https://acc.r2.cloudflarestorage.com"
    assert (found.bucket, found.prefix, found.secret_access_key) == ("dataset", "tokenized", "hidden-secret")
    assert "hidden" not in repr(found)
    assert place_of("s3://dataset/tokenized", {**full, "R2_DATASET_BUCKET_LIST": "[]"}) == found
    assert place_of("s3://dataset/tokenized", {}) == S3Place(bucket="dataset", prefix="tokenized")
    del full["R2_DATASET_READ_SECRET_ACCESS_KEY"]
    with pytest.raises(ConfigError, match="R2_DATASET_READ_SECRET_ACCESS_KEY is not") as caught:
        place_of("s3://dataset/tokenized", full)
    assert "hidden" not in str(caught.value)
