"""Make the daemon of a deployment check backfills, finished runs and the queue every two seconds.

Dagster has no setting for its 30 seconds between checks of backfills, and the project's own instance keeps its 120
seconds for finished runs, whose slots are free only then. A copy of this module is the `sitecustomize` of the daemon's
process: see `eager`. It changes no decision of Dagster, only the times at which it checks, so that tests of backfills
and kills end minutes earlier.
"""

import os
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

SECONDS = 2


def make_eager_environment(folder: Path) -> dict[str, str]:
    """Return the environment variable that makes a daemon check more often; the folder gets the files it names."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(__file__, folder / "sitecustomize.py")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


if __name__ == "sitecustomize" and any("dagster-daemon" in word for word in sys.orig_argv):
    controller: Any = import_module("dagster._daemon.controller")
    controller.DEFAULT_DAEMON_INTERVAL_SECONDS = SECONDS
    _create = controller.create_daemon_of_type

    def _create_eager(kind: str, instance: Any) -> Any:
        daemon = _create(kind, instance)
        if kind in ("MONITORING", "QUEUED_RUN_COORDINATOR"):
            daemon.interval_seconds = min(daemon.interval_seconds, SECONDS)
        return daemon

    controller.create_daemon_of_type = _create_eager
