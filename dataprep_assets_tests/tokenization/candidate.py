"""The location of the release candidate of tokenizers 1.0 (`make candidate`), and functions that run code with it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "build" / "tokenizers-next"
needed = pytest.mark.skipif(
    not (FOLDER / "tokenizers").exists(), reason="tokenizers 1.0 is not in build/tokenizers-next (make candidate)"
)


def environment() -> dict[str, str]:
    """Return the environment of a process that imports the release candidate."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER), str(FOLDER.parents[1])])}


def run(code: str, *arguments: str) -> str:
    """Return the output of code in its own process."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment(), check=True, capture_output=True, text=True).stdout
