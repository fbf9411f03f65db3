"""The `dataprep` command as a person types it, in a process of its own."""

import os
import subprocess
from pathlib import Path

from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets_tests.forked import run


def environment(folder: Path) -> dict[str, str]:
    """The environment of a command whose instance and artifacts are in a folder."""
    return {**os.environ, "DAGSTER_HOME": str(folder / "home"), "DATAPREP_ROOT": str(folder / "artifacts")}


def dataprep(
    folder: Path, *arguments: str, project: Path = PROJECT_ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command of a project to its end."""
    path = {"PYTHONPATH": str(project)}
    return run(["-m", "dataprep_assets.cli", *arguments], env=environment(folder) | variables | path, cwd=project)
