"""Compositions on S3: R2's rule of equal parts, and the bytes that pass through the client."""

import threading
import time
from pathlib import Path

import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets_tests.fakes.buckets import new_bucket, new_client, new_store
from dataprep_assets_tests.fakes.fault_proxy import FaultProxy, require_equal_parts
from dataprep_assets_tests.fakes.swift_server import SwiftServer
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.stores.contract import content, sha256

pytestmark = pytest.mark.slow


def test_parts_that_r2_refuses_are_never_sent(swift: SwiftServer, tmp_path: Path) -> None:
    bucket = new_bucket(swift.url)
    direct = new_store(swift.url, bucket)
    mib = 1024 * 1024
    sizes = [5 * mib - 1, 5 * mib, 5 * mib + 1, 10 * mib - 1, 10 * mib, 10 * mib + 1, 1, 12 * mib + 345]
    contents = {f"s/{size}": content(size, str(size)) for size in sizes}
    with FaultProxy(swift.url, before=require_equal_parts(new_client(swift.url), bucket)) as proxy:
        store = new_store(proxy.url, bucket)
        path = tmp_path / "file"
        for key, data in contents.items():
            path.write_bytes(data)
            store.upload(path, key, sha256=sha256(data))
            assert b"".join(direct.read(key)) == data
        keys = [*contents]
        for group in (
            [0, 1],
            [1, 1],
            [1, 2],
            [2, 1],
            [4, 4],
            [3, 5],
            [6, 6, 6],
            [6, 4],
            [7, 6],
            [0, 1, 2, 3, 4, 5, 6, 7],
        ):
            sources = [keys[index] for index in group]
            expected = b"".join(contents[key] for key in sources)
            before = proxy.sent("part") + proxy.sent("put")
            info = store.compose(sources, "whole")
            assert info.bytes == len(expected)
            assert b"".join(direct.read("whole")) == expected
            # The client sends at most one part per boundary between sources, and the last part if its source is too
            # small to copy.
            assert proxy.sent("part") + proxy.sent("put") - before <= len(sources) * 5 * mib


@pytest.mark.parametrize("waiting", ["part", "part_copy"])
def test_the_first_error_of_a_composition_cancels_waiting_parts(swift: SwiftServer, waiting: str) -> None:
    bucket, begun = new_bucket(swift.url), threading.Event()
    direct, half = new_store(swift.url, bucket), content(5 * 1024 * 1024 + 1)
    direct.put("half", half)

    def refuse(operation: str, target: str) -> tuple[int, str] | None:
        if operation not in ("part", "part_copy"):
            return None
        if operation == waiting and not begun.is_set():
            begun.set()
            return 503, "SlowDown"
        begun.wait(60)
        return 403, "AccessDenied"

    with FaultProxy(swift.url, before=refuse) as proxy:
        patient = RetryPolicy(attempts=2, base_seconds=240.0, max_seconds=240.0)
        store = new_store(proxy.url, bucket, retry=patient)
        started = time.monotonic()
        # There are three parts: two are copied, and the one that crosses the boundary is sent.
        with raises(ConfigError, "AccessDenied"):
            store.compose(["half", "half"], "whole")
        assert time.monotonic() - started < 60
    assert direct.head("whole") is None
