"""``tf.train.Example`` payloads of integer columns, encoded and decoded over whole batches of rows, without TensorFlow.

A row is one ``Example`` message: a map from column name to ``Feature``, each feature an ``Int64List`` of packed varints
(TensorFlow, ``core/example/example.proto`` and ``feature.proto``). An id below 2**7 takes one byte, below 2**14 two,
and so on; a negative value takes ten.

Payloads are byte-identical to ``SerializeToString(deterministic=True)`` of protobuf's upb runtime, which sorts the map
by the bytes of the keys but puts a longer key before its own prefix (`key_order`). The order has no meaning, and the
parser here accepts any. It is strict otherwise: one packed integer list per column, each column once, nothing else.

Encoding works on blocks of rows that fit in the CPU's cache: the varint of every value is spread in one machine word,
and the bytes in use are then picked out of all words at once. Python touches columns and rows, never values.

Messages name columns, counts and bytes, never a value: rows may be those of patients.

Entry points: `FeatureColumn`, `encode_rows`, `decode_rows`; `key_order`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep_assets.errors import FormatError, count_of

DTYPES: dict[str, np.dtype[Any]] = {"int32": np.dtype("<i4"), "int64": np.dtype("<i8")}
"""The dtypes of a column. On disk both are int64 varints; narrower or unsigned ones wrap silently in TFDS."""

ABSENT = -1
"""Fills the array of a column after the values of a row, if rows differ in length. No id is negative."""

# Protobuf: field number << 3 | wire type 2 (length-delimited).
_FEATURES = _MAP_ENTRY = _KEY = _PACKED = 0x0A
_FEATURE = 0x12
_KINDS = {0x0A: "bytes", 0x12: "float"}
_INT64_LIST = 0x1A

# Values in a block: few enough that its working arrays stay in a core's cache, enough that call overhead is small.
_BLOCK = 32_768
_DECODED = 4 * _BLOCK

_SHORT = 4
"""Bytes of a varint that fits in a word of 32 bits."""


@dataclass(frozen=True, kw_only=True)
class FeatureColumn:
    """One column of every row: ``length`` values a row, each within ``dtype``, ``"int32"`` or ``"int64"``.

    A length of None is any number of values from 1 on, which need not be the same in every row. Raises FormatError for
    a length below 1 or another dtype.
    """

    name: str
    length: int | None
    dtype: str = "int32"

    def __post_init__(self) -> None:
        if not self.name or (self.length is not None and self.length < 1) or self.dtype not in DTYPES:
            raise FormatError(
                f"column {self.name!r} of {self.length} {self.dtype} values per row: must have a name, at least one "
                f"value, and a dtype of {', '.join(DTYPES)}"
            )


def key_order(name: str) -> tuple[int, ...]:
    """Sort key of a column name: by its UTF-8 bytes, a longer name before its own prefix."""
    # 256 sorts behind every byte, so that a name which ends comes after one that goes on
    return (*name.encode(), 256)


def encode_rows(
    columns: Mapping[str, npt.NDArray[Any]], lengths: npt.NDArray[np.integer[Any]] | None = None
) -> Iterator[bytes]:
    """Yield the payload of each row, in order.

    ``columns``: name to int32 or int64 array of shape ``(rows, length)``; rows equal for all, lengths may differ.
    ``lengths``: integers, shape ``(rows,)``: how many values of each row are encoded, in every column; None: all.
    Raises FormatError, before anything is yielded, for no columns, another dtype or shape, or unequal numbers of rows.
    """
    rows = _row_count(columns)
    ordered = [(name.encode(), columns[name]) for name in sorted(columns, key=key_order)]
    return _encode(ordered, rows, _rows_in_block(max(values.shape[1] for _, values in ordered)), lengths)


def _row_count(columns: Mapping[str, npt.NDArray[Any]]) -> int:
    for name, values in columns.items():
        if values.ndim != 2 or values.dtype not in (np.int32, np.int64):
            raise FormatError(
                f"column {name!r} is {values.dtype} of shape {values.shape}, expected int32 or int64 of (rows, length)"
            )
    counts = {name: len(values) for name, values in columns.items()}
    if len(set(counts.values())) != 1:
        raise FormatError(f"columns must have the same number of rows, not {counts}")
    return next(iter(counts.values()))


def _rows_in_block(length: int) -> int:
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
            # the first piece is the row's head, which says how many bytes follow, and is filled in last
            pieces: list[bytes | memoryview] = [b""]
            for key, varints, ends in packed_columns:
                begin, end = ends[row], ends[row + 1]
                pieces += [_entry_head(key, end - begin), varints[begin:end]]
            pieces[0] = bytes([_FEATURES]) + _varint(sum(map(len, pieces)))
            yield b"".join(pieces)


# The same few names and lengths come again in every row.
@lru_cache(maxsize=4096)
def _entry_head(key: bytes, packed: int) -> bytes:
    """The bytes of a map entry before its ``packed`` bytes of varints."""
    # An empty list is left out, as proto3 leaves out every empty field.
    head = bytes([_PACKED]) + _varint(packed) if packed else b""
    # from the inside out, because each field begins with the length of what it holds
    head = bytes([_INT64_LIST]) + _varint(len(head) + packed) + head
    head = bytes([_FEATURE]) + _varint(len(head) + packed) + head
    head = bytes([_KEY]) + _varint(len(key)) + key + head
    return bytes([_MAP_ENTRY]) + _varint(len(head) + packed) + head


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _pack(values: npt.NDArray[Any], lengths: npt.NDArray[np.integer[Any]] | None) -> tuple[memoryview, list[int]]:
    """The varints of a block of rows one after another, and the byte where each row begins and the last one ends."""
    rows, length = values.shape
    if lengths is None:
        flat, bounds = values.reshape(-1), np.arange(rows + 1) * length
    else:
        flat = values[np.arange(length) < lengths[:, None]]
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    if flat.size == 0:
        return memoryview(b""), [0] * (rows + 1)
    # bytes of the longest varint: one for each 7 bits, of which a negative value has all 64
    width = 10 if flat.min() < 0 else max(1, -(-int(flat.max()).bit_length() // 7))
    if width == 1:
        return flat.astype(np.uint8).data, bounds.tolist()
    varints, used = _spread_in_words(flat, width) if width <= 8 else _spread_in_planes(flat)
    used_indices = np.flatnonzero(used)
    # every value takes equally many bytes in `varints`: how many of them are in use before each row begins
    ends = np.searchsorted(used_indices, bounds * (used.size // flat.size))
    return varints.take(used_indices).data, ends.tolist()


def _spread_in_words(values: npt.NDArray[Any], width: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Each value's varint in a little-endian word of at least ``width`` bytes, and which of these bytes are in use."""
    word = np.dtype("<u2" if width == 2 else "<u4" if width <= 4 else "<u8")
    flat = values.astype(word)
    varints = flat & word.type(0x7F)
    follow_bits = np.zeros_like(flat)
    for byte in range(1, width):
        # a group of 7 bits moves up by a bit for each byte before it, and so gets a byte of its own
        varints |= (flat & word.type(0x7F << 7 * byte)) << word.type(byte)
        # The top bit of a byte says that another follows.
        follow_bits |= (flat >= word.type(1 << 7 * byte)).astype(word) << word.type(8 * byte - 1)
    varints |= follow_bits
    # The top bit of a byte, one further, is the lowest of the next: each byte of the word is then 0 or 1, a bool.
    used = (follow_bits << word.type(1)) | word.type(1)
    return varints.view(np.uint8), used.view(np.bool_)


def _spread_in_planes(values: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Like `_spread_in_words`, for values that do not fit in a word: ten bytes each, all used by a negative value."""
    # unsigned: a negative value stays negative when it is shifted, and would look as if no byte followed
    bits = values.astype(np.int64).view(np.uint64)
    varints = np.empty((values.size, 10), np.uint8)
    used = np.ones((values.size, 10), np.bool_)
    for byte in range(10):
        next_bits = bits >> np.uint64(7)
        has_next = next_bits > 0
        varints[:, byte] = (bits & np.uint64(0x7F)).astype(np.uint8) | has_next.astype(np.uint8) << np.uint8(7)
        if byte < 9:
            used[:, byte + 1] = has_next
        bits = next_bits
    return varints.reshape(-1), used.reshape(-1)


def decode_rows(payloads: Sequence[bytes], columns: Sequence[FeatureColumn]) -> dict[str, npt.NDArray[Any]]:
    """The columns of these payloads: name to array of the column's dtype, shape ``(rows, length)``.

    An array of a column without a length is as wide as its longest row; behind the values of a shorter one is `ABSENT`.

    Raises FormatError, naming the row and the column, for a payload that is not such an Example, a column that is
    missing or not declared, a list of another kind, a number of values other than ``length``, a value beyond the dtype.
    """
    plain = _plain_rows(payloads, columns)
    if plain is not None:
        return plain
    rows = []
    for row, payload in enumerate(payloads):
        try:
            rows.append(_check_row(payload, columns))
        except FormatError as error:
            raise FormatError(f"row {row}: {error}") from error
    return _unpack_rows(rows, columns)


def _plain_rows(payloads: Sequence[bytes], columns: Sequence[FeatureColumn]) -> dict[str, npt.NDArray[Any]] | None:
    """Return what `decode_rows` gives, checked block by block instead of row by row.

    None if anything is not as declared, rows differ in length, or a varint has five bytes or more: the checks of rows
    then say what is wrong, if it is.
    """
    lengths = {column.name: column.length for column in columns}
    if None in lengths.values() or len(lengths) < len(columns):
        return None
    try:
        lists_of_rows = [_int64_lists(payload) for payload in payloads]
    except FormatError:
        return None
    if any(lists.keys() != lengths.keys() for lists in lists_of_rows):
        return None
    out = {}
    for column in columns:
        length = column.length or 0
        values = out[column.name] = np.empty((len(payloads), length), DTYPES[column.dtype])
        step = max(1, _DECODED // length)
        for start in range(0, len(payloads), step):
            ranges = [lists[column.name] for lists in lists_of_rows[start : start + step]]
            parts = [memoryview(p)[a:b] for p, (a, b) in zip(payloads[start : start + step], ranges, strict=True)]
            decoded = _unpacked_rows(np.frombuffer(b"".join(parts), np.uint8), [len(part) for part in parts], length)
            if decoded is None:
                return None
            values[start : start + step] = decoded.reshape(len(parts), length)
    return out


def column_names(payload: bytes) -> frozenset[str]:
    """The columns of one payload; raises FormatError when it is not an Example of integer columns."""
    return frozenset(_int64_lists(payload))


def _check_row(payload: bytes, columns: Sequence[FeatureColumn]) -> list[memoryview]:
    """Check one payload against the columns, and return the packed varints of each, in the order of ``columns``.

    Raises FormatError for a message that is not such an Example, a column missing or not declared, a list of another
    kind, a number of values other than ``length``, and a value that the dtype cannot hold. Varints are only
    decoded if one is so long that its value must be checked.
    """
    lists = _int64_lists(payload)
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
            raise FormatError(f"column {column.name!r}: its last varint is truncated at byte {stop} of the payload")
        if long_varints:
            _check_range(raw[start:stop], column)
        varints.append(view[start:stop])
    return varints


def _has_long_varints(follows: npt.NDArray[np.bool_]) -> bool:
    """Return whether any varint has five bytes or more; without one, every value is in [0, 2**28)."""
    # two in a row that say another follows, and two of these: four, behind which is a fifth byte
    pairs = follows[1:] & follows[:-1]
    return bool((pairs[2:] & pairs[:-2]).any())


def _check_range(packed: npt.NDArray[np.uint8], column: FeatureColumn) -> None:
    values = _unpacked(packed, column.name).astype(np.int64, copy=False)
    limits = np.iinfo(DTYPES[column.dtype])
    outside = np.flatnonzero((values < limits.min) | (values > limits.max))
    if outside.size:
        raise FormatError(
            f"column {column.name!r}: {count_of(outside.size, 'value does', 'values do')} not fit {column.dtype}, "
            f"first value {outside[0]}"
        )


def _int64_lists(payload: bytes) -> dict[str, tuple[int, int]]:
    """Return where the packed varints of each column are in an Example: name to (first byte, byte after the last)."""
    lists: dict[str, tuple[int, int]] = {}
    position, stop = _enter(payload, 0, len(payload), _FEATURES, "the features", fills=True)
    while position < stop:
        entry, position = _enter(payload, position, stop, _MAP_ENTRY, "a column")
        key, key_stop = _enter(payload, entry, position, _KEY, "a column's name")
        try:
            name = payload[key:key_stop].decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"a column's name is not UTF-8 at byte {key + error.start} of the payload") from error
        if name in lists:
            raise FormatError(f"column {name!r} occurs twice, again at byte {entry} of the payload")
        feature, _ = _enter(payload, key_stop, position, _FEATURE, "a column's feature", fills=True)
        if feature < position and (kind := _KINDS.get(payload[feature])):
            raise FormatError(f"column {name!r} is a list of {kind}, expected integers")
        values, _ = _enter(payload, feature, position, _INT64_LIST, f"the integer list of column {name!r}", fills=True)
        # an empty list has no packed field at all
        if values < position:
            values, _ = _enter(payload, values, position, _PACKED, f"the packed values of column {name!r}", fills=True)
        lists[name] = values, position
    return lists


def _enter(payload: bytes, at: int, limit: int, tag: int, what: str, *, fills: bool = False) -> tuple[int, int]:
    """Start and end of the content of the field at ``at``; it must have this tag and end within, or at, ``limit``."""
    start = at + 1
    length = shift = 0
    if start >= limit or payload[at] != tag:
        raise FormatError(f"expected {what} at byte {at} of the payload; not an Example of integer columns")
    while start < limit:
        byte = payload[start]
        length |= (byte & 0x7F) << shift
        start += 1
        shift += 7
        if byte < 0x80:
            break
    stop = start + length
    if byte >= 0x80 or stop > limit or (fills and stop != limit):
        raise FormatError(f"{what} at byte {at} of the payload ends at byte {stop}, expected {limit}")
    return start, stop


def _unpack_rows(rows: Sequence[Sequence[memoryview]], columns: Sequence[FeatureColumn]) -> dict[str, npt.NDArray[Any]]:
    """The columns of rows that passed `_check_row`: arrays of the column's dtype, shape ``(rows, length)``."""
    out = {}
    for index, column in enumerate(columns):
        of_column = [row[index] for row in rows]
        if column.length is None:
            out[column.name] = _unpack_uneven(of_column, column)
            continue
        out[column.name] = np.empty((len(rows), column.length), DTYPES[column.dtype])
        step = _rows_in_block(column.length)
        for start in range(0, len(rows), step):
            varints = np.frombuffer(b"".join(of_column[start : start + step]), np.uint8)
            block = out[column.name][start : start + step]
            block[...] = _unpacked(varints, column.name).reshape(block.shape)
    return out


def _unpack_uneven(rows: Sequence[memoryview], column: FeatureColumn) -> npt.NDArray[Any]:
    """The values of one column whose rows differ in length."""
    all_values = [_unpacked(np.frombuffer(row, np.uint8), column.name) for row in rows]
    out = np.full((len(rows), max((values.size for values in all_values), default=0)), ABSENT, DTYPES[column.dtype])
    for row, values in zip(out, all_values, strict=True):
        row[: values.size] = values
    return out


def _unpacked(packed: npt.NDArray[np.uint8], name: str) -> npt.NDArray[Any]:
    """The values of packed varints, the last of which is whole.

    uint8, uint16 or uint32 where no varint is longer than four bytes, int64 otherwise.
    """
    goes_on = packed >= 0x80
    longest = _longest(goes_on)
    if longest > _SHORT:
        return _unpack_long(packed, name)
    return packed if longest == 1 else _unpack_short(packed, np.flatnonzero(~goes_on), longest)


def _unpacked_rows(packed: npt.NDArray[np.uint8], sizes: list[int], length: int) -> npt.NDArray[Any] | None:
    """Like `_unpacked`, for rows of ``sizes`` bytes; None unless each has ``length`` whole varints that are short."""
    goes_on = packed >= 0x80
    longest = _longest(goes_on)
    if longest == 1:
        return packed if all(size == length for size in sizes) else None
    ends = np.flatnonzero(~goes_on)
    # each row ends where every `length`-th varint does
    even = ends.size == len(sizes) * length and np.array_equal(ends[length - 1 :: length] + 1, np.cumsum(sizes))
    return _unpack_short(packed, ends, longest) if even and longest <= _SHORT else None


def _longest(goes_on: npt.NDArray[np.bool_]) -> int:
    """Bytes of the longest varint, by whether another byte follows each; one more than `_SHORT` for any longer one."""
    longest, run = 1, goes_on
    while longest <= _SHORT and run.any():
        # then `run[i]` says that byte i and the `longest` - 1 behind it all go on: a varint there is longer still
        longest, run = longest + 1, run[1:] & goes_on[:-longest]
    return longest


def _unpack_short(packed: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64], longest: int) -> npt.NDArray[Any]:
    """The values of varints of up to 2 or up to 4 bytes, each of which ends at one of ``ends``: uint16 or uint32."""
    word = np.dtype("<u2" if longest == 2 else "<u4")
    width = word.itemsize
    # the word that ends with each varint: bytes before the varint are in its low bits, and are shifted out at the end
    padded = np.concatenate([np.zeros(width - 1, np.uint8), packed])
    words = np.ndarray(packed.shape, word, padded, strides=(1,)).take(ends, mode="clip")
    values: npt.NDArray[Any] = words & word.type(0x7F)
    for byte in range(1, width):
        # shifted by one more for each byte, so that groups of 7 bits close up over the top bits
        words >>= word.type(1)
        values |= words & word.type(0x7F << 7 * byte)
    used = np.empty(ends.size, word)
    used[0] = ends[0] + 1
    np.subtract(ends[1:], ends[:-1], out=used[1:], casting="unsafe")
    values >>= word.type(7) * (word.type(width) - used)
    return values


def _unpack_long(packed: npt.NDArray[np.uint8], name: str) -> npt.NDArray[Any]:
    """Like `_unpacked`, where a varint has five bytes or more: int64."""
    ends = np.flatnonzero(packed < 0x80)
    values: npt.NDArray[Any] = packed[ends].astype(np.uint64)
    is_unfinished = np.ones(ends.size, np.bool_)
    for back in range(1, 11):
        # Before the first varint this wraps around to the last byte, which ends a varint as any other would.
        before = packed[ends - back]
        is_unfinished &= before >= 0x80
        if not is_unfinished.any():
            return values.view(np.int64)
        values = np.where(is_unfinished, values << np.uint64(7) | (before & np.uint8(0x7F)), values)
    raise FormatError(f"column {name!r}: value {is_unfinished.argmax()} is a varint of more than ten bytes")
