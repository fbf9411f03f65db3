"""The file of a lock has one spelling and is read back unchanged; anything else is refused in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.lock.lock import (
    Lock,
    LockCounts,
    LockedFile,
    LockEntry,
    encode_lock,
    lock_dataset,
    parse_lock,
    read_lock,
)
from dataprep_assets.errors import FormatError
from dataprep_assets.integrity.receipt import Content
from dataprep_assets_tests.docs.json_keys import LOCK as LOCK_KEYS
from dataprep_assets_tests.docs.json_keys import list_paths
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.corpus.changed_corpus import ChangedCorpus

FILES = {
    name: LockedFile(sha256=digest * 64, counts=LockCounts(rows=3, documents=2, tokens=90))
    for name, digest in (("train/a.jsonl", "a"), ("train/é b.jsonl[1:7]", "b"))
}
DIGESTS = {name: file.sha256 for name, file in FILES.items()}
LOCK = Lock(
    dataset="small",
    artifacts={
        "directory": LockEntry(
            key="1", content=Content("2"), bytes=1, version=2, upstream={"other:directory": Content("9")}
        ),
        "runs/abc": LockEntry(key=None, content=None, settings={"weight": 1.5}),
        "snapshot/train-00000": LockEntry(key="5", content=Content("6"), bytes=3, sources=DIGESTS),
        "token_bins/train-00000": LockEntry(
            key="7",
            content=Content("8"),
            bytes=4,
            settings={"a": {"b": [1, None]}},
            sources={**DIGESTS, "tokenizer": "t" * 64},
            libraries={"numpy": "2"},
            counts=LockCounts(rows=6, documents=4, tokens=180),
            files=FILES,
        ),
    },
)


def test_a_lock_is_read_back_as_written() -> None:
    data = encode_lock(LOCK)
    assert parse_lock(data, "x") == LOCK
    assert encode_lock(parse_lock(data, "x")) == data


def test_the_documented_keys_are_exactly_the_keys_of_the_file() -> None:
    names = {"artifacts": "NAME", "shared": ""}
    names |= {f"artifacts.NAME.{key}": "" for key in ("sources", "upstream")} | {"artifacts.NAME.files": "FILE"}
    assert set(list_paths(json.loads(encode_lock(LOCK)), names)) == LOCK_KEYS.keys()


def test_the_lock_of_a_real_corpus_is_read_back(corpus: ChangedCorpus, tmp_path: Path) -> None:
    lock = lock_dataset(corpus.specs(), corpus.store)
    (tmp_path / "dataset.lock").write_bytes(encode_lock(lock))
    assert read_lock(tmp_path / "dataset.lock") == lock


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'{"a": 1}', b"\xff\xfe", b"key: value\n", b'"lock"'])
def test_a_file_that_is_not_a_lock_is_refused_in_one_line(data: bytes) -> None:
    with raises(FormatError, "x", "`dataprep lock`"):
        parse_lock(data, "x")


def test_another_schema_is_refused_with_both_versions() -> None:
    value = json.loads(encode_lock(LOCK)) | {"dataprep_lock": 7}
    with raises(FormatError, 7, 2):
        parse_lock(json.dumps(value).encode(), "x")


BINS = "token_bins/train-00000"
DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no artifacts": lambda v: v.pop("artifacts"),
    "artifacts are a list": lambda v: v.update(artifacts=[]),
    "an artifact without content": lambda v: v["artifacts"]["directory"].pop("content"),
    "a content that is no text": lambda v: v["artifacts"]["directory"].update(content=3),
    "settings that are not there": lambda v: v["artifacts"][BINS].update(settings="0"),
    "settings that are a list": lambda v: v["artifacts"][BINS].update(settings=[]),
    "a file without a digest": lambda v: v["artifacts"][BINS]["files"]["train/a.jsonl"].pop("sha256"),
    "a count that is no number": lambda v: v["artifacts"][BINS]["counts"].update(rows="x"),
    "no dataset": lambda v: v.pop("dataset"),
    "a dataset that is no text": lambda v: v.update(dataset=None),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_lock_is_refused_in_one_line(name: str) -> None:
    value = json.loads(encode_lock(LOCK))
    DAMAGES[name](value)
    with raises(FormatError, "x", "damaged") as told:
        parse_lock(json.dumps(value).encode(), "x")
    assert "\n" not in str(told.value)


def test_an_unreadable_lock_names_its_path(tmp_path: Path) -> None:
    with raises(FormatError, tmp_path / "nowhere"):
        read_lock(tmp_path / "nowhere")
