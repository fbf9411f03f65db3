"""The command's table and its requirements. The comparisons need clones, which are not available in CI."""

import pytest

from dataprep_assets_tests.tools.parity.__main__ import main
from dataprep_assets_tests.tools.parity.conversations import SHAPES, rows
from dataprep_assets_tests.tools.parity.table import Row, render


def test_the_table_has_a_line_per_row_and_no_extra_columns() -> None:
    lines = render([Row("sft", "plain", 3, 2, 1, "one | two")]).splitlines()
    assert lines[2:] == ["| sft | plain | 3 | 2 | 1 | one \\| two |"]


def test_without_a_clone_the_command_names_its_requirements(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "give the folder of at least one original" in capsys.readouterr().err


def test_rows_of_a_shape_are_reproducible_and_different_from_each_other() -> None:
    for shape in SHAPES:
        assert rows(shape, 5) == rows(shape, 5)
        assert any(row != rows(shape, 1)[0] for row in rows(shape, 5))
