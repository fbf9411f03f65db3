"""Run Dagster's own daemon over the corpora of a JSON file, on the instance of `deploy/local`."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dataprep_assets_tests.deploy.cluster import DEPLOY, SCRIPTS
from dataprep_assets_tests.deploy.location import DECLARATION
from dataprep_assets_tests.servers import end


@contextmanager
def run_daemon(folder: Path, declarations: Path, root: Path) -> Iterator[Path]:
    """Run a daemon and yield the path of its log, next to the file with its process id.

    Args:
        folder: Gets `home`, `daemon.log` and `daemon.pid`.
        declarations: See `deploy.location`.
        root: The folder for artifacts.
    """
    home, log = folder / "home", folder / "daemon.log"
    home.mkdir()
    shutil.copy(DEPLOY / "local" / "dagster.yaml", home)
    environment = {
        **os.environ,
        DECLARATION: str(declarations),
        "DAGSTER_HOME": str(home),
        "DATAPREP_ROOT": str(root),
        "DAGSTER_DISABLE_TELEMETRY": "yes",
        # Set the path, because the tests are not installed and the daemon runs in a different folder.
        "PYTHONPATH": str(DEPLOY.parent),
    }
    command = [SCRIPTS / "dagster-daemon", "run", "-m", "dataprep_assets_tests.deploy.location"]
    with open(log, "wb") as output:
        running = subprocess.Popen(command, env=environment, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
        (folder / "daemon.pid").write_text(str(running.pid))
        try:
            yield log
        finally:
            end(running)
