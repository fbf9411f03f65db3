"""The content of a file decides how it is read, whatever its name; unreadable content is named."""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from dataprep_assets.errors import CorruptSourceError, SourceError
from dataprep_assets.planning.manifest import file_format
from dataprep_assets.sources.readers import blocks
from dataprep_assets.sources.readers.blocks import BlockReader
from dataprep_assets.sources.readers.contents import detect_foreign, detect_shape, is_array
from dataprep_assets.sources.readers.line_range import explain_missing_lines, find_line_range
from dataprep_assets.sources.readers.read_options import ReadOptions
from dataprep_assets.sources.readers.records import RecordFields, read_records
from dataprep_assets.sources.readers.rows import count_rows, read_rows, split_rows
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.sources.foreign_files import PAGE, POINTER, TEXTS, columnar

LINES = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in TEXTS).encode()
ARRAY = json.dumps([{"text": text} for text in TEXTS], ensure_ascii=False).encode()
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
    "xz": lzma.compress,
    "bzip2": bz2.compress,
}
ENDINGS = ("", ".gz", ".zst", ".zstd", ".xz", ".bz2")


def texts_of(path: Path, **more: Any) -> list[str]:
    kind, compression = file_format(path.name)
    reader = read_records(
        path, fields=RecordFields("text"), format=kind, compression=compression, label=path.name, **more
    )
    found = [text for block in reader for text in block.texts]
    assert reader.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def rows_of(path: Path, **more: Any) -> list[Any]:
    kind, compression = file_format(path.name)
    reader = read_rows(path, format=kind, compression=compression, label=path.name, **more)
    return [row["text"] for block in reader for row in block.rows]


def wrote(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("compression", COMPRESS)
def test_the_compression_is_found_from_the_content(tmp_path: Path, compression: str, ending: str) -> None:
    for data in (LINES, ARRAY):
        path = wrote(tmp_path / f"a.jsonl{ending}", COMPRESS[compression](data))
        assert texts_of(path) == rows_of(path) == TEXTS


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-le-mark", "utf-16-be-mark"])
@pytest.mark.parametrize("compression", ["plain", "gzip"])
def test_utf16_and_utf32_with_a_mark_are_read(tmp_path: Path, compression: str, encoding: str) -> None:
    codec = encoding.removesuffix("-mark")
    for name, data in (("a.jsonl", LINES), ("a.json", ARRAY), ("a.csv", b"id,text\r\n1,caf\xc3\xa9\r\n")):
        content = (data.decode() if codec == encoding else f"\ufeff{data.decode()}").encode(codec)
        path = wrote(tmp_path / name, COMPRESS[compression](content))
        assert texts_of(path) == rows_of(path) == (["café"] if name == "a.csv" else TEXTS)


def test_utf16_is_decoded_across_blocks_and_a_truncated_file_is_refused(tmp_path: Path) -> None:
    texts = [f"{n} 狐 😀 " + "x" * 900 for n in range(4000)]
    data = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode("utf-16")
    path = wrote(tmp_path / "a.jsonl", data)
    assert texts_of(path) == texts
    with raises(CorruptSourceError, "a.jsonl"):
        texts_of(wrote(path, data[:-1]))


@pytest.mark.parametrize("name", ["xz", "bzip2"])
def test_all_members_are_read_and_a_truncation_at_any_byte_is_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_BLOCK", 64)
    pieces = [LINES, b"", LINES * 30, b""]
    members = [COMPRESS[name](piece) for piece in pieces]
    padding = b"\0" * 8 if name == "xz" else b""
    path = wrote(tmp_path / f"a.{name}", padding.join(members))
    assert b"".join(BlockReader(path, name)) == b"".join(pieces)
    whole = COMPRESS[name](LINES)
    for cut in range(1, len(whole)):
        wrote(path, whole[:cut])
        with raises(CorruptSourceError, cut, name):
            list(BlockReader(path, name))
    for at in range(20, len(whole), 7):
        wrote(path, whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        with raises(CorruptSourceError, "xz" if name == "xz" else "bzip2"):
            list(BlockReader(path, name))
    wrote(path, whole + b"garbage behind the end")
    with raises(CorruptSourceError, "damaged"):
        list(BlockReader(path, name))


def test_an_xz_window_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 64 << 20}]
    path = wrote(tmp_path / "a.xz", lzma.compress(LINES, filters=filters))
    assert b"".join(BlockReader(path, "xz")) == LINES
    monkeypatch.setenv(blocks.WINDOW, str(1 << 20))
    with raises(CorruptSourceError, blocks.WINDOW):
        list(BlockReader(path, "xz"))


def archive(kind: str) -> bytes:
    out = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(out, "w") as zipped:
            zipped.writestr("a.jsonl", LINES)
    else:
        with tarfile.open(fileobj=out, mode="w") as tarred:
            tarred.addfile(tarfile.TarInfo("a.jsonl"), io.BytesIO())
    return out.getvalue()


FOREIGN = {
    "a pointer": (POINTER, ("Git LFS", "git lfs pull")),
    "a pointer with CRLF": (POINTER.replace(b"\n", b"\r\n"), ("git lfs pull",)),
    "an annex pointer": (b"/annex/objects/SHA256E-s1--abc.jsonl\n", ("git annex get",)),
    "a page": (PAGE, ("HTML",)),
    "a page behind comments": (b"\n<!-- a -->\n<?xml version='1.0'?>\n<HTML lang='en'>", ("HTML",)),
    "an error of a store": (b'<?xml version="1.0"?>\n<Error><Code>AccessDenied</Code></Error>', ("object store",)),
    "Parquet": (columnar("parquet"), ("Parquet",)),
    "an Arrow file": (columnar("arrow file"), ("Arrow",)),
    "an Arrow stream": (columnar("arrow stream"), ("Arrow",)),
    "encrypted": (b"PARE\x15\x04\x9c\xf0" + bytes(range(255, 200, -1)) + b"PARE", ("encrypted",)),
    "ARC": (b"filedesc://x.arc 0.0.0.0 20010926085547 text/plain 76\n1 0 A\n", ("ARC", "warcio")),
    "zip": (archive("zip"), ("zip",)),
    "tar": (archive("tar"), ("tar",)),
    "PDF": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n", ("PDF",)),
    "UTF-16LE without a mark": (LINES.decode().split("\n")[0].encode("utf-16-le"), ("UTF-16LE", "iconv")),
    "UTF-16BE without a mark": (b"".join(b"\0%c" % c for c in b'{"text": "a text"}'), ("UTF-16BE", "iconv")),
}


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.txt", "a.csv", "a.tsv"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_of_another_kind_never_becomes_a_row(tmp_path: Path, kind: str, name: str, ending: str) -> None:
    data, values = FOREIGN[kind]
    with raises(CorruptSourceError, f"{name}{ending}", *values):
        rows_of(wrote(tmp_path / f"{name}{ending}", data))


@pytest.mark.parametrize("kind", [kind for kind in FOREIGN if "Arrow" not in kind and kind != "Parquet"])
@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_file_that_is_not_a_table_is_named(tmp_path: Path, kind: str, name: str) -> None:
    data, values = FOREIGN[kind]
    path = wrote(tmp_path / name, data)
    for read in (rows_of, lambda path: count_rows(path, format=name[2:], compression=None, label=name)):
        with raises((CorruptSourceError, SourceError), name, *values):
            read(path)


def test_a_file_that_was_compressed_twice_is_named(tmp_path: Path) -> None:
    for inner in ("gzip", "zstd", "xz", "bzip2"):
        with raises(CorruptSourceError, "a.jsonl.gz", inner):
            rows_of(wrote(tmp_path / "a.jsonl.gz", gzip.compress(COMPRESS[inner](LINES))))


def test_text_whose_lines_end_with_carriage_returns_is_not_one_document(tmp_path: Path) -> None:
    path = wrote(tmp_path / "a.txt", b"one\rtwo\rthree\r")
    with raises(CorruptSourceError, "a.txt", "tr"):
        texts_of(path, reading=ReadOptions(text_separator="\n"))
    assert texts_of(path, reading=ReadOptions(text_separator="\r")) == ["one", "two", "three"]
    assert texts_of(path) == ["one\rtwo\rthree\r"]
    dos = wrote(path, b"one\r\ntwo \r three\r\n")
    assert texts_of(dos, reading=ReadOptions(text_separator="\n")) == ["one\r", "two \r three\r"]


def test_a_column_of_another_type_is_reported_with_its_type(tmp_path: Path) -> None:
    for column, values in (([["a"]], ("list<",)), ([{"name": "a"}], ("struct<…>",)), ([1], ("int64",))):
        pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
        with raises(SourceError, *values):
            texts_of(tmp_path / "a.parquet")


def test_the_tables_name_each_other(tmp_path: Path) -> None:
    with raises(CorruptSourceError, "a.parquet", ".arrow"):
        rows_of(wrote(tmp_path / "a.parquet", columnar("arrow stream")))
    with raises(CorruptSourceError, "a.arrow", ".parquet"):
        rows_of(wrote(tmp_path / "a.arrow", columnar("parquet")))
    with raises(CorruptSourceError, "b.parquet", "jsonl"):
        rows_of(wrote(tmp_path / "b.parquet", LINES))


@pytest.mark.parametrize(
    "text",
    [
        b"version 2 of the text, and no pointer",
        b"PARENTS and children",
        b"<p>A piece of a page is a text.</p>",
        b"htmlish <html> in the middle",
        b"BZh9 is how bzip2 begins",
        "a text of 狐 and é".encode(),
        b"P*M",
        b"[not JSON",
        b"",
        b"short",
    ],
)
def test_a_text_is_not_mistaken_for_another_format(tmp_path: Path, text: bytes) -> None:
    assert detect_foreign(text) is None
    assert rows_of(wrote(tmp_path / "a.txt", text)) == ([text.decode()] if text else [])


SHAPES = {
    "under a key": (json.dumps({"version": "1", "data": [{"text": "a"}]}).encode(), r"jq -c '\.KEY"),
    "under a key, cut": (b'{"version": "1", "data": [{"text": "a"}, {"te', "jq -c"),
    "columns": (json.dumps({"text": {"0": "a", "1": "b"}}).encode(), "pandas"),
    "pretty": (b"".join(json.dumps({"text": t}, indent=2).encode() + b"\n" for t in "ab"), "jq -c"),
    "side by side": (b'{"text": "a"}{"text": "b"}', "jq -c"),
    "carriage returns": (b'{"text": "a"}\r{"text": "b"}\r', "tr "),
    "cp1252": (b'{"text": "caf\xe9"}\n', "CP1252"),
    "no encoding": (b'{"text": "\x81\x8d\xff"}\n', "iconv"),
    "NUL": (b'{"a": 1}' + b"\0" * 100, "NUL"),
    "a page": (PAGE, "HTML"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_named_with_its_command(name: str) -> None:
    data, told = SHAPES[name]
    kind = detect_shape(data)
    assert kind is not None
    assert told.replace("\\", "") in str(kind)


def test_valid_lines_have_no_suspicious_shape() -> None:
    assert detect_shape(LINES) is None
    assert detect_shape(b"") is None


def test_an_array_may_span_lines_and_lines_of_arrays_are_lines() -> None:
    pretty = json.dumps([{"text": "a"}, {"text": "b"}], indent=1).encode()
    for data in (ARRAY, pretty, b'\xef\xbb\xbf\n [{"text": "a"}]\r\n', b'[{"text": "a"},\n{"text": "b"}]', b"[", b"[]"):
        assert is_array(data)
    for data in (b'[1]\n{"text": "a"}\n', b'[]\n[{"a": 1}]\n', LINES, b"", b'"["'):
        assert not is_array(data)


def test_ranges_of_an_array_are_ranges_of_its_elements(tmp_path: Path) -> None:
    path = wrote(tmp_path / "a.json", ARRAY)
    count = count_rows(path, format="jsonl", compression=None, label=path.name)
    assert count == len(TEXTS)
    assert [text for part in split_rows(count, 3) for text in texts_of(path, rows=part)] == TEXTS


def test_byte_order_marks_of_joined_files_are_not_part_of_rows(tmp_path: Path) -> None:
    marked = b"\xef\xbb\xbf" + LINES
    path = wrote(tmp_path / "a.jsonl", marked * 3)
    assert texts_of(path) == rows_of(path) == TEXTS * 3
    assert texts_of(wrote(tmp_path / "a.jsonl.gz", gzip.compress(marked) * 2)) == TEXTS * 2
    for row in (1, 2, len(TEXTS) + 1, 3 * len(TEXTS)):
        found = find_line_range(path, row)
        assert found is not None
        assert json.loads(path.read_bytes()[slice(*found)])["text"] == TEXTS[(row - 1) % len(TEXTS)]


def test_only_plain_lines_have_byte_ranges(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for data, kind in ((LINES, None), (gzip.compress(LINES), "gzip"), (ARRAY, "array")):
        found = explain_missing_lines(wrote(path, data), None)
        assert found is None if kind is None else kind in str(found)
    assert explain_missing_lines(wrote(path, LINES), "gzip") is None
    assert explain_missing_lines(wrote(path, LINES.decode().encode("utf-16")), None) is not None
