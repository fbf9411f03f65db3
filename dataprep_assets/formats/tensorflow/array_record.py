"""ArrayRecord files: the same Example payloads with random access, by way of the array_record package.

The container (array_record, ``cpp/array_record_writer.h``, on Riegeli chunks) is the package's own: only its options
are decided here. ``group_size:1`` puts every record in a chunk of its own, so that reading one row decompresses no
other; chunks are compressed with zstd at level 3, the package's default. The bytes depend on the payloads alone: any
number of threads gives the same file (array_record 0.8.6).

A file is a multiple of 64 KiB and at least 128 KiB. A truncated file opens without an error and has no records; only
``ok()`` shows it, which `records` and `count` ask. No reader looks at the bytes beside the records, such as padding.

The package is in the extra ``array_record``, and in ``tfds``; without it these functions raise ConfigError.

Entry points: `write`, `records`, `count`.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dataprep_assets.errors import ConfigError, FormatError, count_of
from dataprep_assets.formats import flat_bins
from dataprep_assets.formats.tensorflow.tfrecord import ROWS_PER_SHARD, ShardCount

OPTIONS = "group_size:1,zstd:3"
"""The writer's options. The level is the default, named because it decides the bytes."""

# No read-ahead: records are read one after another, and the package would start a thread a core for it.
_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"


_ABSENT = (
    "ArrayRecord files need the array_record package, which is not installed. Install dataprep-assets[array_record]"
)


def require() -> None:
    """Raise ConfigError if the package is not installed."""
    if find_spec("array_record") is None:
        raise ConfigError(_ABSENT)


def _package() -> Any:
    try:
        from array_record.python import array_record_module
    except ImportError as error:
        raise ConfigError(_ABSENT) from error
    return array_record_module


def write(path: Path, payloads: Iterable[bytes], *, most: int = ROWS_PER_SHARD) -> ShardCount:
    """Write ``payloads``, one record each and in order, to the new file ``path``; returns what the file holds.

    A payload is a serialized ``tf.train.Example`` (`example.encode_rows`), but any bytes are taken. The file is not
    synced and not moved: staging and commit are the caller's. Raises FormatError when there are more than
    ``most`` payloads; raises FileExistsError when ``path`` exists; raises OSError when the package cannot write (a full
    disk); raises ConfigError when the package is not installed. After an error there is no file.
    """
    package = _package()
    record_count = payload_bytes = 0
    # The package opens by name and would truncate what is there.
    with flat_bins.create(path):
        try:
            with closing(package.ArrayRecordWriter(str(path), OPTIONS)) as writer:
                for payload in payloads:
                    if record_count == most:
                        raise FormatError(f"{path}: more than {count_of(most, 'record')}. Begin another shard")
                    writer.write(payload)
                    record_count += 1
                    payload_bytes += len(payload)
        except RuntimeError as error:
            raise OSError(f"{path}: array_record could not write record {record_count}: {error}") from error
    return ShardCount(records=record_count, payload_bytes=payload_bytes)


def records(path: Path) -> Iterator[bytes]:
    """Yield the payload of every record, in order; the package verifies each chunk's hash.

    Raises FormatError, naming file and record, for a file that is damaged or cut; raises ConfigError as in `write`.
    """
    with _open_reader(path) as reader:
        for index in range(reader.num_records()):
            try:
                payload: bytes = reader.read()
            except RuntimeError as error:
                raise FormatError(f"{path}: record {index} cannot be read ({error}). Restore the file") from error
            yield payload


def count(path: Path) -> int:
    """The number of records that the footer lists; payloads are not read.

    Raises FormatError for a file that is cut or is not an ArrayRecord file; raises ConfigError as in `write`.
    """
    with _open_reader(path) as reader:
        record_count: int = reader.num_records()
        return record_count


@contextmanager
def _open_reader(path: Path) -> Iterator[Any]:
    package = _package()
    # The package does not raise for a missing file either; the reader is just not ok.
    path.stat()
    reader = package.ArrayRecordReader(str(path), _READER_OPTIONS)
    if not reader.ok():
        raise FormatError(f"{path}: incomplete, or not an ArrayRecord file{_cause(reader)}")
    try:
        yield reader
    except BaseException:
        # Its close repeats the error of its read, and would hide it.
        _cause(reader)
        raise
    reader.close()


def _cause(reader: Any) -> str:
    """Close a reader that is not ok, and return the cause, which only its close reports."""
    try:
        reader.close()
    except RuntimeError as error:
        return f" ({error})"
    return ""
