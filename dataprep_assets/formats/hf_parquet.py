"""A token stream as Parquet that `datasets.load_dataset` reads: a document a row, and the dataset card that names it.

``data/<split>-<i:05d>-of-<n:05d>.parquet`` with one column, ``input_ids`` (list of int32), and ``README.md`` whose YAML
front matter lists the configuration's files by split and the column's type (Hugging Face Hub, "Dataset Cards" and
"Manual Configuration"; `datasets` reads both).

Entry points: `write_split`, `write_card`, `read_counts`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep_assets.errors import FormatError

__all__ = ["COLUMN", "SplitWritten", "read_counts", "write_card", "write_split"]

COLUMN = "input_ids"
ROWS_PER_FILE = 1 << 20
_ROW_GROUP = 1 << 14


@dataclass(frozen=True, kw_only=True)
class SplitWritten:
    """Rows, bytes on disk and files of a split."""

    rows: int
    bytes: int
    files: int


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema([pa.field(COLUMN, pa.list_(pa.field("element", pa.int32())))])


def write_split(
    directory: Path,
    split: str,
    tokens: npt.NDArray[Any],
    ends: npt.NDArray[np.uint64],
    *,
    rows_per_file: int = ROWS_PER_FILE,
) -> SplitWritten:
    """Write a stream (ids, shape ``(tokens,)``; ends, uint64, shape ``(documents,)``) as the files of a split.

    A split of no documents is one file of no rows. FormatError when the ends are not the stream's, or for an id of
    2**31 or more; FileExistsError when a file exists.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if (int(ends[-1]) if len(ends) else 0) != len(tokens):
        raise FormatError(f"{split}: the last document does not end at token {len(tokens)}, where the stream does")
    (directory / "data").mkdir(parents=True, exist_ok=True)
    files = max(1, -(-len(ends) // rows_per_file))
    size = 0
    for number in range(files):
        first, last = number * rows_per_file, min((number + 1) * rows_per_file, len(ends))
        path = directory / "data" / f"{split}-{number:05d}-of-{files:05d}.parquet"
        with open(path, "xb") as file, pq.ParquetWriter(file, _schema(), compression="zstd") as writer:
            for start in range(first, last, _ROW_GROUP):
                stop = min(start + _ROW_GROUP, last)
                begin = int(ends[start - 1]) if start else 0
                ids = np.asarray(tokens[begin : int(ends[stop - 1])])
                if len(ids) and int(ids.max()) >= 1 << 31:
                    raise FormatError(f"{split}: id {int(ids.max())} does not fit int32")
                offsets = np.concatenate([[0], np.asarray(ends[start:stop]).astype(np.int64) - begin])
                lists = pa.ListArray.from_arrays(offsets.astype(np.int32), pa.array(ids.astype(np.int32)))
                writer.write_table(pa.table([lists.cast(_schema().field(0).type)], schema=_schema()))
        size += path.stat().st_size
    return SplitWritten(rows=len(ends), bytes=size, files=files)


def write_card(directory: Path, name: str, splits: Mapping[str, SplitWritten]) -> None:
    """Write ``README.md`` for these splits, in their order. FileExistsError when there is one."""
    lines = ["---", "configs:", "- config_name: default", "  data_files:"]
    for split in splits:
        lines += [f"  - split: {split}", f"    path: data/{split}-*.parquet"]
    lines += ["dataset_info:", "  config_name: default", "  features:", f"  - name: {COLUMN}", "    list: int32"]
    lines += ["  splits:"]
    for split, written in splits.items():
        lines += [f"  - name: {split}", f"    num_examples: {written.rows}"]
    lines += ["---", "", f"# {name}", "", "Token ids, a document a row."]
    with open(directory / "README.md", "x", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def read_counts(directory: Path) -> dict[str, int]:
    """Rows of each split by its files' footers; FormatError for a file that is missing or has another schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found: dict[str, int] = {}
    numbers: dict[str, list[int]] = {}
    totals: dict[str, int] = {}
    for path in sorted((directory / "data").iterdir()):
        split, _, rest = path.stem.partition("-")
        number, _, total = rest.partition("-of-")
        try:
            metadata, schema = pq.read_metadata(path), pq.read_schema(path)
            numbers.setdefault(split, []).append(int(number))
            totals[split] = int(total)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise FormatError(f"{path}: not a Parquet file of a split: {error}") from error
        if not schema.equals(_schema()):
            raise FormatError(
                f"{path}: its columns are {schema.names} of {schema.types}, not {COLUMN} of lists of int32"
            )
        found[split] = found.get(split, 0) + metadata.num_rows
    for split, present in numbers.items():
        if present != list(range(totals[split])):
            raise FormatError(f"{directory}: {split} has the files {present} of {totals[split]}")
    return found
