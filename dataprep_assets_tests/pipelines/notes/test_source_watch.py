"""Cohort files and the sources of a combination are polled for changes without revealing file names."""

import os
from pathlib import Path

import pytest

from dataprep_assets.engine.artifact.spec import EDITED, SourceWatch, poll_source
from dataprep_assets.errors import MissingArtifactError, SourceError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes.cohorts.packed_cohorts import build_notes_watch
from dataprep_assets.pipelines.notes.component import CombinedCohorts
from dataprep_assets.pipelines.notes.replay.replay import build_replay
from dataprep_assets.pipelines.notes.replay.replay_declaration import MixtureDeclaration
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, plain, written
from dataprep_assets_tests.pipelines.notes.pipeline import run_notes

MONTHS = ("2010-01", "2010-02")


def people(name: str, count: int = 3) -> list[dict[str, object]]:
    return [patient(f"{name}{i}", note(f"{name} number {i}, tea at {i} o'clock " * 2)) for i in range(count)]


def replay_watch(*sources: str) -> tuple[MixtureDeclaration, SourceWatch]:
    declared = MixtureDeclaration.model_validate(
        {"dataset": "both", "sources": [{"dataset": name} for name in sources]}
    )
    watch = CombinedCohorts(declared).specs[0].watch
    assert watch is not None
    return declared, watch


def test_added_and_changed_cohorts_are_reported(tmp_path: Path) -> None:
    source = written(tmp_path / "in", {month: people(month) for month in MONTHS})
    store = LocalArtifacts(tmp_path / "out")
    notes = plain(source, MONTHS)
    watch = build_notes_watch(notes)
    assert poll_source(watch, store, None).change == "2 cohorts new"
    assert not run_notes(notes, tmp_path / "out").failed
    built = poll_source(watch, store, None)
    assert built.change == ""
    os.utime(source / "2010-02.json", ns=(10**9, 10**9))
    assert poll_source(watch, store, built.identity).change == EDITED
    written(source, {"2010-01": people("2010-01", 4)})
    assert poll_source(watch, store, built.identity).change == "1 cohort changed"


def test_an_error_names_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "Jane-Doe"
    with pytest.raises(SourceError) as refused:
        poll_source(build_notes_watch(plain(folder)), LocalArtifacts(tmp_path / "out"), None)
    assert "Jane-Doe" not in str(refused.value)


def test_a_combination_polls_its_sources(tmp_path: Path) -> None:
    def build(name: str, count: int) -> None:
        records = {"2010-01": people(name, count)}
        declared = plain(written(tmp_path / name, records), dataset=name, rows_per_shard=1)
        assert not run_notes(declared, tmp_path / "out").failed

    store = LocalArtifacts(tmp_path / "out")
    declared, watch = replay_watch("first", "second")
    build("first", 3)
    with raises(MissingArtifactError, "second"):
        poll_source(watch, store, None)
    build("second", 4)
    assert poll_source(watch, store, None).change == "2 datasets not combined yet"
    build_replay(declared, store)
    made = poll_source(watch, store, None)
    assert made.change == ""
    build("second", 5)
    assert poll_source(watch, store, made.identity).change == "1 dataset changed"
