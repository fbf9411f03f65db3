"""The same shards on Ray and Slurm: `python -m dataprep_assets_tests.tools.bench.scale_out [--documents N]`.

Worker processes, Ray clusters of 1, 2 and 4 raylets and Slurm arrays of 1 and 2 tasks build the same shards. Each
raylet has one CPU, and is bound to one core after its start. The bytes must be equal. Printed are wall seconds after
start-up, CPU-seconds of all workers, the CPU time relative to one worker process, and the overhead per task. The
overhead is the wall time per empty task. A machine with two cores cannot show the efficiency of more workers.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

from dataprep_assets.execution.pool import ENGINE, PROCESSES, RAY, open_pool
from dataprep_assets.execution.processes import ONE_THREAD
from dataprep_assets.execution.run_task import Task, TaskId
from dataprep_assets.stream.token_shard import TokenShard
from dataprep_assets_tests.deploy.tiny_corpus import write_corpus
from dataprep_assets_tests.execution.ray_runs import CLUSTER_TOKEN, Node
from dataprep_assets_tests.fakes.slurm_cluster import run_slurm_cluster
from dataprep_assets_tests.pipelines.corpus.pipeline import data_files
from dataprep_assets_tests.pipelines.corpus.shards import build_whole_shards, shard_work, source, stream_plan
from dataprep_assets_tests.servers import find_descendants, free_ports, wait_until

SHARDS, EMPTY_TASKS, MAX_OVERHEAD = 12, 300, 0.050
RAYLETS, ARRAY_TASKS = (1, 2, 4), (1, 2)
_PATIENCE = {"RAY_agent_register_timeout_ms": "300000", "RAY_raylet_start_wait_time_s": "300"}
"""Ray's settings for nodes that start slowly, because a busy machine needs minutes."""
_TICKS = os.sysconf("SC_CLK_TCK")


def make_shards(corpus: Path, out: Path) -> list[TokenShard]:
    """Return one shard for each file of the corpus."""
    plan, works = stream_plan(), []
    for number, path in enumerate(sorted(corpus.rglob("*.jsonl.zst"))):
        work = shard_work(out, plan, [source(path)])
        works.append(replace(work, artifact=replace(work.artifact, partition=f"train-{number:05d}")))
    return works


def read_cpu(roots: Sequence[int]) -> float:
    """Return the CPU-seconds of the running descendants of these processes, and of the children that they awaited."""
    total = 0
    for root in roots:
        for pid in [root, *find_descendants(root)]:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(ticks) for ticks in fields[11:15])
    return total / _TICKS


def build_here(corpus: Path, out: Path, roots: Sequence[int], part: tuple[int, int] = (0, 1)) -> dict[str, float]:
    """Build the shards with the environment's engine, and return the measurements.

    Args:
        corpus: Folder of the corpus.
        out: Folder of the shards.
        roots: Process ids of the cluster's nodes; this process and its workers are always counted.
        part: Number of this part of the shards, and the number of parts.
    """
    works = make_shards(corpus, out)[part[0] :: part[1]]
    roots = [os.getpid(), *roots]
    with open_pool(1, ONE_THREAD, os.environ) as pool:
        # Start the workers and their imports before the clock.
        for number in range(2 * pool.count):
            pool.submit(Task(TaskId(f"import-{number}"), stream_plan, ()))
        list(pool.events())
        cpu, started = read_cpu(roots), time.perf_counter()
        for outcome in build_whole_shards(works, pool):
            if outcome.error is not None:
                raise outcome.error
        wall, cpu = time.perf_counter() - started, read_cpu(roots) - cpu
        started = time.perf_counter()
        for number in range(EMPTY_TASKS):
            pool.submit(Task(TaskId(f"empty-{number}"), os.getpid, ()))
        list(pool.events())
        overhead = (time.perf_counter() - started) / EMPTY_TASKS
    return {"wall": wall, "cpu": cpu, "overhead": overhead}


def build(corpus: Path, out: Path, roots: Sequence[int], variables: Mapping[str, str]) -> dict[str, float]:
    """Run `build_here` in its own process, because a Ray cluster is tied to its driver."""
    command = [*_build_command(corpus, out), "--nodes", *map(str, roots)]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables})
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def _build_command(corpus: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "dataprep_assets_tests.tools.bench.scale_out", "--here", str(corpus), str(out)]


@contextmanager
def run_raylets(folder: Path, count: int) -> Iterator[tuple[list[int], Mapping[str, str]]]:
    """Run a Ray cluster, and yield the process ids of its nodes and the variables of a run."""
    port, *_ = free_ports(1)
    cores = sorted(os.sched_getaffinity(0))
    # Use a short path, because a socket's path has at most 107 bytes.
    with (
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as sessions,
        mock.patch.dict(os.environ, _PATIENCE),
    ):
        options = [f"--port={port}", "--include-dashboard=false", f"--temp-dir={sessions}"]
        logs = [folder / f"{number}.log" for number in range(count)]
        nodes = list[Node]()
        try:
            for number, log in enumerate(logs):
                place = [f"--address=127.0.0.1:{port}"] if number else ["--head", *options]
                nodes.append(Node(log, None, *place))
                wait_until(lambda log=log: "Ray runtime started" in log.read_text(), 300)  # type: ignore[misc]
            pids = [node.process.pid for node in nodes]
            for number, root in enumerate(pids):
                for pid in [root, *find_descendants(root)]:
                    core = cores[number % len(cores)]
                    command = ["taskset", "--all-tasks", "--pid", "--cpu-list", str(core), str(pid)]
                    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            yield pids, {**CLUSTER_TOKEN, ENGINE: RAY, "RAY_ADDRESS": f"127.0.0.1:{port}"}
        finally:
            for node in reversed(nodes):
                node.lose()


def build_on_slurm(corpus: Path, out: Path, tasks: int) -> dict[str, float]:
    """Build the shards with an array of tasks, and return the sums of the tasks and the wall seconds of the job."""
    with run_slurm_cluster() as cluster:
        folder = cluster.folder
        parts = [str(folder / f"{number}.json") for number in range(tasks)]
        command = " ".join(_build_command(corpus, out))
        script = f"exec {command} --part $SLURM_ARRAY_TASK_ID {tasks} > {folder}/$SLURM_ARRAY_TASK_ID.json"
        started = time.perf_counter()
        options = ("--cpus-per-task=1", "--mem=0", f"--chdir={Path.cwd()}", f"--output={folder}/%a.out")
        job = cluster.submit(f"--array=0-{tasks - 1}", *options, f"--wrap={script}")
        ended = {"COMPLETED", "FAILED", "CANCELLED"}
        cluster.wait(lambda: set(cluster.states(job).values()) <= ended, 600, f"job {job}")
        job_wall = time.perf_counter() - started
        found = [json.loads(Path(part).read_text()) for part in parts]
    return {
        "wall": max(one["wall"] for one in found),
        "cpu": sum(one["cpu"] for one in found),
        "overhead": max(one["overhead"] for one in found),
        "job_wall": job_wall,
    }


def measure(folder: Path, documents: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the name and measurements of each engine; raise RuntimeError if its bytes differ from the first's."""
    corpus = write_corpus(folder / "corpus", SHARDS, documents)
    out = folder / "processes"
    yield "one worker process", build(corpus, out, (), {ENGINE: PROCESSES})
    expected = data_files(out)

    def require_equal(name: str, out: Path) -> None:
        if data_files(out) != expected or len(expected) < SHARDS:
            raise RuntimeError(f"{name}: the bytes differ from the bytes of one worker process")

    for count in RAYLETS:
        name, logs, out = f"Ray, raylets: {count}", folder / f"logs-{count}", folder / f"ray-{count}"
        logs.mkdir()
        with run_raylets(logs, count) as (pids, variables):
            measurements = build(corpus, out, pids, variables)
        require_equal(name, out)
        yield name, measurements
    for count in ARRAY_TASKS:
        name, out = f"Slurm, tasks: {count}", folder / f"slurm-{count}"
        measurements = build_on_slurm(corpus, out, count)
        require_equal(name, out)
        yield name, measurements


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print a table; return 1 if the overhead of a task exceeds the target."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.bench.scale_out", description=__doc__)
    parser.add_argument("--documents", type=int, default=20_000, help="per shard")
    parser.add_argument("--here", nargs=2, type=Path, metavar=("CORPUS", "OUT"), help=argparse.SUPPRESS)
    parser.add_argument("--nodes", nargs="*", type=int, default=[], help=argparse.SUPPRESS)
    parser.add_argument("--part", nargs=2, type=int, default=(0, 1), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.here:
        corpus, out = options.here
        number, parts = options.part
        print(json.dumps(build_here(corpus, out, options.nodes, (number, parts))))
        return 0
    print(f"{SHARDS} shards of {options.documents:,} documents; the bytes of all rows are equal")
    print(f"{'engine':<22}{'wall s':>8}{'CPU-s':>8}{'CPU efficiency':>16}{'ms per empty task':>19}{'job wall s':>12}")
    baseline, overheads = 0.0, list[float]()
    with tempfile.TemporaryDirectory(prefix="dataprep-scale-out-") as folder:
        for name, row in measure(Path(folder), options.documents):
            baseline = baseline or row["cpu"]
            overheads.append(row["overhead"])
            job = f"{row['job_wall']:.1f}" if "job_wall" in row else ""
            print(
                f"{name:<22}{row['wall']:>8.1f}{row['cpu']:>8.1f}{baseline / row['cpu']:>16.2f}"
                f"{row['overhead'] * 1e3:>19.1f}{job:>12}",
                flush=True,
            )
    return int(max(overheads) > MAX_OVERHEAD)


if __name__ == "__main__":
    sys.exit(main())
