"""A real Slurm with one node on the loopback interface: munge, controller and slurmd, in their own folder."""

import os
import shutil
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

_NODE = "node0"
_CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=1,sched_min_interval=100000
JobAcctGatherFrequency=0
KillWait=2
MpiDefault=none
SlurmdParameters=config_overrides
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=2000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass
class SlurmCluster:
    """A running cluster; `variables` are the environment of its commands."""

    folder: Path
    variables: Mapping[str, str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *command: str) -> None:
        """Start a daemon that writes its output to a file of its name."""
        with open(self.folder / f"{command[0]}.out", "ab") as log:
            self.processes.append(
                subprocess.Popen(command, env={**os.environ, **self.variables}, stdout=log, stderr=log, cwd=self.folder)
            )

    def run(self, *command: str) -> str:
        """Run a Slurm command and return its output."""
        environment = {**os.environ, **self.variables}
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60).stdout

    def submit(self, *words: str) -> str:
        """Submit a job and return its id."""
        return self.run("sbatch", "--parsable", *words).strip()

    def jobs(self) -> list[str]:
        """Return the waiting and running tasks, with their states."""
        return self.run("squeue", "--noheader", "--array", "--format=%i %T").splitlines()

    def states(self, job: str) -> dict[str, str]:
        """Return index → state of an array's tasks, or the state of a single job under "N/A"."""
        lines = self.run("squeue", "--noheader", "--array", "--states=all", f"--jobs={job}", "--format=%K %T")
        return dict(line.split() for line in lines.splitlines())

    def wait(self, is_done: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until `is_done`; raise RuntimeError with the daemons' last output after the limit."""
        deadline = time.monotonic() + seconds
        while not is_done():
            if time.monotonic() > deadline:
                logs = {p.name: p.read_text(errors="replace")[-2000:] for p in self.folder.glob("*.log")}
                raise RuntimeError(f"{what}: not within {seconds} s: {logs}")
            time.sleep(0.1)

    def is_ready(self) -> bool:
        """Return whether the controller answers and the node is ready."""
        with suppress(subprocess.SubprocessError):
            return self.run("sinfo", "--noheader", "--Node", "--format=%T").split() == ["idle"]
        return False

    def stop(self) -> None:
        """End all jobs, then all daemons."""
        with suppress(subprocess.SubprocessError, RuntimeError):
            if self.jobs():
                self.run("scancel", "--user=root")
                self.wait(lambda: self.jobs() == [], 15, "the end of what a test left")
        for process in reversed(self.processes):
            end(process, 20)


@contextmanager
def run_slurm_cluster() -> Iterator[SlurmCluster]:
    """Yield a running cluster with two CPUs, whose commands are on this process's PATH; skip the test without Slurm."""
    if missing := [name for name in ("slurmctld", "slurmd", "sbatch", "munged") if shutil.which(name) is None]:
        pytest.skip(f"no Slurm: {missing[0]} is not on PATH (Debian: slurmctld slurmd slurm-client munge)")
    if os.geteuid() != 0:
        pytest.skip("no Slurm: its daemons are started by root")
    # Use a short path, because a socket's path has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="dp-slurm-", ignore_cleanup_errors=True) as home:
        folder = Path(home)
        folder.chmod(0o755)
        for name in ("state", "munge"):
            (folder / name).mkdir(mode=0o755)
        (folder / "munge" / "key").write_bytes(os.urandom(1024))
        (folder / "munge" / "key").chmod(0o400)
        controller, port = free_ports(2)
        host = socket.gethostname().partition(".")[0]
        configuration = folder / "slurm.conf"
        configuration.write_text(
            _CONFIGURATION.format(host=host, folder=folder, controller=controller, port=port, node=_NODE)
        )
        cluster = SlurmCluster(folder, {"SLURM_CONF": str(configuration)})
        try:
            munge = folder / "munge"
            files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
            options = [f"--{option}={munge / name}" for option, name in files.items()]
            cluster.start("munged", "--foreground", "--force", *options)
            cluster.wait((munge / "socket").exists, 20, "munge")
            cluster.start("slurmctld", "-D")
            cluster.start("slurmd", "-D", "-N", _NODE)
            cluster.wait(cluster.is_ready, 60, "Slurm")
            with mock.patch.dict(os.environ, cluster.variables):
                yield cluster
        finally:
            cluster.stop()
