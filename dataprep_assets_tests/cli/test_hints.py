"""The message about a wrong option points to the help and to options that exist."""

import re

import pytest
import typer

from dataprep_assets.cli import create_app, main
from dataprep_assets.engine.trace.trace import TraceQuery
from dataprep_assets.errors import ConfigError

OPTIONS = {
    option
    for command in typer.main.get_command(create_app()).commands.values()  # type: ignore[attr-defined]
    for parameter in command.params
    for option in parameter.opts
}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["run", "--worker", "2"], "dataprep run --help"),
        (["trace"], "dataprep trace --help"),
        (["release", "nothing"], "dataprep release --help"),
        (["runn"], "dataprep --help"),
        (["--prject", "x", "list"], "dataprep --help"),
    ],
)
def test_a_wrong_word_points_to_the_help_of_its_command(
    given: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(given) == 2
    assert f"`{shown}`" in capsys.readouterr().err


def test_a_suggestion_names_only_options_that_exist() -> None:
    with pytest.raises(ConfigError) as raised:
        TraceQuery()
    ways = str(raised.value).removeprefix("trace: use exactly one of ").split(", ")
    named = [re.findall(r"--[a-z-]+", way) or ["--" + way.replace("_", "-")] for way in ways]
    assert {option for (option,) in named} <= OPTIONS
