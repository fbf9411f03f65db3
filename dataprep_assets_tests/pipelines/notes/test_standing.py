"""What a remembered verdict on a cohort stands for: the bytes, the source and the settings that were proven."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes.cohort_shards import sharded_cohorts
from dataprep_assets.pipelines.notes.packed_cohorts import packed_cohorts
from dataprep_assets.pipelines.notes.packed_files import packed_paths
from dataprep_assets.pipelines.notes.standing import is_intact, is_unchanged
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, plain, written
from dataprep_assets_tests.pipelines.notes.pipeline import run_notes

MONTH = "2010-01"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("finished")
    source = written(home / "source", {MONTH: [patient("A", note("A visit.")), patient("B", note("Another visit."))]})
    assert not run_notes(plain(source), home / "artifacts").failed
    return home


@pytest.fixture
def home(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def stands(home: Path, **changes: Any) -> tuple[bool, bool]:
    """Whether the packed cohort, and its shards, are what they were."""
    notes, store = plain(home / "source", **changes), LocalArtifacts(home / "artifacts")
    (cohort,) = packed_cohorts(notes, store, [MONTH])
    (shards,) = sharded_cohorts(notes, store, [MONTH])
    return (
        is_unchanged(cohort.artifact, store, lambda: cohort.recipe_now),
        is_unchanged(shards.artifact, store, lambda: shards.recipe(store.require(shards.packed))),
    )


def rows(home: Path) -> Path:
    """The columnar file of the month."""
    notes = plain(home / "source")
    directory = LocalArtifacts(home / "artifacts").directory(notes.artifact("packed_cohorts", MONTH))
    return directory / packed_paths(notes, MONTH)["train"].rows


def test_what_was_packed_stands(home: Path) -> None:
    assert stands(home) == (True, True)


def test_a_flipped_byte_a_lost_file_and_a_lost_receipt_do_not(home: Path) -> None:
    whole = rows(home).read_bytes()
    rows(home).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert stands(home) == (False, True)
    rows(home).unlink()
    assert not stands(home)[0]
    assert not is_intact(
        plain(home / "source").artifact("packed_cohorts", "2010-02"), LocalArtifacts(home / "artifacts")
    )


def test_another_source_and_other_settings_do_not(home: Path) -> None:
    assert stands(home, row_length=16) == (False, True), "the shards are still those of these rows"
    assert stands(home, rows_per_shard=2) == (True, False)
    written(home / "source", {MONTH: [patient("A", note("A visit.")), patient("B", note("Other words."))]})
    assert stands(home) == (False, True)
    (home / "source" / f"{MONTH}.json").unlink()
    assert not stands(home)[0]
