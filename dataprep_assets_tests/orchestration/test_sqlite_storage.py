"""The SQLite storage of `dagster.yaml`: Dagster's own files, whoever wrote them."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from queue import Queue
from typing import Any

import dagster as dg
import pytest

from dataprep_assets.orchestration.sqlite_storage import SqliteStorage
from dataprep_assets.project_template import TEMPLATE

TABLES = "select type, name, tbl_name, sql from sqlite_master order by name"


@dg.asset
def thing() -> None:
    """An asset."""


def made(instance: dg.DagsterInstance) -> str:
    """The run that makes it once more."""
    return dg.materialize([thing], instance=instance).run_id


def tables(home: Path, run: str) -> list[tuple[str, ...]]:
    connection = sqlite3.connect(home / "history" / "runs" / f"{run}.db")
    try:
        return [*connection.execute(TABLES), *connection.execute("select * from alembic_version")]
    finally:
        connection.close()


def test_its_files_are_dagsters_and_each_reads_what_the_other_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, plain = tmp_path / "home", tmp_path / "plain"
    home.mkdir()
    plain.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    shutil.copy(TEMPLATE / "dagster.yaml", home)
    with dg.DagsterInstance.from_config(str(home)) as ours:
        assert isinstance(ours._ref.storage, SqliteStorage)  # type: ignore[union-attr]
        runs = [made(ours), made(ours)]  # the second begins as a copy of an empty one
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with dg.DagsterInstance.from_config(str(home)) as dagsters:
        assert {run.run_id for run in dagsters.get_runs()} == set(runs)
        counts = {run: len(dagsters.all_logs(run)) for run in runs}
        assert counts[runs[0]] == counts[runs[1]] > 10
        runs.append(made(dagsters))
        assert len(dagsters.all_logs(runs[-1])) == counts[runs[0]]
    shutil.copy(TEMPLATE / "dagster.yaml", home)
    with dg.DagsterInstance.from_config(str(home)) as ours:
        assert len(ours.all_logs(runs[-1])) == counts[runs[0]]
        records = ours.fetch_materializations(thing.key, limit=10).records
        assert sorted(record.run_id for record in records) == sorted(runs)
    assert tables(home, runs[0]) == tables(home, runs[1]) == tables(home, runs[2])
    assert [path.name for path in (home / "history" / "runs").iterdir() if path.suffix == ".new"] == []


def test_who_watches_a_run_sees_each_event_though_the_writer_keeps_the_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    shutil.copy(TEMPLATE / "dagster.yaml", tmp_path)
    seen: Queue[str] = Queue()
    with dg.DagsterInstance.from_config(str(tmp_path)) as ours:
        run = made(ours)
        log = tmp_path / "history" / "runs" / f"{run}.db-wal"
        ours.watch_event_logs(run, None, lambda event, _: seen.put(event.message))
        for number in range(3):
            ours.report_engine_event(f"event {number}", run_id=run, job_name="thing")
            while f"event {number}" not in seen.get(timeout=120):
                pass
        assert log.stat().st_size > 0  # the events are not in the file itself


MONTHS = dg.StaticPartitionsDefinition([f"2010-{month:02d}" for month in range(1, 13)])


@dg.asset(partitions_def=MONTHS, backfill_policy=dg.BackfillPolicy.single_run())
def months() -> None:
    """An asset of which a run makes many partitions."""


@dg.asset_check(asset=months)
def sound() -> dg.AssetCheckResult:
    """A check that is planned, too."""
    return dg.AssetCheckResult(passed=True)


@pytest.mark.parametrize("batch", ["0", "1000"])
def test_what_a_run_will_make_is_the_same_whether_it_is_written_at_once(
    batch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.setenv("DAGSTER_EVENT_BATCH_SIZE", batch)
    shutil.copy(TEMPLATE / "dagster.yaml", tmp_path)
    of_range = {"dagster/asset_partition_range_start": "2010-02", "dagster/asset_partition_range_end": "2010-11"}
    wanted = set(MONTHS.get_partition_keys()[1:-1])
    job = dg.Definitions(assets=[months], asset_checks=[sound]).resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.from_config(str(tmp_path)) as ours:
        with monkeypatch.context() as patched:
            one_by_one: list[str] = []
            storage = type(ours.event_log_storage)
            store = storage.store_event

            def counted(self: Any, event: dg.EventLogEntry) -> None:
                one_by_one.append(str(event.dagster_event_type))
                store(self, event)

            patched.setattr(storage, "store_event", counted)
            run = job.execute_in_process(instance=ours, tags=of_range)
        planned = "DagsterEventType.ASSET_MATERIALIZATION_PLANNED"
        assert one_by_one.count(planned) == (10 if batch == "0" else 0)
        assert one_by_one.count("DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED") == (batch == "0")
        kind = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
        # both of the run's own database and of that of all runs
        of_run = [log.dagster_event for log in ours.all_logs(run.run_id, of_type=kind)]
        assert {event.partition for event in of_run if event is not None} == wanted
        assert len(of_run) == len(ours.event_log_storage.get_event_records(dg.EventRecordsFilter(kind))) == 10
        assert ours.get_materialized_partitions(months.key) == wanted
        (record,) = ours.get_asset_records([months.key])
        assert record.asset_entry.last_run_id == run.run_id
        assert record.asset_entry.last_materialization is not None
        checks = ours.event_log_storage.get_latest_asset_check_execution_by_key([sound.check_key])
        assert checks[sound.check_key].run_id == run.run_id


@pytest.mark.parametrize("batch", ["0", "1000"])
def test_planned_checks_are_recorded_alike_and_point_to_their_events(
    batch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.setenv("DAGSTER_EVENT_BATCH_SIZE", batch)
    shutil.copy(TEMPLATE / "dagster.yaml", tmp_path)

    @dg.multi_asset_check(specs=[dg.AssetCheckSpec(name, asset=months) for name in ("long", "short")])
    def lengths() -> Iterator[dg.AssetCheckResult]:
        yield from ()

    job = dg.Definitions(assets=[months], asset_checks=[sound, lengths]).resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.from_config(str(tmp_path)) as ours:
        run = ours.create_run_for_job(job)
        with closing(sqlite3.connect(tmp_path / "history" / "runs" / "index.db")) as index:
            rows = index.execute(
                "select e.asset_key, e.check_name, e.partition, e.run_id, e.execution_status,"
                " e.evaluation_event = l.event, e.evaluation_event_timestamp = l.timestamp, l.dagster_event_type,"
                " e.create_timestamp is not null"
                " from asset_check_executions e join event_logs l on l.id = e.evaluation_event_storage_id order by 2"
            ).fetchall()
    shared = (None, run.run_id, "PLANNED", 1, 1, "ASSET_CHECK_EVALUATION_PLANNED", 1)
    assert rows == [('["months"]', name, *shared) for name in ("long", "short", "sound")]


def test_a_home_that_was_removed_and_made_again_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    for _ in range(2):
        home.mkdir()
        shutil.copy(TEMPLATE / "dagster.yaml", home)
        instance = dg.DagsterInstance.from_config(str(home))
        run = made(instance)
        assert [one.run_id for one in instance.get_runs()] == [run]
        shutil.rmtree(home)  # while it is open
    instance.dispose()
