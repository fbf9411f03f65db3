"""Scratch folders are private, and those of killed processes are removed."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dataprep_assets.errors import IntegrityError
from dataprep_assets.integrity.scratch import create_scratch, sweep_scratch

HOLDS = """
import sys
from pathlib import Path
from dataprep_assets.integrity.scratch import create_scratch

with create_scratch(Path(sys.argv[1])) as folder:
    (folder / "texts").write_text("x")
    print(folder, flush=True)
    input()
"""


def hold_scratch(dataset: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that holds a scratch folder until its input ends, and return it with the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(dataset)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str], by: signal.Signals | None = None) -> None:
    if by is not None:
        process.send_signal(by)
    process.communicate(timeout=60)


def test_a_scratch_folder_is_private_and_removed_after_its_block(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with create_scratch(tmp_path / "notes") as folder:
            assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
            (folder / "deep").mkdir()
            (folder / "deep" / "texts").write_text("x")

    finally:
        os.umask(before)
    assert [path.name for path in folder.parent.iterdir()] == [".lock"]
    assert stat.S_IMODE((folder.parent / ".lock").stat().st_mode) == 0o600


def test_folders_of_killed_processes_are_removed_and_those_of_running_ones_stay(tmp_path: Path) -> None:
    sweep_scratch(tmp_path)  # the dataset may have no scratch folders yet
    (killed, left), (living, kept) = hold_scratch(tmp_path), hold_scratch(tmp_path)
    end(killed, signal.SIGKILL)
    assert (left / "texts").is_file()
    with create_scratch(tmp_path) as folder:
        assert not left.exists()
        assert (kept / "texts").is_file()
        assert folder not in (left, kept)
    end(living, signal.SIGKILL)
    sweep_scratch(tmp_path)
    assert not kept.exists()


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "notes" / ".staging").mkdir(parents=True)
    (tmp_path / "notes" / ".staging" / "scratch").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(IntegrityError), create_scratch(tmp_path / "notes"):
        pass
    assert not [*(tmp_path / "elsewhere").iterdir()]
