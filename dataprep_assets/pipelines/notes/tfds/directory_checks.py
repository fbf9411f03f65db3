"""Checks that all directories have in common, of one dataset or of a mixture.

A directory consists of links to shards that were checked with their cohorts, and metadata. Therefore a rebuild
(`find_claim_differences`) verifies it without reading rows. A second check reads the directory with TFDS itself.

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

from dataprep_assets.engine.checks.check import Check, Finding, OpenedArtifact, build_verdict
from dataprep_assets.errors import count_of
from dataprep_assets.execution.processes import WorkerPool
from dataprep_assets.execution.run_task import FinishedTask, Task, TaskId
from dataprep_assets.formats.tensorflow import array_record, example, tfds, tfrecord
from dataprep_assets.integrity.receipt import find_damage
from dataprep_assets.pipelines.notes.declaration import FileFormat, NotesDeclaration
from dataprep_assets.pipelines.notes.replay.replay_declaration import MixtureDeclaration
from dataprep_assets.pipelines.notes.tfds.linked_directory import DirectoryFacts
from dataprep_assets.pipelines.notes.tfds.provenance import PROVENANCE, ShardOrigin, read_provenance

# The check reads a directory with TensorFlow Datasets and compares the result with the stored rows.
#
# TensorFlow is imported in a separate process that ends after the check, because TensorFlow occupies half a gigabyte of
# memory, threads and all visible accelerators until its process ends. Reading in file order needs
# ``interleave_cycle_length=1``, because TFDS interleaves 16 files by default.
#
# The check reads all rows of a directory with up to `MAX_ROWS` rows. In a larger directory, it reads slices of whole
# shards, spread over each split, because a wrong shard length then results in rows of a different shard.

MAX_ROWS = 100_000
"""Maximum number of rows for a complete read, which takes TFDS a few minutes at a row length of 8,192."""
# This constant limits the number of shards that are read per split of a larger directory, and the number of differences
# that are listed.
_MAX_SLICES = 32
# Decode and compare only this many rows at a time, to limit the memory.
_BATCH_ROWS = 32
# Hide all GPUs (`CUDA_VISIBLE_DEVICES` is -1), because a training run may be using them.
_WORKER_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "TFDS_LOGGING_LEVEL": "error"}
_REQUIRED_MODULES = ("tensorflow", "tensorflow_datasets")


def read_with_tfds(directory: Path, dataset: str, version: str, format: FileFormat) -> Finding:
    """Check that TFDS opens the directory ``directory`` and reads its rows in file order; warn if TFDS is missing.

    ``dataset`` and ``version`` are the names for `tfds.builder`. ``format`` is the format of the shards.
    """
    if missing := [name for name in _REQUIRED_MODULES if importlib.util.find_spec(name) is None]:
        return Finding(
            passed=False,
            warning=True,
            facts={"rows_read": 0},
            summary=f"Not run: {' and '.join(missing)} cannot be imported. Install dataprep-assets[tfds], then "
            "execute only this check again.",
        )
    with WorkerPool(1, _WORKER_ENVIRONMENT) as pool:
        pool.submit(Task(TaskId("", "readable_by_tfds"), _compare_directory, (directory, dataset, version, format)))
        for event in pool.events():
            if isinstance(event, FinishedTask):
                if event.error is not None:
                    return Finding(passed=False, summary=f"{event.error}", facts={"rows_read": 0})
                finding: Finding = event.result
                return finding
    raise AssertionError("a pool ends with the end of its task")


def _compare_directory(directory: Path, dataset: str, version: str, format: FileFormat) -> Finding:
    """Compare a directory in the worker; show only the type of TFDS errors, because they name files and offsets."""
    # Redirect stderr, because TensorFlow's C++ code writes to it directly, regardless of the environment variables.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        return _compare_rows(directory, dataset, version, format)
    except Exception as error:  # omit the text, because any TensorFlow error may quote data
        error_name = type(error).__name__
    return Finding(
        passed=False,
        summary=f"tensorflow-datasets cannot read the directory: {error_name}. See the other checks for the cause.",
        facts={"rows_read": 0},
    )


def _compare_rows(directory: Path, dataset: str, version: str, format: FileFormat) -> Finding:
    import tensorflow_datasets as library

    info = tfds.read_metadata(directory)
    builder: Any = library.builder_from_directory(str(directory))
    defects: list[str] = []
    # Look up the version by name only if TFDS can find it: a directory `1.0` has metadata with the version 1.0.0, and
    # TFDS cannot find it by name.
    if version == info.version:
        by_name = library.builder(f"{dataset}:{version}", data_dir=str(directory.parents[1]))
        if Path(str(by_name.data_dir)) != directory:
            defects.append(f"tfds.builder({dataset}:{version}) finds a different directory")
    rows = 0
    for split in info.splits:
        if (tfds_count := builder.info.splits[split.name].num_examples) != split.rows:
            defects.append(
                f"split {split.name}: TFDS counts {count_of(tfds_count, 'row')}, but the metadata lists {split.rows}"
            )
        names, ends = info.list_shard_names(split), np.cumsum([0, *split.shard_lengths])
        for start, stop in _choose_slices(len(names), split.rows):
            low, high = int(ends[start]), int(ends[stop])
            read_count = 0
            tfds_rows = _read_by_tfds(library, builder, f"{split.name}[{low}:{high}]", format)
            stored_batches = _read_stored_rows([directory / name for name in names[start:stop]], info, format)
            # Do not use `strict=True`, because the comparison of the row counts below detects missing rows.
            for batch, expected_columns in zip(_batch_rows(tfds_rows), stored_batches, strict=False):
                for name, values in expected_columns.items():
                    is_same = (
                        name in batch and batch[name].shape == values.shape and np.array_equal(batch[name], values)
                    )
                    if not is_same and len(defects) < _MAX_SLICES:
                        defects.append(
                            f"split {split.name}: column {name} differs from the stored rows at or after row "
                            f"{low + read_count}"
                        )
                read_count += len(next(iter(batch.values())))
            if read_count != high - low:
                defects.append(
                    f"split {split.name}: TFDS read {count_of(read_count, 'row')}, but the metadata lists {high - low}"
                )
            rows += read_count
    total = sum(split.rows for split in info.splits)
    return build_verdict(
        defects,
        f"TFDS {library.__version__} read {rows} of {count_of(total, 'row')} in file order; all rows read equal the "
        "stored rows.",
        "The metadata does not describe the shards. Rebuild the directory",
        facts={"rows_read": rows, "rows": total},
    )


def _choose_slices(shards: int, rows: int) -> list[tuple[int, int]]:
    """Return the ranges of shards to read: one range with all shards, or evenly spread ranges of one shard."""
    if rows <= MAX_ROWS:
        return [(0, shards)]
    return [(shard, shard + 1) for shard in sorted({(shards - 1) * i // (_MAX_SLICES - 1) for i in range(_MAX_SLICES)})]


def _read_by_tfds(library: Any, builder: Any, split: str, format: FileFormat) -> Iterator[dict[str, NDArray[Any]]]:
    # Each format needs a different reader, because TFDS has no `as_dataset` for ArrayRecord and no data source for
    # TFRecord.
    if format == "array_record":
        yield from builder.as_data_source(split=split)
        return
    config = library.ReadConfig(interleave_cycle_length=1)
    yield from builder.as_dataset(split=split, read_config=config).as_numpy_iterator()


def _batch_rows(rows: Iterator[dict[str, NDArray[Any]]]) -> Iterator[dict[str, NDArray[Any]]]:
    batch: list[dict[str, NDArray[Any]]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _BATCH_ROWS:
            yield _stack_rows(batch)
            batch = []
    if batch:
        yield _stack_rows(batch)


def _stack_rows(rows: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Stack rows into arrays, with shorter rows padded with `ABSENT`, as in `decode_rows`."""
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
            array_record.read_records(path)
            if format == "array_record"
            else (r.payload for r in tfrecord.read_records(path))
        )
        for payload in payloads:
            batch.append(payload)
            if len(batch) == _BATCH_ROWS:
                yield example.decode_rows(batch, info.columns)
                batch = []
    if batch:
        yield example.decode_rows(batch, info.columns)


REBUILD = "Rebuild the directory"
REBUILD_SOURCES = "Rebuild the directory's sources, then the directory"


@dataclass(frozen=True)
class OpenedDirectory(OpenedArtifact):
    """A directory, opened for checks."""

    declared: NotesDeclaration | MixtureDeclaration

    @property
    def path(self) -> Path:
        """Folder of the shards."""
        return self.directory / self.declared.dataset / self.declared.tfds_version

    @cached_property
    def provenance(self) -> Mapping[str, Sequence[tuple[str, ShardOrigin]]]:
        """Split → name and origin of each shard, as stored."""
        return read_provenance(self.directory / PROVENANCE)


def _check_files(directory: OpenedDirectory) -> Finding:
    receipt = directory.receipt
    return build_verdict(
        (f"{directory.name}: {d}" for d in find_damage(directory.directory, receipt, directory.declared.verify)),
        f"{count_of(len(receipt.files), 'file')} ({count_of(receipt.total_bytes, 'byte')}): all digests match the "
        "receipt.",
        REBUILD,
        facts={"files": len(receipt.files), "bytes": receipt.total_bytes},
    )


def _check_tfds(directory: OpenedDirectory) -> Finding:
    declaration, format = directory.declared, DirectoryFacts.from_receipt(directory.receipt).format
    return read_with_tfds(directory.path, declaration.dataset, declaration.tfds_version, format)


# This check compares digests, unless `verify: size` is declared.
FILES_INTACT: Check[OpenedDirectory] = Check(
    "files_intact",
    "Every file has the size and digest that the receipt records, and there are no other files.",
    _check_files,
)
# This check does not block, and only warns if TensorFlow is missing, because machines that build a dataset do not need
# TensorFlow.
TFDS_READS: Check[OpenedDirectory] = Check(
    "readable_by_tfds",
    "tensorflow-datasets opens the directory, and reads the stored rows in their order in the files.",
    _check_tfds,
    blocking=False,
)
