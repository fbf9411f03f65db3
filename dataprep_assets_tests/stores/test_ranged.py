"""Claims of the ranged download: right bytes or a clear error, at most one range lost per worker, no debris."""

import email.utils
import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dataprep_assets.errors import ConfigError, CorruptSourceError, SourceError, TransferError
from dataprep_assets.stores import ranged
from dataprep_assets.stores.ranged import RetryableError, RetryPolicy, StoppedError, parse_retry_after, run_all

PART = 1000
CONTENT = bytes(hashlib.shake_256(b"ranged").digest(10_500))
SHA256 = hashlib.sha256(CONTENT).hexdigest()
FAST = RetryPolicy(attempts=4, base_seconds=0.001, max_seconds=0.002)


class Source:
    """Serves CONTENT in chunks of 300 bytes; `faults` maps a request number to what happens then."""

    def __init__(self, content: bytes = CONTENT) -> None:
        self.content = content
        self.asked: list[tuple[int, int]] = []
        self.faults: dict[int, Callable[[bytes], Iterator[bytes]]] = {}
        self.lock = threading.Lock()

    def read_range(self, start: int, end: int) -> Iterator[bytes]:
        with self.lock:
            self.asked.append((start, end))
            number = len(self.asked)
        body = self.content[start:end]
        if number in self.faults:
            yield from self.faults[number](body)
            return
        for at in range(0, len(body), 300):
            yield body[at : at + 300]


def fetch(source: Source, target: Path, **options: object) -> str:
    arguments: dict[str, object] = {
        "size": len(source.content),
        "target": target,
        "sha256": SHA256,
        "label": "shard-7",
        "part_bytes": PART,
        "retry": FAST,
        **options,
    }
    return ranged.download(source.read_range, **arguments)  # type: ignore[arg-type]


def short(body: bytes) -> Iterator[bytes]:
    yield body[: len(body) // 2]


def long(body: bytes) -> Iterator[bytes]:
    yield body + b"more"


def reset(body: bytes) -> Iterator[bytes]:
    yield body[:100]
    raise RetryableError("connection reset by peer")


def flip(body: bytes) -> Iterator[bytes]:
    yield body[:-1] + bytes([body[-1] ^ 1])


def nothing(body: bytes) -> Iterator[bytes]:
    yield from ()


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, len(CONTENT)])
def test_any_size_arrives_whole_and_leaves_only_the_target(tmp_path: Path, size: int, workers: int) -> None:
    content = CONTENT[:size]
    sha256 = hashlib.sha256(content).hexdigest()
    source = Source(content)
    assert fetch(source, tmp_path / "target", sha256=sha256, workers=workers) == sha256
    assert (tmp_path / "target").read_bytes() == content
    assert os.listdir(tmp_path) == ["target"]
    assert len(source.asked) == -(-size // PART)


@pytest.mark.parametrize("fault", [short, long, reset, nothing, flip])
@pytest.mark.parametrize("number", [1, 5, 11])
def test_one_fault_anywhere_is_survived(tmp_path: Path, fault: Callable[[bytes], Iterator[bytes]], number: int) -> None:
    source = Source()
    source.faults[number] = fault
    seen: list[int] = []
    assert fetch(source, tmp_path / "target", progress=seen.append) == SHA256
    assert (tmp_path / "target").read_bytes() == CONTENT
    assert os.listdir(tmp_path) == ["target"]
    assert sum(seen) == len(CONTENT)


def test_a_retry_goes_on_from_the_byte_that_was_reached(tmp_path: Path) -> None:
    source = Source()
    source.faults[1] = reset
    fetch(source, tmp_path / "target", workers=1)
    assert source.asked[:3] == [(0, PART), (100, PART), (PART, 2 * PART)]


@pytest.mark.parametrize("fault", [nothing, long])
def test_a_spent_budget_names_the_object_the_cause_and_the_attempts(
    tmp_path: Path, fault: Callable[[bytes], Iterator[bytes]]
) -> None:
    source = Source()
    source.faults = dict.fromkeys(range(1, 200), fault)
    with pytest.raises(TransferError, match=r"shard-7, bytes \d+-\d+: .*(short body|longer than).* 4 attempts"):
        fetch(source, tmp_path / "target")
    assert os.listdir(tmp_path) == []


def test_a_digest_that_is_wrong_twice_is_corrupt_and_nothing_stays(tmp_path: Path) -> None:
    source = Source()
    wrong = hashlib.sha256(b"another").hexdigest()
    with pytest.raises(CorruptSourceError, match=rf"shard-7: expected sha256 {wrong}, got {SHA256}"):
        fetch(source, tmp_path / "target", sha256=wrong)
    assert len(source.asked) == 22
    assert os.listdir(tmp_path) == []


def test_a_git_blob_id_is_verified(tmp_path: Path) -> None:
    right = hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()
    assert fetch(Source(), tmp_path / "a", sha256=None, git_sha1=right) == SHA256
    with pytest.raises(CorruptSourceError, match=f"expected git blob sha1 {'0' * 40}, got {right}"):
        fetch(Source(), tmp_path / "b", sha256=None, git_sha1="0" * 40)


def test_an_error_that_is_not_retryable_ends_the_transfer_at_once_and_keeps_the_finished_parts(tmp_path: Path) -> None:
    def gone(body: bytes) -> Iterator[bytes]:
        raise SourceError("shard-7: not found")
        yield body

    source = Source()
    source.faults[4] = gone
    with pytest.raises(SourceError, match="shard-7: not found"):
        fetch(source, tmp_path / "target", workers=1)
    assert len(source.asked) == 4
    assert json.loads((tmp_path / "target.part.json").read_text())["finished"] == [0, 1, 2]
    again = Source()
    fetch(again, tmp_path / "target", workers=1)
    assert len(again.asked) == 8
    assert os.listdir(tmp_path) == ["target"]


@pytest.mark.parametrize(
    "change", [{"etag": "v2"}, {"part_bytes": 500}, {"size": len(CONTENT) - 1, "sha256": None}], ids=str
)
def test_parts_of_another_version_are_never_resumed(tmp_path: Path, change: dict[str, object]) -> None:
    source = Source()
    source.faults = dict.fromkeys(range(6, 100), nothing)
    with pytest.raises(TransferError):
        fetch(source, tmp_path / "target", etag="v1", workers=1)
    again = Source(CONTENT[: len(CONTENT) - 1] if "size" in change else CONTENT)
    fetch(again, tmp_path / "target", **{"etag": "v1", "workers": 1, **change})
    assert (tmp_path / "target").read_bytes() == again.content
    assert again.asked[0][0] == 0
    assert sum(end - start for start, end in again.asked) == len(again.content)


@pytest.mark.parametrize("sidecar", ["", "[]", '{"size": 10500}', '{"size": 10500, "etag": null, "finished": [99]}'])
def test_a_sidecar_that_cannot_be_believed_is_discarded(tmp_path: Path, sidecar: str) -> None:
    (tmp_path / "target.part").write_bytes(b"\0" * len(CONTENT))
    (tmp_path / "target.part.json").write_text(sidecar)
    assert fetch(Source(), tmp_path / "target") == SHA256
    assert os.listdir(tmp_path) == ["target"]


def test_a_sidecar_without_its_part_is_not_believed(tmp_path: Path) -> None:
    state = {"size": len(CONTENT), "etag": None, "part_bytes": PART, "finished": list(range(11))}
    (tmp_path / "target.part.json").write_text(json.dumps(state))
    source = Source()
    assert fetch(source, tmp_path / "target") == SHA256
    assert len(source.asked) == 11


def test_a_full_disk_is_said_with_the_bytes_needed_and_free(tmp_path: Path) -> None:
    with pytest.raises(TransferError, match=r"shard-7: the disk of .* is full: \d+ bytes are needed, \d+ are free"):
        fetch(Source(), tmp_path / "target", size=1 << 62)
    assert os.listdir(tmp_path) == []


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: whole(descriptor, data[:7], offset))
    assert fetch(Source(), tmp_path / "target") == SHA256


def test_a_file_system_without_preallocation_still_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(descriptor: int, offset: int, length: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    assert fetch(Source(), tmp_path / "target") == SHA256


def test_an_error_stops_the_other_workers_promptly(tmp_path: Path) -> None:
    def slow(body: bytes) -> Iterator[bytes]:
        for at in range(len(body)):
            time.sleep(0.02)
            yield body[at : at + 1]

    def gone(body: bytes) -> Iterator[bytes]:
        time.sleep(0.1)
        raise SourceError("gone")
        yield body

    source = Source()
    source.faults = {1: slow, 2: slow, 3: slow, 4: gone}
    before = set(threading.enumerate())
    start = time.monotonic()
    with pytest.raises(SourceError, match="gone"):
        fetch(source, tmp_path / "target")
    # A slow body lasts twenty seconds.
    assert time.monotonic() - start < 10
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(10)
    assert not [thread for thread in left if thread.is_alive()]


def test_a_stop_from_another_thread_ends_even_a_long_wait(tmp_path: Path) -> None:
    def busy(body: bytes) -> Iterator[bytes]:
        raise RetryableError("HTTP 429", 300.0)
        yield body

    source = Source()
    source.faults = dict.fromkeys(range(3, 20), busy)
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    start = time.monotonic()
    with pytest.raises(TransferError, match="stopped"):
        fetch(source, tmp_path / "target", stop=stop)
    # The wait that the server asks for lasts 300 seconds.
    assert time.monotonic() - start < 60
    assert fetch(Source(), tmp_path / "target") == SHA256


@pytest.mark.parametrize("error", [StoppedError("not needed any more"), KeyError("a bug of the caller")], ids=repr)
@pytest.mark.parametrize("parts", [0, 3])
def test_what_progress_raises_ends_the_transfer_and_is_raised(tmp_path: Path, error: Exception, parts: int) -> None:
    seen = 0

    def progress(count: int) -> None:
        nonlocal seen
        seen += count
        if seen > parts * PART:
            raise error

    source = Source()
    with pytest.raises(type(error), match=str(error.args[0])):
        # Without a digest nothing but the error keeps a file with holes from its name.
        fetch(source, tmp_path / "target", sha256=None, workers=1, progress=progress)
    assert len(source.asked) == parts + 1
    assert sorted(os.listdir(tmp_path)) == (["target.part", "target.part.json"] if parts else [])
    again = Source()
    assert fetch(again, tmp_path / "target") == SHA256
    assert len(again.asked) == 11 - parts


def test_no_item_of_a_group_is_begun_after_its_first_error() -> None:
    begun: list[int] = []

    def fetch(item: int) -> None:
        begun.append(item)
        raise KeyError("broken")

    stop = threading.Event()
    with pytest.raises(KeyError, match="broken"):
        run_all(fetch, range(1000), 1, stop)
    assert begun == [0]
    assert stop.is_set()


def test_two_downloads_of_one_target_do_not_disturb_each_other(tmp_path: Path) -> None:
    sources = [Source(), Source()]
    threads = [threading.Thread(target=fetch, args=(source, tmp_path / "target")) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (tmp_path / "target").read_bytes() == CONTENT
    assert os.listdir(tmp_path) == ["target"]


RUN = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from dataprep_assets.stores import ranged

    source, target, log = map(Path, sys.argv[1:4])
    limit = int(sys.argv[4])
    def read_range(start, end):
        if log.exists() and len(log.read_text().split()) >= limit:
            time.sleep(60)
        with log.open("a") as stream:
            stream.write(f"{start}\\n")
        body = source.read_bytes()[start:end]
        for at in range(0, len(body), 100):
            time.sleep(0.002)
            yield body[at : at + 100]
    ranged.download(
        read_range, size=source.stat().st_size, target=target, sha256=None, label="x", part_bytes=1000, workers=3
    )
    """
)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_process_costs_at_most_one_range_per_worker(tmp_path: Path, sent: signal.Signals) -> None:
    content = bytes(hashlib.shake_256(b"killed").digest(60_000))
    (tmp_path / "source").write_bytes(content)
    log = tmp_path / "log"
    work = tmp_path / "work"
    arguments = [sys.executable, "-c", RUN, str(tmp_path / "source"), str(work / "target"), str(log)]
    # However late the signal comes: it goes no further than that.
    process = subprocess.Popen([*arguments, "20"], stderr=subprocess.DEVNULL)
    while not log.exists() or len(log.read_text().split()) < 20:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(sent)
    assert process.wait(30) != 0
    before = log.read_text().split()
    log.unlink()
    assert not (work / "target").exists()
    subprocess.run([*arguments, "1000000000"], check=True, timeout=30)
    after = log.read_text().split()
    assert (work / "target").read_bytes() == content
    assert len(set(before) & set(after)) <= 3
    assert os.listdir(work) == ["target"]


def test_the_wait_doubles_is_capped_is_jittered_and_obeys_the_server() -> None:
    policy = RetryPolicy(base_seconds=1, max_seconds=10)
    for failures, ceiling in [(1, 1), (2, 2), (4, 8), (5, 10), (5000, 10)]:
        waits = {policy.delay(failures, None) for _ in range(50)}
        assert len(waits) > 40
        assert ceiling / 2 <= min(waits) <= max(waits) <= ceiling
    assert 30 <= policy.delay(1, 30.0) <= 31


def test_the_server_s_wish_reaches_the_sleep() -> None:
    slept: list[float] = []
    answers = iter([RetryableError("HTTP 429", 7.0), RetryableError("HTTP 503")])

    def attempt() -> str:
        for error in answers:
            raise error
        return "done"

    policy = RetryPolicy(base_seconds=0.5, sleep=slept.append)
    assert policy.run(attempt, label="x") == "done"
    assert 7 <= slept[0] <= 7.5
    assert 0.5 <= slept[1] <= 1


def test_a_wait_of_hours_is_refused_instead_of_slept() -> None:
    def attempt() -> None:
        raise RetryableError("HTTP 429", 7200.0)

    with pytest.raises(TransferError, match="x: HTTP 429; the server asks to wait 7200 s"):
        RetryPolicy().run(attempt, label="x")


def test_retry_after_is_read_in_both_its_forms() -> None:
    now = 1_700_000_000.0
    assert parse_retry_after("120") == 120
    assert parse_retry_after(email.utils.formatdate(now + 90, usegmt=True), now=now) == 90
    assert parse_retry_after(email.utils.formatdate(now - 90, usegmt=True), now=now) == 0
    for unreadable in (None, "", "soon", "nan", "inf"):
        assert parse_retry_after(unreadable) is None


@pytest.mark.parametrize("bad", [{"attempts": 0}, {"base_seconds": -1.0}, {"max_seconds": 0.1}], ids=str)
def test_a_policy_that_cannot_work_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        RetryPolicy(**bad)  # type: ignore[arg-type]


def test_after_a_crash_of_the_machine_only_synced_parts_are_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sidecar of another boot: what was not synced may be lost, whatever the file's length says."""
    monkeypatch.setattr(ranged, "_SYNC_BYTES", 3 * PART)
    data = os.urandom(8 * PART)
    stop = threading.Event()

    def broken(start: int, end: int) -> Iterator[bytes]:
        if start >= 5 * PART:
            stop.set()
            raise RetryableError("gone")
        yield data[start:end]

    target = tmp_path / "target"
    with pytest.raises(TransferError):
        ranged.download(
            broken, size=len(data), target=target, sha256=None, label="x", part_bytes=PART, workers=1, stop=stop
        )
    sidecar = tmp_path / "target.part.json"
    state = json.loads(sidecar.read_text())
    assert state["finished"] == [0, 1, 2, 3, 4]
    assert state["synced"] == [0, 1, 2]
    sidecar.write_text(json.dumps(state | {"boot": "another"}))
    asked: list[int] = []

    def whole(start: int, end: int) -> Iterator[bytes]:
        asked.append(start // PART)
        yield data[start:end]

    ranged.download(whole, size=len(data), target=target, sha256=None, label="x", part_bytes=PART, workers=1)
    assert asked == [3, 4, 5, 6, 7]
    assert target.read_bytes() == data
