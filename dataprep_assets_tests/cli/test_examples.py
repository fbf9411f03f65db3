"""The examples in each command's help: the real parser accepts all, and the cheap ones run in a new project."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from dataprep_assets import cli
from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.examples import EXAMPLES
from dataprep_assets.project_template import write_project

COMMANDS = get_command(cli.create_app()).commands  # type: ignore[attr-defined]
CHEAP = {
    "list": 0,
    "show": 0,
    "check": 0,
    "plan": 0,
    "status": 1,
    "preflight": 0,
}
"""Command → exit code of its first example in a project in which nothing has run."""


@pytest.fixture
def new_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "example_project"
    write_project(folder)
    for name in ("DATAPREP_PROJECT", "DATAPREP_STORAGE", "DATAPREP_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DAGSTER_HOME", str(folder / ".dagster"))
    monkeypatch.setattr(project, "_chosen", [])
    monkeypatch.chdir(folder)
    project.current_project.cache_clear()
    yield folder
    project.current_project.cache_clear()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_help_ends_with_examples_that_the_parser_accepts(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--help"]) == 0
    _, heading, shown = capsys.readouterr().out.partition("Examples:\n")
    assert heading
    lines = [line.strip() for line in shown.splitlines() if line.strip()]
    assert lines == [*EXAMPLES[name]]
    assert 2 <= len(lines) <= 4
    for line in lines:
        program, command, *words = shlex.split(line)
        assert (program, command) == ("dataprep", name)
        COMMANDS[name].make_context(name, words)  # the parser raises if an option or argument is unknown or missing


def test_the_cheap_examples_run_in_a_new_project(new_project: Path) -> None:
    codes = {}
    for name in CHEAP:
        _, *words = shlex.split(EXAMPLES[name][0])
        codes[name] = cli.main(words)
    assert codes == CHEAP


def test_the_example_of_init_creates_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, *words = shlex.split(EXAMPLES["init"][0])
    assert cli.main(words) == 0
    assert (tmp_path / "my-data" / "pyproject.toml").is_file()
