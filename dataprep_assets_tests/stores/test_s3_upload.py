"""Uploads to S3 that were killed or failed are invisible, and their leftovers are swept."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import TransferError
from dataprep_assets_tests.fakes.buckets import PART_BYTES, new_bucket, new_client, new_store
from dataprep_assets_tests.fakes.fault_proxy import Fault, FaultProxy
from dataprep_assets_tests.fakes.swift_server import SwiftServer
from dataprep_assets_tests.stores.contract import content, sha256
from dataprep_assets_tests.stores.kills import wait_for

pytestmark = pytest.mark.slow

UPLOADER = """
import sys
from pathlib import Path
from dataprep_assets_tests.fakes.buckets import new_store
url, bucket, path, digest = sys.argv[1:]
new_store(url, bucket, workers=2).upload(Path(path), "dir/file.bin", sha256=digest)
"""


@pytest.mark.parametrize(("step", "count"), [("create", 1), ("part", 4), ("complete", 1)])
def test_a_killed_upload_is_invisible_and_is_swept(swift: SwiftServer, tmp_path: Path, step: str, count: int) -> None:
    bucket, data = new_bucket(swift.url), content(6 * PART_BYTES - 1000)
    path = tmp_path / "file"
    path.write_bytes(data)
    direct = new_store(swift.url, bucket)
    with FaultProxy(swift.url) as proxy:
        # Stall the upload, so that it is incomplete however late the kill happens.
        proxy.faults = [Fault("stall", "complete")]
        process = subprocess.Popen([sys.executable, "-c", UPLOADER, proxy.url, bucket, str(path), sha256(data)])
        try:
            wait_for(lambda: proxy.count(step) >= count, process)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    assert direct.head("dir/file.bin") is None
    assert [*direct.list()] == []
    direct.upload(path, "dir/file.bin", sha256=sha256(data))
    assert b"".join(direct.read("dir/file.bin")) == data
    assert direct.sweep() <= 1, "at most that of the killed one"
    assert b"".join(direct.read("dir/file.bin")) == data


def test_a_failed_upload_is_aborted(swift: SwiftServer, tmp_path: Path) -> None:
    bucket, data = new_bucket(swift.url), content(2 * PART_BYTES)
    path = tmp_path / "file"
    path.write_bytes(data)
    with FaultProxy(swift.url) as proxy:
        proxy.faults = [Fault("503", "part", times=1_000_000, skip=1)]
        with pytest.raises(TransferError):
            new_store(proxy.url, bucket).upload(path, "key", sha256=sha256(data))
    assert new_store(swift.url, bucket).sweep() == 0


def test_an_upload_does_not_affect_a_concurrent_one_of_another_machine(
    swift: SwiftServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, data = new_bucket(swift.url), content(2 * PART_BYTES)
    path = tmp_path / "file"
    path.write_bytes(data)
    ours, theirs = new_store(swift.url, bucket, workers=1), new_client(swift.url)
    named = {"Bucket": bucket, "Key": "file.bin"}
    begun = [theirs.create_multipart_upload(**named)["UploadId"]]
    send = ours._bucket._client.upload_part

    def spoilt_once(**request: Any) -> Any:
        if len(begun) == 1:
            theirs.abort_multipart_upload(**named, UploadId=request["UploadId"])
            begun.append(theirs.create_multipart_upload(**named)["UploadId"])
            theirs.upload_part(**named, UploadId=begun[1], PartNumber=1, Body=data[:PART_BYTES])
        return send(**request)

    monkeypatch.setattr(ours._bucket._client, "upload_part", spoilt_once)
    ours.upload(path, "file.bin", sha256=sha256(data))
    assert b"".join(ours.read("file.bin")) == data
    assert {upload["UploadId"] for upload in theirs.list_multipart_uploads(Bucket=bucket)["Uploads"]} == {*begun}


def test_unfinished_uploads_are_swept_below_a_prefix(swift: SwiftServer, tmp_path: Path) -> None:
    bucket = new_bucket(swift.url)
    client = new_client(swift.url)
    for key in ("a/1", "a/2", "b/1"):
        client.create_multipart_upload(Bucket=bucket, Key=key)
    direct = new_store(swift.url, bucket)
    assert direct.sweep("a/", older_than_seconds=3600) == 0
    assert direct.sweep("a/") == 2
    assert direct.sweep() == 1
    assert direct.sweep() == 0


def test_an_active_upload_is_kept_however_long_ago_it_started(moto: str) -> None:
    bucket, data = new_bucket(moto), content(PART_BYTES)
    client, named = new_client(moto), {"Bucket": bucket, "Key": "a/1"}
    begun = {key: client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"] for key in ("a/1", "a/2")}
    listed = client.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert {upload["Initiated"].year for upload in listed} == {2010}, "by moto's clock"
    sent = client.upload_part(**named, UploadId=begun["a/1"], PartNumber=1, Body=data)
    direct = new_store(moto, bucket)
    assert direct.sweep("a/", older_than_seconds=3600) == 1, "the one without parts"
    parts = {"Parts": [{"PartNumber": 1, "ETag": sent["ETag"]}]}
    client.complete_multipart_upload(**named, UploadId=begun["a/1"], MultipartUpload=parts)
    assert b"".join(direct.read("a/1")) == data
