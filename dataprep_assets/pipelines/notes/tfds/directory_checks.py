"""The checks that every directory has, of one dataset or of several combined.

A directory links shards that were checked with their cohorts, and adds metadata. So what it should be is known by
building it again (`rebuilt_otherwise`), which reads no row. What TFDS itself makes of it is checked by letting it read.

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

# Lets TensorFlow Datasets read a directory, and compares what it gives with what is stored.
#
# TensorFlow is imported in a separate process, which ends after the reading: it takes half a gigabyte, threads and
# every accelerator that it finds. File order needs ``interleave_cycle_length=1``; by default TFDS mixes 16 files.
#
# Up to `MOST_ROWS` rows, all are read; in a larger directory, slices of whole shards spread over each split, so
# that a wrong shard length shows as rows of another shard.

MOST_ROWS = 100_000
"""Most rows that are read completely: a few minutes of TFDS at a row length of 8,192."""
# shards that are read of a larger directory, and most columns that are told to differ
_SHARDS = 32
# rows in a batch of either side: these are decoded and compared at once
_BATCH = 32
# -1: none of the GPUs, which a training run may have
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "TFDS_LOGGING_LEVEL": "error"}
_NEEDED = ("tensorflow", "tensorflow_datasets")


def read_with_tfds(where: Path, dataset: str, version: str, format: FileFormat) -> Finding:
    """Let TFDS open the directory of shards ``where`` and read its rows in file order; a warning without TFDS.

    ``dataset`` and ``version`` are the names that `tfds.builder` finds it by, ``format`` that of its shards.
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
    """Runs in the worker. Errors of TFDS name files and offsets, so only their type is shown."""
    # TensorFlow's C++ code writes to stderr directly, whatever its environment variables say.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        return _compare(where, dataset, version, format)
    except Exception as error:  # the text of any error of TensorFlow may quote data
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
    # TFDS does not find a directory named `1.0`, whose metadata say 1.0.0: it is opened by its path alone
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
            # not strict, because the count below tells of rows that are missing
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
    """Ranges of shards to read: all of them as one, or some that are spread over them."""
    if rows <= MOST_ROWS:
        return [(0, shards)]
    return [(shard, shard + 1) for shard in sorted({(shards - 1) * i // (_SHARDS - 1) for i in range(_SHARDS)})]


def _by_tfds(library: Any, builder: Any, split: str, format: FileFormat) -> Iterator[dict[str, NDArray[Any]]]:
    # each format has one reader: TFDS has no `as_dataset` of ArrayRecord, and no data source of TFRecord
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
    """Rows as arrays, with `ABSENT` after the values of a shorter one, as in `decode_rows`."""
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
    """A directory to check."""

    declared: NotesDeclaration | ReplayDeclaration

    @property
    def path(self) -> Path:
        """The folder of the shards."""
        return self.directory / self.declared.dataset / self.declared.tfds_version

    @cached_property
    def provenance(self) -> Mapping[str, Sequence[tuple[str, ShardOrigin]]]:
        """Split → name and origin of each shard, as they are on disk."""
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


# its digests are compared unless `verify: size` is declared
FILES_INTACT: Check[OpenedDirectory] = Check(
    "files_intact", "Every file has the size and digest in the receipt, and no other file exists.", _files_intact
)
# Repeats with the real reader what the others verify without it; a warning if TensorFlow is not installed, which the
# machines that build a dataset do not need.
TFDS_READS: Check[OpenedDirectory] = Check(
    "readable_by_tfds",
    "tensorflow-datasets opens the directory and reads the stored rows in file order.",
    _tfds_reads,
    blocking=False,
)
