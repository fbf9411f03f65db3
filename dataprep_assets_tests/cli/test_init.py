"""`dataprep init` with folders that a shell must quote, and with names that Python already uses."""

import shlex
import sys
from pathlib import Path

import pytest

from dataprep_assets.cli import main


def test_the_printed_command_enters_a_folder_with_a_space(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my data"
    assert main(["init", str(folder)]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("  cd "))
    assert shlex.split(line) == ["cd", str(folder)]
    assert (folder / "my_data" / "definitions.py").is_file()


@pytest.mark.parametrize("name", ["class", "Import", "json", "winreg", "dagster", "yaml", "google", "ray", "boto3"])
def test_a_name_that_python_uses_is_refused_and_nothing_is_written(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(tmp_path / name)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"dataprep: {tmp_path / name}: {name.lower()} is ")
    assert len(told.splitlines()) == 1
    assert not (tmp_path / name).exists()


def test_a_sample_without_its_extra_prints_the_installation_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "array_record", None)
    assert main(["init", str(tmp_path / "ward"), "--sample", "notes"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    install = lines.index("pip install 'dataprep-assets[array_record]'")
    assert lines[install + 1] == "dataprep run sample_notes"
    monkeypatch.undo()
    assert main(["init", str(tmp_path / "shop")]) == 0
    assert "pip install" not in capsys.readouterr().out
