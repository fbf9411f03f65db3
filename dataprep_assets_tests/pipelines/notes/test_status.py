"""`stale` names what must be built next, and nothing when nothing must."""

import json
import shutil
from pathlib import Path

from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes.status import stale, sweep_dataset
from dataprep_assets_tests.pipelines.corpus.pipeline import debris
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, plain, written
from dataprep_assets_tests.pipelines.notes.pipeline import SAMPLE, declaration, run_notes

MONTHS = ("2010-01", "2010-02")


def test_stale_follows_the_build_order(tmp_path: Path) -> None:
    source = written(tmp_path / "in", {m: [patient(m, note(f"tea {m}"))] for m in MONTHS})
    notes, store = plain(source, MONTHS), LocalArtifacts(tmp_path / "out")
    assert list(stale(notes, store)) == ["notes/engine_certificate"]
    run_notes(notes, tmp_path / "out")
    assert list(stale(notes, store)) == []
    longer = plain(source, MONTHS, row_length=64)
    assert list(stale(longer, store)) == [f"notes/packed_cohorts/{month}" for month in MONTHS]
    smaller = plain(source, MONTHS, rows_per_shard=2)
    assert list(stale(smaller, store)) == [f"notes/tfrecord_shards/{month}" for month in MONTHS]
    described = plain(source, MONTHS, description="tea")
    assert list(stale(described, store)) == ["notes/tfds_directory"]


def test_a_changed_cohort_makes_its_month_stale_and_no_other(tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(SAMPLE, source)
    notes = declaration(source)
    run_notes(notes, tmp_path / "out")
    people = json.loads((source / "2010-12.json").read_text())
    (source / "2010-12.json").write_text(json.dumps(people[:-1]))
    run = run_notes(notes, tmp_path / "out")
    assert run.built == [
        "engine_certificate",
        "packed_cohorts/2010-12",
        "tfrecord_shards/2010-12",
        "tfds_directory",
    ]


def test_a_damaged_file_makes_its_artifact_stale(tmp_path: Path) -> None:
    notes, store = declaration(), LocalArtifacts(tmp_path)
    run_notes(notes, tmp_path)
    path = next(store.directory(notes.artifact("packed_cohorts", "2011-01")).glob("*.arrow"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    assert list(stale(notes, store)) == ["sample_notes/packed_cohorts/2011-01"]
    assert run_notes(notes, tmp_path).built == ["packed_cohorts/2011-01"]
    assert list(stale(notes, store)) == []


def test_sweeping_removes_what_a_killed_run_left(tmp_path: Path) -> None:
    notes, store = declaration(), LocalArtifacts(tmp_path)
    run_notes(notes, tmp_path)
    left = store.directory(notes.artifact("packed_cohorts", "2011-01")).parent / ".staging" / f"2011-01-{'0' * 16}"
    left.mkdir()
    sweep_dataset(notes, store)
    assert debris(tmp_path) == []
