"""Task files are read strictly: every defect has its line and byte, and hides no other."""

import hashlib
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep_assets.formats.task_rows import Defect, parse_rows, read_rows


def defects(data: bytes) -> list[tuple[int, int, str]]:
    return [(d.line, d.byte, d.kind) for d in parse_rows(data).defects]


def values(data: bytes) -> list[object]:
    return [row.value for row in parse_rows(data).rows]


def test_clean_rows_have_lines_bytes_and_the_digest_of_the_file(tmp_path: Path) -> None:
    data = '{"a":1}\n{"a":"é"}\n'.encode()
    (tmp_path / "rows").write_bytes(data)
    read = read_rows(tmp_path / "rows")
    assert [(r.line, r.byte, r.value) for r in read.rows] == [(1, 0, {"a": 1}), (2, 8, {"a": "é"})]
    assert (read.defects, read.lines, read.bytes) == ((), 2, len(data))
    assert read.sha256 == hashlib.sha256(data).hexdigest()
    assert parse_rows(b"") == parse_rows(b"")
    assert parse_rows(b"").lines == 0


@pytest.mark.parametrize(
    ("data", "found", "rows"),
    [
        (b'\xef\xbb\xbf{"a":1}\n', [(1, 0, "bom")], 1),
        (b'{"a":1}\n\xef\xbb\xbf{"a":2}\n', [(2, 8, "bad_json")], 1),
        (b'{"a":1}\r\n{"a":2}\r\n', [(1, 0, "carriage_return"), (2, 9, "carriage_return")], 2),
        (b'{"a":1}\r{"a":2}\n', [(1, 0, "carriage_return")], 2),
        (b'{"a":1}\n\n{"a":2}\n', [(2, 8, "blank")], 2),
        (b'{"a":1}\n \t\n', [(2, 8, "blank")], 1),
        ('{"a":1}\n\u00a0\n'.encode(), [(2, 8, "blank")], 1),
        (b'{"a":1}\n{"a":2}', [(2, 8, "unterminated")], 2),
        (b'{"a":1}\n{"a":', [(2, 8, "unterminated"), (2, 8, "cut_short")], 1),
        (b'{"a":1}\n{"a":"tex', [(2, 8, "unterminated"), (2, 8, "cut_short")], 1),
        (b'{"a":1}\n{"a"\n', [(2, 8, "bad_json")], 1),
        (b'{"a":"\xff"}\n{"a":2}\n', [(1, 0, "not_utf8")], 1),
        (b'[1]\n"a"\n{}\n', [(1, 0, "not_an_object"), (2, 4, "not_an_object")], 1),
        (b"1\ntrue\nnull\n", [(1, 0, "not_an_object"), (2, 2, "not_an_object"), (3, 7, "not_an_object")], 0),
        (b'{"a":1,"b":2,"a":3}\n', [(1, 0, "duplicate_key")], 1),
        (b'{"c":{"b":2,"b":3}}\n', [(1, 0, "duplicate_key")], 1),
        (b'{"a":NaN}\n{"a":-Infinity}\n', [(1, 0, "constant"), (2, 10, "constant")], 2),
        (b'{"a":' + b"1" * 5000 + b"}\n", [(1, 0, "bad_json")], 0),
        (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}\n", [(1, 0, "bad_json")], 0),
        (b'{"a":' + b"[" * 100_000 + b"\n", [(1, 0, "bad_json")], 0),
        (b'{"a":"\\ud800"}\n{"a":"\\ud83d\\ude00"}\n', [(1, 0, "lone_surrogate")], 2),
        (b'{"a":1} {"a":2}\n', [(1, 0, "bad_json")], 0),
    ],
)
def test_each_defect_has_its_line_and_byte(data: bytes, found: list[tuple[int, int, str]], rows: int) -> None:
    assert defects(data) == found
    assert len(values(data)) == rows


def test_of_equal_keys_the_last_counts_as_for_the_loader() -> None:
    assert values(b'{"a":1,"a":2}\n') == [{"a": 2}]


def test_the_byte_that_is_not_utf8_is_named() -> None:
    [found] = parse_rows(b'{"a":1}\n{"abc":"\xff"}\n').defects
    assert str(found) == "line 2 (byte 8) is not UTF-8 at byte 16 of the file"
    assert str(parse_rows(b"\xef\xbb\xbfa\xff\n").defects[1]).endswith("at byte 4 of the file")


def test_messages_show_keys_and_never_texts() -> None:
    data = b'{"key":"SECRET","key":"SECRET"}\n{"a":"SECRET\n"SECRET"\n{"a":"SECRET \\ud800"}\n{"SECRET'
    found = parse_rows(data).defects
    assert len(found) == 6
    assert "SECRET" not in " ".join(map(str, found))
    assert str(found[0]) == "line 1 (byte 0) gives key 'key' twice"


@given(st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5) | st.booleans(), max_size=3)))
def test_what_json_writes_is_read_back_without_a_defect(rows: list[dict[str, object]]) -> None:
    data = b"".join(json.dumps(row).encode("ascii") + b"\n" for row in rows)
    read = parse_rows(data)
    assert [r.value for r in read.rows] == rows
    assert not [d for d in read.defects if d.kind != "lone_surrogate"]


@given(st.binary(max_size=80))
def test_any_bytes_are_read_and_every_line_is_a_row_or_has_a_defect(data: bytes) -> None:
    read = parse_rows(data)
    accounted = {r.line for r in read.rows} | {d.line for d in read.defects}
    assert accounted == set(range(1, read.lines + 1))
    assert read.lines == len(list(io.TextIOWrapper(io.BytesIO(data), encoding="latin-1")))


def test_a_defect_is_a_value() -> None:
    assert Defect(1, 0, "blank", "is blank") == parse_rows(b"\n").defects[0]
