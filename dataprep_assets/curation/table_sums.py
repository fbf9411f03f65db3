"""Sums of a document table per file, for comparison with the ledger of a shard."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.table import read_joined_tables, split_by_file
from dataprep_assets.engine.artifact.losses import format_drops
from dataprep_assets.integrity.receipt import SELECTED

if TYPE_CHECKING:
    import pyarrow as pa

FILE = "documents.parquet"


def count_values(values: "pa.ChunkedArray") -> Counter[str]:
    """Count how often each value occurs; nulls are not counted."""
    counts = values.drop_null().value_counts()
    return Counter(dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)))


def _parse_hashes(ids: Sequence[str | None]) -> NDArray[np.uint64]:
    """Parse ids of 16 hex digits into numbers; return zeros if any id has a different form."""
    try:
        # Read the bytes as big-endian, because the first hex digits of an id are the most significant.
        numbers = np.frombuffer(bytes.fromhex("".join(ids)), ">u8").astype(np.uint64)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        numbers = np.empty(0, np.uint64)
    # Return zeros if an id is invalid: zeros differ from the stored ids, so the check reports a difference instead of
    # raising an error.
    return numbers if len(numbers) == len(ids) else np.zeros(len(ids), np.uint64)


class TableSums:
    """Sums of a document table per file, and the ids of its documents."""

    def __init__(self, directory: Path, selected: Collection[str]) -> None:
        """Read a table; `selected` are the reasons of the selection, which the ledger counts as a single reason."""
        import pyarrow.compute as pc

        self._selected = frozenset(selected)

        self.rows = self.kept = 0
        self.reasons: Counter[str] = Counter()
        self._lines: dict[str, dict[str, Any]] = {}
        self._ids: list[NDArray[np.uint64]] = []
        for piece in read_joined_tables([directory / FILE]):
            for file, run in split_by_file(piece):
                line = self._lines.setdefault(file, {"rows_in": 0, "documents": 0, "tokens": 0, "dropped": Counter()})
                kept_rows = run.filter(run["kept"])
                line["rows_in"] += run.num_rows
                line["documents"] += kept_rows.num_rows
                if "tokens" in run.column_names:
                    line["tokens"] += pc.sum(kept_rows["tokens"]).as_py() or 0
                line["dropped"] += count_values(run["reason"])
                if "id" in run.column_names:
                    self._ids.append(_parse_hashes(kept_rows["id"].to_pylist()))
        for line in self._lines.values():
            self.rows, self.kept = self.rows + line["rows_in"], self.kept + line["documents"]
            self.reasons += line["dropped"]

    def find_differences(self, sources: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """Yield a sentence for each sum of a file that differs from the ledger, which has a line for each source."""
        empty = {"rows_in": 0, "documents": 0, "tokens": 0, "dropped": Counter()}
        for line in sources:
            sums = self._lines.pop(str(line["file"]), empty)
            for name in ("rows_in", "documents", "tokens"):
                if sums[name] != line[name]:
                    yield f"{line['file']}: the sum of `{name}` is {sums[name]:,}, but the ledger has {line[name]:,}"
            table_drops, ledger_drops = self._merge_counts(sums["dropped"]), self._merge_counts(line["dropped"])
            if table_drops != ledger_drops:
                yield (
                    f"{line['file']}: dropped rows by reason: {format_drops(table_drops)} in the table, but "
                    f"{format_drops(ledger_drops)} in the ledger"
                )
        # The loop above removed each file of the ledger from `_lines`, so the remaining files are not in the ledger.
        for file in self._lines:
            yield f"{file}: is in the table, but is not a file of the shard"

    def _merge_counts(self, drop_counts: Mapping[str, int]) -> Counter[str]:
        """Return counts by reason in the ledger's form, without reasons that dropped nothing."""
        counts: Counter[str] = Counter()
        for reason, count in drop_counts.items():
            counts[SELECTED if reason in self._selected else reason] += count
        return +counts

    def find_id_differences(self, stored_ids: NDArray[np.uint64] | None) -> Iterator[str]:
        """Yield a sentence if the ids of the kept rows differ from the ids of the stream's documents."""
        if stored_ids is None:
            return
        ids = np.concatenate(self._ids) if self._ids else np.empty(0, np.uint64)
        if not np.array_equal(ids, stored_ids):
            yield "the ids of its kept rows differ from the ids of the stream's documents"
