"""The command's own part: its table, and what it wants. The comparisons need clones, which are not there in CI."""

import pytest

from dataprep_assets_tests.tools.parity.__main__ import main
from dataprep_assets_tests.tools.parity.conversations import SHAPES, rows
from dataprep_assets_tests.tools.parity.table import Row, render


def test_a_table_has_a_line_a_row_and_no_column_more() -> None:
    lines = render([Row("sft", "plain", 3, 2, 1, "one | two")]).splitlines()
    assert lines[2:] == ["| sft | plain | 3 | 2 | 1 | one \\| two |"]


def test_without_a_clone_the_command_says_what_it_wants(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "give the folder of at least one original" in capsys.readouterr().err


def test_rows_of_a_shape_are_the_same_each_time_and_differ_among_themselves() -> None:
    for shape in SHAPES:
        assert rows(shape, 5) == rows(shape, 5)
        assert any(row != rows(shape, 1)[0] for row in rows(shape, 5))
