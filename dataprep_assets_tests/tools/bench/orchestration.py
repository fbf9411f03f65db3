"""Measure the cost of Dagster itself: a backfill of empty work compared with a plain loop, and loading the code
location.
"""

import statistics
import subprocess
import sys
import tempfile
import time

SHARDS = 1_000
A_RUN = 50
_QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}

_LOAD = """
import time
begin = time.perf_counter()
import dagster, dagster.components
middle = time.perf_counter()
from dataprep_assets.definitions import defs
loaded = defs() if callable(defs) else defs
if hasattr(loaded, "load_fn"):
    loaded = loaded.load_fn()
loaded.get_repository_def()
end = time.perf_counter()
print(middle - begin, end - middle)
"""


def backfill_seconds(shards: int = SHARDS, a_run: int = A_RUN) -> tuple[float, float]:
    """Return `(seconds of the backfill, seconds of the plain loop)` for a no-op body, on SQLite in a temporary folder.

    The backfill is the one of a `BackfillPolicy.multi_run(a_run)`: a run for each range of partitions.
    """
    import dagster as dg
    from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

    keys = [f"train-{at:05d}" for at in range(shards)]
    touched: list[str] = []

    def body(key: str) -> None:
        touched.append(key)

    @dg.asset(
        partitions_def=dg.StaticPartitionsDefinition(keys),
        backfill_policy=dg.BackfillPolicy.multi_run(a_run),
    )
    def nothing(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        for key in context.partition_keys:
            body(key)
            context.add_asset_metadata(metadata={"documents": 0}, partition_key=key)
        return dg.MaterializeResult()

    jobs = [dg.define_asset_job("all_of_it", [nothing])]
    job = dg.Definitions(assets=[nothing], jobs=jobs).resolve_job_def("all_of_it")
    with (
        tempfile.TemporaryDirectory(prefix="dataprep-bench-") as folder,
        dg.DagsterInstance.local_temp(folder) as instance,
    ):
        started = time.perf_counter()
        for at in range(0, shards, a_run):
            part = keys[at : at + a_run]
            tags = {ASSET_PARTITION_RANGE_START_TAG: part[0], ASSET_PARTITION_RANGE_END_TAG: part[-1]}
            if not job.execute_in_process(run_config=_QUIET, instance=instance, tags=tags).success:
                raise RuntimeError(f"the run of {part[0]} to {part[-1]} failed")
        backfill = time.perf_counter() - started
        known = len(instance.get_materialized_partitions(nothing.key))
    if len(touched) != shards or known != shards:
        raise RuntimeError(f"{shards} shards asked for, {len(touched)} run, {known} recorded")
    started = time.perf_counter()
    for key in keys:
        body(key)
    return backfill, time.perf_counter() - started


def load_seconds(runs: int) -> tuple[float, float]:
    """Return `(seconds to import Dagster, seconds from there to the loaded code location)`, medians over new
    processes.
    """
    found = []
    for _ in range(runs):
        out = subprocess.run([sys.executable, "-c", _LOAD], check=True, capture_output=True, text=True).stdout
        found.append([float(x) for x in out.split()[-2:]])
    return statistics.median(x for x, _ in found), statistics.median(y for _, y in found)


def orchestration_report(runs: int) -> dict[str, float]:
    """Measure both, print both."""
    backfill, loop = backfill_seconds()
    imports, load = load_seconds(runs)
    print(
        f"Orchestration: {SHARDS:,} empty shards in runs of {A_RUN}, in one process on SQLite: {backfill:.1f} s "
        f"({backfill / SHARDS * 1000:.1f} ms a shard); the pure loop: {loop * 1e3:.3f} ms\n"
        f"Code location: {load:.2f} s after {imports:.2f} s of importing Dagster "
        f"(target < 2 s: {'met' if load < 2 else 'not met'})"
    )
    return {"backfill_seconds": backfill, "loop_seconds": loop, "dagster_import_seconds": imports, "load_seconds": load}
