"""Packed cohorts contain every token of every note once, in rows that follow docs/formats/packed-rows.md."""

import hmac
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.formats.packed_rows import open_packed_file
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.receipt import read_receipt
from dataprep_assets.packing.row_defects import find_row_defects
from dataprep_assets.packing.rows import COLUMNS
from dataprep_assets.pipelines.notes.cohorts.packed_files import RowFacts, list_packed_paths, read_patients
from dataprep_assets.pipelines.notes.cohorts.spool import choose_split
from dataprep_assets.pipelines.notes.reading import digest_patient
from dataprep_assets_tests.pipelines.corpus.pipeline import data_files, receipts
from dataprep_assets_tests.pipelines.corpus.shards import bundle, reference_ids
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, plain, rows, segments, written
from dataprep_assets_tests.pipelines.notes.pipeline import KEY, declaration, run_notes

END = bundle().find_token("<|endoftext|>", key="separator").id
PAD = bundle().find_token("<|pad|>", key="pad").id
SENTENCES = ["The goat counts.", "A kite, twice!", "Tea " * 9, "One.", "Snow on the teapot " * 6, "quiet lantern"]


def built(notes: Any, root: Path) -> None:
    outcome = run_notes(notes, root)
    assert not outcome.failed, outcome.failed


def ids(text: str) -> list[int]:
    return [*reference_ids([text])[0], END]


@pytest.mark.parametrize(
    "algorithm", ["first_fit_decreasing", "concatenative", "first_fit", "first_fit_shuffle", "best_fit"]
)
def test_every_note_is_one_segment_and_rows_have_the_seeds_five_columns(algorithm: str, tmp_path: Path) -> None:
    people = [patient(f"p{i}", *(note(t) for t in SENTENCES[i:])) for i in range(4)]
    notes = plain(
        written(tmp_path / "in", {"2010-01": people}),
        packing={"algorithm": algorithm},
        row_length=64,
        order="source",
    )
    built(notes, tmp_path / "out")
    found = rows(notes, tmp_path / "out", "2010-01")
    assert all(list(row) == list(COLUMNS) for row in found)
    columns = {name: np.array([row[name] for row in found]) for name in COLUMNS}
    assert not find_row_defects(
        columns, row_length=64, pad_id=PAD, vocab_size=bundle().vocab_size, pad_is_reserved=True
    )
    wanted = sorted(ids(n["text"]) for p in people for n in p["notes"])
    assert sorted(s for row in found for s in segments(row)) == wanted


def test_the_columnar_file_and_the_json_lines_contain_equal_rows(tmp_path: Path) -> None:
    notes = declaration(targets=True)
    built(notes, tmp_path)
    directory = LocalArtifacts(tmp_path).directory(notes.artifact("packed_cohorts", "2010-12"))
    file = open_packed_file(directory / list_packed_paths(notes, "2010-12")["train"].rows, masked=False)
    shape = RowFacts.from_receipt(LocalArtifacts(tmp_path).require(notes.artifact("packed_cohorts", "2010-12"))).shape
    found = rows(notes, tmp_path, "2010-12")
    assert len(file) == len(found)
    at = 0
    for block in file.blocks(5):
        columns = shape.values(block)
        for row in range(len(block)):
            assert {name: column[row].tolist() for name, column in columns.items()} == found[at]
            at += 1
    assert at == len(found)
    for row in found:
        segment, following = row["inputs_segmentation"], [*row["inputs_segmentation"][1:], 0]
        labels = [s != 0 and s == f for s, f in zip(segment, following, strict=True)]
        assert row["targets"] == [row["inputs"][i + 1] if real else PAD for i, real in enumerate(labels)]


def test_notes_are_ordered_by_date_and_patients_as_in_the_source(tmp_path: Path) -> None:
    people = [
        patient("b", note("two", "2012-02-02"), note("one", "2011-12-31T23:59:00Z"), note("three", "2012-02-02")),
        patient("a", note("four", 0)),
    ]
    notes = plain(written(tmp_path / "in", {"2010-01": people}), packing={"algorithm": "concatenative"}, row_length=64)
    built(notes, tmp_path / "out")
    (row,) = rows(notes, tmp_path / "out", "2010-01")
    assert segments(row) == [ids(text) for text in ("one", "two", "three", "four")]


def test_a_long_note_is_split_with_a_repeated_header_and_overlap(tmp_path: Path) -> None:
    text, header = "Snow on the teapot, and tea in the snow. " * 12, "kind: walk\n"
    people = [patient("a", note(text, type="walk"))]
    notes = plain(
        written(tmp_path / "in", {"2010-01": people}),
        cohorts={"fields": {"note": {"kind": "type"}}},
        template={"header": "kind: {kind}\n"},
        long_notes={"rule": "repeat_header", "overlap": 3},
        packing={"algorithm": "concatenative"},
    )
    built(notes, tmp_path / "out")
    found = [s for row in rows(notes, tmp_path / "out", "2010-01") for s in segments(row)]
    top = reference_ids([header])[0]
    assert len(found) > 2
    assert all(chunk[: len(top)] == top for chunk in found)
    body = found[0][len(top) :]
    for chunk in found[1:]:
        assert chunk[len(top) : len(top) + 3] == body[-3:]
        body += chunk[len(top) + 3 :]
    assert body == ids(text)
    receipt = read_receipt(LocalArtifacts(tmp_path / "out").directory(notes.artifact("packed_cohorts", "2010-01")))
    assert receipt is not None
    books = receipt.facts["splits"]["train"]["tokens"]
    assert books["repeated_headers"] == len(top) * (len(found) - 1)
    assert books["overlap"] == 3 * (len(found) - 1)
    assert books["in_rows"] == sum(map(len, found))


def test_truncation_is_counted_and_a_truncated_note_has_no_end(tmp_path: Path) -> None:
    text = "Snow on the teapot, and tea in the snow. " * 12
    notes = plain(
        written(tmp_path / "in", {"2010-01": [patient("a", note(text), note("short"))]}),
        long_notes={"rule": "truncate"},
        packing={"algorithm": "concatenative"},
    )
    built(notes, tmp_path / "out")
    first, second = [s for row in rows(notes, tmp_path / "out", "2010-01") for s in segments(row)]
    assert first == ids(text)[:32]
    assert second == ids("short")
    receipt = read_receipt(LocalArtifacts(tmp_path / "out").directory(notes.artifact("packed_cohorts", "2010-01")))
    assert receipt is not None
    assert receipt.ledger is not None
    assert receipt.facts["splits"]["train"]["tokens"]["truncated"] == len(ids(text)) - 32
    assert receipt.ledger.separators == 1


@pytest.mark.parametrize(("pipeline", "length"), [("tfds", 33), ("grain", 32), ("hf", 32)])
def test_unpacked_rows_are_the_stream_split_at_the_reader_length(pipeline: str, length: int, tmp_path: Path) -> None:
    people = [patient(f"p{i}", note(text)) for i, text in enumerate(SENTENCES)]
    source = written(tmp_path / "in", {"2010-01": people})
    notes = plain(source, layout="unpacked", pipeline=pipeline, rows="stream")
    built(notes, tmp_path / "out")
    found = rows(notes, tmp_path / "out", "2010-01")
    assert all(list(row) == ["tokens"] and len(row["tokens"]) == length for row in found[:-1])
    # The last row is shorter than the others, because only the trainer knows which id it masks, so only the trainer can
    # pad.
    assert [token for row in found for token in row["tokens"]] == [token for text in SENTENCES for token in ids(text)]


def test_an_unpacked_row_is_one_note_and_a_long_note_becomes_chunks_with_its_header(tmp_path: Path) -> None:
    people = [patient(f"p{i}", note(text)) for i, text in enumerate([*SENTENCES, " ".join(SENTENCES)])]
    notes = plain(written(tmp_path / "in", {"2010-01": people}), layout="unpacked", pipeline="grain")
    built(notes, tmp_path / "out")
    found = [row["tokens"] for row in rows(notes, tmp_path / "out", "2010-01")]
    long = ids(" ".join(SENTENCES))
    wanted = [ids(text) for text in SENTENCES] + [long[at : at + 32] for at in range(0, len(long), 32)]
    assert found == wanted
    assert max(map(len, found)) == 32


@pytest.mark.parametrize("shape", ["records_are_notes", "object_of_patients", "nested_paths"])
def test_other_shapes_of_records_give_the_same_rows(shape: str, tmp_path: Path) -> None:
    people = [patient("a", note("one"), note("two")), patient("b", note("three"))]
    usual = plain(written(tmp_path / "usual", {"2010-01": people}))
    built(usual, tmp_path / "usual_out")
    if shape == "records_are_notes":
        flat = [{"patient_id": p["patient_id"], **n} for p in people for n in p["notes"]]
        content, files = json.dumps(flat).encode(), {"fields": {"notes": None}}
    elif shape == "object_of_patients":
        content = json.dumps({p["patient_id"]: {"notes": p["notes"]} for p in people}).encode()
        files = {"format": "json_object", "fields": {"patient_id": "$key"}}
    else:
        charts = [[{"body": {"t": n["text"]}, "date": n["date"]} for n in p["notes"]] for p in people]
        lines = [{"who": {"id": p["patient_id"]}, "chart": {"notes": c}} for p, c in zip(people, charts, strict=True)]
        content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        files = {
            "format": "jsonl",
            "fields": {"patient_id": "who.id", "notes": "chart.notes", "text": "body.t"},
        }
    other = plain(written(tmp_path / shape, {"2010-01": content}), cohorts=files)
    built(other, tmp_path / "out")
    assert rows(other, tmp_path / "out", "2010-01") == rows(usual, tmp_path / "usual_out", "2010-01")


def test_splits_depend_only_on_the_keyed_digest_of_the_patient(tmp_path: Path) -> None:
    people = {
        month: [patient(f"{month}-{i}", note(f"{month} number {i}"), note("again")) for i in range(40)]
        for month in ("2010-01", "2010-02")
    }
    splits = {"train": 0.6, "val": 0.2, "test": 0.2}
    notes = plain(written(tmp_path / "in", people), ("2010-01", "2010-02"), splits=splits)
    built(notes, tmp_path / "out")
    store, seen = LocalArtifacts(tmp_path / "out"), {}
    for month, patients in people.items():
        directory = store.directory(notes.artifact("packed_cohorts", month))
        for split, paths in list_packed_paths(notes, month).items():
            for digest in read_patients(directory / paths.patients):
                assert seen.setdefault(digest.tobytes(), split) == split
                assert list(splits)[choose_split(digest.tobytes(), splits.values())] == split
            texts = {tuple(s) for row in rows(notes, tmp_path / "out", month, split) for s in segments(row)}
            for person in patients:
                mine = tuple(ids(person["notes"][0]["text"])) in texts
                digest = digest_patient(KEY.encode(), person["patient_id"])
                assert mine == (seen.get(digest) == split)
    assert len(seen) == 80
    assert set(seen.values()) == set(splits)
    plain_digest = hmac.digest(KEY.encode(), b"patient\0" + b"2010-01-0", "sha256")[:16]
    assert plain_digest in seen


def test_a_different_key_selects_other_patients_and_gives_another_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = {"2010-01": [patient(f"p{i}", note(f"number {i}")) for i in range(60)]}
    found = []
    for key in ("k" * 32, "l" * 32):
        monkeypatch.setenv("NOTES_TEST_KEY", key)
        notes = plain(
            written(tmp_path / "in", people),
            splits={"train": 0.5, "val": 0.5},
            sensitive=True,
            patient_key={"env": "NOTES_TEST_KEY"},
        )
        built(notes, tmp_path / "out")
        made = receipts(tmp_path / "out")["notes/packed_cohorts/2010-01"]
        found.append((made["key"], rows(notes, tmp_path / "out", "2010-01")))
        everything = b"".join(p.read_bytes() for p in (tmp_path / "out").rglob("receipt.json"))
        assert key.encode() not in everything
    assert found[0][0] != found[1][0]
    assert found[0][1] != found[1][1]


def test_bytes_do_not_depend_on_the_number_of_workers_and_a_second_run_does_nothing(tmp_path: Path) -> None:
    notes = declaration(splits={"train": 0.7, "val": 0.3})
    one, three = run_notes(notes, tmp_path / "one", 1), run_notes(notes, tmp_path / "three", 3)
    assert not one.failed
    assert not three.failed
    assert data_files(tmp_path / "one") == data_files(tmp_path / "three")
    assert receipts(tmp_path / "one") == receipts(tmp_path / "three")
    again = run_notes(notes, tmp_path / "three", 2)
    assert again.built == []
    assert sorted(again.reused) == sorted(three.built)


def test_the_fast_engine_and_the_reference_give_equal_rows(tmp_path: Path) -> None:
    fast = declaration(tokenizer={"path": declaration().tokenizer.path, "engine": "fastokens"}, sample_rate=1.0)
    slow = declaration(tokenizer={"path": declaration().tokenizer.path, "engine": "tokenizers"})
    built(fast, tmp_path / "fast")
    built(slow, tmp_path / "slow")
    for month in fast.months.expected_keys:
        assert rows(fast, tmp_path / "fast", month) == rows(slow, tmp_path / "slow", month)
    ledgers = receipts(tmp_path / "fast")["sample_notes/packed_cohorts/2010-11"]["ledger"]
    assert ledgers["sampled_documents"] == ledgers["documents"]
