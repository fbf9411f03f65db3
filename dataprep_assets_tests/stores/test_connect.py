"""URLs and variables name places; no message repeats a secret."""

import shlex
from pathlib import Path

import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.sources.hub import HubRepo
from dataprep_assets.sources.object_store import ObjectStorePrefix
from dataprep_assets.stores.connect import (
    BUCKETS,
    KINDS,
    READ_PAIR,
    WRITE_PAIR,
    GcsPlace,
    LocalPlace,
    S3Place,
    consumer_lines,
    is_bucket,
    missing_library,
    place_of,
    server_between,
)
from dataprep_assets.stores.endpoints import check_endpoint
from dataprep_assets_tests.resources.variables import KEY_ID, R2, SECRET


def test_a_url_with_credentials_is_refused_without_repeating_them() -> None:
    with pytest.raises(ConfigError) as caught:
        place_of(f"s3://{KEY_ID}:{SECRET}@bucket/prefix", {})
    assert SECRET not in str(caught.value)
    for wrong in ("http://bucket/x", "s3://", "file://host/x", "gs://b/p?x=1"):
        with pytest.raises(ConfigError, match="is not a storage URL"):
            place_of(wrong, {})
    for wrong in (f"s3://{KEY_ID}:{SECRET}@[bucket/x", f"s3://{KEY_ID}:{SECRET}@bucket:9O00/x"):
        with pytest.raises(ConfigError, match="is invalid; use s3://bucket/prefix") as caught:
            place_of(wrong, {})
        assert SECRET not in str(caught.value)


def test_places_of_urls() -> None:
    assert place_of("/some/folder", {}) == LocalPlace(root=Path("/some/folder"))
    assert place_of("file:///some/a%20b", {}) == LocalPlace(root=Path("/some/a b"))
    assert place_of("s3://bucket/a/b/", {}) == S3Place(bucket="bucket", prefix="a/b")
    assert place_of("s3://bucket", R2, profile="p") == S3Place(bucket="bucket", profile="p")
    assert place_of("gs://bucket/a", {"GOOGLE_CLOUD_PROJECT": "x"}) == GcsPlace(
        bucket="bucket", prefix="a", project="x"
    )


@pytest.mark.parametrize("scheme", BUCKETS)
def test_every_kind_of_bucket_is_known_by_its_scheme(scheme: str, tmp_path: Path) -> None:
    url = f"{scheme}://bucket/a/b"
    place = place_of(url, {})
    assert isinstance(place, BUCKETS[scheme])
    assert (place.url, is_bucket(url), is_bucket(scheme)) == (url, True, False)
    assert missing_library(url) in (None, place.needs)
    assert scheme in KINDS.values()
    assert consumer_lines(place)[0].removeprefix("DATAPREP_STORAGE=") in KINDS
    source = ObjectStorePrefix(url=url, cache_dir=tmp_path)
    assert source.storage == tmp_path / place.mirror / "bucket" / "a" / "b"
    with pytest.raises(ConfigError):  # a bucket whose mirror would have other mirrors in it
        ObjectStorePrefix(url=f"{scheme}://{place.mirror}", cache_dir=tmp_path)


def test_plain_http_beyond_this_machine_has_to_be_allowed() -> None:
    for url in ("https://store.example", "http://127.0.0.1:9000", "http://localhost:1", "http://[::1]:1"):
        assert check_endpoint(url, "endpoint", allow_http=False) == url
    for url in ("http://store.example", "http://10.0.0.1:9000", "HTTP://localhost.example"):
        assert check_endpoint(url, "endpoint", allow_http=True) == url
        with pytest.raises(ConfigError, match="allow_http: true"):
            check_endpoint(url, "endpoint", allow_http=False)
    for url in ("ftp://store", "store:9000", "http://", f"http://{KEY_ID}:{SECRET}@localhost"):
        with pytest.raises(ConfigError) as caught:
            check_endpoint(url, "endpoint", allow_http=True)
        assert SECRET not in str(caught.value)
    for url in (f"https://{KEY_ID}:{SECRET}@[store", "https://hub:9O00"):
        with pytest.raises(
            ConfigError,
            match=r"^endpoint: must be http\(s\)://host\[:port\], but a bracket is not closed, or the port is "
            "invalid",
        ) as caught:
            check_endpoint(url, "endpoint", allow_http=True)
        assert SECRET not in str(caught.value)


def test_every_client_is_refused_plain_http_before_it_sends_anything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = {**R2, "DATAPREP_ENDPOINT_URL": "http://store.example"}
    with pytest.raises(ConfigError, match="unencrypted"):
        place_of("s3://bucket", plain)()
    place_of("s3://bucket", {**plain, "DATAPREP_ALLOW_HTTP": "true"})()
    with pytest.raises(ConfigError, match=r"DATAPREP_ALLOW_HTTP: .*not 'perhaps'"):
        place_of("s3://bucket", {**plain, "DATAPREP_ALLOW_HTTP": "perhaps"})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://chain.example")  # boto3's own
    with pytest.raises(ConfigError, match=r"chain\.example would send credentials and data unencrypted"):
        S3Place(bucket="bucket", access_key_id="k", secret_access_key="s")()
    repo = HubRepo(repo_id="org/data", endpoint="http://hub.example", cache_dir=tmp_path)
    with pytest.raises(ConfigError, match="unencrypted"):
        repo.resolve_commit()
    with pytest.raises(ConfigError, match="unencrypted"):
        repo.list_files("0" * 40)
    with pytest.raises(ConfigError, match="unencrypted"):
        ObjectStorePrefix(url="s3://bucket", cache_dir=tmp_path, endpoint_url="http://store.example")


def test_the_server_copies_only_within_one_bucket_and_one_set_of_credentials() -> None:
    assert server_between(LocalPlace(root=Path("a")), LocalPlace(root=Path("b"))) is None
    one = S3Place(bucket="bucket", prefix="a", access_key_id="k", secret_access_key="s")
    for other in (
        S3Place(bucket="other", prefix="b", access_key_id="k", secret_access_key="s"),
        S3Place(bucket="bucket", prefix="b", access_key_id="k2", secret_access_key="s"),
        GcsPlace(bucket="bucket", prefix="b"),
    ):
        assert server_between(one, other) is None


def test_the_consumers_lines_hold_no_secret() -> None:
    lines = consumer_lines(place_of("s3://corpora/tokenized", R2))
    assert lines == [
        "DATAPREP_STORAGE=r2",
        "R2_DATASET_ACCOUNT_ID=0123456789abcdef",
        "R2_DATASET_BUCKET_NAME=corpora",
        "R2_DATASET_READ_ACCESS_KEY_ID=",
        "R2_DATASET_READ_SECRET_ACCESS_KEY=",
        "DATASET_BINS_PATH=tokenized",
    ]


def test_the_consumers_lines_lead_to_the_endpoint_of_a_jurisdiction() -> None:
    """developers.cloudflare.com/r2/reference/data-location: `<account id>.eu.r2.cloudflarestorage.com`."""
    endpoint = "https://abc123.eu.r2.cloudflarestorage.com"
    lines = consumer_lines(place_of("s3://corpora/tokenized", {**R2, "DATAPREP_ENDPOINT_URL": endpoint}))
    assert f"DATAPREP_ENDPOINT_URL={endpoint}" in lines
    reached = place_of("s3://corpora/tokenized", dict(line.split("=", 1) for line in lines))
    assert isinstance(reached, S3Place)
    assert reached.endpoint_url == endpoint


@pytest.mark.parametrize("folder", ["/data/corpora", "/data/my corpus", "/data/Übung", "/data/100%"])
def test_the_consumers_lines_hold_a_folder_as_a_shell_takes_it(folder: str) -> None:
    (_, line) = consumer_lines(LocalPlace(root=Path(folder)))
    assert shlex.split(line) == [f"DATAPREP_ROOT={folder}"]


@pytest.mark.parametrize(
    ("environment", "reads", "names"),
    [
        ({}, False, ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")),
        ({"R2_DATASET_ACCOUNT_ID": "abc"}, False, WRITE_PAIR),
        ({"R2_DATASET_ACCOUNT_ID": "abc"}, True, READ_PAIR),
        ({"R2_DATASET_BUCKET_NAME": "dataset"}, True, READ_PAIR),
    ],
)
def test_a_message_asks_for_the_kind_of_keys_that_the_environment_has_the_rest_of(
    environment: dict[str, str], reads: bool, names: tuple[str, str]
) -> None:
    """If R2's account or bucket is set, the message does not name AWS_ACCESS_KEY_ID."""
    place = place_of("s3://bucket/x", environment, reads=reads)
    assert isinstance(place, S3Place)
    assert place.key_names == names
