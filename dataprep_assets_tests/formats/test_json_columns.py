"""JSON values as Arrow columns: values of one type are native, all others are text, and all are read back equal."""

import io
import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep_assets.formats.json_columns import ABSENT_VALUE, build_column_type, decode, encode, is_equal, merge_value

MIXED = [["4", 4], [True, 1], [1, 1.0], [None, "4"], [{"a": 1}, {"b": 1}], [[1], ["1"]], [{}, {}], [[], []], [2**63, 1]]


def round_trip(values: Sequence[Any]) -> tuple[str, list[Any]]:
    """Write and read values, and return the type of their column with the values."""
    shape = None
    for value in values:
        if value is not ABSENT_VALUE:
            shape = merge_value(shape, value)
    stored = [encode(value, shape) for value in values]
    kind = build_column_type(shape)
    file = io.BytesIO()
    pq.write_table(pa.table({"value": pa.array([value for value, _ in stored], kind)}), file)
    read = pq.read_table(file).column("value").to_pylist()
    return str(kind), [decode(value, format) for value, (_, format) in zip(read, stored, strict=True)]


def assert_equal(values: Sequence[Any], read: Sequence[Any]) -> None:
    assert len(values) == len(read)
    assert all(is_equal(value, other) for value, other in zip(values, read, strict=True)), (values, read)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["4", "", "null", '{"a": 1}', "4\n"], "string"),
        ([4, -(2**63), 2**63 - 1], "int64"),
        ([0.1 + 0.2, 1e-300, -0.0, 4.0], "double"),
        ([True, False], "bool"),
        ([["a"], [], ["b", "c"]], "list<item: string>"),
        ([{"target": ["a"], "n": 1}, {"n": 2, "target": []}], "struct<n: int64, target: list<item: string>>"),
        ([{"a": {"b": [[1.5]]}}], "struct<a: struct<b: list<item: list<item: double>>>>"),
    ],
)
def test_values_of_one_type_are_native(values: list[Any], kind: str) -> None:
    found, read = round_trip([*values, ABSENT_VALUE])
    assert found == kind
    assert_equal([*values, ABSENT_VALUE], read)


@pytest.mark.parametrize("values", MIXED, ids=map(repr, MIXED))
def test_values_of_several_types_are_stored_as_text(values: list[Any]) -> None:
    kind, read = round_trip(values)
    assert kind == "string"
    assert_equal(values, read)


def test_an_absent_value_is_not_null() -> None:
    kind, read = round_trip([None, ABSENT_VALUE])
    assert kind == "string"
    assert read[0] is None
    assert read[1] is ABSENT_VALUE
    assert round_trip([ABSENT_VALUE]) == ("string", [ABSENT_VALUE])


def random_value(random: Random, depth: int = 0) -> Any:
    kinds = ["text", "int", "float", "bool", "null", *(["list", "object"] * (depth < 3))]
    match random.choice(kinds):
        case "text":
            return random.choice(["", "4", "true", "null", "ä😀", '"', "\\", "[]", "a\u0000b"])
        case "int":
            return random.choice([0, 1, -7, 2**53 + 1, 2**63 - 1, 2**64 - 1])
        case "float":
            return random.choice([0.0, 1.0, 0.1, 1e22, 5e-324, random.random()])
        case "bool":
            return random.random() < 0.5
        case "list":
            return [random_value(random, depth + 1) for _ in range(random.randint(0, 3))]
        case "object":
            return {random.choice("abc"): random_value(random, depth + 1) for _ in range(random.randint(0, 3))}
    return None


@pytest.mark.parametrize("seed", range(20))
def test_random_columns_are_read_back_equal(seed: int) -> None:
    random = Random(seed)
    for _ in range(50):
        prototype = random_value(random)
        # Repeat the first value often, so that many columns have rows of only one shape.
        values = [prototype if random.random() < 0.6 else random_value(random) for _ in range(random.randint(1, 6))]
        values = json.loads(json.dumps(values))
        assert_equal(values, round_trip(values)[1])


@pytest.mark.parametrize(("stored", "format"), [(4, "json"), (None, "text"), ("4", "none"), (None, "native")])
def test_a_value_that_does_not_fit_its_format_is_refused(stored: Any, format: Any) -> None:
    with pytest.raises(ValueError, match=format):
        decode(stored, format)


@pytest.mark.parametrize(
    ("first", "second"),
    [(1, 1.0), (True, 1), ({"a": None}, {}), ([1], [1, 1]), ("1", 1), (ABSENT_VALUE, None), ({"a": 1}, {"a": 1.0})],
)
def test_equality_also_requires_equal_types(first: Any, second: Any) -> None:
    assert not is_equal(first, second)
    assert is_equal(first, first)
