"""The daemon of a deployment that looks after backfills every two seconds, not every 30, which Dagster has no key for.

A copy of this module is the `sitecustomize` of the daemon's process: see `eager`. It changes no decision of Dagster's,
only when it looks, so a test of a backfill is over minutes earlier.
"""

import os
import shutil
import sys
from pathlib import Path

SECONDS = 2


def eager(folder: Path) -> dict[str, str]:
    """The variable of an environment in which a daemon is eager; the folder gets what it names."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(__file__, folder / "sitecustomize.py")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


if __name__ == "sitecustomize" and any("dagster-daemon" in word for word in sys.orig_argv):
    from dagster._daemon import controller

    controller.DEFAULT_DAEMON_INTERVAL_SECONDS = SECONDS
