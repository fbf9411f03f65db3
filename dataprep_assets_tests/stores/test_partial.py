"""Claims of what an unfinished download leaves: what a later one believes, one owner, and a disk that is full."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataprep_assets.errors import TransferError
from dataprep_assets.stores import ranged
from dataprep_assets.stores.retry import RetryableError
from dataprep_assets_tests.stores.ranged_source import CONTENT, PART, SHA256, Source, fetch, nothing


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


def test_a_file_system_without_preallocation_still_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(descriptor: int, offset: int, length: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    assert fetch(Source(), tmp_path / "target") == SHA256


def test_two_downloads_of_one_target_do_not_disturb_each_other(tmp_path: Path) -> None:
    sources = [Source(), Source()]
    threads = [threading.Thread(target=fetch, args=(source, tmp_path / "target")) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (tmp_path / "target").read_bytes() == CONTENT
    assert os.listdir(tmp_path) == ["target"]


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
