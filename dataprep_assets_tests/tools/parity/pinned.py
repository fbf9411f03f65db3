"""A folder with the version of a package that an original pins, for a process of its own.

Ours wants transformers 5, which an original may exclude: the two cannot be loaded by one process. pip installs theirs
once into `build/parity/`; a module of this package is then run with that folder before ours.
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
    """The folder with `package` as the `pyproject.toml` of `clone` asks for it, made if it is not there yet."""
    project = tomllib.loads((clone / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (requirement,) = {line for line in project["dependencies"] if line.startswith(package)}
    return installed(requirement)


def installed(*requirements: str) -> Path:
    """The folder with these requirements and what they need, made if it is not there yet."""
    folder = BUILD / "+".join(requirements).replace(" ", "")
    if not folder.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
            made = Path(scratch) / "made"
            subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", made, *requirements], check=True)
            made.rename(folder)
    return folder


def run_apart(module: str, job: Any, paths: Sequence[Path]) -> Any:
    """What a module of this package answers in a process of its own that finds packages in `paths` first.

    It reads `job` as JSON from its standard input, and writes its answer as JSON into the file that its only argument
    names. Raises CalledProcessError if it fails; what it prints is seen.
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
