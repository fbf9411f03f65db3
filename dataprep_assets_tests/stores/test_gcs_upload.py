"""Uploads to Google Cloud Storage: composed parts, and leftovers of kills."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.storage", reason="needs the extra `gcs`")

import google_crc32c

from dataprep_assets_tests.fakes.gcs_server import GcsServer
from dataprep_assets_tests.stores.contract import content, sha256
from dataprep_assets_tests.stores.gcs_stores import PART, running, store_on
from dataprep_assets_tests.stores.kills import wait_for

UPLOAD = """
    store.upload(Path(sys.argv[2]), "key", sha256=sys.argv[3])
"""


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


def test_concurrent_uploads_of_equal_bytes_do_not_conflict(client: Any, server: GcsServer, tmp_path: Path) -> None:
    data = content(40 * PART)
    (tmp_path / "file").write_bytes(data)
    results: list[str | None] = []

    def upload() -> None:
        results.append(store_on(client).upload(tmp_path / "file", "key", sha256=sha256(data)).sha256)

    threads = [threading.Thread(target=upload) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [sha256(data)] * 3
    assert server.objects["key"].data == data
    assert [*server.objects] == ["key"]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["first part", "many parts", "joining", "removing"])
def test_a_killed_upload_is_invisible_and_is_swept(client: Any, server: GcsServer, tmp_path: Path, moment: str) -> None:
    data = content(50 * PART)
    (tmp_path / "file").write_bytes(data)
    server.store("key", b"the old object")
    server.seconds_per_block = 0.01
    # Stall the upload, so that it is incomplete however late the kill happens.
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
    info = store_on(client).upload(tmp_path / "file", "key", sha256=sha256(data))
    assert (info.sha256, info.crc32c) == (sha256(data), google_crc32c.value(data))
    assert server.objects["key"].data == data
    assert store_on(client).sweep(older_than_seconds=3600) == 0
    assert store_on(client).sweep() >= 1
    assert [*server.objects] == ["key"]
