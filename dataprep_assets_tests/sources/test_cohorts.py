"""Cohort files are found by month and read patient by patient, for any size and any block boundaries."""

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import zstandard

from dataprep_assets.errors import ConfigError, CorruptSourceError, SourceError
from dataprep_assets.planning.manifest import SourceFile
from dataprep_assets.sources.cohorts import CohortReader, PatientRecord, find_cohorts, list_expected_months
from dataprep_assets.sources.readers import blocks
from dataprep_assets.sources.readers.row_files import BadRecord
from dataprep_assets_tests.messages import raises

PATTERN = r"(?P<year>\d{4})-(?P<month>\d{1,2})\.json"


def read(path: Path, format: Any = "json_array", compression: str | None = None) -> list[PatientRecord | BadRecord]:
    return list(CohortReader(path, format, compression, "2010-01"))


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "cohort"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def listed(*names: str) -> list[SourceFile]:
    return [SourceFile(relpath=name, size_bytes=1) for name in names]


# ------------------------------------------------------------------------------------------------------------- months


def test_twenty_four_years_are_288_months() -> None:
    months = list_expected_months("1990-03", "2014-02")
    assert len(months) == 288
    assert months[:1] + months[9:11] == ["1990-03", "1990-12", "1991-01"]


@pytest.mark.parametrize(
    ("first", "last", "absent", "named"),
    [
        ("2010-13", "2011-01", [], "2010-13"),
        ("2011-01", "2010-12", [], "2010-12"),
        ("2010-01", "2010-03", ["2010-04"], "2010-04"),
    ],
)
def test_impossible_months_are_refused(first: str, last: str, absent: list[str], named: str) -> None:
    with raises(ConfigError, named):
        list_expected_months(first, last, absent)


def test_files_are_found_by_month_in_any_order() -> None:
    files = listed("2010-3.json", "README.md", "2010-01.json", "1999-01.json")
    found = find_cohorts(files, PATTERN, ["2010-01", "2010-02", "2010-03"])
    assert [(month, file.relpath) for month, file in found.items()] == [
        ("2010-01", "2010-01.json"),
        ("2010-03", "2010-3.json"),
    ]


@pytest.mark.parametrize("month", [r"(?P<month>\w+)", r"(?P<month>\d\d)?\w*"])
def test_files_whose_year_or_month_is_not_a_number_are_ignored(month: str) -> None:
    files = listed("Smith-John.json", "2010-John.json", "2010-\u0661\u0662.json", "2010-01.json")
    found = find_cohorts(files, rf"(?P<year>\w+)-{month}\.json", ["2010-01", "2010-12"])
    assert {month: file.relpath for month, file in found.items()} == {"2010-01": "2010-01.json"}


def test_two_files_of_one_month_are_refused_without_their_names() -> None:
    with raises(SourceError, "2010-01") as raised:
        find_cohorts(listed("2010-01.json", "2010-1.json"), PATTERN, ["2010-01"])
    assert "json" not in str(raised.value)


def test_a_file_of_a_month_declared_missing_is_refused() -> None:
    with raises(SourceError, "allow_missing"):
        find_cohorts(listed("2010-02.json"), PATTERN, ["2010-01"], ["2010-02"])


# ------------------------------------------------------------------------------------------------------------ elements


def word(random: Random) -> str:
    return "".join(random.choice('ab"\\{}[],: \n\u00e9\u4e2d\U0001f600') for _ in range(random.randrange(12)))


def value(random: Random, depth: int = 0) -> Any:
    kind = random.randrange(8)
    if kind < 2 and depth < 4:
        inner = [(word(random), value(random, depth + 1)) for _ in range(random.randrange(4))]
        return dict(inner) if kind else [v for _, v in inner]
    return word(random) if kind < 6 else random.choice([1, None, True, -1.5e3])


@pytest.mark.parametrize("format", ["json_array", "json_object", "jsonl"])
@pytest.mark.parametrize("block", [3, 4, 7, 64, 1 << 20])
def test_records_equal_those_of_a_full_parse_at_any_block_boundaries(
    format: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_BLOCK", block)
    random = Random(f"{format} {block}")
    for _ in range(60):
        patients = [{word(random): value(random) for _ in range(3)} for _ in range(random.randrange(5))]
        keyed = {f"{word(random)}{i}": patient for i, patient in enumerate(patients)}
        indent, ascii_only = random.choice([None, 1]), random.random() < 0.5
        if format == "jsonl":
            text = "\n".join(json.dumps(patient, ensure_ascii=ascii_only) for patient in patients)
        else:
            whole = keyed if format == "json_object" else patients
            text = json.dumps(whole, indent=indent, ensure_ascii=ascii_only)
        raw = (b"\xef\xbb\xbf" if random.random() < 0.3 else b"") + b" \n" * (format != "jsonl") + text.encode() + b"\n"
        found = read(written(tmp_path, raw), format)
        assert [f.value for f in found if isinstance(f, PatientRecord)] == patients
        keys = list(keyed) if format == "json_object" else [None] * len(patients)
        assert [f.key for f in found if isinstance(f, PatientRecord)] == keys
        assert [f.row for f in found] == list(range(1, len(patients) + 1))
        if format == "json_array":
            assert all(raw[f.byte : f.byte + 1] == b"{" for f in found)


@pytest.mark.parametrize("format", ["json_array", "json_object"])
def test_a_file_truncated_anywhere_is_never_mistaken_for_a_shorter_one(format: str, tmp_path: Path) -> None:
    patients = [{"id": "a", "notes": [{"text": 'say "\\" ] }'}]}, {"id": "b", "notes": []}]
    raw = json.dumps(patients if format == "json_array" else {p["id"]: p for p in patients}).encode()
    for cut in range(len(raw)):
        with pytest.raises(CorruptSourceError):
            read(written(tmp_path, raw[:cut]), format)


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ('[{"a": 1}] {"b": 2}', ("byte", 11)),
        ('[{"a": 1},]', ("byte", 10)),
        ('[{"a": 1}, , {"b": 2}]', ("byte", 11)),
        ('[{"a": 1}}', ("byte", 9)),
        ('{"a": 1}', ("byte", 0)),
        ("", ("byte", 0)),
        ('[{"a": canary}]', (1, "byte 1")),
        ('[{"a": 1} {"b": 2}]', (1, "byte 1")),
    ],
)
def test_malformed_arrays_are_refused_only_by_position(content: str, where: tuple[object, ...], tmp_path: Path) -> None:
    with raises(CorruptSourceError, *where) as raised:
        read(written(tmp_path, content))
    assert "canary" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_empty_containers_have_no_records(tmp_path: Path) -> None:
    assert read(written(tmp_path, " [ \n] ")) == []
    assert read(written(tmp_path, "{}"), "json_object") == []
    assert read(written(tmp_path, "\n \n"), "jsonl") == []


def test_bad_lines_are_distinguished_and_counted_by_row_and_byte(tmp_path: Path) -> None:
    lines = [b'{"a": 1}', b"{canary", b'{"a": "\xff"}', b"[1]", b"", b'{"a": 1e400}\r']
    found = read(written(tmp_path, b"\n".join(lines)), "jsonl")
    assert [(f.row, f.byte, f.reason) for f in found if isinstance(f, BadRecord)] == [
        (2, 9, "bad_json"),
        (3, 17, "invalid_utf8"),
        (4, 28, "not_an_object"),
    ]
    assert [f.row for f in found if isinstance(f, PatientRecord)] == [1, 6]


def test_an_element_that_is_not_utf8_is_one_bad_record(tmp_path: Path) -> None:
    found = read(written(tmp_path, b'[{"a": 1}, {"a": "\xff"}, {"a": 2}]'))
    assert [type(f) for f in found] == [PatientRecord, BadRecord, PatientRecord]


def test_compressed_cohorts_are_read_and_truncated_ones_refused(tmp_path: Path) -> None:
    raw = json.dumps([{"id": str(i), "text": "x" * 50} for i in range(500)]).encode()
    for name, data in (("gzip", gzip.compress(raw)), ("zstd", zstandard.compress(raw))):
        assert len(read(written(tmp_path, data), "json_array", name)) == 500
        with raises(CorruptSourceError, "2010-01"):
            read(written(tmp_path, data[: len(data) // 2]), "json_array", name)


def test_a_repr_shows_no_patient_data(tmp_path: Path) -> None:
    (record,) = read(written(tmp_path, '{"canary-id": {"text": "canary"}}'), "json_object")
    assert "canary" not in repr(record)
