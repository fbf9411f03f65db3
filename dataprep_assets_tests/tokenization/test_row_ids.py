"""Ids of whole rows are equal exactly for equal rows, whatever a row contains."""

from datetime import date
from decimal import Decimal
from typing import Any

import pytest
import xxhash

from dataprep_assets.tokenization.document_ids import RowIds


def nested(levels: int, end: Any = 1) -> Any:
    value = end
    for _ in range(levels):
        value = [value]
    return value


VALUES: list[Any] = [
    1,
    "1",
    None,
    "half \ud800",
    1 << 70,
    b"bytes",
    Decimal("1.5"),
    date(2026, 1, 31),
    [1, [2]],
    [[1], 2],
    {"b": 1 << 70, "a": 2},
    nested(300),
    nested(1000),
    nested(1000, "other"),
]


def test_each_row_has_one_id_that_does_not_depend_on_the_order_of_keys() -> None:
    ids = RowIds()
    hashes = [ids.hash_row({"x": value, "y": 2}) for value in VALUES]
    assert len(set(hashes)) == len(VALUES)
    assert hashes == [ids.hash_row({"y": 2, "x": value}) for value in VALUES]
    assert ids.hash_row({"x": {"a": 2, "b": 1 << 70}, "y": 2}) == hashes[10]
    assert ids.hash_row({"b": "ü", "a": [1]}) == xxhash.xxh3_64_intdigest('{"a":[1],"b":"ü"}'.encode())


def test_a_declared_field_is_the_id_and_a_row_without_it_is_hashed() -> None:
    ids = RowIds(id_field="meta.id")
    assert ids.hash_row({"meta": {"id": 7}, "x": 1}) == ids.hash_row({"meta": {"id": "7"}, "x": 2})
    assert ids.hash_row({"meta": {"id": 7}}) == xxhash.xxh3_64_intdigest(b"7")
    assert ids.hash_row({"meta": {"id": True}, "x": 1}) == RowIds().hash_row({"meta": {"id": True}, "x": 1})
    assert ids.hash_row({"meta": {"id": ""}}) == RowIds().hash_row({"meta": {"id": ""}})


@pytest.mark.parametrize("field", [None, "id"])
def test_with_a_key_the_id_does_not_reveal_the_row(field: str | None) -> None:
    row = {"id": "a", "x": 1}
    hashes = {RowIds(id_field=field, key=key).hash_row(row) for key in (None, b"k" * 32, b"l" * 32)}
    assert len(hashes) == 3
    assert all(0 <= number < 1 << 64 for number in hashes)
