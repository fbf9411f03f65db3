"""The instance's SQLite, read without Dagster, says what Dagster says of it, whatever happened to a check."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dataprep_assets.orchestration import sqlite_records
from dataprep_assets.orchestration.recorded import Check, Evaluation, Recorded
from dataprep_assets.orchestration.sqlite_records import OnlyDagsterError
from dataprep_assets.project_template import TEMPLATE
from dataprep_assets_tests.graph.notices import notices_specs
from dataprep_assets_tests.orchestration.notice_board import NoticeBoard, notice_board


@dataclass
class Home:
    """A notice board on an instance of `dataprep init`'s settings."""

    board: NoticeBoard
    folder: Path

    def told(self) -> list[Any]:
        """All that is recorded; the same through Dagster and without it."""
        with sqlite_records.opened(self.folder) as records:
            assert records is not None
            found = everything(self.board, records)
        assert found == everything(self.board, self.board.recorded)
        return found

    def evaluations(self) -> dict[Check, Evaluation]:
        return dict(self.told()[-1])


def everything(board: NoticeBoard, recorded: Recorded) -> list[Any]:
    checks = [(spec.path, proof.name) for spec in board.specs if spec.proofs for proof in spec.proofs.proofs]
    return [
        *((spec.path, recorded.is_materialized(spec.path), recorded.partitions(spec.path)) for spec in board.specs),
        recorded.evaluations([*checks, (board.specs[0].path, "of_another_time")]),
    ]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    folder = tmp_path / "home"
    folder.mkdir()
    shutil.copy(TEMPLATE / "dagster.yaml", folder / "dagster.yaml")
    monkeypatch.setenv("DAGSTER_HOME", str(folder))
    with notice_board(tmp_path / "board") as board, dg.DagsterInstance.get() as instance:
        instance.all_asset_keys()
        yield Home(replace(board, instance=instance), folder)


def test_nothing_then_everything_then_failures(home: Home) -> None:
    board = home.board
    assert home.told()[0] == (("notices", "notices"), False, set())
    assert board.materialize()
    assert home.told()[0] == (("notices", "notices"), True, {"n-0", "n-1", "n-2"})
    assert {(one.passed, one.accepted) for one in home.evaluations().values()} == {(True, None)}
    board.say("n-1", "")
    board.say("n-2", "LOUD")
    assert not board.materialize()
    found = {name: (one.passed, one.blocks) for (_, name), one in home.evaluations().items()}
    assert found["has_words"] == (False, True)
    assert found["is_polite"] == (False, True)
    key = dg.AssetKey(list(board.specs[0].path))
    warned = dg.AssetCheckEvaluation(
        asset_key=key, check_name="is_polite", passed=False, metadata={}, severity=dg.AssetCheckSeverity.WARN
    )
    board.instance.report_runless_asset_event(warned)
    assert home.evaluations()[board.specs[0].path, "is_polite"] == Evaluation(passed=False, blocks=False)


def test_an_accepted_failure_is_told_with_its_reason(home: Home) -> None:
    board = home.board
    board.say("n-2", "LOUD")
    declaration = board.declaration.model_copy(update={"accept": {"is_polite": "a market"}})
    home.board = replace(board, declaration=declaration, specs=notices_specs(declaration))
    assert home.board.materialize()
    found = {name: (one.passed, one.accepted) for (_, name), one in home.evaluations().items()}
    assert found["is_polite"] == (True, "a market")


def test_what_was_wiped_is_not_there_until_it_is_made_again(home: Home) -> None:
    board = home.board
    assert board.materialize()
    notices = board.specs[0]
    board.instance.wipe_assets([dg.AssetKey(list(notices.path))])
    assert home.told()[0] == (notices.path, False, set())
    assert not any(path == notices.path for path, _ in home.evaluations())
    assert board.run(notices, partitions=["n-1"]).success
    assert home.told()[0] == (notices.path, True, {"n-1"})


def test_a_check_that_is_only_planned_has_no_result(home: Home) -> None:
    board = home.board
    assert board.materialize()
    job = board.definitions.resolve_implicit_global_asset_job_def()
    board.instance.create_run_for_job(job)  # what a run that is then killed leaves
    assert home.evaluations() == {}
    assert home.told()[0] == (("notices", "notices"), True, {"n-0", "n-1", "n-2"})


def test_the_schema_is_the_one_that_this_dagster_makes(home: Home) -> None:
    with sqlite3.connect(home.folder / "history" / "runs" / "index.db") as connection:
        assert connection.execute("select version_num from alembic_version").fetchall() == [(sqlite_records.SCHEMA,)]
        connection.execute("update alembic_version set version_num = 'later'")
    with pytest.raises(OnlyDagsterError), sqlite_records.opened(home.folder):
        pass


@pytest.mark.parametrize(
    "text", ["storage: {sqlite: {base_dir: /elsewhere}}", "telemetry: {enabled: false}", "{", "- 1"]
)
def test_an_instance_with_another_storage_is_left_to_dagster(home: Home, text: str) -> None:
    (home.folder / "dagster.yaml").write_text(text)
    with pytest.raises(OnlyDagsterError), sqlite_records.opened(home.folder):
        pass


def test_a_home_whose_tables_are_being_made_has_nothing_recorded_and_a_damaged_file_is_left_to_dagster(
    home: Home, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    (folder := other / "history" / "runs").mkdir(parents=True)
    shutil.copy(home.folder / "dagster.yaml", other / "dagster.yaml")
    for making in (
        None,
        "create table event_logs (id)",
        "create table alembic_version (version_num)",
    ):
        if making is not None:
            with closing(sqlite3.connect(folder / "index.db")) as connection:
                connection.execute(making)
        with sqlite_records.opened(other) as records:
            assert records is None
    (folder / "index.db").write_bytes(b"not a database, but something else of some length" * 100)
    with pytest.raises(OnlyDagsterError), sqlite_records.opened(other):
        pass


def test_reading_leaves_the_file_as_it_is(home: Home) -> None:
    assert home.board.materialize()
    path = home.folder / "history" / "runs" / "index.db"
    home.board.instance.dispose()
    before = path.read_bytes()
    home.told()
    home.board.instance.dispose()
    assert path.read_bytes() == before
    assert json.dumps(sorted(file.name for file in path.parent.glob("index.db*"))) == '["index.db"]'
