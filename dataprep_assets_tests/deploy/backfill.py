"""Run a backfill of real shards on Postgres through Dagster's own daemon, and kill workers, a run and the daemon.

`python -m dataprep_assets_tests.deploy.backfill --shards 2000` runs the large backfill and prints its measurements.
With `--engine ray`, its shards are tasks of a Ray cluster. With `--undisturbed` nothing is killed, to measure
orchestration.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import dagster as dg

from dataprep_assets.execution.pool import PROCESSES, RAY
from dataprep_assets.integrity.receipt import NAME
from dataprep_assets.orchestration.partitions import asset_key
from dataprep_assets.pipelines.corpus.component import TokenizedCorpus
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.resources import StorageResource, create_resources
from dataprep_assets_tests.deploy.cluster import Cluster, run_cluster
from dataprep_assets_tests.deploy.tiny_corpus import make_attributes, write_corpus
from dataprep_assets_tests.deploy.wall_time import measure_wall_time
from dataprep_assets_tests.pipelines.corpus.pipeline import data_files, debris, receipts, run_pipeline

BACKFILL_TAG = "dagster/backfill"


def make_key(running: Cluster, name: str, split: str | None = None) -> dg.AssetKey:
    """Return the key of an asset of the cluster's dataset."""
    return asset_key(TokenizedCorpus(running.corpus).spec(name, split))


def prepare(running: Cluster) -> list[str]:
    """Materialize manifest and certificate on the cluster's instance, and return the partitions of `train`."""
    built = TokenizedCorpus(running.corpus).build_defs(None)  # type: ignore[arg-type]
    resources = create_resources(StorageResource(root=str(running.root)))
    job = dg.Definitions.merge(built, dg.Definitions(resources=resources)).resolve_implicit_global_asset_job_def()
    with running.instance() as instance:
        job.execute_in_process(
            asset_selection=[make_key(running, "manifest"), make_key(running, "engine_certificate")],
            instance=instance,
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        )
        return list(instance.get_dynamic_partitions(f"{running.corpus.dataset}_train_shards"))


def shard_keys(running: Cluster) -> list[dg.AssetKey]:
    """Return the keys of the assets that a backfill of shards materializes."""
    return [make_key(running, name, "train") for name in ("snapshot", "token_bins")]


def committed(root: Path) -> int:
    """Return the token bins that have a receipt."""
    return sum(1 for _ in root.glob(f"*/token_bins/*/{NAME}"))


def read_run_pid(instance: dg.DagsterInstance, run_id: str) -> int | None:
    """Return the id of a run's process, from the run's own log."""
    for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT):
        message = entry.user_message or (entry.dagster_event.message if entry.dagster_event else "") or ""
        if "Started process for run (pid: " in message:
            return int(message.partition("(pid: ")[2].partition(")")[0])
    return None


def find_backfill_runs(instance: dg.DagsterInstance, backfill: str) -> list[dg.DagsterRun]:
    """Return all runs of a backfill, including retries."""
    return list(instance.get_runs(filters=dg.RunsFilter(tags={BACKFILL_TAG: backfill})))


def kill_a_run(instance: dg.DagsterInstance, backfill: str) -> str | None:
    """Kill -9 the process of the oldest active run, which has the most work left, and return the run's id."""
    for run in reversed(find_backfill_runs(instance, backfill)):
        if run.status == dg.DagsterRunStatus.STARTED and (pid := read_run_pid(instance, run.run_id)) is not None:
            try:
                # Stop the process first, so that the run cannot end between the next check and the kill.
                os.kill(pid, signal.SIGSTOP)
                now = instance.get_run_by_id(run.run_id)
                if now is None or now.is_finished:
                    os.kill(pid, signal.SIGCONT)
                    continue
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            return run.run_id
    return None


def differences(root: Path, other: Path) -> list[str]:
    """Return the shard artifacts whose bytes or receipts differ, and leftover files; empty if there are none."""
    found = []
    for read in (data_files, receipts):
        ours, theirs = (
            {k: v for k, v in read(r).items() if k.split("/")[1] in ("snapshot", "token_bins")} for r in (root, other)
        )
        found += [name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]
    return found + debris(root, after_a_kill=True)


def kill_a_ray_worker(running: Cluster) -> int | None:
    """Kill -9 a worker that processes a shard (Ray names a process after its task), and return its process id."""
    for pid in running.pids():
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::train-"):
                os.kill(pid, signal.SIGKILL)
                return pid
        except OSError:
            continue
    return None


@dataclass(frozen=True, kw_only=True)
class Killed:
    """The effects of kills half-way through a backfill, in seconds.

    `detected` is the time from the kill of the run to its failure, `retried` the time until its retry works. `redone`
    counts shards that were committed when the run was killed and were written again later. `ray_worker` states whether
    a Ray worker was killed before the run.
    """

    committed: int
    detected: float
    retried: float
    redone: int
    ray_worker: bool


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measurements of a backfill; `at_work` and `seconds_a_run` are defined in `wall_time.WallTime`.

    If something was killed, `differences` compares bytes and receipts with those of an undisturbed build.
    """

    shards: int
    engine: str
    runs: int
    seconds: float
    first_run: float
    at_work: float
    orchestration_share: float
    seconds_a_run: float
    killed: Killed | None
    differences: int | None
    ms_a_partition: float
    events: int
    event_bytes: int


def read_receipt_times(root: Path) -> dict[str, int]:
    """Return the time in ns at which the receipt of each shard's token bins was written."""
    found = {}
    for path in root.glob(f"*/token_bins/*/{NAME}"):
        with contextlib.suppress(FileNotFoundError):
            found[path.parent.name] = path.stat().st_mtime_ns
    return found


def disturb(running: Cluster, instance: dg.DagsterInstance, backfill: str, engine: str, guard_seconds: float) -> Killed:
    """Kill -9 a Ray worker, a run's process and the daemon in turn, start a new daemon, and return the measured
    times.
    """
    if engine == RAY:
        running.wait(lambda: kill_a_ray_worker(running) is not None, guard_seconds, "a Ray worker that holds a shard")
    killed: list[str] = []
    there: dict[str, int] = {}

    def kill() -> bool:
        there.update(read_receipt_times(running.root))
        killed.extend(filter(None, [kill_a_run(instance, backfill)]))
        return bool(killed)

    running.wait(kill, guard_seconds, "a run to kill")

    def failed() -> bool:
        run = instance.get_run_by_id(killed[0])
        return run is not None and run.is_finished

    def retrying() -> bool:
        # Exclude STARTING, because if the daemon is killed before it launches a run in this state, the run does not
        # continue until its start times out.
        begun = (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.SUCCESS)
        return any(r.parent_run_id == killed[0] and r.status in begun for r in find_backfill_runs(instance, backfill))

    detected = running.wait(failed, guard_seconds, "the killed run to be failed")
    retried = detected + running.wait(retrying, guard_seconds, "its retry")
    # Kill the daemon, which submits the runs of the backfill. A new daemon can resume the backfill, because the state
    # of the backfill is in Postgres.
    running.kill("daemon")
    running.start_daemon()
    running.wait(lambda: _ended(instance, backfill), guard_seconds, "the backfill")
    now = read_receipt_times(running.root)
    return Killed(
        committed=len(there),
        detected=round(detected, 1),
        retried=round(retried, 1),
        redone=sum(now.get(shard) != written for shard, written in there.items()),
        ray_worker=engine == RAY,
    )


def measure_backfill(
    folder: Path,
    shards: int,
    *,
    files: int | None = None,
    documents: int = 3,
    engine: str = PROCESSES,
    disturbed: bool = True,
    guard_seconds: float = 600,
) -> Measured:
    """Backfill a generated corpus, kill processes half-way, wait for Dagster to finish, and compare the bytes."""
    corpus = write_corpus(folder / "corpus", files or shards, documents)
    declaration = make_attributes(corpus, shards, views=[], workers=1)  # two runs share two cores
    with run_cluster(folder / "cluster", declaration, ray_cpus=2 if engine == RAY else None) as running:
        partitions = prepare(running)
        launched, started = time.time(), time.monotonic()
        backfill = running.backfill(shard_keys(running), partitions)
        with running.instance() as instance:
            first_run = running.wait(lambda: bool(find_backfill_runs(instance, backfill)), guard_seconds, "first run")
            killed = None
            if disturbed:

                def half_way() -> bool:
                    return committed(running.root) >= shards // 2 or _ended(instance, backfill)

                running.wait(half_way, guard_seconds, "half of the shards")
                killed = disturb(running, instance, backfill, engine, guard_seconds)
            running.wait(lambda: _ended(instance, backfill), guard_seconds, "the backfill")
            seconds = time.monotonic() - started
            status = instance.get_backfill(backfill)
            materialized = instance.get_materialized_partitions(shard_keys(running)[1])
            missing = sorted(set(partitions) - set(materialized))
            runs = find_backfill_runs(instance, backfill)
            if missing or status is None or status.status.value != "COMPLETED_SUCCESS":
                raise RuntimeError(f"{status}: {len(missing)} partitions missing, e.g. {missing[:3]}")
            events, size = measure_event_log(instance)
            spent = measure_wall_time(instance, [run.run_id for run in runs], launched)
        different = None
        if disturbed:
            quiet = folder / "quiet"
            run_pipeline(CorpusDeclaration.model_validate(declaration), quiet, workers=2)
            different = len(differences(running.root, quiet))
        return Measured(
            shards=shards,
            engine=engine,
            runs=len(runs),
            seconds=round(seconds, 1),
            first_run=round(first_run, 1),
            at_work=round(spent.at_work, 1),
            orchestration_share=round(spent.orchestration_share, 4),
            seconds_a_run=round(spent.a_run, 1),
            killed=killed,
            differences=different,
            ms_a_partition=round(seconds * 1000 / shards, 1),
            events=events,
            event_bytes=size,
        )


def _ended(instance: dg.DagsterInstance, backfill: str) -> bool:
    found = instance.get_backfill(backfill)
    return found is not None and found.status.value in (
        "COMPLETED_SUCCESS",
        "COMPLETED_FAILED",
        "COMPLETED",
        "FAILED",
        "CANCELED",
    )


def measure_event_log(instance: dg.DagsterInstance) -> tuple[int, int]:
    """Return the event log's size on Postgres as `(rows, bytes including indexes)`."""
    from sqlalchemy import text

    with instance.event_log_storage.index_connection() as connection:  # type: ignore[attr-defined]
        rows = connection.execute(text("select count(*) from event_logs")).scalar_one()
        size = connection.execute(text("select pg_total_relation_size('event_logs')")).scalar_one()
        return int(rows), int(size)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the backfill in a temporary folder; return 1 if the bytes differ."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.deploy.backfill", description=__doc__)
    parser.add_argument("--shards", type=int, default=2_000)
    parser.add_argument("--files", type=int, help="source files (default: one a shard)")
    parser.add_argument("--documents", type=int, default=3, help="in each file: 100,000 are about a second of work")
    parser.add_argument("--engine", choices=[PROCESSES, RAY], default=PROCESSES)
    parser.add_argument("--undisturbed", action="store_true", help="kill nothing")
    options = parser.parse_args(arguments)
    # Exit on SIGTERM, so that a terminated benchmark leaves no server behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="dataprep-backfill-") as folder:
        measured = measure_backfill(
            Path(folder),
            options.shards,
            files=options.files,
            documents=options.documents,
            engine=options.engine,
            disturbed=not options.undisturbed,
            guard_seconds=3_000,
        )
    print(json.dumps(asdict(measured), indent=1))
    return int(bool(measured.differences))


if __name__ == "__main__":
    sys.exit(main())
