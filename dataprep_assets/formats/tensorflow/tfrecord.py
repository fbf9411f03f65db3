"""TFRecord files: framed payloads with masked CRC-32C, without a dependency on TensorFlow.

A file is a sequence of records without header, footer or index (TensorFlow, ``tsl/lib/io/record_writer.h``). A record
is, little-endian: uint64 length, uint32 masked CRC of these eight bytes, payload, uint32 masked CRC of the payload. The
mask is ``((crc >> 15 | crc << 17) + 0xA282EAD8) mod 2**32``. Compression is never detected, so a gzip file counts as
corrupt.

A file truncated between two records is a valid file with fewer records, which readers cannot detect. The checks of a
TFDS directory find it, because they compare every shard with its count. TensorFlow also accepts a file that ends within
a record's first twelve bytes; this module raises an error.

Shards of a cohort have at most `ROWS_PER_SHARD` rows, and only the last shard has fewer. Their names follow MaxText
(``MaxText/hope_alpha/convert_jsonl_to_tfrecord.py``, ``jsonl_to_tfrecord_one_file_split``):
``<YYYY>-<MM>_<sss>-of-<nnn>.tfrecords``, counted from 1. The bytes depend only on the arguments of `write`.

Entry points: `build_shard_name`, `write`, `read_records`, `count`.
"""

import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import google_crc32c

from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.formats import flat_bins

ROWS_PER_SHARD = 256
"""Maximum number of rows in a cohort's shard, the number that MaxText's script writes."""

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_HEADER = struct.Struct("<8sI")
# Number of bytes around each payload: the length and its checksum before the payload, and the payload's checksum after
# it.
_FRAMING = _HEADER.size + _CRC.size
# First two bytes of every gzip file (RFC 1952).
_GZIP = b"\x1f\x8b"
_COHORT = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")
# Number of digits in the shard numbers of MaxText's script.
_DIGITS = 3


@dataclass(frozen=True, kw_only=True)
class ShardCount:
    """Number of records in a file, and bytes of their payloads without the 16 bytes of framing around each."""

    records: int
    payload_bytes: int


class TfRecord(NamedTuple):
    """One record: its number from 0, the byte offset of its frame in the file, and its payload."""

    number: int
    offset: int
    payload: bytes


def build_shard_name(cohort: str, index: int, total: int) -> str:
    """Return the file name of shard ``index`` (from 0; the name counts from 1) of ``total`` shards.

    ``cohort`` is a month, ``YYYY-MM``. Numbers have three digits, or as many as ``total`` has, so that names sort in
    order. Raises FormatError for a cohort that is not a month, and for an index that is not 0 to ``total - 1``.
    """
    if not _COHORT.fullmatch(cohort):
        raise FormatError(f"cohort {cohort!r}: must be a year and a month (YYYY-MM)")
    if not 0 <= index < total:
        raise FormatError(
            f"cohort {cohort}: invalid shard index {index} of {count_of(total, 'shard')} (the first is 0)"
        )
    digits = max(_DIGITS, len(str(total)))
    return f"{cohort}_{index + 1:0{digits}d}-of-{total:0{digits}d}.tfrecords"


def write(path: Path, payloads: Iterable[bytes], *, max_records: int = ROWS_PER_SHARD) -> ShardCount:
    """Write ``payloads`` in order, one record each, to the new file ``path`` and return its counts.

    A payload is usually a serialized ``tf.train.Example`` (`example.encode_rows`), but any bytes are accepted. The file
    is not synced and not moved, because the caller stages and commits it. Raises FormatError for more than
    ``max_records`` payloads. Raises FileExistsError if ``path`` exists. After an error the file does not exist.
    """
    record_count = payload_bytes = 0
    with flat_bins.create_file(path) as handle:
        for payload in payloads:
            if record_count == max_records:
                raise FormatError(
                    f"{path}: a shard can have at most {count_of(max_records, 'record')}. Start a new shard"
                )
            length = _LENGTH.pack(len(payload))
            handle.writelines(
                (length, _CRC.pack(_compute_masked_crc(length)), payload, _CRC.pack(_compute_masked_crc(payload)))
            )
            record_count += 1
            payload_bytes += len(payload)
    return ShardCount(records=record_count, payload_bytes=payload_bytes)


def _compute_masked_crc(content: bytes) -> int:
    crc: int = google_crc32c.value(content)
    # Python integers do not wrap, so reduce the rotation and the sum to 32 bits.
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def read_records(path: Path) -> Iterator[TfRecord]:
    """Yield every record of a file after verifying both of its checksums.

    Raises FormatError, naming file, record and byte, for a file that ends within a record, for a checksum that does not
    match, and for a gzip file.
    """
    with open(path, "rb") as handle:
        for number, offset, length in _read_frames(path, handle):
            payload = handle.read(length)
            if _CRC.unpack(handle.read(_CRC.size))[0] != _compute_masked_crc(payload):
                raise FormatError(
                    f"{path}: record {number} at byte {offset}: the payload does not match its checksum, so the file "
                    "is damaged. Rebuild the artifact"
                )
            yield TfRecord(number, offset, payload)


def count(path: Path) -> ShardCount:
    """Count records and payload bytes by seeking from frame to frame; payloads are neither read nor verified.

    Raises FormatError as `read_records` does, except for damage within a payload.
    """
    record_count = payload_bytes = 0
    with open(path, "rb") as handle:
        for _, _, length in _read_frames(path, handle):
            handle.seek(length + _CRC.size, os.SEEK_CUR)
            record_count += 1
            payload_bytes += length
    return ShardCount(records=record_count, payload_bytes=payload_bytes)


def _read_frames(path: Path, handle: BinaryIO) -> Iterator[tuple[int, int, int]]:
    """Yield number, byte offset and payload length of each record.

    Between two records, the caller moves past payload and checksum.
    """
    size = os.fstat(handle.fileno()).st_size
    number = offset = 0
    while offset < size:
        header = handle.read(_HEADER.size)
        if len(header) < _HEADER.size:
            raise FormatError(
                f"{path}: truncated: the file ends at byte {size}, inside the header of record {number} at byte "
                f"{offset}. Rebuild the artifact"
            )
        length_bytes, crc = _HEADER.unpack(header)
        if crc != _compute_masked_crc(length_bytes):
            if offset == 0 and header.startswith(_GZIP):
                raise FormatError(
                    f"{path}: compressed with gzip, which TFRecord readers do not detect. Decompress the file"
                )
            raise FormatError(
                f"{path}: record {number} at byte {offset}: its length does not match its checksum. The file is "
                "damaged, or not a TFRecord file. Rebuild the artifact"
            )
        (length,) = _LENGTH.unpack(length_bytes)
        # Check the length before reading the payload. A forged length may have a valid checksum, and the read would
        # allocate that much memory.
        if offset + _FRAMING + length > size:
            raise FormatError(
                f"{path}: truncated: the file ends at byte {size}, inside record {number} at byte {offset}, which "
                f"should end at {offset + _FRAMING + length}. Rebuild the artifact"
            )
        yield number, offset, length
        number += 1
        offset += _FRAMING + length
