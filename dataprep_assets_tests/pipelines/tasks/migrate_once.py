"""Run migrations to be killed, each in a child of this process, so that the interpreter starts only once.

`python -m … MODE` reads `[home, log, at]` as JSON lines. For each line it migrates Copa of the project in `home` in a
fork that is killed at write point `at` (0: never), and prints the child's exit code.
"""

import json
import os
import signal
import sys
from pathlib import Path

from dataprep_assets.pipelines.tasks.declaration import TaskMigrationDeclaration
from dataprep_assets_tests.faults import kill_points
from dataprep_assets_tests.pipelines.tasks.trees import Project


def declaration(project: Project, mode: str) -> TaskMigrationDeclaration:
    """Return Copa's latest version, on top of an earlier migration."""
    return project.declared({"Copa": {"version": "latest", "mode": mode}})


def main(mode: str) -> None:
    for line in sys.stdin:
        home, log, at = json.loads(line)
        if (child := os.fork()) == 0:
            plan = {"root": home, "log": log, "role": "parent", "at": at, "signal": signal.SIGKILL}
            kill_points._install(kill_points._Points(plan))
            project = Project(Path(home))
            project.migrate(declaration(project, mode))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
