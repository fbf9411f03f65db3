"""Tests of `dataprep_assets.formats.tensorflow.array_record`, some with its readers in Grain and TFDS."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.errors import ConfigError, FormatError
from dataprep_assets.formats.tensorflow import array_record, example, tfds
from dataprep_assets.formats.tensorflow.tfds import DatasetInfo, Split
from dataprep_assets.formats.tensorflow.tfrecord import ShardCount
from dataprep_assets_tests.formats import shard_reader
from dataprep_assets_tests.formats.packed import assert_same, declare_columns, make_packed_rows
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.readers.tfds import read_at, read_rows, read_source

ROWS = make_packed_rows(9, 200)
COLUMNS = declare_columns(ROWS)
PAYLOADS = list(example.encode_rows(ROWS))


@pytest.fixture(scope="module")
def package() -> Any:
    reason = "array_record is not installed (extra tfds)"
    return pytest.importorskip("array_record.python.array_record_module", reason=reason)


@pytest.fixture
def shard(package: Any, tmp_path: Path) -> Path:
    array_record.write(tmp_path / "shard", PAYLOADS)
    return tmp_path / "shard"


def test_records_come_back(shard: Path) -> None:
    assert list(array_record.read_records(shard)) == PAYLOADS
    assert array_record.count(shard) == 9
    assert shard_reader.decode_array_record(shard, COLUMNS) == ShardCount(
        records=9, payload_bytes=sum(map(len, PAYLOADS))
    )
    assert_same(example.decode_rows(list(array_record.read_records(shard)), COLUMNS), ROWS)


def test_bytes_depend_only_on_the_payloads(shard: Path, package: Any, tmp_path: Path) -> None:
    """They do not depend on the process, its processors, or the number of the package's threads."""
    code = (
        "import os, sys, pathlib; from dataprep_assets.formats.tensorflow import array_record, example;"
        "from dataprep_assets_tests.formats.packed import make_packed_rows;"
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]) if hasattr(os, 'sched_setaffinity') else None;"
        "array_record.write(pathlib.Path(sys.argv[1]), list(example.encode_rows(make_packed_rows(9, 200))))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "elsewhere")], check=True)
    assert (tmp_path / "elsewhere").read_bytes() == shard.read_bytes()
    for threads in (1, 8):
        writer = package.ArrayRecordWriter(
            str(tmp_path / "threads"), f"{array_record.OPTIONS},max_parallelism:{threads}"
        )
        for payload in PAYLOADS:
            writer.write(payload)
        writer.close()
        assert (tmp_path / "threads").read_bytes() == shard.read_bytes()


def test_every_record_has_its_own_chunk(shard: Path, package: Any) -> None:
    reader = package.ArrayRecordReader(str(shard))
    assert "group_size:1," in reader.writer_options_string()
    assert "zstd:3" in reader.writer_options_string()
    reader.close()


def test_a_file_without_records_is_valid(package: Any, tmp_path: Path) -> None:
    assert array_record.write(tmp_path / "a", []) == ShardCount(records=0, payload_bytes=0)
    assert (tmp_path / "a").stat().st_size == 128 << 10
    assert shard_reader.decode_array_record(tmp_path / "a", COLUMNS) == ShardCount(records=0, payload_bytes=0)


def test_grain_reads_rows_in_random_order(shard: Path) -> None:
    assert read_at([shard], [8, 0, 5]) == (9, [PAYLOADS[row] for row in (8, 0, 5)])


def _directory(root: Path) -> tuple[Path, DatasetInfo]:
    where = root / "notes" / "1.0.0"
    where.mkdir(parents=True)
    payload_bytes = 0
    for index, part in enumerate((PAYLOADS[:5], PAYLOADS[5:])):
        path = where / tfds.build_shard_name("notes", "train", index, 2, "array_record")
        payload_bytes += array_record.write(path, part).payload_bytes
    split = Split(name="train", shard_lengths=(5, 4), num_bytes=payload_bytes)
    info = DatasetInfo(name="notes", version="1.0.0", splits=(split,), columns=COLUMNS, file_format="array_record")
    tfds.write_metadata(where, info)
    return where, info


def test_a_tfds_directory_is_valid_and_its_defects_are_found(package: Any, tmp_path: Path) -> None:
    where, info = _directory(tmp_path)
    assert shard_reader.read_directory(where) == shard_reader.read_directory(where, records="first") == info
    (first, second) = sorted(where.glob("*.array_record-*"))
    first.rename(where / "x")
    second.rename(first)
    (where / "x").rename(second)
    for records in ("all", "first"):
        with raises(FormatError, first.name, 4, 5):
            shard_reader.read_directory(where, records=records)


def test_tfds_gives_random_access_but_no_dataset(package: Any, tmp_path: Path) -> None:
    where, _ = _directory(tmp_path)
    source = read_source(where, rows=[8, 0, 4, 5])
    assert source.rows == 9
    for row, found in zip((8, 0, 4, 5), source.found, strict=True):
        for name, values in ROWS.items():
            assert np.array_equal(found[name], values[row])
    with pytest.raises(NotImplementedError):
        read_rows(where)


@pytest.mark.parametrize("left", [0, 1, 65_536, 131_072 - 1])
def test_a_truncated_file_is_refused(shard: Path, left: int) -> None:
    os.truncate(shard, left)
    for read in (array_record.count, lambda path: list(array_record.read_records(path))):
        with raises(FormatError, shard):
            read(shard)


def test_a_truncated_file_looks_empty_to_the_package(shard: Path, package: Any) -> None:
    os.truncate(shard, shard.stat().st_size - 1)
    assert package.ArrayRecordReader(str(shard)).num_records() == 0


def test_another_file_type_is_refused(package: Any, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"text" * 100_000)
    with raises(FormatError, tmp_path / "a"):
        array_record.count(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        array_record.count(tmp_path / "none")


def test_damage_in_a_chunk_is_refused_with_its_record(shard: Path) -> None:
    raw = bytearray(shard.read_bytes())
    raw[2000] ^= 1
    shard.write_bytes(raw)
    with raises(FormatError, shard, "record"):
        shard_reader.decode_array_record(shard, COLUMNS)


@pytest.mark.parametrize(("count", "size"), [(1, 196_608), (2, 65_408), (40, 65_000), (300, 30), (5_000, 0)])
def test_records_of_any_size_come_back(package: Any, tmp_path: Path, count: int, size: int) -> None:
    """They span several blocks, end a block exactly, or are so short that their chunk is padded."""
    payloads = [bytes(np.random.default_rng(n).integers(0, 256, size, np.uint8)) for n in range(count)]
    array_record.write(tmp_path / "a", payloads, max_records=count)
    assert list(array_record.read_records(tmp_path / "a")) == payloads


def test_a_record_that_is_not_a_valid_row_is_refused(shard: Path) -> None:
    with raises(FormatError, shard, 0, "inputs"):
        shard_reader.decode_array_record(shard, [column for column in COLUMNS if column.name != "inputs"])


def test_a_refused_shard_leaves_no_file_and_a_finished_one_stays(shard: Path, tmp_path: Path) -> None:
    with raises(FormatError, tmp_path / "over", 256):
        array_record.write(tmp_path / "over", [b"x"] * 257)
    assert not (tmp_path / "over").exists()
    before = shard.read_bytes()
    with pytest.raises(FileExistsError):
        array_record.write(shard, [b"x"])
    assert shard.read_bytes() == before


_FULL = """
import pathlib, resource, signal, sys
from dataprep_assets.formats.tensorflow import array_record
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (70_000, 70_000))
path = pathlib.Path(sys.argv[1])
try:
    array_record.write(path, [b"x" * 1000])
except OSError as error:
    print(path.exists(), error)
"""


def test_a_full_disk_is_an_error_and_leaves_no_file(package: Any, tmp_path: Path) -> None:
    pytest.importorskip("resource", reason="no file size limits on this platform")
    command = [sys.executable, "-c", _FULL, str(tmp_path / "a")]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert printed.startswith(f"False {tmp_path / 'a'}: array_record could not write")


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "array_record", None)
    monkeypatch.setitem(sys.modules, "array_record.python", None)
    (tmp_path / "there").touch()
    for use in (
        lambda: array_record.write(tmp_path / "a", []),
        lambda: array_record.count(tmp_path / "there"),
        lambda: list(array_record.read_records(tmp_path / "there")),
    ):
        with raises(ConfigError, "array_record"):
            use()
    assert not (tmp_path / "a").exists()
