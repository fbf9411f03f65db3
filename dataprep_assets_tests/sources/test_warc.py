"""Crawls: the texts of WET files equal those that warcio reads; truncated and edited files are refused."""

import gzip
import io
import random
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import CorruptSourceError
from dataprep_assets.planning.manifest import file_format
from dataprep_assets.sources.readers.read_options import MAX_RECORD_BYTES
from dataprep_assets.sources.readers.records import Block, RecordFields, read_records
from dataprep_assets.sources.readers.rows import count_rows, read_rows
from dataprep_assets_tests.messages import assert_names, raises

pytest.importorskip("fastwarc")
WORDS = ["plain", "é ß", "漢字", "WARC/1.0\r\n", "\r\n\r\n", "\n", "", "Content-Length: 3"]


def _wet(path: Path, pages: int, *, compressed: bool) -> list[str]:
    """Write a crawl file in the usual form: a record about the crawl, then one per page, each compressed separately."""
    writing = pytest.importorskip("warcio.warcwriter")
    drawn, texts = random.Random(pages), []
    with path.open("wb") as file:
        writer = writing.WARCWriter(file, gzip=compressed)
        writer.write_record(writer.create_warcinfo_record(path.name, {"software": "tests"}))
        for page in range(pages):
            texts.append(f"page {page} " + " ".join(drawn.choices(WORDS, k=drawn.randrange(30))))
            headers = {"WARC-Identified-Content-Language": "deu,eng", "WARC-Date": "2026-01-02T03:04:05Z"}
            payload = io.BytesIO(texts[-1].encode())
            record = writer.create_warc_record(
                f"https://example.org/{page}",
                "conversion",
                payload=payload,
                warc_content_type="text/plain",
                warc_headers_dict=headers,
            )
            writer.write_record(record)
    return texts


def _read(path: Path, most: int = MAX_RECORD_BYTES, id: str | None = None, **given: Any) -> list[Block]:
    format, compression = file_format(path.name)
    return list(
        read_records(
            path,
            fields=RecordFields("text", id, most),
            format=format,
            compression=compression,
            label=path.name,
            **given,
        )
    )


@pytest.mark.parametrize("name", ["CC-00000.warc.wet.gz", "CC-00000.wet"])
def test_the_texts_of_a_crawl_equal_those_of_warcio(tmp_path: Path, name: str) -> None:
    reading = pytest.importorskip("warcio.archiveiterator")
    path = tmp_path / name
    texts = _wet(path, 300, compressed=name.endswith(".gz"))
    with path.open("rb") as file:
        theirs = [
            (record.rec_headers.get_header("WARC-Target-URI"), record.content_stream().read().decode())
            for record in reading.ArchiveIterator(file)
            if record.rec_type == "conversion"
        ]
    blocks = _read(path, id="url")
    ids = [one for block in blocks for one in block.ids or ()]
    mine = list(zip(ids, (text for block in blocks for text in block.texts), strict=True))
    assert mine == theirs
    assert [text for _, text in mine] == texts
    assert [row for block in blocks for row in block.rows or ()] == list(range(2, 302))
    assert sum(block.blank_lines for block in blocks) == 1
    format, compression = file_format(name)
    assert (format, count_rows(path, format=format, compression=compression, label=name)) == ("wet", 301)
    first = next(iter(read_rows(path, format=format, compression=compression, label=name)))
    data = gzip.decompress(path.read_bytes()) if compression else path.read_bytes()
    assert all(data[at:].startswith(b"WARC/1.0\r\n") for at in first.offsets)
    assert {name: first.rows[0][name] for name in ("date", "language")} == {
        "date": "2026-01-02T03:04:05Z",
        "language": "deu,eng",
    }


def _record(kind: str, body: bytes, length: int | None = None, content: str = "text/plain") -> bytes:
    head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: http://a.example/\r\nWARC-Record-ID: <urn:uuid:1>\r\n"
    size = len(body) if length is None else length
    return f"{head}Content-Type: {content}\r\nContent-Length: {size}\r\n\r\n".encode() + body + b"\r\n\r\n"


INFO, GOOD = _record("warcinfo", b"software: x"), _record("conversion", b"hello")


def test_a_record_without_text_is_bad_and_has_a_position(tmp_path: Path) -> None:
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>x"
    records = [
        INFO,
        _record("request", b"GET / HTTP/1.1\r\n\r\n", content="application/http"),
        _record("response", page, content="application/http; msgtype=response"),
        GOOD,
        _record("conversion", b"\xff\xfe"),
        _record("resource", b"{}", content="application/json"),
        _record("resource", b"a note", content="text/plain; charset=utf-8"),
        _record("conversion", b"z" * 3000),
        GOOD,
    ]
    path = tmp_path / "x.warc"
    path.write_bytes(b"".join(records))
    blocks, data = _read(path, 2000), path.read_bytes()
    assert [(r, t) for block in blocks for r, t in zip(block.rows or (), block.texts, strict=True)] == [
        (4, "hello"),
        (7, "a note"),
        (9, "hello"),
    ]
    bad = [bad for block in blocks for bad in block.bad]
    assert [(b.row, b.reason) for b in bad] == [(3, "not_text"), (5, "invalid_utf8"), (6, "not_text"), (8, "too_large")]
    assert all(data[b.byte :].startswith(records[b.row - 1]) for b in bad)
    assert sum(block.blank_lines for block in blocks) == 2


@pytest.mark.parametrize(
    ("data", "values"),
    [
        (INFO + GOOD[:-7], (2, 160, "ends")),
        (INFO + GOOD[:60], (2, 160, "Content-Length")),
        (INFO + b"garbage\r\n" + GOOD, ("record", 1)),
        (INFO + _record("conversion", b"hello world", 5) + GOOD, ("record", 2)),
        (INFO + _record("conversion", b"hello", 11) + GOOD, ("record", 2)),
        (INFO + _record("conversion", b"hello", 10**12) + GOOD, (2, 160, "ends")),
        (INFO + _record("conversion", b"hello", -5) + GOOD, (2, 160, "Content-Length")),
        (
            INFO + _record("conversion", b"hello\n", 5) + GOOD,
            (2, 160, "Content-Length", 5),
        ),
        (INFO + _record("conversion", b"hello\r\n", 5), (2, 160, "Content-Length", 6)),
        (INFO + _record("conversion", b" ", 0) + GOOD, (2, 160, "Content-Length", 5)),
        (
            _record("request", b"x\n" * 200_000, 399_999) + GOOD,
            (1, 0, "Content-Length", 5),
        ),
        (b"no crawl\n" * 9, ("record", 0)),
    ],
)
def test_a_truncated_or_edited_crawl_is_refused_with_the_position(
    tmp_path: Path, data: bytes, values: tuple[object, ...]
) -> None:
    path = tmp_path / "x.wet"
    path.write_bytes(data)
    with raises(CorruptSourceError, "x.wet", *values) as refused:
        _read(path)
    assert "garbage" not in str(refused.value)


def test_a_header_unknown_to_fastwarc_is_not_reported_as_truncation(tmp_path: Path) -> None:
    path = tmp_path / "x.wet"
    path.write_bytes(INFO + GOOD.replace(b"WARC-Type", b"warc-type").replace(b"Content-Type", b"content-type"))
    assert [block.texts for block in _read(path)] == [["hello"]]
    path.write_bytes(INFO + GOOD.replace(b"Content-Length", b"content-length"))
    with raises(CorruptSourceError, 2, 160, "Content-Length") as refused:
        _read(path)
    assert "ends inside" not in str(refused.value)


def test_a_record_without_a_type_is_distinguished_from_one_of_another_type(tmp_path: Path) -> None:
    path = tmp_path / "x.wet"
    path.write_bytes(
        GOOD + GOOD.replace(b"Content-Type: text/plain\r\n", b"") + _record("conversion", b"<p>", content="text/html")
    )
    said = [bad.fault for block in _read(path) for bad in block.bad]
    assert len(said) == 2
    assert "without" in said[0]
    assert_names(said[1], "text/plain")


def test_a_truncated_compressed_crawl_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.wet.gz"
    _wet(path, 20, compressed=True)
    path.write_bytes(path.read_bytes()[:-30])
    with raises(CorruptSourceError, "x.wet.gz"):
        _read(path)


@pytest.mark.parametrize("between", [b"\r\n", b"\n\n", b"\n", b""])
def test_a_shorter_end_of_a_record_loses_no_text(tmp_path: Path, between: bytes) -> None:
    path = tmp_path / "x.wet"
    path.write_bytes((INFO.removesuffix(b"\r\n\r\n") + between) + (GOOD.removesuffix(b"\r\n\r\n") + between) * 2)
    assert [text for block in _read(path) for text in block.texts] == ["hello", "hello"]


def test_headers_and_texts_of_every_length_are_read_exactly(tmp_path: Path) -> None:
    path, texts = tmp_path / "x.wet", ["x" * size for size in (0, 1, 65_400, 65_536, 300_000, 1_000_000, 65_530, 7)]
    path.write_bytes(b"".join(_record("conversion", text.encode()) for text in texts))
    assert [text for block in _read(path) for text in block.texts] == texts
