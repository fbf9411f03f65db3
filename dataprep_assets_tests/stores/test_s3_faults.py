"""Faults of networks and stores, and kills, during transfers: each ends with right bytes or a clear error, in bounded
time.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from dataprep_assets.errors import ConfigError, CorruptSourceError, DataprepError, SourceError, TransferError
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets.stores.store import ConflictError
from dataprep_assets_tests.fakes.buckets import PART_BYTES, new_bucket, new_client, new_store
from dataprep_assets_tests.fakes.fault_proxy import Fault, FaultProxy, Kind
from dataprep_assets_tests.fakes.swift_server import SwiftServer
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.stores.contract import content
from dataprep_assets_tests.stores.faulty_place import HALVES, LARGE, SMALL, Place
from dataprep_assets_tests.stores.kills import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stocked(swift: SwiftServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Return a bucket with the objects that the matrix reads; its clients are created once."""
    with FaultProxy(swift.url) as proxy:
        place = Place(swift.url, new_bucket(swift.url), proxy, tmp_path_factory.mktemp("stock"))
        place.prepare()
        yield place


# Reading operations leave nothing to remove after a fault. Operations in one request may leave an object, but no
# unfinished upload.
READING = {"download", "read", "list", "head"}
IN_ONE_REQUEST = {"put", "put_if_absent", "upload_small", "copy", "delete"}


@pytest.fixture
def place(stocked: Place, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    """Return the stocked bucket; only leftovers of a test are removed, to save Swift requests."""
    stocked.folder, stocked.store = tmp_path, stocked.patient
    stocked.proxy.faults = []
    yield stocked
    stocked.proxy.faults = []
    callspec = getattr(request.node, "callspec", None)
    act = callspec.params.get("act") if callspec is not None else None
    if act not in READING:
        stocked.direct.delete("new")
    if act not in READING | IN_ONE_REQUEST:
        stocked.direct.sweep()


EVERYWHERE: list[Kind] = ["reset", "lost_answer"]
# All operations send a request of one kind by the same function, which treats these faults like a reset, so one
# operation for each kind of request is enough.
ONCE: list[Kind] = ["503", "stall", "429", "400-timeout", "cut_request"]
STEPS: dict[str, list[str]] = {
    "put": ["put", "head"],
    "put_if_absent": ["put", "head"],
    "upload_small": ["put", "head"],
    "upload_large": ["create", "part", "complete", "head"],
    "download": ["head", "get"],
    "read": ["get"],
    "list": ["list"],
    "head": ["head"],
    "copy": ["head", "copy"],
    "copy_large": ["head", "create", "part_copy", "complete"],
    "compose": ["head", "create", "get", "part", "part_copy", "complete"],
    "delete": ["delete"],
}
# Only these operations detect a flipped byte without TLS, because no store gives a digest of a listing, of headers or
# of a range.
FLIPS = {("put", "put"), ("upload_small", "put"), ("upload_large", "part"), ("download", "get"), ("compose", "get")}
CUT_REQUESTS = {"put", "part", "complete"}
TRUNCATED = {"get", "list", "create", "complete", "copy", "part_copy"}
DROPPED = {"put"}


def find_cells() -> Iterator[tuple[str, str, Kind]]:
    met = set[str]()
    for act, steps in STEPS.items():
        for step in steps:
            if step == "head" and act != "head":  # an object is looked up in the same way in every operation
                yield act, step, "reset"
                continue
            first = step not in met
            met.add(step)
            possible = {
                # An answer to HEAD has no body, and so no error code.
                "400-timeout": step != "head",
                "cut_request": step in CUT_REQUESTS,
            }
            kinds = [
                *EVERYWHERE,
                *(kind for kind in ONCE if first and possible.get(kind, True)),
                *(["flip"] if (act, step) in FLIPS else []),
                *(["truncate"] if step == "get" or (first and step in TRUNCATED) else []),
                *(["drop"] if step in DROPPED else []),
            ]
            yield from ((act, step, kind) for kind in kinds)


@pytest.mark.parametrize(("act", "step", "kind"), [*find_cells()])
def test_one_fault_anywhere_ends_with_the_right_bytes(place: Place, act: str, step: str, kind: Kind) -> None:
    place.fail(kind, step)
    there, expected = getattr(place, act)()
    assert there == expected
    assert place.proxy.faults[0].times == 0, "the fault never happened"


@pytest.mark.parametrize(
    ("act", "step", "kind"),
    [
        *((act, steps[-1], "503") for act, steps in STEPS.items()),
        *((act, steps[-1], "reset") for act, steps in STEPS.items() if act in READING),
        ("put", "put", "reset"),
        ("put", "put", "429"),
        ("put", "put", "flip"),
        ("put", "put", "drop"),
        ("put", "put", "stall"),
        ("upload_large", "part", "flip"),
        ("upload_large", "part", "cut_request"),
        ("upload_large", "part", "stall"),
        ("upload_large", "part", "drop"),
        ("upload_large", "complete", "reset"),
        ("read", "get", "truncate"),
        ("download", "get", "stall"),
        ("download", "get", "flip"),
        ("list", "list", "truncate"),
        ("compose", "part_copy", "503"),
        ("compose", "get", "reset"),
        ("compose", "part", "drop"),
    ],
)
def test_a_persistent_fault_ends_with_a_clear_error_and_nothing_half_finished(
    place: Place, act: str, step: str, kind: Kind
) -> None:
    place.fail(kind, step, times=1_000_000)
    with pytest.raises(DataprepError) as caught:
        getattr(place, act)()
    assert isinstance(caught.value, SourceError)
    assert f"s3://{place.bucket}/" in str(caught.value)
    assert "AKIA" not in str(caught.value)
    if step != "head":
        assert place.bytes_of("new") == (SMALL if act == "delete" else None)
    assert not (place.folder / "target").exists()


def test_a_delay_requested_by_the_store_is_obeyed(swift: SwiftServer, place: Place) -> None:
    waits: list[float] = []
    policy = RetryPolicy(attempts=4, base_seconds=0.01, max_seconds=0.02, sleep=waits.append)
    store = new_store(place.proxy.url, place.bucket, retry=policy)
    place.proxy.faults = [Fault("429", "put", times=2, retry_after="7"), Fault("503", "put")]
    store.put("new", SMALL)
    assert [round(wait) for wait in waits] == [7, 7, 0]


# --- changed objects


def test_an_object_replaced_during_a_download_is_downloaded_again(swift: SwiftServer, place: Place) -> None:
    other = content(2 * PART_BYTES + 99, "other")
    place.direct.copy("large", "new")

    class Replacing:
        done = False

        def __call__(self, operation: str, target: str) -> None:
            if operation == "get" and not self.done:
                self.done = True
                place._upload(place.direct, "new", other)

    with FaultProxy(swift.url, before=Replacing()) as proxy:
        store = new_store(proxy.url, place.bucket)
        counts: list[int] = []
        info = store.download("new", place.folder / "target", progress=counts.append)
    assert (place.folder / "target").read_bytes() == other
    assert (info.bytes, sum(counts)) == (len(other), len(other))


def test_a_read_never_mixes_two_versions(place: Place) -> None:
    place.direct.copy("large", "new")
    blocks = place.store.read("new")
    first = next(blocks)
    assert LARGE.startswith(first)
    place._upload(place.direct, "new", content(len(LARGE), "other"))
    place.proxy.faults = []
    with suppress(ConflictError):
        # The answer in progress may still contain the old bytes, but no other bytes may be returned.
        assert first + b"".join(blocks) == LARGE


# --- digests


@pytest.mark.parametrize("kind", ["recorded", "plain", "composed"])
def test_persistent_wrong_bytes_are_found_by_any_available_digest(place: Place, kind: str) -> None:
    client = new_client(place.url)
    if kind == "recorded":
        place.direct.copy("large", "new")
    elif kind == "plain":
        client.put_object(Bucket=place.bucket, Key="new", Body=LARGE)
    else:
        place.direct.compose(["first", "second"], "new")
    expected = b"".join(HALVES) if kind == "composed" else LARGE
    place.store.download("new", place.folder / "good")
    assert (place.folder / "good").read_bytes() == expected
    place.proxy.faults = [Fault("flip", "get", times=1), Fault("flip", "get", times=1, skip=4)]
    with suppress(CorruptSourceError):
        place.store.download("new", place.folder / "target")
        assert (place.folder / "target").read_bytes() == expected
    place.proxy.faults = [Fault("flip", "get", times=1_000_000)]
    with pytest.raises(CorruptSourceError):
        place.store.download("new", place.folder / "other")
    assert sorted(path.name for path in place.folder.iterdir() if path.name.startswith("other")) == []


def test_a_multipart_object_of_another_writer_can_be_downloaded(place: Place) -> None:
    data = content(2 * PART_BYTES + 18)
    edges = [0, PART_BYTES + 7, 2 * PART_BYTES + 7, len(data)]
    multipart(
        new_client(place.url),
        place.bucket,
        [data[start:stop] for start, stop in pairwise(edges)],
    )
    place.store.download("new", place.folder / "target")
    assert (place.folder / "target").read_bytes() == data


def multipart(client: object, bucket: str, parts: list[bytes]) -> None:
    where = {"Bucket": bucket, "Key": "new"}
    upload = client.create_multipart_upload(**where)["UploadId"]  # type: ignore[attr-defined]
    done = [
        {
            "PartNumber": number,
            "ETag": client.upload_part(**where, UploadId=upload, PartNumber=number, Body=body)["ETag"],  # type: ignore[attr-defined]
        }
        for number, body in enumerate(parts, 1)
    ]
    client.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": done})  # type: ignore[attr-defined]


# --- redirects


def test_an_endless_redirect_is_refused(swift: SwiftServer) -> None:
    # Redirect every request, including the request for the bucket's region that boto3 sends by itself.
    with FaultProxy(swift.url, before=lambda operation, target: (301, "PermanentRedirect")) as proxy:
        store = new_store(proxy.url, "bucket")
        for use in (lambda: store.head("key"), lambda: [*store.list()], lambda: store.put("key", b"x")):
            with raises(ConfigError, "bucket bucket", "region"):
                use()
        assert len(proxy.seen) < 20


def test_an_archived_object_is_reported_as_such(place: Place) -> None:
    with FaultProxy(place.url, before=lambda operation, target: (403, "InvalidObjectState")) as proxy:
        blocks = new_store(proxy.url, place.bucket).read("large")
        with raises(SourceError, "archived"):
            next(blocks)


# --- kills

DOWNLOADER = """
import sys
from pathlib import Path
from dataprep_assets_tests.fakes.buckets import new_store
url, bucket, target = sys.argv[1:]
new_store(url, bucket, workers=2).download("new", Path(target))
"""


def test_a_killed_download_leaves_no_visible_file(swift: SwiftServer, place: Place) -> None:
    target, data = place.folder / "target", content(4 * PART_BYTES)
    place._upload(place.direct, "new", data)
    place.proxy.faults = [Fault("stall", "get", skip=2, times=9)]
    before = place.proxy.count("get")
    process = subprocess.Popen([sys.executable, "-c", DOWNLOADER, place.proxy.url, place.bucket, str(target)])
    try:
        wait_for(lambda: place.proxy.count("get") - before >= 4, process)
    finally:
        process.kill()
        process.wait()
    assert not target.exists()
    place.proxy.faults = []
    place.store.download("new", target)
    assert target.read_bytes() == data
    assert [path.name for path in place.folder.iterdir() if path.name.startswith("target")] == ["target"]


# --- disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("cannot mount a tmpfs here (root is needed)")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_a_clear_error_and_leaves_nothing(place: Place, small_disk: Path) -> None:
    with raises(TransferError, small_disk, len(LARGE)):
        place.store.download("large", small_disk / "target")
    assert [*small_disk.iterdir()] == []
