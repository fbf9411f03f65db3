"""User commands that end with the process that requested them.

The command is started by a guard, a separate small process (`command_guard`), which is connected to this process by a
pipe. The pipe closes when this process ends or is killed. The guard then terminates the command with everything that it
started, and removes the command's scratch folder.
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
class CommandResult:
    """Result of a command.

    Attributes:
        code: The exit code, negative for a signal; None if the command was terminated after its time limit.
        errors: The last part of the standard error.
        refused: The reason why the command could not be started.
    """

    code: int | None = None
    errors: str = ""
    refused: str = ""


def run_guarded(words: Sequence[str], folder: Path, *, seconds: float, scratch: Path, quoted: bool) -> CommandResult:
    """Run a command to its end; processes that it started and left running are terminated with it.

    Args:
        words: The command and its arguments.
        folder: The working directory of the command.
        seconds: The time limit.
        scratch: A folder that is removed if this process is killed.
        quoted: Whether to keep the last part of the standard error.

    Raises WorkerDiedError if the guard is killed.
    """
    guard = subprocess.Popen(
        # Use `-S` to skip the import of `site`, so that the process starts in a few hundredths of a second.
        [sys.executable, "-I", "-S", command_guard.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # Start a new session, so that Ctrl-C in the terminal does not reach the guard. When this process ends, the
        # guard terminates the command.
        start_new_session=True,
    )
    with guard:
        assert guard.stdin is not None
        assert guard.stdout is not None
        request = {"words": [*words], "folder": str(folder), "seconds": seconds, "scratch": str(scratch)}
        guard.stdin.write(json.dumps({**request, "quoted": quoted}).encode() + b"\n")
        guard.stdin.flush()
        answer = guard.stdout.read()
    if not answer:
        raise WorkerDiedError(f"{words[0]}: the process that watches this command was killed. Run the command again")
    return CommandResult(**json.loads(answer))
