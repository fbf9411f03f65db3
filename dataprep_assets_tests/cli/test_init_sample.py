"""`dataprep init --sample`: `dataprep check` accepts the project of each sample, and it runs as printed."""

import re
from pathlib import Path

import pytest

from dataprep_assets.declarations import read_component
from dataprep_assets.project_template import Sample
from dataprep_assets_tests.cli.commands import dataprep


def create_project(folder: Path, sample: str) -> tuple[Path, list[str]]:
    """Create a project, and return it with the names in the `dataprep run` line that `init` prints."""
    root = folder / f"begun_{sample}"
    done = dataprep(folder, "init", str(root), "--sample", sample)
    assert done.returncode == 0, done.stderr
    (line,) = re.findall(r"^ *dataprep run (.*)$", done.stdout, re.MULTILINE)
    return root, line.split()


@pytest.mark.parametrize("sample", [one.value for one in Sample])
def test_the_declarations_of_each_sample_are_valid_in_their_own_project(tmp_path: Path, sample: str) -> None:
    root, names = create_project(tmp_path, sample)
    checked = dataprep(tmp_path, "--project", str(root), "check", *names, project=root)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "dataprep_assets" not in (root / "README.md").read_text().partition("```")[2].partition("dg scaffold")[0]
    declared = "".join(path.read_text() for path in root.rglob("defs.yaml"))
    assert "../../../../.dataprep" not in declared, "outside of the project"
    component = read_component(root / root.name / "defs" / names[-1] / "defs.yaml")
    readme = (root / "README.md").read_text().splitlines()
    (scaffold,) = (line for line in readme if line.startswith("dg scaffold"))
    assert scaffold.split()[3] == f"dataprep_assets.components.{component}"
    assert f"dataprep run {' '.join(names)}" in readme


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["chats", "rl", "tasks"])
def test_a_sample_runs_as_printed(tmp_path: Path, sample: str) -> None:
    root, names = create_project(tmp_path, sample)
    ran = dataprep(tmp_path, "run", *names, project=root)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert dataprep(tmp_path, "status", *names, project=root).returncode == 0


def test_an_unknown_sample_lists_the_available_ones(tmp_path: Path) -> None:
    done = dataprep(tmp_path, "init", str(tmp_path / "begun"), "--sample", "chat")
    assert done.returncode == 2
    assert all(f"'{one.value}'" in done.stderr for one in Sample)
    assert "Value error" not in done.stderr
    assert not (tmp_path / "begun").exists()


def test_an_existing_project_gets_no_other_sample(tmp_path: Path) -> None:
    root, _ = create_project(tmp_path, "corpus")
    done = dataprep(tmp_path, "init", str(root), "--deploy", "slurm", "--sample", "notes")
    assert done.returncode == 2
    assert "--sample" in done.stderr
    assert not (root / "deploy").exists()
