"""Run the `dataprep` command as a user types it, and other shell lines, each in its own process."""

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets_tests.dg_command import DG
from dataprep_assets_tests.forked import run

_SHELL = frozenset("|><;&$*`(~")
_QUOTED = re.compile(r"""'[^']*'|"[^"$`]*\"""")
_SETS = re.compile(r"(?:\w+=(?:\$\([^)]*\)|\S)* )*")
"""A variable assignment before a command."""
_PROGRAMS = {
    "dataprep": ["-m", "dataprep_assets.cli"],
    "dg": ["-c", DG],
    "dagster": ["-c", "from dagster._cli import main; main()"],
}


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a command that keeps its instance and artifacts in a folder."""
    return {**os.environ, "DAGSTER_HOME": str(folder / "home"), "DATAPREP_ROOT": str(folder / "artifacts")}


def dataprep(
    folder: Path, *arguments: str, project: Path = PROJECT_ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a project until it ends."""
    path = {"PYTHONPATH": str(project)}
    return run(["-m", "dataprep_assets.cli", *arguments], env=environment(folder) | variables | path, cwd=project)


def run_line(
    line: str, folder: Path, environment: Mapping[str, str], *, fork: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a shell line in a folder until it ends.

    With `fork`, a Python program is forked if its line needs no shell except for variable assignments.
    """
    arguments = _arguments(_SETS.sub("", line, count=1)) if fork else None
    if arguments is None:
        return _shell(line, folder, environment)
    if (sets := _SETS.match(line)) is not None and sets[0]:
        listed = _shell(f"{sets[0]}env -0", folder, environment).stdout.split("\0")
        environment = dict(one.split("=", 1) for one in listed if one)
    return run(arguments, cwd=folder, env=environment, timeout=600)


def _shell(line: str, folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    words = ["bash", "-c", line]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False)


def _arguments(line: str) -> list[str] | None:
    """Return Python's arguments for a line without variables; None if it needs a shell or is no Python program."""
    if _SHELL & set(_QUOTED.sub("", line)):
        return None
    program, *words = shlex.split(line)
    if program == "python" and len(words) == 1 and words[0].endswith(".py"):
        return ["-m", words[0].removesuffix(".py")]
    return [*_PROGRAMS[program], *words] if program in _PROGRAMS else None
