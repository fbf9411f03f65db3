"""Checks of snapshots: flipped, missing and unlisted files are named; a full disk is reported with the missing
bytes.
"""

from pathlib import Path

import pytest

from dataprep_assets.stores.files import sha256_file
from dataprep_assets.stream.source import digests_match, disk_headroom


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    paths = {name: tmp_path / name for name in ("a.zst", "b.zst")}
    for name, path in paths.items():
        path.write_bytes(name.encode() * 1000)
    return paths


def test_unchanged_files_have_matching_digests(files: dict[str, Path]) -> None:
    found = digests_match({k: sha256_file(p) for k, p in files.items()}, files)
    assert found.passed
    assert found.facts["bytes"] == 10_000


def test_a_flipped_byte_names_its_file(files: dict[str, Path]) -> None:
    expected = {k: sha256_file(p) for k, p in files.items()}
    data = bytearray(files["b.zst"].read_bytes())
    data[77] ^= 1
    files["b.zst"].write_bytes(data)
    found = digests_match(expected, files)
    assert not found.passed
    assert found.summary.startswith("b.zst: expected sha256")
    assert found.facts["defects"] == 1


def test_a_missing_and_an_unexpected_file_are_named(files: dict[str, Path]) -> None:
    expected = {"a.zst": sha256_file(files["a.zst"]), "c.zst": "0" * 64}
    found = digests_match(expected, files)
    assert [row["defect"] for row in found.table] == [
        "c.zst: is listed in the snapshot, but missing",
        "b.zst: exists, but is not listed in the snapshot",
    ]
    files["a.zst"].unlink()
    assert "No such file" in str(digests_match({"a.zst": expected["a.zst"]}, {"a.zst": files["a.zst"]}).table)


def test_headroom_is_measured_for_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    found = disk_headroom(tmp_path / "not" / "yet", 1000)
    assert found.passed
    assert found.facts["needed_bytes"] == 1200


def test_a_disk_that_is_too_small_is_reported_with_the_bytes_to_free(tmp_path: Path) -> None:
    found = disk_headroom(tmp_path, 1 << 60)
    assert not found.passed
    assert "Free " in found.summary
    assert f"{(1 << 60) + int((1 << 60) * 0.2):,}" in found.summary
