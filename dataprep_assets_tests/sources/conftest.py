"""Fixtures of the tests of sources: a fake hub with one small repository, and a bucket of each kind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dataprep_assets_tests.fakes.buckets import new_bucket
from dataprep_assets_tests.fakes.fault_proxy import FaultProxy
from dataprep_assets_tests.fakes.gcs_server import GcsServer
from dataprep_assets_tests.fakes.hub_server import HubServer
from dataprep_assets_tests.fakes.swift_server import KEY_ID, SECRET, SwiftServer
from dataprep_assets_tests.sources.buckets import S3, Bucket, Gcs
from dataprep_assets_tests.sources.hub_mirror import TREE

FOREIGN = ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN", "DATAPREP_ENDPOINT_URL", "R2_DATASET_ACCOUNT_ID")
PAIRS = [f"R2_DATASET_{kind}_{part}" for kind in ("READ", "WRITE") for part in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")]


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer(TREE) as server:
        yield server


@pytest.fixture
def no_other_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set only the credentials of the tests' store, whatever the user's environment contains."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "project")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    for name in (*FOREIGN, *PAIRS):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def s3(swift: SwiftServer, tmp_path: Path, no_other_credentials: None) -> Iterator[S3]:
    with FaultProxy(swift.url) as proxy:
        yield S3(name=new_bucket(swift.url), mirror=tmp_path / "objects", proxy=proxy, upstream=swift.url)


@pytest.fixture
def gcs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_other_credentials: None) -> Iterator[Gcs]:
    pytest.importorskip("google.cloud.storage", reason="needs the extra `gcs`")
    with GcsServer() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
        yield Gcs(name=server.bucket, mirror=tmp_path / "objects", server=server)


@pytest.fixture(params=["s3", "gcs"])
def bucket(request: pytest.FixtureRequest) -> Bucket:
    """Return a bucket, once of each kind."""
    found: Bucket = request.getfixturevalue(request.param)
    return found
