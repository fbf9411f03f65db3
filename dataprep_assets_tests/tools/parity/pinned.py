"""Install the version of a package that an upstream program pins, in a folder for a separate process.

We require transformers 5, which a program may exclude, and one process cannot load both. pip installs theirs once into
`build/parity/`; a module of this package then runs with that folder first.
"""

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dataprep_assets_tests.tools.parity import __name__ as _here

BUILD = Path(__file__).parents[3] / "build" / "parity"


def pinned(clone: Path, package: str) -> Path:
    """Return the folder with `package` as the `pyproject.toml` of `clone` requires it; create it if missing."""
    project = tomllib.loads((clone / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (requirement,) = {line for line in project["dependencies"] if line.startswith(package)}
    return installed(requirement)


def installed(*requirements: str) -> Path:
    """Return the folder with these requirements and their dependencies; create it if missing."""
    folder = BUILD / "+".join(requirements).replace(" ", "")
    if not folder.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
            made = Path(scratch) / "made"
            subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", made, *requirements], check=True)
            made.rename(folder)
    return folder


def run_apart(module: str, job: Any, paths: Sequence[Path]) -> Any:
    """Return the answer of a module of this package in its own process, which searches packages in `paths` first.

    The module reads `job` as JSON from standard input, and writes its answer as JSON to the file named by its only
    argument. Raises CalledProcessError if it fails; its output is visible.
    """
    found = os.pathsep.join([*map(str, paths), str(Path(__file__).parents[3])])
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "answer.json"
        subprocess.run(
            [sys.executable, "-m", f"{_here}.{module}", str(answer)],
            input=json.dumps(job).encode(),
            env={**os.environ, "PYTHONPATH": found},
            check=True,
        )
        return json.loads(answer.read_bytes())
