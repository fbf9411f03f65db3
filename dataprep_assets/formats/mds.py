"""MosaicML's MDS: a token stream as fixed-length samples for `StreamingDataset` (Composer, LLM Foundry).

`index.json` lists the shards; a shard is, little-endian, uint32 samples n, uint32 absolute offsets of shape
``(n + 1,)``, the shard's configuration as JSON with sorted keys, then the samples (mosaicml-streaming,
``streaming/base/format/mds/writer.py``, ``MDSWriter``). One column, ``tokens``, of the fixed encoding
``ndarray:int32:<length>``, so a sample is its ids and nothing else.

Samples are consecutive windows of the stream that do not overlap; ids after the last whole window are left out, and
`write_mds` says how many. Offsets are uint32, so a shard stays below 4 GiB. Files are those that `MDSWriter` would
write for the same samples, size limit and hash. A shard depends on its own windows alone, so shards are written and
read one at a time, in any order, by any number of threads; a stream of any size takes a shard of memory each.

Entry points: `write_mds`, `validate`, `read_blocks`.
"""

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep_assets.bounds import json_of
from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.stores.files import create_durably, sha256_file

INDEX = "index.json"
COLUMN = "tokens"
HASH = "sha256"
SHARD_BYTES = 1 << 26
"""MDSWriter's own default size limit, so that its files and ours are the same."""
_IDS = np.dtype("<i4")
_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class MdsWritten:
    """What was written; `tokens_left_out` are those after the last whole sample, `digests` SHA-256 by shard file."""

    samples: int
    shards: int
    tokens_left_out: int
    digests: Mapping[str, str]


def _config(length: int, shard_bytes: int) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "format": "mds",
        "compression": None,
        "hashes": [HASH],
        "size_limit": shard_bytes,
        "column_names": [COLUMN],
        "column_encodings": [f"ndarray:int32:{length}"],
        "column_sizes": [length * _IDS.itemsize],
    }


def write_mds(
    directory: Path,
    tokens: npt.NDArray[Any],
    *,
    length: int,
    shard_bytes: int = SHARD_BYTES,
    threads: int = 1,
    resume: bool = False,
) -> MdsWritten:
    """Write a token stream into the folder ``directory`` as samples; returns what was written.

    ``tokens``: ids, unsigned, shape ``(tokens,)``, below 2**31. ``length``: tokens of a sample. ``shard_bytes`` limits
    a shard's size on disk; ``threads`` write as many shards at once, and change no byte. ``resume`` keeps the shards
    that a call with the same arguments left when it was killed; every one that has its name is complete.
    Raises FormatError for a length or limit that cannot be, and for an id of 2**31 or more; raises FileExistsError when
    the folder exists and nothing is to be resumed.
    """
    config = _config(length, shard_bytes) if length > 0 else {}
    # beside its configuration a shard has the number of samples and one offset more than samples, of 4 bytes each
    header = len(json.dumps(config, sort_keys=True).encode()) + 2 * 4
    sample_bytes = length * _IDS.itemsize + 4
    if length < 1 or shard_bytes >= 1 << 32 or header + sample_bytes > shard_bytes:
        raise FormatError(
            f"samples of {count_of(length, 'token does', 'tokens do')} not fit in shards of at most "
            f"{count_of(shard_bytes, 'byte')}, which must be less than 4 GiB"
        )
    directory.mkdir(parents=True, exist_ok=resume)
    samples, per_shard = len(tokens) // length, (shard_bytes - header) // sample_bytes
    starts = range(0, samples, per_shard)
    ensure = partial(
        _ensure_shard, directory, tokens, samples=samples, per_shard=per_shard, length=length, config=config
    )
    with ThreadPoolExecutor(threads) as pool:
        shards = list(pool.map(ensure, range(len(starts)), starts))
    with create_durably(directory / INDEX) as file:  # last: without it there is no dataset
        file.write(_index_bytes(shards))
    return MdsWritten(
        samples=samples,
        shards=len(shards),
        tokens_left_out=len(tokens) - samples * length,
        digests={shard["raw_data"]["basename"]: shard["raw_data"]["hashes"][HASH] for shard in shards},
    )


def _ensure_shard(
    directory: Path,
    tokens: npt.NDArray[Any],
    number: int,
    start: int,
    *,
    samples: int,
    per_shard: int,
    length: int,
    config: dict[str, Any],
) -> dict[str, Any]:
    """Write one shard, which begins with sample ``start``, unless it is kept; its entry in the index."""
    count = min(per_shard, samples - start)
    path = directory / f"shard.{number:05d}.mds"
    if path.exists():
        digest = sha256_file(path)
    else:
        digest = _write_shard(path, tokens[start * length : (start + count) * length], _head(count, length, config))
    raw = {"basename": path.name, "bytes": path.stat().st_size, "hashes": {HASH: digest}}
    return {**config, "raw_data": raw, "samples": count, "zip_data": None}


def _write_shard(path: Path, block: npt.NDArray[Any], head: bytes) -> str:
    """Write one shard of these ids; its SHA-256, taken on the way."""
    if int(block.max()) >= 1 << 31:
        raise FormatError(f"id {int(block.max())} does not fit int32, the type of the encoding")
    digest = hashlib.sha256()
    with create_durably(path) as file:
        for piece in (head, block.astype(_IDS).data.cast("B")):
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def _head(count: int, length: int, config: dict[str, Any]) -> bytes:
    """The bytes of a shard before its samples."""
    config_bytes = json.dumps(config, sort_keys=True).encode()
    begin = 4 + 4 * (count + 1) + len(config_bytes)
    offsets = begin + np.arange(count + 1, dtype=np.int64) * length * _IDS.itemsize
    return struct.pack("<I", count) + offsets.astype("<u4").tobytes() + config_bytes


def validate(directory: Path) -> int:
    """The number of samples.

    Raises FormatError unless every shard is whole, of its digest, and as the index describes it.
    """
    shards = _index(directory)
    if (directory / INDEX).read_bytes() != _index_bytes(shards):
        raise FormatError(
            f"{directory / INDEX}: unexpected content: the index was not written by dataprep, or was edited. "
            "Rebuild the view"
        )
    names = {shard["raw_data"]["basename"] for shard in shards}
    if odd := sorted({path.name for path in directory.glob("*.mds")} ^ names):
        raise FormatError(f"{directory}: {odd[0]}: listed but missing, or not listed")
    return sum(_check_shard(directory, shard) for shard in shards)


def read_blocks(directory: Path) -> Iterator[npt.NDArray[np.int32]]:
    """The ids of all samples in order, a shard at a time: shape ``(samples, length)``, int32, read-only.

    For shards that `validate` accepts; raises FormatError for one whose samples are not those of the index.
    """
    for shard in _index(directory):
        path = directory / shard["raw_data"]["basename"]
        data = path.read_bytes()
        count, (size,) = shard["samples"], shard["column_sizes"]
        if len(data) < count * size:
            raise FormatError(
                f"{path}: {count_of(len(data), 'byte')} cannot contain {count_of(count, 'sample')} of {size}"
            )
        # the last bytes of the file, whatever its head is
        samples = np.frombuffer(data, _IDS, offset=len(data) - count * size)
        yield samples.reshape(count, size // _IDS.itemsize)


def shard_samples(index: bytes, where: str) -> list[tuple[str, int]]:
    """Name and samples of each shard that an ``index`` file lists.

    Raises FormatError, naming ``where``, when it is none.
    """
    return [(shard["raw_data"]["basename"], shard["samples"]) for shard in _shards(index, where)]


def _index(directory: Path) -> list[dict[str, Any]]:
    return _shards((directory / INDEX).read_bytes(), str(directory / INDEX))


def _shards(index: bytes, where: str) -> list[dict[str, Any]]:
    try:
        value = json_of(index)
        version, shards = value["version"], list(value["shards"])
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{where}: not an MDS index: {error}") from error
    if version != _VERSION:
        raise FormatError(f"{where}: format version {version!r} is not supported: streaming reads only {_VERSION}")
    for number, shard in enumerate(shards):
        if not _is_entry(shard):
            raise FormatError(f"{where}: not an MDS index of samples of int32: entry {number} is malformed")
    return shards


def _is_entry(shard: Any) -> bool:
    """Return whether an entry of an index has what is read of it, each value of its type."""
    match shard:
        case {
            "raw_data": {"basename": str(), "hashes": {"sha256": str()}},
            "samples": int(samples),
            "column_sizes": [int(size)],
            "size_limit": int(),
        }:
            return samples >= 0 and size > 0 and size % _IDS.itemsize == 0
    return False


def _index_bytes(shards: Sequence[dict[str, Any]]) -> bytes:
    return json.dumps({"version": _VERSION, "shards": shards}, sort_keys=True).encode()


def _check_shard(directory: Path, shard: dict[str, Any]) -> int:
    path = directory / shard["raw_data"]["basename"]
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != shard["raw_data"]["hashes"][HASH]:
        raise FormatError(f"{path}: its {HASH} does not match the index")
    count: int = shard["samples"]
    # a file too short for its offsets has none, and is refused with its counts below
    has_counts = len(data) >= 8 + 4 * count and struct.unpack_from("<I", data)[0] == count
    offsets = np.frombuffer(data, "<u4", count + 1, 4) if has_counts else np.zeros(1, "<u4")
    (size,) = shard["column_sizes"]
    config = {key: value for key, value in shard.items() if key not in ("raw_data", "samples", "zip_data")}
    if not has_counts or offsets[-1] != len(data):
        raise FormatError(
            f"{path}: its counts and offsets do not match {count_of(count, 'sample')} in {count_of(len(data), 'byte')}"
        )
    if not (np.diff(offsets.astype(np.int64)) == size).all():
        raise FormatError(f"{path}: its samples are not {count_of(size, 'byte')} each")
    try:
        stored_config = json_of(data[8 + 4 * count : int(offsets[0])])
    except ValueError:
        stored_config = None
    if stored_config != config:
        raise FormatError(f"{path}: its configuration does not match the index")
    # the entry as a whole, so that nothing stands in it beside what was compared
    raw = {"basename": path.name, "bytes": len(data), "hashes": {HASH: shard["raw_data"]["hashes"][HASH]}}
    expected_entry = {**_config(size // _IDS.itemsize, shard["size_limit"]), "raw_data": raw, "samples": count}
    if shard != {**expected_entry, "zip_data": None}:
        raise FormatError(
            f"{path}: its entry in the index is wrong, or has keys other than {', '.join(sorted(expected_entry))}"
        )
    return count
