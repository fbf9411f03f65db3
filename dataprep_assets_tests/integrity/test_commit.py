"""An artifact appears complete or not at all, and no files of an earlier run stay next to it."""

import fcntl
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dataprep_assets.integrity import commit
from dataprep_assets.integrity.commit import (
    STAGING,
    open_staging,
    publish_directory,
    recover_aside,
    remove_directory,
    sweep,
    write_atomically,
)
from dataprep_assets_tests.opened import count_opens

KEY, OTHER = "a" * 64, "b" * 64


def fill(directory: Path, content: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "data").write_text(content)
    return directory


def read_files(directory: Path) -> str:
    return (directory / "data").read_text()


def list_leftovers(parent: Path) -> list[str]:
    """Return everything below the folder except locks."""
    return sorted(p.relative_to(parent).as_posix() for p in parent.rglob("*") if p.is_file() and p.suffix != ".lock")


@pytest.fixture(params=["exchange", "two renames"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Use the kernel's exchange, or behave like a file system without it."""
    if request.param == "two renames":
        monkeypatch.setattr(commit, "_RENAME_EXCHANGE", 1 << 20)  # a flag that every kernel refuses with EINVAL
    return str(request.param)


def test_a_new_artifact_replaces_the_old_and_leaves_nothing(tmp_path: Path, way: str) -> None:
    final = tmp_path / "x" / "final"
    for content in ("one", "two", "three"):
        with open_staging(final, KEY) as staged:
            publish_directory(fill(staged, content), final)
        assert read_files(final) == content
        assert list_leftovers(tmp_path) == ["x/final/data"]


@pytest.mark.usefixtures("way")
def test_a_link_to_another_disk_is_replaced_or_removed_but_its_target_stays(tmp_path: Path) -> None:
    final, elsewhere = tmp_path / "data" / "final", fill(tmp_path / "disk" / "moved", "old")
    final.parent.mkdir()
    final.symlink_to(elsewhere)
    with open_staging(final, KEY) as staged:
        publish_directory(fill(staged, "new"), final)
    assert (read_files(final), final.is_symlink(), read_files(elsewhere)) == ("new", False, "old")
    assert list_leftovers(final.parent) == ["final/data"]
    shutil.rmtree(final)
    final.symlink_to(elsewhere)
    remove_directory(final, "data")
    assert (os.path.lexists(final), read_files(elsewhere)) == (False, "old")
    final.symlink_to(tmp_path / "not mounted")
    with open_staging(final, KEY) as staged:
        publish_directory(fill(staged, "new"), final)
    assert (read_files(final), final.is_symlink()) == ("new", False)


def test_a_reader_sees_the_old_or_the_new_artifact_and_never_none(tmp_path: Path) -> None:
    final = fill(tmp_path / "final", "x" * 1000)
    seen: set[str] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.add(read_files(final)[:1])

    thread = threading.Thread(target=look)
    thread.start()
    for content in "abcdefgh" * 10:
        publish_directory(fill(tmp_path / "staged", content * 1000), final)
    done.set()
    thread.join()
    assert seen <= set("xabcdefgh")


def test_a_replacement_interrupted_between_its_renames_is_undone(tmp_path: Path) -> None:
    fill(tmp_path / ".aside-final", "old")
    with open_staging(tmp_path / "final", KEY):
        assert read_files(tmp_path / "final") == "old"
    assert not (tmp_path / ".aside-final").exists()


def test_a_replacement_interrupted_after_its_renames_is_finished(tmp_path: Path) -> None:
    fill(tmp_path / ".aside-final", "old")
    fill(tmp_path / "final", "new")
    recover_aside(tmp_path / "final")
    assert read_files(tmp_path / "final") == "new"
    assert list_leftovers(tmp_path) == ["final/data"]


def test_staging_keeps_the_parts_of_its_key_and_removes_those_of_others(tmp_path: Path) -> None:
    final = tmp_path / "train-00001"
    with open_staging(final, KEY) as staged:
        fill(staged, "part")
    with open_staging(tmp_path / "train-00010", OTHER) as neighbor:
        fill(neighbor, "another artifact's")
    with open_staging(final, KEY) as again:
        assert again == staged
        assert read_files(again) == "part"
    with open_staging(final, OTHER) as other:
        assert not staged.exists()
        assert list(other.iterdir()) == []
    assert read_files(neighbor) == "another artifact's"


def test_a_failing_build_changes_nothing(tmp_path: Path) -> None:
    final = fill(tmp_path / "final", "old")

    def build() -> None:
        with open_staging(final, KEY) as staged:
            fill(staged, "half of the new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        build()
    assert read_files(final) == "old"


def test_no_build_lists_the_locks_of_all_others(tmp_path: Path) -> None:
    finals = [tmp_path / f"train-{i:05}" for i in range(30)]
    with count_opens(tmp_path) as opened:
        for key in (KEY, OTHER):
            for final in finals:
                with open_staging(final, key) as staged:
                    fill(staged, "left by a kill")
        assert opened[STAGING] == 0
        assert list_leftovers(tmp_path / STAGING) == [f"{final.name}-{OTHER[:16]}/data" for final in finals]
        opened.clear()
        for final in finals:
            sweep([final])
        assert opened[STAGING] == len(finals), "only to remove what was left, once"
        opened.clear()
        for final in finals:
            sweep([final])
        assert opened[STAGING] == 0
    assert list_leftovers(tmp_path) == []


@pytest.mark.parametrize("said", [b"", b"\xff", b"../../elsewhere\n", b"train-00001-" + b"9" * 16 + b"\n"])
def test_a_damaged_lock_file_or_one_of_another_version_removes_nothing_else(tmp_path: Path, said: bytes) -> None:
    final, elsewhere = tmp_path / "a" / "b" / "train-00001", fill(tmp_path / "elsewhere", "somebody's")
    with open_staging(final, KEY) as staged:
        fill(staged, "left by a kill")
    (final.parent / STAGING / "train-00001.lock").write_bytes(said)
    with open_staging(final, OTHER) as other:
        assert list(other.iterdir()) == []
        assert staged.exists() == bool(said), "an empty one is of a version that wrote nothing into it"
    sweep([final])
    assert list_leftovers(final.parent) == []
    assert read_files(elsewhere) == "somebody's"


def test_sweeping_removes_staging_and_set_aside_folders_of_only_the_given_artifacts(tmp_path: Path) -> None:
    for name in ("train-00001", "train-00002"):
        fill(tmp_path / name, "finished")
        for key in (KEY, OTHER):
            fill(tmp_path / STAGING / f"{name}-{key[:16]}", "left by a kill")
        fill(tmp_path / f".aside-{name}", "left by a kill")
    sweep(
        [
            tmp_path / "train-00001",
            tmp_path / "never built",
            tmp_path / "folder does not exist. Set `old_folder` if it has a different name" / "x",
        ]
    )
    assert [name for name in list_leftovers(tmp_path) if "00001" in name] == ["train-00001/data"]
    assert len([name for name in list_leftovers(tmp_path) if "00002" in name]) == 4


def test_sweeping_keeps_artifacts_that_another_process_is_building(tmp_path: Path) -> None:
    final = fill(tmp_path / "final", "finished")
    with open_staging(final, KEY) as staged:
        fill(staged, "at work")
        sweep([final])
        assert read_files(staged) == "at work"
    sweep([final])
    assert not staged.exists()


def test_a_lock_is_released_at_the_end_of_its_process(tmp_path: Path) -> None:
    final = tmp_path / "final"
    code = (
        "import os, signal; from pathlib import Path; from dataprep_assets.integrity.commit import open_staging\n"
        f"with open_staging(Path({str(final)!r}), {KEY!r}): os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with open(tmp_path / STAGING / "final.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_second_builder_waits_for_the_first(tmp_path: Path) -> None:
    final, order = tmp_path / "final", []

    def second() -> None:
        with open_staging(final, KEY):
            order.append("second")

    with open_staging(final, KEY):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_a_small_file_is_replaced_by_one_rename(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_atomically(path, b"old")
    inode = path.stat().st_ino
    with open(path, "rb") as reader:
        write_atomically(path, b"new")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"
    assert path.stat().st_ino != inode
    assert os.listdir(tmp_path) == ["f"]


def test_old_drafts_of_killed_writers_are_removed_by_the_next_write_and_fresh_ones_stay(tmp_path: Path) -> None:
    path = tmp_path / "train-00000.json"
    old, fresh, other = (tmp_path / f".{name}.tmp" for name in ("train-00000.json.1", "train-00000.json.2", "x.json.3"))
    for draft in (old, fresh, other):
        draft.write_bytes(b"{")
    for draft in (old, other):
        os.utime(draft, (1, 1))
    (foreign := tmp_path / ".x.tmp").touch()
    os.utime(foreign, (1, 1))
    with count_opens(tmp_path.parent) as opened:
        for _ in range(10):
            write_atomically(path, b"{}", durably=False)  # syncing would also open the folder
        assert opened[tmp_path.name] == 1, "the folder, which may have thousands of files, is not listed each time"
    assert path.read_bytes() == b"{}"
    assert sorted(tmp_path.iterdir()) == sorted([path, fresh, foreign])
