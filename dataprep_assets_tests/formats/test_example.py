"""Tests of `dataprep_assets.formats.tensorflow.example`, some with TensorFlow itself."""

import random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep_assets.errors import FormatError
from dataprep_assets.formats.tensorflow import example
from dataprep_assets.formats.tensorflow.example import FeatureColumn
from dataprep_assets_tests.formats import packed
from dataprep_assets_tests.formats.packed import (
    Rows,
    assert_same,
    declare_columns,
    encode_entry,
    encode_field,
    make_packed_rows,
)
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.readers.tensorflow import example_payloads, int64_values, parsed_examples

LOW, HIGH = np.iinfo(np.int64).min, np.iinfo(np.int64).max
EDGES = [0, 1, *(edge + by for bits in range(7, 63, 7) for edge in [1 << bits] for by in (-1, 0)), HIGH]


def _make_values(top: int) -> npt.NDArray[np.int64]:
    """Return values up to ``top``: unordered, of every varint length, including both ends of the range."""
    values = [edge for edge in EDGES if edge <= top]
    return np.array([*random.Random(top).choices(values, k=40), 0, top], np.int64)


# The cases cover every varint width, mixed widths and dtypes, batches without rows or values, and narrow and wide rows.
BATCHES: dict[str, Rows] = {
    "packed rows": make_packed_rows(3, 8192),
    "short packed rows": make_packed_rows(300, 64),
    "one value": {"a": np.array([[5]], np.int32)},
    "no rows": {"a": np.empty((0, 4), np.int32), "b": np.empty((0, 2), np.int64)},
    "empty lists": {"a": np.empty((2, 0), np.int64), "b": np.array([[1, 300], [2, 3]], np.int32)},
    "columns of other lengths": {"b": np.arange(6, dtype=np.int32).reshape(2, 3), "a": np.full((2, 9), 200, np.int64)},
    "minus one as padding": {"a": np.array([[7, 300, -1], [-1, -1, -1], [1, 2, 3]], np.int32)},
    "ends of int32": {"a": np.array([[np.iinfo(np.int32).min, np.iinfo(np.int32).max]], np.int32)},
    "ends of int64": {"a": np.array([[LOW, HIGH, 0, -1, 1, LOW + 1]], np.int64)},
    "not contiguous": {
        "a": np.arange(24, dtype=np.int32).reshape(4, 6).T,
        "b": make_packed_rows(6, 40)["inputs"][:, ::2],
    },
    **{f"up to {top}": {"a": _make_values(top).reshape(6, 7)} for top in EDGES},
}


def _reference(rows: Rows) -> list[bytes]:
    names = sorted(rows, key=example.build_sort_key)
    return [
        packed.encode_example(encode_entry(name.encode(), rows[name][row]) for name in names)
        for row in range(len(next(iter(rows.values()))))
    ]


@pytest.mark.parametrize("batch", BATCHES)
def test_payloads_have_the_plain_encoding_and_decode_to_the_rows(batch: str) -> None:
    rows = BATCHES[batch]
    payloads = list(example.encode_rows(rows))
    assert payloads == _reference(rows)
    if all(values.shape[1] for values in rows.values()):
        assert_same(example.decode_rows(payloads, declare_columns(rows)), rows)


@pytest.mark.parametrize("batch", BATCHES)
def test_payloads_equal_tensorflows_byte_for_byte(batch: str) -> None:
    assert list(example.encode_rows(BATCHES[batch])) == example_payloads(BATCHES[batch])


def test_names_are_in_the_order_of_protobufs_deterministic_maps() -> None:
    """names are in the order of protobuf's deterministic maps"""
    draw = random.Random(3)
    for _ in range(200):
        names = {"".join(draw.choices("ab_é", k=draw.randint(1, 5))) for _ in range(draw.randint(2, 8))}
        rows: Rows = {name: np.array([[1]], np.int32) for name in names}
        assert list(example.encode_rows(rows)) == example_payloads(rows)


def test_a_longer_name_comes_before_its_own_prefix() -> None:
    names = ["inputs", "inputs_position", "targets", "inputs_segmentation", "targets_position"]
    assert sorted(names, key=example.build_sort_key) == [
        "inputs_position",
        "inputs_segmentation",
        "inputs",
        "targets_position",
        "targets",
    ]


def test_tensorflow_parses_every_column() -> None:
    rows = make_packed_rows(4, 300)
    parsed = parsed_examples(list(example.encode_rows(rows)), list(rows), 300)
    assert len(parsed) == 4
    for row, found in enumerate(parsed):
        for name, values in rows.items():
            assert np.array_equal(found[name], values[row])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.integers(LOW, HIGH), min_size=3, max_size=3), max_size=5))
def test_any_values_encode_plainly_and_come_back(values: list[list[int]]) -> None:
    rows: Rows = {"ab": np.array(values, np.int64).reshape(len(values), 3), "a": np.ones((len(values), 1), np.int32)}
    payloads = list(example.encode_rows(rows))
    assert payloads == _reference(rows)
    assert_same(example.decode_rows(payloads, declare_columns(rows)), rows)


@pytest.mark.parametrize("block", [1, 100, 1000])
def test_block_sizes_do_not_change_the_bytes(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    rows = make_packed_rows(7, 90)
    whole = list(example.encode_rows(rows))
    monkeypatch.setattr(example, "_BLOCK", block)
    assert list(example.encode_rows(rows)) == whole
    assert_same(example.decode_rows(whole, declare_columns(rows)), rows)


def test_columns_may_be_in_any_order_in_a_payload() -> None:
    rows = make_packed_rows(6, 50)
    draw = random.Random(1)
    payloads = [
        packed.encode_example(
            draw.sample([encode_entry(name.encode(), values[row]) for name, values in rows.items()], k=len(rows))
        )
        for row in range(6)
    ]
    assert len({payload[:20] for payload in payloads}) > 1
    assert_same(example.decode_rows(payloads, declare_columns(rows)), rows)


A = FeatureColumn(name="a", length=3)
B = FeatureColumn(name="b", length=2)
GOOD_A, GOOD_B = encode_entry(b"a", [1, 300, 70_000]), encode_entry(b"b", [4, 5])


def _make_payload(content: bytes) -> bytes:
    """Return a payload in which the feature of column a has this content; column b is valid."""
    return packed.encode_example([encode_field(1, encode_field(1, b"a") + encode_field(2, content)), GOOD_B])


def _make_varint_payload(content: bytes) -> bytes:
    """Return a payload in which these bytes replace the varints of column a."""
    return _make_payload(encode_field(3, encode_field(1, content)))


DEFECTS: dict[str, tuple[bytes, tuple[object, ...]]] = {
    "nothing": (b"", (0, "features")),
    "no columns": (encode_field(1, b""), ("missing columns: a, b",)),
    "column missing": (packed.encode_example([GOOD_A]), ("columns: b", "columns: none")),
    "column not declared": (
        packed.encode_example([GOOD_A, GOOD_B, encode_entry(b"c", [1])]),
        ("columns: none", "columns: c"),
    ),
    "another name": (packed.encode_example([GOOD_A, encode_entry(b"B", [4, 5])]), ("columns: b", "columns: B")),
    "column twice": (packed.encode_example([GOOD_A, GOOD_B, GOOD_A]), ("'a'", "twice")),
    "one value less": (packed.encode_example([encode_entry(b"a", [1, 2]), GOOD_B]), ("'a'", 2, 3)),
    "one value more": (packed.encode_example([GOOD_A, encode_entry(b"b", [1, 2, 3])]), ("'b'", 3, 2)),
    "empty list": (packed.encode_example([GOOD_A, encode_entry(b"b", [])]), ("'b'", 0)),
    "list of bytes": (_make_payload(encode_field(1, b"")), ("'a'", "bytes")),
    "list of float": (_make_payload(encode_field(2, b"")), ("'a'", "float")),
    "no list at all": (_make_payload(b""), ("'a'", "list")),
    "not packed": (_make_payload(encode_field(3, b"\x08\x01\x08\x02\x08\x03")), ("'a'", "packed")),
    "two packed runs": (
        _make_payload(encode_field(3, encode_field(1, b"\1\2") + encode_field(1, b"\3"))),
        ("'a'", "packed"),
    ),
    "last varint cut": (_make_varint_payload(b"\1\2\3\x80"), ("'a'", "varint")),
    "varint of eleven bytes": (_make_varint_payload(b"\1\2" + b"\x80" * 10 + b"\1"), ("'a'", 2, "varint")),
    "not fit int32": (packed.encode_example([encode_entry(b"a", [1, 2, 1 << 31]), GOOD_B]), ("int32", 2)),
    "below int32": (
        packed.encode_example([encode_entry(b"a", [1, -(1 << 31) - 1, 3]), GOOD_B]),
        ("int32", 1),
    ),
    "a name that is not UTF-8": (packed.encode_example([GOOD_A, GOOD_B, encode_entry(b"\xff", [1])]), ("UTF-8",)),
    "bytes behind the features": (packed.encode_example([GOOD_A, GOOD_B]) + b"\0", ("byte",)),
    "another field": (encode_field(2, b""), (0, "features")),
    "entry without a feature": (packed.encode_example([encode_field(1, encode_field(1, b"a")), GOOD_B]), ("feature",)),
    "length of too many bytes": (b"\x0a" + b"\xff" * 12, (0, "features")),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_every_defect_is_refused_with_its_row(defect: str) -> None:
    payload, values = DEFECTS[defect]
    good = packed.encode_example([GOOD_A, GOOD_B])
    assert len(example.decode_rows([good], [A, B])) == 2
    with raises(FormatError, *values):
        example.decode_rows([payload], [A, B])
    with raises(FormatError, 1, *values):
        example.decode_rows([good, payload], [A, B])


def test_every_truncation_is_refused() -> None:
    rows = make_packed_rows(1, 40)
    (payload,) = example.encode_rows(rows)
    for size in range(len(payload)):
        with pytest.raises(FormatError):
            example.decode_rows([payload[:size]], declare_columns(rows))


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damage_is_refused_or_leaves_rows_that_decode(data: st.DataObject) -> None:
    """The parser fails in no other way, and never follows a wrong length beyond the payload."""
    rows: Rows = {"a": np.array([[1, 300, -1]], np.int64), "bb": np.array([[4, 70_000]], np.int64)}
    payload = bytearray(next(example.encode_rows(rows)))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = example.decode_rows([bytes(payload)], declare_columns(rows))
    except FormatError:
        return
    assert {name: values.shape for name, values in decoded.items()} == {"a": (1, 3), "bb": (1, 2)}


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_accepted_payloads_decode_as_in_tensorflow(data: st.DataObject) -> None:
    rows: Rows = {"a": np.array([[1, 300, -1, 2**40]], np.int64)}
    payload = bytearray(next(example.encode_rows(rows)))
    start = len(payload) - 19
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(start, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = example.decode_rows([bytes(payload)], declare_columns(rows))
    except FormatError:
        return
    assert decoded["a"][0].tolist() == int64_values(bytes(payload), "a")


def test_a_value_never_appears_in_a_message() -> None:
    secret = 3_141_592_653_589
    with pytest.raises(FormatError) as caught:
        example.decode_rows([packed.encode_example([encode_entry(b"a", [1, 2, secret]), GOOD_B])], [A, B])
    assert str(secret) not in str(caught.value)


def test_arrays_that_are_not_a_batch_of_rows_are_refused() -> None:
    with raises(FormatError, "'a'", "uint32", "(1, 2)"):
        example.encode_rows({"a": np.zeros((1, 2), np.uint32)})
    with raises(FormatError, "'a'", "int32", "(2,)"):
        example.encode_rows({"a": np.zeros(2, np.int32)})
    with raises(FormatError, "a has 1, b has 2"):
        example.encode_rows({"a": np.zeros((1, 2), np.int32), "b": np.zeros((2, 2), np.int32)})
    with raises(FormatError, "no columns found"):
        example.encode_rows({})


@pytest.mark.parametrize(("name", "length", "dtype"), [("", 1, "int32"), ("a", 0, "int32"), ("a", 1, "uint16")])
def test_invalid_columns_are_refused(name: str, length: int, dtype: str) -> None:
    with raises(FormatError, repr(name), length, dtype):
        FeatureColumn(name=name, length=length, dtype=dtype)
