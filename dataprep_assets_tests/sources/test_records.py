"""The definition of a record; and a damaged file is never mistaken for a shorter one."""

import gzip
import hashlib
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from dataprep_assets.errors import CorruptSourceError, SourceError
from dataprep_assets.sources.readers import blocks
from dataprep_assets.sources.readers.blocks import BlockReader
from dataprep_assets.sources.readers.read_options import REASONS
from dataprep_assets.sources.readers.records import AbsentColumnError, RecordFields, read_records
from dataprep_assets.sources.readers.rows import read_rows
from dataprep_assets.stores.files import sha256_file
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.sources.json_lines import BAD, BLANK, GOOD, between_good_rows, read, reader, write


@pytest.mark.parametrize(("line", "text"), GOOD.values(), ids=GOOD)
def test_a_valid_line_is_a_record(tmp_path: Path, line: bytes, text: str) -> None:
    block = read(write(tmp_path / "f.jsonl", between_good_rows(line)))
    assert (block.texts, block.rows, block.bad) == (["before", text, "after"], [1, 2, 3], [])


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("NaN", "NaN or Infinity"),
        ("minus Infinity", "NaN or Infinity"),
        ("a lone low surrogate", "a lone surrogate"),
        ("a lone surrogate beside a number beyond a double", "a lone surrogate"),
        ("nesting beyond 1,024 levels", "nested more than 1,024 levels deep"),
        ("an unterminated string", "cut off"),
        ("a trailing comma", "trailing comma is not allowed"),
    ],
)
def test_the_error_about_bad_json_has_details_in_addition_to_its_reason(tmp_path: Path, name: str, fault: str) -> None:
    (bad,) = read(write(tmp_path / "f.jsonl", between_good_rows(BAD[name][0]))).bad
    assert (bad.reason, str(bad)) == ("bad_json", f"bad_json ({fault})")


@pytest.mark.parametrize(("line", "reason"), BAD.values(), ids=BAD)
def test_an_invalid_line_is_a_bad_record_with_its_row_and_byte(tmp_path: Path, line: bytes, reason: str) -> None:
    raw = between_good_rows(line)
    block = read(write(tmp_path / "f.jsonl.zst", raw))
    assert (block.texts, block.rows) == (["before", "after"], [1, 3])
    ((row, byte, found),) = [(b.row, b.byte, b.reason) for b in block.bad]
    assert (row, found) == (2, reason)
    assert raw[byte:].startswith(line)
    assert reason in REASONS


@pytest.mark.parametrize("line", BLANK.values(), ids=BLANK)
def test_a_blank_line_is_counted_but_is_not_a_record(tmp_path: Path, line: bytes) -> None:
    block = read(write(tmp_path / "f.jsonl.gz", between_good_rows(line)))
    assert (block.texts, block.rows, block.bad, block.blank_lines) == (["before", "after"], [1, 3], [], 1)


def _forbidden(constant: str) -> None:
    raise ValueError(constant)


def read_with_standard_library(line: bytes) -> str | None:
    """Return the text of a line by RFC 8259, by a different parser than the product's; None for a bad record."""
    if line.count(b"[") > 1024:  # the product's limit of nesting, which newer standard libraries do not have
        return None
    try:
        marked = line.removeprefix(b"\xef\xbb\xbf").decode()
        record = json.loads(marked, parse_constant=_forbidden, parse_int=float)  # floats have no limit of digits
        json.dumps(record, ensure_ascii=False).encode()  # a lone surrogate has no UTF-8 encoding
    except (ValueError, RecursionError):
        return None
    text = record.get("text") if isinstance(record, dict) else None
    return text if isinstance(text, str) else None


def assert_equal_to_standard_library(path: Path, raw: bytes) -> None:
    lines = raw.split(b"\n")
    lines = lines[:-1] if not lines[-1] else lines
    expected = {row: read_with_standard_library(line) for row, line in enumerate(lines, 1) if line.strip()}
    block = read(path)
    assert block.rows is not None
    assert dict(zip(block.rows, block.texts, strict=True)) == {row: t for row, t in expected.items() if t is not None}
    assert [b.row for b in block.bad] == [row for row, t in expected.items() if t is None]
    assert block.blank_lines == len(lines) - len(expected)
    for bad in block.bad:
        assert raw[bad.byte :].split(b"\n")[0] == lines[bad.row - 1]


def test_all_lines_in_one_file_are_read_like_in_the_standard_library(tmp_path: Path) -> None:
    lines = [line for line, _ in (*GOOD.values(), *BAD.values())] + list(BLANK.values())
    random.Random(1).shuffle(lines)
    raw = b"\n".join([*lines, b'{"text": "last line, no newline"}'])
    assert_equal_to_standard_library(write(tmp_path / "f.jsonl.zst", raw), raw)


@pytest.mark.shared
def test_every_row_of_badjson_is_read_like_in_the_standard_library(shared: Path) -> None:
    path = shared / "data" / "corpus" / "badjson.jsonl.zst"
    raw = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
    assert_equal_to_standard_library(path, raw)
    assert Counter(b.reason for b in read(path).bad).keys() == {*REASONS} - {"too_large"}


def test_a_byte_order_mark_is_accepted_at_the_start_and_counted_in_positions(tmp_path: Path) -> None:
    raw = b'\xef\xbb\xbf{"text": "a"}\r\nbad\r\n{"text": "b"}'
    block = read(write(tmp_path / "f.jsonl", raw))
    assert (block.texts, block.rows) == (["a", "b"], [1, 3])
    assert [(b.row, b.byte) for b in block.bad] == [(2, raw.index(b"bad"))]


def test_positions_are_right_beyond_the_first_block(tmp_path: Path) -> None:
    line = json.dumps({"text": "x" * 1000}).encode() + b"\n"
    raw = line * 9000 + b"bad one\n\n" + line * 9000 + b"bad two\n" + line
    block = read(write(tmp_path / "f.jsonl.zst", raw))
    assert len(block.texts) == 18001
    assert [(b.row, b.byte) for b in block.bad] == [(9001, raw.index(b"bad one")), (18003, raw.index(b"bad two"))]
    assert block.rows == [r for r in range(1, 18005) if r not in (9001, 9002, 18003)]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.zst", ".jsonl.gz"])
@pytest.mark.parametrize("raw", [b"", b"\n", b"\r\n\n", b"\xef\xbb\xbf"])
def test_a_file_without_rows_has_no_records(tmp_path: Path, suffix: str, raw: bytes) -> None:
    block = read(write(tmp_path / f"f{suffix}", raw))
    assert (block.texts, block.bad) == ([], [])
    assert block.blank_lines == raw.count(b"\n")


def test_a_line_longer_than_many_blocks_is_one_record(tmp_path: Path) -> None:
    long = "ab" * 10_000_000
    path = write(tmp_path / "f.jsonl.zst", between_good_rows(json.dumps({"text": long}).encode()))
    assert read(path).texts == ["before", long, "after"]


# --- files: frames, truncations, flipped bits


def rows(count: int) -> bytes:
    generator = random.Random(count)
    return b"".join(json.dumps({"text": f"{i} {generator.randbytes(12).hex()}"}).encode() + b"\n" for i in range(count))


def frames(raw: bytes, pieces: int, **options: Any) -> list[bytes]:
    size = -(-len(raw) // pieces)
    return [zstandard.ZstdCompressor(**options).compress(raw[i : i + size]) for i in range(0, len(raw), size)]


@pytest.mark.parametrize("options", [{}, {"write_checksum": True}, {"write_content_size": False}], ids=str)
def test_a_zst_file_truncated_at_any_byte_is_refused_with_that_byte(tmp_path: Path, options: dict[str, bool]) -> None:
    whole = zstandard.ZstdCompressor(**options).compress(rows(60))
    path = tmp_path / "f.jsonl.zst"
    for cut in range(1, len(whole)):
        path.write_bytes(whole[:cut])
        with raises(CorruptSourceError, "f.jsonl.zst", cut):
            read(path)


def test_a_large_zst_file_truncated_anywhere_is_refused(tmp_path: Path) -> None:
    raw = rows(60_000)
    whole = zstandard.ZstdCompressor(level=1).compress(raw)
    path, generator = tmp_path / "f.jsonl.zst", random.Random(7)
    for cut in (
        *(generator.randrange(1, len(whole)) for _ in range(30)),
        len(whole) // 10,
        len(whole) // 2,
        len(whole) - 1,
    ):
        path.write_bytes(whole[:cut])
        with raises(CorruptSourceError, cut):
            read(path)


@pytest.mark.parametrize("suffix", [".zst", ".gz"])
def test_all_frames_are_read_and_a_truncation_between_them_changes_the_digest(tmp_path: Path, suffix: str) -> None:
    raw = rows(500)
    pieces = (
        frames(raw, 5) if suffix == ".zst" else [gzip.compress(raw[i : i + 5000]) for i in range(0, len(raw), 5000)]
    )
    path = tmp_path / f"f.jsonl{suffix}"
    path.write_bytes(b"".join(pieces))
    whole_digest, records = sha256_file(path), reader(path)
    assert [t for block in records for t in block.texts] == [json.loads(line)["text"] for line in raw.splitlines()]
    assert (records.sha256, records.bytes_read) == (whole_digest, path.stat().st_size)
    path.write_bytes(b"".join(pieces[:-1]))  # only the digest shows a truncation between frames
    shorter = reader(path)
    list(shorter)
    assert shorter.sha256 == sha256_file(path) != whole_digest


@pytest.mark.parametrize("block", [7, 200, 4 << 20])
def test_gzip_members_larger_than_a_block_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(blocks, "_BLOCK", block)
    line = b'{"text": "a line of a log that comes again and again"}\n'
    members = [line * (block // 4), line, line * (block // 40 + 30), b"", line * 3]
    path = tmp_path / "f.jsonl.gz"
    path.write_bytes(b"".join(map(gzip.compress, members)))
    assert hashlib.sha256(b"".join(BlockReader(path, "gzip"))).digest() == hashlib.sha256(b"".join(members)).digest()


def test_a_gzip_file_truncated_at_any_byte_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(rows(60))
    path = tmp_path / "f.jsonl.gz"
    for cut in range(1, len(whole)):
        path.write_bytes(whole[:cut])
        with raises(CorruptSourceError, cut):
            read(path)


@pytest.mark.parametrize("suffix", [".zst", ".gz"])
def test_garbage_after_the_last_frame_is_refused(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"f.jsonl{suffix}", rows(10))
    path.write_bytes(path.read_bytes() + b"garbage after the end")
    with raises(CorruptSourceError, f"f.jsonl{suffix}", "damaged"):
        read(path)


@pytest.mark.parametrize("zeros", [1, 700, 1 << 20])
def test_zeros_between_and_after_the_members_of_a_gzip_file_are_skipped(tmp_path: Path, zeros: int) -> None:
    path = write(tmp_path / "f.jsonl.gz", rows(10))
    member, padding = path.read_bytes(), b"\0" * zeros
    texts = read(path).texts
    path.write_bytes(member + padding + member + padding)
    assert read(path).texts == 2 * texts
    path.write_bytes(member + padding + b"garbage")
    with raises(CorruptSourceError, path.name, "damaged"):
        read(path)
    path.write_bytes(member[:-4] + padding)
    with raises(CorruptSourceError, path.name):
        read(path)


def test_a_compressed_name_over_other_bytes_is_refused(tmp_path: Path) -> None:
    for suffix in (".zst", ".gz", ".xz", ".bz2"):
        path = tmp_path / f"f.jsonl{suffix}"
        path.write_bytes(random.Random(1).randbytes(1000))
        with raises(CorruptSourceError, path.name, 0):
            read(path)


def test_skippable_frames_are_skipped(tmp_path: Path) -> None:
    skippable = (0x184D2A50).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"index"
    raw = rows(100)
    path = tmp_path / "f.jsonl.zst"
    path.write_bytes(skippable + skippable.join(frames(raw, 3)) + skippable)
    assert len(read(path).texts) == 100


def test_a_flipped_byte_is_refused_by_the_frame_or_changes_the_digest(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl.zst"
    for options in ({}, {"write_checksum": True}):
        whole = zstandard.ZstdCompressor(**options).compress(rows(30))
        refused = 0
        for position in range(len(whole)):
            path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
            records = reader(path)
            try:
                list(records)
            except CorruptSourceError:
                refused += 1
            else:
                assert records.sha256 == sha256_file(path)
        assert refused > len(whole) * (0.99 if options else 0.01)


def test_data_that_expands_enormously_is_read_in_bounded_blocks(tmp_path: Path) -> None:
    line = b'{"text": "' + b"a" * 100_000 + b'"}\n'
    path = tmp_path / "f.jsonl.zst"
    with open(path, "wb") as file, zstandard.ZstdCompressor(level=19).stream_writer(file) as writer:
        for _ in range(2000):
            writer.write(line)
    assert path.stat().st_size < 50_000
    sizes = [sum(map(len, block.texts)) for block in reader(path)]
    assert sum(sizes) == 200_000_000
    assert max(sizes) < 16 << 20


# --- Parquet


def test_a_null_in_parquet_is_a_bad_record_without_a_byte(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"id": [1, 2, 3], "text": ["a", None, ""]}), path)
    block = read(path)
    assert (block.texts, block.rows) == (["a", ""], [1, 3])
    assert [(b.row, b.byte, b.reason) for b in block.bad] == [(2, -1, "null_text")]


def test_parquet_is_read_across_batches_and_row_groups_with_its_digest(tmp_path: Path) -> None:
    texts = [f"{i} é" for i in range(9000)]
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"text": pa.array(texts, pa.large_string())}), path, row_group_size=2500)
    records = reader(path)
    assert [t for block in records for t in block.texts] == texts
    assert (records.sha256, records.bytes_read) == (sha256_file(path), path.stat().st_size)


@pytest.mark.parametrize(
    "kind",
    [
        pa.string_view(),
        pa.large_string(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_string()),
    ],
    ids=str,
)
def test_parquet_texts_of_every_kind_are_read_across_row_groups(tmp_path: Path, kind: pa.DataType) -> None:
    texts = ["é", "", None, "b" * 40, "é"] * 600
    ids = [f"id{i % 50}" for i in range(len(texts))]
    path = tmp_path / "f.parquet"
    columns = {"text": pa.array(texts).cast(kind), "id": pa.array(ids).cast(kind)}
    pq.write_table(pa.table(columns), path, row_group_size=700)
    assert pq.read_schema(path).field("text").type != pa.string(), "the file says so itself"
    block = read(path)
    assert block.texts == [text for text in texts if text is not None]
    assert [bad.row for bad in block.bad] == [row for row, text in enumerate(texts, 1) if text is None]
    fields = {"format": "parquet", "compression": None, "label": "x", "fields": RecordFields("text", "id")}
    found = [one for part in read_records(path, **fields) for one in part.ids or []]
    assert found == [name for name, text in zip(ids, texts, strict=True) if text is not None]
    assert [
        row["text"] for part in read_rows(path, format="parquet", compression=None, label="x") for row in part.rows
    ] == texts


def test_a_parquet_file_without_rows_has_no_records(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    assert read(path).texts == []


@pytest.mark.parametrize(
    ("column", "why"),
    [
        ({"content": ["a"]}, "content"),
        ({"text": [5], "content": ["a"]}, "int64"),
    ],
    ids=["missing", "of numbers"],
)
def test_a_parquet_column_that_is_not_text_is_refused(tmp_path: Path, column: dict[str, list[Any]], why: str) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table(column), path)
    with raises((SourceError, AbsentColumnError), "f.parquet", "'text'", why, "`text_field`") as refused:
        read(path)
    assert not isinstance(refused.value, CorruptSourceError), "the file is whole, the declaration is wrong"
    hidden = refused.value.hidden if isinstance(refused.value, AbsentColumnError) else str(refused.value)
    assert "content" not in hidden, "names of columns can be sensitive"


def test_a_damaged_parquet_file_is_refused_or_has_another_digest(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"text": [f"{i} text" for i in range(500)]}), path, compression="zstd")
    whole, digest = path.read_bytes(), sha256_file(path)
    for cut in range(0, len(whole), 97):
        path.write_bytes(whole[:cut])
        with raises(CorruptSourceError, "f.parquet"):
            read(path)
    for position in range(0, len(whole), 31):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        records = reader(path)
        try:
            list(records)
        except CorruptSourceError:
            pass
        else:
            assert records.sha256 != digest


def test_a_parquet_page_with_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    path, texts = tmp_path / "f.parquet", [f"text number {i:06d}" for i in range(5000)]
    # Write uncompressed texts without a dictionary, so that a changed byte gives a different valid text, which only the
    # checksum reveals.
    pq.write_table(pa.table({"text": texts}), path, compression="none", use_dictionary=False, write_page_checksum=True)
    assert read(path).texts == texts
    whole = path.read_bytes()
    at = whole.index(b"text number 002500")
    path.write_bytes(whole[:at] + b"T" + whole[at + 1 :])
    with raises(CorruptSourceError, "f.parquet"):
        read(path)
