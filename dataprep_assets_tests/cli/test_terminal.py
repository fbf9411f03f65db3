"""The command in a terminal: its first line, the end of a run, and the output after Ctrl-C."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from dataprep_assets.project_template import write_project
from dataprep_assets.screen import MAX_LINES, count_rows
from dataprep_assets_tests.cli.commands import environment
from dataprep_assets_tests.cli.nested_project import CORPUS, write_corpus
from dataprep_assets_tests.cli.terminal import CTRL_C, Terminal

pytestmark = pytest.mark.slow


def test_ctrl_c_during_a_run_prints_one_line_and_the_next_run_resumes(tmp_path: Path) -> None:
    project = tmp_path / "their-data"
    write_project(project)
    variables = environment(tmp_path) | {"PYTHONPATH": str(project), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-m", "dataprep_assets.cli", "--project", str(project), "run", "sample_corpus"]
    with Terminal(command, variables) as terminal:
        terminal.see("snapshot_train")
        terminal.press(CTRL_C)
        assert terminal.end() == 130
        assert "Traceback" not in terminal.seen
        # Keep the text that stays on the screen, after the erased line of the current step.
        left = terminal.seen.rpartition("^C")[2].rpartition("\x1b[2K")[2]
        # Ignore the line of a step that ended at the same moment.
        after = [line for line in left.splitlines() if line.strip() and "✓" not in line]
        message = " ".join(" ".join(after).split())
        assert message.startswith("dataprep: interrupted.")
        assert message.endswith(f"`dataprep {shlex.join(command[3:])}` again to resume")
    with Terminal(command, variables) as terminal:
        assert terminal.end() == 0
        assert "  manifest" not in terminal.seen
        assert "  combined_bins_train" in terminal.seen


VIEWS = CORPUS.replace("[nanogpt]", "[nanogpt, mds]").replace("tokenizer: {", "tokenizer: {engine: tokenizers, ") + (
    "  mds_sequence_length: 8\n  bad_records: {policy: drop, budget: 0.9}\n"
)


def read_end(terminal: Terminal) -> list[str]:
    """Return the lines that stay on the screen below the steps."""
    left = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.seen.rpartition("\x1b[2K")[2]).replace("\r", "")
    return left.removesuffix("\n").split("\n")


def test_the_end_of_a_run_fits_the_screen_and_names_the_next_command(tmp_path: Path) -> None:
    columns = 60
    project = tmp_path / "their-data"
    write_project(project)
    declared = write_corpus(project / "their_data" / "defs" / "pages", "pages", VIEWS)
    with open(declared.with_name("texts") / "train.jsonl", "ab") as rows:
        rows.write(b"{broken\n" * 7)
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(project), "HOME": str(tmp_path)}
    words = [sys.executable, "-c", "from dataprep_assets.entry import main; raise SystemExit(main())", "run", "pages"]
    command = ["/bin/sh", "-c", f"cd {shlex.quote(str(project))} && exec {shlex.join(words)}"]
    with Terminal(command, variables, columns) as terminal:
        terminal.see("pages: loading…")
        assert terminal.end() == 0, terminal.seen
        lines = read_end(terminal)
        steps = max(at for at, line in enumerate(lines) if line.startswith(("✓ ", "! ")))
        below = lines[steps + 1 :]
        assert all(len(line) <= columns or len(line.split()) == 1 for line in below), below
        assert sum(count_rows(line, columns) for line in below) <= MAX_LINES
        assert str(project / ".dataprep") not in "".join(below)
        assert any(" .dataprep/artifacts/pages/" in line for line in below), below
        assert "7 of 47 rows dropped" in "\n".join(below)
        assert "dataprep ui" in below[-1]
    # Make a check of each split fail while the views of the previous run still exist.
    declared.write_text(VIEWS.replace("NAME", "pages") + "  tag: [gopher]\n  drop: {short: words < 90}\n")
    declared.write_text(declared.read_text() + "  budget: {per_rule: {short: 0.1}}\n")
    with Terminal(command, variables, columns) as terminal:
        assert terminal.end() == 1, terminal.seen
        lines = read_end(terminal)
        below = lines[lines.index("pages: failed") :]
        text = " ".join(" ".join(below).split())
        assert [line for line in lines if line.startswith("✗ ")]
        assert text.count("check within_budget") == 2, "once for each split"
        assert "lost: " in text
        assert "mds_tail" not in text, "the views are of an earlier run"
        assert sum(count_rows(line, columns) for line in below) <= MAX_LINES
        assert text.endswith("run `dataprep run pages` again")
