"""Run processes with a folder of their own, like a machine's disk: empty at first, and deleted with the last process.

Other processes cannot see its contents, except by `/proc/<pid>/root`. It uses Linux' mount namespaces, which only root
may create.
"""

import shlex
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest


def wrap_command(folder: Path, command: Sequence[str]) -> list[str]:
    """Return the command that runs with its own folder; its child processes share that folder."""
    mounted = f'mount -t tmpfs tmpfs {shlex.quote(str(folder))} && exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", mounted, "sh", *command]


def require_own_disks(folder: Path) -> None:
    """Skip the test if this machine does not support it."""
    with suppress(OSError):
        if subprocess.run(wrap_command(folder, ["true"]), check=False, capture_output=True).returncode == 0:
            return
    pytest.skip("no nodes with disks of their own: nobody may mount here (`unshare --mount`)")


def find_own_folder(pid: int, folder: Path) -> Path:
    """Return the folder as a process sees it."""
    return Path(f"/proc/{pid}/root{folder}")
