"""The fake Google Cloud Storage is faithful: google-cloud-storage's own client gets the expected answers."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.storage", reason="needs the extra `gcs`")

from google.api_core.exceptions import BadRequest, NotFound, PreconditionFailed
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.storage import transfer_manager
from google.cloud.storage.exceptions import InvalidResponse

from dataprep_assets_tests.fakes.gcs_server import GcsServer
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.stores.contract import content


@pytest.fixture
def server() -> Iterator[GcsServer]:
    with GcsServer(page_size=10, rewrite_bytes=300_000) as running:
        yield running


@pytest.fixture
def client(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
    return storage.Client(project="project", credentials=AnonymousCredentials())


@pytest.fixture
def bucket(client: Any) -> Any:
    return client.bucket("bucket")


class TestTheFakeServesTheOfficialClient:
    def test_bucket(self, client: Any) -> None:
        assert client.get_bucket("bucket").name == "bucket"
        with raises(NotFound, 404):
            client.get_bucket("another")

    @pytest.mark.parametrize("chunk", [None, 256 * 1024])
    @pytest.mark.parametrize("checksum", ["crc32c", "md5", None])
    def test_uploads_simple_and_resumable(self, bucket: Any, chunk: int | None, checksum: str | None) -> None:
        data = content(1_000_000)
        blob = bucket.blob("a b/ü%+.bin", chunk_size=chunk)
        blob.metadata = {"colour": "blue"}
        blob.upload_from_string(data, checksum=checksum, if_generation_match=0)
        assert blob.component_count is None
        found = bucket.get_blob("a b/ü%+.bin")
        assert (found.size, found.metadata, found.generation) == (len(data), {"colour": "blue"}, blob.generation)
        assert found.download_as_bytes(checksum="md5") == found.download_as_bytes(checksum="crc32c") == data
        assert found.download_as_bytes(start=10, end=19) == data[10:20]
        with pytest.raises(PreconditionFailed):
            blob.upload_from_string(data, if_generation_match=0)

    def test_a_resumable_upload_is_invisible_before_its_end(self, bucket: Any, server: GcsServer) -> None:
        with bucket.blob("key").open("wb", chunk_size=256 * 1024) as stream:
            stream.write(content(600_000))
            assert server.objects == {}
        assert server.objects["key"].data == content(600_000)

    def test_mismatched_digests_are_refused(self, bucket: Any, server: GcsServer) -> None:
        for field in ("crc32c", "md5_hash"):
            blob = bucket.blob("key")
            setattr(blob, field, "AAAAAA==" if field == "crc32c" else "AAAAAAAAAAAAAAAAAAAAAA==")
            with raises(BadRequest, 400):
                blob.upload_from_string(b"data", checksum=None)
        assert server.objects == {}

    def test_lists_with_pages_prefixes_and_folders(self, client: Any, server: GcsServer) -> None:
        names = [f"a/{number:02d}" for number in range(25)] + ["b", "c/d", "😀"]
        for name in names:
            server.store(name, b"")
        assert [blob.name for blob in client.list_blobs("bucket")] == names
        assert [blob.name for blob in client.list_blobs("bucket", prefix="a/", max_results=12)] == names[:12]
        pages = client.list_blobs("bucket", delimiter="/", page_size=2)
        assert [blob.name for blob in pages] == ["b", "😀"]
        assert pages.prefixes == {"a/", "c/"}
        thin = next(iter(client.list_blobs("bucket", fields="items(name,size),nextPageToken")))
        assert (thin.size, thin.generation) == (0, None)

    def test_preconditions_and_metagenerations(self, bucket: Any) -> None:
        blob = bucket.blob("key")
        blob.upload_from_string(b"one")
        blob.metadata = {"n": "1"}
        blob.patch(if_metageneration_match=1)
        assert blob.metageneration == 2
        for refused in (
            lambda: blob.patch(if_metageneration_match=1),
            lambda: blob.delete(if_generation_match=1),
            lambda: blob.download_as_bytes(if_generation_match=1),
            lambda: blob.reload(if_generation_match=1),
        ):
            with pytest.raises(PreconditionFailed):
                refused()
        old = bucket.blob("key", generation=blob.generation)
        blob.upload_from_string(b"two")
        with pytest.raises(NotFound):
            old.download_as_bytes()
        blob.delete(if_generation_match=blob.generation)
        with pytest.raises(NotFound):
            blob.delete()

    def test_compose(self, bucket: Any) -> None:
        blobs = [bucket.blob(f"part {number}") for number in range(33)]
        for number, blob in enumerate(blobs):
            blob.upload_from_string(b"%d " % number)
        whole = bucket.blob("whole")
        whole.compose(blobs[:32], if_generation_match=0)
        assert (whole.component_count, whole.md5_hash) == (32, None)
        whole.compose([whole, blobs[32]], if_source_generation_match=[whole.generation, blobs[32].generation])
        assert whole.component_count == 33
        assert whole.download_as_bytes(checksum="crc32c") == b"".join(b"%d " % number for number in range(33))
        with pytest.raises(BadRequest):
            whole.compose(blobs)
        with pytest.raises(NotFound):
            whole.compose([bucket.blob("none")])
        with pytest.raises(PreconditionFailed):
            whole.compose(blobs[:2], if_source_generation_match=[1, 2])

    def test_rewrite_and_copy(self, bucket: Any) -> None:
        data = content(1_000_000)
        source = bucket.blob("source")
        source.metadata = {"n": "1"}
        source.upload_from_string(data)
        target = bucket.blob("target")
        token, rewritten, total = target.rewrite(source)
        steps = 1
        while token is not None:
            token, rewritten, total = target.rewrite(source, token=token)
            steps += 1
        assert (steps, rewritten, total) == (4, len(data), len(data))
        assert target.download_as_bytes() == data
        assert bucket.copy_blob(source, bucket, "copy").crc32c == source.crc32c
        assert bucket.get_blob("copy").metadata == {"n": "1"}

    def test_transfer_manager(self, bucket: Any, server: GcsServer, tmp_path: Path) -> None:
        server.min_part_bytes = 256 * 1024
        data = content(3_000_000)
        path, blob = tmp_path / "file", bucket.blob("folder/a b+ü")
        path.write_bytes(data)
        blob.metadata = {"n": "1"}
        threads = {"worker_type": transfer_manager.THREAD, "max_workers": 4}
        transfer_manager.upload_chunks_concurrently(
            str(path), blob, chunk_size=512 * 1024, checksum="crc32c", **threads
        )
        blob.reload()
        assert (blob.component_count, blob.md5_hash, blob.metadata) == (6, None, {"n": "1"})
        transfer_manager.download_chunks_concurrently(blob, str(tmp_path / "target"), chunk_size=300_000, **threads)
        assert (tmp_path / "target").read_bytes() == data
        with raises((BadRequest, InvalidResponse), 400):
            transfer_manager.upload_chunks_concurrently(str(path), blob, chunk_size=100 * 1024, **threads)

    def test_many_clients_at_once(self, bucket: Any, server: GcsServer) -> None:
        def work(number: int) -> None:
            blob = bucket.blob(f"key {number}")
            blob.upload_from_string(content(100_000, str(number)))
            assert blob.download_as_bytes() == content(100_000, str(number))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(server.objects) == 24
