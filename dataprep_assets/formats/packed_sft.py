"""Packed chat data as the trainer reads it: Parquet, one row per bin (docs/formats/packed-sft.md#parquet; Nemotron,
`packing/writers.py`).

Three list columns: `input_ids` int32, `loss_mask` uint8 (aligned to labels), `seq_start_id` int32 (where each
sequence of the row begins; the first is 0). No padding. Row groups hold a fixed number of bins. The consumer is
Megatron-Bridge (`data/packing/parquet.py`, `GPTSFTPackedParquetDataset`), whose `validate_row` this module's
`row_defects` includes and exceeds: it also finds an empty sequence, a mask that is not 0 or 1, and a trained position
at the end of a sequence, all of which the consumer accepts.

Entry points: `write_bins`, `open_packed`, `row_defects`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import FormatError
from dataprep_assets.formats.parquet_extent import require_no_gaps

if TYPE_CHECKING:
    import pyarrow as pa

_TYPES = {"input_ids": "int32", "loss_mask": "uint8", "seq_start_id": "int32"}
COLUMNS = tuple(_TYPES)
COLUMN_TYPES = {column: f"list<{kind}>" for column, kind in _TYPES.items()}
"""Column → type of its values."""
LARGEST_ID = 2**31 - 1
"""Largest id of the int32 column `input_ids`. The offsets of a Parquet list are int32 too, which limits the tokens of a
row group."""


def schema() -> "pa.Schema":
    """The schema of every file: lists whose child is named `element`."""
    import pyarrow as pa

    return pa.schema([(c, pa.list_(pa.field("element", pa.type_for_alias(t)))) for c, t in _TYPES.items()])


def token_ids(tokens: NDArray[np.uint32], where: str) -> NDArray[np.int32]:
    """The same ids as int32, the type of the column, in the same memory.

    Raises FormatError, naming the position, for one that does not fit.
    """
    if tokens.size and int(tokens.max()) > LARGEST_ID:
        at = int(np.argmax(tokens > LARGEST_ID))
        raise FormatError(
            f"{where}: token id {tokens[at]} at position {at} does not fit int32, the type of `input_ids`: it "
            "would come out negative. The tokenizer and its engine disagree: materialize the engine certificate again"
        )
    return tokens.view(np.int32)


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedSftRows:
    """Consecutive rows. Row `r` has the tokens `rows[r]` to `rows[r + 1]` and the starts `heads[r]` to `heads[r + 1]`.

    `tokens` int32, `mask` uint8, shape `(tokens,)`; `starts` int32, relative to the row; `rows`, `heads` int64 with a
    leading 0; `first` is the number of the first row in the file.
    """

    tokens: NDArray[np.int32]
    mask: NDArray[np.uint8]
    starts: NDArray[np.int32]
    rows: NDArray[np.int64]
    heads: NDArray[np.int64]
    first: int = 0

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows) - 1

    def sequence_bounds(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First and last + 1 token of every sequence, as positions in `tokens`, int64; for rows without defects."""
        begins = self.starts.astype(np.int64) + np.repeat(self.rows[:-1], np.diff(self.heads))
        return begins, np.append(begins[1:], len(self.tokens))


def write_bins(
    path: Path,
    items: NDArray[np.int64],
    offsets: NDArray[np.int64],
    tokens: NDArray[np.int32],
    mask: NDArray[np.uint8],
    ends: NDArray[np.int64],
    *,
    row_group_bins: int = 1000,
    compression: str = "zstd",
) -> None:
    """Write bins as the rows of the new Parquet file `path`, a row a bin.

    Bin `b` holds the sequences `items[offsets[b]:offsets[b + 1]]`, in that order; `offsets` has shape `(bins + 1,)` and
    a leading 0. Sequence `i` is `tokens[ends[i]:ends[i + 1]]` with the same slice of `mask` (aligned to labels);
    `ends` has shape `(sequences + 1,)` and a leading 0. `row_group_bins` rows are a row group, which is what is in
    memory at a time; `compression` is a codec of Parquet. Pages have checksums, which a reader may verify and ours
    does. The same arrays give the same bytes. Raises FormatError when a row group has more than 2**31 - 1 tokens.
    """
    import pyarrow.parquet as pq

    tokens, mask = np.asarray(tokens), np.asarray(mask)  # a slice of a memmap costs several of an array
    options = {"compression": compression, "write_statistics": False, "write_page_checksum": True}
    with pq.ParquetWriter(path, schema(), **options) as writer:
        for first in range(0, len(offsets) - 1, row_group_bins):
            edges = offsets[first : first + row_group_bins + 1]
            table = _table(items[edges[0] : edges[-1]], edges - edges[0], tokens, mask, ends)
            writer.write_table(table, row_group_size=row_group_bins)


def _table(
    items: NDArray[np.int64],
    offsets: NDArray[np.int64],
    tokens: NDArray[np.int32],
    mask: NDArray[np.uint8],
    ends: NDArray[np.int64],
) -> "pa.Table":
    import pyarrow as pa

    slices = [slice(start, stop) for start, stop in zip(ends[items].tolist(), ends[items + 1].tolist(), strict=True)]
    begins = np.zeros(len(items) + 1, np.int64)
    np.cumsum(ends[items + 1] - ends[items], out=begins[1:])
    rows = begins[offsets]
    # where each sequence begins in its own row
    starts = begins[:-1] - np.repeat(rows[:-1], np.diff(offsets))
    columns = (
        (rows, np.concatenate([tokens[s] for s in slices])),
        (rows, np.concatenate([mask[s] for s in slices])),
        (offsets, starts.astype(np.int32)),
    )
    if rows[-1] > LARGEST_ID:
        raise FormatError(f"a row group of {rows[-1]} tokens: lists hold 2^31 at most. Lower `row_group_bins`")
    arrays = [
        pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), pa.array(values), type=kind)
        for (bounds, values), kind in zip(columns, schema().types, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema())


@dataclass(frozen=True)
class PackedFile:
    """An open packed file: rows and row groups by its footer; iteration gives a row group at a time."""

    path: Path
    rows: int
    group_sizes: tuple[int, ...]

    def __iter__(self) -> Iterator[PackedSftRows]:
        """Rows of each row group. Raises FormatError when they cannot be read."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        first = 0
        try:
            with pq.ParquetFile(self.path, page_checksum_verification=True) as file:
                for group in range(len(self.group_sizes)):
                    yield _rows(file.read_row_group(group, use_threads=False), first)
                    first += self.group_sizes[group]
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{self.path}: cannot be read from row {first} on: {error}. Rebuild it") from error


def open_packed(path: Path) -> PackedFile:
    """Open a packed file.

    Raises FormatError when it is not a Parquet file, has another schema, or has bytes that belong to no row.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            held, metadata = file.schema_arrow, file.metadata
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{path}: not a Parquet file: {error}. Rebuild it") from error
    if not held.equals(schema()):
        raise FormatError(f"{path}: columns are {_spelled(held)}, the trainer needs {_spelled(schema())}. Rebuild it")
    require_no_gaps(path, metadata)
    sizes = tuple(metadata.row_group(g).num_rows for g in range(metadata.num_row_groups))
    return PackedFile(path, metadata.num_rows, sizes)


def _spelled(held: "pa.Schema") -> str:
    return ", ".join(f"{f.name} {f.type}" for f in held)


def _rows(table: "pa.Table", first: int) -> PackedSftRows:
    values: dict[str, tuple[NDArray[Any], NDArray[np.int64]]] = {}
    for name in COLUMNS:
        column = table.column(name).combine_chunks()
        if column.null_count or column.flatten().null_count:
            raise FormatError(f"column {name} holds nulls in the row group of row {first}. Rebuild the file")
        lengths = column.value_lengths().to_numpy()
        offsets = np.zeros(len(column) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        values[name] = column.flatten().to_numpy(), offsets
    tokens, rows = values["input_ids"]
    mask, mask_rows = values["loss_mask"]
    if not np.array_equal(rows, mask_rows):
        at = first + int(np.argmax(np.diff(rows) != np.diff(mask_rows)))
        raise FormatError(f"row {at}: input_ids and loss_mask differ in length. Rebuild the file")
    starts, heads = values["seq_start_id"]
    return PackedSftRows(tokens=tokens, mask=mask, starts=starts, rows=rows, heads=heads, first=first)


def row_defects(rows: PackedSftRows, pack_size: int, *, untrained_allowed: bool = False) -> list[str]:
    """The defects of rows, one sentence for each kind with the first row that has it; empty if there are none.

    `pack_size` is the longest row in tokens; with `untrained_allowed` a sequence may have no trained token. Starts are
    checked before the mask: without valid starts there are no sequences to examine.
    """
    lengths, counts = np.diff(rows.rows), np.diff(rows.heads)
    found: list[str] = []

    def report(wrong: NDArray[np.bool_], what: str) -> None:
        if wrong.any():
            found.append(f"row {rows.first + int(np.argmax(wrong))}: {what} ({int(wrong.sum())} rows of this group)")

    report(lengths > pack_size, f"longer than the pack size of {pack_size} tokens")
    report(lengths == 0, "empty")
    report(counts == 0, "no sequence starts in it")
    # A row without a start has no entry in `starts`: what follows would look at that of the next row.
    if found and (counts == 0).any():
        return found
    row_of_start = np.repeat(np.arange(len(rows)), counts)
    report(rows.starts[rows.heads[:-1]] != 0, "its first sequence does not start at 0")
    falling = np.zeros(len(rows), np.bool_)
    # the first start of a row comes after the last one of the row before, and may be smaller
    not_first = np.ones(len(rows.starts), np.bool_)
    not_first[rows.heads[:-1]] = False
    steps = np.diff(rows.starts, prepend=0)
    falling[row_of_start[not_first & (steps <= 0)]] = True
    report(falling, "starts of sequences do not increase strictly")
    beyond = np.zeros(len(rows), np.bool_)
    beyond[row_of_start[rows.starts >= lengths[row_of_start]]] = True
    report(beyond, "a sequence starts behind the row's end")
    odd = np.zeros(len(rows), np.bool_)
    # the row of a position is the last one that begins at or before it
    odd[np.searchsorted(rows.rows, np.flatnonzero(rows.mask > 1), side="right") - 1] = True
    report(odd, "loss_mask holds a value that is not 0 or 1")
    if found:
        return found
    begins, ends = rows.sequence_bounds()
    at_end, untrained = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
    at_end[row_of_start[rows.mask[ends - 1] != 0]] = True
    report(at_end, "the last position of a sequence is trained: its label would be the next sequence's first token")
    # The largest mask of each sequence. For an empty one `reduceat` has no answer, but the starts were checked above.
    untrained[row_of_start[np.maximum.reduceat(rows.mask, begins) == 0]] = True
    report(untrained & (not untrained_allowed), "a sequence has no trained token")
    return found
