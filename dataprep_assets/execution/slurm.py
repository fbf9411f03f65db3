"""Runs Slurm's commands: submits a job array, asks for the state of its tasks, cancels it.

| variable | YAML, below `slurm:` | |
|---|---|---|
| DATAPREP_SLURM_PARTITION | `partition` | `--partition`; default: the cluster's |
| DATAPREP_SLURM_ACCOUNT | `account` | `--account` |
| DATAPREP_SLURM_TIME | `time` | `--time` of a shard, such as `2:00:00` |
| DATAPREP_SLURM_MEMORY | `memory` | `--mem` of a shard, such as `2G` |
| DATAPREP_SLURM_WIDTH | `width` | shards of an array that run at a time; default: as many as Slurm allows |
| DATAPREP_SLURM_OPTIONS | `options` | further options of `sbatch` |
| DATAPREP_SLURM_PYTHON | | command that starts Python on a node, such as `apptainer exec image.sif python`; default:
this Python |
| DATAPREP_SLURM_FOLDER | | folder that run and nodes share, on a disk that all can see; default `.dataprep/slurm` |
| DATAPREP_SLURM_ORPHAN_SECONDS | | seconds without a sign of life of its run after which a task ends its array; default
60 |
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dataprep_assets.errors import ConfigError

FOLDER = Path(".dataprep/slurm")
_COMMAND_SECONDS = 60.0
# Less than for the controller: the run waits meanwhile, and can do without the accounting.
_ACCOUNTING_SECONDS = 20.0
_AWAY = (
    *("Unable to contact slurm controller", "Socket timed out", "Connection refused", "Zero Bytes were transmitted"),
    *("Transport endpoint is not connected", "temporarily unable", "Resource temporarily unavailable", "timed out"),
)
"""Texts with which Slurm's commands report a controller that is down, restarting or busy."""


ENDED = frozenset(
    ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY")
)
"""States of a task that does not go on, and is not put back into the queue by Slurm."""


class SlurmAwayError(Exception):
    """The controller does not answer at the moment; running tasks go on."""


@dataclass(frozen=True, kw_only=True)
class SlurmSettings:
    """How arrays are submitted; the module's table explains each setting."""

    partition: str = ""
    account: str = ""
    time: str = ""
    memory: str = ""
    width: int = 0
    options: str = ""
    python: str = shlex.quote(sys.executable)
    folder: Path = FOLDER
    orphan_seconds: float = 60.0

    @classmethod
    def of(cls, environment: Mapping[str, str], declared: Mapping[str, str | int] | None = None) -> "SlurmSettings":
        """The settings of a dataset's declaration, else those of the environment.

        Args:
            environment: Environment variables of the run.
            declared: The keys of `slurm:` that are set.

        Raises ConfigError for an invalid number, and for options with a quote that is not closed.
        """
        said = {name: environment.get(f"DATAPREP_SLURM_{name.upper()}", "") for name in cls.__dataclass_fields__}
        said = {name: value for name, value in said.items() if value} | {k: str(v) for k, v in (declared or {}).items()}
        for name in ("width", "orphan_seconds"):
            if name in said and not (said[name].isascii() and said[name].isdigit() and int(said[name]) > 0):
                raise ConfigError(f"DATAPREP_SLURM_{name.upper()}: {said[name]!r} is not a whole number from 1")
        try:
            shlex.split(said.get("options", ""))
        except ValueError as error:
            raise ConfigError(f"DATAPREP_SLURM_OPTIONS: {said['options']!r}: {str(error).lower()}") from error
        texts = {k: v for k, v in said.items() if k not in ("width", "orphan_seconds", "folder")}
        return cls(
            **texts,
            width=int(said.get("width", 0)),
            folder=Path(said.get("folder", FOLDER)).absolute(),
            orphan_seconds=float(said.get("orphan_seconds", 60)),
        )

    def words(self) -> list[str]:
        """The options for `sbatch`."""
        named = {"partition": self.partition, "account": self.account, "time": self.time, "mem": self.memory}
        return [f"--{name}={value}" for name, value in named.items() if value] + shlex.split(self.options)


def require() -> None:
    """Raise ConfigError if Slurm's commands are not installed."""
    if missing := [name for name in ("sbatch", "squeue", "scancel") if shutil.which(name) is None]:
        raise ConfigError(
            f"run_on (or DATAPREP_ENGINE): `slurm` needs Slurm's commands, and {missing[0]} is not on PATH: start the "
            "run on a login node"
        )


def submit(folder: Path, tasks: int, settings: SlurmSettings) -> str:
    """Submit an array and return its job id; its tasks run `slurm_task`.

    Args:
        folder: The folder of the array, with a pickled task for each index from 0.
        tasks: Number of tasks.
        settings: The options of the submission.

    Raises SlurmAwayError when the controller does not answer, ConfigError when it refuses.
    """
    width = f"%{settings.width}" if settings.width else ""
    command = ["sbatch", "--parsable", f"--array=0-{tasks - 1}{width}", "--job-name=dataprep", "--requeue"]
    command += ["--ntasks=1", "--cpus-per-task=1", f"--chdir={Path.cwd()}", f"--output={folder}/logs/%a.txt"]
    module = "dataprep_assets.execution.slurm_task"
    script = f"#!/bin/sh\nexec {settings.python} -m {module} {shlex.quote(str(folder))}\n"
    # where several clusters are known, `--parsable` adds `;` and the cluster's name
    return _run([*command, *settings.words()], script).partition(";")[0].strip()


def states(jobs: Iterable[str]) -> dict[str, str]:
    """The state of each task (`job_index`) of these arrays that the controller knows, such as `RUNNING` or `TIMEOUT`.

    It forgets tasks some minutes after their end (`MinJobAge`). Raises SlurmAwayError when it does not answer.
    """
    found: dict[str, str] = {}
    for job in jobs:  # one by one: an id that Slurm has forgotten hides the others
        try:
            # `all`: tasks that have ended are listed, too, as long as the controller remembers them
            said = _run(["squeue", "--noheader", "--array", "--states=all", f"--jobs={job}", "--format=%F_%K %T"])
        except ConfigError as error:
            if "Invalid job id" not in str(error):
                raise
            continue
        for line in said.splitlines():
            task, _, state = line.strip().partition(" ")
            found[task] = state
    return found


def accounted(tasks: Sequence[str]) -> dict[str, str]:
    """The states in which tasks (`job_index`) ended, by Slurm's accounting.

    It learns of an end some seconds late, or never if the accounting was down for long: a task of which it has no end
    is missing. All are, where there is no accounting or it does not answer.
    """
    if not tasks:
        return {}
    # `--allocations`: a line for each task, and none for its steps
    command = ["sacct", "--allocations", "--noheader", "--parsable2", "--format=JobID,State"]
    try:
        said = _run([*command, f"--jobs={','.join(tasks)}"], seconds=_ACCOUNTING_SECONDS)
    except (ConfigError, SlurmAwayError):
        return {}
    # of a task that was requeued, sacct shows the last time alone; who cancelled one follows the state
    found = {task: state.split()[0] for task, _, state in (line.partition("|") for line in said.splitlines())}
    return {task: state for task, state in found.items() if state in ENDED}


def cancel(jobs: Sequence[str]) -> None:
    """Cancel arrays; those that have ended are ignored. Raises SlurmAwayError when the controller does not answer."""
    if jobs:
        _run(["scancel", "--quiet", *jobs])


def _run(command: list[str], text: str = "", seconds: float = _COMMAND_SECONDS) -> str:
    """Run a command and return what it prints."""
    # of an allocation that the run itself is in, pass on only how to reach the cluster
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_") or k == "SLURM_CONF"}
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, env=environment, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise SlurmAwayError(f"{command[0]}: no answer within {seconds:.0f} s") from error
    except FileNotFoundError as error:
        raise ConfigError(f"{command[0]} is not on PATH") from error
    if done.returncode:
        said = " ".join(done.stderr.split())
        if any(words in said for words in _AWAY):
            raise SlurmAwayError(said)
        raise ConfigError(f"Slurm refuses `{command[0]}`: {said}. See `slurm:` and the DATAPREP_SLURM_ variables")
    return done.stdout
