"""Small counts of a sensitive dataset are hidden in texts, metadata and tables; what is typed as none of them stays."""

from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.graph.declaration import DatasetDeclaration
from dataprep_assets.graph.shown import Location, Markdown, Table
from dataprep_assets.graph.small_cells import SHOW_ALL, SmallCells, cells_of
from dataprep_assets.sentences import number_of, safe, safe_number_of, sentence

CELLS = SmallCells(11)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("32 notes of 7 patients.", "32 notes of < 11 patients."),
        ("3 of 7 patients", "< 11 of < 11 patients"),
        ("drops {'empty': 3, 'bad_json': 12}, 10 (4)", "drops {'empty': < 11, 'bad_json': 12}, < 11 (< 11)"),
        ("0 retracted, 10,500 notes, 11 records", "0 retracted, 10,500 notes, 11 records"),
        ("filled to 0.9304, 5 %, 5% at 1.0.3 of 2010-1-4, v2", "filled to 0.9304, 5 %, 5% at 1.0.3 of 2010-1-4, v2"),
        ("`head -n 3` shows 3 notes, `seed: 7`", "`head -n 3` shows < 11 notes, `seed: 7`"),
        ("by `a`: 3 of 30 (10.0 %)\n12 of 30 (40 %)", "by `a`: < 11 of 30 (… %)\n12 of 30 (40 %)"),
        ("< 11 patients, 7.27 % of 0.5", "< 11 patients, … % of …"),
        ("5 rows, 4 in shards; row 3 of month 2020-01", "< 11 rows, < 11 in shards; row < 11 of month 2020-01"),
        ("deux patients, 2 Patienten, x=4", "deux patients, < 11 Patienten, x=< 11"),
    ],
)  # fmt: skip
def test_of_a_text_without_types_every_small_number_that_stands_alone_is_hidden(text: str, shown: str) -> None:
    assert CELLS.text(text) == shown
    assert SHOW_ALL.text(text) == text


@pytest.mark.parametrize(
    ("told", "text", "shown"),
    [
        (
            sentence(f"record {safe(3)}, note {safe(2)}: its chunk {safe(1)} is of {number_of(4, 'note')}"),
            "record 3, note 2: its chunk 1 is of 4 notes",
            "record 3, note 2: its chunk 1 is of < 11 notes",
        ),
        (
            sentence(f"{safe(2)} of {safe_number_of(240, 'month')}, {safe_number_of(1, 'shard')}, 8 notes"),
            "2 of 240 months, 1 shard, 8 notes",
            "2 of 240 months, 1 shard, < 11 notes",
        ),
        (
            sentence(f"{number_of(1, 'patient')}: {number_of(1000, 'note')} (1 %), {safe('0.5 kB')}"),
            "1 patient: 1,000 notes (1 %), 0.5 kB",
            "< 11 patients: 1,000 notes (… %), 0.5 kB",
        ),
        (
            sentence(f"{safe(12_345, ',')} bytes\n{number_of(3, 'note')}: 20 %\n{number_of(30, 'note')}: 20 %"),
            "12,345 bytes\n3 notes: 20 %\n30 notes: 20 %",
            "12,345 bytes\n< 11 notes: … %\n30 notes: 20 %",
        ),
    ],
)
def test_of_a_sentence_its_types_say_what_is_hidden(told: str, text: str, shown: str) -> None:
    assert told == text
    assert CELLS.text(told) == shown
    assert SHOW_ALL.text(told) == text
    assert {type(cells.text(told)) for cells in (CELLS, SHOW_ALL)} == {str}


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
        "where": sentence(f"row {safe(7)}"),
        "shards_failed": 2,
        "table": Table([{"split": "val", "rows": 3, "row": 3, "files": 2, "what": "3 patients"}]),
    }
    shown = CELLS.entries(given)
    assert {name: shown[name] for name in given.keys() - {"dagster/row_count", "table"}} == {
        **{name: given[name] for name in ("notes", "none", "files", "bytes", "reused", "pad_id", "fill", "path")},
        "where": "row 7",
        "shards_failed": 2,
        "patients": "< 11",
        "dagster/uri": "file:///a/7",
        "card": Markdown("< 11 patients"),
    }
    assert "dagster/row_count" not in shown, "Dagster wants a number there"
    of_things = CELLS.entries({"splits": Table([{"split": "val", "rows": 3, "shards": 1}])})
    assert of_things == {"splits": Table([{"split": "val", "rows": "< 11", "shards": 1}])}, "not by the entry's name"
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
    told = sentence(f"2,059 notes of 97 patients, {safe('36 of 288')} months, record {safe(412)}, length {safe(2048)}")
    assert cells_of(declared) == CELLS
    for lines, rounded in ((1, True), (10, True), (11, False)):
        listing.write_text("{}\n" * lines)
        cells = cells_of(declared)
        assert cells.rounded is rounded
        if rounded:
            assert cells.text(told) == (
                "about 2,000 notes of about 90 patients, 36 of 288 months, record 412, length 2048"
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
