"""Sensors and schedules of a dataset, evaluated as the daemon does, on a real instance."""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset
from dagster._core.execution.backfill import PartitionBackfill
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin

from dataprep_assets.engine.yaml.automation import Automation
from dataprep_assets.errors import ConfigError
from dataprep_assets.orchestration.partitions import DATASET, asset_key
from dataprep_assets.orchestration.sensors.automation import CHANGE, SOURCE, check_crons
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.orchestration.notice_board import NoticeBoard, make_notice_board

SENSOR = "notices_on_new_files"


@pytest.fixture
def board(tmp_path: Path) -> Iterator[NoticeBoard]:
    """Return a dataset that polls its source every 10 minutes, without any built artifact."""
    with make_notice_board(tmp_path, automation={"on_new_files": "10m"}) as made:
        yield made


def queue_run(board: NoticeBoard, tags: Mapping[str, str]) -> dg.DagsterRun:
    """Return a queued run of the dataset's job that belongs to a code location, not to this process."""
    return board.instance.create_run_for_job(
        board.definitions.get_repository_def().get_job("build_notices"),
        tags=dict(tags),
        status=dg.DagsterRunStatus.QUEUED,
        remote_job_origin=_origin("build_notices"),
    )


def _origin(job: str) -> RemoteJobOrigin:
    repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("dataprep_assets"), "__repository__")
    return RemoteJobOrigin(repository, job)


def test_undeclared_sensors_and_schedules_do_not_exist(tmp_path: Path) -> None:
    with make_notice_board(tmp_path) as plain:
        repository = plain.definitions.get_repository_def()
        assert repository.sensor_defs == []
        assert repository.schedule_defs == []
        policies = {spec.freshness_policy for one in repository.asset_graph.assets_defs for spec in one.specs}
        assert policies == {None}


def test_declared_sensors_and_schedules_are_switched_on(tmp_path: Path) -> None:
    declared = {
        "on_new_files": "10m",
        "schedule": "0 3 * * 1",
        "timezone": "Europe/Berlin",
        "freshness": "36h",
        "on_failure": {"webhook": "https://example.org/hook"},
    }
    with make_notice_board(tmp_path, automation=declared) as made:
        repository = made.definitions.get_repository_def()
        assert {sensor.name: sensor.minimum_interval_seconds for sensor in repository.sensor_defs} == {
            "notices_on_new_files": 600,
            "notices_on_failure": 30,
            "notices_freshness": 600,
        }
        assert all(sensor.default_status == dg.DefaultSensorStatus.RUNNING for sensor in repository.sensor_defs)
        (schedule,) = repository.schedule_defs
        assert (schedule.name, schedule.cron_schedule) == ("notices_schedule", "0 3 * * 1")
        assert schedule.execution_timezone == "Europe/Berlin"
        assert schedule.default_status == dg.DefaultScheduleStatus.RUNNING
        assert schedule.job.name == "build_notices"
        # Dagster's page of an asset lists no automation of a job of steps.
        (spec,) = (spec for spec in made.definitions.resolve_all_asset_specs() if spec.key.path[-1] == "board")
        for automation in (*repository.sensor_defs, schedule):
            assert f"- [{automation.name}](/automation): {automation.description}" in (spec.description or "")


def test_a_change_is_launched_once_and_described_in_words(board: NoticeBoard) -> None:
    first = board.tick(SENSOR)
    (request,) = first.run_requests
    assert request.tags[CHANGE] == "3 notices new"
    assert request.tags[DATASET] == "notices"
    assert board.materialize()
    again = board.tick(SENSOR, first.cursor)
    assert (again.run_requests, again.skip_message) == ([], "nothing changed since the last poll")
    board.say("n-1", "now it says something that is longer")
    second = board.tick(SENSOR, again.cursor)
    (changed,) = second.run_requests
    assert changed.tags[CHANGE] == "1 notice changed"
    assert changed.run_key != request.run_key
    assert board.tick(SENSOR, second.cursor).run_requests == []


def test_an_interrupted_tick_requests_the_same_run_key_again(board: NoticeBoard) -> None:
    first, second = board.tick(SENSOR), board.tick(SENSOR)
    assert first.run_requests[0].run_key == second.run_requests[0].run_key


def test_a_source_that_returns_to_an_earlier_state_is_launched_again(board: NoticeBoard) -> None:
    path, keys, cursor = board.declaration.folder / "n-1.txt", [], None
    os.utime(path, ns=(0, 0))
    for _ in range(2):
        for text, nanoseconds in (("notice number n-1\n", 0), ("two of them\n", 10**9)):
            path.write_text(text)
            os.utime(path, ns=(nanoseconds, nanoseconds))
            tick = board.tick(SENSOR, cursor)
            keys += [request.run_key for request in tick.run_requests]
            cursor = tick.cursor
    assert len(set(keys)) == len(keys) == 4


def test_an_edit_that_planning_cannot_see_is_launched(board: NoticeBoard) -> None:
    assert board.materialize()
    seen = board.tick(SENSOR)
    assert (seen.run_requests, seen.skip_message) == ([], "the source matches the plan")
    path = board.declaration.folder / "n-2.txt"
    path.write_text(path.read_text().replace("number", "rebmun"))
    os.utime(path, ns=(10**9, 10**9))
    (request,) = board.tick(SENSOR, seen.cursor).run_requests
    assert request.tags[CHANGE] == "files were edited in place, with the same names and sizes"


def test_artifacts_that_a_person_built_meanwhile_are_not_launched(board: NoticeBoard) -> None:
    assert board.materialize()
    seen = board.tick(SENSOR)
    board.say("n-1", "one more line was put here\n")
    assert board.materialize()
    after = board.tick(SENSOR, seen.cursor)
    assert (after.run_requests, after.skip_message) == ([], "the source matches the plan")


def test_an_unreachable_source_is_reported_in_one_sentence_and_polled_again(board: NoticeBoard) -> None:
    away = board.declaration.folder.rename(board.declaration.folder.with_name("away"))
    gone = board.tick(SENSOR, "seen 3")
    assert gone.run_requests == []
    assert gone.skip_message == "the source cannot be polled: words: No such file or directory. It will be polled again"
    assert gone.cursor == "seen 3"
    away.rename(board.declaration.folder)
    assert len(board.tick(SENSOR, gone.cursor).run_requests) == 1


def test_the_error_of_a_sensitive_source_contains_no_text(tmp_path: Path) -> None:
    with make_notice_board(tmp_path, automation={"on_new_files": "10m"}, sensitive=True) as made:
        made.declaration.folder.rename(tmp_path / "away")
        said = made.tick(SENSOR).skip_message
        assert said == (
            "the source cannot be polled: SourceError. Run `dataprep show --private notices`. It will be polled again"
        )


def test_nothing_is_launched_while_the_dataset_is_being_built(board: NoticeBoard) -> None:
    run = queue_run(board, {DATASET: "notices"})
    busy = board.tick(SENSOR)
    assert busy.run_requests == []
    run_text = f"run {run.run_id[:8]} of notices is queued"
    said = f"3 notices new; {run_text}, so the source will be polled again when it has ended"
    assert (busy.skip_message, busy.cursor) == (said, None)
    board.instance.report_run_canceled(run)
    assert len(board.tick(SENSOR).run_requests) == 1


def start_backfill(board: NoticeBoard) -> str:
    """Request a backfill of the board, as the webserver does, and return its id."""
    asked = PartitionBackfill.from_asset_graph_subset(
        backfill_id="byhand",
        backfill_timestamp=time.time(),
        tags={},
        dynamic_partitions_store=board.instance,
        asset_graph_subset=AssetGraphSubset({}, {asset_key(board.specs[1])}),  # type: ignore[call-arg]
        title="by hand",
        description="",
        run_config=None,
    )
    board.instance.add_backfill(asked)
    return asked.backfill_id


def test_nothing_is_launched_while_a_backfill_of_the_dataset_is_in_progress(board: NoticeBoard) -> None:
    backfill = start_backfill(board)
    busy = board.tick(SENSOR)
    assert busy.run_requests == []
    assert_names(busy.skip_message, 3, backfill)


def test_a_run_of_another_dataset_does_not_block(board: NoticeBoard) -> None:
    job = board.definitions.resolve_implicit_global_asset_job_def()
    board.instance.create_run_for_job(
        job, tags={DATASET: "others"}, status=dg.DagsterRunStatus.QUEUED, remote_job_origin=_origin("build_others")
    )
    assert len(board.tick(SENSOR).run_requests) == 1


def test_a_cron_schedule_makes_the_same_decision_without_a_cursor(tmp_path: Path) -> None:
    declared = {"on_new_files": "*/10 * * * *", "timezone": "Europe/Berlin"}
    with make_notice_board(tmp_path, automation=declared, home=tmp_path / "home") as made:
        (schedule,) = made.definitions.get_repository_def().schedule_defs
        assert (schedule.cron_schedule, schedule.execution_timezone) == ("*/10 * * * *", "Europe/Berlin")
        (request,) = made.tick(SENSOR).run_requests
        assert request.tags[CHANGE] == "3 notices new"
        run = queue_run(made, {**request.tags, "dagster/schedule_name": SENSOR})
        # No second run is requested for the same state of the source, whatever the outcome of the first run.
        assert made.tick(SENSOR).skip_message == "nothing changed since the last poll"
        made.say("n-0", "something else")
        assert "is queued" in made.tick(SENSOR).skip_message
        made.instance.report_run_canceled(run)
        assert made.tick(SENSOR).run_requests[0].tags[SOURCE] != request.tags[SOURCE]


def test_a_schedule_builds_unless_a_build_is_running(tmp_path: Path) -> None:
    with make_notice_board(tmp_path, automation={"schedule": "@daily"}, home=tmp_path / "home") as made:
        (request,) = made.tick("notices_schedule").run_requests
        assert request.tags[DATASET] == "notices"
        run = queue_run(made, request.tags)
        said = made.tick("notices_schedule").skip_message
        assert said == f"run {run.run_id[:8]} of notices is queued; the rest is built at the next scheduled time"


@pytest.mark.parametrize("cron", ["61 * * * *", "0 0 31 2 *", "* * * * fish", "0 0 31 4 *", "5 4 30,31 2 *"])
@pytest.mark.parametrize("key", ["schedule", "on_new_files"])
def test_a_cron_expression_that_never_matches_is_refused(key: str, cron: str, tmp_path: Path) -> None:
    path = tmp_path / "defs.yaml"
    path.write_text(f"type: x.Y\nattributes:\n  automation:\n    timezone: UTC\n    {key}: '{cron}'\n")
    with raises(ConfigError, "defs.yaml:5", f"automation.{key}", repr(cron)):
        check_crons(Automation.model_validate({key: cron}), path)


@pytest.mark.parametrize("cron", ["0 0 29 2 *", "0 0 31 */2 *", "@monthly", "0 0 * * 5#5", "30 2 * * *"])
def test_a_cron_expression_that_matches_rarely_is_accepted(cron: str) -> None:
    check_crons(Automation(schedule=cron, timezone="Europe/Berlin"), Path("defs.yaml"))
