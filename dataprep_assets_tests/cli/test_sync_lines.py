"""The lines of `dataprep sync`: one per folder, a sum at the end, and the copied files before an error."""

from pathlib import Path

import pytest

from dataprep_assets.cli.sync import command
from dataprep_assets.errors import ConfigError, TransferError
from dataprep_assets.stores.local import LocalStore
from dataprep_assets_tests.messages import raises


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return two artifacts of a dataset, one of them in two shards, and a file next to them."""
    monkeypatch.setenv("DATAPREP_CACHE", str(tmp_path / "cache"))
    for key in ("books/bins/train-00000/a.bin", "books/bins/train-00001/a.bin", "books/card/card.md", "README"):
        (tmp_path / "source" / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / key).write_bytes(b"1234")
    return tmp_path / "source"


def lines(captured: pytest.CaptureFixture[str], *marks: str) -> list[list[str]]:
    return [line.split() for line in captured.readouterr().out.splitlines() if line.startswith(marks)]


def test_each_folder_has_a_line_and_the_last_line_has_the_sum(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(str(source), str(tmp_path / "copy")) == 0
    printed = lines(capsys, "✓", "✗", "Copied")
    assert [line[:4] for line in printed[:-1]] == [
        ["✓", ".", "1", "object"],
        ["✓", "books/bins", "2", "objects"],
        ["✓", "books/card", "1", "object"],
    ]
    assert printed[-1][1:3] == ["4", "objects"]
    assert command(str(source), str(tmp_path / "copy")) == 0
    (again,) = lines(capsys, "✓", "✗", "Copied")
    assert again[1:3] == ["0", "objects"]


@pytest.mark.parametrize("destination", ["source", "source/books", "source/new/copy"])
def test_a_copy_into_its_source_is_refused(source: Path, tmp_path: Path, destination: str) -> None:
    before = sorted(source.rglob("*"))
    with raises(ConfigError, "sync", source, "Choose another destination"):
        command(str(source), str(tmp_path / destination))
    assert sorted(source.rglob("*")) == before


def test_a_prefix_may_be_copied_beside_it(source: Path) -> None:
    assert command(str(source), str(source / "archive"), prefix="books/") == 0
    assert (source / "archive" / "books" / "card" / "card.md").exists()
    with raises(ConfigError, "sync"):
        command(str(source), str(source / "books"), prefix="books/")


def test_an_error_is_preceded_by_a_line_with_the_copied_files(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = LocalStore.upload

    def refuse(store: LocalStore, path: Path, key: str, **named: object) -> object:
        if "train-00001" in key:
            raise TransferError(f"{key}: the disk is full")
        return upload(store, path, key, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(LocalStore, "upload", refuse)
    with raises(TransferError, "train-00001"):
        command(str(source), str(tmp_path / "copy"))
    assert [line[:5] for line in lines(capsys, "✓", "✗", "Copied")] == [
        ["✓", ".", "1", "object", "0.0"],
        ["✗", "books/bins", "1", "of", "2"],
    ]
