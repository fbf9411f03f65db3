"""The command in a terminal: what a person sees who presses Ctrl-C."""

import os
import sys
from pathlib import Path

import pytest

from dataprep_assets.project_template import write_project
from dataprep_assets_tests.cli.commands import environment
from dataprep_assets_tests.cli.terminal import CTRL_C, Terminal

pytestmark = pytest.mark.slow


def test_ctrl_c_during_a_run_is_one_line_and_the_next_run_goes_on(tmp_path: Path) -> None:
    project = tmp_path / "their-data"
    write_project(project)
    variables = environment(tmp_path) | {"PYTHONPATH": str(project), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-m", "dataprep_assets.cli", "--project", str(project), "run", "sample_corpus"]
    with Terminal(command, variables) as terminal:
        terminal.see("snapshot_train")
        terminal.press(CTRL_C)
        assert terminal.end() == 130
        assert "Traceback" not in terminal.seen
        # what stays on the screen: behind the line of the step at work, which is erased
        left = terminal.seen.rpartition("^C")[2].rpartition("\x1b[2K")[2]
        after = [line for line in left.splitlines() if line.strip()]
        assert len(after) == 1
    with Terminal(command, variables) as terminal:
        assert terminal.end() == 0
        assert "  manifest" not in terminal.seen
        assert "  combined_bins_train" in terminal.seen
