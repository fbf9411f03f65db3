"""Small files that expand enormously are read, or refused in a sentence, with less than 1 GiB of memory.

Each file is read in its own process, forked from this one, whose peak memory is measured. Its address space is also
limited, at a higher value, because the JSON parser reserves memory that it does not use.
"""

import gzip
import json
import os
import random
import re
import resource
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from dataprep_assets.errors import CorruptSourceError, DataprepError
from dataprep_assets.sources.cohorts import CohortReader
from dataprep_assets.sources.readers import parquet_pages
from dataprep_assets.sources.readers.blocks import WINDOW, BlockReader
from dataprep_assets.sources.readers.read_options import RowRange
from dataprep_assets.sources.readers.records import RecordFields, read_records
from dataprep_assets.sources.readers.row_files import BadRecord, read_whole_lines
from dataprep_assets.sources.readers.rows import read_rows
from dataprep_assets_tests.messages import raises

MIB = 1 << 20
GOOD = b'{"text": "before"}\n'


def compressed(path: Path, pieces: Iterator[bytes] | list[bytes]) -> None:
    """Write pieces of a stream with the compression in the name."""
    if path.suffix == ".gz":
        with gzip.open(path, "wb", compresslevel=9) as file:
            for piece in pieces:
                file.write(piece)
    elif path.suffix == ".zst":
        with path.open("wb") as raw, zstandard.ZstdCompressor(level=3).stream_writer(raw) as writer:
            for piece in pieces:
                writer.write(piece)
    else:
        path.write_bytes(b"".join(pieces))


def long_line(mib: int, fill: bytes = b"a", before: bytes = b'{"text": "', after: bytes = b'"}\n') -> Iterator[bytes]:
    yield GOOD + before
    piece = fill * (MIB // len(fill))
    for _ in range(mib):
        yield piece
    yield after + GOOD


def only(mib: int, fill: bytes) -> Iterator[bytes]:
    piece = fill * (MIB // len(fill))
    for _ in range(mib):
        yield piece


def noise_then_runs(path: Path) -> None:
    """Write lines that do not compress, so that steps grow, then 4 GiB in blocks of four bytes (RFC 8878, 3.1.1.2)."""
    noise = random.Random(1)
    lines = b"".join(b'{"text": "%s"}\n' % noise.randbytes(500).hex().encode() for _ in range(2000))
    run = ((128 << 10) << 3 | 1 << 1).to_bytes(3, "little") + b"a"
    header = b"\x28\xb5\x2f\xfd\x00\x38"  # the window has 128 KiB
    path.write_bytes(zstandard.compress(lines) + header + run * (4 * 1024 * 8) + b"\x01\x00\x00")


def frames(path: Path, frame: bytes, count: int) -> None:
    path.write_bytes(frame * count)


def many_columns(path: Path) -> None:
    value = "x" * MIB
    pq.write_table(pa.table({f"c{i}": [value] * 50 for i in range(20)} | {"text": ["a"] * 50}), path)


def repeated_value(path: Path, mib: int, rows: int, **how: Any) -> None:
    indices = pa.array([0] * rows, pa.int32())
    text = pa.DictionaryArray.from_arrays(indices, pa.array(["v" * (mib * MIB)]))
    pq.write_table(
        pa.table({"text": text}), path, compression="zstd", store_schema=how.pop("store_schema", True), **how
    )


def plain_values(path: Path, mib: int, rows: int, encoding: str | None = None) -> None:
    table = pa.table({"text": pa.array(["v" * (mib * MIB)] * rows)})
    how: dict[str, Any] = {"column_encoding": {"text": encoding}} if encoding else {}
    pq.write_table(table, path, compression="zstd", use_dictionary=False, **how)


def wide_nulls(count: int, width: int) -> pa.Array:
    """Return nulls of this many bytes each, in memory that is never touched: `pa.nulls` would fill ten gigabytes."""
    buffers = [pa.py_buffer(bytes(-(-count // 8))), pa.py_buffer(np.zeros(count * width, np.uint8))]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, buffers, count)


def nested(path: Path, values: int) -> None:
    column = pa.ListArray.from_arrays(pa.array([0, values], pa.int32()), pa.nulls(values, pa.int8()))
    pq.write_table(pa.table({"text": ["a"], "x": column}), path, compression="zstd", data_page_size=1 << 30)


def wide_pages(path: Path) -> None:
    large = {f"c{i}": ["0" * (100 * MIB)] for i in range(10)}
    pq.write_table(pa.table({"text": ["a"], **large}), path, compression="zstd", use_dictionary=False)


def structs(path: Path) -> None:
    count = 20_000_000
    roles = pa.StructArray.from_arrays([pa.nulls(count, pa.int8())], names=["role"])
    column = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), roles)
    pq.write_table(pa.table({"messages": column}), path, compression="zstd", data_page_size=1 << 30)


def lying(path: Path) -> None:
    """Write a file whose first page header claims 2 GiB."""
    pq.write_table(pa.table({"text": ["a"] * 10}), path, compression="zstd", use_dictionary=False)
    data = bytearray(path.read_bytes())
    at = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    # Field 1 is the type, 0. Field 2, the size, is a varint of two bytes.
    assert data[at : at + 3] == b"\x15\x00\x15"
    size = (1 << 31) - 1
    varint = b""
    value = size << 1
    while value:
        varint += bytes([value & 0x7F | (0x80 if value > 0x7F else 0)])
        value >>= 7
    end = at + 3
    while data[end] & 0x80:
        end += 1
    # The header may be a few bytes longer, because the pages after it are not read.
    path.write_bytes(bytes(data[: at + 3] + varint + data[end + 1 :]))


def wide(values: str) -> Callable[[Path], None]:
    body = (values * (16 * MIB // len(values))).encode()
    return lambda path: compressed(path, [GOOD, b'{"text": "x", "y": [', body, b"0]}\n", GOOD])


LINES: dict[str, tuple[Callable[[Path], None], str]] = {
    "line-300.jsonl.zst": (lambda p: compressed(p, long_line(300)), "2 texts, 1 too_large"),
    "line-300.jsonl.gz": (lambda p: compressed(p, long_line(300)), "2 texts, 1 too_large"),
    "line-63-emoji.jsonl.zst": (lambda p: compressed(p, long_line(63, "\U0001f600".encode())), "3 texts"),
    "line-63-escapes.jsonl.zst": (lambda p: compressed(p, long_line(63, b"\\n")), "3 texts"),
    "line-without-end.jsonl.zst": (lambda p: compressed(p, only(300, b"a")), "1 too_large"),
    "line-of-blanks.jsonl.zst": (lambda p: compressed(p, only(300, b" ")), "1 too_large"),
    "lines-blank.jsonl.zst": (lambda p: compressed(p, only(9, b"\n")), "0"),
    "lines-tiny.jsonl.zst": (lambda p: compressed(p, only(2, b"[]\n\n")), f"{2 * MIB // 4} not_an_object"),
    "deep-open.jsonl.zst": (lambda p: compressed(p, long_line(60, b"[", b"", b"\n")), "2 texts, 1 too_large"),
    "deep-objects.jsonl.zst": (lambda p: compressed(p, long_line(20, b'{"a":', b"", b"\n")), "2 texts, 1 bad_json"),
    "wide-objects.jsonl.zst": (wide("{},"), "2 texts, 1 too_large"),
    "wide-numbers.jsonl.zst": (wide("1.5,"), "2 texts, 1 too_large"),
    "wide-empty-strings.jsonl.zst": (
        lambda p: compressed(p, long_line(60, b'"",', b'{"text": "x", "y": [', b"0]}\n")),
        "2 texts, 1 too_large",
    ),
    "brackets-in-a-text.jsonl.zst": (lambda p: compressed(p, long_line(24, b"[{,")), "3 texts"),
    "wide-keys.jsonl.zst": (
        lambda p: compressed(p, [GOOD, b'{"text": "x"', b"".join(b',"k%d":{}' % i for i in range(1_500_000)), b"}\n"]),
        "2 texts",
    ),
    "many-frames.jsonl.zst": (
        lambda p: frames(p, zstandard.ZstdCompressor().compress(GOOD), 20_000),
        "20000 texts",
    ),
    "many-members.jsonl.gz": (lambda p: frames(p, gzip.compress(GOOD), 20_000), "20000 texts"),
    "window-2-gib.jsonl.zst": (
        lambda p: p.write_bytes(
            zstandard.ZstdCompressor(
                compression_params=zstandard.ZstdCompressionParameters(
                    window_log=31, write_content_size=False, enable_ldm=False
                )
            )
            .compressobj()
            .compress(GOOD)
            + b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00"  # this frame header has the window descriptor 0xa8, i.e., 2^31
        ),
        "window",
    ),
    "lying-size.jsonl.zst": (
        lambda p: p.write_bytes(b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 60) + b"\x01\x00\x00"),
        "window|damaged|truncated",
    ),
    "cut.jsonl.gz": (lambda p: p.write_bytes(gzip.compress(b"a" * 100 * MIB)[:-9]), "truncated|damaged"),
    "cut-in-a-string.jsonl": (lambda p: compressed(p, [GOOD, b'{"text": "', b"a" * 40 * MIB]), "1 texts, 1 bad_json"),
    "cut-in-escapes.jsonl": (lambda p: compressed(p, [GOOD, b'{"text": "', b'\\"' * 10 * MIB]), "1 texts, 1 bad_json"),
    "huge-number.jsonl": (
        lambda p: compressed(p, [GOOD, b'{"n": 1e400, "text": "', b'a\\"' * 8 * MIB, b'"}\n']),
        "2 texts",
    ),
    "runs-after-noise.jsonl.zst": (noise_then_runs, "2000 texts, 1 too_large"),
    "frames-empty.jsonl.zst": (lambda p: frames(p, zstandard.ZstdCompressor().compress(b""), 600_000), "0"),
    "members-empty.jsonl.gz": (lambda p: frames(p, gzip.compress(b""), 200_000), "0"),
    "plain-line.jsonl": (lambda p: compressed(p, long_line(100)), "2 texts, 1 too_large"),
}
PARQUET: dict[str, tuple[Callable[[Path], None], str]] = {
    "dictionary-4.parquet": (lambda p: repeated_value(p, 4, 300), "300 texts"),
    "dictionary-100.parquet": (lambda p: repeated_value(p, 100, 20), "20 too_large"),
    "dictionary-many-rows.parquet": (lambda p: repeated_value(p, 1, 1_500), "1500 texts"),
    "plain-150.parquet": (lambda p: plain_values(p, 150, 3), "3 too_large"),
    "prefixes.parquet": (lambda p: plain_values(p, 4, 60, "DELTA_BYTE_ARRAY"), "60 texts"),
    "nulls.parquet": (
        lambda p: pq.write_table(pa.table({"text": pa.nulls(50_000, pa.string())}), p),
        "50000 null_text",
    ),
    "other-columns.parquet": (many_columns, "50 texts"),
    "wide-pages.parquet": (wide_pages, "1 texts"),
    "lying.parquet": (lying, "a page of column text has 10 values in 2,147,483,647 bytes"),
}
ROWS: dict[str, tuple[Callable[[Path], None], str]] = {
    "columns.parquet": (many_columns, "50 rows"),
    "wide-pages.parquet": (wide_pages, "are decoded at once. Write the file with smaller pages"),
    "structs.parquet": (structs, "1 too_large"),
    "fixed.parquet": (
        lambda p: pq.write_table(pa.table({"x": wide_nulls(1024, 10_000_000)}), p),
        "a page of column x",
    ),
    "array.json.zst": (
        lambda p: compressed(p, [b"[", *[b'{"a": [' + b"{}," * 1_000_000 + b"0]},"] * 12, b"{}]"]),
        "13 rows",
    ),
    "nested.parquet": (lambda p: nested(p, 40_000_000), "a page of column x"),
    "line.jsonl.zst": (lambda p: compressed(p, long_line(300)), "2 rows, 1 too_large"),
}
PATIENT = b'{"id": 1, "notes": []}'
COHORTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "array.json.zst": (
        lambda p: compressed(p, [b"[", PATIENT, b',{"id": "', *only(300, b"a"), b'"},', PATIENT, b"]"]),
        "2 patients, 1 too_large",
    ),
    "object.json.zst": (
        lambda p: compressed(p, [b'{"a":', PATIENT, b',"', *only(300, b"k"), b'":{}}']),
        "1 patients, 1 too_large",
    ),
    "lines.jsonl.zst": (
        lambda p: compressed(p, [PATIENT, b"\n", *only(300, b"a"), b"\n", PATIENT]),
        "2 patients, 1 too_large",
    ),
    "deep.json.zst": (lambda p: compressed(p, [b"[", *only(4, b"["), b"]"]), "in record 1"),
}


def compression(path: Path) -> str | None:
    return {".zst": "zstd", ".gz": "gzip"}.get(path.suffix)


def counted(found: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in found.items() if count) or "0"


def records(path: Path) -> str:
    found: Counter[str] = Counter()
    kind = "parquet" if path.suffix == ".parquet" else "jsonl"
    for block in read_records(
        path, fields=RecordFields("text"), format=kind, compression=compression(path), label=path.name
    ):
        found["texts"] += len(block.texts)
        found.update(bad.reason for bad in block.bad)
    return counted(found)


def rows(path: Path) -> str:
    found: Counter[str] = Counter()
    kind = "parquet" if path.suffix == ".parquet" else "jsonl" if ".jsonl" in path.name else "json"
    for block in read_rows(path, format=kind, compression=compression(path), label=path.name):
        found["rows"] += len(block.rows)
        found.update(bad.reason for bad in block.bad)
    return counted(found)


def patients(path: Path) -> str:
    formats: dict[str, Any] = {"array": "json_array", "object": "json_object", "deep": "json_array"}
    kind = formats.get(path.name.split(".")[0], "jsonl")
    found: Counter[str] = Counter()
    for one in CohortReader(path, kind, compression(path), "2010-01"):
        found[one.reason if isinstance(one, BadRecord) else "patients"] += 1
    return counted(found)


def in_a_gibibyte(read: Callable[[Path], str], path: Path) -> tuple[str, int]:
    """Return the result or error of reading a file, and the maximum growth of the process's memory in MiB."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        Path("/proc/self/clear_refs").write_text("5")  # 5 resets the peak of the memory
        before = _status("VmHWM")
        resource.setrlimit(resource.RLIMIT_AS, ((_status("VmSize") + 3072) * MIB,) * 2)
        try:
            said = read(path)
        except DataprepError as error:
            said = f"{type(error).__name__}: {error}"
        except BaseException as error:
            said = f"not caught: {type(error).__name__}: {error}"
        os.write(theirs, json.dumps([said, _status("VmHWM") - before]).encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    said, grown = json.loads(text or b'["killed", 0]')
    return said, grown


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) // 1024


ZOO = [
    *((name, records, *how) for name, how in (LINES | PARQUET).items()),
    *((name, rows, *how) for name, how in ROWS.items()),
    *((name, patients, *how) for name, how in COHORTS.items()),
]


@pytest.mark.parametrize(
    ("name", "read", "make", "expected"), ZOO, ids=[f"{read.__name__}-{name}" for name, read, *_ in ZOO]
)
def test_a_bomb_is_read_or_refused_within_a_gibibyte(
    tmp_path: Path, name: str, read: Callable[[Path], str], make: Callable[[Path], None], expected: str
) -> None:
    make(tmp_path / name)
    said, grown = in_a_gibibyte(read, tmp_path / name)
    print(f"{read.__name__} {name}: {(tmp_path / name).stat().st_size:,} bytes, {grown} MiB: {said[:120]}")
    if read.__name__ == said or expected[0].isdigit():
        assert said == expected
    else:
        assert re.search(expected, said)
        assert said.startswith("CorruptSourceError")
    assert grown < 1024


@pytest.mark.parametrize("together", [1, 30, 4 << 20])
def test_lines_do_not_depend_on_block_boundaries(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataprep_assets.sources.readers.row_files._GROUP_BYTES", together)
    lines = [b"a", b"", b"b" * 50, b"c" * 9, b"d" * 80, b"e"]
    for end in (b"", b"\n"):
        raw = b"\n".join(lines) + end
        starts = [sum(len(line) + 1 for line in lines[:i]) for i in range(len(lines))]
        for size in range(1, len(raw) + 1):
            blocks = [raw[i : i + size] for i in range(0, len(raw), size)]
            # With the default limits, no line is refused.
            assert [line for part, _ in read_whole_lines(blocks) if part for line in part.split()] == lines
            assert sum(len(part) for part, _ in read_whole_lines(blocks) if part) == len(lines)
            found = []
            for part, byte in read_whole_lines(blocks, 20):
                if part is None:
                    found.append((byte, None))
                    continue
                for line in part.split():
                    found.append((byte, line if len(line) <= 20 else None))
                    byte += len(line) + 1
            assert found == [(s, line if len(line) <= 20 else None) for s, line in zip(starts, lines, strict=True)]


def test_ranges_count_records_that_are_too_large(tmp_path: Path) -> None:
    compressed(path := tmp_path / "a.jsonl.zst", long_line(9))
    for first, stop, expected in ((1, 2, [1]), (2, 3, ["2 too_large"]), (3, None, [3])):
        reader = read_records(
            path,
            fields=RecordFields("text", max_record_bytes=MIB),
            format="jsonl",
            compression="zstd",
            label="a",
            rows=RowRange(first, stop),
        )
        found: list[object] = []
        for block in reader:
            found += [block.row(i) for i in range(len(block.texts))]
            found += [f"{bad.row} {bad.reason}" for bad in block.bad]
            assert all(bad.byte == len(GOOD) for bad in block.bad)
        assert found == expected


def test_a_larger_window_must_be_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    how = zstandard.ZstdCompressionParameters(window_log=28, write_content_size=False)
    writer = zstandard.ZstdCompressor(compression_params=how).compressobj()
    (path := tmp_path / "a.zst").write_bytes(writer.compress(GOOD) + writer.flush())
    with raises(CorruptSourceError, 128 << 20, "--long=27", f"{WINDOW}=2147483648"):
        list(BlockReader(path, "zstd"))
    monkeypatch.setenv(WINDOW, str(1 << 28))
    assert b"".join(BlockReader(path, "zstd")) == GOOD


def test_rows_that_start_late_in_a_large_page_and_span_small_ones_take_at_most_twice_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, limit = 1280, MIB
    monkeypatch.setattr(parquet_pages, "BATCH_BYTES", limit)
    # A page that exceeds the page size ends where a chunk of the column ends.
    pages = [512, *[1] * 600]
    path = tmp_path / "f.parquet"
    pq.write_table(
        pa.table({"text": pa.chunked_array([pa.array(["v" * value] * values) for values in pages])}),
        path,
        use_dictionary=False,
        data_page_size=value // 2,
        write_batch_size=512,
    )
    with path.open("rb") as file:
        found = parquet_pages.count_rows_at_once(file.fileno(), pq.read_metadata(path), 0, None, 512, lambda _: None)
    page_of = [page for page, values in enumerate(pages) for _ in range(values)]
    touched = max(
        sum(pages[page_of[start] : page_of[start + found - 1] + 1]) * value for start in range(len(page_of) - found + 1)
    )
    # A strict limit would give fewer rows per batch, and so move the ends of the pages of tag tables.
    assert found == 512
    assert limit < touched < 2 * limit
