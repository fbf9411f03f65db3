"""Packed rows as Parquet, one row per bin: input of chat trainers and of the shards of notes.

List columns: `input_ids` int32, `loss_mask` uint8 (aligned to labels; chats only), and `seq_start_id` int32 (where each
segment of the row begins; the first is 0). Rows have no padding. Row groups have a fixed number of rows. With the mask,
the format is Nemotron's (`packing/writers.py`; docs/formats/packed-sft.md#parquet). Megatron-Bridge reads it
(`data/packing/parquet.py`, `GPTSFTPackedParquetDataset`).

`row_defects` includes all checks of Megatron-Bridge's `validate_row`. It also finds an empty segment, a mask value
other than 0 and 1, and a trained position at the end of a segment, which Megatron-Bridge accepts.

Entry points: `PackedRowBlock`; `write_rows`, `open_packed`, `row_defects`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.formats.parquet_extent import require_no_gaps

if TYPE_CHECKING:
    import pyarrow as pa

IDS, MASK, STARTS = "input_ids", "loss_mask", "seq_start_id"
_TYPES = {IDS: "int32", MASK: "uint8", STARTS: "int32"}
COLUMNS = tuple(_TYPES)
COLUMN_TYPES = {column: f"list<{kind}>" for column, kind in _TYPES.items()}
"""Value type of each column, for rows with a mask."""
LARGEST_ID = 2**31 - 1
"""Largest id of the int32 column `input_ids`.

The offsets of a Parquet list are int32 as well, which limits the tokens of a row group.
"""


def schema(*, masked: bool = True) -> "pa.Schema":
    """Return the schema of every file, with or without a mask: lists whose child is named `element`."""
    import pyarrow as pa

    types = {column: kind for column, kind in _TYPES.items() if masked or column != MASK}
    return pa.schema([(c, pa.list_(pa.field("element", pa.type_for_alias(t)))) for c, t in types.items()])


def token_ids(tokens: NDArray[np.uint32], where: str) -> NDArray[np.int32]:
    """Return the same ids as int32, the type of the column, in the same memory.

    Raises FormatError, naming the position, if an id does not fit.
    """
    if tokens.size and int(tokens.max()) > LARGEST_ID:
        index = int(np.argmax(tokens > LARGEST_ID))
        raise FormatError(
            f"{where}: token id {tokens[index]} at position {index} does not fit int32, the type of `input_ids`. The "
            "tokenizer and its engine disagree. Materialize the engine certificate again"
        )
    return tokens.view(np.int32)


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedRowBlock:
    """Consecutive rows. Row `r` has the tokens `rows[r]` to `rows[r + 1]` and the starts `heads[r]` to `heads[r + 1]`.

    `tokens` is int32 and `mask` is uint8 or None, both of shape `(tokens,)`. `starts` is int32, relative to the row,
    shape `(segments,)`. `rows` and `heads` are int64 with a leading 0. `first` is the number of the first row in the
    file.
    """

    tokens: NDArray[np.int32]
    mask: NDArray[np.uint8] | None
    starts: NDArray[np.int32]
    rows: NDArray[np.int64]
    heads: NDArray[np.int64]
    first: int = 0

    @classmethod
    def of(
        cls,
        tokens: NDArray[np.int32],
        lengths: NDArray[np.int64],
        heads: NDArray[np.int64],
        *,
        mask: NDArray[np.uint8] | None = None,
        first: int = 0,
    ) -> Self:
        """Build rows from segments with these `lengths`, which follow each other in `tokens`."""
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        rows = ends[heads]
        starts = ends[:-1] - np.repeat(rows[:-1], np.diff(heads))
        return cls(tokens=tokens, mask=mask, starts=starts.astype(np.int32), rows=rows, heads=heads, first=first)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows) - 1

    @property
    def required_mask(self) -> NDArray[np.uint8]:
        """The mask; only for rows that have a mask."""
        assert self.mask is not None, "opened as a file with a mask"
        return self.mask

    def bounds(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return begin and exclusive end of every segment, as int64 positions in `tokens`.

        The rows must not have defects.
        """
        begins = self.starts.astype(np.int64) + np.repeat(self.rows[:-1], np.diff(self.heads))
        return begins, np.append(begins[1:], len(self.tokens))[: len(begins)]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of every segment, int64; only for rows without defects."""
        begins, ends = self.bounds()
        return ends - begins

    def equals(self, other: "PackedRowBlock") -> bool:
        """Return whether both blocks contain the same rows."""
        names = ("tokens", "starts", "rows", "heads")
        is_equal = all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)
        return is_equal and (self.mask is None or np.array_equal(self.mask, other.required_mask))


def write_rows(path: Path, blocks: Iterable[PackedRowBlock], *, masked: bool = True, compression: str = "zstd") -> None:
    """Write each block as a row group of the new Parquet file `path`.

    Only one block is in memory at a time. All blocks except the last must have the same number of rows. `compression`
    is a Parquet codec. Pages have checksums, which `open_packed` verifies. The same blocks give the same bytes. Raises
    FormatError if a row group has more than 2**31 - 1 tokens.
    """
    import pyarrow.parquet as pq

    options = {"compression": compression, "write_statistics": False, "write_page_checksum": True}
    with pq.ParquetWriter(path, schema(masked=masked), **options) as writer:
        for block in blocks:
            writer.write_table(_table(block), row_group_size=len(block))


def _table(block: PackedRowBlock) -> "pa.Table":
    import pyarrow as pa

    if len(block.tokens) > LARGEST_ID:
        raise FormatError(
            f"a row group of {count_of(len(block.tokens), 'token')}: lists can have at most 2^31. Lower "
            "`row_group_size`"
        )
    columns = {IDS: (block.rows, block.tokens), MASK: (block.rows, block.mask), STARTS: (block.heads, block.starts)}
    kinds = schema(masked=block.mask is not None)
    arrays = [
        pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), pa.array(values), type=kind)
        for kind, (bounds, values) in ((schema_field.type, columns[schema_field.name]) for schema_field in kinds)
    ]
    return pa.Table.from_arrays(arrays, schema=kinds)


@dataclass(frozen=True)
class PackedFile:
    """An open packed file, with rows and row groups from its footer. Iteration yields one row group at a time."""

    path: Path
    rows: int
    group_sizes: tuple[int, ...]
    _last: dict[int, "pa.Table"] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.rows

    def __iter__(self) -> Iterator[PackedRowBlock]:
        """Yield the rows of each row group. Raises FormatError if they cannot be read."""
        first_row = 0
        for group, size in enumerate(self.group_sizes):
            yield _rows(self._group(group, first_row), first_row)
            first_row += size

    def block(self, start: int, stop: int) -> PackedRowBlock:
        """Return rows ``start`` to ``stop``, exclusive, or fewer at the end of the file.

        Raises FormatError if they cannot be read.
        """
        import pyarrow as pa

        firsts = np.cumsum([0, *self.group_sizes])
        low, high = np.searchsorted(firsts, [start, min(stop, self.rows) - 1], side="right").tolist()
        groups = [self._group(group - 1, int(firsts[group - 1])) for group in range(low, high + 1) if start < self.rows]
        if not groups:
            nothing = np.zeros(0, np.int64)
            return PackedRowBlock.of(np.zeros(0, np.int32), nothing, np.zeros(1, np.int64), first=start)
        return _rows(pa.concat_tables(groups).slice(start - int(firsts[low - 1]), stop - start), start)

    def blocks(self, rows: int) -> Iterator[PackedRowBlock]:
        """Yield all rows, up to ``rows`` at a time."""
        for start in range(0, self.rows, rows):
            yield self.block(start, start + rows)

    def _group(self, group: int, first: int) -> "pa.Table":
        import pyarrow as pa
        import pyarrow.parquet as pq

        # The last row group is cached, because single rows and neighboring blocks are read in order.
        if group not in self._last:
            self._last.clear()
            try:
                with pq.ParquetFile(self.path, page_checksum_verification=True) as file:
                    self._last[group] = file.read_row_group(group, use_threads=False)
            except (pa.ArrowException, OSError) as error:
                raise FormatError(f"{self.path}: cannot be read from row {first} on: {error}. Rebuild it") from error
        return self._last[group]


def open_packed(path: Path, *, masked: bool = True) -> PackedFile:
    """Open a packed file, with or without a mask.

    Raises FormatError if it is not a Parquet file, has a different schema, or has bytes that belong to no row.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            columns, metadata = file.schema_arrow, file.metadata
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{path}: not a Parquet file: {error}. Rebuild it") from error
    if not columns.equals(expected := schema(masked=masked)):
        raise FormatError(
            f"{path}: columns are {_format_columns(columns)}, but the trainer needs {_format_columns(expected)}. "
            "Rebuild it"
        )
    require_no_gaps(path, metadata)
    sizes = tuple(metadata.row_group(g).num_rows for g in range(metadata.num_row_groups))
    return PackedFile(path, metadata.num_rows, sizes)


def _format_columns(held: "pa.Schema") -> str:
    return ", ".join(f"{f.name} {f.type}" for f in held)


def _rows(table: "pa.Table", first: int) -> PackedRowBlock:
    values: dict[str, tuple[NDArray[Any], NDArray[np.int64]]] = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if column.null_count or column.flatten().null_count:
            raise FormatError(f"column {name} has nulls in the row group of row {first}. Rebuild the file")
        lengths = column.value_lengths().to_numpy()
        offsets = np.zeros(len(column) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        values[name] = column.flatten().to_numpy(), offsets
    tokens, rows = values[IDS]
    mask, mask_rows = values.get(MASK, (None, rows))
    if not np.array_equal(rows, mask_rows):
        row = first + int(np.argmax(np.diff(rows) != np.diff(mask_rows)))
        raise FormatError(f"row {row}: input_ids and loss_mask differ in length. Rebuild the file")
    starts, heads = values[STARTS]
    return PackedRowBlock(tokens=tokens, mask=mask, starts=starts, rows=rows, heads=heads, first=first)


def row_defects(rows: PackedRowBlock, pack_size: int, *, untrained_allowed: bool = False) -> list[str]:
    """Return the defects of rows, one sentence per kind with the first row that has it; empty without defects.

    `pack_size` is the largest number of tokens per row. With `untrained_allowed`, a sequence may have no trained token.
    Starts are checked before the mask, because sequences are only known if the starts are valid.
    """
    lengths, counts = np.diff(rows.rows), np.diff(rows.heads)
    defects: list[str] = []

    def report(wrong: NDArray[np.bool_], what: str) -> None:
        if wrong.any():
            defects.append(
                f"row {rows.first + int(np.argmax(wrong))}: {what} ({count_of(int(wrong.sum()), 'row')} in this group)"
            )

    report(lengths > pack_size, f"longer than the pack size of {count_of(pack_size, 'token')}")
    report(lengths == 0, "empty")
    report(counts == 0, "no sequence starts in the row")
    # A row without a start has no entry in `starts`, so the checks below would read the next row's start.
    if defects and (counts == 0).any():
        return defects
    row_of_start = np.repeat(np.arange(len(rows)), counts)
    report(rows.starts[rows.heads[:-1]] != 0, "the first sequence does not start at 0")
    falling = np.zeros(len(rows), np.bool_)
    # The first start of a row is excluded, because it follows the previous row's last start and may be smaller.
    not_first = np.ones(len(rows.starts), np.bool_)
    not_first[rows.heads[:-1]] = False
    steps = np.diff(rows.starts, prepend=0)
    falling[row_of_start[not_first & (steps <= 0)]] = True
    report(falling, "the starts of sequences are not strictly increasing")
    is_beyond = np.zeros(len(rows), np.bool_)
    is_beyond[row_of_start[rows.starts >= lengths[row_of_start]]] = True
    report(is_beyond, "a sequence starts after the end of the row")
    if rows.mask is None:
        return defects
    odd = np.zeros(len(rows), np.bool_)
    # The row of a position is the last row that begins at or before it.
    odd[np.searchsorted(rows.rows, np.flatnonzero(rows.mask > 1), side="right") - 1] = True
    report(odd, "loss_mask has a value other than 0 and 1")
    if defects:
        return defects
    begins, ends = rows.bounds()
    at_end, untrained = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
    at_end[row_of_start[rows.mask[ends - 1] != 0]] = True
    report(
        at_end,
        "the last position of a sequence is in the loss: its label would be the first token of the next sequence",
    )
    # `reduceat` returns the largest mask of each sequence. Its result is wrong for an empty sequence, but the starts
    # were checked above.
    untrained[row_of_start[np.maximum.reduceat(rows.mask, begins) == 0]] = True
    report(untrained & (not untrained_allowed), "a sequence has no trained token")
    return defects
