"""Tests of the ranged download: right bytes or a clear error, one owner, no leftovers, and a full disk."""

import hashlib
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

from dataprep_assets.errors import CorruptSourceError, SourceError, TransferError
from dataprep_assets.stores import ranged
from dataprep_assets.stores.retry import RetryableError, StoppedError
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.stores.ranged_source import (
    CONTENT,
    PART,
    SHA256,
    Source,
    fetch,
    flip,
    long,
    nothing,
    reset,
    short,
)


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, len(CONTENT)])
def test_files_of_any_size_arrive_intact_and_leave_only_the_target(tmp_path: Path, size: int, workers: int) -> None:
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


def test_a_retry_continues_from_the_reached_byte(tmp_path: Path) -> None:
    source = Source()
    source.faults[1] = reset
    fetch(source, tmp_path / "target", workers=1)
    assert source.asked[:3] == [(0, PART), (100, PART), (PART, 2 * PART)]


@pytest.mark.parametrize("fault", [nothing, long])
def test_after_the_last_attempt_the_error_names_the_object_the_cause_and_the_attempts(
    tmp_path: Path, fault: Callable[[bytes], Iterator[bytes]]
) -> None:
    source = Source()
    source.faults = dict.fromkeys(range(1, 200), fault)
    with raises(TransferError, "shard-7", 4):
        fetch(source, tmp_path / "target")
    assert os.listdir(tmp_path) == []


def test_a_digest_that_is_wrong_twice_is_reported_as_corrupt_and_no_file_stays(tmp_path: Path) -> None:
    source = Source()
    wrong = hashlib.sha256(b"another").hexdigest()
    with raises(CorruptSourceError, "shard-7", wrong, SHA256):
        fetch(source, tmp_path / "target", sha256=wrong)
    assert len(source.asked) == 22
    assert os.listdir(tmp_path) == []


def test_a_git_blob_id_is_verified(tmp_path: Path) -> None:
    right = hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()
    assert fetch(Source(), tmp_path / "a", sha256=None, git_sha1=right) == SHA256
    with raises(CorruptSourceError, "shard-7", "0" * 40, right):
        fetch(Source(), tmp_path / "b", sha256=None, git_sha1="0" * 40)


def test_a_permanent_error_ends_the_transfer_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    def gone(body: bytes) -> Iterator[bytes]:
        raise SourceError("shard-7: not found")
        yield body

    source = Source()
    source.faults[4] = gone
    with raises(SourceError, "shard-7"):
        fetch(source, tmp_path / "target", workers=1)
    assert len(source.asked) == 4
    assert os.listdir(tmp_path) == []


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: whole(descriptor, data[:7], offset))
    assert fetch(Source(), tmp_path / "target") == SHA256


def test_an_error_stops_the_other_workers_promptly(tmp_path: Path) -> None:
    def slow(body: bytes) -> Iterator[bytes]:
        for at in range(len(body)):
            time.sleep(0.1)
            yield body[at : at + 1]

    def gone(body: bytes) -> Iterator[bytes]:
        time.sleep(0.1)
        raise SourceError("gone")
        yield body

    source = Source()
    source.faults = {1: slow, 2: slow, 3: slow, 4: gone}
    before = set(threading.enumerate())
    start = time.monotonic()
    with raises(SourceError, "gone"):
        fetch(source, tmp_path / "target")
    # A slow body lasts a minute and a half, so a shorter time shows that the workers did not wait for its end.
    assert time.monotonic() - start < 60
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(60)
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
    with raises(StoppedError):
        fetch(source, tmp_path / "target", stop=stop)
    # The server requests a wait of 300 seconds, which the stop must end.
    assert time.monotonic() - start < 60
    assert fetch(Source(), tmp_path / "target") == SHA256


@pytest.mark.parametrize("error", [StoppedError("not needed any more"), KeyError("a bug of the caller")], ids=repr)
@pytest.mark.parametrize("parts", [0, 3])
def test_an_error_of_the_progress_callback_ends_the_transfer_and_is_raised(
    tmp_path: Path, error: Exception, parts: int
) -> None:
    seen = 0

    def progress(count: int) -> None:
        nonlocal seen
        seen += count
        if seen > parts * PART:
            raise error

    source = Source()
    with raises(type(error), error.args[0]):
        # Without a digest, only the error prevents a file with holes from getting its final name.
        fetch(source, tmp_path / "target", sha256=None, workers=1, progress=progress)
    assert len(source.asked) == parts + 1
    assert os.listdir(tmp_path) == []


RUN = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from dataprep_assets.stores import ranged

    source, target, log = map(Path, sys.argv[1:4])
    limit = int(sys.argv[4])
    def read_range(start, end):
        if log.exists() and len(log.read_text().split()) >= limit:
            time.sleep(float(sys.argv[5]))
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
def test_a_killed_process_leaves_no_visible_file_and_the_next_download_succeeds(
    tmp_path: Path, sent: signal.Signals
) -> None:
    content = bytes(hashlib.shake_256(b"killed").digest(60_000))
    (tmp_path / "source").write_bytes(content)
    log = tmp_path / "log"
    work = tmp_path / "work"
    arguments = [sys.executable, "-c", RUN, str(tmp_path / "source"), str(work / "target"), str(log)]
    # Let further ranges wait, so that the download is incomplete however late the signal arrives. The wait is short for
    # SIGINT, because after an interrupt the process awaits the ranges in progress.
    wait = "60" if sent == signal.SIGKILL else "2"
    process = subprocess.Popen([*arguments, "20", wait], stderr=subprocess.DEVNULL)
    while not log.exists() or len(log.read_text().split()) < 20:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(sent)
    assert process.wait(200) != 0
    assert os.listdir(work) == (["target.part"] if sent == signal.SIGKILL else [])
    # Download a smaller object than before the kill, because no old bytes may remain in it.
    fetch(Source(), work / "target")
    assert (work / "target").read_bytes() == CONTENT
    assert os.listdir(work) == ["target"]


def test_a_partial_file_is_removed_unless_it_is_being_downloaded(tmp_path: Path) -> None:
    target = tmp_path / "target"
    ranged.discard_partial(target)
    ranged.get_partial_path(target).write_bytes(b"left by a kill" * 1000)
    assert ranged.measure_partial_bytes(target) >= 14_000
    ranged.discard_partial(target)
    assert (os.listdir(tmp_path), ranged.measure_partial_bytes(target)) == ([], 0)
    fetch(Source(), target, progress=lambda count: ranged.discard_partial(target))
    assert target.read_bytes() == CONTENT


def test_a_full_disk_is_reported_with_the_needed_and_free_bytes(tmp_path: Path) -> None:
    with raises(TransferError, "shard-7", tmp_path, 1 << 62):
        fetch(Source(), tmp_path / "target", size=1 << 62)
    assert os.listdir(tmp_path) == []


def test_a_file_system_without_preallocation_still_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(descriptor: int, offset: int, length: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    assert fetch(Source(), tmp_path / "target") == SHA256


def test_two_downloads_of_one_target_do_not_disturb_each_other(tmp_path: Path) -> None:
    sources, both_begin = [Source(), Source()], threading.Barrier(2)

    def begin_slowly(data: bytes) -> Iterator[bytes]:
        time.sleep(0.5)  # the other download must begin before this one ends
        yield data

    def download(source: Source) -> None:
        source.faults[1] = begin_slowly
        both_begin.wait(20)
        fetch(source, tmp_path / "target")

    threads = [threading.Thread(target=download, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (tmp_path / "target").read_bytes() == CONTENT
    assert os.listdir(tmp_path) == ["target"]
    assert sorted(len(source.asked) for source in sources) == [0, 11], "the second one finds what the first one fetched"
