"""The rows of a shard that its selection drops, each with the reason: `dropped.parquet` of the artifact `selection`.

A reason is the name of a rule, `duplicate` or `retracted`. Downstream artifacts depend only on the dropped rows
(`digest`), not on the reasons, so renaming a rule does not tokenize a shard again.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.table import Columns
from dataprep_assets.errors import FormatError, IntegrityError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.stores.files import canonical_json

DROPPED = "dropped.parquet"
COLUMNS: Columns = {"file": "string", "row": "integer", "reason": "string"}


@dataclass(frozen=True)
class DroppedFileRows:
    """Dropped rows of one file: their increasing numbers, shape `(rows,)`, uint64, and the reason for each."""

    rows: NDArray[np.uint64]
    why: Sequence[str]

    def find_dropped(self, rows: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return a mask of the given rows that are dropped: shape `(rows,)`."""
        return np.isin(rows, self.rows)

    def find_reasons(self, rows: NDArray[np.uint64]) -> list[str | None]:
        """Return the drop reason of each of the given rows; None for kept rows."""
        if not len(self.rows):
            return [None] * len(rows)
        # A row beyond the last dropped row has no position in `self.rows`, so compare it with the last dropped row,
        # which it never equals.
        indices = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
        matches = self.rows[indices] == rows
        return [
            self.why[index] if is_match else None
            for index, is_match in zip(indices.tolist(), matches.tolist(), strict=True)
        ]


_NONE = DroppedFileRows(np.empty(0, np.uint64), ())


@dataclass(frozen=True)
class DroppedRows:
    """The rows of a shard that its selection drops. Picklable, because the rows are read only when needed.

    Attributes:
        store: The storage of the selection.
        artifact: The shard's selection.
        content: Digest of its files, including the reasons.
        digest: Digest of the dropped rows by file (`digest_dropped_rows`); empty if no row is dropped.
        rows: Number of dropped rows.
    """

    store: ArtifactStore
    artifact: Artifact
    content: str
    digest: str
    rows: int

    def __str__(self) -> str:
        """Return the text for recipes and receipts, empty if no row is dropped. The plural is used for every number."""
        return f"{self.rows:,} dropped rows ({self.digest[:12]})" if self.digest else ""

    def select_file(self, file: str) -> DroppedFileRows:
        """Return the dropped rows of one file of the shard."""
        if not self.digest:
            return _NONE
        # Cache the rows of the shard, so that they are read once for all of its files. The content is part of the cache
        # key, because the selection in the folder may be replaced.
        return _read_rows(self.store.local(self.artifact), self.content, self.digest).get(file, _NONE)


@lru_cache(maxsize=2)
def _read_rows(directory: Path, _: str, digest: str) -> Mapping[str, DroppedFileRows]:
    dropped_rows = read_dropped_rows(directory)
    if digest_dropped_rows(dropped_rows) != digest:
        raise IntegrityError(f"{directory / DROPPED}: the rows differ from the receipt. Rebuild `selection`")
    return dropped_rows


def read_dropped_rows(directory: Path) -> dict[str, DroppedFileRows]:
    """Return the dropped rows of a selection, by file. Raises FormatError if the file cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table: Any = pq.ParquetFile(directory / DROPPED, page_checksum_verification=True).read(list(COLUMNS))
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{directory / DROPPED}: cannot be read as Parquet: {error}. Rebuild `selection`") from error
    return group_by_file([table.to_pydict()])


def group_by_file(pieces: Iterable[Mapping[str, list[Any]]]) -> dict[str, DroppedFileRows]:
    """Group dropped rows, which are in the order of their files, by file."""
    columns_by_file: dict[str, tuple[list[int], list[str]]] = {}
    for rows in pieces:
        for file, row, reason in zip(rows["file"], rows["row"], rows["reason"], strict=True):
            numbers, reasons = columns_by_file.setdefault(file, ([], []))
            numbers.append(row)
            reasons.append(reason)
    return {
        file: DroppedFileRows(np.array(rows, np.uint64), reasons) for file, (rows, reasons) in columns_by_file.items()
    }


def digest_dropped_rows(dropped_rows: Mapping[str, DroppedFileRows]) -> str:
    """Return the SHA-256 (hex) of dropped rows, by file; empty if no row is dropped."""
    digest = hashlib.sha256()
    for file, file_rows in sorted(dropped_rows.items()):
        digest.update(canonical_json([file, len(file_rows.rows)]))
        digest.update(file_rows.rows.astype("<u8").tobytes())
    # Return an empty digest if no row is dropped, so that the shard has the same key as without rules.
    return digest.hexdigest() if any(len(file_rows.rows) for file_rows in dropped_rows.values()) else ""
