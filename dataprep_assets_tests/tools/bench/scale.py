"""`python -m dataprep_assets_tests.tools.bench.scale`: what 1,000, 10,000 and 60,000 files cost before any work.

For each size, over a real folder of (tiny) files and the default shard plan at the size those files would have in
SlimPajama: the manifest, the plan, the load of the code location in a new process, the event log's growth a partition,
and what the UI asks for an asset's partitions, on SQLite and, where its binaries are, on Postgres. More files than
that are not written: `--files 1000000` plans names and sizes (`bench.planned_files`).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest import build_manifest_artifact, load_manifest
from dataprep_assets.planning.manifest import ManifestEntry, ShardSizing, SourceFile, build_manifest, plan_shards
from dataprep_assets_tests.deploy.cluster import DEPLOY, SCRIPTS, is_serving
from dataprep_assets_tests.deploy.location import DECLARATION
from dataprep_assets_tests.deploy.postgres import find_binaries, run_postgres
from dataprep_assets_tests.deploy.tiny_corpus import FILES_A_CHUNK, make_attributes
from dataprep_assets_tests.servers import end, free_port
from dataprep_assets_tests.tools.bench.planned_files import CPU_TARGET, MEGABYTES_TARGET, Planned, planned

SIZES = (1_000, 10_000, 60_000)
MAX_WRITTEN = 200_000
SLIMPAJAMA_FILE = 15_100_000
LOAD_TARGET, MANIFEST_TARGET = 2.0, 10.0
BATCH = 50

_LOAD = """
import time
begin = time.perf_counter()
import dagster, dagster.components
middle, cpu = time.perf_counter(), time.process_time()
from dataprep_assets_tests.deploy.location import defs
loaded = defs()
loaded.get_repository_def()
end, used = time.perf_counter(), time.process_time() - cpu
# not getrusage's maximum, which a process inherits from the one that started it
status = open("/proc/self/status").read()
memory = int(status.partition("VmHWM:")[2].split()[0]) / 1024
print(middle - begin, end - middle, used, memory)
"""
_PARTITIONS = """
query($key: AssetKeyInput!) {
  assetNodeOrError(assetKey: $key) {
    ... on AssetNode {
      partitionStats { numMaterialized numPartitions numFailed }
      partitionKeysByDimension { name partitionKeys }
      assetPartitionStatuses {
        ... on DefaultPartitionStatuses {
          materializedPartitions failedPartitions unmaterializedPartitions materializingPartitions
        }
      }
    }
  }
}
"""


@dataclass(frozen=True, kw_only=True)
class Books:
    """The cost of Dagster's records of all shards of one asset: `added` and `view` in seconds."""

    added: float
    ms_a_partition: float
    bytes_a_partition: int
    view: float


@dataclass(frozen=True, kw_only=True)
class Sized:
    """The results for one corpus size. Times in seconds, memory in MB, sizes in bytes; `None` without Postgres."""

    files: int
    shards: int
    manifest: float
    manifest_cpu: float
    manifest_again: float
    dagster_import: float
    load: float
    load_cpu: float
    load_megabytes: float
    sqlite: Books
    postgres: Books | None


def write_files(folder: Path, files: int) -> None:
    """Write empty files in SlimPajama's layout, because a listing reads only names and sizes."""
    for number in range(files):
        path = folder / "train" / f"chunk{number // FILES_A_CHUNK + 1}" / f"example_train_{number}.jsonl.zst"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def default_plan(files: int) -> int:
    """Return the number of shards of the default plan if the files were SlimPajama's."""
    listed = [
        SourceFile(relpath=f"train/chunk1/f_{number}.jsonl.zst", size_bytes=SLIMPAJAMA_FILE) for number in range(files)
    ]
    entries: list[ManifestEntry] = build_manifest(listed, include=["**"], splits={"train": ["train/**"]})
    _, plan = plan_shards(entries, ShardSizing())
    return len(plan)


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds of a call."""
    return timed_cpu(work)[0]


def timed_cpu(work: Callable[[], Any]) -> tuple[float, float]:
    """Return `(seconds, CPU-seconds)` of a call."""
    started, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - cpu


def load_cost(declaration: Path, root: Path, runs: int) -> tuple[float, float, float, float]:
    """Return `(seconds to import Dagster, seconds from there to the loaded code location, both in CPU-seconds, MB)`,
    the best of some processes.

    On an idle machine the two times are equal; on a busy one only the CPU time is meaningful.
    """
    environment = {**os.environ, DECLARATION: str(declaration), "DATAPREP_ROOT": str(root)}
    found = []
    for _ in range(runs):
        ended = subprocess.run(
            [sys.executable, "-c", _LOAD], check=True, capture_output=True, text=True, env=environment
        )
        found.append([float(x) for x in ended.stdout.split()[-4:]])
    imports, load, load_cpu, memory = (min(column) for column in zip(*found, strict=True))
    return imports, load, load_cpu, memory


@contextmanager
def instance(home: Path, database: dict[str, str] | None) -> Iterator[Any]:
    """Yield a Dagster instance on SQLite in `home`, or on Postgres."""
    import dagster as dg

    home.mkdir(parents=True)
    config: dict[str, Any] = {"telemetry": {"enabled": False}}
    if database is not None:
        config["storage"] = {
            "postgres": {
                "postgres_db": {
                    "scheme": "postgresql+psycopg2",
                    "username": database["DAGSTER_PG_USERNAME"],
                    "password": database["DAGSTER_PG_PASSWORD"],
                    "hostname": database["DAGSTER_PG_HOST"],
                    "db_name": database["DAGSTER_PG_DB"],
                    "port": int(database["DAGSTER_PG_PORT"]),
                }
            }
        }
    (home / "dagster.yaml").write_text(json.dumps(config))
    batched = {"DAGSTER_EVENT_BATCH_SIZE": "1000"} if database is not None else {}
    with mock.patch.dict(os.environ, batched), dg.DagsterInstance.from_config(str(home)) as found:
        yield found


def bookkeeping(found: Any, home: Path, corpus: CorpusDeclaration, shards: int) -> tuple[float, float, int]:
    """`(seconds to add the partitions, ms a partition materialized, bytes of the log a partition)`, with the metadata
    that a real shard has and runs of the real batch size."""
    import dagster as dg

    from dataprep_assets.integrity.receipt import FileRecord, Ledger, Receipt
    from dataprep_assets.orchestration.metadata import build_receipt_metadata, render_value

    name = f"{corpus.dataset}_train_shards"
    partitions = dg.DynamicPartitionsDefinition(name=name)
    keys = [f"train-{number:05d}" for number in range(shards)]
    added = timed(lambda: found.add_dynamic_partitions(name, keys))
    digest = "0" * 64
    receipt = Receipt(
        dataset=corpus.dataset,
        artifact="token_bins",
        partition=keys[0],
        key=digest,
        inputs={},
        files=tuple(FileRecord(path=p, bytes=1, sha256=digest) for p in ("tokens.bin", "document_ends.bin")),
        facts={},
        ledger=Ledger(rows_in=1_000, documents=1_000, tokens=1_000_000, separators=1_000),
        measured={"cpu_seconds": 1.0},
    )

    @dg.asset(
        key=[corpus.dataset, "token_bins_train"],
        partitions_def=partitions,
        backfill_policy=dg.BackfillPolicy.multi_run(BATCH),
    )
    def token_bins(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
        for key in context.partition_keys:
            shown = build_receipt_metadata(receipt, f"/data/{key}", False)
            context.add_asset_metadata({name: render_value(value) for name, value in shown.items()}, partition_key=key)
        return dg.MaterializeResult(data_version=dg.DataVersion(digest[:32]))

    job = dg.Definitions(assets=[token_bins]).resolve_implicit_global_asset_job_def()
    before = log_bytes(found, home)
    started = time.perf_counter()
    for at in range(0, shards, BATCH):
        part = keys[at : at + BATCH]
        tags = {"dagster/asset_partition_range_start": part[0], "dagster/asset_partition_range_end": part[-1]}
        quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        if not job.execute_in_process(instance=found, tags=tags, run_config=quiet).success:
            raise RuntimeError(f"the run of {part[0]} to {part[-1]} failed")
    written = time.perf_counter() - started
    size = log_bytes(found, home) - before
    return added, written * 1000 / shards, size // shards


def partition_view(home: Path, declaration: Path, key: Sequence[str], shards: int) -> float:
    """Return the seconds of the second answer to the query of the UI's partition tab, from a webserver on this
    instance.
    """
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        DECLARATION: str(declaration),
        # Set the path, because the tests are not installed and the server runs in a different folder.
        "PYTHONPATH": str(DEPLOY.parent),
    }
    port = free_port()
    command = ["dagster-webserver", "-h", "127.0.0.1", "-p", str(port), "-m", "dataprep_assets_tests.deploy.location"]
    with open(home / "webserver.log", "wb") as log:
        server = subprocess.Popen(
            [str(SCRIPTS / command[0]), *command[1:]], env=environment, stdout=log, stderr=log, cwd=home
        )
    try:
        deadline = time.monotonic() + 180
        while not is_serving(port):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((home / "webserver.log").read_text()[-2000:])
            time.sleep(0.2)
        body = json.dumps({"query": _PARTITIONS, "variables": {"key": {"path": list(key)}}}).encode()

        def ask() -> None:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/graphql", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=180) as response:
                node = json.load(response)["data"]["assetNodeOrError"]
            if node["partitionStats"] != {"numMaterialized": shards, "numPartitions": shards, "numFailed": 0}:
                raise RuntimeError(f"the partition view shows {node['partitionStats']}, not {shards}")

        ask()  # the first answer fills the webserver's caches
        return timed(ask)
    finally:
        end(server)


def log_bytes(found: Any, home: Path) -> int:
    """Return the bytes of everything that contains events: SQLite's files, or Postgres' tables with their indexes."""
    if type(found.event_log_storage).__name__ == "PostgresEventLogStorage":
        from sqlalchemy import text

        with found.event_log_storage.index_connection() as connection:
            return int(connection.execute(text("select pg_database_size(current_database())")).scalar_one())
    return sum(path.stat().st_size for path in home.rglob("*") if path.is_file())


def books(folder: Path, declaration: Path, corpus: CorpusDeclaration, shards: int, on_postgres: bool) -> Books:
    """Measure one storage."""
    key = [corpus.dataset, "token_bins_train"]
    if not on_postgres:
        home = folder / "sqlite"
        with instance(home, None) as found:
            added, ms, size = bookkeeping(found, home, corpus, shards)
        view = partition_view(home, declaration, key, shards)
    else:
        with run_postgres() as database:
            home = folder / "postgres"
            with instance(home, database) as found:
                added, ms, size = bookkeeping(found, home, corpus, shards)
            view = partition_view(home, declaration, key, shards)
    return Books(added=round(added, 2), ms_a_partition=round(ms, 1), bytes_a_partition=size, view=round(view, 3))


def measure(folder: Path, files: int, shards: int | None, runs: int) -> Sized:
    """Measure one size in an empty folder."""
    write_files(folder / "source", files)
    count = shards or default_plan(files)
    declared = make_attributes(folder / "source", count)
    declaration, root = folder / "corpus.json", folder / "artifacts"
    declaration.write_text(json.dumps(declared))
    corpus = CorpusDeclaration.model_validate(declared)
    store = LocalArtifacts(root)
    manifest, manifest_cpu = timed_cpu(lambda: build_manifest_artifact(corpus, store))
    again = timed(lambda: build_manifest_artifact(corpus, store))
    imports, load, load_cpu, memory = load_cost(declaration, root, runs)
    planned = len(load_manifest(corpus, store).plan)
    there = find_binaries() is not None
    return Sized(
        files=files,
        shards=planned,
        manifest=round(manifest, 2),
        manifest_cpu=round(manifest_cpu, 2),
        manifest_again=round(again, 2),
        dagster_import=round(imports, 2),
        load=round(load, 2),
        load_cpu=round(load_cpu, 2),
        load_megabytes=round(memory),
        sqlite=books(folder, declaration, corpus, planned, on_postgres=False),
        postgres=books(folder, declaration, corpus, planned, on_postgres=True) if there else None,
    )


def render(found: Sequence[Sized]) -> str:
    """Return the measurements as a table."""
    columns = "files, shards, manifest s, CPU-s, again s, import Dagster s, load s, CPU-s, MB, storage, ms a partition"
    names = [*columns.split(", "), "bytes a partition", "view s"]
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for size in found:
        for name, kept in (("SQLite", size.sqlite), ("Postgres", size.postgres)):
            if kept is not None:
                cells = [
                    *(
                        f"{size.files:,}",
                        f"{size.shards:,}",
                        f"{size.manifest}",
                        f"{size.manifest_cpu}",
                        f"{size.manifest_again}",
                    ),
                    *(f"{size.dagster_import}", f"{size.load}", f"{size.load_cpu}", f"{size.load_megabytes:.0f}", name),
                    *(f"{kept.ms_a_partition}", f"{kept.bytes_a_partition:,}", f"{kept.view}"),
                ]
                lines.append("| " + " | ".join(cells) + " |")
    worst_load, worst_manifest = max(s.load_cpu for s in found), max(s.manifest_cpu for s in found)
    for what, worst, target in (
        ("load (CPU)", worst_load, LOAD_TARGET),
        ("manifest (CPU)", worst_manifest, MANIFEST_TARGET),
    ):
        lines.append(f"{what}: {worst} s, target {target:.0f} s: {'met' if worst < target else 'not met'}")
    return "\n".join(lines)


def told(found: Planned) -> str:
    """Return the costs of planning names and sizes, compared with the targets."""
    cpu, memory = (
        "met" if met else "not met" for met in (found.cpu <= CPU_TARGET, found.megabytes <= MEGABYTES_TARGET)
    )
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in found.steps.items())
    return (
        f"{found.files:,} names and sizes planned: {found.cpu:.1f} CPU-s ({parts}), target {CPU_TARGET:.0f} s for a "
        f"million: {cpu}; at most {found.megabytes:.0f} MB, target {MEGABYTES_TARGET:.0f} MB: {memory}\n"
        f"digest {found.digest}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and write a JSON file if requested; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.bench.scale", description=__doc__)
    parser.add_argument("--files", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--shards", type=int, help="instead of the default plan's number")
    parser.add_argument("--runs", type=int, default=3, help="processes of which the load time is the best")
    parser.add_argument("--json", type=Path, help="also write all measurements here")
    options = parser.parse_args(arguments)
    found, missed = [], False
    for files in options.files:
        if files > MAX_WRITTEN:
            plan = planned(files)
            print(told(plan))
            missed |= plan.cpu > CPU_TARGET or plan.megabytes > MEGABYTES_TARGET
            continue
        with tempfile.TemporaryDirectory(prefix="dataprep-scale-") as folder:
            found.append(measure(Path(folder), files, options.shards, options.runs))
        print(f"{files:,} files measured", file=sys.stderr, flush=True)
    if found:
        print(render(found))
        worst = max(s.load_cpu for s in found) >= LOAD_TARGET or max(s.manifest_cpu for s in found) >= MANIFEST_TARGET
        missed |= worst
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(size) for size in found], indent=1) + "\n")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
