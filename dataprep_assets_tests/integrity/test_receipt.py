"""A receipt shows every change of its artifact and of itself, and an unbalanced ledger is refused."""

import errno
import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import IntegrityError, MissingArtifactError
from dataprep_assets.integrity.artifacts import Artifact, LocalArtifacts
from dataprep_assets.integrity.receipt import NAME, Ledger, Receipt, find_damage, read_receipt, record_files
from dataprep_assets.integrity.verify import verify_path
from dataprep_assets_tests.messages import raises

KEY = "a" * 64
ARTIFACT = Artifact(dataset="d", name="token_bins", partition="train-00000")


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """Return the directory of an artifact in the store `tmp_path`."""
    directory = ARTIFACT.directory(tmp_path)
    (directory / "part").mkdir(parents=True)
    (directory / "a.bin").write_bytes(b"some bytes")
    (directory / "part" / "b.bin").write_bytes(b"")
    receipt = Receipt(
        dataset=ARTIFACT.dataset,
        artifact=ARTIFACT.name,
        partition=ARTIFACT.partition,
        key=KEY,
        inputs={"f": "0" * 64},
        files=record_files(directory),
        facts={"dtype": "uint16", "share": 0.1},
        ledger=Ledger(rows_in=3, documents=2, dropped={"bad_json": 1}, tokens=9, separators=2, min_id=0, max_id=5),
        sources=({"file": "f", "rows_in": 3},),
        measured={"cpu_seconds": 0.125},
    )
    receipt.write(directory)
    return directory


def open_parent(directory: Path) -> LocalArtifacts:
    return LocalArtifacts(directory.parents[2])


def require_receipt(directory: Path) -> Receipt:
    return open_parent(directory).require(ARTIFACT)


def is_current(directory: Path, key: str) -> Receipt | None:
    return open_parent(directory).find_current(ARTIFACT, key)


def test_a_receipt_is_read_back_as_written(artifact: Path) -> None:
    receipt = require_receipt(artifact)
    receipt.write(artifact)
    assert (
        read_receipt(artifact) == receipt == is_current(artifact, KEY) == open_parent(artifact).intact_receipt(ARTIFACT)
    )
    assert [f.path for f in receipt.files] == ["a.bin", "part/b.bin"]
    assert receipt.total_bytes == 10


def test_every_flipped_bit_of_a_receipt_is_damage(artifact: Path) -> None:
    raw = (artifact / NAME).read_bytes()
    for position in range(len(raw)):
        flipped = raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :]
        if _same_json(flipped, raw):  # only white space was replaced by other white space
            continue
        (artifact / NAME).write_bytes(flipped)
        with pytest.raises(IntegrityError):
            read_receipt(artifact)
        assert is_current(artifact, KEY) is None
        assert open_parent(artifact).intact_receipt(ARTIFACT) is None


def _same_json(first: bytes, second: bytes) -> bool:
    try:
        return bool(json.loads(first) == json.loads(second))
    except ValueError:
        return False


@pytest.mark.parametrize("length", [0, 1, 100, -2])
def test_a_truncated_receipt_is_damage_and_not_absence(artifact: Path, length: int) -> None:
    raw = (artifact / NAME).read_bytes()
    (artifact / NAME).write_bytes(raw[:length])
    with raises(IntegrityError, artifact / NAME):
        read_receipt(artifact)


@pytest.mark.parametrize("content", [b"[]", b"null", b"5", b"{}", b"\xff"])
def test_other_json_is_not_a_receipt(artifact: Path, content: bytes) -> None:
    (artifact / NAME).write_bytes(content)
    with raises(IntegrityError, artifact / NAME):
        read_receipt(artifact)


def test_a_receipt_of_a_newer_schema_is_refused(artifact: Path) -> None:
    replace(require_receipt(artifact), schema_version=2).write(artifact)
    with raises(IntegrityError, artifact / NAME, 2, 1):
        read_receipt(artifact)


def test_a_changed_file_list_is_reported_as_such(artifact: Path) -> None:
    value = json.loads((artifact / NAME).read_bytes())
    value["files"][0]["bytes"] = 11
    (artifact / NAME).write_text(json.dumps(value))
    with raises(IntegrityError, artifact / NAME, "content"):
        read_receipt(artifact)


def test_an_artifact_without_a_receipt_is_missing(tmp_path: Path) -> None:
    assert read_receipt(tmp_path) is None
    with raises(MissingArtifactError):
        LocalArtifacts(tmp_path).require(ARTIFACT)


def test_an_unlisted_file_is_reported_as_missing_in_the_receipt(artifact: Path) -> None:
    with raises(MissingArtifactError, "'c.bin'"):
        require_receipt(artifact).file("c.bin")


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[3] ^= 1
    path.write_bytes(raw)


def make_external_link(path: Path) -> None:
    """Return a new path outside of the artifact for the same file."""
    outside = path.parents[3] / f"outside-{path.name}"
    path.rename(outside)
    path.symlink_to(outside)


def replaced(path: Path, make: Callable[[Path], Any]) -> None:
    path.unlink()
    make(path)


def bound(path: Path) -> None:
    # Bind at a short path, because a socket's path has at most 107 bytes, and the test folders of several workers have
    # longer paths.
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as made:
        made.bind(f"{short}/a")
        shutil.move(f"{short}/a", path)


FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a missing file": (lambda d: (d / "a.bin").unlink(), r"a\.bin: missing"),
    "a missing empty file": (lambda d: (d / "part/b.bin").unlink(), r"part/b\.bin: missing"),
    "a shorter file": (
        lambda d: (d / "a.bin").write_bytes(b"some byte"),
        r"a\.bin: has 9 bytes, but had 10 when it was built",
    ),
    "a longer file": (lambda d: (d / "a.bin").write_bytes(b"some bytes!"), r"a\.bin: has 11 bytes"),
    "a flipped bit": (
        lambda d: flip(d / "a.bin"),
        r"a\.bin: changed after it was built \(sha256 \w{12}… instead of \w{12}…\)",
    ),
    "an extra file": (lambda d: (d / "c.bin").touch(), r"c\.bin: not in the receipt"),
    "a link to the same bytes": (
        lambda d: make_external_link(d / "a.bin"),
        r"a\.bin: is a link, not a regular file, and was not read",
    ),
    "a link to a folder of the same": (
        lambda d: make_external_link(d / "part"),
        r"part(/b\.bin)?: (is a link, not a regular file|missing)",
    ),
    "an extra link": (
        lambda d: (d / "c.bin").symlink_to("nowhere"),
        r"c\.bin: is a link, not a regular file, and was not read",
    ),
    "a FIFO": (lambda d: replaced(d / "a.bin", os.mkfifo), r"a\.bin: is a FIFO, not a regular file, and was not read"),
    "a socket": (lambda d: replaced(d / "a.bin", bound), r"a\.bin: is a socket, not a regular file"),
    "a folder for a file": (lambda d: replaced(d / "a.bin", os.mkdir), r"a\.bin: is a folder, not a regular file"),
    "an extra folder": (lambda d: (d / "empty").mkdir(), r"empty: a folder that is not in the receipt"),
    "a different owner": (lambda d: os.chown(d / "a.bin", 12345, -1), r"a\.bin: belongs to user 12345"),
    "an extra file below": (lambda d: (d / "part/c.bin").touch(), r"part/c\.bin: not in the receipt"),
}


@pytest.mark.parametrize(("plant", "message"), FAULTS.values(), ids=FAULTS)
def test_damage_names_the_file_and_the_artifact_is_out_of_date(
    artifact: Path, plant: Callable[[Path], Any], message: str
) -> None:
    receipt = require_receipt(artifact)
    assert find_damage(artifact, receipt) == []
    if "chown" in plant.__code__.co_names and os.geteuid():
        pytest.skip("only root can give a file away")
    plant(artifact)
    found = find_damage(artifact, receipt)
    assert found
    assert all(re.fullmatch(f"{message}.*", defect) for defect in found)
    assert is_current(artifact, KEY) is None
    assert (find_damage(artifact, receipt, "size") == []) is ("sha256" in message)


def test_a_file_on_a_defective_disk_sector_is_damage(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(path: Path, **options: Any) -> str:
        raise OSError(number, os.strerror(number), str(path))

    receipt = require_receipt(artifact)
    monkeypatch.setattr("dataprep_assets.integrity.receipt.sha256_file", failing)
    number = errno.EIO
    assert find_damage(artifact, receipt)[0] == "a.bin: cannot be read: Input/output error"
    number = errno.EACCES
    with pytest.raises(PermissionError):
        find_damage(artifact, receipt)


def test_an_artifact_with_another_key_is_out_of_date(artifact: Path) -> None:
    assert is_current(artifact, "b" * 64) is None


def test_content_is_equal_exactly_for_equal_files(artifact: Path) -> None:
    receipt = require_receipt(artifact)
    assert replace(receipt, key="b" * 64, measured={}, inputs={}).content == receipt.content
    assert replace(receipt, files=receipt.files[:1]).content != receipt.content


# --- the ledger


@pytest.mark.parametrize(
    "ledger",
    [
        Ledger(rows_in=3, documents=2),
        Ledger(rows_in=2, documents=3),
        Ledger(rows_in=2, documents=2, dropped={"bad_json": 1}),
        Ledger(documents=1),
    ],
)
def test_a_ledger_that_loses_or_invents_a_row_is_refused(ledger: Ledger) -> None:
    with raises(IntegrityError, "here"):
        ledger.require_balance("here")


def test_ledgers_are_summed() -> None:
    one = Ledger(rows_in=3, documents=2, dropped={"bad_json": 1}, tokens=9, min_id=4, max_id=7)
    two = Ledger(rows_in=2, documents=0, dropped={"null_text": 1, "bad_json": 1})
    total = Ledger.total([one, Ledger(), two])
    assert total == Ledger(
        rows_in=5, documents=2, dropped={"bad_json": 2, "null_text": 1}, tokens=9, min_id=4, max_id=7
    )
    total.require_balance("total")
    assert Ledger.total([]) == Ledger()
    assert Ledger.from_json(total.to_json()) == total


def test_a_ledger_of_another_version_is_refused() -> None:
    with raises(IntegrityError, "rows"):
        Ledger.from_json({"rows": 1})


@pytest.mark.parametrize(
    "make", [os.mkfifo, bound, os.mkdir, lambda path: path.symlink_to("a.bin"), lambda path: path.symlink_to("no")]
)
def test_a_receipt_that_is_not_a_regular_file_is_named_and_not_opened(
    artifact: Path, make: Callable[[Path], Any]
) -> None:
    replaced(artifact / NAME, make)
    with raises(IntegrityError, artifact / NAME):
        read_receipt(artifact)
    (verdict,) = verify_path(artifact.parents[2])
    assert "receipt.json: is a " in verdict.defects[0]


def test_verify_reports_a_link_in_place_of_an_artifact(artifact: Path) -> None:
    make_external_link(artifact)
    (verdict,) = verify_path(artifact.parents[2])
    assert "train-00000: is a link" in verdict.defects[0]


def test_a_receipt_of_100_mib_is_refused_before_parsing(artifact: Path) -> None:
    (artifact / NAME).write_bytes(b'{"files": [' + b"{}," * (35 << 20) + b"{}]}")
    with raises(IntegrityError, artifact / NAME, 67_108_865, 67_108_864):
        read_receipt(artifact)
