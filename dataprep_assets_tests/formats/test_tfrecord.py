"""Tests of `dataprep_assets.formats.tensorflow.tfrecord`, some with TensorFlow itself."""

import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dataprep_assets.errors import FormatError
from dataprep_assets.formats.tensorflow import example, tfrecord
from dataprep_assets.formats.tensorflow.example import FeatureColumn
from dataprep_assets.formats.tensorflow.tfrecord import ShardCount
from dataprep_assets_tests.formats import packed, shard_reader
from dataprep_assets_tests.formats.packed import assert_same, declare_columns, make_packed_rows
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.readers.process import LibraryError
from dataprep_assets_tests.readers.tensorflow import read_records, run_bench, write_examples

PAYLOADS = [b"", b"a", bytes(range(256)), b"\x00" * 1000, b"123456789"]
FRAMING = 16


def _crc32c(content: bytes) -> int:
    """Compute CRC-32C one bit at a time."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _masked(content: bytes) -> bytes:
    crc = _crc32c(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) % 2**32)


def _frame(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return length + _masked(length) + payload + _masked(payload)


def _write(path: Path, payloads: list[bytes]) -> Path:
    path.write_bytes(b"".join(map(_frame, payloads)))
    return path


def _payloads(path: Path) -> list[bytes]:
    return [record.payload for record in tfrecord.read_records(path)]


def test_a_file_is_its_frames_with_the_checksum_of_the_standard(tmp_path: Path) -> None:
    assert _crc32c(b"123456789") == 0xE3069283
    written = tfrecord.write(tmp_path / "a", PAYLOADS)
    assert (tmp_path / "a").read_bytes() == b"".join(map(_frame, PAYLOADS))
    assert written == ShardCount(records=5, payload_bytes=1 + 256 + 1000 + 9) == tfrecord.count(tmp_path / "a")


def test_records_are_read_back_with_their_positions(tmp_path: Path) -> None:
    _write(tmp_path / "a", PAYLOADS)
    found = list(tfrecord.read_records(tmp_path / "a"))
    assert [record.payload for record in found] == PAYLOADS
    assert [record.number for record in found] == [0, 1, 2, 3, 4]
    assert [record.offset for record in found] == [0, 16, 33, 305, 1321]


def test_files_equal_tensorflows_byte_for_byte(tmp_path: Path) -> None:
    rows = make_packed_rows(5, 700)
    tfrecord.write(tmp_path / "ours", example.encode_rows(rows))
    write_examples(tmp_path / "theirs", rows)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_tensorflow_reads_every_record(tmp_path: Path) -> None:
    tfrecord.write(tmp_path / "a", PAYLOADS)
    assert read_records(tmp_path / "a") == PAYLOADS


def test_a_file_without_records_is_empty_and_valid(tmp_path: Path) -> None:
    assert tfrecord.write(tmp_path / "a", []) == ShardCount(records=0, payload_bytes=0)
    assert (tmp_path / "a").read_bytes() == b""
    assert shard_reader.decode_tfrecord(tmp_path / "a", declare_columns(make_packed_rows(1, 4))) == ShardCount(
        records=0, payload_bytes=0
    )


@pytest.mark.parametrize("rows", [1, 3, 4, 10])
def test_columns_are_read_back_in_batches(tmp_path: Path, rows: int) -> None:
    written = make_packed_rows(10, 60)
    tfrecord.write(tmp_path / "a", example.encode_rows(written))
    batches = list(shard_reader.read_batches(tmp_path / "a", declare_columns(written), rows=rows))
    assert [len(batch["inputs"]) for batch in batches] == [min(rows, 10 - at) for at in range(0, 10, rows)]
    assert_same({name: np.concatenate([batch[name] for batch in batches]) for name in written}, written)


def test_a_shard_has_at_most_256_records_and_a_refused_one_leaves_no_file(tmp_path: Path) -> None:
    assert tfrecord.write(tmp_path / "full", [b"x"] * 256).records == 256
    with raises(FormatError, tmp_path / "over", 256):
        tfrecord.write(tmp_path / "over", [b"x"] * 257)
    assert not (tmp_path / "over").exists()


def test_a_finished_file_is_never_overwritten(tmp_path: Path) -> None:
    tfrecord.write(tmp_path / "a", [b"first"])
    with pytest.raises(FileExistsError):
        tfrecord.write(tmp_path / "a", [b"second"])
    assert _payloads(tmp_path / "a") == [b"first"]


def test_names_count_from_1_and_sort_in_order() -> None:
    assert tfrecord.build_shard_name("2004-07", 0, 1) == "2004-07_001-of-001.tfrecords"
    assert tfrecord.build_shard_name("2004-07", 11, 12) == "2004-07_012-of-012.tfrecords"
    names = [tfrecord.build_shard_name("1999-12", index, 1200) for index in range(1200)]
    assert names == sorted(names)
    assert names[-1] == "1999-12_1200-of-1200.tfrecords"


@pytest.mark.parametrize(
    ("cohort", "index", "total"),
    [("2004-13", 0, 1), ("2004-7", 0, 1), ("2004-07\n", 0, 1), ("", 0, 1), ("2004-07", 1, 1), ("2004-07", -1, 1)],
)
def test_invalid_names_are_refused(cohort: str, index: int, total: int) -> None:
    with raises(FormatError, "cohort", repr(cohort)[1:-1]):
        tfrecord.build_shard_name(cohort, index, total)


def test_a_truncation_within_a_record_is_refused_and_one_between_two_loses_records(tmp_path: Path) -> None:
    payloads = [b"abc", b"", b"defgh"]
    raw = b"".join(map(_frame, payloads))
    between = {0: 0, 19: 1, 35: 2, len(raw): 3}
    path = tmp_path / "a"
    for size in range(len(raw) + 1):
        path.write_bytes(raw[:size])
        if size in between:
            assert _payloads(path) == payloads[: between[size]]
            assert tfrecord.count(path).records == between[size]
            continue
        record = sum(1 for end in (19, 35) if size > end)
        for read in (_payloads, tfrecord.count):
            with raises(FormatError, path, size, record):
                read(path)


def test_every_flipped_bit_is_refused(tmp_path: Path) -> None:
    raw = b"".join(map(_frame, [b"abc", b"", b"defgh"]))
    path = tmp_path / "a"
    for bit in range(8 * len(raw)):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        record, offset = (0, 0) if bit < 8 * 19 else (1, 19) if bit < 8 * 35 else (2, 35)
        with raises(FormatError, path, record, offset):
            _payloads(path)


def test_counting_does_not_read_payloads(tmp_path: Path) -> None:
    path = _write(tmp_path / "a", [b"abc", b"defgh"])
    with open(path, "r+b") as handle:
        handle.seek(13)
        handle.write(b"?")
    assert tfrecord.count(path) == ShardCount(records=2, payload_bytes=8)
    with raises(FormatError, path, 0):
        _payloads(path)


def test_a_length_beyond_the_file_is_refused_before_reading(tmp_path: Path) -> None:
    """The checksum of the length is valid, so only the file size shows the defect; 2**62 bytes are not allocated."""
    length = struct.pack("<Q", 1 << 62)
    (tmp_path / "a").write_bytes(_frame(b"abc") + length + _masked(length) + b"abc")
    for read in (_payloads, tfrecord.count):
        with raises(FormatError, tmp_path / "a", 34, 1, 19):
            read(tmp_path / "a")


def _replace(path: Path, content: bytes) -> None:
    path.write_bytes(content)


A = FeatureColumn(name="a", length=2)


def _rows(*values: list[int]) -> list[bytes]:
    return [packed.encode_example([packed.encode_entry(b"a", row)]) for row in values]


# These are three records with one column of two values. Their frames have 31 bytes and begin at 0, 31 and 62.
GOOD = _rows([1, 2], [3, 4], [5, 6])
DEFECTS: dict[str, tuple[Callable[[Path], None], tuple[object, ...]]] = {
    "cut within the last record": (lambda path: os.truncate(path, 92), (92, 2, 62)),
    "cut within a header": (lambda path: os.truncate(path, 64), (2, 62)),
    "bytes behind the last record": (
        lambda path: _replace(path, path.read_bytes() + b"\n"),
        (94, 3, 93),
    ),
    "zeros behind the last record": (
        lambda path: _replace(path, path.read_bytes() + bytes(64)),
        (3, 93, "checksum"),
    ),
    "gzip": (lambda path: _replace(path, gzip.compress(path.read_bytes())), ("gzip",)),
    "not a record file": (lambda path: _replace(path, b'{"inputs": [1, 2]}\n'), ("TFRecord",)),
    "a row too long": (
        lambda path: _replace(path, b"".join(map(_frame, [*GOOD, *_rows([1, 2, 3])]))),
        (3, 93, "'a'", 2),
    ),
    "a column not declared": (
        lambda path: _replace(
            path, b"".join(map(_frame, [packed.encode_example([packed.encode_entry(b"b", [1, 2])])]))
        ),
        (0, "columns: a", "columns: b"),
    ),
    "a record that is no Example": (
        lambda path: _replace(path, b"".join(map(_frame, [GOOD[0], b"text"]))),
        (1, 31, "features"),
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_every_defect_is_refused_with_file_record_and_byte(tmp_path: Path, defect: str) -> None:
    path = _write(tmp_path / "shard", GOOD)
    assert shard_reader.decode_tfrecord(path, [A]) == ShardCount(records=3, payload_bytes=sum(map(len, GOOD)))
    damage, values = DEFECTS[defect]
    damage(path)
    for read in (shard_reader.decode_tfrecord, lambda p, c: list(shard_reader.read_batches(p, c))):
        with raises(FormatError, path, *values):
            read(path, [A])


@pytest.mark.parametrize("defect", ["cut within the last record", "zeros behind the last record", "gzip"])
def test_tensorflow_refuses_the_same_files_without_a_position(tmp_path: Path, defect: str) -> None:
    path = _write(tmp_path / "shard", GOOD)
    DEFECTS[defect][0](path)
    with raises(LibraryError, "DataLossError"):
        read_records(path)


def test_tensorflow_accepts_a_file_truncated_within_a_header(tmp_path: Path) -> None:
    path = _write(tmp_path / "shard", GOOD)
    DEFECTS["cut within a header"][0](path)
    assert read_records(path) == GOOD[:2]


def test_the_benchmark_runs_and_its_writers_agree() -> None:
    pytest.importorskip("simdjson", reason="pysimdjson is not installed")
    code, printed = run_bench(["--rows", "300", "--length", "20", "--runs", "1"])
    assert code == 0
    assert "The bytes of all are equal." in printed
    assert printed.count("(target ") == 2
