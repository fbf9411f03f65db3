"""MosaicML's MDS: a token stream as fixed-length samples for `StreamingDataset` (Composer, LLM Foundry).

`index.json` lists the shards. A shard contains, little-endian: the number of samples n as uint32, absolute offsets as
uint32 of shape ``(n + 1,)``, the shard's configuration as JSON with sorted keys, and the samples (mosaicml-streaming,
``streaming/base/format/mds/writer.py``, ``MDSWriter``). The only column, ``tokens``, has the fixed encoding
``ndarray:int32:<length>``, so a sample consists only of its ids.

Samples are consecutive windows of the stream that do not overlap. Ids after the last whole window are left out, and
`write_mds` returns their number. Offsets are uint32, so a shard is smaller than 4 GiB. The files are identical to
`MDSWriter`'s files for the same samples, size limit and hash. A shard depends only on its own windows, so any number of
threads can write and read shards, in any order. Each thread needs the memory of one shard.

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

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.stores.files import create_durably, sha256_file

INDEX = "index.json"
COLUMN = "tokens"
HASH = "sha256"
SHARD_BYTES = 1 << 26
"""MDSWriter's default size limit, so that both writers produce the same files."""
_IDS = np.dtype("<i4")
_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class MdsSummary:
    """Summary of a written dataset.

    `tokens_left_out` counts the tokens after the last whole sample, and `digests` maps each shard file to its SHA-256.
    """

    samples: int
    shards: int
    tokens_left_out: int
    digests: Mapping[str, str]


def _build_config(length: int, shard_bytes: int) -> dict[str, Any]:
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
) -> MdsSummary:
    """Write a token stream into the folder ``directory`` as samples and return a summary.

    ``tokens``: unsigned ids below 2**31, shape ``(tokens,)``. ``length``: tokens per sample. ``shard_bytes`` limits the
    size of a shard on disk. ``threads`` shards are written concurrently, and the bytes do not depend on it. ``resume``
    keeps the shards of an interrupted call with the same arguments, because every shard with its final name is
    complete. Raises FormatError for an impossible length or limit, and for an id of 2**31 or more. Raises
    FileExistsError if the folder exists and ``resume`` is false.
    """
    config = _build_config(length, shard_bytes) if length > 0 else {}
    # In addition to its configuration, a shard stores the number of samples and one more offset than samples, 4 bytes
    # each.
    header = len(json.dumps(config, sort_keys=True).encode()) + 2 * 4
    sample_bytes = length * _IDS.itemsize + 4
    if length < 1 or shard_bytes >= 1 << 32 or header + sample_bytes > shard_bytes:
        raise FormatError(
            f"a sample of {count_of(length, 'token')} does not fit in a shard of at most "
            f"{count_of(shard_bytes, 'byte')}. Use shorter samples, or larger shards (less than 4 GiB)"
        )
    directory.mkdir(parents=True, exist_ok=resume)
    samples, per_shard = len(tokens) // length, (shard_bytes - header) // sample_bytes
    starts = range(0, samples, per_shard)
    ensure = partial(
        _ensure_shard, directory, tokens, samples=samples, per_shard=per_shard, length=length, config=config
    )
    with ThreadPoolExecutor(threads) as pool:
        shards = list(pool.map(ensure, range(len(starts)), starts))
    # Write the index last, because readers treat a folder as a dataset only if it has an index.
    with create_durably(directory / INDEX) as file:
        file.write(_encode_index(shards))
    return MdsSummary(
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
    """Write the shard that begins with sample ``start``, unless it is kept, and return its entry in the index."""
    count = min(per_shard, samples - start)
    path = directory / f"shard.{number:05d}.mds"
    if path.exists():
        digest = sha256_file(path)
    else:
        digest = _write_shard(
            path, tokens[start * length : (start + count) * length], _build_head(count, length, config)
        )
    raw = {"basename": path.name, "bytes": path.stat().st_size, "hashes": {HASH: digest}}
    return {**config, "raw_data": raw, "samples": count, "zip_data": None}


def _write_shard(path: Path, block: npt.NDArray[Any], head: bytes) -> str:
    """Write one shard of these ids and return its SHA-256, computed while writing."""
    if int(block.max()) >= 1 << 31:
        raise FormatError(f"id {int(block.max())} does not fit int32, the type of MDS samples")
    digest = hashlib.sha256()
    with create_durably(path) as file:
        for piece in (head, block.astype(_IDS).data.cast("B")):
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def _build_head(count: int, length: int, config: dict[str, Any]) -> bytes:
    """Return the bytes of a shard before its samples."""
    config_bytes = json.dumps(config, sort_keys=True).encode()
    begin = 4 + 4 * (count + 1) + len(config_bytes)
    offsets = begin + np.arange(count + 1, dtype=np.int64) * length * _IDS.itemsize
    return struct.pack("<I", count) + offsets.astype("<u4").tobytes() + config_bytes


def parse_first_offset(head: bytes) -> int:
    """Return the byte offset of the first sample, given the first 8 bytes of a shard; samples follow each other."""
    return int(np.frombuffer(head, "<u4", 1, offset=4)[0])


def validate(directory: Path) -> int:
    """Return the number of samples.

    Raises FormatError unless every shard is complete, matches its digest, and matches the index.
    """
    shards = _read_index(directory)
    if (directory / INDEX).read_bytes() != _encode_index(shards):
        raise FormatError(
            f"{directory / INDEX}: unexpected content: the index was not written by dataprep, or was edited. "
            "Rebuild the view"
        )
    names = {shard["raw_data"]["basename"] for shard in shards}
    if differing_names := sorted({path.name for path in directory.glob("*.mds")} ^ names):
        raise FormatError(
            f"{directory}: {differing_names[0]} is listed in the index but missing, or not listed. Rebuild the view"
        )
    return sum(_check_shard(directory, shard) for shard in shards)


def read_blocks(directory: Path) -> Iterator[npt.NDArray[np.int32]]:
    """Yield the ids of all samples in order, one shard at a time: shape ``(samples, length)``, int32, read-only.

    The shards must be valid for `validate`. Raises FormatError if a shard is too short for the samples of the index.
    """
    for shard in _read_index(directory):
        path = directory / shard["raw_data"]["basename"]
        data = path.read_bytes()
        count, (size,) = shard["samples"], shard["column_sizes"]
        if len(data) < count * size:
            raise FormatError(
                f"{path}: {count_of(len(data), 'byte')} are too few for {count_of(count, 'sample')} of "
                f"{count_of(size, 'byte')}"
            )
        # Read the samples from the end of the file, where they are stored, so that the length of the file's head is not
        # needed.
        samples = np.frombuffer(data, _IDS, offset=len(data) - count * size)
        yield samples.reshape(count, size // _IDS.itemsize)


def read_shard_samples(index: bytes, location: str) -> list[tuple[str, int]]:
    """Return the name and number of samples of each shard in the bytes of an ``index`` file.

    Raises FormatError, naming ``location``, if the bytes are not an MDS index.
    """
    return [(shard["raw_data"]["basename"], shard["samples"]) for shard in _parse_shards(index, location)]


def _read_index(directory: Path) -> list[dict[str, Any]]:
    return _parse_shards((directory / INDEX).read_bytes(), str(directory / INDEX))


def _parse_shards(index: bytes, location: str) -> list[dict[str, Any]]:
    try:
        value = load_untrusted_json(index)
        version, shards = value["version"], list(value["shards"])
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{location}: not an MDS index: {error}. Rebuild the view") from error
    if version != _VERSION:
        raise FormatError(
            f"{location}: format version {version!r} is not supported: streaming reads only {_VERSION}. Rebuild "
            "the view"
        )
    for number, shard in enumerate(shards):
        if not _is_entry(shard):
            raise FormatError(
                f"{location}: not an MDS index of int32 samples: entry {number} is malformed. Rebuild the view"
            )
    return shards


def _is_entry(shard: Any) -> bool:
    """Return whether an entry of an index has all fields that this module reads, each of its type."""
    match shard:
        case {
            "raw_data": {"basename": str(), "hashes": {"sha256": str()}},
            "samples": int(samples),
            "column_sizes": [int(size)],
            "size_limit": int(),
        }:
            return samples >= 0 and size > 0 and size % _IDS.itemsize == 0
    return False


def _encode_index(shards: Sequence[dict[str, Any]]) -> bytes:
    return json.dumps({"version": _VERSION, "shards": shards}, sort_keys=True).encode()


def _check_shard(directory: Path, shard: dict[str, Any]) -> int:
    path = directory / shard["raw_data"]["basename"]
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != shard["raw_data"]["hashes"][HASH]:
        raise FormatError(f"{path}: its {HASH} does not match the index. Rebuild the view")
    count: int = shard["samples"]
    # Do not read the offsets if the number of samples is missing or wrong, because the check below then refuses the
    # file.
    has_counts = len(data) >= 8 + 4 * count and struct.unpack_from("<I", data)[0] == count
    offsets = np.frombuffer(data, "<u4", count + 1, 4) if has_counts else np.zeros(1, "<u4")
    (size,) = shard["column_sizes"]
    config = {key: value for key, value in shard.items() if key not in ("raw_data", "samples", "zip_data")}
    if not has_counts or offsets[-1] != len(data):
        raise FormatError(
            f"{path}: its counts and offsets do not match {count_of(count, 'sample')} in {count_of(len(data), 'byte')}"
        )
    if not (np.diff(offsets.astype(np.int64)) == size).all():
        raise FormatError(f"{path}: must have samples of {count_of(size, 'byte')} each. Rebuild the view")
    try:
        stored_config = load_untrusted_json(data[8 + 4 * count : int(offsets[0])])
    except ValueError:
        stored_config = None
    if stored_config != config:
        raise FormatError(f"{path}: its configuration does not match the index. Rebuild the view")
    # Compare the whole entry, because the checks above do not cover all of its keys.
    raw = {"basename": path.name, "bytes": len(data), "hashes": {HASH: shard["raw_data"]["hashes"][HASH]}}
    expected_entry = {**_build_config(size // _IDS.itemsize, shard["size_limit"]), "raw_data": raw, "samples": count}
    if shard != {**expected_entry, "zip_data": None}:
        raise FormatError(
            f"{path}: its entry in the index is wrong, or has other keys than {', '.join(sorted(expected_entry))}"
        )
    return count
