"""Computation of the number of rows of a Parquet file that can be decoded at once within a limit of bytes.

A file of 390 bytes can contain 300 rows of 4 MiB, because a value of a dictionary, or of a page that compresses well,
is decoded for each row. The footer does not show this, but the page headers do. They are therefore read before their
row group: a few thousand bytes per gigabyte. The format is defined in parquet-format's `parquet.thrift`
(`PageHeader`), in Thrift's compact protocol.

Entry point: :func:`count_rows_at_once`.
"""

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import FormatError, count_of

BATCH_BYTES = 64 << 20
"""Maximum size of a decoded batch of rows, or of half a batch if page sizes vary a lot (`_Column.bytes`)."""
PAGE_BYTES = 512 << 20
"""Maximum size of a decoded page. pyarrow ends a page after 1 MiB, but only checks the size every 1,024 values."""
_VALUE_BYTES = 16
"""Bytes per value in addition to its content: levels, an offset or an index. A page of nulls only has these."""
_HEADER_BYTES = 4096
# `_DATA_PAGES` maps the type of a data page to the id of the field of PageHeader that describes such pages.
_DICTIONARY_PAGE, _DATA_PAGES = 2, {0: 5, 3: 8}


@dataclass(frozen=True, slots=True)
class _Page:
    """A page of a column: its type, its size in bytes, and its number of values."""

    kind: int
    bytes: int
    values: int


def count_rows_at_once(
    file: int,
    metadata: Any,
    group: int,
    columns: Collection[str] | None,
    max_rows: int,
    longest: Callable[[str], int | None],
) -> int:
    """Return the number of rows of a row group, from 1 to `max_rows`, that may be decoded at once.

    Args:
        file: Descriptor of the open Parquet file.
        metadata: Its `pyarrow.parquet.FileMetaData`.
        group: The number of the row group, from 0.
        columns: The columns to read, with fields of structs as `data.text`; None for all.
        max_rows: Upper limit of the result, for small rows.
        longest: Returns the bytes of the longest value in a column's dictionary, by its path; None if unknown.

    Raises FormatError for a page of more than PAGE_BYTES, and for an invalid page header.
    """
    of_group = metadata.row_group(group)
    read_columns = []
    for index in range(of_group.num_columns):
        chunk = of_group.column(index)
        if columns is None or _is_read(chunk.path_in_schema, columns):
            # `width` is at least the length of a fixed-length type, because even a null of such a type takes this many
            # bytes.
            width = max(_VALUE_BYTES, metadata.schema.column(index).length)
            read_columns.append(_Column.from_chunk(file, chunk, max(1, of_group.num_rows), width))
    if (least := sum(column.bytes(1) for column in read_columns)) > PAGE_BYTES:
        raise FormatError(
            f"the pages of {count_of(len(read_columns), 'column')} for a single row have {least:,.0f} bytes, but at "
            f"most {PAGE_BYTES:,} are decoded at once. Write the file with smaller pages"
        )
    if sum(column.bytes(max_rows) for column in read_columns) <= BATCH_BYTES:
        return max_rows
    # Read a dictionary's values only if the dictionary's size does not already show that they are small enough, because
    # reading takes time.
    read_columns = [column.with_longest_value(longest) for column in read_columns]
    while max_rows > 1 and sum(column.bytes(max_rows) for column in read_columns) > BATCH_BYTES:
        max_rows //= 2
    return max_rows


def _is_read(path: str, columns: Collection[str]) -> bool:
    """Return whether a value column is one of the requested fields, or inside one."""
    return path in columns or any(path.startswith(f"{name}.") for name in columns)


@dataclass(frozen=True)
class _Column:
    """Page layout of a column. `ends` and `sizes` are cumulative over its data pages, from 0."""

    path: str
    values_per_row: float
    ends: NDArray[np.float64]
    sizes: NDArray[np.float64]
    width: int
    """Bytes per value in addition to its content."""
    repeated: int
    """Bytes of a value that every row may repeat, independent of the size of its page."""
    is_dictionary: bool

    @classmethod
    def from_chunk(cls, file: int, chunk: Any, rows: int, width: int) -> "_Column":
        pages = list(_read_pages(file, chunk))
        for page in pages:
            if max(page.bytes, page.values * width) > PAGE_BYTES:
                raise FormatError(
                    f"a page of column {chunk.path_in_schema} has {count_of(page.values, 'value')} in {page.bytes:,} "
                    f"bytes, but at most {PAGE_BYTES:,} are decoded at once. Write the file with smaller pages"
                )
        is_flat = chunk.num_values == rows
        data = [page for page in pages if page.kind != _DICTIONARY_PAGE]
        # Bound the longest value of a dictionary by the page's size minus the length prefixes of the other values.
        dictionary = [page.bytes - 4 * (page.values - 1) for page in pages if page.kind == _DICTIONARY_PAGE]
        # Count DELTA_BYTE_ARRAY pages as a whole, because a value in such a page may repeat the whole previous value.
        prefixed = [page.bytes for page in data] if "DELTA_BYTE_ARRAY" in chunk.encodings else []
        return cls(
            path=chunk.path_in_schema,
            values_per_row=max(1.0, chunk.num_values / rows),
            ends=np.cumsum([0.0, *(page.values for page in data)]),
            # Add the bytes per value to a nested column's pages, because its pages are decoded as a whole. Only a flat
            # column has a known number of values per row.
            sizes=np.cumsum([0.0, *(page.bytes + (0 if is_flat else page.values * width) for page in data)]),
            width=width if is_flat else 0,
            repeated=max([*dictionary, *prefixed, 0]),
            # Values of DELTA_BYTE_ARRAY pages may be longer than the dictionary's longest value, so do not rely on the
            # dictionary.
            is_dictionary=bool(dictionary) and not prefixed,
        )

    def bytes(self, rows: int) -> float:
        """Return the maximum bytes of any `rows` consecutive rows, which may be too low by a factor of up to two."""
        values = rows * self.values_per_row
        # For rows that begin in page i, count the pages that this many values fill from the page's start, and one more.
        # Rows that begin late in page i may span many small pages; they take page i and the bytes counted for the next
        # page. The result may therefore be too low by a factor of two, which is harmless. Do not make it strict,
        # because this would move the batch boundaries, which determine where pages of tag tables end.
        until = np.minimum(np.searchsorted(self.ends, self.ends[:-1] + values) + 1, len(self.ends) - 1)
        dense = (self.sizes[until] - self.sizes[:-1]).max(initial=0.0)
        return float(dense) + values * (self.width + self.repeated)

    def with_longest_value(self, longest: Callable[[str], int | None]) -> "_Column":
        """Return a copy with the length of the longest value in the dictionary."""
        length = longest(self.path) if self.is_dictionary and self.repeated > _VALUE_BYTES else None
        return self if length is None else replace(self, repeated=length)


def _read_pages(file: int, chunk: Any) -> Iterator[_Page]:
    # Filter the offsets, because pyarrow returns None or 0 if the chunk has no dictionary.
    offset = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)))
    end = offset + chunk.total_compressed_size
    while offset < end:
        header, size = _read_header(file, offset, end)
        # Fields of PageHeader: the page's type, its uncompressed and its compressed size.
        kind, decoded_bytes, stored_bytes = (header.get(field, 0) for field in (1, 2, 3))
        if not all(isinstance(value, int) and value >= 0 for value in (kind, decoded_bytes, stored_bytes)):
            raise FormatError(f"the page header at byte {offset} is damaged")
        # Field 7 describes a dictionary page. In the description of each kind of page, the first field is the number of
        # values.
        counts = header.get(_DATA_PAGES.get(kind, 7), {})
        values = counts.get(1, 0) if isinstance(counts, dict) else 0
        if kind in _DATA_PAGES or kind == _DICTIONARY_PAGE:
            yield _Page(kind, decoded_bytes, max(0, values))
        offset += size + stored_bytes


def _read_header(file: int, position: int, end: int) -> tuple[dict[int, Any], int]:
    """Return a page's header and its length."""
    length = _HEADER_BYTES
    while True:
        data = os.pread(file, min(length, end - position), position)
        try:
            return _Struct(data).read()
        except IndexError:
            if len(data) < length:
                raise FormatError(f"the page header at byte {position} is damaged") from None
            length *= 16  # statistics contain whole values, so a larger read may be needed


class _Struct:
    """A struct in Thrift's compact protocol: field id → number, bytes as None, nested structs as dicts."""

    _DEPTH = 8

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def read(self) -> tuple[dict[int, Any], int]:
        """Return the struct at the beginning of the data, and its length. Raises IndexError if the data end early."""
        return self._read_struct(self._DEPTH), self._at

    def _read_byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _read_varint(self) -> int:
        value = 0
        # Read at most ten bytes, because each byte has seven bits of the number, and a number has at most 64 bits.
        for shift in range(0, 70, 7):
            byte = self._read_byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise FormatError("a page header is damaged: unterminated number")

    def _read_number(self) -> int:
        value = self._read_varint()
        return (value >> 1) ^ -(value & 1)  # zigzag: the lowest bit is the sign

    def _read_struct(self, depth: int) -> dict[int, Any]:
        if not depth:
            raise FormatError("a page header is damaged: nested too deeply")
        fields: dict[int, Any] = {}
        field = 0
        while byte := self._read_byte():
            # The upper half of the byte is the difference from the previous field's id. If the difference is 0, the id
            # itself follows.
            field = field + (byte >> 4) if byte >> 4 else self._read_number()
            fields[field] = self._read_value(byte & 0x0F, depth)
        return fields

    def _read_value(self, kind: int, depth: int) -> Any:
        # Types of the protocol: 1 and 2 are true and false, 3 a byte, 4 to 6 integers, 7 a double, 8 binary, 12 a
        # struct. A page header has no lists, sets or maps.
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self._read_byte()
        if kind in (4, 5, 6):
            return self._read_number()
        if kind in (7, 8):
            length = 8 if kind == 7 else self._read_varint()
            self._at += length
            if self._at > len(self._data):
                raise IndexError
            return None
        if kind == 12:
            return self._read_struct(depth - 1)
        raise FormatError(f"a page header is damaged: unknown field type {kind}")
