"""The sums of a table of documents, file by file, as they have to be in the ledger of the stream."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.table import runs_of, side_by_side
from dataprep_assets.integrity.receipt import SELECTED, Receipt

if TYPE_CHECKING:
    import pyarrow as pa

FILE = "documents.parquet"


def count_values(values: "pa.ChunkedArray") -> Counter[str]:
    """Return how often each text is among them; nulls are not counted."""
    counts = values.drop_null().value_counts()
    return Counter(dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)))


def _hashes(ids: Sequence[str | None]) -> NDArray[np.uint64]:
    """The numbers that ids of 16 hex digits are; zeros if one is something else."""
    try:
        # hex digits begin with the highest byte
        numbers = np.frombuffer(bytes.fromhex("".join(ids)), ">u8").astype(np.uint64)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        numbers = np.empty(0, np.uint64)
    # what is no id makes a difference that is told, not an error of the check
    return numbers if len(numbers) == len(ids) else np.zeros(len(ids), np.uint64)


class TableSums:
    """The sums of a table, file by file, and the ids of its documents."""

    def __init__(self, directory: Path, selected: Collection[str]) -> None:
        """Read a table. `selected` are the reasons of its dataset's selection, which the ledger counts as one."""
        import pyarrow.compute as pc

        self._selected = frozenset(selected)

        self.rows = self.kept = 0
        self.reasons: Counter[str] = Counter()
        self._lines: dict[str, dict[str, Any]] = {}
        self._ids: list[NDArray[np.uint64]] = []
        for piece in side_by_side([directory / FILE]):
            for file, run in runs_of(piece):
                line = self._lines.setdefault(file, {"rows_in": 0, "documents": 0, "tokens": 0, "dropped": Counter()})
                kept_rows = run.filter(run["kept"])
                line["rows_in"] += run.num_rows
                line["documents"] += kept_rows.num_rows
                line["tokens"] += pc.sum(kept_rows["tokens"]).as_py() or 0
                line["dropped"] += count_values(run["reason"])
                if "id" in run.column_names:
                    self._ids.append(_hashes(kept_rows["id"].to_pylist()))
        for line in self._lines.values():
            self.rows, self.kept = self.rows + line["rows_in"], self.kept + line["documents"]
            self.reasons += line["dropped"]

    def other_than(self, tokenized: Receipt) -> Iterator[str]:
        """A sentence for each sum of a file that is not that of the ledger."""
        empty = {"rows_in": 0, "documents": 0, "tokens": 0, "dropped": Counter()}
        for line in tokenized.sources:
            sums = self._lines.pop(str(line["file"]), empty)
            for name in ("rows_in", "documents", "tokens"):
                if sums[name] != line[name]:
                    yield f"{line['file']}: {name} sum to {sums[name]:,}, but the ledger has {line[name]:,}"
            table_drops, ledger_drops = self._as_one(sums["dropped"]), self._as_one(line["dropped"])
            if table_drops != ledger_drops:
                yield f"{line['file']}: drops are {dict(table_drops)}, but the ledger has {dict(ledger_drops)}"
        # what is left: the files of the ledger were taken out above
        for file in self._lines:
            yield f"{file}: in the table, but not a file of the shard"

    def _as_one(self, dropped: Mapping[str, int]) -> Counter[str]:
        """Counts by reason as the ledger of a stream has them; a reason that dropped nothing makes no difference."""
        counts: Counter[str] = Counter()
        for reason, count in dropped.items():
            counts[SELECTED if reason in self._selected else reason] += count
        return +counts

    def other_ids(self, stored: NDArray[np.uint64] | None) -> Iterator[str]:
        """A sentence if the ids of the kept rows are not those of the stream's documents."""
        if stored is None:
            return
        ids = np.concatenate(self._ids) if self._ids else np.empty(0, np.uint64)
        if not np.array_equal(ids, stored):
            yield "the ids of its kept rows differ from the stream's"
