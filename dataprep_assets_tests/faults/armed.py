"""Run a process that gets a signal at one of its own write points (`kill_points`), and read the log of passed
points.
"""

import json
import os
import shutil
from pathlib import Path
from signal import SIGKILL, Signals
from typing import Literal

from dataprep_assets_tests.faults import kill_points

Role = Literal["parent", "worker", "run"]


def make_armed_environment(
    home: Path, root: Path, role: Role = "parent", at: int = 0, signal: Signals = SIGKILL, hits: int = 1
) -> dict[str, str]:
    """Return the environment of a Python process that gets a signal at its write point `at` below `root` (0: never).

    Creates `home`, which contains its log. If the role is a worker, which a run replaces after it dies, the first
    `hits` workers that reach this point get the signal. In the role of the run, the first worker and its parent get it.
    """
    home.mkdir(parents=True)
    shutil.copy(kill_points.__file__, home / "sitecustomize.py")
    log = home / "log"
    log.touch()
    plan = {"root": str(root), "log": str(log), "role": role, "at": at, "signal": signal, "hits": hits}
    (home / "kill_plan.json").write_text(json.dumps(plan))
    checkout = Path(kill_points.__file__).parents[2]
    path = os.pathsep.join([str(home), str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "DAGSTER_DISABLE_TELEMETRY": "yes"}


def read_log(home: Path, role: Role | None = None) -> list[str]:
    """Return the lines of its log: `role pid number what path`."""
    lines = (home / "log").read_text().splitlines()
    return [line for line in lines if role is None or line.startswith(f"{role} ")]
