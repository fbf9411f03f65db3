"""Packed rows as Parquet, one row per bin: the input of chat trainers and of the shards of notes.

List columns: `input_ids` int32, `loss_mask` uint8 (aligned to labels; chats only), and `seq_start_id` int32 (where each
segment of the row begins; the first is 0). Row groups have a fixed number of rows. With the mask, these columns are
Nemotron's (`packing/writers.py`; docs/formats/packed-sft.md#parquet). Megatron-Bridge reads them by name
(`data/packing/parquet.py`, `GPTSFTPackedParquetDataset`).

Chats have two more columns, which follow from these: `assistant_masks` uint8 (the mask, aligned to the ids) and
`seq_lengths` int32. TRL reads `input_ids` of any Parquet file; without `assistant_masks` it would train every token.

Rows have no padding, unless `pad_segments` added it for context parallelism. Padded files have another column,
`unpadded_lengths` int32: tokens of each segment before its padding. Megatron-Bridge removes the last token of each
segment, so the length of a segment is a multiple plus one (`data/packing/offline.py`, `tokenize_dataset`).

`find_row_defects` includes all checks of Megatron-Bridge's `validate_row`. It also finds an empty segment, a mask value
other than 0 and 1, and a trained position at the end of a segment, which Megatron-Bridge accepts.

Entry points: `PackedRowBlock`, `pad_segments`; `write_rows`, `open_packed_file`, `find_row_defects`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.formats.parquet_extent import require_no_gaps
from dataprep_assets.formats.parquet_rows import open_writer

if TYPE_CHECKING:
    import pyarrow as pa

IDS, MASK, STARTS = "input_ids", "loss_mask", "seq_start_id"
TOKEN_MASK, LENGTHS, UNPADDED = "assistant_masks", "seq_lengths", "unpadded_lengths"
_TYPES = {IDS: "int32", MASK: "uint8", STARTS: "int32", TOKEN_MASK: "uint8", LENGTHS: "int32", UNPADDED: "int32"}
COLUMN_DESCRIPTIONS = {
    IDS: "Token ids of a packed row.",
    MASK: "1 if the label is in the loss, else 0.",
    STARTS: "Start positions of the sequences in the row.",
    TOKEN_MASK: "1 if the token is trained, else 0.",
    LENGTHS: "Number of tokens of each sequence in the row.",
    UNPADDED: "Number of tokens of each sequence without its padding.",
}
"""Column → a sentence about it."""
_UNMASKED = (IDS, STARTS)
_PER_SEGMENT = (STARTS, LENGTHS, UNPADDED)
MAX_ID = 2**31 - 1
"""Largest id of the int32 column `input_ids`.

The offsets of a Parquet list are int32 as well, which limits the tokens of a row group.
"""


def list_column_types(is_padded: bool = False) -> dict[str, str]:
    """Return the value type of each column, for rows with a mask."""
    return {column: f"list<{kind}>" for column, kind in _TYPES.items() if is_padded or column != UNPADDED}


def build_schema(*, masked: bool = True, padded: bool = False) -> "pa.Schema":
    """Return the schema of every file, with or without a mask or padding: lists whose child is named `element`."""
    import pyarrow as pa

    types = {c: kind for c, kind in _TYPES.items() if (masked or c in _UNMASKED) and (padded or c != UNPADDED)}
    return pa.schema([(c, pa.list_(pa.field("element", pa.type_for_alias(t)))) for c, t in types.items()])


def view_ids_as_int32(tokens: NDArray[np.uint32], location: str) -> NDArray[np.int32]:
    """Return the same ids as int32, the type of the column, in the same memory.

    Raises FormatError, naming the position, if an id does not fit.
    """
    if tokens.size and int(tokens.max()) > MAX_ID:
        index = int(np.argmax(tokens > MAX_ID))
        raise FormatError(
            f"{location}: token id {tokens[index]} at position {index} does not fit int32, the type of `input_ids`. "
            "The tokenizer and its engine disagree. Rebuild `engine_certificate`"
        )
    return tokens.view(np.int32)


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedRowBlock:
    """Consecutive rows. Row `r` has the tokens `rows[r]` to `rows[r + 1]` and the starts `heads[r]` to `heads[r + 1]`.

    `tokens` is int32 and `mask` is uint8 or None, both of shape `(tokens,)`. `starts` is int32, relative to the row,
    shape `(segments,)`. `rows` and `heads` are int64 with a leading 0. `first` is the number of the first row in the
    file. `unpadded` has the tokens of each segment before its padding, int32, shape `(segments,)`; None if there is no
    padding. `defect` is a sentence about columns of the file that do not match the other columns.
    """

    tokens: NDArray[np.int32]
    mask: NDArray[np.uint8] | None
    starts: NDArray[np.int32]
    rows: NDArray[np.int64]
    heads: NDArray[np.int64]
    first: int = 0
    unpadded: NDArray[np.int32] | None = None
    defect: str | None = None

    @classmethod
    def from_segments(
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
        """Return the begin and exclusive end of every segment, as int64 positions in `tokens`.

        The rows must not have defects.
        """
        begins = self.starts.astype(np.int64) + np.repeat(self.rows[:-1], np.diff(self.heads))
        return begins, np.append(begins[1:], len(self.tokens))[: len(begins)]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens in every segment, int64; only for rows without defects."""
        begins, ends = self.bounds()
        return ends - begins

    def without_padding(self) -> "PackedRowBlock":
        """Return the rows without the padding of their segments; only for rows without defects."""
        if self.unpadded is None:
            return self
        lengths = self.unpadded.astype(np.int64)
        begins, ends = self.bounds()
        positions = np.arange(len(self.tokens)) - np.repeat(begins, ends - begins)
        is_inside = positions < np.repeat(lengths, ends - begins)
        mask = None if self.mask is None else self.mask[is_inside]
        return type(self).from_segments(self.tokens[is_inside], lengths, self.heads, mask=mask, first=self.first)

    def equals(self, other: "PackedRowBlock") -> bool:
        """Return whether both blocks contain the same rows."""
        names = ("tokens", "starts", "rows", "heads")
        is_equal = all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)
        if (self.unpadded is None) != (other.unpadded is None) or self.defect != other.defect:
            return False
        if self.unpadded is not None and other.unpadded is not None:
            is_equal = is_equal and np.array_equal(self.unpadded, other.unpadded)
        return is_equal and (self.mask is None or np.array_equal(self.mask, other.required_mask))


def pad_segments(block: PackedRowBlock, multiple: int, pad_id: int) -> PackedRowBlock:
    """Return rows whose segments are padded with `pad_id` to a multiple of `multiple` tokens, plus one."""
    lengths = block.lengths
    padded = compute_padded_lengths(lengths, multiple)
    ends = np.cumsum(padded)
    positions = np.arange(len(block.tokens)) + np.repeat(ends - padded - (np.cumsum(lengths) - lengths), lengths)
    total = int(ends[-1]) if len(ends) else 0
    tokens, mask = np.full(total, pad_id, np.int32), np.zeros(total, np.uint8)
    tokens[positions], mask[positions] = block.tokens, block.required_mask
    rows = PackedRowBlock.from_segments(tokens, padded, block.heads, mask=mask, first=block.first)
    return replace(rows, unpadded=lengths.astype(np.int32))


def compute_padded_lengths(lengths: NDArray[np.int64], multiple: int) -> NDArray[np.int64]:
    """Return the padded lengths of segments: a multiple plus one, because the last token of a segment has no label."""
    return np.maximum(-(-(lengths - 1) // multiple), 1) * multiple + 1


def write_rows(
    path: Path,
    blocks: Iterable[PackedRowBlock],
    *,
    masked: bool = True,
    padded: bool = False,
    compression: str = "zstd",
) -> None:
    """Write each block as a row group of the new Parquet file `path`.

    Only one block is in memory at a time. All blocks except the last must have the same number of rows. `padded` means
    that the blocks have the padding of `pad_segments`. `compression` is a Parquet codec. Pages have
    checksums that readers verify. The same blocks give the same bytes. Raises FormatError if a row group has more than
    2**31 - 1 tokens.
    """
    with open_writer(path, build_schema(masked=masked, padded=padded), compression=compression) as writer:
        for block in blocks:
            writer.write_table(_build_table(block), row_group_size=len(block))


def _build_table(block: PackedRowBlock) -> "pa.Table":
    import pyarrow as pa

    if len(block.tokens) > MAX_ID:
        raise FormatError(
            f"a row group can have at most {MAX_ID:,} tokens, not {len(block.tokens):,}. Lower `row_group_size`"
        )
    columns: dict[str, NDArray[Any] | None] = {IDS: block.tokens, MASK: block.mask, STARTS: block.starts}
    columns |= {UNPADDED: block.unpadded, **_derive_columns(block)}
    kinds = build_schema(masked=block.mask is not None, padded=block.unpadded is not None)
    arrays = []
    for schema_field in kinds:
        bounds = block.heads if schema_field.name in _PER_SEGMENT else block.rows
        values = pa.array(columns[schema_field.name])
        arrays.append(pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), values, type=schema_field.type))
    return pa.Table.from_arrays(arrays, schema=kinds)


def _derive_columns(block: PackedRowBlock) -> dict[str, NDArray[Any]]:
    """Return the columns that follow from ids, mask and starts."""
    if block.mask is None:
        return {}
    token_mask = np.zeros_like(block.mask)
    # Move the mask from the position that predicts a token to the token itself. No value moves into the next sequence,
    # because the mask is 0 at the end of each sequence.
    token_mask[1:] = block.mask[:-1]
    return {TOKEN_MASK: token_mask, LENGTHS: block.lengths.astype(np.int32)}


@dataclass(frozen=True)
class PackedFile:
    """An open packed file. Rows and row groups come from its footer. Iteration yields one row group at a time."""

    path: Path
    rows: int
    group_sizes: tuple[int, ...]
    is_padded: bool = False
    _is_stripped: bool = False
    _last: dict[int, "pa.Table"] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.rows

    def __iter__(self) -> Iterator[PackedRowBlock]:
        """Yield the rows of each row group. Raises FormatError if they cannot be read."""
        first_row = 0
        for group, size in enumerate(self.group_sizes):
            yield self._strip(_build_rows(self._group(group, first_row), first_row))
            first_row += size

    def without_padding(self) -> "PackedFile":
        """Return the same file, whose blocks have no padding.

        Columns that follow from others are not read. Reading a padded block raises FormatError if it has defects.
        """
        return replace(self, _is_stripped=True, _last={})

    def _strip(self, rows: PackedRowBlock) -> PackedRowBlock:
        if not self._is_stripped or not self.is_padded:
            return rows
        if defects := find_row_defects(rows, MAX_ID, untrained_allowed=True):
            raise FormatError(f"{self.path}: {defects[0]}. Rebuild the artifact")
        return rows.without_padding()

    def block(self, start: int, stop: int) -> PackedRowBlock:
        """Return rows ``start`` to ``stop``, exclusive, or fewer at the end of the file.

        Raises FormatError if they cannot be read.
        """
        import pyarrow as pa

        firsts = np.cumsum([0, *self.group_sizes])
        low, high = np.searchsorted(firsts, [start, min(stop, self.rows) - 1], side="right").tolist()
        groups = [self._group(group - 1, int(firsts[group - 1])) for group in range(low, high + 1) if start < self.rows]
        if not groups:
            no_lengths = np.zeros(0, np.int64)
            return PackedRowBlock.from_segments(np.zeros(0, np.int32), no_lengths, np.zeros(1, np.int64), first=start)
        rows = _build_rows(pa.concat_tables(groups).slice(start - int(firsts[low - 1]), stop - start), start)
        return self._strip(rows)

    def blocks(self, rows: int) -> Iterator[PackedRowBlock]:
        """Yield all rows, up to ``rows`` at a time."""
        for start in range(0, self.rows, rows):
            yield self.block(start, start + rows)

    def _group(self, group: int, first_row: int) -> "pa.Table":
        import pyarrow as pa
        import pyarrow.parquet as pq

        # Cache the last row group, because callers read rows in order, and the next rows are mostly in the same group.
        if group not in self._last:
            self._last.clear()
            try:
                with pq.ParquetFile(self.path, page_checksum_verification=True) as file:
                    # Leave out the copy of the mask, because decoding it takes a quarter of the time.
                    names = [name for name in file.schema_arrow.names if name not in (TOKEN_MASK, LENGTHS)]
                    columns = names if self._is_stripped else None
                    self._last[group] = file.read_row_group(group, columns=columns, use_threads=False)
            except (pa.ArrowException, OSError) as error:
                raise FormatError(
                    f"{self.path}: the rows from {first_row} on cannot be read: {error}. Rebuild the artifact"
                ) from error
        return self._last[group]


def open_packed_file(path: Path, *, masked: bool = True) -> PackedFile:
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
        raise FormatError(f"{path}: not a Parquet file: {error}. Rebuild the artifact") from error
    is_padded = UNPADDED in columns.names
    if not columns.equals(expected_schema := build_schema(masked=masked, padded=is_padded)):
        raise FormatError(
            f"{path}: its columns are {_format_columns(columns)}, but the trainer needs "
            f"{_format_columns(expected_schema)}. "
            "Rebuild the artifact"
        )
    require_no_gaps(path, metadata)
    sizes = tuple(metadata.row_group(g).num_rows for g in range(metadata.num_row_groups))
    return PackedFile(path, metadata.num_rows, sizes, is_padded)


def _format_columns(actual_schema: "pa.Schema") -> str:
    return ", ".join(f"{f.name} {f.type}" for f in actual_schema)


def _build_rows(table: "pa.Table", first_row: int) -> PackedRowBlock:
    values: dict[str, tuple[NDArray[Any], NDArray[np.int64]]] = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if column.null_count or column.flatten().null_count:
            raise FormatError(f"column {name} has nulls in the row group of row {first_row}. Rebuild the artifact")
        lengths = column.value_lengths().to_numpy()
        offsets = np.zeros(len(column) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        values[name] = column.flatten().to_numpy(), offsets
    tokens, rows = values[IDS]
    mask, mask_rows = values.get(MASK, (None, rows))
    if not np.array_equal(rows, mask_rows):
        row = first_row + int(np.argmax(np.diff(rows) != np.diff(mask_rows)))
        raise FormatError(f"row {row}: input_ids and loss_mask differ in length. Rebuild the artifact")
    starts, heads = values[STARTS]
    unpadded, unpadded_heads = values.get(UNPADDED, (None, heads))
    block = PackedRowBlock(
        tokens=tokens, mask=mask, starts=starts, rows=rows, heads=heads, first=first_row, unpadded=unpadded
    )
    if not np.array_equal(unpadded_heads, heads):
        raise FormatError(f"from row {first_row} on, {UNPADDED} and {STARTS} differ in length. Rebuild the artifact")
    derived_columns = _derive_columns(block) if TOKEN_MASK in values else {}
    for name, column in derived_columns.items():
        column_values, bounds = values[name]
        if not np.array_equal(bounds, heads if name == LENGTHS else rows) or not np.array_equal(column_values, column):
            return replace(block, defect=f"from row {first_row} on, {name} does not match {MASK} and {STARTS}")
    return block


def find_row_defects(rows: PackedRowBlock, pack_size: int, *, untrained_allowed: bool = False) -> list[str]:
    """Return a sentence for each kind of defect in the rows, with the first row that has it.

    `pack_size` is the largest number of tokens per row, or of labels if segments are padded. With `untrained_allowed`,
    sequences without trained tokens are valid. Starts are checked before the mask, because sequences are only known if
    the starts are valid.
    """
    lengths, counts = np.diff(rows.rows), np.diff(rows.heads)
    defects: list[str] = []

    def report(is_wrong: NDArray[np.bool_], message: str) -> None:
        if is_wrong.any():
            defects.append(
                f"row {rows.first + int(np.argmax(is_wrong))}: {message} "
                f"({count_of(int(is_wrong.sum()), 'such row')} in this row group)"
            )

    limited = lengths if rows.unpadded is None else lengths - counts
    report(limited > pack_size, f"the row is longer than the pack size of {count_of(pack_size, 'token')}")
    report(lengths == 0, "the row is empty")
    report(counts == 0, "no sequence starts in the row")
    # Stop here if a row has no start, because the checks below would then read the start of a different row.
    if defects and (counts == 0).any():
        return defects
    row_of_start = np.repeat(np.arange(len(rows)), counts)
    report(rows.starts[rows.heads[:-1]] != 0, "the first sequence does not start at 0")
    falling = np.zeros(len(rows), np.bool_)
    # Exclude a row's first start, which may be smaller than the previous row's last start.
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
    is_odd = np.zeros(len(rows), np.bool_)
    # A position belongs to the last row that begins at or before the position.
    is_odd[np.searchsorted(rows.rows, np.flatnonzero(rows.mask > 1), side="right") - 1] = True
    report(is_odd, "loss_mask has a value other than 0 or 1")
    if defects:
        return defects
    begins, ends = rows.bounds()
    if rows.unpadded is not None:
        is_wrong = np.zeros(len(rows), np.bool_)
        is_wrong[row_of_start[(rows.unpadded < 1) | (rows.unpadded > ends - begins)]] = True
        report(is_wrong, f"{UNPADDED} has a length that is less than 1 or exceeds its sequence")
        if defects:
            return defects
        positions = np.arange(len(rows.tokens)) - np.repeat(begins, ends - begins)
        # Count the last token before the padding as padding, because its label would be padding.
        in_padding = (rows.mask != 0) & (positions >= np.repeat(rows.unpadded - 1, ends - begins))
        is_wrong[np.searchsorted(rows.rows, np.flatnonzero(in_padding), side="right") - 1] = True
        report(is_wrong, "padding is in the loss")
    at_end, untrained = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
    at_end[row_of_start[rows.mask[ends - 1] != 0]] = True
    report(
        at_end,
        "the last position of a sequence is in the loss: its label would be the first token of the next sequence",
    )
    # `reduceat` returns the largest mask value of each sequence. For an empty sequence, its result would be wrong, but
    # the checks above have found none.
    untrained[row_of_start[np.maximum.reduceat(rows.mask, begins) == 0]] = True
    report(untrained & (not untrained_allowed), "a sequence has no trained token")
    # Report `rows.defect` only if there is no other defect, because this defect is about columns that are derived from
    # the others.
    return defects if defects or rows.defect is None else [rows.defect]


def find_padding_defects(rows: PackedRowBlock, multiple: int, pad_id: int | None) -> list[str]:
    """Return the defects of the padding of rows without other defects, for a declared multiple (1: no padding)."""
    if multiple == 1 or rows.unpadded is None:
        return [f"{UNPADDED} exists, but no padding is declared"] * (multiple == 1 and rows.unpadded is not None) + [
            f"{UNPADDED} is missing, but padding is declared"
        ] * (multiple > 1 and rows.unpadded is None)
    lengths, unpadded = rows.lengths, rows.unpadded.astype(np.int64)
    defects = []
    if (is_wrong := lengths != compute_padded_lengths(unpadded, multiple)).any():
        row = rows.first + int(np.searchsorted(rows.heads, np.argmax(is_wrong), side="right")) - 1
        defects.append(f"row {row}: a sequence is not padded to a multiple of {multiple} labels")
    begins, _ = rows.bounds()
    positions = np.arange(len(rows.tokens)) - np.repeat(begins, lengths)
    is_odd = (positions >= np.repeat(unpadded, lengths)) & (rows.tokens != pad_id)
    if is_odd.any():
        row = rows.first + int(np.searchsorted(rows.rows, np.argmax(is_odd), side="right")) - 1
        defects.append(f"row {row}: the padding contains a token other than {pad_id}")
    return defects
