"""Reads from Google Cloud Storage continue where they were interrupted, and never mix two versions of an object."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.storage", reason="needs the extra `gcs`")


from dataprep_assets.stores.store import ConflictError
from dataprep_assets_tests.fakes.gcs_server import GcsServer
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.stores.contract import content, sha256
from dataprep_assets_tests.stores.gcs_stores import PART, running, store_on
from dataprep_assets_tests.stores.kills import wait_for

DOWNLOAD = """
    store.download("key", Path(sys.argv[2]), sha256=sys.argv[3])
"""


def test_an_interrupted_read_continues_at_the_same_position(client: Any, server: GcsServer) -> None:
    data = content(5 << 20)
    store = store_on(client)
    store.put("key", data)
    for number, kind in enumerate(("cut", "truncate", "short"), start=1):
        server.fail("media", kind, first=number)
    assert b"".join(store.read("key")) == data
    # The read has five ranges of 1 MiB, and each fault causes one more request.
    assert server.count("media") == 5 + 3


def test_a_read_of_an_object_that_is_replaced_meanwhile_is_refused(client: Any, server: GcsServer) -> None:
    store = store_on(client)
    store.put("key", content(5 << 20, "old"))
    # Use an orderly close, because a reset may also lose the bytes before the reset, and then the first block is
    # requested again.
    server.fail("media", "truncate")
    blocks = store.read("key")
    next(blocks)
    store.put("key", content(5 << 20, "new"))
    with raises(ConflictError, "key"):
        list(blocks)


def test_a_download_of_an_object_that_is_replaced_meanwhile_starts_again(
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


@pytest.mark.slow
def test_a_killed_download_leaves_no_visible_file(client: Any, server: GcsServer, tmp_path: Path) -> None:
    data = content(50 * PART)
    server.store("key", data)
    server.seconds_per_block = 0.01
    target = tmp_path / "folder" / "file"
    # Stall the download, so that it is incomplete however late the kill happens.
    server.fail("media", "stall", first=12, times=None)
    with running(server, DOWNLOAD, target, sha256(data)) as process:
        wait_for(lambda: server.count("media") > 10, process)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert not target.exists()
    server.heal()
    server.seconds_per_block = 0.0
    store_on(client).download("key", target, sha256=sha256(data))
    assert target.read_bytes() == data
    assert [path.name for path in target.parent.iterdir()] == ["file"]
