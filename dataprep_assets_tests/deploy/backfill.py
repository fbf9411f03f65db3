"""A backfill of real shards on Postgres, through Dagster's own daemon, with workers, a run and the daemon killed.

`python -m dataprep_assets_tests.deploy.backfill --shards 2000` runs the large one and prints what it measured; with
`--engine ray`, its shards are tasks of a Ray cluster. `--undisturbed` kills nothing, to measure orchestration.
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
from dataprep_assets_tests.deploy.cluster import Cluster, cluster
from dataprep_assets_tests.deploy.tiny_corpus import attributes, write_corpus
from dataprep_assets_tests.deploy.wall_time import wall_time
from dataprep_assets_tests.pipelines.corpus.pipeline import data_files, debris, receipts, run_pipeline

BACKFILL_TAG = "dagster/backfill"


def key_of(running: Cluster, name: str, split: str | None = None) -> dg.AssetKey:
    """The key of an asset of the cluster's dataset."""
    return asset_key(TokenizedCorpus(running.corpus).spec(name, split))


def prepare(running: Cluster) -> list[str]:
    """Materialize manifest and certificate on the cluster's instance; the partitions of `train`."""
    built = TokenizedCorpus(running.corpus).build_defs(None)  # type: ignore[arg-type]
    resources = create_resources(StorageResource(root=str(running.root)))
    job = dg.Definitions.merge(built, dg.Definitions(resources=resources)).resolve_implicit_global_asset_job_def()
    with running.instance() as instance:
        job.execute_in_process(
            asset_selection=[key_of(running, "manifest"), key_of(running, "engine_certificate")],
            instance=instance,
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        )
        return list(instance.get_dynamic_partitions(f"{running.corpus.dataset}_train_shards"))


def shard_keys(running: Cluster) -> list[dg.AssetKey]:
    """What a backfill of shards materializes."""
    return [key_of(running, name, "train") for name in ("snapshot", "token_bins")]


def committed(root: Path) -> int:
    """Token bins that have a receipt."""
    return sum(1 for _ in root.glob(f"*/token_bins/*/{NAME}"))


def run_pid(instance: dg.DagsterInstance, run_id: str) -> int | None:
    """The process of a run, as its own log names it."""
    for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT):
        message = entry.user_message or (entry.dagster_event.message if entry.dagster_event else "") or ""
        if "Started process for run (pid: " in message:
            return int(message.partition("(pid: ")[2].partition(")")[0])
    return None


def backfill_runs(instance: dg.DagsterInstance, backfill: str) -> list[dg.DagsterRun]:
    """All runs of a backfill, retries included."""
    return list(instance.get_runs(filters=dg.RunsFilter(tags={BACKFILL_TAG: backfill})))


def kill_a_run(instance: dg.DagsterInstance, backfill: str) -> str | None:
    """kill -9 the process of a run that is under way, the oldest, which has most left to do; its id."""
    for run in reversed(backfill_runs(instance, backfill)):
        if run.status == dg.DagsterRunStatus.STARTED and (pid := run_pid(instance, run.run_id)) is not None:
            try:
                os.kill(pid, signal.SIGSTOP)  # it cannot end between this look and the kill
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
    """Artifacts of shards whose bytes or receipts differ, or that lie about; empty when there are none."""
    found = []
    for read in (data_files, receipts):
        ours, theirs = (
            {k: v for k, v in read(r).items() if k.split("/")[1] in ("snapshot", "token_bins")} for r in (root, other)
        )
        found += [name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]
    return found + debris(root, after_a_kill=True)


def kill_a_ray_worker(running: Cluster) -> int | None:
    """kill -9 a worker that holds a shard (Ray names a process after its task); its pid."""
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
    """The damage done half-way. `detected` is from the run's kill to its failure, `retried` until its retry is at work.

    `redone` counts shards that were committed when the run was killed and written again later. `ray_worker`: whether a
    worker of Ray was killed, before the run.
    """

    committed: int
    detected: float
    retried: float
    redone: int
    ray_worker: bool


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a backfill took; `at_work` and `seconds_a_run` as `wall_time.WallTime` has them.

    `differences` from the bytes and receipts of a quiet build, where something was killed.
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


def receipt_times(root: Path) -> dict[str, int]:
    """Shards of token bins → when their receipt was written, in ns."""
    found = {}
    for path in root.glob(f"*/token_bins/*/{NAME}"):
        with contextlib.suppress(FileNotFoundError):
            found[path.parent.name] = path.stat().st_mtime_ns
    return found


def disturb(running: Cluster, instance: dg.DagsterInstance, backfill: str, engine: str, guard_seconds: float) -> Killed:
    """Kill -9 in turn a worker of Ray, a run's process and the daemon; what was noticed when, with a new daemon up."""
    if engine == RAY:
        running.wait(lambda: kill_a_ray_worker(running) is not None, guard_seconds, "a Ray worker that holds a shard")
    killed: list[str] = []
    there: dict[str, int] = {}

    def kill() -> bool:
        there.update(receipt_times(running.root))
        killed.extend(filter(None, [kill_a_run(instance, backfill)]))
        return bool(killed)

    running.wait(kill, guard_seconds, "a run to kill")

    def failed() -> bool:
        run = instance.get_run_by_id(killed[0])
        return run is not None and run.is_finished

    def retrying() -> bool:
        # not STARTING: a daemon that is killed between that and the launch loses the run until its start times out
        begun = (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.SUCCESS)
        return any(r.parent_run_id == killed[0] and r.status in begun for r in backfill_runs(instance, backfill))

    detected = running.wait(failed, guard_seconds, "the killed run to be failed")
    retried = detected + running.wait(retrying, guard_seconds, "its retry")
    # the daemon alone keeps the backfill going; what it was doing is in Postgres
    running.kill("daemon")
    running.start_daemon()
    running.wait(lambda: _ended(instance, backfill), guard_seconds, "the backfill")
    now = receipt_times(running.root)
    return Killed(
        committed=len(there),
        detected=round(detected, 1),
        retried=round(retried, 1),
        redone=sum(now.get(shard) != written for shard, written in there.items()),
        ray_worker=engine == RAY,
    )


def measured_backfill(
    folder: Path,
    shards: int,
    *,
    files: int | None = None,
    documents: int = 3,
    engine: str = PROCESSES,
    disturbed: bool = True,
    guard_seconds: float = 600,
) -> Measured:
    """Backfill a generated corpus, kill half-way what can be killed, wait for Dagster to finish, compare the bytes."""
    corpus = write_corpus(folder / "corpus", files or shards, documents)
    declaration = attributes(corpus, shards, views=[], workers=1)  # two runs share two cores
    with cluster(folder / "cluster", declaration, ray_cpus=2 if engine == RAY else None) as running:
        partitions = prepare(running)
        launched, started = time.time(), time.monotonic()
        backfill = running.backfill(shard_keys(running), partitions)
        with running.instance() as instance:
            first_run = running.wait(lambda: bool(backfill_runs(instance, backfill)), guard_seconds, "first run")
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
            runs = backfill_runs(instance, backfill)
            if missing or status is None or status.status.value != "COMPLETED_SUCCESS":
                raise RuntimeError(f"{status}: {len(missing)} partitions missing, e.g. {missing[:3]}")
            events, size = event_log_size(instance)
            spent = wall_time(instance, [run.run_id for run in runs], launched)
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


def event_log_size(instance: dg.DagsterInstance) -> tuple[int, int]:
    """`(rows, bytes with indexes)` of the event log on Postgres."""
    from sqlalchemy import text

    with instance.event_log_storage.index_connection() as connection:  # type: ignore[attr-defined]
        rows = connection.execute(text("select count(*) from event_logs")).scalar_one()
        size = connection.execute(text("select pg_total_relation_size('event_logs')")).scalar_one()
        return int(rows), int(size)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it in a temporary folder; 1 when the bytes differ."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.deploy.backfill", description=__doc__)
    parser.add_argument("--shards", type=int, default=2_000)
    parser.add_argument("--files", type=int, help="source files (default: one a shard)")
    parser.add_argument("--documents", type=int, default=3, help="in each file: 100,000 are about a second of work")
    parser.add_argument("--engine", choices=[PROCESSES, RAY], default=PROCESSES)
    parser.add_argument("--undisturbed", action="store_true", help="kill nothing")
    options = parser.parse_args(arguments)
    # a terminated bench leaves no server behind
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="dataprep-backfill-") as folder:
        measured = measured_backfill(
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
