"""Arrow files saved by `datasets` are read as it reads them, and truncated ones are never mistaken for shorter ones."""

import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard

from dataprep_assets.errors import CorruptSourceError
from dataprep_assets.planning.manifest import file_format
from dataprep_assets.sources.readers.records import RecordFields, read_records
from dataprep_assets.sources.readers.rows import count_rows, read_rows
from dataprep_assets.stores.files import sha256_file
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.readers import hf_datasets

ROWS: list[dict[str, Any]] = [
    {"id": at, "text": f"é {at} " + "x" * (at % 7), "of": {"lang": "de"}} for at in range(2500)
]


def _texts(path: Path, **given: object) -> list[str]:
    reader = read_records(path, fields=RecordFields("text"), format="arrow", compression=None, label=path.name, **given)  # type: ignore[arg-type]
    return [text for block in reader for text in block.texts]


def test_a_folder_saved_by_datasets_has_its_rows(tmp_path: Path) -> None:
    kept = [row["id"] for row in ROWS if row["id"] % 3 != 1]
    loaded = hf_datasets.saved(tmp_path / "saved", ROWS, kept, 3)
    files = sorted((tmp_path / "saved" / "train").glob("*.arrow"))
    assert len(files) == 3
    assert {file_format(path.name) for path in files} == {("arrow", None)}
    assert [text for path in files for text in _texts(path)] == [row["text"] for row in loaded]
    blocks = [b for path in files for b in read_rows(path, format="arrow", compression=None, label="x")]
    assert [row for block in blocks for row in block.rows] == loaded


def test_a_stream_that_ends_between_two_batches_is_refused(tmp_path: Path) -> None:
    """pyarrow itself reads it as a shorter stream."""
    table, path = pa.table({"text": ["a", "b", "c", "d"]}), tmp_path / "x.arrow"
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
        end = sink.tell()
    path.write_bytes(sink.getvalue().to_pybytes()[:end])
    assert pa.ipc.open_stream(path.read_bytes()).read_all().num_rows == 4
    with raises(CorruptSourceError, "x.arrow", 5):
        _texts(path)
    for cut in (1, 9, 60, end - 4):
        path.write_bytes(sink.getvalue().to_pybytes()[:-cut])
        with raises(CorruptSourceError, "x.arrow"):
            _texts(path)
    path.write_bytes(b"no Arrow at all, but as long as a header of it")
    with raises(CorruptSourceError, "x.arrow"):
        count_rows(path, format="arrow", compression=None, label="x.arrow")


@pytest.mark.parametrize("compression", ["uncompressed", "zstd"])
def test_a_file_of_polars_is_read(tmp_path: Path, compression: str) -> None:
    """It has an additional block between the magic number and the schema."""
    polars, path = pytest.importorskip("polars"), tmp_path / "x.arrow"
    polars.DataFrame(ROWS).write_ipc(path, compression=compression)
    assert _texts(path) == [row["text"] for row in ROWS]
    reader = read_rows(path, format="arrow", compression=None, label="x")
    assert [row for block in reader for row in block.rows] == ROWS
    assert (reader.sha256, reader.bytes_read) == (sha256_file(path), path.stat().st_size)
    path.write_bytes(zstandard.compress(path.read_bytes()))
    with raises(CorruptSourceError, "write_ipc_stream"):
        count_rows(path, format="arrow", compression="zstd", label="x.arrow.zst")


def test_values_that_are_not_texts_are_bad_rows_and_large_batches_become_small_blocks(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", None, "x" * 5000, "d"], "other": [1, 2, 3, 4]})
    path = tmp_path / "x.arrow"
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    reader = read_records(
        path,
        fields=RecordFields("text", "other", max_record_bytes=2000),
        format="arrow",
        compression=None,
        label="x",
    )
    (block,) = list(reader)
    assert (block.texts, block.ids, block.rows) == (["a", "d"], ["1", "4"], [1, 4])
    assert [(bad.row, bad.byte, bad.reason) for bad in block.bad] == [(2, -1, "null_text"), (3, -1, "too_large")]
    long = pa.table({"text": ["y" * (1 << 20)] * 64})
    with pa.ipc.new_stream(str(path), long.schema) as writer:
        writer.write_table(long)
    sizes = [len(block.rows) for block in read_rows(path, format="arrow", compression=None, label="x")]
    assert sum(sizes) == 64
    assert max(sizes) <= 16


def test_read_bytes_show_the_progress_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    table = pa.table({"text": ["x" * 1000] * 16_000})
    with pa.ipc.new_file(path, table.schema) as file:
        for start in range(0, 16_000, 2000):
            file.write_table(table.slice(start, 2000))
    reader = read_rows(path, format="arrow", compression=None, label="a.arrow")
    blocks = iter(reader)
    rows = len(next(blocks).rows)
    assert path.stat().st_size // 8 <= reader.bytes_read <= path.stat().st_size // 2
    assert rows + sum(len(block.rows) for block in blocks) == 16_000
    assert reader.bytes_read == path.stat().st_size
    assert reader.sha256 == sha256_file(path)


OFFSETS = struct.pack("<4i", 0, 4, 8, 12)
"""The offsets of three texts of four characters."""


@pytest.mark.parametrize("writer", [pa.ipc.new_file, pa.ipc.new_stream])
@pytest.mark.parametrize(
    "texts",
    [
        pa.array(["aaaa", "bbbb", "cccc"]),
        pa.array([[{"of": text}] for text in ("aaaa", "bbbb", "cccc")]),
        pa.array(["aaaa", "bbbb", "cccc"]).dictionary_encode(),
        pa.FixedSizeListArray.from_arrays(pa.array(["aaaa", "bbbb", "cccc"]), 1),
    ],
    ids=["text", "lists", "dictionary", "fixed"],
)
def test_an_offset_outside_of_the_data_is_an_error_and_does_not_end_the_process(
    tmp_path: Path, writer: Any, texts: Any
) -> None:
    path, table = tmp_path / "f.arrow", pa.table({"text": texts})
    with writer(path, table.schema) as file:
        file.write_table(table)
    whole = path.read_bytes()

    def count() -> int:
        rows = read_rows(path, format="arrow", compression=None, label="f.arrow")
        return sum(len(block.rows) for block in rows)

    assert (count(), whole.count(OFFSETS)) == (3, 1)
    for wrong in ((0, 4, 2, 12), (0, -5, 8, 12), (0, 4, 8, 100_000), (0, 4, 8, 8_000_000), (0, 4, 50_000, 12)):
        path.write_bytes(whole.replace(OFFSETS, struct.pack("<4i", *wrong)))
        with raises(CorruptSourceError, "f.arrow", 1):
            count()
