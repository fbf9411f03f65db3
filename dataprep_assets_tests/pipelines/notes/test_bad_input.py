"""Bad cohorts end in a clear error or a counted drop, by policy, and nothing of a patient is in either."""

import json
import re
import shutil
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import (
    BadRecordError,
    ConfigError,
    CorruptSourceError,
    DataprepError,
    IntegrityError,
    SourceError,
)
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.notes.cohorts.cohort_source import list_cohorts
from dataprep_assets.pipelines.notes.cohorts.packed_cohort import ensure_packed_cohort
from dataprep_assets.pipelines.notes.cohorts.packed_cohorts import packed_cohorts, require_patients_once
from dataprep_assets.pipelines.notes.cohorts.packed_files import QUARANTINE
from dataprep_assets.pipelines.notes.dataset import notes_engine
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.privacy import hide_quoted_data
from dataprep_assets.pipelines.notes.retract import retract_patients
from dataprep_assets.stream.engine_certificate import ensure_certificate
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, plain, rows, segments, written
from dataprep_assets_tests.pipelines.notes.pipeline import in_this_process, run_notes

CANARY = "CANARY"
MONTH = "2010-01"
GOOD = patient("CANARY-good", note("CANARY good text"), birth="2010-01-31", colour="CANARY-colour")
FIELDS = {"birth_date": "birth", "patient": {"colour": "colour"}}
TEMPLATE = {"header": "{colour}\n"}


def pack(source: Path, root: Path, months: Sequence[str] = (MONTH, MONTH), **changes: Any) -> Receipt:
    """Have the first month packed, in this process."""
    notes = plain(source, months, **{"cohorts": {"fields": FIELDS}, "template": TEMPLATE, **changes})
    store = LocalArtifacts(root)
    ensure_certificate(notes_engine(notes), store)
    (cohort,) = packed_cohorts(notes, store, [months[0]])
    return ensure_packed_cohort(cohort)[0]


def person(**changes: Any) -> dict[str, Any]:
    return {**patient("CANARY-id", note("CANARY text"), birth="2010-01-02", colour="CANARY-colour"), **changes}


def without(record: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in record.items() if k != key}


RECORDS: dict[str, tuple[Any, int]] = {
    "not_an_object": ("CANARY", 1),
    "missing_patient_id": (without(person(), "patient_id"), 1),
    "bad_patient_id": (person(patient_id=["CANARY"]), 1),
    "duplicate_patient": (person(patient_id="CANARY-good", notes=[note("CANARY 1"), note("CANARY 2")]), 2),
    "bad_birth_date": (person(birth="CANARY"), 1),
    "wrong_birth_month": (person(birth="2009-12-31"), 1),
    "missing_notes": (without(person(), "notes"), 1),
    "notes_not_a_list": (person(notes="CANARY"), 1),
    "note_not_an_object": (person(notes=["CANARY", note("CANARY kept")]), 1),
    "missing_text": (person(notes=[{"date": "2011-01-01"}]), 1),
    "null_text": (person(notes=[note(None)]), 1),
    "text_not_a_string": (person(notes=[note(["CANARY"])]), 1),
    "bad_date": (person(notes=[note("CANARY", "CANARY"), note("CANARY", None), note("CANARY", True)]), 3),
    "bad_metadata": (person(colour=["CANARY"]), 1),
    "header_too_long": (person(colour="CANARY " * 50), 1),
}


def assert_silent(error: BaseException) -> None:
    """Nothing of a patient in the message, the repr, or what a logger would print."""
    said = [str(error), repr(error), *traceback.format_exception(error)]
    lines = [line for text in said for line in text.splitlines() if "CANARY" in line]
    # Ignore quoted lines of this test's source code, which contain no patient data.
    assert [line for line in lines if "raise " not in line and "pack(" not in line] == []


@pytest.mark.parametrize("reason", RECORDS)
def test_a_defect_fails_the_cohort_by_position_alone(reason: str, tmp_path: Path) -> None:
    record, _ = RECORDS[reason]
    source = written(tmp_path / "in", {MONTH: [GOOD, record]})
    with raises(BadRecordError, MONTH, 2, reason) as raised:
        pack(source, tmp_path / "out")
    assert_silent(raised.value)
    assert not (tmp_path / "out" / "notes" / "packed_cohorts" / MONTH).exists()


@pytest.mark.parametrize("reason", RECORDS)
def test_or_is_dropped_counted_and_noted_by_position(reason: str, tmp_path: Path) -> None:
    record, count = RECORDS[reason]
    source = written(tmp_path / "in", {MONTH: [GOOD, record]})
    receipt = pack(source, tmp_path / "out", bad_records={"policy": "drop", "budget": 0.9})
    assert receipt.ledger is not None
    assert receipt.ledger.dropped == {reason: count}
    assert receipt.ledger.rows_in == receipt.ledger.documents + count
    directory = tmp_path / "out" / "notes" / "packed_cohorts" / MONTH
    places = [json.loads(line) for line in (directory / QUARANTINE).read_bytes().splitlines()]
    assert sum(place["notes"] for place in places) == count
    assert all(place["record"] == 2 and place["reason"] == reason for place in places)
    for path in (*directory.glob("*.json"), directory / QUARANTINE):
        assert CANARY not in path.read_text()


def test_more_drops_than_the_budget_fail_the_cohort(tmp_path: Path) -> None:
    source = written(tmp_path / "in", {MONTH: [GOOD, RECORDS["null_text"][0]]})
    with raises(BadRecordError, 1, 2) as raised:
        pack(source, tmp_path / "out", bad_records={"policy": "drop", "budget": 0.4})
    assert_silent(raised.value)
    assert raised.value.at.get("byte", 0) > 0


def test_a_budget_error_of_a_note_without_a_known_byte_names_no_byte(tmp_path: Path) -> None:
    source = written(tmp_path / "in", {MONTH: [GOOD, RECORDS["header_too_long"][0]]})
    with raises(BadRecordError, "record 2", "note 1", "header_too_long") as raised:
        pack(source, tmp_path / "out", bad_records={"policy": "drop", "budget": 0.4})
    assert "byte" not in str(raised.value)
    assert raised.value.at == {"month": MONTH, "row": 2}


FILES: dict[str, tuple[bytes, tuple[object, ...]]] = {
    "malformed": (json.dumps([GOOD]).encode().replace(b'"notes": [', b'"notes": [CANARY,', 1), (1, "byte")),
    "truncated": (json.dumps([GOOD, person()]).encode()[:-20], ("record", 2)),
    "cut in a string": (json.dumps([GOOD]).encode()[:30], ("record", 1)),
    "not the declared format": (json.dumps({"CANARY": GOOD}).encode(), ("JSON",)),
    "UTF-16": (json.dumps([GOOD]).encode("utf-16-le"), ("UTF-16LE",)),
    "a page": (b"<html><body>CANARY</body></html>", ("HTML",)),
    "a pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1\n",
        ("git lfs pull",),
    ),
    "not UTF-8": (json.dumps([GOOD]).encode().replace(b"good text", b"good \xff"), ("invalid_utf8",)),
    "no patients": (b"[]", ("months.allow_empty",)),
    "nothing at all": (b"", ("record",)),
    "patients without notes": (
        json.dumps([person(notes=[]), person(patient_id=2, notes=None)]).encode(),
        (2, "notes"),
    ),
    "notes without text": (
        json.dumps([person(notes=[note(" ")])]).encode(),
        (1, "empty_note"),
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_bad_file_fails_by_position_alone(kind: str, tmp_path: Path) -> None:
    content, why = FILES[kind]
    with raises((BadRecordError, CorruptSourceError), MONTH, *why) as raised:
        pack(written(tmp_path / "in", {MONTH: content}), tmp_path / "out")
    assert_silent(raised.value)


@pytest.mark.parametrize("policy", ["fail", "drop"])
def test_a_cohort_without_one_record_fails_though_months_may_be_empty(tmp_path: Path, policy: str) -> None:
    source = written(tmp_path / "in", {MONTH: ["CANARY", 5]})
    declared = plain(source, bad_records={"policy": policy, **({"budget": 1} if policy == "drop" else {})}).model_dump()
    declared["months"] = {"first": MONTH, "last": MONTH, "allow_empty": [MONTH]}
    outcome = run_notes(NotesDeclaration.model_validate(declared), tmp_path / "out")
    (error,) = outcome.failed.values()
    assert isinstance(error, BadRecordError)
    assert re.search(rf"{MONTH}: none of its rows .*row 1.*not_an_object", str(error))
    assert_silent(error)
    assert "policy: drop" not in str(error)


def test_a_cohort_in_utf16_with_its_mark_is_read(tmp_path: Path) -> None:
    source = written(tmp_path / "in", {MONTH: json.dumps([GOOD]).encode("utf-16")})
    receipt = pack(source, tmp_path / "out")
    assert receipt.ledger is not None
    assert receipt.ledger.documents == 1


def test_an_empty_cohort_is_an_artifact_where_it_is_declared(tmp_path: Path) -> None:
    source = written(tmp_path / "in", {MONTH: [], "2010-02": [GOOD]})
    months = {"first": MONTH, "last": "2010-02", "allow_empty": [MONTH]}
    notes = NotesDeclaration.model_validate(plain(source).model_dump() | {"months": months})
    outcome = run_notes(notes, tmp_path / "out")
    assert not outcome.failed
    assert rows(notes, tmp_path / "out", MONTH) == []


def test_a_patient_without_notes_is_counted_and_an_empty_note_dropped_under_every_policy(tmp_path: Path) -> None:
    people = [GOOD, person(notes=[]), person(patient_id=7, notes=[note(""), note(" \n\t"), note("kept")])]
    receipt = pack(written(tmp_path / "in", {MONTH: people}), tmp_path / "out")
    assert receipt.ledger is not None
    assert dict(receipt.ledger.dropped) == {"empty_note": 2}
    assert (receipt.ledger.rows_in, receipt.ledger.documents) == (4, 2)
    assert (receipt.facts["patients"], receipt.facts["patients_without_notes"]) == (3, 1)


def test_a_note_of_five_million_characters_is_one_document(tmp_path: Path) -> None:
    text = "Snow on the teapot. " * 250_000
    notes = plain(
        written(tmp_path / "in", {MONTH: [patient("a", note(text))]}),
        row_length=8192,
        rows_per_shard=256,
        tokenizer={"path": plain(tmp_path).tokenizer.path, "engine": "fastokens"},
        sample_rate=0,
        packing={"algorithm": "concatenative"},
    )
    outcome = run_notes(notes, tmp_path / "out")
    assert not outcome.failed
    found = rows(notes, tmp_path / "out", MONTH)
    assert sum(len(s) for row in found for s in segments(row)) > 1_000_000


@pytest.mark.parametrize("missing", [{"colour": None}, {}])
def test_missing_metadata_fails_drops_or_takes_its_default(missing: dict[str, Any], tmp_path: Path) -> None:
    lacking = {**patient("CANARY-lacking", note("CANARY text"), birth="2010-01-03"), **missing}
    source = written(tmp_path / "in", {MONTH: [GOOD, lacking]})
    with raises(BadRecordError, 2, 1, "missing_metadata", "template.defaults") as raised:
        pack(source, tmp_path / "fail")
    assert_silent(raised.value)
    dropped = pack(source, tmp_path / "drop", template={**TEMPLATE, "missing": "drop"})
    assert dropped.ledger is not None
    assert dict(dropped.ledger.dropped) == {"missing_metadata": 1}
    kept = pack(source, tmp_path / "kept", template={**TEMPLATE, "defaults": {"colour": "none"}})
    assert kept.ledger is not None
    assert kept.ledger.documents == 2


def test_a_template_that_fails_on_a_value_does_not_quote_it(tmp_path: Path) -> None:
    source = written(tmp_path / "in", {MONTH: [GOOD]})
    template = {"header": "{{ colour | int // 0 }}", "engine": "jinja"}
    with raises(BadRecordError, "bad_metadata") as raised:
        pack(source, tmp_path / "out", template=template)
    assert_silent(raised.value)


def test_a_month_without_a_file_fails_alone(tmp_path: Path) -> None:
    notes = plain(written(tmp_path / "in", {MONTH: [GOOD]}), (MONTH, "2010-03"))
    outcome = run_notes(notes, tmp_path / "out", workers=2)
    assert "packed_cohorts/2010-01" in outcome.built
    assert sorted(outcome.failed) == ["2010-02", "2010-03"]
    assert all(isinstance(error, SourceError) and "no file" in str(error) for error in outcome.failed.values())


def test_a_patient_in_two_cohorts_fails_the_directory_unless_allowed(tmp_path: Path) -> None:
    people = {month: [patient("CANARY-1", note("CANARY")), patient(month, note("x"))] for month in (MONTH, "2010-02")}
    source = written(tmp_path / "in", people)
    with raises(IntegrityError, 1, "2010-01, 2010-02") as raised:
        run_notes(plain(source, (MONTH, "2010-02")), tmp_path / "out")
    assert_silent(raised.value)
    allowed = run_notes(plain(source, (MONTH, "2010-02"), duplicate_patients="allow"), tmp_path / "out")
    assert allowed.built == ["tfds_directory"]


def test_a_retracted_patient_is_in_no_cohort_though_their_files_cannot_be_read_to_the_end(tmp_path: Path) -> None:
    people = [patient("CANARY-1", note("CANARY")), patient("CANARY-2", note("CANARY"))]
    months, store = (MONTH, "2010-02"), LocalArtifacts(tmp_path / "out")
    notes = plain(
        written(tmp_path / "in", dict.fromkeys(months, people)), months, retractions=tmp_path / "retracted.jsonl"
    )
    ensure_certificate(notes_engine(notes), store)
    written(tmp_path / "in", dict.fromkeys(months, json.dumps(people).encode()[:-20]))

    def look() -> None:
        require_patients_once(notes, store, packed_cohorts(notes, store, notes.months.expected_keys))

    with raises(IntegrityError, 1):
        look()
    (tmp_path / "ids").write_text("CANARY-1\n")
    retract_patients(notes, store, tmp_path / "ids")
    look()


def test_a_patient_in_two_cohorts_is_refused_until_the_source_is_right_or_the_note_retracted(tmp_path: Path) -> None:
    months, store = (MONTH, "2010-02"), LocalArtifacts(tmp_path / "out")
    people = {month: [patient("CANARY-1", note(f"CANARY {month}")), patient(month, note("x"))] for month in months}

    def run(*chosen: str) -> None:
        notes = plain(written(tmp_path / "in", people), months, retractions=tmp_path / "retracted.jsonl")
        ensure_certificate(notes_engine(notes), store)
        cohorts = packed_cohorts(notes, store, chosen)
        require_patients_once(notes, store, cohorts)
        assert not any(outcome.error for outcome in in_this_process(cohorts, ensure_packed_cohort))

    run(MONTH)
    with raises(IntegrityError, 1, "2010-01", "2010-02") as raised:
        run(*months)
    assert_silent(raised.value)
    wrong = people[MONTH].pop(0)
    run(*months)
    people[MONTH].append(wrong)
    shutil.rmtree(store.root / "notes" / "packed_cohorts")
    with raises(IntegrityError, 1, "2010-01", "2010-02"):
        run(*months)
    (tmp_path / "ids").write_text(f"{MONTH}:2:1\n")
    notes = plain(tmp_path / "in", months, retractions=tmp_path / "retracted.jsonl")
    assert retract_patients(notes, store, tmp_path / "ids").added == 1
    run(*months)


def test_all_bad_records_of_a_month_are_under_one_error(tmp_path: Path) -> None:
    people = [patient(f"p{at}", note(None if at else "x"), birth="2010-01-02", colour="red") for at in range(26)]
    with pytest.raises(BadRecordError) as raised:
        pack(written(tmp_path / "in", {MONTH: people}), tmp_path / "out")
    said = str(raised.value)
    assert said.startswith(f"{MONTH}: 25 errors: record 2, note 1, byte ")
    assert said.count("null_text") == 20
    assert_names(said, "5 more", "bad_records", "drop", 0.01)


def test_file_names_are_in_no_error_log_or_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "CANARY-name-2010-01.json").write_text(json.dumps([GOOD]))
    (source / "CANARY-name-2010-02.json").write_text('[{"CANARY')
    files = {"pattern": r"CANARY-name-(?P<year>\d{4})-(?P<month>\d\d)\.json", "fields": FIELDS}
    notes = plain(source, (MONTH, "2010-02"), cohorts=files)
    outcome = run_notes(notes, tmp_path / "out", workers=1)
    assert list(outcome.failed) == ["2010-02"]
    for error in outcome.failed.values():
        assert_silent(error)
    store = LocalArtifacts(tmp_path / "out")
    for month in (MONTH, "2010-02"):
        (cohort,) = packed_cohorts(notes, store, [month])
        assert CANARY not in repr(cohort)
    for path in source.iterdir():
        path.unlink()
    with raises(SourceError, "withheld") as raised:
        ensure_packed_cohort(cohort)
    assert_silent(raised.value)
    assert CANARY not in "".join((*capfd.readouterr(), caplog.text))
    for path in (tmp_path / "out").rglob("*"):
        assert CANARY not in path.name
        assert path.suffix != ".json" or CANARY not in path.read_text()


def test_an_unexpected_error_comes_out_as_its_type_and_place() -> None:
    with raises(DataprepError, "2010-01", "KeyError", "withheld") as raised, hide_quoted_data(MONTH):
        raise KeyError("CANARY of a patient")
    assert raised.value.__suppress_context__
    assert_silent(raised.value)
    with raises(DataprepError, "FileNotFoundError") as raised, hide_quoted_data(MONTH):
        open("/CANARY/name")  # noqa: SIM115
    assert "CANARY" not in str(raised.value)


def test_a_month_that_is_not_declared_is_refused(tmp_path: Path) -> None:
    notes = plain(written(tmp_path / "in", {MONTH: [GOOD]}))
    ensure_certificate(notes_engine(notes), LocalArtifacts(tmp_path / "out"))
    with raises(ConfigError, "1999-01"):
        packed_cohorts(notes, LocalArtifacts(tmp_path / "out"), ["1999-01"])


def test_a_dangling_link_is_reported_by_its_month_without_its_name(tmp_path: Path) -> None:
    source = written(tmp_path / "CANARY-folder", {"2010-01": [GOOD]})
    (source / "2010-02.json").symlink_to(source / "CANARY-gone.json")
    with pytest.raises(SourceError) as caught:
        list_cohorts(plain(source, ("2010-01", "2010-02"), dataset="clinic"))
    message = str(caught.value)
    assert message.startswith("clinic: 2010-02: SourceError (No such file or directory)")
    assert CANARY not in "".join(traceback.format_exception(caught.value))
