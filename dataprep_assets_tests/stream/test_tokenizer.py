"""Tests of a hub tokenizer without a network: only the files and the knowledge in the cache count."""

import gzip
import shutil
from pathlib import Path

import pytest

from dataprep_assets.errors import TokenizerError
from dataprep_assets.stream.declaration import TokenizerDeclaration
from dataprep_assets.stream.tokenizer import find_local_tokenizer, load_declared_tokenizer
from dataprep_assets.tokenization.definition import OLDER_FILES
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.samples import SAMPLE

COMMIT = "0" * 40
FILES = ("tokenizer.json", "tokenizer_config.json")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the cache folder of a repository of which only `tokenizer.json` is cached; there is no network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(tmp_path), raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    load_declared_tokenizer.cache_clear()  # a new process would not have the cached tokenizer
    (tmp_path / "models--org--model" / "snapshots" / COMMIT).mkdir(parents=True)
    shutil.copy(SAMPLE / "tokenizer" / FILES[0], tmp_path / "models--org--model" / "snapshots" / COMMIT)
    (tmp_path / "models--org--model" / ".no_exist" / COMMIT).mkdir(parents=True)
    for file in OLDER_FILES:
        (tmp_path / "models--org--model" / ".no_exist" / COMMIT / file).touch()
    return tmp_path / "models--org--model"


TOKENIZER = TokenizerDeclaration(repo="org/model", revision=COMMIT)


def test_a_download_killed_between_its_files_leaves_no_tokenizer(cache: Path) -> None:
    assert find_local_tokenizer(TOKENIZER, "text") is None
    with raises(TokenizerError, f"org/model@{COMMIT}", FILES[1]):
        load_declared_tokenizer(TOKENIZER)


def test_a_complete_set_of_files_is_a_tokenizer(cache: Path) -> None:
    shutil.copy(SAMPLE / "tokenizer" / FILES[1], cache / "snapshots" / COMMIT)
    found = find_local_tokenizer(TOKENIZER, "text")
    assert found is not None
    assert found.directory == cache / "snapshots" / COMMIT


@pytest.mark.parametrize("file", OLDER_FILES)
def test_an_older_file_that_the_cache_does_not_list_must_be_downloaded(cache: Path, file: str) -> None:
    shutil.copy(SAMPLE / "tokenizer" / FILES[1], cache / "snapshots" / COMMIT)
    (cache / ".no_exist" / COMMIT / file).unlink()
    assert find_local_tokenizer(TOKENIZER, "text") is None


def test_a_file_known_to_be_absent_from_the_repository_is_not_missing(cache: Path) -> None:
    (cache / ".no_exist" / COMMIT / FILES[1]).touch()
    assert find_local_tokenizer(TOKENIZER, "text") == load_declared_tokenizer(TOKENIZER)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1\n", "git lfs pull"),
        (b"<!doctype html><html></html>", "HTML"),
        ((SAMPLE / "tokenizer" / "tokenizer.json").read_text()[:500].encode("utf-16"), "iconv"),
        (gzip.compress(b"{}" * 20), "gzip"),
    ],
    ids=["pointer", "page", "UTF-16", "gzip"],
)
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_file_of_another_kind_is_named(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    shutil.copytree(SAMPLE / "tokenizer", tmp_path / "t")
    (tmp_path / "t" / name).write_bytes(data)
    with raises(TokenizerError, name, said):
        load_declared_tokenizer(TokenizerDeclaration(path=tmp_path / "t"))
