"""The `dg` command of Dagster, as users of a project run it."""

import subprocess
import sys
from pathlib import Path

__all__ = ["dg"]


def dg(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The real `dg` on a project folder; `-P` and PYTHONPATH make it import that folder's code."""
    import os

    command = [str(Path(sys.executable).parent / "dg"), *arguments]
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
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
