"""ArrayRecord files: Example payloads with random access, through the array_record package.

The package writes the container (array_record, ``cpp/array_record_writer.h``, on Riegeli chunks); this module only
chooses its options. ``group_size:1`` puts every record in its own chunk, so that reading a row decompresses only that
row. Chunks are compressed with zstd at level 3, the package's default. The bytes depend only on the payloads, not on
the number of threads (array_record 0.8.6).

The size of a file is a multiple of 64 KiB and at least 128 KiB. A truncated file opens without an error and has no
records. Only ``ok()`` reports this, and `read_records` and `count` call it. Readers do not verify the bytes outside the
records, such as padding.

The package is in the extras ``array_record`` and ``tfds``. Without it, these functions raise ConfigError.

Entry points: `write`, `read_records`, `count`.
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
"""The writer's options. The level is the default, and is explicit because it determines the bytes."""

# Disable read-ahead, because the package would start one thread per core for it.
_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"


_NOT_INSTALLED = (
    "ArrayRecord files need the array_record package, which is not installed. Install the extra: "
    "pip install 'dataprep-assets[array_record]'"
)


def require() -> None:
    """Raise ConfigError if the package is not installed."""
    if find_spec("array_record") is None:
        raise ConfigError(_NOT_INSTALLED)


def _import_package() -> Any:
    try:
        from array_record.python import array_record_module
    except ImportError as error:
        raise ConfigError(_NOT_INSTALLED) from error
    return array_record_module


def write(path: Path, payloads: Iterable[bytes], *, max_records: int = ROWS_PER_SHARD) -> ShardCount:
    """Write ``payloads`` in order, one record each, to the new file ``path`` and return its counts.

    A payload is usually a serialized ``tf.train.Example`` (`example.encode_rows`), but any bytes are accepted. The file
    is not synced and not moved, because the caller stages and commits it. Raises FormatError for more than
    ``max_records`` payloads. Raises FileExistsError if ``path`` exists. Raises OSError if the package cannot write (a
    full disk). Raises ConfigError if the package is not installed. After an error the file does not exist.
    """
    package = _import_package()
    record_count = payload_bytes = 0
    # Create the file first, because this fails if the file exists, whereas the package would truncate an existing file.
    with flat_bins.create_file(path):
        try:
            with closing(package.ArrayRecordWriter(str(path), OPTIONS)) as writer:
                for payload in payloads:
                    if record_count == max_records:
                        raise FormatError(
                            f"{path}: a shard can have at most {count_of(max_records, 'record')}. Start a new shard"
                        )
                    writer.write(payload)
                    record_count += 1
                    payload_bytes += len(payload)
        except RuntimeError as error:
            raise OSError(f"{path}: array_record could not write record {record_count}: {error}") from error
    return ShardCount(records=record_count, payload_bytes=payload_bytes)


def read_records(path: Path) -> Iterator[bytes]:
    """Yield the payload of every record, in order. The package verifies each chunk's hash.

    Raises FormatError, naming file and record, for a damaged or truncated file. Raises ConfigError as `write` does.
    """
    with _open_reader(path) as reader:
        for index in range(reader.num_records()):
            try:
                payload: bytes = reader.read()
            except RuntimeError as error:
                raise FormatError(f"{path}: record {index} cannot be read: {error}. Rebuild the artifact") from error
            yield payload


def count(path: Path) -> int:
    """Return the number of records in the footer; payloads are not read.

    Raises FormatError if the file is truncated or not an ArrayRecord file. Raises ConfigError as `write` does.
    """
    with _open_reader(path) as reader:
        record_count: int = reader.num_records()
        return record_count


@contextmanager
def _open_reader(path: Path) -> Iterator[Any]:
    package = _import_package()
    # Call `stat` to raise an error for a missing file, because the package would only return a reader that is not ok.
    path.stat()
    reader = package.ArrayRecordReader(str(path), _READER_OPTIONS)
    if not reader.ok():
        raise FormatError(f"{path}: incomplete, or not an ArrayRecord file{_find_cause(reader)}. Rebuild the artifact")
    try:
        yield reader
    except BaseException:
        # Close the reader and discard its error, because that error would repeat the read error and hide the original
        # exception.
        _find_cause(reader)
        raise
    reader.close()


def _find_cause(reader: Any) -> str:
    """Close a reader that is not ok and return the cause, which only its close reports."""
    try:
        reader.close()
    except RuntimeError as error:
        return f" ({error})"
    return ""
