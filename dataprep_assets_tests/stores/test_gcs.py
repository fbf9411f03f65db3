"""The contract on Google Cloud Storage's API, and the particularities of this store."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.storage", reason="needs the extra `gcs`")

import google_crc32c

from dataprep_assets.errors import ConfigError, SourceError
from dataprep_assets.stores.connect import GcsAddress
from dataprep_assets.stores.gcs import GcsStore
from dataprep_assets.stores.store import ConflictError
from dataprep_assets_tests.fakes.gcs_server import GcsServer
from dataprep_assets_tests.fakes.gcs_state import RefusalError, Stored
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.stores.contract import StoreContract, content, sha256
from dataprep_assets_tests.stores.gcs_stores import PART, store_on


class TestGcsStore(StoreContract):
    part_bytes = PART

    @pytest.fixture
    def store(self, client: Any) -> GcsStore:
        return store_on(client)


class TestGcsStoreBelowAPrefix(StoreContract):
    part_bytes = PART

    @pytest.fixture
    def store(self, client: Any) -> GcsStore:
        client.bucket("bucket").blob("team/datasets+1").upload_from_string(b"a neighbor")
        client.bucket("bucket").blob("team/other").upload_from_string(b"a neighbor")
        return store_on(client, "/team/data sets+1/")


def test_a_stored_object_has_its_digest(client: Any, server: GcsServer, tmp_path: Path) -> None:
    data = content(5 * PART + 1)
    (tmp_path / "file").write_bytes(data)
    info = store_on(client).upload(tmp_path / "file", "key", sha256=sha256(data))
    assert (info.sha256, info.crc32c, info.md5) == (sha256(data), google_crc32c.value(data), None)
    assert client.bucket("bucket").get_blob("key").component_count == 6
    small = store_on(client).put("small", b"abc")
    assert (small.sha256, small.md5) == (sha256(b"abc"), hashlib.md5(b"abc").hexdigest())
    assert store_on(client).copy("key", "copy").sha256 == sha256(data)
    assert server.count("bucket") == 0  # reading the bucket would need more permissions
    assert sorted(server.objects) == ["copy", "key", "small"]


def test_an_object_has_the_type_that_browsers_need(client: Any) -> None:
    store_on(client).put("index.html", b"<p>", content_type="text/html")
    store_on(client).put("receipt.json", b"{}")
    bucket = client.bucket("bucket")
    types = [bucket.get_blob(key).content_type for key in ("index.html", "receipt.json")]
    assert types == ["text/html", "application/octet-stream"]


def test_a_lost_answer_to_a_conditional_write_is_not_a_conflict(client: Any, server: GcsServer) -> None:
    store = store_on(client)
    server.fail("insert", "lost")
    first = store.put("lock", b"mine", if_absent=True)
    server.fail("insert", "lost")
    second = store.put("lock", b"mine again", if_version=first.version)
    assert server.unspent() == []
    assert store.head("lock") == second
    # A writer of equal bytes still counts as a different writer.
    with pytest.raises(ConflictError):
        store.put("lock", b"mine again", if_absent=True)


@pytest.mark.parametrize("if_absent", [False, True])
def test_a_write_forbidden_by_an_organization_policy_is_not_a_lost_race(
    client: Any, server: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, if_absent: bool
) -> None:
    """By cloud.google.com/storage/docs/json_api/v1/status-codes it is answered with 412, like an unmet condition."""

    def forbid(*_: Any, **__: Any) -> Stored:
        raise RefusalError(412, "orgPolicyConstraintFailed", "Request violates an OrgPolicy constraint.")

    monkeypatch.setattr(server, "store", forbid)
    store, path = store_on(client), tmp_path / "file"
    with raises(SourceError, "gs://bucket/key", 412, "orgPolicyConstraintFailed"):
        store.put("key", b"data", if_absent=if_absent)
    for size in (10, 3 * PART):
        path.write_bytes(content(size))
        with raises(SourceError, "gs://bucket/key", 412, "orgPolicyConstraintFailed"):
            store.upload(path, "key", sha256=sha256(content(size)))


def test_a_refused_unconditional_write_is_not_a_lost_race(client: Any, server: GcsServer, tmp_path: Path) -> None:
    server.store("key", b"there")
    server.fail("insert", "status", status=412, times=None)
    (tmp_path / "file").write_bytes(b"data")
    refused = ("gs://bucket/key", 412, "unconditional")
    with raises(SourceError, *refused):
        store_on(client).put("key", b"data")
    with raises(SourceError, *refused):
        store_on(client).upload(tmp_path / "file", "key", sha256=sha256(b"data"))


def test_a_sweep_removes_old_unfinished_uploads_below_its_prefix(
    client: Any, server: GcsServer, tmp_path: Path
) -> None:
    data = content(3 * PART)
    (tmp_path / "file").write_bytes(data)
    store = store_on(client, "team")
    server.fail("compose", "status", status=400, times=2)
    for key in ("train/a", "test/b"):
        with raises(SourceError, key, 400):
            store.upload(tmp_path / "file", key, sha256=sha256(data))
    assert [*store.list()] == []
    assert len(server.objects) == 6
    assert store.sweep(older_than_seconds=3600) == 0
    assert store.sweep("train/") == 1
    assert len(server.objects) == 3
    assert store.sweep() == 1
    assert server.objects == {}


def test_folder_markers_of_the_web_console_are_not_objects(client: Any, server: GcsServer) -> None:
    server.store("data/", b"")
    server.store("data/a", b"x")
    assert [info.key for info in store_on(client).list()] == ["data/a"]
    assert [info.key for info in store_on(client, "data").list()] == ["a"]


def test_a_wrong_declaration_names_the_mistake(client: Any) -> None:
    for arguments in (
        {"bucket": "gs://bucket"},
        {"bucket": ""},
        {"prefix": "a/../b"},
        {"part_bytes": 0},
        {"workers": 0},
    ):
        with pytest.raises(ConfigError):
            GcsStore(client, **{"bucket": "bucket", **arguments})  # type: ignore[arg-type]
    with raises(ConfigError, "version"):
        store_on(client).put("key", b"x", if_version='"an-etag"')


def test_the_client_of_dagster_gcps_resource_can_be_used(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    dagster_gcp = pytest.importorskip("dagster_gcp", reason="needs the extra `gcs`")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
    store = store_on(dagster_gcp.GCSResource(project="project").get_client())
    store.put("key", b"x")
    assert b"".join(store.read("key")) == b"x"


def test_a_public_bucket_needs_no_credentials(server: GcsServer, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store_on(client).put("key", b"x")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/there/is/none.json")
    store = GcsAddress(bucket="bucket", access="anonymous")()
    assert [info.key for info in store.list()] == ["key"]
    assert b"".join(store.read("key")) == b"x"


def test_requests_to_a_requester_pays_bucket_name_the_project(
    server: GcsServer, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
    paths: list[str] = []
    request = client._http.request

    def noted(method: str, url: str, *arguments: Any, **options: Any) -> Any:
        paths.append(url)
        return request(method, url, *arguments, **options)

    monkeypatch.setattr(client._http, "request", noted)
    store = store_on(client, user_project="reader")
    store.put("key", b"x")
    assert [info.key for info in store.list()] == ["key"]
    assert paths
    assert all("userProject=reader" in path for path in paths)
