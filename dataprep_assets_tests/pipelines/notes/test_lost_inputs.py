"""`verify` misses a month that shards and directories were made of."""

import shutil
from pathlib import Path

import pytest

from dataprep_assets_tests.lost_inputs import find_input_defects
from dataprep_assets_tests.pipelines.notes.pipeline import declaration, run_notes


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("notes")
    assert not run_notes(declaration(), root).failed
    return root


@pytest.mark.parametrize(
    ("lost", "users"),
    [("packed_cohorts", ["tfrecord_shards/{month}", "tfds_directory"]), ("tfrecord_shards", ["tfds_directory"])],
)
def test_a_lost_month_is_missed_by_what_was_made_of_it(
    finished: Path, tmp_path: Path, lost: str, users: list[str]
) -> None:
    root, notes = Path(shutil.copytree(finished, tmp_path / "root")), declaration()
    month = notes.months.expected_keys[0]
    told = find_input_defects(root, notes.dataset, f"{lost}/{month}")
    names = [f"{notes.dataset}/{user.format(month=month)}" for user in users]
    assert told == dict.fromkeys(names, (f"its input {lost}/{month} is missing. Rebuild {lost}/{month}",))
