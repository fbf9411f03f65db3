"""A real Slurm on the loopback: munge, controller, nodes, and accounting if it is wanted, in a folder of their own."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest

from dataprep_assets_tests.fakes.own_disk import disk_of, require_own_disks, with_own
from dataprep_assets_tests.fakes.slurm_accounting import Accounting, require_accounting
from dataprep_assets_tests.servers import end, free_ports

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
SelectType=select/cons_tres
SchedulerParameters=batch_sched_delay=1,sched_min_interval=100000
JobAcctGatherFrequency=0
KillWait=2
OverTimeLimit=0
ReturnToService=2
MpiDefault=none
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
"""
_UNLIMITED = """
TaskPlugin=task/none
SelectTypeParameters=CR_Core
"""
_LIMITED = """
TaskPlugin=task/cgroup
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=400
"""
_CGROUPS = Path("/sys/fs/cgroup/memory")
_OF_CGROUPS = """
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainRAMSpace=yes
ConstrainSwapSpace=yes
AllowedSwapSpace=0
"""
_NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=2000 State=UNKNOWN"
_PARTITIONS = """
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""


@dataclass
class SlurmCluster:
    """A running cluster; `variables` are what its commands want, `nodes` the names of its nodes.

    `private` is the folder that each node has for itself, as its own disk; None: nodes share every folder.
    `limits_memory`: whether a task that takes more memory than it may is killed.
    """

    folder: Path
    variables: Mapping[str, str]
    nodes: Sequence[str]
    private: Path | None = None
    limits_memory: bool = False
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

    def start_node(self, name: str) -> None:
        """A node, whose own disk is empty."""
        slurmd = ["slurmd", "-D", "-N", name]
        self.start(name, *(slurmd if self.private is None else with_own(self.private, slurmd)))

    def lose_node(self, name: str) -> None:
        """A node without power: slurmd, its tasks and their children end at once, and its disk is gone."""
        slurmd = self.processes.pop(name)
        disk = disk_of(slurmd.pid)
        assert disk != disk_of(os.getpid()), "this node has no disk of its own"
        while there := [pid for pid in _processes() if disk_of(pid) == disk]:
            for pid in there:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            slurmd.poll()
            time.sleep(0.01)
        slurmd.wait()
        # what slurmd keeps of its tasks was on that disk, too
        shutil.rmtree(self.folder / f"spool-{name}")

    def has_told_nodes(self) -> bool:
        """Whether the controller has nothing more to send to nodes.

        It goes on for a second or two to tell a node that is down to end its tasks. One that is back and has begun such
        a task anew would end it then, which is why Slurm lets a task that lost its node wait.
        """
        return all(f"{what}: 0" in " ".join(self.run("sdiag").split()) for what in ("Agent queue size", "Agent count"))

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
        for pid in _processes():
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"dataprep_assets.execution.slurm_task" in words and self._is_mine(pid):
                    found.append(pid)
        return found

    def _is_mine(self, pid: int) -> bool:
        mark = f"SLURM_CONF={self.variables['SLURM_CONF']}".encode()
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")

    def wait(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        """Until `ready`; RuntimeError with the daemons' last words when it takes too long."""
        deadline = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > deadline:
                logs = {p.name: p.read_text(errors="replace")[-2000:] for p in self.folder.glob("*.log")}
                raise RuntimeError(f"{what}: not within {seconds} s: {logs}")
            time.sleep(0.2)

    def is_ready(self) -> bool:
        """Whether the controller answers and every node is ready."""
        with suppress(subprocess.SubprocessError):
            states = self.run("sinfo", "--noheader", "--Node", "--partition=low", "--format=%T").split()
            return len(states) == len(self.nodes) and set(states) <= {"idle", "mixed", "allocated"}
        return False

    def stop(self) -> None:
        """End everything, tasks first."""
        controller = self.processes.get("slurmctld")
        with suppress(subprocess.SubprocessError, RuntimeError):
            if controller is not None and controller.poll() is None and self.jobs():
                self.run("scancel", "--user=root")
                self.wait(lambda: self.jobs() == [], 15, "the end of what a test left")
        for process in reversed(self.processes.values()):
            end(process, 20)
        for pid in self.tasks():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for name in self.nodes if self.limits_memory else ():
            for folder, _, _ in os.walk(_CGROUPS / f"slurm_{name}", topdown=False):
                with suppress(OSError):
                    os.rmdir(folder)


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _require(private: Path | None) -> None:
    """Skip the test where such a cluster cannot run."""
    if missing := [name for name in ("slurmctld", "slurmd", "sbatch", "munged") if shutil.which(name) is None]:
        pytest.skip(f"no Slurm: {missing[0]} is not on PATH (Debian: slurmctld slurmd slurm-client munge)")
    if os.geteuid() != 0:
        pytest.skip("no Slurm: its daemons are started by root")
    if private is not None:
        require_own_disks(private)


@contextmanager
def slurm_cluster(
    *, nodes: int = 1, cpus: int = 2, accounting: bool = False, private: Path | None = None
) -> Iterator[SlurmCluster]:
    """A running cluster, whose commands this process finds, too; the test is skipped where Slurm is absent.

    Args:
        nodes: How many.
        cpus: Of each.
        accounting: Whether how jobs ended is kept by slurmdbd; the controller then forgets it within seconds. Where
            this machine can, its tasks have as much memory as they asked for, by default 400 MB a CPU.
        private: A folder that each node has for itself.
    """
    _require(private)
    if accounting:
        require_accounting()
    # a socket's path has 107 characters at most
    with tempfile.TemporaryDirectory(prefix="dp-slurm-", ignore_cleanup_errors=True) as home:
        folder = Path(home)
        folder.chmod(0o755)
        for name in ("state", "munge"):
            (folder / name).mkdir(mode=0o755)
        (folder / "munge" / "key").write_bytes(os.urandom(1024))
        (folder / "munge" / "key").chmod(0o400)
        controller, *ports = free_ports(1 + nodes)
        configuration = folder / "slurm.conf"
        host = socket.gethostname().partition(".")[0]
        names = {f"node{number}": port for number, port in enumerate(ports)}
        books = Accounting(folder) if accounting else None
        lines = [_NODE.format(name=name, host=host, port=port, cpus=cpus) for name, port in names.items()]
        lines += [] if books is None else [books.configuration]
        limits_memory = accounting and os.access(_CGROUPS / "memory.limit_in_bytes", os.W_OK)
        lines.append(_LIMITED if limits_memory else _UNLIMITED)
        (folder / "cgroup.conf").write_text(_OF_CGROUPS)
        said = _CONFIGURATION.format(host=host, folder=folder, controller=controller)
        configuration.write_text("\n".join([said, *lines, _PARTITIONS]))
        cluster = SlurmCluster(folder, {"SLURM_CONF": str(configuration)}, tuple(names), private, limits_memory)
        try:
            munge = folder / "munge"
            files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
            options = [f"--{option}={munge / name}" for option, name in files.items()]
            cluster.start("munged", "munged", "--foreground", "--force", *options)
            cluster.wait((munge / "socket").exists, 20, "munge")
            if books is not None:
                books.start(cluster.start, cluster.wait)
            cluster.start_controller()
            for name in names:
                cluster.start_node(name)
            cluster.wait(cluster.is_ready, 60, "Slurm")
            with mock.patch.dict(os.environ, cluster.variables):
                yield cluster
        finally:
            cluster.stop()
