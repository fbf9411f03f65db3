"""Small counts of a sensitive dataset are hidden in sentences, metadata and tables; what counts no people stays."""

from typing import Any

import pytest

from dataprep_assets.graph.declaration import DatasetDeclaration
from dataprep_assets.graph.shown import Location, Markdown, Table
from dataprep_assets.graph.small_cells import SHOW_ALL, SmallCells, cells_of

CELLS = SmallCells(11)


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("32 notes of 7 patients.", "32 notes of < 11 patients."),
        ("3 of 7 patients", "< 11 of < 11 patients"),
        ("1 patients of 2010-01 are in several cohorts: 2", "< 11 patients of 2010-01 are in several cohorts: < 11"),
        ("drops {'empty': 3, 'bad_json': 12}, 10 (4)", "drops {'empty': < 11, 'bad_json': 12}, < 11 (< 11)"),
        ("0 retracted, 10,500 notes, 11 records", "0 retracted, 10,500 notes, 11 records"),
        ("record 3, note 2: its chunk 1 is not there", "record 3, note 2: its chunk 1 is not there"),
        ("2 of 240 months, 4 shards, 3 declared files, 8 kB", "2 of 240 months, 4 shards, 3 declared files, 8 kB"),
        ("filled to 0.9304, 5 %, 5% at 1.0.3 of 2010-1-4, v2", "filled to 0.9304, 5 %, 5% at 1.0.3 of 2010-1-4, v2"),
        ("4 note files", "< 11 note files"),
    ],
)  # fmt: skip
def test_sentences_hide_counts_of_people_and_keep_the_rest(sentence: str, shown: str) -> None:
    assert CELLS.text(sentence) == shown
    assert SHOW_ALL.text(sentence) == sentence


def test_metadata_hide_small_numbers_and_dagsters_own_go() -> None:
    given: dict[str, Any] = {
        "patients": 7,
        "notes": 11,
        "none": 0,
        "files": 3,
        "bytes": 5,
        "reused": True,
        "pad_id": "5",
        "fill": 0.5,
        "dagster/row_count": 7,
        "dagster/uri": "file:///a/7",
        "path": Location("/a/7"),
        "card": Markdown("7 patients"),
        "table": Table([{"split": "val", "rows": 3, "row": 3, "files": 2, "what": "3 patients"}]),
    }
    shown = CELLS.entries(given)
    assert {name: shown[name] for name in given.keys() - {"dagster/row_count", "table"}} == {
        **{name: given[name] for name in ("notes", "none", "files", "bytes", "reused", "pad_id", "fill", "path")},
        "patients": "< 11",
        "dagster/uri": "file:///a/7",
        "card": Markdown("< 11 patients"),
    }
    assert "dagster/row_count" not in shown, "Dagster wants a number there"
    assert shown["table"] == Table([{"split": "val", "rows": "< 11", "row": 3, "files": 2, "what": "< 11 patients"}])
    assert SHOW_ALL.entries(given) == given


def test_the_threshold_is_declared_and_holds_for_sensitive_datasets_alone() -> None:
    assert cells_of(DatasetDeclaration(dataset="d", sensitive=True)).count(10) == "< 11"
    assert cells_of(DatasetDeclaration(dataset="d", sensitive=True, small_cell=5)).count(4) == "< 5"
    assert cells_of(DatasetDeclaration(dataset="d", sensitive=True, small_cell=5)).count(5) == "5"
    assert cells_of(DatasetDeclaration(dataset="d")).count(1) == "1"
