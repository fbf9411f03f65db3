"""`dataprep sync` copies a private folder to private files, and copies the whole of it on request."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.cli.sync import command
from dataprep_assets.errors import ConfigError, TransferError
from dataprep_assets.stores.files import list_open_to_others
from dataprep_assets.stores.local import LocalStore
from dataprep_assets_tests.messages import raises


def write_source(folder: Path, *, root: int = 0o755, dataset: int = 0o755) -> Path:
    """Return a folder that contains a dataset with these permissions."""
    (folder / "source" / "notes" / "rows").mkdir(parents=True)
    (folder / "source" / "notes" / "rows" / "a.bin").write_bytes(b"1234")
    (folder / "source" / "notes").chmod(dataset)
    (folder / "source").chmod(root)
    return folder / "source"


@pytest.fixture(autouse=True)
def usual_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the umask that most machines have, and a cache for this test only."""
    monkeypatch.setenv("DATAPREP_CACHE", str(tmp_path / "cache"))
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize(
    ("modes", "private", "closed"),
    [({}, False, False), ({}, True, True), ({"root": 0o700}, False, True), ({"dataset": 0o700}, False, True)],
)
def test_copies_are_private_like_their_source(
    modes: dict[str, int], private: bool, closed: bool, tmp_path: Path
) -> None:
    there, here = write_source(tmp_path, **modes), tmp_path / "copy"
    assert command(str(there), str(here), private=private) == 0
    assert (here / "notes" / "rows" / "a.bin").read_bytes() == b"1234"
    found = [path for path, _ in list_open_to_others(here)] + [
        path for path, _ in list_open_to_others(tmp_path / "cache")
    ]
    assert (found == []) is closed, found


def test_an_artifact_is_selected_within_its_dataset_and_is_no_source_by_itself(tmp_path: Path) -> None:
    there = write_source(tmp_path)
    (there / "notes" / "rows" / "receipt.json").write_bytes(b"{}")
    with raises(ConfigError, "single artifact"):
        command(str(there / "notes" / "rows"), str(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()


def test_concurrent_commands_between_the_same_locations_do_not_share_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = write_source(tmp_path), tmp_path / "copy"
    (there / "notes" / "rows" / "b.bin").write_bytes(b"5678")
    download = LocalStore.download

    def while_another_begins(store: LocalStore, *given: Any, **named: Any) -> Any:
        monkeypatch.setattr(LocalStore, "download", download)
        with raises(TransferError, "`dataprep sync`"):
            command(str(there), str(here), select=["**/b.bin"])
        return download(store, *given, **named)

    monkeypatch.setattr(LocalStore, "download", while_another_begins)
    assert command(str(there), str(here), select=["**/a.bin"]) == 0
    assert command(str(there), str(here), select=["**/b.bin"]) == 0
    assert [(here / "notes" / "rows" / name).read_bytes() for name in ("a.bin", "b.bin")] == [b"1234", b"5678"]
