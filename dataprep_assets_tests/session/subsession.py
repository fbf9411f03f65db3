"""Run a pytest session in its own process, over test files that a test writes."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
PLUGINS = ("light_process", "dead_worker", "order")


@dataclass(frozen=True)
class Ended:
    """The exit code, output and duration of a session."""

    code: int
    printed: str
    seconds: float


def run_session(folder: Path, files: dict[str, str], *arguments: str, settings: str = "") -> Ended:
    """Write test files, and run them with the plugins of this folder.

    Args:
        folder: The folder of the files.
        files: The text of each file by its name.
        arguments: Further arguments of pytest.
        settings: Lines of its `pytest.ini`.
    """
    (folder / "pytest.ini").write_text(f"[pytest]\nmarkers =\n    slow: slow\n{settings}")
    for name, text in files.items():
        (folder / name).write_text(text)
    ours = [f"dataprep_assets_tests.session.{name}" for name in PLUGINS]
    plugins = [word for name in ("xdist.plugin", "pytest_timeout", *ours) for word in ("-p", name)]
    # Leave out the variables of a surrounding session, which would affect this session, and plugins that load slowly.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    variables |= {"PYTHONPATH": str(CHECKOUT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *plugins, *arguments, str(folder)],
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    return Ended(done.returncode, done.stdout, time.monotonic() - began)
