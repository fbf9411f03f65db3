"""Task files are read strictly: every defect is reported with its line, and none hides another."""

import hashlib
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep_assets.pipelines.tasks.task_rows import parse_rows, read_rows


def defects(data: bytes) -> list[tuple[int, str]]:
    return [(d.line, d.detail) for d in parse_rows(data).defects]


def values(data: bytes) -> list[object]:
    return [row.value for row in parse_rows(data).rows]


def test_valid_rows_have_line_numbers_and_the_digest_of_the_file(tmp_path: Path) -> None:
    data = '{"a":1}\n{"a":"é"}\n'.encode()
    (tmp_path / "rows").write_bytes(data)
    read = read_rows(tmp_path / "rows")
    assert [(r.line, r.value) for r in read.rows] == [(1, {"a": 1}), (2, {"a": "é"})]
    assert (read.defects, read.bytes, read.sha256) == ((), len(data), hashlib.sha256(data).hexdigest())
    assert parse_rows(b"").rows == ()


NO_END, NO_LF = "the last line has no line end", "the line end is not LF"


@pytest.mark.parametrize(
    ("data", "found", "rows"),
    [
        (b'\xef\xbb\xbf{"a":1}\n', [(1, "the file starts with a byte order mark")], 0),
        (b'{"a":1}\n\xef\xbb\xbf{"a":2}\n', [(2, "invalid JSON at column")], 1),
        (b'{"a":1}\r\n{"a":2}\r\n', [(1, NO_LF), (2, NO_LF)], 2),
        (b'{"a":1}\r{"a":2}\n', [(1, NO_LF)], 2),
        (b'{"a":1}\n\n{"a":2}\n', [(2, "the line is blank")], 2),
        ('{"a":1}\n\u00a0\n'.encode(), [(2, "the line is blank")], 1),
        (b'{"a":1}\n{"a":2}', [(2, NO_END)], 2),
        (b'{"a":1}\n{"a":"tex', [(2, NO_END), (2, "invalid JSON at column")], 1),
        (b'{"a":1}\n{"a":"\xff"}\n', [(2, "not valid UTF-8 at byte 14 of the file")], 1),
        (b'[1]\n"a"\n{}\nnull\n', [(1, "not a JSON object"), (2, "not a JSON object"), (4, "not a JSON object")], 1),
        (b'{"a":1,"b":2,"a":3}\n', [(1, "a key occurs twice")], 0),
        (b'{"c":{"b":2,"b":3}}\n', [(1, "a key occurs twice")], 0),
        (b'{"a":NaN}\n{"a":-Infinity}\n', [(1, "NaN is not a JSON number"), (2, "-Infinity is not a JSON number")], 0),
        (b'{"a":' + b"1" * 5000 + b"}\n", [(1, "nested too deeply, or a number is too long")], 0),
        (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}\n", [(1, "nested too deeply")], 0),
        (b'{"a":' + b"[" * 100_000 + b"\n", [(1, "nested too deeply")], 0),
        (b'{"a":"\\ud800"}\n{"a":"\\ud83d\\ude00"}\n', [(1, "half of a surrogate pair")], 1),
        (b'{"a":1} {"a":2}\n', [(1, "invalid JSON at column")], 0),
    ],
)
def test_each_defect_is_reported_with_its_line(data: bytes, found: list[tuple[int, str]], rows: int) -> None:
    shown = defects(data)
    assert [line for line, _ in shown] == [line for line, _ in found]
    assert all(detail.startswith(start) for (_, detail), (_, start) in zip(shown, found, strict=True))
    assert len(values(data)) == rows
    assert [d.is_harmless for d in parse_rows(data).defects] == [start in (NO_END, NO_LF) for _, start in found]


def test_messages_never_show_texts() -> None:
    data = b'{"key":"SECRET","key":"SECRET"}\n{"a":"SECRET\n"SECRET"\n{"a":"SECRET \\ud800"}\n{"SECRET'
    found = parse_rows(data).defects
    assert len(found) == 6
    assert "SECRET" not in " ".join(map(str, found))


@given(st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5) | st.booleans(), max_size=3)))
def test_rows_written_as_json_are_read_back_without_a_defect(rows: list[dict[str, object]]) -> None:
    data = b"".join(json.dumps(row).encode("ascii") + b"\n" for row in rows)
    read = parse_rows(data)
    assert [r.value for r in read.rows] == [row for row in rows if not has_lone_surrogate(row)]


def has_lone_surrogate(row: dict[str, object]) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


@given(st.binary(max_size=80))
def test_for_any_bytes_every_line_is_a_row_or_has_a_defect(data: bytes) -> None:
    read = parse_rows(data)
    accounted = {r.line for r in read.rows} | {d.line for d in read.defects}
    lines = len(list(io.TextIOWrapper(io.BytesIO(data), encoding="latin-1")))
    assert accounted == set(range(1, lines + 1))
