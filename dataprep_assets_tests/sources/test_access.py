"""Tests of sources in folders: a listing has every file, or is an error."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import SourceError
from dataprep_assets.planning.manifest import SourceFile, build_manifest
from dataprep_assets.sources.access import LocalTree, find_files_without_dataset
from dataprep_assets.sources.hub_cache import list_cached_files
from dataprep_assets.sources.upstream import UpstreamPartitions
from dataprep_assets_tests.messages import raises

COMMIT = "a" * 40


@pytest.mark.parametrize(
    "listed", [lambda root: LocalTree(root).list(), lambda root: list_cached_files(root, COMMIT)], ids=["tree", "cache"]
)
def test_an_unreadable_folder_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: Callable[[Path], object]
) -> None:
    closed = tmp_path / "snapshots" / COMMIT / "closed"
    closed.mkdir(parents=True)
    (closed.parent / "a.jsonl").touch()
    scan = os.scandir

    def refusing(path: Any) -> Any:
        if Path(path) == closed:  # simulate the refusal, because root may read every folder
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with raises(SourceError, "closed"):
        listed(tmp_path)


def test_folders_that_a_file_system_keeps_at_its_root_are_not_part_of_a_source(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "lost+found" / "b.jsonl").touch()
    (tmp_path / "a.jsonl").touch()
    assert [file.relpath for file in LocalTree(tmp_path).list().files] == ["a.jsonl"]


DATA = "data-00000-of-00001.arrow"
STATE = json.dumps({"_data_files": [{"filename": DATA}]})
CACHE = "cache-0123456789abcdef.arrow"


def _saved(folder: Path, marks: dict[str, str], *names: str) -> None:
    folder.mkdir(parents=True)
    for name, text in (dict.fromkeys(names, "") | marks).items():
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("marks", "names", "kept"),
    [
        ({"state.json": STATE, "dataset_info.json": "{}"}, (DATA, CACHE, "mine.arrow", "tmp1.arrow"), [DATA]),
        ({"dataset_info.json": "{}"}, ("a-train.arrow", CACHE), ["a-train.arrow"]),
        ({"state.json": "{not JSON"}, (DATA, CACHE), [DATA]),
        ({"state.json": "[]"}, (DATA, CACHE), [DATA]),
        ({}, (DATA, CACHE), [CACHE, DATA]),
    ],
)
def test_caches_of_datasets_are_not_data(
    tmp_path: Path, marks: dict[str, str], names: tuple[str, ...], kept: list[str]
) -> None:
    _saved(tmp_path / "train" / "saved", marks, *names)
    for access, before in ((LocalTree(tmp_path), "train/saved/"), (LocalTree(tmp_path / "train" / "saved"), "")):
        found = access.list()
        assert sorted(f.relpath for f in found.files if f.relpath.endswith(".arrow")) == [
            before + name for name in kept
        ]
        assert found.left_out == {before + name for name in names if name not in kept}
    parts = UpstreamPartitions({"a": LocalTree(tmp_path / "train")}).list()
    assert len(parts.left_out) == len(names) - len(kept)


def test_if_no_file_can_be_read_the_names_decide() -> None:
    files = [SourceFile(name, 1) for name in (f"x/{DATA}", f"x/{CACHE}", "x/state.json", "x/mine.arrow", CACHE)]
    assert find_files_without_dataset(files) == {f"x/{CACHE}"}


def test_a_partition_may_have_slashes_in_its_key(tmp_path: Path) -> None:
    for name in ("en", "de"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "a.jsonl").write_text(name)
    access = UpstreamPartitions({"en/wiki": LocalTree(tmp_path / "en"), "de": LocalTree(tmp_path / "de")})
    files = {file.relpath: file for file in access.list().files}
    assert {name: access.path(file).read_text() for name, file in files.items()} == {
        "en/wiki/sub/a.jsonl": "en",
        "de/sub/a.jsonl": "de",
    }
    made = build_manifest(list(files.values()), include=["**/*"], splits={"train": ["**/*"]})
    access.fetch(made)
    with raises(SourceError, "en/a.jsonl"):
        access.copies("en/a.jsonl")
    with raises(SourceError, "en/wiki", "en"):
        UpstreamPartitions({"en/wiki": LocalTree(tmp_path / "en"), "en": LocalTree(tmp_path)})
