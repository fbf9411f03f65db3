"""Typed facts of a receipt: written as JSON, read back with their declared types, and refused by name."""

import pytest

from dataprep_assets.engine.artifact.build import Facts
from dataprep_assets.errors import IntegrityError
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets_tests.messages import raises


class BinFacts(Facts):
    """Facts of a token bin."""

    dtype: str
    shards: int
    bos_id: int | None
    truncated: int = 0


def receipt(facts: dict[str, object], partition: str | None = "train-00000") -> Receipt:
    return Receipt(dataset="d", artifact="bins", partition=partition, key="0", inputs={}, files=(), facts=facts)


def test_set_values_are_written_and_unset_defaults_are_not() -> None:
    assert BinFacts(dtype="uint16", shards=2, bos_id=None).to_json() == {
        "dtype": "uint16",
        "shards": 2,
        "bos_id": None,
    }
    assert BinFacts(dtype="uint16", shards=2, bos_id=None, truncated=0).to_json()["truncated"] == 0


def test_facts_are_read_back_as_written() -> None:
    facts = BinFacts(dtype="uint16", shards=2, bos_id=7)
    assert BinFacts.from_receipt(receipt(facts.to_json())) == facts


def test_facts_of_a_newer_version_are_ignored() -> None:
    assert BinFacts.from_receipt(receipt({"dtype": "uint16", "shards": 2, "bos_id": None, "later": 1})).shards == 2


@pytest.mark.parametrize(
    ("facts", "values"),
    [
        ({"dtype": "uint16", "bos_id": None}, ("shards",)),
        ({"dtype": "uint16", "shards": "many", "bos_id": None}, ("shards", "integer")),
        ({}, ("dtype", "shards", "bos_id")),
    ],
)
def test_a_missing_or_invalid_fact_names_artifact_and_fact(facts: dict[str, object], values: tuple[str, ...]) -> None:
    with raises(IntegrityError, "d/bins/train-00000", *values):
        BinFacts.from_receipt(receipt(facts))
    with raises(IntegrityError, "d/bins"):
        BinFacts.from_receipt(receipt(facts, partition=None))
