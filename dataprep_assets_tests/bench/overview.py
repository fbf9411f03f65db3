"""How long the page of all datasets takes over an instance of many, on SQLite.

The datasets are declared corpora of three splits. The events of one of them, with one shard, are written through
Dagster's own API, which takes up to 0.1 s each; those of the other shards and datasets are its rows under other names.

    python -m dataprep_assets_tests.bench.overview --datasets 50 --shards 2000 --evaluations 20
"""

import argparse
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from dataprep_assets.code_location import bound
from dataprep_assets.graph.dataset import declared
from dataprep_assets.orchestration.overview import overview
from dataprep_assets.orchestration.overview_page import page
from dataprep_assets.pipelines.corpus.component import TokenizedCorpus
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets_tests.deploy.tiny_corpus import attributes

_COUNTS = ("bytes", "files", "rows_in", "documents", "tokens", "source_bytes", "blank_lines", "dropped")
_DEFECTS = [{"shard": f"train-{at:05d}", "what": "its ledger does not balance"} for at in range(20)]
_SPLITS = {"train": ["train/**"], "val": ["validation/**"], "test": ["test/**"]}
_FAILING = 20
"""One in so many checks fails."""


def named(number: int) -> str:
    """The name of a corpus; all are of one length."""
    return f"corpus_{number:03d}"


def shard(number: int) -> str:
    """The key of a partition of the split train."""
    return f"train-{number:05d}"


def corpora(folder: Path, datasets: int) -> dg.Definitions:
    """The definitions of as many corpora as wanted, none of which has a source."""
    made = []
    for number in range(datasets):
        wanted = attributes(folder / "nowhere", 1, dataset=named(number), splits=_SPLITS)
        corpus = TokenizedCorpus(declared(CorpusDeclaration, wanted, folder / "defs.yaml"))
        made.append(corpus.build_defs(None))  # type: ignore[arg-type]
    return bound(dg.Definitions.merge(*made), folder)


def record(made: dg.Definitions, instance: dg.DagsterInstance, datasets: int, shards: int, evaluations: int) -> None:
    """Write the events of all assets and checks.

    Args:
        made: The definitions of the corpora.
        instance: Where the events go; on SQLite, in a folder.
        datasets: How many corpora there are.
        shards: Partitions of the split train of each.
        evaluations: How often each check was evaluated.
    """
    runs = [
        instance.add_run(dg.DagsterRun(job_name="made_up", status=dg.DagsterRunStatus.SUCCESS)).run_id
        for _ in range(datasets)
    ]
    for number in range(datasets):
        instance.add_dynamic_partitions(f"{named(number)}_train_shards", [shard(at) for at in range(shards)])
    counts = {name: at * 1_234_567 for at, name in enumerate(_COUNTS, 1)}
    first = [spec for spec in made.resolve_all_asset_specs() if spec.key.path[0] == named(0)]
    for spec in sorted(first, key=lambda spec: spec.key):
        if spec.partitions_def is None or spec.key.path[-1].endswith("_train"):
            partition = None if spec.partitions_def is None else shard(0)
            instance.report_runless_asset_event(dg.AssetMaterialization(spec.key, metadata=counts, partition=partition))
    checks = [key for one in made.asset_checks or () for key in one.check_keys if key.asset_key.path[0] == named(0)]
    for number, check in enumerate(sorted(checks, key=lambda key: (key.asset_key, key.name))):
        passed = number % _FAILING > 0
        table = dg.MetadataValue.table([dg.TableRecord(row) for row in _DEFECTS])
        instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(
                asset_key=check.asset_key,
                check_name=check.name,
                passed=passed,
                description="All shards pass." if passed else f"1 of {shards} shards fails, first {shard(0)}.",
                metadata={"shards_examined": shards, "table": table},
            )
        )
    index = Path(instance.root_directory) / "history" / "runs" / "index.db"
    with sqlite3.connect(index) as database:
        _multiply(database, runs, shards, evaluations)


def _multiply(database: sqlite3.Connection, runs: Sequence[str], shards: int, evaluations: int) -> None:
    """Rows of the first corpus and shard → of all corpora and shards; the latest are those that were written."""

    def copy(table: str, renamed: dict[str, str], where: str = "1", **values: str) -> None:
        """Copy rows under another name: every old text is replaced by the new one, in all columns of text."""
        columns = [row[1] for row in database.execute(f"pragma table_info({table})") if row[1] != "id"]
        chosen = []
        for column in columns:
            expression = values.get(column, column)
            for old, new in renamed.items():
                expression = f"replace({expression}, '{old}', '{new}')"
            chosen.append(expression)
        database.execute(
            f"insert into {table} ({','.join(columns)}) select {','.join(chosen)} from {table} where {where}"
        )

    for at in range(1, shards):
        copy("event_logs", {shard(0): shard(at)}, f"partition = '{shard(0)}'")
    own = f"asset_key like '%{named(0)}%'"
    database.execute("create temporary table one as select max(id) as id from asset_check_executions")
    for _ in range(1, evaluations):
        copy("asset_check_executions", {}, "id <= (select id from one)")
    for number, run in enumerate(runs):
        if number:
            for table in ("event_logs", "asset_keys", "asset_check_executions"):
                copy(table, {named(0): named(number)}, own)
        of_this = f"asset_key like '%{named(number)}%'"
        database.execute(f"update asset_keys set last_run_id = '{run}' where {of_this}")
        database.execute(f"update asset_check_executions set run_id = '{run}' where {of_this}")


def report(datasets: int, shards: int, evaluations: int, repetitions: int = 3) -> list[tuple[float, float]]:
    """Make the instance, then the page a few times; prints and returns `(wall seconds, CPU seconds)` of each."""
    with (
        tempfile.TemporaryDirectory(prefix="dataprep-bench-") as folder,
        dg.DagsterInstance.local_temp(folder) as instance,
    ):
        made = corpora(Path(folder), datasets)
        started = time.perf_counter()
        record(made, instance, datasets, shards, evaluations)
        print(f"{datasets} datasets of {shards:,} shards, recorded in {time.perf_counter() - started:.0f} s")
        found = []
        for _ in range(repetitions):
            wall, cpu = time.perf_counter(), time.process_time()
            shown = overview(made, instance)
            size = sum(len(str(value.value)) for value in page(shown).values())
            found.append((time.perf_counter() - wall, time.process_time() - cpu))
            print(f"the page: {found[-1][0]:.2f} s, {found[-1][1]:.2f} CPU-s, {size:,} characters")
        checks = sum(dataset.checks for dataset in shown)
        failed = sum(len(dataset.failed) for dataset in shown)
        counted = sum(dataset.slots.made for dataset in shown)
        whole = sum(spec.partitions_def is None for spec in made.resolve_all_asset_specs()) - 1  # the page itself
        print(f"{len(shown)} datasets, {checks:,} checks of which {failed} failed, {counted:,} artifacts made")
    if counted != 2 * datasets * shards + whole or not failed:
        raise RuntimeError("the page does not show what was recorded")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", type=int, default=50)
    parser.add_argument("--shards", type=int, default=2_000)
    parser.add_argument("--evaluations", type=int, default=20)
    options = parser.parse_args()
    report(options.datasets, options.shards, options.evaluations)
