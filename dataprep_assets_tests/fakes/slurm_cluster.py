"""A real Slurm on the loopback, of one node: munge, controller and node daemon in a folder of their own."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest

from dataprep_assets_tests.servers import end, free_ports

_CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/node.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/node.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=1,sched_min_interval=100000
JobAcctGatherFrequency=0
KillWait=2
OverTimeLimit=0
ReturnToService=2
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""


@dataclass
class SlurmCluster:
    """A running cluster; `variables` are what its commands want."""

    folder: Path
    variables: Mapping[str, str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *command: str) -> None:
        """Start a daemon of it; its output goes to a file of its name."""
        with open(self.folder / f"{name}.out", "ab") as log:
            self.processes[name] = subprocess.Popen(
                command, env={**os.environ, **self.variables}, stdout=log, stderr=log, cwd=self.folder
            )

    def start_controller(self) -> None:
        """The controller, with the state that it has."""
        self.start("slurmctld", "slurmctld", "-D")

    def stop_controller(self) -> None:
        """As its service is stopped. One that is killed may come back with an older state, start a task that runs, and
        drain the node for it, which a person has to undo."""
        process = self.processes.pop("slurmctld")
        process.terminate()
        process.wait(60)

    def run(self, *command: str) -> str:
        """What one of Slurm's commands prints."""
        environment = {**os.environ, **self.variables}
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60).stdout

    def jobs(self) -> list[str]:
        """Tasks that wait or run, with their states."""
        return self.run("squeue", "--noheader", "--array", "--format=%i %T").splitlines()

    def tasks(self) -> list[int]:
        """The processes that do tasks of arrays."""
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
                if b"dataprep_assets.execution.slurm_task" in words and self._is_mine(entry):
                    found.append(int(entry.name))
        return found

    def _is_mine(self, entry: Path) -> bool:
        return f"SLURM_CONF={self.variables['SLURM_CONF']}".encode() in (entry / "environ").read_bytes().split(b"\0")

    def wait(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        """Until `ready`; RuntimeError with the daemons' last words when it takes too long."""
        deadline = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > deadline:
                logs = {p.name: p.read_text(errors="replace")[-2000:] for p in self.folder.glob("*.log")}
                raise RuntimeError(f"{what}: not within {seconds} s: {logs}")
            time.sleep(0.2)

    def is_idle(self) -> bool:
        """Whether the controller answers and its node is ready."""
        with suppress(subprocess.SubprocessError):
            return self.run("sinfo", "--noheader", "--format=%T").strip() in ("idle", "mixed", "allocated")
        return False

    def stop(self) -> None:
        """End everything, tasks first."""
        for process in reversed(self.processes.values()):
            end(process, 20)
        for pid in self.tasks():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def slurm_cluster() -> Iterator[SlurmCluster]:
    """A running cluster, whose commands this process finds, too; the test is skipped where Slurm is absent."""
    if missing := [name for name in ("slurmctld", "slurmd", "sbatch", "munged") if shutil.which(name) is None]:
        pytest.skip(f"no Slurm: {missing[0]} is not on PATH (Debian: slurmctld slurmd slurm-client munge)")
    if os.geteuid() != 0:
        pytest.skip("no Slurm: its daemons are started by root")
    # a socket's path has 107 characters at most
    with tempfile.TemporaryDirectory(prefix="dp-slurm-", ignore_cleanup_errors=True) as home:
        folder = Path(home)
        folder.chmod(0o755)
        for name in ("state", "spool", "munge"):
            (folder / name).mkdir(mode=0o755)
        (folder / "munge" / "key").write_bytes(os.urandom(1024))
        (folder / "munge" / "key").chmod(0o400)
        controller, node = free_ports(2)
        configuration = folder / "slurm.conf"
        host = socket.gethostname().partition(".")[0]
        configuration.write_text(_CONFIGURATION.format(host=host, folder=folder, controller=controller, node=node))
        cluster = SlurmCluster(folder, {"SLURM_CONF": str(configuration)})
        try:
            munge = folder / "munge"
            files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
            options = [f"--{option}={munge / name}" for option, name in files.items()]
            cluster.start("munged", "munged", "--foreground", "--force", *options)
            cluster.wait((munge / "socket").exists, 20, "munge")
            cluster.start_controller()
            cluster.start("slurmd", "slurmd", "-D", "-N", host)
            cluster.wait(cluster.is_idle, 60, "Slurm")
            with mock.patch.dict(os.environ, cluster.variables):
                yield cluster
        finally:
            cluster.stop()
