"""The ten lines of docs/corpus-changes.md that append and retract, line by line, on a copy of the project."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets_tests import forked
from dataprep_assets_tests.project import cloned_project

pytestmark = pytest.mark.slow


def tour() -> list[str]:
    """The lines of the block that appends and retracts."""
    blocks = re.findall(
        r"```bash\n(.*?)```", (PROJECT_ROOT / "docs" / "corpus-changes.md").read_text(encoding="utf-8"), re.DOTALL
    )
    (found,) = [block for block in blocks if "dataprep prune" in block]
    return [line.partition("  #")[0].strip() for line in found.splitlines()]


def test_the_tour_does_what_it_says(tmp_path: Path) -> None:
    project = cloned_project(tmp_path / "project")
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(project),
        "DAGSTER_DISABLE_TELEMETRY": "yes",
    }
    assert len(tour()) == 10
    change, *lines = tour()
    folder = project / change.removeprefix("cd ")

    def run(line: str) -> tuple[int, str]:
        first, also, rest = line.partition(" && ")
        if also:
            code, text = run(first)
            return (code, text) if code else run(rest)
        command = re.sub(
            r"\bdataprep (?=run|trace|retract|prune|status)", f"{sys.executable} -m dataprep_assets.cli ", line
        )
        if (words := shlex.split(line))[0] == "dataprep" and not {"|", ">", "<"} & set(words):
            done = forked.run(["-m", "dataprep_assets.cli", *words[1:]], cwd=folder, env=environment)
        else:
            done = subprocess.run(
                command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    assert run("dataprep run sample_corpus")[0] == 0
    said = {line: run(line) for line in lines}
    codes = {line: code for line, (code, _) in said.items() if code}
    assert codes == {"dataprep run sample_corpus --dry-run": 1}, said
    told = [text for _, text in said.values()]
    assert "train-00003" in told[1]
    assert "train-00000" not in told[1]
    assert "train/chunk" in told[3]
    assert "found 1: 2 documents" in told[5]
    assert "in 2 shards" in told[5]
    assert "train-00003" in told[-1]
    assert run("dataprep status sample_corpus") == (0, "sample_corpus: all is up to date\n")
