"""The `dataprep` command as a person types it, and other lines of a shell, in processes of their own."""

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
"""What sets variables for a command, before it."""
_PROGRAMS = {
    "dataprep": ["-m", "dataprep_assets.cli"],
    "dg": ["-c", DG],
    "dagster": ["-c", "from dagster._cli import main; main()"],
}


def environment(folder: Path) -> dict[str, str]:
    """The environment of a command whose instance and artifacts are in a folder."""
    return {**os.environ, "DAGSTER_HOME": str(folder / "home"), "DATAPREP_ROOT": str(folder / "artifacts")}


def dataprep(
    folder: Path, *arguments: str, project: Path = PROJECT_ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command of a project to its end."""
    path = {"PYTHONPATH": str(project)}
    return run(["-m", "dataprep_assets.cli", *arguments], env=environment(folder) | variables | path, cwd=project)


def run_line(
    line: str, folder: Path, environment: Mapping[str, str], *, fork: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell in a folder to its end.

    With `fork`, a program of Python that needs no shell, but for what sets variables, is forked.
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
    """Python's arguments for a line without variables; None where it needs a shell, or is no program of Python."""
    if _SHELL & set(_QUOTED.sub("", line)):
        return None
    program, *words = shlex.split(line)
    if program == "python" and len(words) == 1 and words[0].endswith(".py"):
        return ["-m", words[0].removesuffix(".py")]
    return [*_PROGRAMS[program], *words] if program in _PROGRAMS else None
