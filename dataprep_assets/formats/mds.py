"""MosaicML's MDS: a token stream as fixed-length samples for `StreamingDataset` (Composer, LLM Foundry).

`index.json` lists the shards; a shard is, little-endian, uint32 samples n, uint32 absolute offsets of shape
``(n + 1,)``, the shard's configuration as JSON with sorted keys, then the samples (mosaicml-streaming,
``streaming/base/format/mds/writer.py``, ``MDSWriter``). One column, ``tokens``, of the fixed encoding
``ndarray:int32:<length>``, so a sample is its ids and nothing else.

Samples are consecutive windows of the stream that do not overlap; ids after the last whole window are left out, and
`write_mds` says how many. Offsets are uint32, so a shard stays below 4 GiB. Files are those that `MDSWriter` would
write for the same samples, size limit and hash.

Entry points: `write_mds`, `validate`.
"""

import hashlib
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep_assets.errors import FormatError
from dataprep_assets.formats import flat_bins

__all__ = ["COLUMN", "INDEX", "MdsWritten", "validate", "write_mds"]

INDEX = "index.json"
COLUMN = "tokens"
HASH = "sha256"
SHARD_BYTES = 1 << 26
"""MDSWriter's own default size limit."""
_IDS = np.dtype("<i4")


@dataclass(frozen=True, kw_only=True)
class MdsWritten:
    """What was written; `tokens_left_out` are those after the last whole sample."""

    samples: int
    shards: int
    tokens_left_out: int


def _config(length: int, shard_bytes: int) -> dict[str, Any]:
    return {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": [HASH],
        "size_limit": shard_bytes,
        "column_names": [COLUMN],
        "column_encodings": [f"ndarray:int32:{length}"],
        "column_sizes": [length * _IDS.itemsize],
    }


def write_mds(directory: Path, tokens: npt.NDArray[Any], *, length: int, shard_bytes: int = SHARD_BYTES) -> MdsWritten:
    """Write a stream (ids, shape ``(tokens,)``, unsigned) into the new folder ``directory`` as samples of ``length``.

    ``shard_bytes`` limits a shard's size. FormatError for a length or limit that cannot be, and for an id of 2**31 or
    more; FileExistsError when the folder exists.
    """
    config = _config(length, shard_bytes) if length > 0 else {}
    header = len(json.dumps(config, sort_keys=True).encode()) + 2 * 4
    each = length * _IDS.itemsize + 4
    if length < 1 or shard_bytes >= 1 << 32 or header + each > shard_bytes:
        raise FormatError(
            f"samples of {length} tokens do not fit in shards of at most {shard_bytes} bytes, below 4 GiB"
        )
    directory.mkdir(parents=True)
    samples, per_shard = len(tokens) // length, (shard_bytes - header) // each
    shards = []
    for number, start in enumerate(range(0, samples, per_shard)):
        count = min(per_shard, samples - start)
        block = tokens[start * length : (start + count) * length]
        if int(block.max()) >= 1 << 31:
            raise FormatError(f"id {int(block.max())} does not fit int32, which is what the encoding holds")
        name = f"shard.{number:05d}.mds"
        data = _shard(block.astype(_IDS).tobytes(), count, length, config)
        with flat_bins.create(directory / name) as file:
            file.write(data)
        raw = {"basename": name, "bytes": len(data), "hashes": {HASH: hashlib.sha256(data).hexdigest()}}
        shards.append({**config, "raw_data": raw, "samples": count, "zip_data": None})
    with flat_bins.create(directory / INDEX) as file:  # last: without it there is no dataset
        file.write(json.dumps({"version": 2, "shards": shards}, sort_keys=True).encode())
    return MdsWritten(samples=samples, shards=len(shards), tokens_left_out=len(tokens) - samples * length)


def _shard(samples: bytes, count: int, length: int, config: dict[str, Any]) -> bytes:
    written = json.dumps(config, sort_keys=True).encode()
    first = 4 + 4 * (count + 1) + len(written)
    offsets = first + np.arange(count + 1, dtype=np.int64) * length * _IDS.itemsize
    return struct.pack("<I", count) + offsets.astype("<u4").tobytes() + written + samples


def validate(directory: Path) -> int:
    """The number of samples; FormatError unless every shard is whole, of its digest, and as the index describes it."""
    try:
        shards = json.loads((directory / INDEX).read_bytes())["shards"]
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{directory / INDEX}: not an MDS index: {error}") from error
    listed = {shard["raw_data"]["basename"] for shard in shards}
    if odd := sorted({path.name for path in directory.glob("*.mds")} ^ listed):
        raise FormatError(f"{directory}: {odd[0]}: listed and not there, or there and not listed")
    return sum(_check_shard(directory, shard) for shard in shards)


def _check_shard(directory: Path, shard: dict[str, Any]) -> int:
    path = directory / shard["raw_data"]["basename"]
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != shard["raw_data"]["hashes"][HASH]:
        raise FormatError(f"{path}: its {HASH} is not that of the index")
    count: int = shard["samples"]
    offsets = np.frombuffer(data, "<u4", count + 1, 4) if len(data) >= 8 + 4 * count else np.zeros(1, "<u4")
    (size,) = shard["column_sizes"]
    config = {key: value for key, value in shard.items() if key not in ("raw_data", "samples", "zip_data")}
    if struct.unpack_from("<I", data)[0] != count or len(offsets) != count + 1 or offsets[-1] != len(data):
        raise FormatError(f"{path}: its counts and offsets are not those of {count} samples in {len(data)} bytes")
    if not (np.diff(offsets.astype(np.int64)) == size).all():
        raise FormatError(f"{path}: its samples are not {size} bytes each")
    if json.loads(data[8 + 4 * count : int(offsets[0])]) != config:
        raise FormatError(f"{path}: its configuration is not that of the index")
    return count
