"""The SQLite storage of `dagster.yaml`: Dagster's own files, whoever wrote them."""

import shutil
import sqlite3
from pathlib import Path

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
