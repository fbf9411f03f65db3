"""`dataprep` without a command, `dataprep list` and `dataprep show` before a run and with a broken declaration."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataprep_assets.cli import main
from dataprep_assets.cli.support import project
from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets.project_template import write_project
from dataprep_assets_tests.messages import assert_names

CLEAN = ("DATAPREP_PROJECT", "DATAPREP_STORAGE", "DATAPREP_ROOT")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project of `dataprep init` with two more datasets, one of them broken."""
    folder = tmp_path_factory.mktemp("list") / "listed_project"
    write_project(folder)
    defs = folder / "listed_project" / "defs"
    good = (defs / "sample_corpus" / "defs.yaml").read_text()
    for name, old, new in (("broken", "splits:", "spilts:"), ("other", "path: ./data", "path: ../sample_corpus/data")):
        (defs / name).mkdir()
        text = good.replace("dataset: sample_corpus", f"dataset: {name}")
        (defs / name / "defs.yaml").write_text(text.replace(old, new))
    return folder


@pytest.fixture(autouse=True)
def in_project(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in CLEAN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DAGSTER_HOME", str(root / ".dagster"))
    monkeypatch.setattr(project, "_chosen", [])
    monkeypatch.chdir(root)
    project.current_project.cache_clear()
    yield
    project.current_project.cache_clear()


def test_without_a_command_the_datasets_and_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  sample_corpus  TokenizedCorpus" in lines
    for command in ("dataprep list", "dataprep run broken", "dataprep show broken", "dataprep --help"):
        assert f"  {command}" in lines
    assert "  dataprep ui" in lines


def test_outside_of_a_project_the_message_says_how_to_create_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([]) == 0
    out = capsys.readouterr().out
    assert_names(out, tmp_path)
    assert "  dataprep init my-data" in out


def test_a_broken_declaration_is_one_row_and_other_datasets_show_their_state(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list"]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split() == ["dataset", "component", "state", "why"]
    path = root / "listed_project" / "defs" / "broken" / "defs.yaml"
    assert rows[0].startswith(f"broken         TokenizedCorpus  cannot be loaded  {path}:")
    assert_names(rows[0], "spilts", "`splits`")
    assert [row.split(maxsplit=2) for row in rows[1:]] == [
        ["other", "TokenizedCorpus", "never run"],
        ["sample_corpus", "TokenizedCorpus", "never run"],
    ]
    assert main(["list", "nonesuch"]) == 2
    assert "unknown dataset 'nonesuch'" in capsys.readouterr().err


def test_on_a_terminal_the_list_is_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")  # a dumb terminal gets no escape codes
    assert main(["list", "sample_corpus", "broken"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(set(line.strip()) == {"─"} for line in lines), "a line below the heading"
    rows = [line.split() for line in lines]
    assert ["sample_corpus", "TokenizedCorpus", "never", "run"] in rows
    assert any(row[:5] == ["broken", "TokenizedCorpus", "cannot", "be", "loaded"] for row in rows)


def test_a_long_name_is_not_truncated_on_a_narrow_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, folder = "clinical_notes_of_2026_06", tmp_path / "narrow_project"
    write_project(folder)
    declared = folder / "narrow_project" / "defs" / "sample_corpus" / "defs.yaml"
    text = declared.read_text().replace("dataset: sample_corpus", f"dataset: {name}")
    declared.write_text(text.replace("splits:", "spilts:"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.chdir(folder)
    project.current_project.cache_clear()
    for columns in (60, 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(["list"]) == 0
        out = capsys.readouterr().out
        assert name in out.split()
        assert "…" not in out.partition(name)[2]
        # A path that is wider than the terminal has its own line.
        assert all(len(line) <= columns or len(line.split()) == 1 for line in out.splitlines())
        assert any("/defs.yaml:" in word for word in out.split()), "a whole path"


def test_in_this_repository_the_hint_names_a_sample_that_runs_anywhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(PROJECT_ROOT)
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  dataprep run sample_corpus" in lines
    assert "  make ui" in lines


def test_in_json_each_line_is_a_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json", "other"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "dataset": "other",
        "component": "TokenizedCorpus",
        "state": "never run",
        "to_make": None,
        "why": "",
    }


def test_a_dataset_that_never_ran_is_shown_with_its_artifacts_and_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["show", "sample_corpus"]) == 0
    out = capsys.readouterr().out
    assert "* nanogpt_bins" in out
    assert "not planned" in out
    assert out.splitlines()[-1].startswith("never run. Run `dataprep run sample_corpus`")
