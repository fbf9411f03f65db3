"""The shipped sample task folders equal their generator's output, are small, and pass every check."""

from pathlib import Path

import pytest

import dataprep_assets
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.tasks.checks import check_task
from dataprep_assets.pipelines.tasks.declaration import TaskMigrationDeclaration
from dataprep_assets.pipelines.tasks.migration import migrate_task
from dataprep_assets.pipelines.tasks.routes import list_partitions
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.tools.sample.make_sample_tasks import COUNTS, LAYOUT, MOST, VERSIONS, task_rows, write_sample

COMMITTED = Path(dataprep_assets.__file__).parent / "defs" / "samples" / "sample_tasks" / "data"


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_committed_files_equal_the_generators_output(tmp_path: Path) -> None:
    write_sample(tmp_path)
    assert files(tmp_path) == files(COMMITTED)
    assert sum(map(len, files(COMMITTED).values())) < 60_000


@pytest.mark.parametrize("version", ["base", "all"])
def test_the_sample_migrates_and_passes_every_check(tmp_path: Path, version: str) -> None:
    declaration = TaskMigrationDeclaration.model_validate(
        {
            "dataset": "sample_tasks",
            "old_root": COMMITTED / "old",
            "new_root": tmp_path / "new",
            "original": COMMITTED / "original",
            "tasks": {"Copa": {"version": version}, "ArcC_Cloze": {"mode": "symlink"}},
            "contracts": {
                task: {"like": task, "files": {split: {"rows": count} for split, count in counts.items()}}
                for task, counts in COUNTS.items()
            },
        }
    )
    store = LocalArtifacts(tmp_path / "store")
    for partition in list_partitions(declaration):
        migrate_task(declaration, store, partition)
        assert set(map(tuple, check_task(declaration, store, partition).values())) == {()}


def test_the_latest_version_is_not_the_last_alphabetically() -> None:
    folder = COMMITTED / "old" / LAYOUT / "Copa" / "mezo_gpt"
    names = sorted(p.name for p in folder.iterdir())
    assert VERSIONS[-1] == "version_10-1"
    assert names.index("version_10-1") < names.index("version_9-2")


@pytest.mark.parametrize("task", ["Copa", "BOOLQ", "CB", "RTE", "ArcC_Cloze", "ArcC_MC"])
def test_no_row_occurs_in_two_splits_and_too_many_are_refused(task: str) -> None:
    texts = [
        str({k: v for k, v in row.items() if k not in ("idx", "id", "label", "answer", "answerKey", "choices")})
        for split, count in MOST.items()
        for row in task_rows(task, split, count)
    ]
    assert len(set(texts)) == len(texts)
    with raises(ValueError, task):
        task_rows(task, "validation", MOST["validation"] + 1)
