"""Small counts of a sensitive dataset are hidden in sentences, metadata and tables; what counts no people stays."""

from pathlib import Path
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
        ("1 patient is in 2 months, 1 retracted note", "< 11 patients are in 2 months, < 11 retracted notes"),
        ("record 1, note 3; row 1 note 3; 1 note file", "record 1, note 3; row 1 note 3; < 11 note file"),
        ("`head -n 3` shows 3 notes, `seed: 7`", "`head -n 3` shows < 11 notes, `seed: 7`"),
        ("by `a`: 3 of 30 (10.0 %)\n12 of 30 (40 %)", "by `a`: < 11 of 30 (… %)\n12 of 30 (40 %)"),
        ("< 11 patients, 7.27 % of 0.5", "< 11 patients, … % of …"),
        ("the command ended with exit code 3", "the command ended with exit code 3"),
        ("5 rows, 4 in shards; 3 in month 2020-01", "< 11 rows, < 11 in shards; < 11 in month 2020-01"),
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


def test_a_row_with_a_small_count_has_no_other_count_that_gives_it_away() -> None:
    shown = CELLS.row({"month": "2010-01", "notes": 3, "tokens": 4321, "shards": 40, "none": 0, "fill": 0.5})
    assert shown == {"month": "2010-01", "notes": "< 11", "tokens": "withheld", "shards": 40, "none": 0, "fill": "…"}
    whole = {"month": "2010-02", "notes": 30, "tokens": 4321}
    assert CELLS.row(whole) == whole
    rule = {"rule": "short", "documents": 7, "documents_%": 18.919, "bytes": 350, "bytes_%": 3.471}
    assert CELLS.row(rule) == {
        "rule": "short",
        "documents": "< 11",
        "documents_%": "…",
        "bytes": "withheld",
        "bytes_%": "…",
    }


def test_metadata_with_a_small_count_has_no_share() -> None:
    shown = {"rows": 5, "kept_%": 80.0, "seconds": 1.5, "source_files": 3, "dropped_share": 0.2}
    assert CELLS.entries(shown) == {
        "rows": "< 11",
        "kept_%": "…",
        "seconds": 1.5,
        "source_files": 3,
        "dropped_share": "…",
    }
    large = {"rows": 50, "kept_%": 80.0}
    assert CELLS.entries(large) == large


def test_totals_are_rounded_as_long_as_a_retraction_list_is_short(tmp_path: Path) -> None:
    listing, declared = tmp_path / "retracted.jsonl", Listing(dataset="d", sensitive=True)
    declared = declared.model_copy(update={"retractions": listing})
    told = "2,059 notes of 97 patients, 36 of 288 months, record 412, max_target_length=2048"
    assert cells_of(declared) == CELLS
    for lines, rounded in ((1, True), (10, True), (11, False)):
        listing.write_text("{}\n" * lines)
        cells = cells_of(declared)
        assert cells.rounded is rounded
        if rounded:
            assert cells.text(told) == (
                "about 2,000 notes of about 90 patients, 36 of 288 months, record 412, max_target_length=2048"
            )
            assert cells.entries({"notes": 2059, "bytes": 5, "notes left": 3}) == {
                "notes": 2000,
                "bytes": 5,
                "notes left": "< 11",
            }
            assert cells.text("36 rows, filled to 0.7964, 12.5 % of 1.0.3, 0.4 s") == (
                "about 30 rows, filled to about 0.7, about 10 % of 1.0.3, about 0.4 s"
            )
            assert cells.entries({"fill": 0.7964, "whole": 1.0, "none": 0.0}) == {
                "fill": 0.7,
                "whole": 1.0,
                "none": 0.0,
            }
            assert cells.text("< 11 patients") == "< 11 patients"
            # what one patient had cannot be told from the totals before and after
            assert {cells.text(f"{2059 - of:,} notes") for of in range(1, 11)} == {"about 2,000 notes"}
        else:
            assert cells.text(told) == told
    assert cells_of(declared.model_copy(update={"sensitive": False})) == SHOW_ALL


class Listing(DatasetDeclaration):
    """A dataset with a retraction list."""

    retractions: Path | None = None


def test_what_its_writer_has_made_ready_and_commands_are_shown_as_they_are() -> None:
    rounded = SmallCells(11, rounded=True)
    page = "# notes\n\nsource 1: < 11 rows; shards 0 to 3; version 2"
    assert rounded.entries({"card": Markdown(page, ready=True)}) == {"card": Markdown(page, ready=True)}
    assert rounded.text("not set; `openssl rand -hex 32` makes one of 256") == (
        "not set; `openssl rand -hex 32` makes one of about 200"
    )
