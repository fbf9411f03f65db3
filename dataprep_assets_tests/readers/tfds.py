"""Use TensorFlow Datasets and grain on directories of TFRecord and ArrayRecord shards.

File order needs `interleave_cycle_length=1`; by default TFDS mixes 16 files.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep_assets_tests.readers.families import TENSORFLOW
from dataprep_assets_tests.readers.process import in_process_of

Row = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class ByName:
    """A dataset that TFDS finds by `name:version` below a folder, not by the path of its directory."""

    name: str
    data_dir: Path


def _builder(where: Path | ByName) -> Any:
    import tensorflow_datasets as library

    if isinstance(where, ByName):
        return library.builder(where.name, data_dir=str(where.data_dir))
    return library.builder_from_directory(str(where))


def _rows(where: Path | ByName, split: str) -> Any:
    import tensorflow_datasets as library

    config = library.ReadConfig(interleave_cycle_length=1)
    return _builder(where).as_dataset(split=split, read_config=config)


@in_process_of(TENSORFLOW)
def read_rows(where: Path | ByName, split: str = "train") -> list[Row]:
    """Return every row of a split, in file order."""
    return list(_rows(where, split).as_numpy_iterator())


@in_process_of(TENSORFLOW)
def maxtext_batches(where: ByName, shards: list[Path], batch_size: int, row_length: int) -> dict[str, list[Row]]:
    """The batches of `serving.sampler.maxtext` over the same prepacked rows: by `tfds`, in file order, and by `grain`.

    Args:
        where: The directory of TFRecord shards.
        shards: The ArrayRecord shards.
        batch_size: Rows of a batch.
        row_length: Values of a column.
    """
    import grain.python as grain

    from dataprep_assets.serving.sampler.maxtext import grain_batches, tfds_batches

    rows = tfds_batches(_rows(where, "train"), batch_size)
    source = grain.MapDataset.source(grain.ArrayRecordDataSource([str(path) for path in shards]))
    payloads = source.to_iter_dataset()
    return {
        "tfds": list(rows.as_numpy_iterator()),
        "grain": [dict(batch) for batch in grain_batches(payloads, batch_size, row_length)],
    }


@in_process_of(TENSORFLOW)
def block_of_batches(text: str, folder: Path) -> dict[str, Any]:
    """What a page's block leaves that reads batches of notes: the last `batch`, its `weights`, `inputs`, and one `row`.

    Args:
        text: The block.
        folder: The working folder while it runs.
    """
    names: dict[str, Any] = {"__name__": "block"}
    with contextlib.chdir(folder):
        exec(compile(text, "page.md", "exec"), names)
    plain = {name: np.asarray(names[name]) for name in ("inputs", "targets", "weights")}
    return plain | {"row": names["row"], "batch": dict(names["batch"])}


@in_process_of(TENSORFLOW)
def read_columns(where: Path | ByName, split: str = "train") -> Row:
    """Return every row of a split in file order, as an array of shape `(rows, length)` per declared column."""
    found = list(_rows(where, split).as_numpy_iterator())
    return {name: np.array([row[name] for row in found]) for name in _builder(where).info.features}


@in_process_of(TENSORFLOW)
def read_shifted(where: Path, column: str, length: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the two columns that MaxText's TFDS input makes of one: all but the last and all but the first of `length
    + 1` ids.
    """
    cut = _rows(where, "train").map(lambda row: row[column][: length + 1])
    both = list(cut.map(lambda row: {"inputs": row[:-1], "targets": row[1:]}).as_numpy_iterator())
    return np.array([row["inputs"] for row in both]), np.array([row["targets"] for row in both])


@dataclass(frozen=True)
class SourceRows:
    """The number of rows of a data source, and the requested rows."""

    rows: int
    found: list[Row]


@in_process_of(TENSORFLOW)
def read_source(where: Path | ByName, split: str = "train", rows: list[int] | None = None) -> SourceRows:
    """Return rows of a split by random access (`as_data_source`), for ArrayRecord; all of them without `rows`."""
    source = _builder(where).as_data_source(split=split)
    return SourceRows(len(source), [dict(source[row]) for row in (range(len(source)) if rows is None else rows)])


@in_process_of(TENSORFLOW)
def read_at(paths: list[Path], rows: list[int]) -> tuple[int, list[bytes]]:
    """Return the number of records of ArrayRecord files, and the records with these numbers, by grain's data source."""
    from grain.sources import ArrayRecordDataSource

    source = ArrayRecordDataSource([str(path) for path in paths])
    return len(source), [source[row] for row in rows]


@in_process_of(TENSORFLOW)
def split_info(where: Path | ByName, split: str = "train") -> tuple[int, list[int]]:
    """Return the number of rows of a split and of each of its shards, as TFDS reads the metadata."""
    info = _builder(where).info.splits[split]
    return info.num_examples, list(info.shard_lengths)


@in_process_of(TENSORFLOW)
def write_metadata(where: Path, version: str, columns: list[tuple[str, int, str]], description: str) -> None:
    """Write `dataset_info.json` and `features.json` as `folder_dataset.write_metadata` does.

    Args:
        where: The directory, with the shards.
        version: The dataset's version.
        columns: Name, length and dtype of each.
        description: The dataset's; empty: not given.
    """
    import tensorflow_datasets as library

    library.folder_dataset.write_metadata(
        data_dir=where,
        version=version,
        features={
            name: library.features.Tensor(shape=(length,), dtype=np.dtype(dtype)) for name, length, dtype in columns
        },
        **({"description": description} if description else {}),
    )


@in_process_of(TENSORFLOW)
def relative_shard_paths(dataset: str, split: str, numbers: list[tuple[int, int]]) -> list[str]:
    """Return file names of shards by TFDS's template, for each pair of a shard's index and the number of shards."""
    import tensorflow_datasets as library

    template = library.core.ShardedFileTemplate(
        data_dir="", dataset_name=dataset, split=split, filetype_suffix="tfrecord"
    )
    return [str(template.relative_filepath(shard_index=index, num_shards=total)) for index, total in numbers]
