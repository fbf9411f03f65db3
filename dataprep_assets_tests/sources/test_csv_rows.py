"""CSV and TSV are read like other readers do; a record about which readers disagree is bad, with its row and byte."""

import csv
import io
import random
import tracemalloc
from pathlib import Path

import pyarrow.csv
import pytest
import zstandard

from dataprep_assets.errors import CorruptSourceError
from dataprep_assets.sources.readers import blocks
from dataprep_assets.sources.readers.csv_rows import CsvRows
from dataprep_assets.sources.readers.input_format import RowBlock
from dataprep_assets.sources.readers.read_options import ReadOptions, RowRange
from dataprep_assets.sources.readers.rows import count_rows, read_rows, split_rows
from dataprep_assets.stores.files import sha256_file
from dataprep_assets_tests.messages import raises

pd = pytest.importorskip("pandas")
NASTY = [
    "",
    " ",
    "a,b",
    "tab\there",
    'say "hi"',
    '"',
    '""',
    "two\nlines",
    "dos\r\nline",
    "\n",
    "é ß 漢",
    "\x00",
    "\ufeff",
]


def _read(path: Path, format: str = "csv", **given: object) -> list[RowBlock]:
    compression = "zstd" if path.suffix == ".zst" else None
    return list(read_rows(path, format=format, compression=compression, label=path.name, **given))  # type: ignore[arg-type]


def _rows(found: list[RowBlock]) -> list[dict[str, object]]:
    return [row for block in found for row in block.rows]


def _bad(found: list[RowBlock]) -> list[tuple[int, int, str]]:
    return [(bad.row, bad.byte, str(bad)) for block in found for bad in block.bad]


def _table(seed: int, rows: int = 400) -> list[list[str]]:
    drawn = random.Random(seed)
    words = [*NASTY, "plain", "x" * 300]
    # Begin each row with a value, because an empty value on its own line would be a blank line.
    return [
        [f"r{row}", *("".join(drawn.choices(words, k=drawn.randrange(4))) for _ in range(2))] for row in range(rows)
    ]


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize(
    ("format", "delimiter", "end"), [("csv", ",", "\n"), ("tsv", "\t", "\r\n"), ("csv", ";", "\n")]
)
@pytest.mark.parametrize("block", [64, 1 << 20])
def test_every_value_equals_that_of_csv_pandas_and_pyarrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, delimiter: str, end: str, block: int, quoting: int
) -> None:
    monkeypatch.setattr(blocks, "_READ", block)
    monkeypatch.setattr(blocks, "_BLOCK", block)
    names, table = ["key", "text", "more text"], _table(block)
    path = tmp_path / "t"
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, delimiter=delimiter, lineterminator=end, quoting=quoting).writerows([names, *table])  # type: ignore[arg-type]
    told = ReadOptions(csv_delimiter=delimiter if delimiter == ";" else None, csv_quotes=True)
    mine = _rows(_read(path, format, reading=told))
    assert mine == [dict(zip(names, row, strict=True)) for row in table]
    frame = pd.read_csv(
        path, sep=delimiter, dtype=str, keep_default_na=False, encoding="utf-8-sig", lineterminator=None
    )
    # Compare only up to a NUL, because pandas ends a value there.
    assert [[cell.partition("\x00")[0] for cell in row.values()] for row in mine] == [  # type: ignore[attr-defined]
        [cell.partition("\x00")[0] for cell in row] for row in frame.to_numpy().tolist()
    ]
    arrow = pyarrow.csv.read_csv(
        path,
        parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, "string"), strings_can_be_null=False
        ),
    )
    assert mine == arrow.to_pylist()


def test_a_ragged_or_misquoted_record_is_bad_but_its_neighbors_are_not(tmp_path: Path) -> None:
    lines = [b"id,text", b"1,a", b"2", b"3,c,d", b'4,"e" f', b"5,g", b"6,h\rx", b"7,\xff", b"", b'8,"i\nj"', b"9,"]
    path = tmp_path / "t.csv"
    path.write_bytes(b"\n".join(lines))
    found, data = _read(path), path.read_bytes()
    assert _rows(found) == [
        {"id": "1", "text": "a"},
        {"id": "5", "text": "g"},
        {"id": "8", "text": "i\nj"},
        {"id": "9", "text": ""},
    ]
    assert [number for block in found for number in block.numbers] == [1, 5, 8, 9]
    assert [(row, told) for row, _, told in _bad(found)] == [
        (2, "bad_csv (1 field, but the header has 2)"),
        (3, "bad_csv (3 fields, but the header has 2)"),
        (4, "bad_csv (',' expected after '\"')"),
        (6, "bad_csv (a carriage return outside quotes)"),
        (7, "invalid_utf8"),
    ]
    assert [data[byte:].split(b"\n")[0] for _, byte, _ in _bad(found)] == [lines[i] for i in (2, 3, 4, 6, 7)]
    offsets = [offset for block in found for offset in block.offsets]
    assert [data[byte : byte + 1] for byte in offsets] == [b"1", b"5", b"8", b"9"]
    assert sum(block.blank_lines for block in found) == 1
    assert count_rows(path, format="csv", compression=None, label="t") == 9


@pytest.mark.parametrize(
    ("content", "texts", "bad"),
    [
        ("id,text\n1,a\nid,text\n2,b\n", ["a", "b"], [2]),
        ("text,id\na,1\n\ufefftext,id\nb,2\n", ["a", "b"], [2]),
        ("\ufefftext\na\n\ufefftext\nb\n", ["a", "b"], [2]),
        # Keep these repeated headers as rows, because they cannot be distinguished from texts.
        ("text\na\ntext\n\ufeffb\n", ["a", "text", "\ufeffb"], []),
        ("id,text\n1,text\ntext,id\n", ["text", "id"], []),
    ],
)
def test_a_repeated_header_of_joined_files_is_not_a_row(
    tmp_path: Path, content: str, texts: list[str], bad: list[int]
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content, encoding="utf-8")
    found = _read(path)
    assert [row["text"] for row in _rows(found)] == texts
    assert [row for row, _, told in _bad(found) if told.startswith("bad_csv")] == bad


@pytest.mark.parametrize("parts", [1, 2, 9, 30])
def test_ranges_cover_every_record_once_and_digest_the_whole_file(tmp_path: Path, parts: int) -> None:
    path = tmp_path / "t.csv.zst"
    text = io.StringIO()
    csv.writer(text).writerows([["key", "text", "x"], *_table(5, 20)])
    path.write_bytes(zstandard.compress(text.getvalue().encode()))
    whole = _rows(_read(path))
    found = [_read(path, rows=rows) for rows in split_rows(20, parts)]
    assert [row for part in found for row in _rows(part)] == whole
    reader = read_rows(path, format="csv", compression="zstd", label="t", rows=RowRange(3, 4))
    assert _rows(list(reader)) == whole[2:3]
    assert reader.sha256 == sha256_file(path)


@pytest.mark.parametrize(
    ("content", "values"),
    [
        (b'a,b\n1,2\n3,"open\n4,5\n', (2, 8)),
        (b"secret,secret\n1,2\n", ("twice",)),
        (b"secret,\xff\n1,2\n", ("UTF-8",)),
        (b"secret,b\r1,2\r", ("return",)),
    ],
)
def test_a_file_with_ambiguous_records_is_refused(tmp_path: Path, content: bytes, values: tuple[object, ...]) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with raises(CorruptSourceError, *values) as refused:
        _read(path)
    assert "secret" not in str(refused.value)


def test_a_record_above_the_limit_is_bad_and_an_unclosed_quote_is_not_buffered(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'text,n\n"' + b"long\n" * 500 + b'",1\nshort,2\n' + b"x" * 3000 + b",3\n")
    found = _read(path, max_record_bytes=2000)
    assert _rows(found) == [{"text": "short", "n": "2"}]
    assert [(row, told) for row, _, told in _bad(found)] == [(1, "too_large"), (3, "too_large")]
    with path.open("wb") as file:
        file.write(b'text,n\n1,2\n"')
        for _ in range(200):
            file.write(b"x" * (1 << 20) + b"\n")
    tracemalloc.start()
    with raises(CorruptSourceError, 2, 11, 67_108_864):
        _read(path)
    assert tracemalloc.get_traced_memory()[1] < 6 * (64 << 20), "the file has 200 MiB"
    tracemalloc.stop()


def test_a_value_may_be_larger_than_the_limit_of_pythons_csv(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"text\n" + b"x" * 1_000_000 + b"\n")
    assert _rows(_read(path)) == [{"text": "x" * 1_000_000}]


def test_a_file_without_records_has_none(tmp_path: Path) -> None:
    for content in (b"", b"\n\n", b"a,b\n", b"a,b"):
        (tmp_path / "t.csv").write_bytes(content)
        assert _rows(_read(tmp_path / "t.csv")) == []
        assert count_rows(tmp_path / "t.csv", format="csv", compression=None, label="t") == 0


QUOTED = ['"It was late', "she looked up", "and said nothing", 'nobody came"', "next", '5" disk', '"Hello" he said']


def _unquoted(path: Path, delimiter: str = "\t", names: str = "id\ttext") -> Path:
    lines = [f"{row}{delimiter}{text}" if "id" in names else text for row, text in enumerate(QUOTED)]
    path.write_text("\n".join([names, *lines]) + "\n")
    return path


@pytest.mark.parametrize("names", ["id\ttext", "text"])
def test_a_tsv_whose_quotes_join_rowlike_lines_is_refused_until_quoting_is_declared(tmp_path: Path, names: str) -> None:
    path = _unquoted(tmp_path / "a.tsv", names=names)
    with raises(CorruptSourceError, "a.tsv", 1, len(names) + 1, 4, "csv_quotes"):
        _read(path, "tsv")
    told = ReadOptions(csv_quotes=False)
    assert [row["text"] for row in _rows(_read(path, "tsv", reading=told))] == QUOTED
    assert told.settings("tsv") == {"csv_quotes": "false"}
    assert told.settings("jsonl") == ReadOptions(csv_quotes=True).settings("tsv") == {}
    assert "\n" in str(_rows(_read(path, "tsv", reading=ReadOptions(csv_quotes=True)))[0]["text"])


def test_a_quoting_tsv_is_read_if_its_lines_are_not_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('id\ttext\n1\t"a\nb"\n2\t"c\n\nd"\n')
    assert [row["text"] for row in _rows(_read(path, "tsv"))] == ["a\nb", "c\n\nd"]


def test_a_stray_quote_in_a_tsv_names_the_key(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('id\ttext\n1\t"Hello" he said\n2\tplain\n')
    ((row, _, why),) = _bad(_read(path, "tsv"))
    assert row == 1
    assert "csv_quotes" in why
    path.write_text('id\ttext\n1\t"never closed\n')
    with raises(CorruptSourceError, 1, 8, "csv_quotes"):
        _read(path, "tsv")


def test_a_csv_whose_quotes_join_rowlike_lines_is_read_with_a_remark(tmp_path: Path) -> None:
    path = _unquoted(tmp_path / "a.csv", ",", "id,text")
    reader = read_rows(path, format="csv", compression=None, label="a")
    assert isinstance(reader, CsvRows)
    assert len(_rows(list(reader))[0]["text"].splitlines()) == 4  # type: ignore[attr-defined]
    assert reader.merged == (1, 8)
    plain = read_rows(path, format="csv", compression=None, label="a", reading=ReadOptions(csv_quotes=False))
    assert [row["text"] for row in _rows(list(plain))] == QUOTED


def test_another_delimiter_is_suggested_if_the_header_has_one_name(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id;text\n1;a,b\n")
    ((_, _, why),) = _bad(_read(path))
    assert "csv_delimiter" in why
