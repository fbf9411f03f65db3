"""The contract on Google Cloud Storage's API, the fake's fidelity to google-cloud-storage's own client, and kills."""

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.storage", reason="needs the extra `gcs`")

import google_crc32c
from google.api_core.exceptions import BadRequest, NotFound, PreconditionFailed
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.storage import transfer_manager

from dataprep_assets.errors import ConfigError
from dataprep_assets.stores.crc32c import combine, combine_all
from dataprep_assets.stores.gcs import GcsStore
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets.stores.store import ConflictError
from dataprep_assets_tests.fakes.gcs_server import GcsServer
from dataprep_assets_tests.stores.contract import StoreContract, content, sha256

PART = 256 * 1024
FAST = RetryPolicy(attempts=4, base_seconds=0.001, max_seconds=0.002)


@pytest.fixture
def server() -> Iterator[GcsServer]:
    with GcsServer(page_size=10, rewrite_bytes=300_000) as running:
        yield running


@pytest.fixture
def client(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
    return storage.Client(project="project", credentials=AnonymousCredentials())


def store_on(client: Any, prefix: str = "", **options: Any) -> GcsStore:
    options = {"retry": FAST, "part_bytes": PART, "workers": 4, "timeout_seconds": 5.0, **options}
    return GcsStore(client, "bucket", prefix, **options)


class TestGcsStore(StoreContract):
    part_bytes = PART

    @pytest.fixture
    def store(self, client: Any) -> GcsStore:
        return store_on(client)


class TestGcsStoreBelowAPrefix(StoreContract):
    part_bytes = PART

    @pytest.fixture
    def store(self, client: Any) -> GcsStore:
        client.bucket("bucket").blob("team/datasets+1").upload_from_string(b"a neighbour")
        client.bucket("bucket").blob("team/other").upload_from_string(b"a neighbour")
        return store_on(client, "/team/data sets+1/")


# CRC32C.


def test_a_combined_crc32c_is_that_of_the_concatenation() -> None:
    chance = random.Random(4)
    for _ in range(200):
        parts = [chance.randbytes(chance.choice([0, 1, 2, 33, 4096, 70_001])) for _ in range(chance.randrange(6))]
        crcs = [(google_crc32c.value(part), len(part)) for part in parts]
        assert combine_all(crcs) == google_crc32c.value(b"".join(parts))


def test_lengths_beyond_32_bits_combine_like_their_halves() -> None:
    half, crc = 3 << 31, 0x12345678
    assert combine(crc, 0, 2 * half) == combine(combine(crc, 0, half), 0, half)
    assert combine(0, crc, 1 << 45) == crc


# The store.


def test_what_is_stored_says_its_digest(client: Any, server: GcsServer, tmp_path: Path) -> None:
    data = content(5 * PART + 1)
    (tmp_path / "file").write_bytes(data)
    info = store_on(client).upload(tmp_path / "file", "key", sha256=sha256(data))
    assert (info.sha256, info.crc32c, info.md5) == (sha256(data), google_crc32c.value(data), None)
    assert client.bucket("bucket").get_blob("key").component_count == 6
    small = store_on(client).put("small", b"abc")
    assert (small.sha256, small.md5) == (sha256(b"abc"), hashlib.md5(b"abc").hexdigest())
    assert store_on(client).copy("key", "copy").sha256 == sha256(data)
    assert sorted(server.objects) == ["copy", "key", "small"]


def test_a_file_of_more_than_1024_parts_is_joined_in_three_levels(
    client: Any, server: GcsServer, tmp_path: Path
) -> None:
    data = content(1100 * 100 - 7)
    (tmp_path / "file").write_bytes(data)
    info = store_on(client, part_bytes=100).upload(tmp_path / "file", "key", sha256=sha256(data))
    assert info.crc32c == google_crc32c.value(data)
    assert server.objects["key"].data == data
    assert server.objects["key"].components == 1100
    assert [*server.objects] == ["key"]
    assert server.count("compose") == 35 + 2 + 1


def test_a_lost_answer_to_a_conditional_write_is_no_conflict(client: Any, server: GcsServer) -> None:
    store = store_on(client)
    server.fail("insert", "lost")
    first = store.put("lock", b"mine", if_absent=True)
    server.fail("insert", "lost")
    second = store.put("lock", b"mine again", if_version=first.version)
    assert server.unspent() == []
    assert store.head("lock") == second
    # Another writer of the very same bytes is another writer.
    with pytest.raises(ConflictError):
        store.put("lock", b"mine again", if_absent=True)


def test_a_read_goes_on_where_it_broke(client: Any, server: GcsServer) -> None:
    data = content(5 << 20)
    store = store_on(client)
    store.put("key", data)
    for number, kind in enumerate(("cut", "truncate", "short"), start=1):
        server.fail("media", kind, first=number)
    assert b"".join(store.read("key")) == data
    assert server.count("media") == 4


def test_a_read_whose_object_is_replaced_half_way_is_refused(client: Any, server: GcsServer) -> None:
    store = store_on(client)
    store.put("key", content(5 << 20, "old"))
    # An orderly close: after a reset, the bytes before it may be lost too, and the first block be asked for again.
    server.fail("media", "truncate")
    blocks = store.read("key")
    next(blocks)
    store.put("key", content(5 << 20, "new"))
    with pytest.raises(ConflictError, match="key"):
        list(blocks)


def test_a_download_whose_object_is_replaced_half_way_starts_again(
    client: Any, server: GcsServer, tmp_path: Path
) -> None:
    old, new = content(20 * PART, "old"), content(21 * PART, "new")
    store = store_on(client, workers=1)
    store.put("key", old)
    given: list[int] = []

    def replace(count: int) -> None:
        given.append(count)
        if sum(given) > 5 * PART and b"".join(store.read("key", 0, 9)) == old[:9]:
            store.put("key", new)

    info = store.download("key", tmp_path / "target", progress=replace)
    assert (tmp_path / "target").read_bytes() == new
    assert info == store.head("key")
    assert sum(given) == len(new)
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_two_uploads_of_the_same_bytes_share_their_parts(client: Any, server: GcsServer, tmp_path: Path) -> None:
    data = content(40 * PART)
    (tmp_path / "file").write_bytes(data)
    results: list[str | None] = []
    # Pauses long enough for another upload to end meanwhile.
    retry = RetryPolicy(attempts=4, base_seconds=0.05, max_seconds=0.5)

    def upload() -> None:
        store = store_on(client, retry=retry)
        results.append(store.upload(tmp_path / "file", "key", sha256=sha256(data)).sha256)

    threads = [threading.Thread(target=upload) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [sha256(data)] * 3
    assert server.objects["key"].data == data
    store_on(client).sweep()
    assert [*server.objects] == ["key"]


def test_a_leftover_part_with_other_bytes_is_sent_again(client: Any, server: GcsServer, tmp_path: Path) -> None:
    data = content(6 * PART)
    (tmp_path / "file").write_bytes(data)
    store = store_on(client)
    server.fail("compose", "status", status=400)
    with pytest.raises(Exception, match="400"):
        store.upload(tmp_path / "file", "key", sha256=sha256(data))
    parts = sorted(server.objects)
    assert len(parts) == 6
    server.store(parts[2], content(PART, "wrong"))
    sent = len(server.log)
    assert store.upload(tmp_path / "file", "key", sha256=sha256(data)).crc32c == google_crc32c.value(data)
    assert server.count("insert", since=sent) == 1
    assert server.objects["key"].data == data


def test_a_sweep_takes_unfinished_uploads_below_its_prefix_that_are_old_enough(
    client: Any, server: GcsServer, tmp_path: Path
) -> None:
    data = content(3 * PART)
    (tmp_path / "file").write_bytes(data)
    store = store_on(client, "team")
    server.fail("compose", "status", status=400, times=2)
    for key in ("train/a", "test/b"):
        with pytest.raises(Exception, match="400"):
            store.upload(tmp_path / "file", key, sha256=sha256(data))
    assert [*store.list()] == []
    assert len(server.objects) == 6
    assert store.sweep(older_than_seconds=3600) == 0
    assert store.sweep("train/") == 1
    assert len(server.objects) == 3
    assert store.sweep() == 1
    assert server.objects == {}


def test_folder_markers_of_a_console_are_no_objects(client: Any, server: GcsServer) -> None:
    server.store("data/", b"")
    server.store("data/a", b"x")
    assert [info.key for info in store_on(client).list()] == ["data/a"]
    assert [info.key for info in store_on(client, "data").list()] == ["a"]


def test_a_wrong_declaration_says_what_is_wrong(client: Any) -> None:
    for arguments in (
        {"bucket": "gs://bucket"},
        {"bucket": ""},
        {"prefix": "a/../b"},
        {"part_bytes": 0},
        {"workers": 0},
    ):
        with pytest.raises(ConfigError):
            GcsStore(client, **{"bucket": "bucket", **arguments})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="version"):
        store_on(client).put("key", b"x", if_version='"an-etag"')


def test_the_client_of_dagster_gcps_resource_serves(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    dagster_gcp = pytest.importorskip("dagster_gcp", reason="needs the extra `gcs`")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
    store = store_on(dagster_gcp.GCSResource(project="project").get_client())
    store.put("key", b"x")
    assert b"".join(store.read("key")) == b"x"


# Kills.

UPLOAD = """
    store.upload(Path(sys.argv[2]), "key", sha256=sys.argv[3])
"""
DOWNLOAD = """
    store.download("key", Path(sys.argv[2]), sha256=sys.argv[3])
"""
PROGRAM = """
    import sys
    from pathlib import Path
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage
    from dataprep_assets.stores.gcs import GcsStore
    client = storage.Client(project="project", credentials=AnonymousCredentials())
    store = GcsStore(client, "bucket", part_bytes=int(sys.argv[1]), workers=4)
"""


@contextlib.contextmanager
def running(server: GcsServer, work: str, path: Path, digest: str) -> Iterator[subprocess.Popen[bytes]]:
    program = textwrap.dedent(PROGRAM) + textwrap.dedent(work)
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(PART), str(path), digest],
        env={**os.environ, "STORAGE_EMULATOR_HOST": server.endpoint},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    while not condition():
        assert process.poll() is None, "it ended before the moment at which it was to be killed"
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["first part", "many parts", "joining", "removing"])
def test_an_upload_that_was_killed_goes_on_and_showed_nothing(
    client: Any, server: GcsServer, tmp_path: Path, moment: str
) -> None:
    data = content(50 * PART)
    (tmp_path / "file").write_bytes(data)
    server.store("key", b"the old object")
    server.seconds_per_block = 0.01
    # However late the kill comes: it is not complete before it.
    if moment in ("first part", "many parts"):
        server.fail("compose", "stall", times=None)
    if moment == "joining":
        server.fail("compose", "stall", first=2)
    if moment == "removing":
        server.fail("delete", "stall", first=3)
    reached = {
        "first part": lambda: server.count("insert") >= 1,
        "many parts": lambda: server.count("insert") >= 30,
        "joining": lambda: server.count("compose") >= 2,
        "removing": lambda: server.count("delete") >= 3,
    }[moment]
    mine = frozenset(server.connections)
    with running(server, UPLOAD, tmp_path / "file", sha256(data)) as process:
        wait_for(reached, process)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    server.heal()
    server.seconds_per_block = 0.0
    server.await_the_end_of_connections_beside(mine)
    if moment != "removing":
        assert server.objects["key"].data == b"the old object"
    else:
        assert server.objects["key"].data == data
    assert [info.key for info in store_on(client).list()] == ["key"]
    arrived = sum(name.startswith(".uploads/") and "join" not in name for name in server.objects)
    sent = len(server.log)
    info = store_on(client).upload(tmp_path / "file", "key", sha256=sha256(data))
    assert server.count("insert", since=sent) == 50 - arrived
    assert (info.sha256, info.crc32c) == (sha256(data), google_crc32c.value(data))
    assert server.objects["key"].data == data
    assert [*server.objects] == ["key"]


@pytest.mark.slow
@pytest.mark.parametrize("ranges", [1, 25])
def test_a_download_that_was_killed_goes_on(client: Any, server: GcsServer, tmp_path: Path, ranges: int) -> None:
    data = content(50 * PART)
    server.store("key", data)
    server.seconds_per_block = 0.01
    target = tmp_path / "folder" / "file"
    # However late the kill comes: it is not complete before it.
    server.fail("media", "stall", first=ranges + 6, times=None)
    mine = frozenset(server.connections)
    with running(server, DOWNLOAD, target, sha256(data)) as process:
        wait_for(lambda: server.count("media") > ranges + 4, process)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert not target.exists()
    server.heal()
    server.seconds_per_block = 0.0
    server.await_the_end_of_connections_beside(mine)
    sent = len(server.log)
    store_on(client).download("key", target, sha256=sha256(data))
    assert server.count("media", since=sent) <= 50 - ranges
    assert target.read_bytes() == data
    assert [path.name for path in target.parent.iterdir()] == ["file"]


# The fake, by google-cloud-storage's own client.


@pytest.fixture
def bucket(client: Any) -> Any:
    return client.bucket("bucket")


class TestTheFakeServesTheOfficialClient:
    def test_bucket(self, client: Any) -> None:
        assert client.get_bucket("bucket").name == "bucket"
        with pytest.raises(NotFound, match="does not exist"):
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

    def test_a_resumable_upload_shows_nothing_before_its_end(self, bucket: Any, server: GcsServer) -> None:
        with bucket.blob("key").open("wb", chunk_size=256 * 1024) as stream:
            stream.write(content(600_000))
            assert server.objects == {}
        assert server.objects["key"].data == content(600_000)

    def test_digests_that_do_not_match_are_refused(self, bucket: Any, server: GcsServer) -> None:
        for field in ("crc32c", "md5_hash"):
            blob = bucket.blob("key")
            setattr(blob, field, "AAAAAA==" if field == "crc32c" else "AAAAAAAAAAAAAAAAAAAAAA==")
            with pytest.raises(BadRequest, match="match"):
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
        with pytest.raises(Exception, match=r"EntityTooSmall|400"):
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
