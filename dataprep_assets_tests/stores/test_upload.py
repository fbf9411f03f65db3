"""Tests of uploads: the choice of parts, one pass over the file, digests, bounded memory."""

import hashlib
import http.client
import socket
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep_assets.errors import ConfigError, IntegrityError
from dataprep_assets.stores.upload import (
    MAX_OBJECT_BYTES,
    MAX_PARTS,
    MIN_PART_BYTES,
    PartBody,
    UploadPart,
    plan_concatenation,
    plan_parts,
    send_parts,
)
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.stores.contract import content, sha256

MIB = 1024 * 1024


def check_r2(lengths: list[int]) -> None:
    """Assert R2's rule for the parts of one upload."""
    assert len(lengths) <= MAX_PARTS
    assert all(length == lengths[0] >= MIN_PART_BYTES for length in lengths[:-1])
    assert not lengths or 0 < lengths[-1] <= lengths[0]


@given(st.integers(1, MAX_OBJECT_BYTES), st.integers(MIN_PART_BYTES, 512 * MIB))
def test_the_parts_of_any_size_are_accepted_by_r2(size: int, part_bytes: int) -> None:
    # Small parts are enlarged, so every plan has at most 10,000 parts and is quick to check.
    parts = plan_parts(size, part_bytes=part_bytes)
    check_r2([part.bytes for part in parts])
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == size


@pytest.mark.parametrize("size", [1, MIN_PART_BYTES, MAX_PARTS * MIN_PART_BYTES, MAX_PARTS * MIN_PART_BYTES + 1])
def test_part_counts_at_the_limit_are_right(size: int) -> None:
    parts = plan_parts(size, part_bytes=MIN_PART_BYTES)
    check_r2([part.bytes for part in parts])
    assert parts[-1].stop == size


def test_sizes_that_no_store_accepts_are_refused() -> None:
    with raises(ConfigError, "5 MiB"):
        plan_parts(1, part_bytes=MIN_PART_BYTES - 1)
    with raises(ConfigError, "5 TiB"):
        plan_parts(MAX_OBJECT_BYTES + 1, part_bytes=MIN_PART_BYTES)
    with raises(ConfigError, "5 TiB"):
        plan_concatenation([MAX_OBJECT_BYTES, 1])


SIZES = st.lists(
    st.one_of(st.integers(0, 12 * MIB), st.sampled_from([5 * MIB - 1, 5 * MIB, 5 * MIB + 1, 600 * MIB, 70_000 * MIB])),
    max_size=12,
)


@given(SIZES)
def test_a_concatenation_has_every_byte_once_in_order(sizes: list[int]) -> None:
    parts = plan_concatenation(sizes)
    position = dict.fromkeys(range(len(sizes)), 0)
    last = 0
    for piece in (piece for pieces in parts for piece in pieces):
        assert piece.source >= last
        assert position[piece.source] == piece.start < piece.stop
        position[piece.source], last = piece.stop, piece.source
    assert [position[source] for source in range(len(sizes))] == sizes
    lengths = [sum(piece.bytes for piece in pieces) for pieces in parts]
    assert len(lengths) <= MAX_PARTS
    assert all(length >= MIN_PART_BYTES for length in lengths[:-1])
    check_r2(lengths)
    # The client must send each part with several pieces, so there is at most one such part per boundary.
    assert sum(len(pieces) > 1 for pieces in parts) <= max(0, len(sizes) - 1)


def parts_of(path: Path, data: bytes, step: int) -> list[UploadPart]:
    path.write_bytes(data)
    starts = range(0, len(data), step)
    return [UploadPart(number, start, min(start + step, len(data))) for number, start in enumerate(starts, 1)]


@pytest.mark.parametrize("lanes", [1, 2, 7])
def test_every_part_is_sent_once_and_answers_keep_their_order(tmp_path: Path, lanes: int) -> None:
    path, data = tmp_path / "file", content(1_000_003)
    parts = parts_of(path, data, 65_536)

    def send(part: UploadPart, view: memoryview) -> bytes:
        time.sleep(0.002 * (part.number % 3))
        return bytes(view)

    answers = send_parts(path, parts, send, sha256=sha256(data), lanes=lanes, label="x", stop=threading.Event())
    assert b"".join(answers) == data


def test_no_more_parts_than_lanes_are_in_memory(tmp_path: Path) -> None:
    path, data = tmp_path / "file", content(400_000)
    parts = parts_of(path, data, 10_000)
    buffers: set[int] = set()
    lock = threading.Lock()

    def send(part: UploadPart, view: memoryview) -> None:
        with lock:
            buffers.add(id(view.obj))

    send_parts(path, parts, send, sha256=sha256(data), lanes=3, label="x", stop=threading.Event())
    assert len(buffers) <= 3


@pytest.mark.parametrize("change", ["flip", "shorter", "longer"])
def test_a_file_that_differs_from_its_record_is_refused(tmp_path: Path, change: str) -> None:
    path, data = tmp_path / "file", content(100_000)
    parts = parts_of(path, data, 30_000)
    changed = {"flip": data[:-1] + b"?", "shorter": data[:-1], "longer": data + b"?"}[change]
    path.write_bytes(changed)
    with raises(IntegrityError, path):
        send_parts(
            path, parts, lambda part, view: None, sha256=sha256(data), lanes=2, label="x", stop=threading.Event()
        )


def test_the_first_error_stops_the_others(tmp_path: Path) -> None:
    path, data = tmp_path / "file", content(1_000_000)
    parts = parts_of(path, data, 1_000)
    sent: list[int] = []

    def send(part: UploadPart, view: memoryview) -> None:
        sent.append(part.number)
        if part.number == 3:
            raise KeyError("broken")
        time.sleep(0.01)

    with pytest.raises(KeyError):
        send_parts(path, parts, send, sha256=sha256(data), lanes=2, label="x", stop=threading.Event())
    assert len(sent) < 20


def test_a_body_can_be_read_like_a_file_and_sent_again() -> None:
    data = content(1_000_000)
    body = PartBody(memoryview(data))
    for _ in range(2):
        assert b"".join(iter(lambda: bytes(body.read(16_384)), b"")) == data
        assert (body.tell(), len(body)) == (len(data), len(data))
        assert body.seek(0) == 0
    assert body.seek(-3, 2) == len(data) - 3
    assert bytes(body.read()) == data[-3:]


def test_a_body_that_takes_longer_than_the_time_limit_arrives_while_it_makes_progress() -> None:
    """The socket's timeout applies to a block; with a plain buffer it would apply to the whole part."""
    data = bytes(8 * MIB)
    server = socket.create_server(("127.0.0.1", 0))
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    received = hashlib.sha256()

    def receive() -> None:
        peer, _ = server.accept()
        with peer:
            left, head = len(data), b""
            while b"\r\n\r\n" not in head:
                head += peer.recv(4096)
            block = head.split(b"\r\n\r\n", 1)[1]
            while True:
                received.update(block)
                left -= len(block)
                if not left:
                    break
                time.sleep(0.05)
                block = peer.recv(128 * 1024)
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    thread = threading.Thread(target=receive)
    thread.start()
    connection = http.client.HTTPConnection("127.0.0.1", server.getsockname()[1], timeout=2.0)
    connection.request("PUT", "/", body=PartBody(memoryview(data)), headers={"Content-Length": str(len(data))})
    thread.join(30)
    assert connection.getresponse().status == 200
    assert received.digest() == hashlib.sha256(data).digest()
    connection.close()
    server.close()
