"""Bad rows under both policies, damaged files, and documents that break other pipelines, with the real tasks."""

import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from dataprep_assets.curation.selection import is_bad_row
from dataprep_assets.errors import BadRecordError, CorruptSourceError
from dataprep_assets.integrity.receipt import find_damage
from dataprep_assets.sources.readers.records import AbsentColumnError
from dataprep_assets.sources.readers.rows import split_rows
from dataprep_assets.stream.declaration import find_exceeded_budget
from dataprep_assets.stream.shard_job import build_token_bins, ensure_shard
from dataprep_assets.stream.token_shard import find_finished_part
from dataprep_assets.tokenization.engines import SpecialTokens
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.corpus.shards import (
    SEPARATOR,
    build,
    build_lines,
    bundle,
    reference_ids,
    shard_work,
    source,
    stream_plan,
    write_lines,
)
from dataprep_assets_tests.sources.json_lines import BAD, BLANK, GOOD

END = bundle().find_token(SEPARATOR, key="separator").id


@pytest.mark.parametrize(("line", "reason"), BAD.values(), ids=BAD)
def test_policy_fail_names_file_row_and_byte(tmp_path: Path, line: bytes, reason: str) -> None:
    with raises(BadRecordError, "train/lines.jsonl.zst", 3, 28, reason):
        build_lines(tmp_path, [b'{"text": "a"}', b'{"text": "b"}', line, b'{"text": "c"}'])


def test_policy_drop_counts_by_reason_quarantines_positions_and_balances(tmp_path: Path) -> None:
    lines = [line for line, _ in (*GOOD.values(), *BAD.values())] + list(BLANK.values())
    shard = build_lines(tmp_path, lines, bad_records="drop")
    ledger = shard.ledger
    assert ledger.dropped == Counter(reason for _, reason in BAD.values())
    assert (ledger.rows_in, ledger.documents, ledger.blank_lines) == (len(GOOD) + len(BAD), len(GOOD), len(BLANK))
    assert ledger.separators == ledger.documents == len(shard.documents)
    raw = b"".join(line + b"\n" for line in lines)
    positions = shard.quarantine
    assert [(q["row"], q["reason"]) for q in positions] == [
        (len(GOOD) + i, reason) for i, (_, reason) in enumerate(BAD.values(), 1)
    ]
    assert all(q["file"] == "train/lines.jsonl.zst" for q in positions)
    assert all(raw[q["byte"] :].startswith(lines[q["row"] - 1]) for q in positions)
    assert shard.documents == [[*ids, END] for ids in reference_ids([text for _, text in GOOD.values()])]
    assert find_damage(shard.directory, shard.receipt) == []


@pytest.mark.shared
def test_bad_json_is_refused_under_fail_and_its_drops_balance(shared: Path, tmp_path: Path) -> None:
    file = source(shared / "data" / "corpus" / "badjson.jsonl.zst")
    with raises(BadRecordError, "train/badjson.jsonl.zst", 2, 19, "bad_json"):
        build(shard_work(tmp_path, stream_plan(), [file]))
    ledger = build(shard_work(tmp_path, stream_plan(bad_records="drop"), [file])).ledger
    assert sum(ledger.dropped.values()) + ledger.documents == ledger.rows_in == 69 - ledger.blank_lines


def test_drops_above_the_budget_fail_the_shard_and_name_the_first_and_the_worst_file(tmp_path: Path) -> None:
    one = write_lines(tmp_path / "one.jsonl.zst", ["a"] * 50 + [b'{"text": NaN}'])
    two = write_lines(tmp_path / "two.jsonl.zst", ["b"] * 47 + [b"[]", b"{}"])
    files = [source(one, 0), source(two, 1)]
    plan = stream_plan(bad_records="drop")
    assert build(shard_work(tmp_path / "enough", plan, files, budget=0.03)).ledger.rows_in == 100
    first, worst = ("train/one.jsonl.zst", 51, 700, "bad_json", "NaN"), ("train/two.jsonl.zst", 2)
    with raises(BadRecordError, 3, 100, "2.0%", *first, *worst):
        build(shard_work(tmp_path / "not enough", plan, files, budget=0.02))
    assert not (tmp_path / "not enough" / "d" / "token_bins" / "train-00000").exists()


@pytest.mark.parametrize(("budget", "exceeded"), [(0.05, None), (0.03, None), (0.02, 0.02)])
def test_only_an_exceeded_budget_is_part_of_the_key(tmp_path: Path, budget: float, exceeded: float | None) -> None:
    lines = write_lines(tmp_path / "one.jsonl.zst", ["a"] * 97 + [b"[]", b"{}", b'{"text": NaN}'])
    plan = stream_plan(bad_records="drop")
    finished = shard_work(tmp_path / "out", plan, [source(lines)], budget=0.03)
    receipt = build(finished).receipt
    assert find_exceeded_budget("drop", budget, finished.store, finished.artifact, is_bad_row) == exceeded
    changed = replace(finished, budget=budget, exceeded_budget=exceeded)
    assert (changed.recipe.find_change(receipt) is None) == (exceeded is None)
    assert find_exceeded_budget("fail", budget, finished.store, finished.artifact, is_bad_row) is None


def test_all_damaged_files_of_a_shard_are_named_at_once_and_the_others_are_kept(tmp_path: Path) -> None:
    files = []
    for number in range(23):
        path = write_lines(tmp_path / f"f{number}.jsonl.zst", [f"text {number}"] * 5)
        if number:
            path.write_bytes(path.read_bytes()[:-4])
        files.append(source(path, number))
    shard = shard_work(tmp_path / "out", stream_plan(), files)
    (failed,) = build_token_bins([shard], workers=2)
    with pytest.raises(CorruptSourceError) as refused:
        ensure_shard(shard, "full", None)
    assert str(failed.error) == str(refused.value), "whoever does the work"
    told = str(refused.value)
    assert told.startswith("22 files: train/f1.jsonl.zst: truncated")
    assert [f"train/f{n}.jsonl.zst" in told for n in range(23)] == [False, *[True] * 20, False, False]
    assert told.endswith(" | and 2 more")
    (kept,) = (shard.directory.parent / ".staging").glob("train-00000-*")
    assert find_finished_part(kept, 0) is not None


def test_a_file_truncated_at_a_frame_boundary_is_found_by_the_snapshots_digest(tmp_path: Path) -> None:
    frame = zstandard.compress(b'{"text": "a"}\n')
    path = tmp_path / "f.jsonl.zst"
    path.write_bytes(frame * 3)
    file = source(path)
    assert build(shard_work(tmp_path / "whole", stream_plan(), [file])).ledger.documents == 3
    path.write_bytes(frame * 2)
    with raises(CorruptSourceError, "train/f.jsonl.zst", "sha256", file.sha256):
        build(shard_work(tmp_path / "cut", stream_plan(), [file]))


def test_a_flipped_byte_in_a_source_never_becomes_a_shard(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "f.jsonl.zst", [f"some text of row {i}" for i in range(20)])
    whole, file = path.read_bytes(), source(path)
    for position in range(0, len(whole), 3):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x04]) + whole[position + 1 :])
        with raises(CorruptSourceError, "train/f.jsonl.zst"):
            build(shard_work(tmp_path / "out", stream_plan(), [file]))


def test_a_failed_shard_is_reported_with_the_good_ones_and_leaves_no_files(tmp_path: Path) -> None:
    good, bad = (
        write_lines(tmp_path / "good.jsonl.zst", ["a"]),
        write_lines(tmp_path / "bad.jsonl.zst", ["a", b"broken"]),
    )
    works = [
        shard_work(tmp_path / name, stream_plan(), [source(path)]) for name, path in (("bad", bad), ("good", good))
    ]
    (failed,) = build_token_bins(works[:1], workers=1)
    assert isinstance(failed.error, BadRecordError)
    assert_names(str(failed.error), "train/bad.jsonl.zst", 2, 14, "bad_json")
    assert not works[0].directory.exists()
    (built,) = build_token_bins(works[1:], workers=1)
    assert built.receipt is not None


# --- documents


@pytest.mark.parametrize(
    "texts", [["", "a", "b"], ["a", "b", ""], ["a", "", "", "b"], [""], ["", ""], [" ", "\n", "\t\r\n"]], ids=repr
)
@pytest.mark.parametrize("bos", [None, 7])
def test_empty_and_blank_texts_are_documents(tmp_path: Path, texts: list[str], bos: int | None) -> None:
    shard = build_lines(tmp_path, texts, bos_id=bos)
    before = [] if bos is None else [bos]
    assert shard.documents == [[*before, *ids, END] for ids in reference_ids(texts)]
    assert shard.ledger.empty_documents == texts.count("")
    assert shard.ledger.separators == len(texts)


@pytest.mark.parametrize("lines", [[], [b""], [b"", b"  ", b"\r"]], ids=repr)
def test_a_shard_without_documents_is_a_valid_artifact(tmp_path: Path, lines: list[bytes]) -> None:
    shard = build_lines(tmp_path, lines)
    assert (shard.ids.size, shard.documents, shard.ledger.tokens, shard.ledger.min_id) == (0, [], 0, None)
    assert find_damage(shard.directory, shard.receipt) == []


def test_empty_files_between_others_shift_no_positions(tmp_path: Path) -> None:
    contents = [[], ["a b"], [], ["c"], []]
    files = [source(write_lines(tmp_path / f"{i}.jsonl.zst", lines), i) for i, lines in enumerate(contents)]
    shard = build(shard_work(tmp_path / "out", stream_plan(), files))
    assert shard.documents == [[*ids, END] for ids in reference_ids(["a b", "c"])]


def test_a_literal_separator_is_text_by_default_and_an_id_on_request(tmp_path: Path) -> None:
    texts = [f"a{SEPARATOR}b", f"{SEPARATOR}", "plain", f"x{SEPARATOR}{SEPARATOR}", SEPARATOR[:-1]]
    modes: tuple[tuple[SpecialTokens, int], ...] = (("text", 0), ("match", 4))
    for mode, separators in modes:
        (folder := tmp_path / mode).mkdir()
        shard = build_lines(folder, texts, mode)
        assert shard.documents == [[*ids, END] for ids in reference_ids(texts, mode)]
        assert (shard.ledger.special_literals, shard.ledger.literal_separators) == (3, separators)
        assert int(np.count_nonzero(shard.ids == END)) == len(texts) + separators


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unit", "millions"),
    [("word and another ", 8), ("abcdefghij", 8), (" ", 4)],
    ids=["with spaces", "without a space", "spaces alone"],
)
def test_a_document_of_millions_of_characters_takes_linear_time_with_the_right_ids(
    tmp_path: Path, unit: str, millions: int
) -> None:
    text = unit * (millions * 1_000_000 // len(unit))
    started = time.monotonic()
    shard = build_lines(tmp_path, ["before", text, "after"], sample_rate=1.0)
    assert time.monotonic() - started < 120  # with quadratic time, this would take hours
    first, last = reference_ids(["before", "after"])
    assert shard.ids[: len(first) + 1].tolist() == [*first, END]
    assert shard.ids[-len(last) - 1 :].tolist() == [*last, END]
    long = shard.ids[len(first) + 1 : -len(last) - 2]
    (prefix,) = reference_ids([text[:100_000]])
    # Omit the end of the prefix, because the text that follows may change the merges there.
    assert long[: len(prefix) - 100].tolist() == prefix[:-100]
    assert shard.ledger.text_characters == len(text) + 11
    end = bundle().decode(long[-1000:])
    assert text.endswith(end)
    assert len(end) >= 1000


# --- files without a readable row

UNREADABLE = {
    "other fields": (b'{"content": "a"}\n{"content": "b"}\n', "missing_text"),
    "rows under a key": (json.dumps({"data": [{"text": "a"}]}).encode(), "jq -c"),
    "carriage returns": (b'{"text": "a"}\r{"text": "b"}\r', "tr"),
    "pretty-printed": (json.dumps({"text": "a"}, indent=1).encode(), "jq -c"),
    "Windows-1252": (b'{"text": "caf\xe9"}\n', "CP1252"),
    "NUL": (b"\0" * 5000, "NUL"),
    "lists": (b'{"text": ["a"]}\n', "text_not_a_string"),
    "nulls": (b'{"text": null}\n', "null_text"),
}


@pytest.mark.parametrize("policy", ["fail", "drop"])
@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_without_a_readable_row_fails_under_both_policies(tmp_path: Path, name: str, policy: str) -> None:
    data, told = UNREADABLE[name]
    good = write_lines(tmp_path / "a.jsonl.zst", ["good"] * 5000)
    (tmp_path / "z.jsonl").write_bytes(data)
    files = [source(good), source(tmp_path / "z.jsonl", 1)]
    with raises(BadRecordError, "train/z.jsonl", 1, told) as raised:
        build(shard_work(tmp_path / "out", stream_plan(bad_records=policy), files))
    assert "policy: drop" not in str(raised.value)


def test_a_range_without_a_readable_row_is_dropped_if_the_file_has_one(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl.zst", [*(["good"] * 10), *([b"bad"] * 10)])
    parts = [replace(source(path, at), rows=rows) for at, rows in enumerate(split_rows(20, 2))]
    shard = build(shard_work(tmp_path / "out", stream_plan(bad_records="drop"), parts))
    assert shard.ledger.dropped == {"bad_json": 10}
    assert [line["dropped"] for line in shard.receipt.sources] == [{}, {"bad_json": 10}]
    with raises(BadRecordError, 11, "policy: drop"):
        build(shard_work(tmp_path / "fail", stream_plan(), parts[1:]))


def test_a_blank_or_empty_file_is_no_error(tmp_path: Path) -> None:
    for name, data in (("a.jsonl", b""), ("b.jsonl", b"\n \n"), ("c.json", b"[]")):
        (tmp_path / name).write_bytes(data)
    shard = build(shard_work(tmp_path / "out", stream_plan(), [source(path) for path in sorted(tmp_path.glob("*.j*"))]))
    assert (shard.ledger.rows_in, shard.ledger.documents) == (0, 0)


# --- Parquet


def test_parquet_nulls_follow_the_policy(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"text": ["a", None, "", "b"]}), path)
    with raises(BadRecordError, "train/f.parquet", 2, "null_text"):
        build(shard_work(tmp_path / "fail", stream_plan(), [source(path)]))
    shard = build(shard_work(tmp_path / "drop", stream_plan(bad_records="drop"), [source(path)]))
    assert shard.documents == [[*ids, END] for ids in reference_ids(["a", "", "b"])]
    assert shard.quarantine == [{"file": "train/f.parquet", "row": 2, "byte": -1, "reason": "null_text"}]


def test_parquet_and_json_lines_with_equal_texts_give_equal_streams(tmp_path: Path) -> None:
    texts = [f"document {i} é中\n" for i in range(5000)]
    pq.write_table(pa.table({"body": texts}), tmp_path / "f.parquet")
    (tmp_path / "f.jsonl").write_text("".join(json.dumps({"body": t}) + "\n" for t in texts))
    streams = [
        build(
            shard_work(tmp_path / suffix, stream_plan(text_field="body"), [source(tmp_path / f"f.{suffix}")])
        ).ids.tobytes()
        for suffix in ("parquet", "jsonl")
    ]
    assert streams[0] == streams[1]


def test_a_wrong_parquet_column_is_named_with_the_available_columns(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"content": ["a"]}), path)
    with raises(AbsentColumnError, "train/f.parquet", "'text'", "content", "`text_field`"):
        build(shard_work(tmp_path, stream_plan(), [source(path)]))


def test_a_record_above_the_declared_size_is_dropped_by_position(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl.zst", ["one", "x" * 3000, "two"])
    part = replace(source(path), max_record_bytes=2048)
    made = build(shard_work(tmp_path, stream_plan(bad_records="drop"), [part]))
    assert made.ledger.dropped == {"too_large": 1}
    assert made.ledger.documents == 2
    ((position),) = made.quarantine
    assert (position["row"], position["byte"], position["reason"]) == (2, 16, "too_large")


def test_the_maximum_record_size_is_part_of_the_key(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl.zst", ["one"])
    work = shard_work(tmp_path, stream_plan(), [source(path)])
    other = replace(work, files=(replace(source(path), max_record_bytes=2048),))
    assert other.key != work.key
    assert other.recipe.settings["bad_records.max_record_bytes"] == 2048
