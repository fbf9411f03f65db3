"""Run the real `dg` command on a project folder."""

import os
import subprocess
import sys
from pathlib import Path

from dataprep_assets_tests.forked import run

DG = "from dagster_dg_cli.cli import main; main()"
"""The contents of the script `dg`."""


def run_dg(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the real `dg` on a project folder, with a PYTHONPATH that makes it import that folder's code."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "DAGSTER_HOME": "",
        "COLUMNS": "200",
        "DAGSTER_DISABLE_TELEMETRY": "yes",
        "DATAPREP_ROOT": str(folder / "artifacts"),
        "VIRTUAL_ENV": str(Path(sys.executable).parent.parent),
    }
    environment.pop("DAGSTER_HOME")
    return run(["-c", DG, *arguments], cwd=folder, env=environment, timeout=600)
