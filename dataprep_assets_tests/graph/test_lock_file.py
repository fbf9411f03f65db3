"""The file of a lock: one spelling, read back as it was; everything else is refused in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import FormatError
from dataprep_assets.graph.lock import Counts, Lock, Locked, SourceLine, lock_dataset
from dataprep_assets.graph.lock_file import lock_bytes, parse_lock, read_lock
from dataprep_assets_tests.pipelines.corpus.changed_corpus import ChangedCorpus

LINES = tuple(
    SourceLine(name=name, sha256=digest * 64, counts=Counts(rows=3, documents=2, tokens=90))
    for name, digest in (("train/a.jsonl", "a"), ("train/é b.jsonl[1:7]", "b"))
)
FILES = {line.name: line.sha256 for line in LINES}
LOCK = Lock(
    dataset="small",
    commits={"manifest": "c" * 40},
    artifacts={
        "directory": Locked(key="1", content="2", bytes=1, version=2, upstream={"other:directory": "9" * 64}),
        "runs/abc": Locked(key=None, content=None, bytes=0, settings={"weight": 1.5}, is_derived=True),
        "snapshot/train-00000": Locked(key="5", content="6", bytes=3, sources=FILES),
        "token_bins/train-00000": Locked(
            key="7",
            content="8",
            bytes=4,
            settings={"a": {"b": [1, None]}},
            sources={**FILES, "tokenizer": "t" * 64},
            libraries={"numpy": "2"},
            counts=Counts(rows=6, documents=4, tokens=180),
            files=LINES,
        ),
    },
)


def test_a_lock_is_read_back_as_it_was_written() -> None:
    data = lock_bytes(LOCK)
    assert parse_lock(data, "x") == LOCK
    assert lock_bytes(parse_lock(data, "x")) == data


def test_the_lock_of_a_real_corpus_is_read_back(corpus: ChangedCorpus, tmp_path: Path) -> None:
    lock = lock_dataset(corpus.specs(), corpus.store)
    (tmp_path / "dataset.lock").write_bytes(lock_bytes(lock))
    assert read_lock(tmp_path / "dataset.lock") == lock


def test_each_source_file_is_one_line_and_is_there_once() -> None:
    text = lock_bytes(LOCK).decode()
    (line,) = [line for line in text.splitlines() if "train/a.jsonl" in line]
    assert json.loads(line.strip().rstrip(",")) == ["train/a.jsonl", "a" * 64, 3, 2, 90]
    assert text.count("é b.jsonl") == 1, "its snapshot and its token bins refer to it"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'{"a": 1}', b"\xff\xfe", b"key: value\n", b'"lock"'])
def test_what_is_no_lock_is_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"^x: not a lock of a dataset .*`dataprep lock` writes one$"):
        parse_lock(data, "x")


def test_another_schema_is_refused_with_both_numbers() -> None:
    value = json.loads(lock_bytes(LOCK)) | {"dataprep_lock": 7}
    with pytest.raises(FormatError, match=r"a lock of schema 7, this version reads 1\. Lock the dataset again"):
        parse_lock(json.dumps(value).encode(), "x")


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no artifacts": lambda v: v.pop("artifacts"),
    "artifacts are a list": lambda v: v.update(artifacts=[]),
    "an artifact without content": lambda v: v["artifacts"]["directory"].pop("content"),
    "a content that is no text": lambda v: v["artifacts"]["directory"].update(content=3),
    "settings that are not there": lambda v: v["artifacts"]["token_bins/train-00000"].update(settings="0"),
    "files that are not there": lambda v: v["artifacts"]["snapshot/train-00000"].update(sources_of="none"),
    "a short line of a file": lambda v: v["files"]["token_bins/train-00000"][0].pop(),
    "a count that is no number": lambda v: v["files"]["token_bins/train-00000"][0].__setitem__(3, "x"),
    "no dataset": lambda v: v.pop("dataset"),
    "a dataset that is no text": lambda v: v.update(dataset=None),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_lock_is_refused_in_one_line(name: str) -> None:
    value = json.loads(lock_bytes(LOCK))
    DAMAGES[name](value)
    with pytest.raises(FormatError, match=r"^x: a damaged lock") as told:
        parse_lock(json.dumps(value).encode(), "x")
    assert "\n" not in str(told.value)


def test_a_lock_that_cannot_be_read_names_its_path(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"nowhere: no lock can be read there: No such file"):
        read_lock(tmp_path / "nowhere")
