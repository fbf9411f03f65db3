"""The start-up benchmark runs every command that it names, and prints a line for each. Timing is not tested."""

import pytest

from dataprep_assets_tests.tools.bench import start


@pytest.mark.slow
def test_each_command_is_compared_with_an_import_of_dagster(capsys: pytest.CaptureFixture[str]) -> None:
    assert start.main(["--rounds", "1"]) in (0, 1)
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("dagster ")
    assert [line.rsplit(maxsplit=3)[0].strip() for line in lines[1:]] == list(start.TARGETS)
    assert lines[0].split()[:2] == start.DAGSTER.split()
    assert all(float(line.split()[-3]) > 0 for line in lines[1:])
