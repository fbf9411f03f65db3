"""The index of a shard's documents beside an independent reading of its sources, in every format and range."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
import zstandard
from pydantic import ValidationError

from dataprep_assets.curation.selection import Selection
from dataprep_assets.engine.secret_key import EnvironmentKey
from dataprep_assets.errors import BadRecordError, ConfigError
from dataprep_assets.formats.document_index import IDS, ROWS, open_ids
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration, CorpusDocumentPolicy
from dataprep_assets.sources.readers.read_options import RowRange
from dataprep_assets.sources.readers.records import AbsentColumnError
from dataprep_assets.stream.reencoding import round_trip
from dataprep_assets.stream.stream_index import describe_index
from dataprep_assets.stream.token_shard import build_document_rows
from dataprep_assets.stream.token_stream import SourcePart
from dataprep_assets.tokenization.document_ids import DocumentIds, hash_id
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.corpus.shards import (
    Shard,
    build,
    build_lines,
    bundle,
    shard_work,
    source,
    stream_plan,
)

KEY = b"a key of thirty-two characters.."


def record(text: str, name: Any) -> bytes:
    return json.dumps({"text": text, "id": name}).encode()


LINES = [
    b"",
    record("one", "a"),
    b"{broken",
    record("two", 2),
    record("short", "c"),
    b"  ",
    b'{"id": "no text"}',
    record("", "d"),
    record("two", "e"),
    b"",
]
"""A line a row: blank ones, bad ones, an empty text, equal texts."""


def written(path: Path, lines: list[bytes]) -> Path:
    data = b"\n".join(lines)
    pack = {".zst": zstandard.compress, ".gz": gzip.compress}.get(path.suffix, lambda raw: raw)
    path.write_bytes(pack(data))
    return path


def documents_of(lines: list[bytes], least: int = 0) -> list[tuple[int, str, str]]:
    """Row, text and id of every document, by the standard library."""
    found = []
    for row, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
            if len(value["text"]) >= least:
                found.append((row, value["text"], str(value["id"])))
        except (ValueError, KeyError):
            continue
    return found


def compare(shard: Shard, expected: list[tuple[int, int, str]]) -> None:
    """The shard's index has these documents: file, row, and what is hashed."""
    ids, rows = open_ids(shard.directory / IDS, len(expected)), build_document_rows(shard.directory, shard.receipt)
    assert [rows.locate(document) for document in range(len(expected))] == [(file, row) for file, row, _ in expected]
    assert ids.tolist() == [xxhash.xxh3_64_intdigest(hashed.encode()) for _, _, hashed in expected]
    for document, (file, row, _) in enumerate(expected):
        assert rows.find_document(file, row) == document


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.zst", "jsonl.gz", "json"])
@pytest.mark.parametrize("id_field", [None, "id"])
def test_rows_and_hashes_are_those_of_the_source(tmp_path: Path, suffix: str, id_field: str | None) -> None:
    files = [source(written(tmp_path / f"{i}.{suffix}", LINES[i:]), i) for i in range(4)]
    if suffix == "json":
        files = [replace(file, format="json") for file in files]
    plan = stream_plan(bad_records="drop", ids=DocumentIds(id_field=id_field))
    shard = build(shard_work(tmp_path / "out", plan, files))
    compare(
        shard,
        [
            (file, row, text if id_field is None else name)
            for file in range(4)
            for row, text, name in documents_of(LINES[file:])
        ],
    )


def test_rows_that_a_plan_filters_are_skipped(tmp_path: Path) -> None:
    file = source(written(tmp_path / "f.jsonl", LINES))
    shard = build(shard_work(tmp_path / "out", stream_plan(bad_records="drop", min_characters=4), [file]))
    compare(shard, [(0, 5, "short")])
    bare = stream_plan(bad_records="drop", separator_id=None)
    shard = build(shard_work(tmp_path / "bare", bare, [file]))
    assert shard.ledger.dropped["no_tokens"] == 1
    compare(shard, [(0, row, text) for row, text, _ in documents_of(LINES) if text])


def test_ranges_of_one_file_keep_its_row_numbers(tmp_path: Path) -> None:
    path = written(tmp_path / "f.jsonl.zst", LINES)
    ranges = [RowRange(1, 3), RowRange(3, 5), RowRange(5, None)]
    files = [replace(source(path, i), rows=rows) for i, rows in enumerate(ranges)]
    shard = build(shard_work(tmp_path / "out", stream_plan(bad_records="drop"), files))
    stops = [3, 5, 100]
    expected = [(sum(row >= stop for stop in stops), row, text) for row, text, _ in documents_of(LINES)]
    compare(shard, expected)


@pytest.mark.parametrize("ids", [["a", None, "c", "d"], [1, 2, None, 4], [1, 2, 3, 4]])
def test_parquet(tmp_path: Path, ids: list[Any]) -> None:
    texts = ["one", "two", None, "four"]
    pq.write_table(pa.table({"id": ids, "n": [0] * 4, "text": texts}), tmp_path / "f.parquet")
    pq.write_table(pa.table({"n": [0], "text": ["whole"], "id": [9]}), tmp_path / "g.parquet")
    files = [source(tmp_path / f"{name}.parquet", i) for i, name in enumerate("fg")]
    shard = build(shard_work(tmp_path / "text", stream_plan(bad_records="drop"), files))
    compare(shard, [(0, row, text) for row, text in enumerate(texts, 1) if text] + [(1, 1, "whole")])
    shard = build(shard_work(tmp_path / "id", stream_plan(bad_records="drop", ids=DocumentIds(id_field="id")), files))
    kept = [(0, row, str(i)) for row, (i, text) in enumerate(zip(ids, texts, strict=True), 1) if text and i is not None]
    compare(shard, [*kept, (1, 1, "9")])
    assert {line["reason"] for line in shard.quarantine} <= {"null_text", "missing_id"}
    with raises(AbsentColumnError, "'url'", "`document.id_field`"):
        build(shard_work(tmp_path / "none", stream_plan(ids=DocumentIds(id_field="url")), files))


def test_a_shard_of_whole_files_has_no_file_of_rows(tmp_path: Path) -> None:
    shard = build_lines(tmp_path, ["one", "two"])
    assert not (shard.directory / ROWS).exists()
    assert (shard.directory / IDS).stat().st_size == 16


@pytest.mark.parametrize(
    ("value", "reason"),
    [(None, "missing_id"), (True, "id_not_a_string"), (1.5, "id_not_a_string"), (["a"], "id_not_a_string")],
)
def test_a_record_without_an_id_is_refused(tmp_path: Path, value: Any, reason: str) -> None:
    plan = stream_plan(ids=DocumentIds(id_field="id"))
    file = source(written(tmp_path / "f.jsonl", [record("one", "a"), record("two", value)]))
    with raises(BadRecordError, 2, reason):
        build(shard_work(tmp_path / "fail", plan, [file]))
    shard = build(shard_work(tmp_path / "drop", replace(plan, bad_records="drop"), [file]))
    assert [(line["row"], line["reason"]) for line in shard.quarantine] == [(2, reason)]
    assert open_ids(shard.directory / IDS, 1).tolist() == [hash_id("a")]


def test_what_is_hashed_is_part_of_the_shards_key_only_where_it_is_declared(tmp_path: Path) -> None:
    file = source(written(tmp_path / "f.jsonl", LINES))

    def key(ids: DocumentIds | None) -> str:
        return shard_work(tmp_path, stream_plan(ids=ids), [file]).key

    kinds = [None, DocumentIds(), DocumentIds(id_field="id"), DocumentIds(key=KEY), DocumentIds(key=KEY[1:] + b"!")]
    assert len({key(ids) for ids in kinds}) == len(kinds)
    assert "ids" not in shard_work(tmp_path, stream_plan(), [file]).recipe.settings
    assert shard_work(tmp_path, stream_plan(ids=kinds[2]), [file]).recipe.settings["id_field"] == "id"


def test_a_sensitive_corpus_without_a_key_has_rows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keyed = CorpusDocumentPolicy(id_key=EnvironmentKey(env="SOME_DOCUMENT_KEY"))
    assert CorpusDocumentPolicy().ids(sensitive=True) is None
    assert CorpusDocumentPolicy().ids(sensitive=False) == DocumentIds()
    with raises(ConfigError, "document.id_key", "SOME_DOCUMENT_KEY"):
        keyed.ids(sensitive=True)
    monkeypatch.setenv("SOME_DOCUMENT_KEY", KEY.decode())
    file = source(written(tmp_path / "f.jsonl", LINES))
    with_key = build(
        shard_work(tmp_path / "key", stream_plan(bad_records="drop", ids=keyed.ids(sensitive=True)), [file])
    )
    assert open_ids(with_key.directory / IDS, 5)[0] == hash_id("one", KEY)
    assert KEY.decode() not in (with_key.directory / "receipt.json").read_text()
    without = build(shard_work(tmp_path / "none", stream_plan(bad_records="drop", ids=None), [file]))
    assert not (without.directory / IDS).exists()
    assert build_document_rows(without.directory, without.receipt).locate(1) == (0, 4)
    store = shard_work(tmp_path, stream_plan(), [file]).store
    assert "keyed hashes of text" in str(describe_index(store, with_key.receipt))
    assert_names(str(describe_index(store, without.receipt)), "sensitive")


def test_the_text_is_no_id_field(tmp_path: Path) -> None:
    values = {
        "dataset": "d",
        "source": {"kind": "local", "path": str(tmp_path)},
        "splits": {"train": ["*"]},
        "tokenizer": {"path": str(tmp_path)},
    }
    with raises(ValidationError, "`document.id_field`", "`text_field`"):
        CorpusDeclaration.model_validate(values | {"document": {"id_field": "text"}})


# --- the check


def proven(shard: Shard, file: SourcePart, ids: DocumentIds | None = None) -> str:
    found = round_trip(
        shard.directory,
        shard.receipt,
        {file.label: file},
        bundle(),
        samples=1,
        selection=Selection(ids=ids or DocumentIds()),
    )
    return "" if found.passed else found.summary


def test_a_wrong_id_or_row_of_any_document_of_a_file_that_is_read_fails_the_round_trip(tmp_path: Path) -> None:
    file = source(written(tmp_path / "f.jsonl", LINES))
    shard = build(shard_work(tmp_path / "out", stream_plan(bad_records="drop"), [file]))
    assert proven(shard, file) == ""
    assert_names(proven(shard, file, DocumentIds(key=KEY)), "id", "document 0")
    ids = np.fromfile(shard.directory / IDS, "<u8")
    (shard.directory / IDS).write_bytes((ids + (np.arange(len(ids)) == 3).astype(np.uint64)).tobytes())
    assert_names(proven(shard, file), "row 8", "document_ids.bin", "document 3")
    (shard.directory / IDS).write_bytes(ids.tobytes())
    runs = np.fromfile(shard.directory / ROWS, "<u8").reshape(-1, 2)
    assert runs.tolist() == [[0, 2], [1, 4], [3, 8]]
    (shard.directory / ROWS).write_bytes(np.array([[0, 2], [1, 4], [3, 9]], "<u8").tobytes())
    assert_names(proven(shard, file), "row 8", "document_rows.bin", "document 3")
    (shard.directory / IDS).write_bytes(ids[:-1].tobytes())
    assert_names(proven(shard, file), "4 documents", 5)
