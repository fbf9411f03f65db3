"""Faults of rows: lost, doubled, reordered, shifted by one, or with shifted ids, in every format that the pipelines
write.

Adjacent descriptions of the rows are changed as well: ends, indexes, sample ids, the ledger, and the receipt matches
the result. Only a comparison with the expected rows can detect the fault.
"""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import zstandard

from dataprep_assets.formats import document_ends, megatron, npy_shards, sample_ids
from dataprep_assets.formats.tensorflow import array_record, tfrecord
from dataprep_assets.integrity.receipt import NAME
from dataprep_assets_tests.tools.drill.box import Box, Target, edit_receipt, reseal, write
from dataprep_assets_tests.tools.drill.bytes_of_files import files_of
from dataprep_assets_tests.tools.drill.faults import Apply, Fault, InapplicableError

Rows = list[Any]


@dataclass(frozen=True)
class RowFile:
    """The functions that read and rewrite the rows of one kind of file, and that shift the ids in a row by one."""

    read: Callable[[Path], Rows]
    write: Callable[[Path, Rows], None]
    shifted: Callable[[Any], Any] | None = None


def _ids_in_json(line: bytes) -> bytes:
    value = json.loads(line)
    for key, item in value.items():
        if isinstance(item, list) and len(item) > 1 and all(isinstance(one, int) for one in item):
            value[key] = item[1:] + item[:1]
            return json.dumps(value, separators=(",", ":")).encode() + b"\n"
    raise InapplicableError


def _lines(path: Path) -> Rows:
    return path.read_bytes().splitlines(keepends=True)


def _packed_lines(path: Path) -> Rows:
    return zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes()).splitlines(keepends=True)


def _write_packed(path: Path, rows: Rows) -> None:
    write(path, zstandard.compress(b"".join(rows)))


def _rewritten(make: Callable[[Path, Rows], object]) -> Callable[[Path, Rows], None]:
    """Return a writer of new files that replace old ones."""

    def apply(path: Path, rows: Rows) -> None:
        path.unlink()
        make(path, rows)

    return apply


def _rolled(ids: Any) -> Any:
    return np.roll(ids, 1)


def _read_stream(path: Path) -> Rows:
    ends = np.asarray(document_ends.open_ends(path.with_name("document_ends.bin"))).astype(np.int64)
    ids = np.fromfile(path, _dtype_of(path))
    hashes = path.with_name("document_ids.bin")
    keys = np.fromfile(hashes, "<u8").tolist() if hashes.exists() else [0] * len(ends)
    return list(zip([ids[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)], keys, strict=True))


def _dtype_of(path: Path) -> str:
    facts = json.loads((path.parent / NAME).read_bytes())["facts"]
    return {"uint16": "<u2", "uint32": "<u4"}[facts["dtype"]]


def _write_stream(path: Path, rows: Rows) -> None:
    """Write the ids, their ends and hashes, an index next to them, and the numbers of the ledger."""
    kind = _dtype_of(path)
    before = len(np.fromfile(path, kind))
    write(path, b"".join(ids.astype(kind).tobytes() for ids, _ in rows))
    ends = np.cumsum([len(ids) for ids, _ in rows], dtype=np.uint64)
    write(path.with_name("document_ends.bin"), ends.astype("<u8").tobytes())
    if (hashes := path.with_name("document_ids.bin")).exists():
        write(hashes, np.array([key for _, key in rows], "<u8").tobytes())
    if (index := path.with_suffix(".idx")).exists():
        index.unlink()
        megatron.write_idx(index, ends, dtype="uint16" if kind == "<u2" else "uint32")
    more = int(ends[-1]) - before if len(ends) else -before

    def change(value: dict[str, Any]) -> None:
        ledger = value["ledger"]
        ledger["tokens"] += more
        gained = len(rows) - ledger["documents"]
        for name in ("documents", "separators", "rows_in"):
            ledger[name] += gained
        if value["sources"]:
            line = value["sources"][-1]
            line["tokens"] += more
            line["documents"] += gained
            line["rows_in"] += gained

    edit_receipt(path.parent, change)


def _shift_document(row: Any) -> Any:
    ids, key = row
    return np.concatenate([np.roll(ids[:-1], 1), ids[-1:]]), key


def _npy(path: Path) -> Rows:
    length = 32
    return list(np.asarray(npy_shards.open_shard(path, sequence_length=length)).reshape(-1, length))


def _write_npy(path: Path, rows: Rows) -> None:
    data = np.concatenate(rows)
    kind = "uint16" if data.dtype.itemsize == 2 else "uint32"
    write(path, npy_shards.build_header(len(data), kind) + data.tobytes())
    (ids,) = path.parent.glob("sample_ids_*.bin")
    ids.unlink()
    sample_ids.write(ids, [sample_ids.compute_sample_ids(data, rows[0].size)])


def _flat(width: str, row: int = 16) -> RowFile:
    """Return the format of ids without row ends, as rows of a few ids."""

    def read(path: Path) -> Rows:
        ids = np.fromfile(path, width)
        return [ids[i : i + row] for i in range(0, len(ids), row)]

    return RowFile(read, lambda path, rows: write(path, b"".join(ids.tobytes() for ids in rows)), _rolled)


def _mds(path: Path) -> Rows:
    data = path.read_bytes()
    count = int(np.frombuffer(data, "<u4", 1)[0])
    offsets = np.frombuffer(data, "<u4", count + 1, 4)
    return [data[: int(offsets[0])], *(data[a:b] for a, b in pairwise(offsets))]


def _write_mds(path: Path, rows: Rows) -> None:
    """Write a shard with an unchanged number of samples, and its digest in the index."""
    import hashlib

    data = b"".join(rows)
    write(path, data)
    index = json.loads((path.parent / "index.json").read_bytes())
    for shard in index["shards"]:
        if shard["raw_data"]["basename"] == path.name:
            shard["raw_data"]["hashes"]["sha256"] = hashlib.sha256(data).hexdigest()
            shard["raw_data"]["bytes"] = len(data)
    write(path.parent / "index.json", json.dumps(index, sort_keys=True).encode())


def _parquet(path: Path) -> Rows:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    return [table.slice(i, 1) for i in range(table.num_rows)]


def _write_parquet(path: Path, rows: Rows) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.concat_tables(rows).combine_chunks(), sink, compression="zstd")
    write(path, sink.getvalue())


def _shift_table(row: Any) -> Any:
    import pyarrow as pa

    (value,) = row.to_pylist()
    name = next(name for name in ("input_ids", "tokens", *value) if isinstance(value.get(name), list))
    value[name] = value[name][-1:] + value[name][:-1]
    return pa.Table.from_pylist([value], row.schema)


LINES = RowFile(_lines, lambda path, rows: write(path, b"".join(rows)), _ids_in_json)
TFRECORDS = RowFile(
    lambda path: [record.payload for record in tfrecord.read_records(path)],
    _rewritten(lambda path, rows: tfrecord.write(path, rows)),
    lambda payload: payload[:-1] + bytes([payload[-1] ^ 1]),
)
ARRAY_RECORDS = RowFile(
    lambda path: list(array_record.read_records(path)),
    _rewritten(lambda path, rows: array_record.write(path, rows)),
    lambda payload: payload[:-1] + bytes([payload[-1] ^ 1]),
)
FIXED = "a file of as many rows as before"


def _format(path: Path) -> tuple[str, RowFile] | None:
    """Return the format of a file by its name, and how its rows are changed."""
    name = path.name
    if name in ("tokens.bin", f"{path.parent.name}.bin") and path.with_name("document_ends.bin").exists():
        return "token stream", RowFile(_read_stream, _write_stream, _shift_document)
    kinds = {
        ".jsonl": ("JSON lines", LINES),
        ".zst": ("JSON lines", RowFile(_packed_lines, _write_packed, _ids_in_json)),
        ".parquet": ("Parquet", RowFile(_parquet, _write_parquet, _shift_table)),
        ".mds": ("MDS", RowFile(_mds, _write_mds, lambda data: data[4:] + data[:4])),
        ".tfrecords": ("TFRecord", TFRECORDS),
        ".array_record": ("ArrayRecord", ARRAY_RECORDS),
        ".ds": ("flat ids", _flat("<u2")),
        ".idx": ("Megatron idx", _flat("<i4", 1)),
        ".index": ("datatrove index", _flat("<u8", 1)),
    }
    if path.suffix in kinds:
        return kinds[path.suffix]
    if ".tfrecord-" in name:
        return "TFRecord", TFRECORDS
    if ".array_record-" in name:
        return "ArrayRecord", ARRAY_RECORDS
    if path.suffix == ".npy" and list(path.parent.glob("sample_ids_*.bin")):
        return "npy", RowFile(_npy, _write_npy, _rolled)
    if path.suffix in (".npy", ".bin") and name != "patients.bin":
        return "flat ids", _flat("<u2")
    return None


def lost(rows: Rows, random: Random) -> Rows:
    """Remove one row."""
    at = random.randrange(len(rows))
    return [*rows[:at], *rows[at + 1 :]]


def doubled(rows: Rows, random: Random) -> Rows:
    """Repeat one row."""
    at = random.randrange(len(rows))
    return [*rows[: at + 1], *rows[at:]]


def reordered(rows: Rows, random: Random) -> Rows:
    """Swap two rows."""
    a, b = random.sample(range(len(rows)), 2)
    rows = list(rows)
    rows[a], rows[b] = rows[b], rows[a]
    return rows


CHANGES: dict[str, Callable[[Rows, Random], Rows]] = {
    "rows lost": lost,
    "rows doubled": doubled,
    "rows reordered": reordered,
}


def _same(a: Rows, b: Rows) -> bool:
    return len(a) == len(b) and all(_bytes(x) == _bytes(y) for x, y in zip(a, b, strict=True))


def _bytes(row: Any) -> bytes:
    if isinstance(row, bytes):
        return row
    if isinstance(row, tuple):
        return b"".join(_bytes(part) for part in row)
    if isinstance(row, np.ndarray):
        return row.tobytes()
    return repr(row.to_pylist() if hasattr(row, "to_pylist") else row).encode()


def _applied(kind: str, of_format: str) -> Apply:
    def apply(box: Box, target: Target, random: Random) -> str:
        folder = box.folder(target)
        files = [(path, found[1]) for path in files_of(folder) if (found := _format(path)) and found[0] == of_format]
        if not files:
            raise InapplicableError
        path, kept = random.choice(files)
        rows = kept.read(path)
        head: Rows = []
        if of_format == "MDS":
            head, rows = rows[:1], rows[1:]
        if len(rows) < 2:
            raise InapplicableError
        for _ in range(20):
            changed = _changed(kind, of_format, kept, rows, random)
            if not _same(changed, rows):
                break
        else:
            raise InapplicableError
        kept.write(path, head + changed)
        reseal(folder)
        return path.name

    return apply


def _changed(kind: str, of_format: str, kept: RowFile, rows: Rows, random: Random) -> Rows:
    if kind == "ids shifted":
        if kept.shifted is None:
            raise InapplicableError
        at = random.randrange(len(rows))
        return [*rows[:at], kept.shifted(rows[at]), *rows[at + 1 :]]
    changed = CHANGES[kind](rows, random)
    if of_format == "MDS" and len(changed) != len(rows):
        # Replace a sample with a copy of another instead, so that the number of samples still matches the shard's
        # header.
        at = random.randrange(1, len(rows))
        changed = [*rows[:at], rows[at - 1], *rows[at + 1 :]]
    return changed


def row_faults(box: Box, places: int) -> Iterator[Fault]:
    """Yield every fault of rows, for every artifact and format that has any."""
    for target in box.targets():
        formats: Sequence[str] = sorted({found[0] for path in files_of(box.folder(target)) if (found := _format(path))})
        for of_format in formats:
            for kind in (*CHANGES, "ids shifted"):
                for place in range(places):
                    yield Fault(kind=kind, name=of_format, target=target, apply=_applied(kind, of_format), place=place)
