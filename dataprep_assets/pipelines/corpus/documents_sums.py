"""The sums of a table of documents, file by file, as they have to be in the ledger of the stream."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.documents.table import side_by_side
from dataprep_assets.integrity.receipt import Receipt

if TYPE_CHECKING:
    import pyarrow as pa

FILE = "documents.parquet"


def runs_of(piece: "pa.Table") -> Iterator[tuple[str, "pa.Table"]]:
    """The consecutive rows of a piece that are of one file."""
    import pyarrow.compute as pc

    runs, start = pc.run_end_encode(piece["file"].combine_chunks(), run_end_type="int64"), 0
    for file, stop in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield file, piece.slice(start, stop - start)
        start = stop


class TableSums:
    """The sums of a table, file by file, and the ids of its documents."""

    def __init__(self, directory: Path) -> None:
        self.rows = self.kept = 0
        self.reasons: Counter[str] = Counter()
        self._lines: dict[str, dict[str, Any]] = {}
        self._ids: list[NDArray[np.uint64]] = []
        for piece in side_by_side([directory / FILE]):
            for file, run in runs_of(piece):
                line = self._lines.setdefault(file, {"rows_in": 0, "documents": 0, "tokens": 0, "dropped": Counter()})
                kept = run.filter(run["kept"])
                line["rows_in"] += run.num_rows
                line["documents"] += kept.num_rows
                line["tokens"] += sum(kept["tokens"].to_pylist())
                line["dropped"].update(one for one in run["reason"].to_pylist() if one is not None)
                if "id" in run.column_names:
                    self._ids.append(np.array([int(one, 16) for one in kept["id"].to_pylist()], np.uint64))
        for line in self._lines.values():
            self.rows, self.kept = self.rows + line["rows_in"], self.kept + line["documents"]
            self.reasons += line["dropped"]

    def other_than(self, tokenized: Receipt) -> Iterator[str]:
        """A sentence for each sum of a file that is not that of the ledger."""
        empty = {"rows_in": 0, "documents": 0, "tokens": 0, "dropped": Counter()}
        for line in tokenized.sources:
            found = self._lines.pop(str(line["file"]), empty)
            for name in ("rows_in", "documents", "tokens"):
                if found[name] != line[name]:
                    yield f"{line['file']}: {name} sum to {found[name]:,}, the ledger says {line[name]:,}"
            if +found["dropped"] != +Counter(line["dropped"]):
                yield f"{line['file']}: drops are {dict(found['dropped'])}, the ledger says {dict(line['dropped'])}"
        for file in self._lines:
            yield f"{file}: is in the table, and no file of the shard"

    def other_ids(self, stored: NDArray[np.uint64] | None) -> Iterator[str]:
        """A sentence if the ids of the kept rows are not those of the stream's documents."""
        if stored is None:
            return
        ids = np.concatenate(self._ids) if self._ids else np.empty(0, np.uint64)
        if not np.array_equal(ids, stored):
            yield "its kept rows have other ids than the documents of the stream"
