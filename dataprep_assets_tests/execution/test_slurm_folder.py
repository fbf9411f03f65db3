"""The folder that runs on Slurm share with other users: what a run removes there is its own."""

import errno
import os
from pathlib import Path

import pytest

from dataprep_assets.execution.slurm_pool import _forget


def run_folder(path: Path) -> Path:
    """The folder of a run, with a task, an answer and a log."""
    for name in ("tasks", "answers", "logs"):
        (path / "0" / name).mkdir(parents=True)
        (path / "0" / name / "1").write_text(name)
    (path / "sign").write_text("0")
    return path


@pytest.mark.parametrize("whole", [True, False])
def test_a_link_in_the_shared_folder_is_not_followed(tmp_path: Path, whole: bool) -> None:
    victim = run_folder(tmp_path / "home/of/another")
    link = tmp_path / "run"
    link.symlink_to(victim)
    with pytest.raises(OSError) as refused:
        _forget(link, whole=whole)
    assert refused.value.errno in (errno.ENOTDIR, errno.ELOOP)
    assert (victim / "0/tasks/1").read_text() == "tasks"


@pytest.mark.parametrize("whole", [True, False])
def test_links_below_the_folder_of_a_run_are_not_followed(tmp_path: Path, whole: bool) -> None:
    victim, mine = run_folder(tmp_path / "another"), run_folder(tmp_path / "run")
    (mine / "1").symlink_to(victim / "0")
    (mine / "2").mkdir()
    (mine / "2/tasks").symlink_to(victim / "0/tasks")
    _forget(mine, whole=whole)
    assert (victim / "0/tasks/1").read_text() == "tasks"
    assert not (mine / "0/tasks").exists()
    assert mine.exists() is not whole
    assert (mine / "0/logs/1").exists() is not whole


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
@pytest.mark.parametrize("whole", [True, False])
def test_the_folder_of_another_user_is_left_alone(tmp_path: Path, whole: bool) -> None:
    other = run_folder(tmp_path / "run")
    os.chown(other, 65534, 65534)
    _forget(other, whole=whole)
    assert (other / "0/tasks/1").read_text() == "tasks"
