"""The atlas judges cells correctly, and its page shows the current results of this project's own templates."""

import pytest

from dataprep_assets_tests.tools.atlas.__main__ import PAGE
from dataprep_assets_tests.tools.atlas.cells import FULL, PART, REFUSED, WRONG, judge
from dataprep_assets_tests.tools.atlas.kinds import KINDS
from dataprep_assets_tests.tools.atlas.page import table_of
from dataprep_assets_tests.tools.atlas.readings import TemplateReadings, read_template
from dataprep_assets_tests.tools.atlas.template_folder import own_templates, write_tokenizer_of

PLAIN, TWO_TURNS = KINDS[:2]


@pytest.fixture(scope="module")
def readings(tmp_path_factory: pytest.TempPathFactory) -> list[TemplateReadings]:
    folder = tmp_path_factory.mktemp("atlas")
    return [read_template(write_tokenizer_of(name, text, folder / name)) for name, text in own_templates().items()]


def test_a_cell_is_judged_by_the_texts_in_and_outside_the_loss() -> None:
    right = [("QQone", False), ("AAone<|im_end|>", True)]
    assert judge(PLAIN, [right], []).verdict == FULL
    assert judge(PLAIN, [], ["lost_in_template: call"]).verdict == REFUSED
    assert judge(TWO_TURNS, [right], ["after_last_answer"]).verdict == PART
    for wrong in (
        [],
        [("AAone", True)],
        [("QQone", True), ("AAone", True)],
        [("QQone", False), ("AAone", True), ("AAone", True)],
        [("QQone", False), ("AAone", False)],
        [*right, ("<|im_end|>", True)],
    ):
        assert judge(PLAIN, [wrong] if wrong else [], []).verdict == WRONG


def test_no_template_of_this_project_loses_a_text_silently(readings: list[TemplateReadings]) -> None:
    for one in readings:
        assert not one.refusal
        assert {name: cell for name, cell in one.cells.items() if cell.verdict == WRONG} == {}
        assert one.cells["plain"].verdict == FULL


def test_the_page_has_the_rows_of_this_projects_templates(readings: list[TemplateReadings]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert "\n".join(table_of(readings, {})) in page


def test_the_page_has_a_limited_length() -> None:
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) < 100
