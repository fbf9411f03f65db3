"""Claims of local sources: their listing has every file, or is an error."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import SourceError
from dataprep_assets.sources.access import LocalTree
from dataprep_assets.sources.hub_cache import list_cached_files

COMMIT = "a" * 40


@pytest.mark.parametrize(
    "listed", [lambda root: LocalTree(root).list(), lambda root: list_cached_files(root, COMMIT)], ids=["tree", "cache"]
)
def test_a_folder_that_cannot_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: Callable[[Path], object]
) -> None:
    closed = tmp_path / "snapshots" / COMMIT / "closed"
    closed.mkdir(parents=True)
    (closed.parent / "a.jsonl").touch()
    scan = os.scandir

    def refusing(path: Any) -> Any:
        if Path(path) == closed:  # root may read every folder
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(SourceError, match="closed: the folder cannot be read: Permission denied"):
        listed(tmp_path)
