"""Whole rows: equal objects in every file format, understandable positions, and ranges that cover each row once."""

import gzip
import json
import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from dataprep_assets.bounds import report_to
from dataprep_assets.errors import CorruptSourceError
from dataprep_assets.sources.readers.read_options import RowRange
from dataprep_assets.sources.readers.records import RecordFields, read_records
from dataprep_assets.sources.readers.rows import RowBlock, count_rows, read_rows, split_rows
from dataprep_assets.stores.files import sha256_file
from dataprep_assets_tests.messages import raises

ROWS = [{"id": i, "messages": [{"role": "user", "content": f"é {i}"}]} for i in range(3000)]


def _lines(rows: list[Any]) -> bytes:
    return b"".join(json.dumps(r, ensure_ascii=False).encode() + b"\n" for r in rows)


def _parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=700)


def _arrow(opened: Callable[..., Any]) -> bytes:
    table, sink = pa.Table.from_pylist(ROWS), pa.BufferOutputStream()
    with opened(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=700)
    return sink.getvalue().to_pybytes()


FORMS: dict[str, tuple[str, str | None, Callable[[Path], Any]]] = {
    "rows.jsonl": ("jsonl", None, lambda p: p.write_bytes(_lines(ROWS))),
    "rows.jsonl.zst": ("jsonl", "zstd", lambda p: p.write_bytes(zstandard.compress(_lines(ROWS)))),
    "rows.jsonl.gz": ("jsonl", "gzip", lambda p: p.write_bytes(gzip.compress(_lines(ROWS)))),
    "rows.json": ("json", None, lambda p: p.write_bytes(b"\xef\xbb\xbf \n" + json.dumps(ROWS, indent=1).encode())),
    "rows.json.gz": ("json", "gzip", lambda p: p.write_bytes(gzip.compress(json.dumps(ROWS).encode()))),
    "rows.parquet": ("parquet", None, _parquet),
    "rows.arrow": ("arrow", None, lambda p: p.write_bytes(_arrow(pa.ipc.new_stream))),
    "rows.arrow.zst": ("arrow", "zstd", lambda p: p.write_bytes(zstandard.compress(_arrow(pa.ipc.new_stream)))),
    "feather.arrow": ("arrow", None, lambda p: p.write_bytes(_arrow(pa.ipc.new_file))),
}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str, str | None]:
    format, compression, write = FORMS[request.param]
    path = tmp_path / request.param
    write(path)
    return path, format, compression


def _read(path: Path, format: str, compression: str | None, rows: RowRange | None = None) -> list[RowBlock]:
    return list(read_rows(path, format=format, compression=compression, label=path.name, rows=rows))


def _numbered(blocks: list[RowBlock]) -> list[tuple[int, dict[str, Any]]]:
    return [pair for b in blocks for pair in zip(b.numbers, b.rows, strict=True)]


def test_every_format_gives_equal_rows_and_its_own_digest(form: tuple[Path, str, str | None]) -> None:
    path, format, compression = form
    reader = read_rows(path, format=format, compression=compression, label="x")
    assert _numbered(list(reader)) == list(enumerate(ROWS, 1))
    assert reader.sha256 == sha256_file(path)
    assert reader.bytes_read == path.stat().st_size
    assert count_rows(path, format=format, compression=compression, label="x") == len(ROWS)


@pytest.mark.parametrize("parts", [1, 3, 7, 2999, 3000, 3007])
def test_ranges_cover_every_row_once(form: tuple[Path, str, str | None], parts: int) -> None:
    path, format, compression = form
    ranges = split_rows(len(ROWS), parts)
    if parts > 7:
        # Read only the first and the last two ranges, because reading each of thousands would take too long.
        ranges = ranges[:2] + ranges[-2:]
        expected = [n for r in ranges for n in range(r.first, r.stop or len(ROWS) + 1)]
    else:
        expected = list(range(1, len(ROWS) + 1))
    found = [n for r in ranges for n, _ in _numbered(_read(path, format, compression, r))]
    assert found == expected


def test_a_range_digests_the_whole_file(form: tuple[Path, str, str | None]) -> None:
    path, format, compression = form
    reader = read_rows(path, format=format, compression=compression, label="x", rows=RowRange(5, 7))
    assert _numbered(list(reader)) == [(5, ROWS[4]), (6, ROWS[5])]
    assert reader.sha256 == sha256_file(path)


def test_only_requested_rows_are_returned_but_all_are_digested(form: tuple[Path, str, str | None]) -> None:
    path, format, compression = form
    wanted = {1, 699, 701, 1500, 3000, 4000}
    reader = read_rows(path, format=format, compression=compression, label="x", only=wanted)
    assert _numbered(list(reader)) == [(n, ROWS[n - 1]) for n in sorted(wanted) if n <= len(ROWS)]
    assert reader.sha256 == sha256_file(path)
    reader = read_rows(path, format=format, compression=compression, label="x", rows=RowRange(700, 1500), only=wanted)
    assert _numbered(list(reader)) == [(701, ROWS[700])]


@pytest.mark.parametrize("array", [False, True])
def test_problems_in_rows_outside_of_the_request_are_not_reported(tmp_path: Path, array: bool) -> None:
    path, lines = tmp_path / "x", [b'{"a": 1}', b"7", b'{"a": "' + b"x" * 200 + b'"}', b'{"a": 4}']
    path.write_bytes(b"[" + b",\n".join(lines) + b"]" if array else b"\n".join(lines))
    for wanted, bad in (({1, 4}, []), ({2, 3, 4}, [(2, "not_an_object"), (3, "too_large")])):
        read = read_rows(path, format="jsonl", compression=None, label="x", max_record_bytes=100, only=wanted)
        blocks = list(read)
        assert [(b.row, b.reason) for block in blocks for b in block.bad] == bad
        assert [number for number, _ in _numbered(blocks)] == sorted(wanted - {2, 3})


def test_bad_lines_are_named_by_row_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    lines = [b'{"a": 1}', b"", b"{nope", b'{"a": "\xff"}', b"[1]", b"  ", b'{"a": 2}']
    path.write_bytes(b"\r\n".join(lines))
    blocks = _read(path, "jsonl", None)
    assert _numbered(blocks) == [(1, {"a": 1}), (7, {"a": 2})]
    bad = [b for block in blocks for b in block.bad]
    assert [(b.row, b.reason) for b in bad] == [(3, "bad_json"), (4, "invalid_utf8"), (5, "not_an_object")]
    data = path.read_bytes()
    assert [data[b.byte :].split(b"\r\n")[0] for b in bad] == lines[2:5]
    assert [data[o : o + 8] for block in blocks for o in block.offsets] == [b'{"a": 1}', b'{"a": 2}']
    assert sum(block.blank_lines for block in blocks) == 2
    assert count_rows(path, format="jsonl", compression=None, label="x") == 7


def test_a_line_longer_than_a_block_is_one_row(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    rows = [{"a": "x" * 9_000_000}, {"a": "y"}]
    path.write_bytes(_lines(rows))
    assert _numbered(_read(path, "jsonl", None)) == list(enumerate(rows, 1))
    assert count_rows(path, format="jsonl", compression=None, label="x") == 2


@pytest.mark.parametrize(("blank", "many"), [(b"\n", 40_000_000), (b" \t\r\n", 10_000_000)])
def test_blank_lines_are_counted_without_splitting_and_are_not_progress(
    tmp_path: Path, blank: bytes, many: int
) -> None:
    """A few kilobytes of zstd contain a billion blank lines; splitting and stripping each would take minutes."""
    path = tmp_path / "blank.jsonl.zst"
    path.write_bytes(zstandard.compress(b'{"text":"a"}\n' + blank * many + b'{"text":"b"}'))
    for rows, kept, counted in (
        (None, [1, many + 2], many),
        (RowRange(3, 10), [], 7),
        (RowRange(many), [many + 2], 2),
    ):
        told: list[str] = []
        with report_to(told.append):
            blocks = _read(path, "jsonl", "zstd", rows)
        assert [number for number, _ in _numbered(blocks)] == kept
        assert sum(block.blank_lines for block in blocks) == counted
        assert len(told) <= 5, "of 10 blocks"
        records = list(
            read_records(
                path, fields=RecordFields("text"), format="jsonl", compression="zstd", label=path.name, rows=rows
            )
        )
        assert [found.row(at) for found in records for at in range(len(found.texts))] == kept
        assert sum(found.blank_lines for found in records) == counted


def test_elements_that_are_not_objects_are_bad(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'[{"a": 1}, 2, null]')
    (block,) = _read(path, "json", None)
    assert [(b.row, b.byte, b.reason) for b in block.bad] == [(2, -1, "not_an_object"), (3, -1, "not_an_object")]


def test_an_array_is_read_by_element_and_an_element_that_is_too_large_is_never_buffered(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    small = [{"id": at, "text": 'a "quoted" [text] \\\\'} for at in range(3)]
    with path.open("wb") as file:
        file.write(b"[" + b",".join(json.dumps(row).encode() for row in small) + b', {"text": "')
        for _ in range(64):
            file.write(b"x" * (1 << 20))
        file.write(b'"}, {"id": 9}]')
    tracemalloc.start()
    blocks = list(read_rows(path, format="json", compression=None, label="x", max_record_bytes=1 << 16))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [row for block in blocks for row in block.rows] == [*small, {"id": 9}]
    assert [(bad.row, bad.reason) for block in blocks for bad in block.bad] == [(4, "too_large")]
    assert peak < 16 << 20, "the file has 64 MiB"
    assert count_rows(path, format="json", compression=None, label="x") == 5


def test_an_invalid_array_is_refused_with_the_position(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for content, values in (
        (b'[{"a": 1}, {"b" 2}]', (2, 11, "JSON")),
        (b'[{"a": 1}', ("end",)),
    ):
        path.write_bytes(content)
        with raises(CorruptSourceError, "x", *values):
            _read(path, "json", None)


@pytest.mark.parametrize("array", [False, True])
def test_a_number_beyond_a_double_is_read_like_in_the_standard_library(tmp_path: Path, array: bool) -> None:
    lines = [b'{"a": 1e400, "b": 12345678901234567890}', b'{"a": -1e400}', b'{"a": NaN}']
    path = tmp_path / "x.json"
    path.write_bytes(b"[" + b",".join(lines[:2]) + b"]" if array else b"\n".join([*lines, b""]))
    (block,) = _read(path, "json", None)
    assert block.rows == [{"a": math.inf, "b": 12345678901234567890}, {"a": -math.inf}]
    assert [(bad.row, bad.reason) for bad in block.bad] == ([] if array else [(3, "bad_json")])


@pytest.mark.parametrize("array", [False, True])
def test_an_integer_of_any_size_is_kept_as_written(tmp_path: Path, array: bool) -> None:
    numbers = [1, 1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63), -(1 << 63) - 1, 10**21 + 1, 10**300 + 7]
    lines = [b'{"a": %d, "b": 1.5, "c": "00000000000000000000"}' % number for number in numbers]
    path = tmp_path / "x.json"
    path.write_bytes(b"[" + b",".join(lines) + b"]" if array else b"\n".join([*lines, b""]))
    (block,) = _read(path, "json", None)
    assert [(row["a"], type(row["a"]), row["b"]) for row in block.rows] == [(number, int, 1.5) for number in numbers]


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"")
    assert _read(path, "jsonl", None) == []
    assert count_rows(path, format="jsonl", compression=None, label="x") == 0


def test_columns_that_a_parquet_file_lacks_are_omitted(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    _parquet(path)
    reader = read_rows(path, format="parquet", compression=None, label="x", columns=["id", "tools"])
    assert _numbered(list(reader))[:2] == [(1, {"id": 0}), (2, {"id": 1})]


def _written(path: Path, table: pa.Table) -> Path:
    """Write a table as a file of the format in the name."""
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table)
    return path


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_a_text_that_is_not_utf_8_is_a_single_bad_row(tmp_path: Path, format: str) -> None:
    column = pa.array([b"good"] * 1500 + [b"caf\xe9"] + [b"good"] * 10)
    texts = pa.Array.from_buffers(pa.string(), len(column), column.buffers())
    path = _written(tmp_path / f"x.{format}", pa.table({"text": texts, "n": range(len(column))}))
    how: dict[str, Any] = {"format": format, "compression": None, "label": "x"}
    for blocks in (
        list(read_rows(path, **how)),
        list(read_rows(path, only=range(1495, 1512), **how)),
        list(read_records(path, fields=RecordFields("text"), **how)),
        list(read_records(path, fields=RecordFields("n", "text"), **how)) if format == "arrow" else [],
    ):
        bad = [(one.row, one.byte, one.reason) for block in blocks for one in block.bad if one.row == 1501]
        assert bad == [(1501, -1, "invalid_utf8")] * bool(blocks)
    assert sum(len(block.texts) for block in read_records(path, fields=RecordFields("text"), **how)) == 1510


@pytest.mark.parametrize("format", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (pa.array([0, 10_000_000], pa.date32()), "OverflowError"),
        (pa.array([0, 2**62], pa.timestamp("us")), "OverflowError"),
        (pa.array([None, 1], pa.timestamp("us", tz="Mars/Base")), "UnknownTimeZoneError"),
    ],
    ids=["date", "time", "zone"],
)
def test_a_value_without_a_python_type_is_named_by_its_row(
    tmp_path: Path, format: str, value: pa.Array, error: str
) -> None:
    path = _written(tmp_path / f"x.{format}", pa.table({"text": ["a", "b"], "when": value}))
    with raises(CorruptSourceError, "x", 2, error, 9999) as told:
        list(read_rows(path, format=format, compression=None, label="x"))
    assert "Mars" not in str(told.value)
    how: dict[str, Any] = {"format": format, "compression": None, "label": "x"}
    assert [text for block in read_records(path, fields=RecordFields("text"), **how) for text in block.texts] == [
        "a",
        "b",
    ]


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_a_duplicate_column_is_refused(tmp_path: Path, format: str) -> None:
    table = pa.Table.from_arrays([pa.array([name]) for name in "abc"], names=["text", "other", "text"])
    path = _written(tmp_path / f"x.{format}", table)
    how: dict[str, Any] = {"format": format, "compression": None, "label": "x"}
    for reader in (
        read_records(path, fields=RecordFields("text"), **how),
        read_rows(path, **how),
        read_rows(path, columns=["text"], **how),
    ):
        with raises(CorruptSourceError, "x", 1, 3):
            list(reader)
    assert [block.rows for block in read_rows(path, columns=["other"], **how)] == [[{"other": "b"}]]


@pytest.mark.parametrize("format", ["parquet", "arrow"])
@pytest.mark.parametrize(
    "kind", [pa.string(), pa.dictionary(pa.int16(), pa.string()), pa.string_view(), pa.list_(pa.string_view())], ids=str
)
def test_the_size_of_a_row_is_that_of_its_own_values(tmp_path: Path, format: str, kind: pa.DataType) -> None:
    """Not the size of all rows, whose values a dictionary or the buffers of a view contain."""
    texts = [f"{number:04} " + "x" * 20 for number in range(3000)]
    texts[1500] += "x"
    is_list = pa.types.is_list(kind)
    column = pa.array([[text] for text in texts], kind) if is_list else pa.array(texts).cast(kind)
    path = _written(tmp_path / f"x.{format}", pa.table({"text": column}))
    how: dict[str, Any] = {"format": format, "compression": None, "label": "x", "max_record_bytes": 25}
    rows = list(read_rows(path, **how))
    assert [(bad.row, bad.reason) for block in rows for bad in block.bad] == [(1501, "too_large")]
    assert sum(len(block.rows) for block in rows) == 2999
    if not is_list:
        how |= {"fields": RecordFields("text", max_record_bytes=how.pop("max_record_bytes"))}
        records = list(read_records(path, **how))
        assert [(bad.row, bad.reason) for block in records for bad in block.bad] == [(1501, "too_large")]
        assert sum(len(block.texts) for block in records) == 2999


@pytest.mark.parametrize(
    "name",
    ["rows.jsonl.zst", "rows.jsonl.gz", "rows.json", "rows.parquet", "rows.arrow", "rows.arrow.zst", "feather.arrow"],
)
def test_a_file_truncated_beyond_the_range_is_refused(name: str, tmp_path: Path) -> None:
    format, compression, write = FORMS[name]
    path = tmp_path / name
    write(path)
    path.write_bytes(path.read_bytes()[:-20])
    with raises(CorruptSourceError, name):
        _read(path, format, compression, RowRange(1, 3))
