"""Packed notes as Dagster makes them: months are partitions, a bad one is red and alone, what is done stays done."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import dagster as dg
import pytest

from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.integrity.receipt import read_receipt
from dataprep_assets.integrity.verify import verify_path
from dataprep_assets.orchestration.component import build_asset
from dataprep_assets.planning.cost import SHARDS_PER_RUN
from dataprep_assets.sources.cohorts import list_expected_months
from dataprep_assets_tests import forked
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.orchestration.notice_board import find_pending
from dataprep_assets_tests.pipelines.corpus.pipeline import debris, products, receipts
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, written
from dataprep_assets_tests.pipelines.notes.directories import leave_tfds_out
from dataprep_assets_tests.pipelines.notes.notes_project import (
    NotesProject,
    failures,
    notes_attributes,
    notes_project,
    plain_attributes,
    tiny_cohorts,
)
from dataprep_assets_tests.project import differing_versions

YEARS = list_expected_months("2004-01", "2005-12")
COHORT = ["packed_cohorts", "tfrecord_shards"]


WITHOUT_TFDS = """
import pytest
from dataprep_assets_tests.pipelines.notes.directories import leave_tfds_out
from dataprep_assets_tests.pipelines.notes.notes_project import main

leave_tfds_out(pytest.MonkeyPatch())
main()
"""


@pytest.fixture(scope="module")
def years(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NotesProject]:
    """2 birth years of one tiny note a month, packed by two runs, as a backfill of more partitions launches them."""
    folder = tmp_path_factory.mktemp("years")
    source = tiny_cohorts(folder / "source", YEARS)
    attributes = plain_attributes(source, YEARS, workers=2, verify="size")
    with pytest.MonkeyPatch.context() as patch, notes_project(folder, attributes) as made:
        leave_tfds_out(patch)
        assert made.run(["engine_certificate"]).success
        policy = build_asset(made.components[0].spec("packed_cohorts")).backfill_policy
        assert policy is not None
        assert policy.max_partitions_per_run == SHARDS_PER_RUN
        for batch in (YEARS[:12], YEARS[12:]):
            outcome = made.run(COHORT, batch)
            assert outcome.success, failures(outcome)
        yield made


@pytest.mark.slow
def test_24_months_backfill_in_two_runs_and_every_one_is_there(years: NotesProject) -> None:
    assert len(YEARS) == 24
    for name in COHORT:
        assert years.instance.get_materialized_partitions(years.key(name)) == set(YEARS)
    assert len([run for run in years.instance.get_runs() if run.is_success]) == 3
    outcome = years.run(["tfds_directory"])
    assert outcome.success, failures(outcome)
    (event,) = outcome.get_asset_materialization_events()
    assert event.materialization.metadata["months"].value == 24
    assert event.materialization.metadata["patients"].value == 24


@pytest.mark.slow
def test_a_year_is_one_selection_and_the_checks_speak_of_both(years: NotesProject) -> None:
    first = YEARS[:12]
    outcome = years.run(["packed_cohorts"], [first[0], first[-1]])
    assert outcome.success
    found = {e.check_name: e for e in outcome.get_asset_check_evaluations()}["tokens_conserved"]
    assert found.passed
    assert found.metadata["cohorts_checked"].value == 0, "they are as they were when they passed"
    assert found.metadata["cohorts_checked_before"].value == 24
    assert found.metadata["cohorts_not_checked_yet"].value == 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NotesProject]:
    with notes_project(tmp_path_factory.mktemp("finished"), notes_attributes()) as made:
        made.run_all()
        yield made


def test_every_month_is_materialized_with_numbers_that_plot(finished: NotesProject) -> None:
    for name, shown in (
        ("packed_cohorts", ("patients", "rows", "fill", "documents", "tokens", "dropped", "bytes")),
        ("tfrecord_shards", ("shards", "rows", "bytes")),
    ):
        key = finished.key(name)
        assert finished.instance.get_materialized_partitions(key) == set(finished.notes.months.expected_keys)
        event = finished.instance.get_latest_materialization_event(key)
        assert event is not None
        assert event.asset_materialization is not None
        for label in shown:
            assert isinstance(event.asset_materialization.metadata[label].value, int | float), label


def test_the_directory_says_how_to_train_on_it_and_its_version_is_its_content(finished: NotesProject) -> None:
    event = finished.instance.get_latest_materialization_event(finished.key("tfds_directory"))
    receipt = read_receipt(finished.directory("tfds_directory"))
    assert event is not None
    assert event.asset_materialization is not None
    assert receipt is not None
    assert "dataset_name=notes:1.0.0" in str(event.asset_materialization.metadata["maxtext"].value)
    assert (event.asset_materialization.tags or {})["dagster/data_version"] == receipt.content[:32]


def test_all_is_up_to_date_and_verifies_offline_and_a_second_run_builds_nothing(finished: NotesProject) -> None:
    assert list(find_stale(finished.components[0].specs, finished.store)) == []
    verdicts = list(verify_path(finished.root))
    assert len(verdicts) == 11
    assert [v for v in verdicts if v.defects] == []
    outcome = finished.run(COHORT, finished.notes.months.expected_keys)
    assert outcome.success
    assert all(e.materialization.metadata["reused"].value for e in outcome.get_asset_materialization_events())


@pytest.mark.usefixtures("without_tensorflow")
def test_a_failed_cohort_is_red_and_alone_and_mending_it_builds_it_alone(tmp_path: Path) -> None:
    months = list_expected_months("2010-01", "2010-06")
    source = tiny_cohorts(tmp_path / "source", months)
    victim = source / "2010-03.json"
    good = victim.read_bytes()
    victim.write_bytes(good[:-9])
    with notes_project(tmp_path, plain_attributes(source, months)) as made:
        assert made.run(["engine_certificate"]).success
        outcome = made.run(COHORT, months)
        assert not outcome.success
        assert "1 of 6 cohorts failed" in failures(outcome)
        assert "in record 1" in failures(outcome)
        key = made.key("packed_cohorts")
        assert made.instance.get_materialized_partitions(key) == set(months) - {"2010-03"}
        assert not made.directory("packed_cohorts", "2010-03").exists()
        before = {m: made.directory("packed_cohorts", m).stat().st_ino for m in months if m != "2010-03"}
        victim.write_bytes(good)
        assert made.run(COHORT, months).success
        assert {m: made.directory("packed_cohorts", m).stat().st_ino for m in before} == before
        assert made.run(["tfds_directory"]).success


@pytest.mark.usefixtures("without_tensorflow")
def test_a_changed_month_is_the_only_one_that_a_run_is_about(tmp_path: Path) -> None:
    months = list_expected_months("2010-01", "2010-03")
    source = tiny_cohorts(tmp_path / "source", months)
    with notes_project(tmp_path, plain_attributes(source, months)) as made:
        (notes,) = made.components

        def made_of(outcome: dg.ExecuteInProcessResult, name: str) -> list[str | None]:
            events = [event.materialization for event in outcome.get_asset_materialization_events()]
            return [event.partition for event in events if event.asset_key.path[-1] == name]

        assert made_of(made.build(notes), "packed_cohorts") == months
        written(source, {"2010-02": [patient("id of 2010-02", note(None))]})
        assert not made.build(notes).success, "its checks are never made"
        written(source, {"2010-02": [patient("id of 2010-02", note("tea, and no cake"))]})
        outcome = made.build(notes)
        assert outcome.success, failures(outcome)
        for name in ("packed_cohorts", "tfrecord_shards"):
            assert made_of(outcome, name) == ["2010-02"]
        of_cohorts = [e for e in outcome.get_asset_check_evaluations() if "cohorts_checked" in e.metadata]
        assert of_cohorts
        for evaluation in of_cohorts:
            assert evaluation.metadata["cohorts_checked"].value == 1
            assert evaluation.metadata["cohorts_checked_before"].value == 2
        assert find_pending(notes.specs, made.store, made.instance) == set()
        path = made.directory("tfrecord_shards", "2010-03")
        victim = next(file for file in sorted(path.rglob("*")) if file.is_file() and file.name != "receipt.json")
        content = victim.read_bytes()
        victim.unlink()
        victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        repaired = made.build(notes)
        assert made_of(repaired, "packed_cohorts") == []
        assert made_of(repaired, "tfrecord_shards") == ["2010-03"]


@pytest.mark.usefixtures("without_tensorflow")
def test_a_gap_in_the_months_is_refused_by_name(tmp_path: Path) -> None:
    months = list_expected_months("2010-01", "2010-03")
    source = tiny_cohorts(tmp_path / "source", months)
    (source / "2010-02.json").unlink()
    with notes_project(tmp_path, plain_attributes(source, months)) as made:
        assert made.run(["engine_certificate"]).success
        assert "2010-02" in failures(made.run(COHORT, months))
        assert made.run(COHORT, ["2010-01", "2010-01"]).success
        assert made.run(COHORT, ["2010-03", "2010-03"]).success
        outcome = made.run(["tfds_directory"])
        assert_names(failures(outcome), 1, 3, "2010-02")


@pytest.mark.usefixtures("without_tensorflow")
def test_a_patient_in_two_cohorts_is_refused_before_a_month_is_packed_unless_declared(tmp_path: Path) -> None:
    months = ["2010-01", "2010-02"]
    source = written(tmp_path / "source", {m: [patient("the same", note(f"tea of {m}"))] for m in months})
    for policy in ("fail", "allow"):
        folder = tmp_path / policy
        with notes_project(folder, plain_attributes(source, months, duplicate_patients=policy)) as made:
            assert made.run(["engine_certificate"]).success
            outcome = made.run(COHORT, months)
            assert outcome.success == (policy == "allow")
            if policy == "fail":
                # The run fails because of the shared patient before any month is packed.
                assert_names(failures(outcome), 1, "2010-01", "2010-02")
                assert made.store.partitions("notes", "packed_cohorts") == []
            else:
                outcome = made.run(["tfds_directory"])
                found = {e.check_name: e for e in outcome.get_asset_check_evaluations()}["patients_disjoint"]
                assert (found.passed, found.metadata["patients_in_several_cohorts"].value) == (True, 1)


@pytest.mark.slow
def test_killed_within_a_run_and_run_again_the_bytes_are_the_same(tmp_path: Path) -> None:
    months = list_expected_months("2010-01", "2010-06")
    source = tiny_cohorts(tmp_path / "source", months)

    def start(folder: Path) -> forked.Forked:
        folder.mkdir(exist_ok=True)
        (folder / "spec.json").write_text(json.dumps([plain_attributes(source, months)]))
        return forked.start(["-c", WITHOUT_TFDS, folder], own_session=True)

    def killed(folder: Path) -> bool:
        """Whether a run was killed after its third cohort and before the directory; not, if this process was slow."""
        process = start(folder)
        wanted = folder / "artifacts" / "notes" / "packed_cohorts" / "2010-03" / "receipt.json"
        while process.poll() is None and not wanted.exists():
            time.sleep(0.01)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return wanted.exists() and not (folder / "artifacts" / "notes" / "tfds_directory").exists()

    assert start(tmp_path / "undisturbed").wait(600) == 0
    disturbed = next(folder for folder in (tmp_path / f"disturbed {n}" for n in range(10)) if killed(folder))
    assert start(disturbed).wait(600) == 0
    assert products(disturbed / "artifacts") == products(tmp_path / "undisturbed" / "artifacts")
    assert receipts(disturbed / "artifacts") == receipts(tmp_path / "undisturbed" / "artifacts")
    assert debris(disturbed / "artifacts", after_a_kill=True) == []


def test_the_code_versions_of_its_assets_are_the_versions_that_made_its_artifacts(finished: NotesProject) -> None:
    specs = [spec for component in finished.components for spec in component.specs]
    assert differing_versions(specs, finished.store) == {}
