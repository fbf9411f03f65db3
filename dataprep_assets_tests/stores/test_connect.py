"""Storage URLs and variables are parsed; no message repeats a secret."""

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
    GcsAddress,
    LocalAddress,
    S3Address,
    explain_missing_library,
    find_common_server,
    is_bucket,
    list_consumer_lines,
    parse_place,
)
from dataprep_assets.stores.endpoints import check_endpoint
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.resources.variables import KEY_ID, R2, SECRET


def test_a_url_with_credentials_is_refused_without_repeating_them() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_place(f"s3://{KEY_ID}:{SECRET}@bucket/prefix", {})
    assert SECRET not in str(caught.value)
    for wrong in ("http://bucket/x", "s3://", "file://host/x", "gs://b/p?x=1"):
        with raises(ConfigError, wrong, "s3://bucket/prefix"):
            parse_place(wrong, {})
    for wrong in (f"s3://{KEY_ID}:{SECRET}@[bucket/x", f"s3://{KEY_ID}:{SECRET}@bucket:9O00/x"):
        with raises(ConfigError, "s3://bucket/prefix") as caught:
            parse_place(wrong, {})
        assert SECRET not in str(caught.value)


def test_locations_are_parsed_from_urls() -> None:
    assert parse_place("/some/folder", {}) == LocalAddress(root=Path("/some/folder"))
    assert parse_place("file:///some/a%20b", {}) == LocalAddress(root=Path("/some/a b"))
    assert parse_place("s3://bucket/a/b/", {}) == S3Address(bucket="bucket", prefix="a/b")
    assert parse_place("s3://bucket", R2, profile="p") == S3Address(bucket="bucket", profile="p")
    assert parse_place("gs://bucket/a", {"GOOGLE_CLOUD_PROJECT": "x"}) == GcsAddress(
        bucket="bucket", prefix="a", project="x"
    )


@pytest.mark.parametrize("scheme", BUCKETS)
def test_every_kind_of_bucket_is_known_by_its_scheme(scheme: str, tmp_path: Path) -> None:
    url = f"{scheme}://bucket/a/b"
    place = parse_place(url, {})
    assert isinstance(place, BUCKETS[scheme])
    assert (place.url, is_bucket(url), is_bucket(scheme)) == (url, True, False)
    assert explain_missing_library(url) in (None, place.needs)
    assert scheme in KINDS.values()
    assert list_consumer_lines(place)[0].removeprefix("DATAPREP_STORAGE=") in KINDS
    source = ObjectStorePrefix(url=url, cache_dir=tmp_path)
    assert source.storage == tmp_path / place.mirror / "bucket" / "a" / "b"
    with pytest.raises(ConfigError):  # the mirror of this bucket would contain other mirrors
        ObjectStorePrefix(url=f"{scheme}://{place.mirror}", cache_dir=tmp_path)


def test_plain_http_to_another_machine_must_be_allowed() -> None:
    for url in ("https://store.example", "http://127.0.0.1:9000", "http://localhost:1", "http://[::1]:1"):
        assert check_endpoint(url, "endpoint", allow_http=False) == url
    for url in ("http://store.example", "http://10.0.0.1:9000", "HTTP://localhost.example"):
        assert check_endpoint(url, "endpoint", allow_http=True) == url
        with raises(ConfigError, "endpoint", "allow_http: true"):
            check_endpoint(url, "endpoint", allow_http=False)
    for url in ("ftp://store", "store:9000", "http://", f"http://{KEY_ID}:{SECRET}@localhost"):
        with pytest.raises(ConfigError) as caught:
            check_endpoint(url, "endpoint", allow_http=True)
        assert SECRET not in str(caught.value)
    for url in (f"https://{KEY_ID}:{SECRET}@[store", "https://hub:9O00"):
        with raises(ConfigError, "endpoint", "http(s)://host[:port]") as caught:
            check_endpoint(url, "endpoint", allow_http=True)
        assert SECRET not in str(caught.value)


def test_every_client_is_refused_plain_http_before_it_sends_anything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = {**R2, "DATAPREP_ENDPOINT_URL": "http://store.example"}
    with raises(ConfigError, "http://store.example", "DATAPREP_ALLOW_HTTP"):
        parse_place("s3://bucket", plain)()
    parse_place("s3://bucket", {**plain, "DATAPREP_ALLOW_HTTP": "true"})()
    with raises(ConfigError, "DATAPREP_ALLOW_HTTP", "'perhaps'"):
        parse_place("s3://bucket", {**plain, "DATAPREP_ALLOW_HTTP": "perhaps"})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://chain.example")  # boto3 reads this variable itself
    with raises(ConfigError, "http://chain.example"):
        S3Address(bucket="bucket", access_key_id="k", secret_access_key="s")()
    repo = HubRepo(repo_id="org/data", endpoint="http://hub.example", cache_dir=tmp_path)
    with raises(ConfigError, "http://hub.example"):
        repo.resolve_commit()
    with raises(ConfigError, "http://hub.example"):
        repo.list_files("0" * 40)
    with raises(ConfigError, "http://store.example"):
        ObjectStorePrefix(url="s3://bucket", cache_dir=tmp_path, endpoint_url="http://store.example")


def test_the_server_copies_only_within_one_bucket_and_one_set_of_credentials() -> None:
    assert find_common_server(LocalAddress(root=Path("a")), LocalAddress(root=Path("b"))) is None
    one = S3Address(bucket="bucket", prefix="a", access_key_id="k", secret_access_key="s")
    for other in (
        S3Address(bucket="other", prefix="b", access_key_id="k", secret_access_key="s"),
        S3Address(bucket="bucket", prefix="b", access_key_id="k2", secret_access_key="s"),
        GcsAddress(bucket="bucket", prefix="b"),
    ):
        assert find_common_server(one, other) is None


def test_the_trainer_lines_contain_no_secret() -> None:
    lines = list_consumer_lines(parse_place("s3://corpora/tokenized", R2))
    assert lines == [
        "DATAPREP_STORAGE=r2",
        "R2_DATASET_ACCOUNT_ID=0123456789abcdef",
        "R2_DATASET_BUCKET_NAME=corpora",
        "R2_DATASET_READ_ACCESS_KEY_ID=",
        "R2_DATASET_READ_SECRET_ACCESS_KEY=",
        "DATASET_BINS_PATH=tokenized",
    ]


def test_the_trainer_lines_use_the_endpoint_of_a_jurisdiction() -> None:
    """See developers.cloudflare.com/r2/reference/data-location: `<account id>.eu.r2.cloudflarestorage.com`."""
    endpoint = "https://abc123.eu.r2.cloudflarestorage.com"
    lines = list_consumer_lines(parse_place("s3://corpora/tokenized", {**R2, "DATAPREP_ENDPOINT_URL": endpoint}))
    assert f"DATAPREP_ENDPOINT_URL={endpoint}" in lines
    reached = parse_place("s3://corpora/tokenized", dict(line.split("=", 1) for line in lines))
    assert isinstance(reached, S3Address)
    assert reached.endpoint_url == endpoint


@pytest.mark.parametrize("folder", ["/data/corpora", "/data/my corpus", "/data/Übung", "/data/100%"])
def test_the_trainer_lines_quote_a_folder_for_a_shell(folder: str) -> None:
    (_, line) = list_consumer_lines(LocalAddress(root=Path(folder)))
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
def test_a_message_names_the_kind_of_keys_that_the_environment_partly_has(
    environment: dict[str, str], reads: bool, names: tuple[str, str]
) -> None:
    """If R2's account or bucket is set, the message does not name AWS_ACCESS_KEY_ID."""
    place = parse_place("s3://bucket/x", environment, reads=reads)
    assert isinstance(place, S3Address)
    assert place.key_names == names
