"""The location of a source's bucket, and the credentials for reading it."""

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import ConfigError, SourceError
from dataprep_assets.sources.object_store import ObjectStorePrefix
from dataprep_assets.stores.connect import S3Address
from dataprep_assets_tests.fakes.swift_server import KEY_ID, SECRET
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.sources.buckets import S3, entries_of

pytestmark = pytest.mark.usefixtures("no_other_credentials")


@pytest.mark.parametrize(
    ("url", "modules", "extra"),
    [
        ("s3://bucket/corpus", ["botocore", "botocore.config", "boto3"], "r2"),
        ("gs://bucket/corpus", ["google.cloud.storage", "google.auth.exceptions"], "gcs"),
    ],
)
def test_without_its_library_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, modules: list[str], extra: str
) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    source = ObjectStorePrefix(url=url, cache_dir=tmp_path)
    with raises(ConfigError, extra):
        source.list()


def s3_place(tmp_path: Path, **settings: Any) -> S3Address:
    place = ObjectStorePrefix(url="s3://bucket/corpus", cache_dir=tmp_path, **settings).address()
    assert isinstance(place, S3Address)
    return place


def test_the_environments_store_is_reached_with_its_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("R2_DATASET_ACCOUNT_ID", "account")
    monkeypatch.setenv("R2_DATASET_READ_ACCESS_KEY_ID", "reader")
    monkeypatch.setenv("R2_DATASET_READ_SECRET_ACCESS_KEY", "its-secret")
    endpoint = "https://account.r2.cloudflarestorage.com"
    for settings in ({}, {"endpoint_url": endpoint}, {"endpoint_url": f"{endpoint}/"}):
        place = s3_place(tmp_path, **settings)
        assert (str(place.endpoint_url).rstrip("/"), place.region) == (endpoint, "auto")
        assert (place.access_key_id, place.secret_access_key) == ("reader", "its-secret")


def test_another_store_is_reached_with_botos_own_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R2_DATASET_ACCOUNT_ID", "account")
    monkeypatch.setenv("R2_DATASET_READ_ACCESS_KEY_ID", "reader")
    monkeypatch.setenv("R2_DATASET_READ_SECRET_ACCESS_KEY", "its-secret")
    place = s3_place(tmp_path, endpoint_url="https://minio.example", region="eu-west-1")
    assert (place.endpoint_url, place.region) == ("https://minio.example", "eu-west-1")
    assert (place.access_key_id, place.secret_access_key) == (None, None)


def test_without_an_endpoint_boto_decides_on_the_region(tmp_path: Path) -> None:
    assert (s3_place(tmp_path).endpoint_url, s3_place(tmp_path).region) == (None, None)
    assert s3_place(tmp_path, region="eu-west-1").region == "eu-west-1"


def list_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Return the error and all causes that a traceback would print."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_no_credential_is_in_a_repr_a_message_or_a_log(
    s3: S3, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    s3.put({"a.jsonl.zst": b"x"})
    source = s3.source()
    plain = ObjectStorePrefix(url=source.url, cache_dir=s3.mirror, **s3.settings())
    told = [repr(source), repr(plain.address()), repr(plain.open())]

    def fails(call: Callable[[], Any]) -> None:
        with pytest.raises((SourceError, ConfigError)) as raised:
            call()
        told.extend(f"{e} {e!r}" for e in list_causes(raised.value))

    with caplog.at_level(logging.INFO):
        entries = entries_of(source)
        for trouble in ("403", "503", "reset"):
            s3.fail(trouble, always=True)
            fails(lambda: source.fetch(entries))
        fails(lambda: s3.source(endpoint_url=f"https://{KEY_ID}:{SECRET}@127.0.0.1"))
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        fails(plain.list)
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        fails(plain.list)
        assert "AWS_ACCESS_KEY_ID" in told[-1]
        monkeypatch.setenv("AWS_PROFILE", "not-there")
        fails(plain.list)
        assert "profile" in told[-1]
        monkeypatch.delenv("AWS_PROFILE")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"{SECRET}-and-more")
        fails(plain.list)
        assert "AWS_SECRET_ACCESS_KEY" in told[-1]
    everything = "\n".join([*told, caplog.text])
    assert not [s for s in (KEY_ID, SECRET, "AKIA-SAID-BY-THE-STORE") if s in everything]


@pytest.mark.parametrize(
    "url",
    [
        "bucket/corpus",
        "s3://",
        "s3://b",
        "s3://bucket//x",
        "s3://bucket/../x",
        "s3://bucket/x?y",
        "s3://bucket/x\n",
        "gs://bucket//x",
        "gcs://bucket/x",
        "https://bucket/corpus",
    ],
)
def test_a_url_that_is_not_a_prefix_of_a_bucket_is_refused(url: str, tmp_path: Path) -> None:
    with raises(ConfigError, "source.url"):
        ObjectStorePrefix(url=url, cache_dir=tmp_path)


@pytest.mark.parametrize("settings", [{"endpoint_url": "https://storage.googleapis.com"}, {"region": "eu-west-1"}])
def test_settings_of_s3_are_refused_with_gcs(settings: dict[str, str], tmp_path: Path) -> None:
    with raises(ConfigError, f"source.{next(iter(settings))}", "gs://"):
        ObjectStorePrefix(url="gs://bucket", cache_dir=tmp_path, **settings)  # type: ignore[arg-type]


def test_the_mirror_names_its_copy_of_a_key(tmp_path: Path) -> None:
    source = ObjectStorePrefix(url="s3://bucket/corpus", cache_dir=tmp_path)
    kept = tmp_path / "bucket" / "corpus" / "train" / "a.jsonl"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"{}")
    assert source.copies("train/a.jsonl") == [kept]
    assert source.copies("train/b.jsonl") == source.copies("../corpus/train/a.jsonl") == []
