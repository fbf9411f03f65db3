"""Runs a command of the user's that ends with the process that asked for it, however that ends.

The command is started by a guard, a small process of its own (`command_guard`), which holds the other end of a pipe.
When the pipe closes, because this process has ended or was killed, the guard ends the command with everything that it
started, and removes its scratch folder.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dataprep_assets.errors import WorkerDiedError
from dataprep_assets.execution import command_guard


@dataclass(frozen=True, kw_only=True)
class CommandEnd:
    """How a command ended.

    Attributes:
        code: Its exit code, negative for a signal; None if it was ended after its time limit.
        errors: The end of its standard error.
        refused: Why it could not be started.
    """

    code: int | None = None
    errors: str = ""
    refused: str = ""


def run_guarded(words: Sequence[str], folder: Path, *, seconds: float, scratch: Path, quoted: bool) -> CommandEnd:
    """Run a command to its end; what it started and left behind ends with it.

    Args:
        words: The command.
        folder: Where it runs.
        seconds: Its time limit.
        scratch: A folder that is removed if this process is killed.
        quoted: Whether the end of its standard error is kept.

    Raises WorkerDiedError if the guard is killed.
    """
    guard = subprocess.Popen(
        # alone, without the site's packages: it starts in a few hundredths of a second
        [sys.executable, "-I", "-S", command_guard.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # Ctrl-C in a terminal is this process's to handle
        start_new_session=True,
    )
    with guard:
        assert guard.stdin is not None
        assert guard.stdout is not None
        asked = {"words": [*words], "folder": str(folder), "seconds": seconds, "scratch": str(scratch)}
        guard.stdin.write(json.dumps({**asked, "quoted": quoted}).encode() + b"\n")
        guard.stdin.flush()
        answer = guard.stdout.read()
    if not answer:
        raise WorkerDiedError(f"{words[0]}: its watching process was killed. Run the command again")
    return CommandEnd(**json.loads(answer))
