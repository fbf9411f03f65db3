"""Every fault in every operation of the GCS store ends with right bytes or a clear error, within a bounded time."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.storage", reason="needs the extra `gcs`")

from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import RefreshError
from google.cloud import storage

from dataprep_assets.errors import CorruptSourceError, DataprepError, SourceError, TransferError
from dataprep_assets.stores.gcs import GcsStore
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets_tests.fakes.gcs_json import JsonApi
from dataprep_assets_tests.fakes.gcs_server import GcsServer
from dataprep_assets_tests.fakes.gcs_state import Kind, Stored
from dataprep_assets_tests.fakes.nobody import refused_url
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.stores.contract import content, sha256
from dataprep_assets_tests.stores.gcs_cases import CASES, DATA, OLD, PART

pytestmark = pytest.mark.slow

# Time limits in seconds. The shorter one is for tests of stalls, which last until the limit. A busy machine may need
# the longer one for all other answers.
TIMEOUT, SILENCE_TIMEOUT = 5.0, 0.1
SILENT: tuple[Kind, ...] = ("stall", "hang")
# Maximum duration of an operation in seconds. A request may wait for the connection, for each sent block and for each
# block of the answer, but a hang costs only one wait.
BOUND = 30.0
POLICY = RetryPolicy(attempts=4, base_seconds=0.001, max_seconds=0.002, max_retry_after=5.0)
# Tests of stalls allow more attempts, because a busy machine may send answers only after the shorter limit.
SILENCE_POLICY = replace(POLICY, attempts=10)


@pytest.fixture
def server() -> Iterator[GcsServer]:
    with GcsServer(page_size=7, rewrite_bytes=1 << 20) as running:
        running.store("key", OLD)
        running.store("source", DATA, metadata={"sha256": sha256(DATA)})
        for number in range(40):
            running.store(f"parts/{number:02d}", DATA[number * PART : (number + 1) * PART + 3 * (number == 39)])
        yield running


@pytest.fixture
def client(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
    made = storage.Client(project="project", credentials=AnonymousCredentials())
    # Create the session now, because several threads would otherwise each create one at the first request.
    assert made._http
    return made


@pytest.fixture
def store(client: Any, request: pytest.FixtureRequest) -> GcsStore:
    callspec = getattr(request.node, "callspec", None)
    silent = callspec is not None and callspec.params.get("kind") in SILENT
    passing = request.node.originalname == "test_a_temporary_fault_is_survived"
    policy = SILENCE_POLICY if silent and passing else POLICY
    timeout = SILENCE_TIMEOUT if silent else TIMEOUT
    return GcsStore(client, "bucket", retry=policy, part_bytes=PART, workers=4, timeout_seconds=timeout)


def settle(client: Any, server: GcsServer) -> None:
    """Wait until the server has also executed the requests that the client gave up, because a busy server is late."""
    pools = client._http.get_adapter(server.endpoint).poolmanager.pools
    for key in pools.keys():  # noqa: SIM118
        pools[key].close()
    # Close the session only after its pools, because the session forgets its pools without closing their connections.
    client._http.close()
    server.await_the_end_of_connections_beside(frozenset())


# Each of these faults is survived if it occurs at most twice. The fault `flip` is tested separately below, because no
# digest reveals it in some answers.
EVERYWHERE: list[tuple[Kind, dict[str, Any]]] = [
    ("status", {"status": 503}),
    ("reset", {}),
    ("lost", {}),
    ("truncate", {}),
    ("hang", {}),
]
# The store sends all requests of one kind by the same function, which treats these faults like those above, so one
# operation for each kind of request is enough.
ONCE: list[tuple[Kind, dict[str, Any]]] = [
    ("status", {"status": 429, "retry_after": "0"}),
    ("stall", {}),
    ("cut", {}),
    ("short", {}),
]


def cells() -> list[Any]:
    return list(_cells())


def _cells() -> Iterator[Any]:
    met = set[str]()
    for name, case in CASES.items():
        for request in case.requests:
            for kind, options in EVERYWHERE if request in met else (*EVERYWHERE, *ONCE):
                if request == "delete" and kind in ("cut", "truncate", "short", "hang"):
                    continue  # the answer to a delete has no body
                yield pytest.param(
                    name, request, kind, options, id=f"{name}-{request}-{kind}{options.get('status', '')}"
                )
            met.add(request)


@pytest.mark.parametrize(("name", "request_", "kind", "options"), cells())
def test_a_temporary_fault_is_survived(
    store: GcsStore,
    client: Any,
    server: GcsServer,
    tmp_path: Path,
    name: str,
    request_: str,
    kind: Kind,
    options: dict[str, Any],
) -> None:
    case = CASES[name]
    if name == "sweep":
        server.store(".uploads/0/00000000", b"part", metadata={"dataprep-key": "key"})
    server.fail(request_, kind, times=2, **options)
    began = time.monotonic()
    result = case.act(store, tmp_path)
    assert time.monotonic() - began < BOUND
    assert case.right(server, tmp_path, result)
    assert server.unspent() == []
    if kind in SILENT:
        # The server may execute an aborted join late and so create its result again; a later sweep removes that object.
        settle(client, server)
        store.sweep()
    assert not any(name.startswith(".uploads/") for name in server.objects)


@pytest.mark.parametrize(
    ("name", "request_", "kind", "options"),
    # Leave out most stalls, because a hang is the same silence, but begins after half of an answer, so that it tests
    # more.
    [cell for cell in cells() if cell.values[2] != "stall" or cell.values[1] == "delete"],
)
def test_a_persistent_fault_ends_with_a_clear_error_and_leaves_nothing_half_finished(
    store: GcsStore,
    client: Any,
    server: GcsServer,
    tmp_path: Path,
    name: str,
    request_: str,
    kind: Kind,
    options: dict[str, Any],
) -> None:
    case = CASES[name]
    if name == "sweep":
        server.store(".uploads/0/00000000", b"part", metadata={"dataprep-key": "key"})
    server.fail(request_, kind, times=None, **options)
    began = time.monotonic()
    try:
        result = case.act(store, tmp_path)
    except TransferError as error:
        complaint = str(error)
        right = case.untouched(server, tmp_path)
    else:
        # Accept success in these cases: temporary objects that cannot be deleted do not damage complete ones, and a
        # conditional write recognizes its own object.
        harmless = request_ == "delete" or name == "put if absent" or (name, request_) == ("upload", "insert")
        complaint = "gave up after 4 attempts" if harmless else "no error"
        right = case.right(server, tmp_path, result)
    assert "gave up after 4 attempts" in complaint
    assert right
    assert time.monotonic() - began < BOUND
    server.heal()
    settle(client, server)
    server.objects.pop("new", None)
    patient = GcsStore(client, "bucket", retry=POLICY, part_bytes=PART, workers=4, timeout_seconds=TIMEOUT)
    assert case.right(server, tmp_path, case.act(patient, tmp_path))
    patient.sweep()
    assert not any(name.startswith(".uploads/") for name in server.objects)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("read", "delete", "sweep")])
def test_a_flipped_byte_in_an_answer_never_gives_a_wrong_result(
    store: GcsStore, server: GcsServer, tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    for request in case.requests:
        if request != "delete":
            server.fail(request, "flip", times=1)
    try:
        result = case.act(store, tmp_path)
    except DataprepError:
        assert case.untouched(server, tmp_path)
    else:
        # A damaged description of an object may be accepted (no digest covers it), but damaged bytes may not.
        assert name in ("head", "list") or case.right(server, tmp_path, result)


@pytest.mark.parametrize("name", ["put", "upload"])
def test_a_byte_damaged_during_an_upload_is_refused_and_sent_again(
    store: GcsStore, server: GcsServer, tmp_path: Path, name: str
) -> None:
    # The middle of an upload's body is data, because the description before it is small.
    server.fail("insert", "corrupt", times=2)
    result = CASES[name].act(store, tmp_path)
    assert CASES[name].right(server, tmp_path, result)
    assert [entry.status for entry in server.log if entry.operation == "insert"].count(400) == 2


def test_parts_are_sent_again_to_a_server_that_stops_reading_or_disconnects(tmp_path: Path) -> None:
    data = content(20 << 20)
    (tmp_path / "file").write_bytes(data)
    with GcsServer(receive_buffer=1 << 16) as server:
        client = storage.Client(
            project="project", credentials=AnonymousCredentials(), client_options={"api_endpoint": server.endpoint}
        )
        # Allow more attempts, because a busy machine may also exceed the time limit.
        patient = replace(POLICY, attempts=10)
        store = GcsStore(client, "bucket", retry=patient, part_bytes=4 << 20, workers=2, timeout_seconds=2.0)
        server.interruptions = ["hangup", "deaf", "hangup", "deaf"]
        info = store.upload(tmp_path / "file", "key", sha256=sha256(data))
        assert server.interruptions == []
        assert server.objects["key"].data == data
        assert info.sha256 == sha256(data)
        assert [*server.objects] == ["key"]


def test_a_part_may_take_longer_than_the_time_limit_while_it_makes_progress() -> None:
    # Sending 16 MiB at 6 MiB/s takes longer than two seconds in total, but no single wait is that long.
    data = content(16 << 20)
    with GcsServer(seconds_per_block=0.01, receive_buffer=1 << 16) as server:
        client = storage.Client(
            project="project", credentials=AnonymousCredentials(), client_options={"api_endpoint": server.endpoint}
        )
        one_try = RetryPolicy(attempts=1)
        store = GcsStore(client, "bucket", retry=one_try, timeout_seconds=2.0)
        assert store.put("key", data).bytes == len(data)
        assert b"".join(store.read("key")) == data


def test_a_download_of_wrong_bytes_is_repeated_and_then_refused(
    store: GcsStore, server: GcsServer, tmp_path: Path
) -> None:
    given: list[int] = []
    for digest in (sha256(DATA), None):
        server.store("source", DATA)
        server.fail("media", "flip", first=3)
        store.download("source", tmp_path / "target", sha256=digest, progress=given.append)
        assert (tmp_path / "target").read_bytes() == DATA
        assert sum(given) == len(DATA)
        given.clear()
        server.heal()
        (tmp_path / "target").unlink()
        server.fail("media", "flip", times=None)
        with raises(CorruptSourceError, "source", "twice"):
            store.download("source", tmp_path / "target", sha256=digest)
        assert [*tmp_path.iterdir()] == []
        server.heal()


def test_a_circular_listing_ends(store: GcsStore, server: GcsServer) -> None:
    again = server.page_size
    keys = iter(store.list("parts/"))
    for _ in range(again):
        next(keys)
    # From here on every page is empty and names itself as the next page.
    server.page_size = 0
    with raises(SourceError, "page"):
        list(keys)


def test_a_wait_requested_by_a_server_is_obeyed_or_refused(client: Any, server: GcsServer) -> None:
    waits: list[float] = []
    policy = RetryPolicy(attempts=3, base_seconds=0.001, max_seconds=0.002, max_retry_after=100.0, sleep=waits.append)
    store = GcsStore(client, "bucket", retry=policy)
    server.fail("get", "status", status=429, retry_after="7")
    assert store.head("key") is not None
    assert [round(wait) for wait in waits] == [7]
    server.heal()
    server.fail("get", "status", status=503, retry_after="7200")
    with raises(TransferError, "key", "7200 s"):
        store.head("key")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("status", [401, 403])
def test_refused_access_is_reported_at_once_with_its_remedy(
    store: GcsStore, server: GcsServer, tmp_path: Path, name: str, status: int
) -> None:
    request = CASES[name].requests[0]
    server.fail(request, "status", status=status, times=None)
    with raises(SourceError, "GOOGLE_APPLICATION_CREDENTIALS") as caught:
        CASES[name].act(store, tmp_path)
    assert "roles/storage.objectUser" in str(caught.value)
    assert str(status) in str(caught.value) or status == 401
    # No request is retried, but requests that are already in progress are still counted.
    assert server.count(request) <= 12
    assert CASES[name].untouched(server, tmp_path)


def test_a_missing_bucket_is_reported(client: Any, tmp_path: Path) -> None:
    store = GcsStore(client, "no-such-bucket", retry=POLICY)
    (tmp_path / "file").write_bytes(b"x")
    for act in (
        lambda: store.head("key"),
        lambda: [*store.list()],
        lambda: [*store.read("key")],
        lambda: store.put("key", b"x"),
        lambda: store.delete("key"),
        lambda: store.upload(tmp_path / "file", "key", sha256=sha256(b"x")),
        lambda: store.download("key", tmp_path / "target"),
    ):
        with raises(SourceError, "no-such-bucket"):
            act()


def test_expired_credentials_are_reported_without_quoting_their_error(
    server: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Expired(AnonymousCredentials):  # type: ignore[misc]
        def before_request(self, *arguments: Any) -> None:
            raise RefreshError("the-secret-token was refused")

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
    store = GcsStore(storage.Client(project="project", credentials=Expired()), "bucket", retry=POLICY)
    with raises(SourceError, "GOOGLE_APPLICATION_CREDENTIALS") as caught:
        store.head("key")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_missing_server_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused_url() as url:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        client = storage.Client(project="project", credentials=AnonymousCredentials())
        with raises(TransferError, "ConnectionRefusedError"):
            GcsStore(client, "bucket", retry=POLICY).head("key")


@pytest.mark.parametrize("name", ["upload", "compose"])
@pytest.mark.parametrize("joins", [1, 2])
def test_a_wrong_join_by_the_server_is_found(
    store: GcsStore, server: GcsServer, tmp_path: Path, name: str, joins: int
) -> None:
    # The 40 parts need two joins at the first level, and then a third join of the two results.
    server.wrong_joins = {joins} if joins == 1 else {3}
    with raises(TransferError, "CRC32C"):
        CASES[name].act(store, tmp_path)
    assert "key" not in server.objects or server.objects["key"].data == OLD
    assert CASES[name].right(server, tmp_path, CASES[name].act(store, tmp_path))
    assert store.sweep() == (name == "upload")  # the failed upload left its parts
    assert not any(name.startswith(".uploads/") for name in server.objects)


@pytest.mark.parametrize("name", ["upload", "compose"])
def test_a_join_that_is_requested_again_after_it_succeeded_is_recognized(
    store: GcsStore, server: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A request that timed out and was executed late finds its own result, which it must not replace."""
    make, late = server.store, list[str]()

    def make_again(name: str, *arguments: Any, **about: Any) -> Stored:
        made = make(name, *arguments, **about)
        if "/join-" in name and not late:
            late.append(name)
            make(name, *arguments, **about)
        return made

    monkeypatch.setattr(server, "store", make_again)
    assert CASES[name].right(server, tmp_path, CASES[name].act(store, tmp_path))
    assert late
    store.sweep()
    assert not any(name.startswith(".uploads/") for name in server.objects)


def test_a_copy_whose_answer_does_not_describe_it_is_requested_again(
    store: GcsStore, server: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe, left_out = JsonApi._resource, list[str]()

    def leave_out(api: JsonApi, stored: Stored) -> dict[str, Any]:
        described = describe(api, stored)
        if stored.name == "key" and not left_out:
            left_out.append(described.pop("crc32c"))
        return described

    monkeypatch.setattr(JsonApi, "_resource", leave_out)
    assert store.copy("source", "key").bytes == len(DATA)
    assert server.objects["key"].data == DATA
    assert left_out


@pytest.mark.parametrize("status", [408, 500, 502, 504])
def test_every_temporary_status_is_retried(store: GcsStore, server: GcsServer, status: int) -> None:
    server.fail("get", "status", status=status, times=3)
    assert store.head("key") is not None
    assert server.unspent() == []
