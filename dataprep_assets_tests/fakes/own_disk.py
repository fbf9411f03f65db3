"""Processes with a folder of their own, as a machine has its disk: empty at first, and gone with the last of them.

Others do not see into it, but for `/proc/<pid>/root`. Linux' mount namespaces: root alone may make them.
"""

import shlex
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest


def with_own(folder: Path, command: Sequence[str]) -> list[str]:
    """The command, for which the folder is its own; so it is for what it starts."""
    mounted = f'mount -t tmpfs tmpfs {shlex.quote(str(folder))} && exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", mounted, "sh", *command]


def require_own_disks(folder: Path) -> None:
    """Skip the test where this machine cannot."""
    with suppress(OSError):
        if subprocess.run(with_own(folder, ["true"]), check=False, capture_output=True).returncode == 0:
            return
    pytest.skip("no nodes with disks of their own: nobody may mount here (`unshare --mount`)")


def seen_by(pid: int, folder: Path) -> Path:
    """The folder as a process sees it."""
    return Path(f"/proc/{pid}/root{folder}")
