"""Common checks of all directories, of one dataset or of a mixture.

A directory links shards that were checked with their cohorts, and adds metadata. A rebuild (`rebuilt_otherwise`)
therefore verifies it without reading rows. A second check reads the directory with TFDS itself.

Entry points: `OpenedDirectory`; `FILES_INTACT`, `TFDS_READS`.
"""

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.checks.check import Check, Finding, OpenedArtifact, verdict
from dataprep_assets.errors import count_of
from dataprep_assets.execution.processes import WorkerPool
from dataprep_assets.execution.run_task import FinishedTask, Task, TaskId
from dataprep_assets.formats.tensorflow import array_record, example, tfds, tfrecord
from dataprep_assets.integrity.receipt import damage
from dataprep_assets.pipelines.notes.declaration import FileFormat, NotesDeclaration
from dataprep_assets.pipelines.notes.replay.replay_declaration import ReplayDeclaration
from dataprep_assets.pipelines.notes.tfds.linked_directory import DirectoryFacts
from dataprep_assets.pipelines.notes.tfds.provenance import PROVENANCE, ShardOrigin, read_provenance

# The check reads a directory with TensorFlow Datasets and compares the result with the stored rows.
#
# TensorFlow is imported in a separate process, which ends after the check, because it uses half a gigabyte, threads and
# all available accelerators. File order needs ``interleave_cycle_length=1``, because TFDS mixes 16 files by default.
#
# Up to `MOST_ROWS` rows, the check reads all rows. In a larger directory, it reads slices of whole shards, spread over
# each split, so that a wrong shard length results in rows of a different shard.

MOST_ROWS = 100_000
"""Maximum number of rows for a complete read, which takes TFDS a few minutes at a row length of 8,192."""
# number of shards to read from a larger directory, and maximum number of differing columns to list
_SHARDS = 32
# rows per batch on both sides; one batch is decoded and compared at a time
_BATCH = 32
# CUDA_VISIBLE_DEVICES is -1, because a training run may be using the GPUs
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "TFDS_LOGGING_LEVEL": "error"}
_NEEDED = ("tensorflow", "tensorflow_datasets")


def read_with_tfds(where: Path, dataset: str, version: str, format: FileFormat) -> Finding:
    """Return whether TFDS opens the directory ``where`` and reads its rows in file order; warn if TFDS is missing.

    ``dataset`` and ``version`` are the names for `tfds.builder`. ``format`` is the format of the shards.
    """
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        return Finding(
            passed=False,
            warning=True,
            facts={"rows_read": 0},
            summary=f"Not run: {' and '.join(missing)} cannot be imported. Install dataprep-assets[tfds] and execute "
            "this check again; it reads and writes nothing else.",
        )
    with WorkerPool(1, _QUIET) as pool:
        pool.submit(Task(TaskId("", "readable_by_tfds"), _compare_directory, (where, dataset, version, format)))
        for event in pool.events():
            if isinstance(event, FinishedTask):
                if event.error is not None:
                    return Finding(passed=False, summary=f"{event.error}", facts={"rows_read": 0})
                finding: Finding = event.result
                return finding
    raise AssertionError("a pool ends with the end of its task")


def _compare_directory(where: Path, dataset: str, version: str, format: FileFormat) -> Finding:
    """Run the comparison in the worker. TFDS errors name files and offsets, so only their type is shown."""
    # TensorFlow's C++ code writes to stderr directly, regardless of its environment variables.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        return _compare(where, dataset, version, format)
    except Exception as error:  # the text is dropped, because any TensorFlow error may quote data
        error_name = type(error).__name__
    return Finding(
        passed=False,
        summary=f"tensorflow-datasets cannot read the directory: {error_name}. See the other checks for the cause.",
        facts={"rows_read": 0},
    )


def _compare(where: Path, dataset: str, version: str, format: FileFormat) -> Finding:
    import tensorflow_datasets as library

    info = tfds.read_metadata(where)
    builder: Any = library.builder_from_directory(str(where))
    defects: list[str] = []
    # TFDS cannot find a directory `1.0` with the metadata version 1.0.0 by name, so it is opened only by path
    if version == info.version:
        by_name = library.builder(f"{dataset}:{version}", data_dir=str(where.parents[1]))
        if Path(str(by_name.data_dir)) != where:
            defects.append(f"tfds.builder({dataset}:{version}) finds a different directory")
    rows = 0
    for split in info.splits:
        if (tfds_count := builder.info.splits[split.name].num_examples) != split.rows:
            defects.append(
                f"split {split.name}: TFDS counts {count_of(tfds_count, 'row')}, but {split.rows} are declared"
            )
        names, ends = info.shard_names(split), np.cumsum([0, *split.shard_lengths])
        for start, stop in _slices(len(names), split.rows):
            low, high = int(ends[start]), int(ends[stop])
            read = 0
            tfds_rows = _by_tfds(library, builder, f"{split.name}[{low}:{high}]", format)
            stored_batches = _read_stored_rows([where / name for name in names[start:stop]], info, format)
            # strict is off, because the row count below detects missing rows
            for batch, expected_columns in zip(_rebatched(tfds_rows), stored_batches, strict=False):
                for name, values in expected_columns.items():
                    is_same = (
                        name in batch and batch[name].shape == values.shape and np.array_equal(batch[name], values)
                    )
                    if not is_same and len(defects) < _SHARDS:
                        defects.append(f"split {split.name}: column {name} of the rows from {low + read} on differs")
                read += len(next(iter(batch.values())))
            if read != high - low:
                defects.append(f"split {split.name}: {count_of(read, 'row')} read, but {high - low} are stored")
            rows += read
    total = sum(split.rows for split in info.splits)
    return verdict(
        defects,
        f"TFDS {library.__version__} read {rows} of {count_of(total, 'row')}, in file order, equal to the stored ones.",
        "The metadata does not describe the shards. Materialize the directory again",
        facts={"rows_read": rows, "rows": total},
    )


def _slices(shards: int, rows: int) -> list[tuple[int, int]]:
    """Return the ranges of shards to read: one range with all shards, or several evenly spread ranges."""
    if rows <= MOST_ROWS:
        return [(0, shards)]
    return [(shard, shard + 1) for shard in sorted({(shards - 1) * i // (_SHARDS - 1) for i in range(_SHARDS)})]


def _by_tfds(library: Any, builder: Any, split: str, format: FileFormat) -> Iterator[dict[str, NDArray[Any]]]:
    # each format needs its own reader: TFDS has no `as_dataset` for ArrayRecord and no data source for TFRecord
    if format == "array_record":
        yield from builder.as_data_source(split=split)
        return
    config = library.ReadConfig(interleave_cycle_length=1)
    yield from builder.as_dataset(split=split, read_config=config).as_numpy_iterator()


def _rebatched(rows: Iterator[dict[str, NDArray[Any]]]) -> Iterator[dict[str, NDArray[Any]]]:
    batch: list[dict[str, NDArray[Any]]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _BATCH:
            yield _stacked(batch)
            batch = []
    if batch:
        yield _stacked(batch)


def _stacked(rows: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Return rows as arrays, with shorter rows padded with `ABSENT`, as in `decode_rows`."""
    arrays = {}
    for name in rows[0]:
        width = max(row[name].size for row in rows)
        arrays[name] = np.stack(
            [np.pad(row[name], (0, width - row[name].size), constant_values=example.ABSENT) for row in rows]
        )
    return arrays


def _read_stored_rows(
    paths: list[Path], info: tfds.DatasetInfo, format: FileFormat
) -> Iterator[dict[str, NDArray[Any]]]:
    batch: list[bytes] = []
    for path in paths:
        payloads = (
            array_record.records(path) if format == "array_record" else (r.payload for r in tfrecord.records(path))
        )
        for payload in payloads:
            batch.append(payload)
            if len(batch) == _BATCH:
                yield example.decode_rows(batch, info.columns)
                batch = []
    if batch:
        yield example.decode_rows(batch, info.columns)


REBUILD = "Materialize the directory again"
REBUILD_SOURCES = "Materialize its sources and then the directory again"


@dataclass(frozen=True)
class OpenedDirectory(OpenedArtifact):
    """An opened directory, the subject of the checks."""

    declared: NotesDeclaration | ReplayDeclaration

    @property
    def path(self) -> Path:
        """Folder of the shards."""
        return self.directory / self.declared.dataset / self.declared.tfds_version

    @cached_property
    def provenance(self) -> Mapping[str, Sequence[tuple[str, ShardOrigin]]]:
        """Name and origin of each shard on disk, by split."""
        return read_provenance(self.directory / PROVENANCE)


def _files_intact(opened: OpenedDirectory) -> Finding:
    receipt = opened.receipt
    return verdict(
        (f"{opened.name}: {d}" for d in damage(opened.directory, receipt, opened.declared.verify)),
        f"{count_of(len(receipt.files), 'file')} ({count_of(receipt.total_bytes, 'byte')}): all digests match the "
        "receipt.",
        REBUILD,
        facts={"files": len(receipt.files), "bytes": receipt.total_bytes},
    )


def _tfds_reads(opened: OpenedDirectory) -> Finding:
    declaration, format = opened.declared, DirectoryFacts.of(opened.receipt).format
    return read_with_tfds(opened.path, declaration.dataset, declaration.tfds_version, format)


# the check compares digests unless `verify: size` is declared
FILES_INTACT: Check[OpenedDirectory] = Check(
    "files_intact", "Every file has the size and digest in the receipt, and no other file exists.", _files_intact
)
# This check repeats the other checks with the real reader. Without TensorFlow it only warns, because machines that
# build a dataset do not need TensorFlow.
TFDS_READS: Check[OpenedDirectory] = Check(
    "readable_by_tfds",
    "tensorflow-datasets opens the directory and reads the stored rows in file order.",
    _tfds_reads,
    blocking=False,
)
