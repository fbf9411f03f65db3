"""``tf.train.Example`` payloads of integer columns, encoded and decoded in batches of rows, without TensorFlow.

A row is one ``Example`` message: a map from column name to ``Feature``, each an ``Int64List`` of packed varints
(TensorFlow, ``core/example/example.proto`` and ``feature.proto``). An id below 2**7 takes one byte, an id below 2**14
two, and so on. A negative value takes ten.

Payloads are byte-identical to ``SerializeToString(deterministic=True)`` of protobuf's upb runtime. It sorts the map by
the bytes of the keys, but puts a longer key before its own prefix (`build_sort_key`). The order has no meaning, so the
parser here accepts any order. In all other respects it is strict: one packed integer list per column, each column once,
no other fields.

Encoding works on blocks of rows that fit in the CPU's cache. The varint of every value is spread in one machine word,
and the used bytes are then selected from all words at once. Python code loops over columns and rows, never over values.

Messages name columns, counts and bytes, never a value, because rows may contain patient data.

Entry points: `FeatureColumn`, `encode_rows`, `decode_rows`; `build_sort_key`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep_assets.errors import FormatError, count_of

DTYPES: dict[str, np.dtype[Any]] = {"int32": np.dtype("<i4"), "int64": np.dtype("<i8")}
"""The dtypes of a column. On disk both are int64 varints; narrower or unsigned dtypes wrap silently in TFDS."""

ABSENT = -1
"""Fills the end of shorter rows in a column's array if rows differ in length. Ids are never negative."""

# Protobuf tags: the field number << 3, plus wire type 2 (length-delimited).
_FEATURES = _MAP_ENTRY = _KEY = _PACKED = 0x0A
_FEATURE = 0x12
_KINDS = {0x0A: "bytes", 0x12: "float"}
_INT64_LIST = 0x1A

# Values per block: few enough that the working arrays stay in a core's cache, but enough that call overhead is small.
_BLOCK = 32_768
_DECODED_BLOCK = 4 * _BLOCK

_MAX_SHORT_BYTES = 4
"""Maximum length in bytes of a varint that fits in a 32-bit word."""


@dataclass(frozen=True, kw_only=True)
class FeatureColumn:
    """One column: ``length`` values per row, each within ``dtype``, ``"int32"`` or ``"int64"``.

    A length of None allows any number of values from 1 on, which may differ between rows. Raises FormatError for a
    length below 1 or a different dtype.
    """

    name: str
    length: int | None
    dtype: str = "int32"

    def __post_init__(self) -> None:
        if not self.name or (self.length is not None and self.length < 1) or self.dtype not in DTYPES:
            raise FormatError(
                f"column {self.name!r}, {self.length} values of {self.dtype} per row: must have a name, at least one "
                f"value per row, and one of the dtypes {', '.join(DTYPES)}"
            )


def build_sort_key(name: str) -> tuple[int, ...]:
    """Return the sort key of a column name: by its UTF-8 bytes, with a longer name before its own prefix."""
    # 256 is greater than every byte, so a name sorts after longer names that begin with it.
    return (*name.encode(), 256)


def encode_rows(
    columns: Mapping[str, npt.NDArray[Any]], lengths: npt.NDArray[np.integer[Any]] | None = None
) -> Iterator[bytes]:
    """Yield the payload of each row, in order.

    ``columns``: name to int32 or int64 array of shape ``(rows, length)``. The number of rows is equal for all columns;
    lengths may differ. ``lengths``: integers, shape ``(rows,)``, the number of values of each row to encode in every
    column; None encodes all. Raises FormatError, before the first payload, if there are no columns, or for a different
    dtype or shape, or unequal numbers of rows.
    """
    rows = _count_rows(columns)
    ordered = [(name.encode(), columns[name]) for name in sorted(columns, key=build_sort_key)]
    return _encode(ordered, rows, _count_rows_in_block(max(values.shape[1] for _, values in ordered)), lengths)


def _count_rows(columns: Mapping[str, npt.NDArray[Any]]) -> int:
    for name, values in columns.items():
        if values.ndim != 2 or values.dtype not in (np.int32, np.int64):
            raise FormatError(
                f"column {name!r} must be int32 or int64 of shape (rows, length), not {values.dtype} of shape "
                f"{values.shape}"
            )
    counts = {name: len(values) for name, values in columns.items()}
    if len(set(counts.values())) != 1:
        counts_text = ", ".join(f"{name} has {count:,}" for name, count in counts.items()) or "no columns found"
        raise FormatError(f"all columns must have the same number of rows: {counts_text}")
    return next(iter(counts.values()))


def _count_rows_in_block(length: int) -> int:
    return max(1, _BLOCK // max(1, length))


def _encode(
    columns: Sequence[tuple[bytes, npt.NDArray[Any]]],
    rows: int,
    step: int,
    lengths: npt.NDArray[np.integer[Any]] | None,
) -> Iterator[bytes]:
    for start in range(0, rows, step):
        block_lengths = None if lengths is None else lengths[start : start + step]
        packed_columns = [(key, *_pack(values[start : start + step], block_lengths)) for key, values in columns]
        for row in range(min(step, rows - start)):
            # The first piece is the row's head, filled in last because it contains the total length.
            pieces: list[bytes | memoryview] = [b""]
            for key, varints, ends in packed_columns:
                begin, end = ends[row], ends[row + 1]
                pieces += [_encode_entry_head(key, end - begin), varints[begin:end]]
            pieces[0] = bytes([_FEATURES]) + _encode_varint(sum(map(len, pieces)))
            yield b"".join(pieces)


# Cache the bytes, because all rows have the same few names and lengths.
@lru_cache(maxsize=4096)
def _encode_entry_head(key: bytes, length: int) -> bytes:
    """Return the bytes of a map entry before its ``length`` bytes of varints."""
    # Omit an empty list, because proto3 omits every empty field.
    head = bytes([_PACKED]) + _encode_varint(length) if length else b""
    # Build from the inside out, because each field begins with its content's length.
    head = bytes([_INT64_LIST]) + _encode_varint(len(head) + length) + head
    head = bytes([_FEATURE]) + _encode_varint(len(head) + length) + head
    head = bytes([_KEY]) + _encode_varint(len(key)) + key + head
    return bytes([_MAP_ENTRY]) + _encode_varint(len(head) + length) + head


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _pack(values: npt.NDArray[Any], lengths: npt.NDArray[np.integer[Any]] | None) -> tuple[memoryview, list[int]]:
    """Return the concatenated varints of a block of rows, and the byte bounds of the rows.

    The bounds are each row's begin and the last row's end.
    """
    rows, length = values.shape
    if lengths is None:
        flat, bounds = values.reshape(-1), np.arange(rows + 1) * length
    else:
        flat = values[np.arange(length) < lengths[:, None]]
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    if flat.size == 0:
        return memoryview(b""), [0] * (rows + 1)
    # The width is the byte length of the longest varint, with 7 bits per byte. A negative value uses all 64 bits.
    width = 10 if flat.min() < 0 else max(1, -(-int(flat.max()).bit_length() // 7))
    if width == 1:
        return flat.astype(np.uint8).data, bounds.tolist()
    varints, is_used = _spread_in_words(flat, width) if width <= 8 else _spread_in_planes(flat)
    used_indices = np.flatnonzero(is_used)
    # Every value has the same number of bytes in `varints`, so each row's bounds are known. Count the used bytes before
    # each bound.
    ends = np.searchsorted(used_indices, bounds * (is_used.size // flat.size))
    return varints.take(used_indices).data, ends.tolist()


def _spread_in_words(values: npt.NDArray[Any], width: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Return each value's varint in a little-endian word of at least ``width`` bytes, and a mask of the used bytes."""
    word = np.dtype("<u2" if width == 2 else "<u4" if width <= 4 else "<u8")
    flat = values.astype(word)
    varints = flat & word.type(0x7F)
    follow_bits = np.zeros_like(flat)
    for byte in range(1, width):
        # Shift each group of 7 bits by one more bit than the previous group, so that each group gets its own byte.
        varints |= (flat & word.type(0x7F << 7 * byte)) << word.type(byte)
        # The top bit of a byte is set if another byte follows.
        follow_bits |= (flat >= word.type(1 << 7 * byte)).astype(word) << word.type(8 * byte - 1)
    varints |= follow_bits
    # Shifting by one bit moves the top bit of each byte into the lowest bit of the next byte, so every byte is 0 or 1,
    # as in a bool array.
    is_used = (follow_bits << word.type(1)) | word.type(1)
    return varints.view(np.uint8), is_used.view(np.bool_)


def _spread_in_planes(values: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Spread values that do not fit in a word, as `_spread_in_words` does.

    Each value has ten bytes, and a negative value uses all of them.
    """
    # Use unsigned values, because a shifted negative value stays negative, and `has_next` would be false.
    bits = values.astype(np.int64).view(np.uint64)
    varints = np.empty((values.size, 10), np.uint8)
    is_used = np.ones((values.size, 10), np.bool_)
    for byte in range(10):
        next_bits = bits >> np.uint64(7)
        has_next = next_bits > 0
        varints[:, byte] = (bits & np.uint64(0x7F)).astype(np.uint8) | has_next.astype(np.uint8) << np.uint8(7)
        if byte < 9:
            is_used[:, byte + 1] = has_next
        bits = next_bits
    return varints.reshape(-1), is_used.reshape(-1)


def decode_rows(payloads: Sequence[bytes], columns: Sequence[FeatureColumn]) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of these payloads: name to array of the column's dtype, shape ``(rows, length)``.

    The array of a column without a length is as wide as its longest row. `ABSENT` fills the end of shorter rows.

    Raises FormatError, naming the row and the column, for a payload that is not such an Example, or a missing or
    undeclared column. Also raises it for a list of a different kind, a number of values other than ``length``, or a
    value beyond the dtype.
    """
    plain = _decode_plain_rows(payloads, columns)
    if plain is not None:
        return plain
    rows = []
    for row, payload in enumerate(payloads):
        try:
            rows.append(_check_row(payload, columns))
        except FormatError as error:
            raise FormatError(f"row {row}: {error}") from error
    return _unpack_rows(rows, columns)


def _decode_plain_rows(
    payloads: Sequence[bytes], columns: Sequence[FeatureColumn]
) -> dict[str, npt.NDArray[Any]] | None:
    """Return the result of `decode_rows`, but check the payloads block by block instead of row by row.

    Returns None if a payload does not match the declaration, rows differ in length, or a varint has five bytes or more.
    The row checks then find the mistake, if there is one.
    """
    lengths = {column.name: column.length for column in columns}
    if None in lengths.values() or len(lengths) < len(columns):
        return None
    try:
        lists_of_rows = [_locate_int64_lists(payload) for payload in payloads]
    except FormatError:
        return None
    if any(lists.keys() != lengths.keys() for lists in lists_of_rows):
        return None
    columns_by_name = {}
    for column in columns:
        length = column.length or 0
        values = columns_by_name[column.name] = np.empty((len(payloads), length), DTYPES[column.dtype])
        step = max(1, _DECODED_BLOCK // length)
        for start in range(0, len(payloads), step):
            ranges = [lists[column.name] for lists in lists_of_rows[start : start + step]]
            parts = [memoryview(p)[a:b] for p, (a, b) in zip(payloads[start : start + step], ranges, strict=True)]
            decoded = _unpack_equal_rows(
                np.frombuffer(b"".join(parts), np.uint8), [len(part) for part in parts], length
            )
            if decoded is None:
                return None
            values[start : start + step] = decoded.reshape(len(parts), length)
    return columns_by_name


def read_column_names(payload: bytes) -> frozenset[str]:
    """Return the columns of one payload. Raises FormatError if it is not an Example of integer columns."""
    return frozenset(_locate_int64_lists(payload))


def _check_row(payload: bytes, columns: Sequence[FeatureColumn]) -> list[memoryview]:
    """Check one payload against the columns, and return the packed varints of each, in the order of ``columns``.

    Raises FormatError for a message that is not such an Example, or a missing or undeclared column. Also raises it for
    a list of a different kind, a number of values other than ``length``, or a value beyond the dtype. Varints are only
    decoded if one is so long that its value must be checked.
    """
    lists = _locate_int64_lists(payload)
    if len(lists) != len(columns) or any(column.name not in lists for column in columns):
        names = {column.name for column in columns}
        raise FormatError(
            f"missing columns: {', '.join(sorted(names - lists.keys())) or 'none'}; undeclared columns: "
            f"{', '.join(sorted(lists.keys() - names)) or 'none'}"
        )
    raw = np.frombuffer(payload, np.uint8)
    follows = raw >= 0x80
    long_varints = _has_long_varints(follows)
    view = memoryview(payload)
    varints = []
    for column in columns:
        start, stop = lists[column.name]
        count = stop - start - int(np.count_nonzero(follows[start:stop]))
        if column.length is None and not count:
            raise FormatError(f"column {column.name!r} has no values")
        if column.length is not None and count != column.length:
            raise FormatError(f"column {column.name!r} has {count_of(count, 'value')}, expected {column.length}")
        if follows[stop - 1]:
            raise FormatError(f"column {column.name!r}: the last varint is truncated at byte {stop} of the payload")
        if long_varints:
            _check_range(raw[start:stop], column)
        varints.append(view[start:stop])
    return varints


def _has_long_varints(follows: npt.NDArray[np.bool_]) -> bool:
    """Return whether any varint has five bytes or more. Otherwise every value is in [0, 2**28)."""
    # `pairs` marks two consecutive continuation bytes. Two adjacent pairs are four continuation bytes, which a fifth
    # byte follows.
    pairs = follows[1:] & follows[:-1]
    return bool((pairs[2:] & pairs[:-2]).any())


def _check_range(payload: npt.NDArray[np.uint8], column: FeatureColumn) -> None:
    values = _unpack(payload, column.name).astype(np.int64, copy=False)
    limits = np.iinfo(DTYPES[column.dtype])
    outside = np.flatnonzero((values < limits.min) | (values > limits.max))
    if outside.size:
        raise FormatError(
            f"column {column.name!r}: {count_of(outside.size, 'value does', 'values do')} not fit {column.dtype}, "
            f"first value {outside[0]}"
        )


def _locate_int64_lists(payload: bytes) -> dict[str, tuple[int, int]]:
    """Return the position of each column's packed varints in an Example: name to (first byte, byte after the last)."""
    lists: dict[str, tuple[int, int]] = {}
    position, stop = _enter_field(payload, 0, len(payload), _FEATURES, "the features", fills=True)
    while position < stop:
        entry, position = _enter_field(payload, position, stop, _MAP_ENTRY, "a column")
        key, key_stop = _enter_field(payload, entry, position, _KEY, "a column's name")
        try:
            name = payload[key:key_stop].decode()
        except UnicodeDecodeError as error:
            raise FormatError(
                f"a column's name is not valid UTF-8 at byte {key + error.start} of the payload"
            ) from error
        if name in lists:
            raise FormatError(f"column {name!r} occurs twice, again at byte {entry} of the payload")
        feature, _ = _enter_field(payload, key_stop, position, _FEATURE, "a column's feature", fills=True)
        if feature < position and (kind := _KINDS.get(payload[feature])):
            raise FormatError(f"column {name!r} must be a list of integers, not of {kind}")
        values, _ = _enter_field(
            payload, feature, position, _INT64_LIST, f"the integer list of column {name!r}", fills=True
        )
        # An empty list has no packed field.
        if values < position:
            values, _ = _enter_field(
                payload, values, position, _PACKED, f"the packed values of column {name!r}", fills=True
            )
        lists[name] = values, position
    return lists


def _enter_field(
    payload: bytes, position: int, limit: int, tag: int, field_name: str, *, fills: bool = False
) -> tuple[int, int]:
    """Return start and end of the content of the field at ``position``.

    The field must have this tag and end within, or at, ``limit``.
    """
    start = position + 1
    length = shift = 0
    if start >= limit or payload[position] != tag:
        raise FormatError(f"not an Example of integer columns: expected {field_name} at byte {position} of the payload")
    while start < limit:
        byte = payload[start]
        length |= (byte & 0x7F) << shift
        start += 1
        shift += 7
        if byte < 0x80:
            break
    stop = start + length
    if byte >= 0x80 or stop > limit or (fills and stop != limit):
        raise FormatError(f"{field_name} at byte {position} of the payload ends at byte {stop}, expected {limit}")
    return start, stop


def _unpack_rows(rows: Sequence[Sequence[memoryview]], columns: Sequence[FeatureColumn]) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of rows that passed `_check_row`: arrays of the column's dtype, shape ``(rows, length)``."""
    columns_by_name = {}
    for index, column in enumerate(columns):
        of_column = [row[index] for row in rows]
        if column.length is None:
            columns_by_name[column.name] = _unpack_uneven(of_column, column)
            continue
        columns_by_name[column.name] = np.empty((len(rows), column.length), DTYPES[column.dtype])
        step = _count_rows_in_block(column.length)
        for start in range(0, len(rows), step):
            varints = np.frombuffer(b"".join(of_column[start : start + step]), np.uint8)
            block = columns_by_name[column.name][start : start + step]
            block[...] = _unpack(varints, column.name).reshape(block.shape)
    return columns_by_name


def _unpack_uneven(rows: Sequence[memoryview], column: FeatureColumn) -> npt.NDArray[Any]:
    """Return the values of one column whose rows differ in length."""
    all_values = [_unpack(np.frombuffer(row, np.uint8), column.name) for row in rows]
    padded = np.full((len(rows), max((values.size for values in all_values), default=0)), ABSENT, DTYPES[column.dtype])
    for row, values in zip(padded, all_values, strict=True):
        row[: values.size] = values
    return padded


def _unpack(payload: npt.NDArray[np.uint8], name: str) -> npt.NDArray[Any]:
    """Return the values of packed varints. The last varint must be complete.

    The dtype is uint8, uint16 or uint32 if no varint is longer than four bytes, and int64 otherwise.
    """
    is_continued = payload >= 0x80
    longest = _measure_longest(is_continued)
    if longest > _MAX_SHORT_BYTES:
        return _unpack_long(payload, name)
    return payload if longest == 1 else _unpack_short(payload, np.flatnonzero(~is_continued), longest)


def _unpack_equal_rows(payload: npt.NDArray[np.uint8], sizes: list[int], length: int) -> npt.NDArray[Any] | None:
    """Decode rows of ``sizes`` bytes as `_unpack` does.

    Returns None unless each row has ``length`` complete, short varints.
    """
    is_continued = payload >= 0x80
    longest = _measure_longest(is_continued)
    if longest == 1:
        return payload if all(size == length for size in sizes) else None
    ends = np.flatnonzero(~is_continued)
    # Every row has `length` values if every `length`-th varint ends at the end of a row.
    even = ends.size == len(sizes) * length and np.array_equal(ends[length - 1 :: length] + 1, np.cumsum(sizes))
    return _unpack_short(payload, ends, longest) if even and longest <= _MAX_SHORT_BYTES else None


def _measure_longest(continues: npt.NDArray[np.bool_]) -> int:
    """Return the length in bytes of the longest varint, or `_MAX_SHORT_BYTES` + 1 for any longer one.

    ``continues`` marks the bytes that another byte follows.
    """
    longest, run = 1, continues
    while longest <= _MAX_SHORT_BYTES and run.any():
        # `run[i]` is true if byte i and the next `longest` - 1 bytes are continuation bytes, so the varint is longer.
        longest, run = longest + 1, run[1:] & continues[:-longest]
    return longest


def _unpack_short(payload: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64], longest: int) -> npt.NDArray[Any]:
    """Return the values of varints of up to 2 or 4 bytes, as uint16 or uint32. Each varint ends at one of ``ends``."""
    word = np.dtype("<u2" if longest == 2 else "<u4")
    width = word.itemsize
    # Take the word that ends with each varint. The bytes before the varint are the low bits of the word, and are
    # shifted out at the end.
    padded = np.concatenate([np.zeros(width - 1, np.uint8), payload])
    words = np.ndarray(payload.shape, word, padded, strides=(1,)).take(ends, mode="clip")
    values: npt.NDArray[Any] = words & word.type(0x7F)
    for byte in range(1, width):
        # The shift grows by one bit per byte, because each group of 7 bits must close the gaps left by the top bits of
        # all lower bytes.
        words >>= word.type(1)
        values |= words & word.type(0x7F << 7 * byte)
    is_used = np.empty(ends.size, word)
    is_used[0] = ends[0] + 1
    np.subtract(ends[1:], ends[:-1], out=is_used[1:], casting="unsafe")
    values >>= word.type(7) * (word.type(width) - is_used)
    return values


def _unpack_long(payload: npt.NDArray[np.uint8], name: str) -> npt.NDArray[Any]:
    """Return the values of packed varints as int64, for payloads with a varint of five bytes or more."""
    ends = np.flatnonzero(payload < 0x80)
    values: npt.NDArray[Any] = payload[ends].astype(np.uint64)
    is_unfinished = np.ones(ends.size, np.bool_)
    for distance in range(1, 11):
        # For the first varint, the index wraps around to the last byte. This is correct, because that byte also ends a
        # varint.
        previous_byte = payload[ends - distance]
        is_unfinished &= previous_byte >= 0x80
        if not is_unfinished.any():
            return values.view(np.int64)
        values = np.where(is_unfinished, values << np.uint64(7) | (previous_byte & np.uint8(0x7F)), values)
    raise FormatError(f"column {name!r}: value {is_unfinished.argmax()} is a varint of more than 10 bytes")
