"""Run a tiny corpus on Ray, each run in its own process, and start clusters of two nodes on this machine."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dataprep_assets.integrity.receipt import NAME
from dataprep_assets_tests.fakes.own_disk import require_own_disks, wrap_command
from dataprep_assets_tests.pipelines.corpus.pipeline import data_files, receipts
from dataprep_assets_tests.servers import find_descendants, free_ports, wait_until

SHARDS = 12
GUARD_SECONDS = 900
CLUSTER_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "t" * 32}


def read_token_bins(root: Path) -> tuple[dict[str, bytes], dict[str, dict[str, Any]]]:
    """Return the bytes and receipts of every shard's token bins."""
    return (
        {name: data for name, data in data_files(root).items() if name.startswith("tiny/token_bins/")},
        {name: receipt for name, receipt in receipts(root).items() if name.startswith("tiny/token_bins/")},
    )


class Run:
    """A run of `ray_run` in its own process, on the declared engine or else the environment's."""

    def __init__(self, corpus: Path, folder: Path, engine: str | None = None, **variables: str) -> None:
        command = [sys.executable, "-m", "dataprep_assets_tests.execution.ray_run"]
        self.root = folder / "artifacts"
        self.process = subprocess.Popen(
            [*command, str(corpus), str(folder), str(SHARDS), *([engine] if engine else [])],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "DATAPREP_ENGINE")} | variables,
        )

    def finish(self) -> tuple[int, list[str]]:
        """Wait for the end, and return the exit code and the output."""
        out, _ = self.process.communicate(timeout=GUARD_SECONDS)
        return self.process.returncode, [line for line in out.splitlines() if "(raylet)" not in line]

    def committed(self) -> dict[str, int]:
        """Return the shards that have a receipt, with the time at which it was written."""
        found = self.root.glob(f"*/token_bins/*/{NAME}")
        return {path.parent.name: path.stat().st_mtime_ns for path in found}


def read_outcomes(lines: list[str]) -> dict[str, list[str]]:
    """Return the outcome of shards → their partitions."""
    found: dict[str, list[str]] = {}
    for line in lines:
        what, partition = line.split()
        found.setdefault(what, []).append(partition)
    return found


class Node:
    """A cluster node: `ray start --block` and all its child processes."""

    def __init__(self, log: Path, disk: Path | None, *arguments: str) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1"]
        own = ["--node-ip-address=127.0.0.1", "--disable-usage-stats", "--include-log-monitor=false"]
        started = [*command, *own, *arguments]
        started = started if disk is None else wrap_command(disk, started)
        with open(log, "wb") as out:
            self.process = subprocess.Popen(started, stdout=out, stderr=out, env=os.environ | CLUSTER_TOKEN)

    def lose(self) -> None:
        """Simulate a power failure of the node: all its processes end, and its own disk is lost."""
        for pid in [*find_descendants(self.process.pid), self.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


class RayCluster:
    """A cluster of a head and a second node with one CPU each; `variables` are for runs that are on neither node."""

    def __init__(self, folder: Path, sessions: str, disk: Path | None) -> None:
        self._disk, self._folder, self._gcs, client = disk, folder, *free_ports(2)
        self.variables = {**CLUSTER_TOKEN, "RAY_ADDRESS": f"ray://127.0.0.1:{client}"}
        ports = [f"--port={self._gcs}", f"--ray-client-server-port={client}", "--include-dashboard=false"]
        self.head = Node(folder / "head.log", disk, "--head", f"--temp-dir={sessions}", *ports)
        wait_until(lambda: is_listening(self._gcs) and is_listening(client), 120)
        self.second = self.new_node()

    def new_node(self) -> Node:
        """Start a further node and wait for it."""
        node = Node(self._folder / "node.log", self._disk, f"--address=127.0.0.1:{self._gcs}")
        wait_until(lambda: any("raylet" in title for title in find_descendants(node.process.pid).values()), 120)
        return node

    def stop(self) -> None:
        """End both nodes."""
        self.second.lose()
        self.head.lose()


@contextmanager
def run_ray_cluster(folder: Path, disk: Path | None = None) -> Iterator[RayCluster]:
    """Yield a cluster with its logs in a folder, and end it with the block.

    With `disk`, each node has its own folder at that path.
    """
    if disk is not None:
        require_own_disks(disk)
    # Use a short path, because a socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as sessions:
        cluster = RayCluster(folder, sessions, disk)
        try:
            yield cluster
        finally:
            cluster.stop()


def is_listening(port: int) -> bool:
    """Return whether a process listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
