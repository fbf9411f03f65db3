"""The metadata of a materialization, as Dagster's values."""

import dagster as dg
import numpy as np
import pytest

from dataprep_assets.engine.artifact.metadata_values import Location, Markdown, ShownValue, Table
from dataprep_assets.integrity.receipt import FileRecord, Ledger, Receipt
from dataprep_assets.orchestration.metadata import build_receipt_metadata, render_table, render_value


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (3, dg.IntMetadataValue, 3),
        (np.int64(3), dg.IntMetadataValue, 3),
        (0.5, dg.FloatMetadataValue, 0.5),
        (np.float64(0.5), dg.FloatMetadataValue, 0.5),
        (True, dg.BoolMetadataValue, True),
        ("word", dg.TextMetadataValue, "word"),
        (Markdown("*word*"), dg.MarkdownMetadataValue, "*word*"),
        (Location("/a/folder"), dg.PathMetadataValue, "/a/folder"),
        (Location("gs://bucket/prefix"), dg.TextMetadataValue, "gs://bucket/prefix"),
    ],
)
def test_a_value_is_rendered_according_to_its_type(value: ShownValue, kind: type, shown: object) -> None:
    found = render_value(value)
    assert isinstance(found, kind)
    assert found.value == shown
    assert type(found.value) in (int, float, bool, str), "NumPy's own scalars cannot be stored"


def test_table_columns_are_in_order_of_first_appearance_and_gaps_are_empty() -> None:
    found = render_value(Table([{"file": "a", "rows": 1}, {"file": "b", "share": 0.5}, {"rows": 2, "file": "c"}]))
    assert isinstance(found, dg.TableMetadataValue)
    assert [dict(record.data) for record in found.records] == [
        {"file": "a", "rows": 1, "share": ""},
        {"file": "b", "rows": "", "share": 0.5},
        {"file": "c", "rows": 2, "share": ""},
    ]
    assert [(column.name, column.type) for column in found.schema.columns] == [
        ("file", "string"),
        ("rows", "string"),
        ("share", "string"),
    ]


def test_columns_of_numbers_are_typed() -> None:
    found = render_table([{"rows": 1, "share": 1}, {"rows": 2, "share": 0.5}])
    assert isinstance(found, dg.TableMetadataValue)
    assert [(column.name, column.type) for column in found.schema.columns] == [("rows", "int"), ("share", "float")]


def receipt(**changes: object) -> Receipt:
    made: dict[str, object] = {
        "dataset": "d",
        "artifact": "token_bins",
        "partition": "train-00000",
        "key": "0" * 64,
        "inputs": {},
        "files": (FileRecord(path="tokens.bin", bytes=20, sha256="1"), FileRecord(path="x", bytes=3, sha256="2")),
    }
    return Receipt(**made | changes)  # type: ignore[arg-type]


def test_every_artifact_shows_its_location_size_and_content() -> None:
    made = receipt()
    assert build_receipt_metadata(made, "/a/folder", True) == {
        "dagster/uri": "file:///a/folder",
        "path": Location("/a/folder"),
        "bytes": 23,
        "files": 2,
        "reused": True,
        "content_digest": made.content,
    }


def test_an_artifact_in_a_bucket_has_a_uri_and_no_path() -> None:
    shown = build_receipt_metadata(receipt(), "gs://bucket/d/token_bins", False)
    assert shown["dagster/uri"] == "gs://bucket/d/token_bins"
    assert "path" not in shown


def test_an_artifact_with_a_ledger_shows_its_counts() -> None:
    made = receipt(
        ledger=Ledger(rows_in=10, documents=7, tokens=100, separators=7, dropped={"bad_json": 2, "null_text": 1}),
        sources=({"file": "a"}, {"file": "b"}),
        measured={"cpu_seconds": 4.0},
    )
    shown = build_receipt_metadata(made, "/a", False)
    assert (shown["rows_in"], shown["documents"], shown["tokens"]) == (10, 7, 100)
    assert (shown["dropped"], shown["dropped_bad_json"], shown["dropped_null_text"]) == (3, 2, 1)
    assert (shown["source_files"], shown["tokens_per_cpu_second"]) == (2, 25.0)


def test_counts_come_first_and_counts_that_are_always_zero_are_left_out() -> None:
    ledger = Ledger(rows_in=10, documents=9, tokens=100, separators=9, dropped={"bad_json": 1}, unknown_tokens=2)
    shown = list(build_receipt_metadata(receipt(ledger=ledger), "/a", False))
    assert shown[:5] == ["tokens", "documents", "rows_in", "dropped", "dropped_bad_json"]
    assert "unknown_tokens" in shown
    assert not {"blank_lines", "empty_documents", "special_literals", "dropped_characters"} & {*shown}
    assert shown[-1] == "dagster/uri"
