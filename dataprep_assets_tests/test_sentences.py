"""Sentences keep the types of their numbers wherever they go in this project, and lose them only to plain texts."""

import copy
import json
import pickle

import pytest
from dataprep_assets.graph.small_cells import SmallCells

from dataprep_assets.errors import FormatError, together
from dataprep_assets.graph.finding import Finding, accepted, verdict
from dataprep_assets.sentences import (
    Sentence,
    Span,
    number_of,
    plain,
    safe,
    safe_number_of,
    sentence,
    spans_of,
    typed,
)

CELLS = SmallCells(11)
ROW = sentence(f"row {safe(3)} of {number_of(4, 'note')}, 5")


def test_a_sentence_is_its_text_with_the_places_of_what_is_typed() -> None:
    assert ROW == "row 3 of 4 notes, 5"
    assert isinstance(ROW, Sentence)
    assert ROW.spans == (Span(4, 5), Span(9, 16, 4, "notes"))
    assert CELLS.text(ROW) == "row 3 of < 11 notes, < 11"


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (sentence(f"a.bin: {typed(ROW)}!"), "a.bin: row 3 of < 11 notes, < 11!"),
        (ROW + "; 6", "row 3 of < 11 notes, < 11; < 11"),
        ("6; " + ROW, "< 11; row 3 of < 11 notes, < 11"),
        (ROW + "; " + ROW[:5], "row 3 of < 11 notes, < 11; row 3"),
        (ROW[4:], "3 of < 11 notes, < 11"),
        (pickle.loads(pickle.dumps(ROW)), "row 3 of < 11 notes, < 11"),
        (copy.deepcopy(ROW), "row 3 of < 11 notes, < 11"),
        (str(ROW), "row 3 of < 11 notes, < 11"),
        (sentence(ROW), "row 3 of < 11 notes, < 11"),
        (str(FormatError(f"row {safe(3)}: {typed(FormatError(ROW))}")), "row 3: row 3 of < 11 notes, < 11"),
        (str(pickle.loads(pickle.dumps(FormatError(ROW)))), "row 3 of < 11 notes, < 11"),
        (str(together([FormatError(ROW)] * 2)), " | ".join(["2 files: row 3 of < 11 notes, < 11", CELLS.text(ROW)])),
        (verdict([ROW], "", "Do it").summary, "row 3 of < 11 notes, < 11. Do it."),
        (verdict([], f"{safe(3)} rows", "").summary, "3 rows"),
        (accepted(Finding(passed=False, summary=ROW), "why").summary, "Accepted: why. row 3 of < 11 notes, < 11"),
        (sentence(safe_number_of(1, "shard")), "1 shard"),
        (sentence(safe("2 lines\nof 3")), "2 lines\nof 3"),
    ],
)
def test_types_stay(made: str, text: str) -> None:
    assert CELLS.text(made) == text


@pytest.mark.parametrize("made", [f"at {ROW}", ROW.upper(), ", ".join([ROW, "x"]), ROW[::-1]])
def test_what_forgets_a_type_hides_the_number(made: str) -> None:
    assert not {"3", "4", "5"} & set(CELLS.text(made))


def test_a_count_that_is_cut_is_hidden_and_tells_no_singular() -> None:
    one = sentence(f"of {number_of(1, 'patient')}")
    assert CELLS.text(one) == "of < 11 patients"
    assert CELLS.text(one[:5]) == "of < 11 "
    assert f"none {one}" == "none of 1 patients", "without its type"
    assert CELLS.text(f"none {one}") == "none of < 11 patients"
    assert SmallCells(11, rounded=True).text(sentence(number_of(1234, "note"))) == "about 1,000 notes"


def test_texts_of_others_cannot_say_that_they_are_safe() -> None:
    said = sentence(f"{typed('3')} and {typed(str(ValueError('4')))}")
    assert CELLS.text(said) == "< 11 and < 11"


def test_a_sentence_can_be_kept_as_json() -> None:
    kept = json.loads(json.dumps({"text": ROW, "typed": spans_of(ROW)}))
    again = Sentence(kept["text"], (Span(*one) for one in kept["typed"]))
    assert again.spans == ROW.spans  # type: ignore[attr-defined]
    assert type(plain(ROW)) is str
    assert spans_of("plain") == []
