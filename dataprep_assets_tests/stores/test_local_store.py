"""The contract on a folder, and faults that only a folder can have."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import ConfigError, SourceError, TransferError
from dataprep_assets.stores import files
from dataprep_assets.stores.local import LocalStore
from dataprep_assets.stores.store import ConflictError
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.stores.contract import StoreContract, content, sha256


class TestLocalStore(StoreContract):
    has_metadata = False

    @pytest.fixture
    def store(self, tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
        return LocalStore(tmp_path_factory.mktemp("local") / "root")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "root")


def test_no_key_escapes_through_a_symbolic_link(store: LocalStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    store.put("inside", b"x")
    (tmp_path / "root" / "folder").symlink_to(outside)
    (tmp_path / "root" / "file").symlink_to(outside / "secret")
    (tmp_path / "root" / "good").symlink_to(tmp_path / "root" / "inside")
    for key in ("folder/secret", "file"):
        with raises(ConfigError, key):
            b"".join(store.read(key))
        with raises(ConfigError, key):
            store.put(key, b"overwritten")
    assert [info.key for info in store.list()] == ["good", "inside"]
    assert b"".join(store.read("good")) == b"x"
    assert (outside / "secret").read_bytes() == b"secret"


def test_a_key_that_is_a_folder_of_another_is_reported(store: LocalStore) -> None:
    store.put("a/b", b"x")
    assert store.head("a") is None
    assert store.head("a/b/c") is None
    for key in ("a", "a/b/c"):
        with raises(SourceError, key):
            store.put(key, b"y")
    assert [info.key for info in store.list()] == ["a/b"]
    assert store.sweep() == 0


def test_versions_differ_although_inodes_are_reused_at_once(store: LocalStore) -> None:
    versions = [store.put("key", b"same size").version for _ in range(300)]
    assert len(set(versions)) == 300


def test_a_file_that_is_overwritten_during_a_read_is_detected(store: LocalStore, tmp_path: Path) -> None:
    store.put("key", content(3 << 20))
    blocks = store.read("key")
    next(blocks)
    with open(tmp_path / "root" / "key", "r+b") as file:
        file.truncate(1 << 20)
    with raises(ConflictError, "key"):
        list(blocks)


def test_a_file_that_is_replaced_during_a_read_stays_intact(store: LocalStore) -> None:
    data = content(3 << 20)
    store.put("key", data)
    blocks = store.read("key")
    first = next(blocks)
    store.put("key", b"another")
    assert first + b"".join(blocks) == data


def test_the_hidden_folder_is_swept_except_files_of_active_writers(store: LocalStore, tmp_path: Path) -> None:
    store.put("key", b"x")
    for name, key in (("1" * 32, "data/a"), ("2" * 32, "data/b"), ("3" * 32, "else/c")):
        path = tmp_path / "root" / ".uploads" / name / key
        path.parent.mkdir(parents=True)
        path.write_bytes(b"half")
    assert [info.key for info in store.list()] == ["key"]
    assert store.sweep("data/", older_than_seconds=3600) == 0
    assert store.sweep("data/") == 2
    assert store.sweep() == 1
    assert [path.name for path in (tmp_path / "root" / ".uploads").iterdir()] == ["lock"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("cannot mount a tmpfs here (root is needed)")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_reported_and_the_old_object_kept(small_disk: Path, tmp_path: Path) -> None:
    store = LocalStore(small_disk / "root")
    data = content(3 << 20)
    (tmp_path / "file").write_bytes(content(5 << 20))
    before = [store.put("key", b"the old object"), store.put("large", data)]
    for act in (
        lambda: store.put("key", data),
        lambda: store.upload(tmp_path / "file", "key", sha256=sha256(content(5 << 20))),
        lambda: store.compose(["large", "key"], "key"),
    ):
        with raises(TransferError, str(small_disk), "full"):
            act()
        assert [*store.list()] == before
        assert [path.name for path in (small_disk / "root" / ".uploads").iterdir()] == ["lock"]
    assert b"".join(store.read("key")) == b"the old object"


def test_each_composition_has_a_new_version(store: LocalStore) -> None:
    store.put("a", b"a")
    store.put("b", b"b")
    versions = [store.compose(["a", "b"], "key").version for _ in range(50)]
    assert len(set(versions)) == 50


@pytest.mark.parametrize(("owner", "step"), [(os, "copy_file_range"), (files, "concatenate")], ids=["during", "after"])
def test_a_source_that_changes_during_a_join_is_detected(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str
) -> None:
    store.put("large", content(1 << 20))
    real = getattr(owner, step)

    def changing(*arguments: Any, **options: Any) -> int:
        moved: int = real(*arguments, **options)
        with open(tmp_path / "root" / "large", "ab") as file:
            file.write(b"more")
        return moved

    monkeypatch.setattr(owner, step, changing)
    with pytest.raises(ConflictError):
        store.compose(["large", "large"], "key")
    assert store.head("key") is None


class TestKills:
    """Kills of a process that uploads from a slow pipe, inspected by another process."""

    SLOW = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from dataprep_assets.stores.local import LocalStore
        LocalStore(Path(sys.argv[1])).upload(Path(sys.argv[2]), "key", sha256=sys.argv[3])
        """
    )

    def test_a_killed_upload_shows_nothing_and_is_swept_once_dead(self, store: LocalStore, tmp_path: Path) -> None:
        data = content(1 << 20)
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        before = store.put("key", b"the old object")
        arguments = [sys.executable, "-c", self.SLOW, str(tmp_path / "root"), str(fifo), sha256(data)]
        process = subprocess.Popen(arguments)
        feeding = threading.Event()

        def feed() -> None:
            with open(fifo, "wb", buffering=0) as pipe:
                pipe.write(data[: 512 * 1024])
                feeding.set()
                process.wait()

        thread = threading.Thread(target=feed)
        thread.start()
        assert feeding.wait(30)
        uploads = tmp_path / "root" / ".uploads"
        while not [*uploads.glob("*/key")]:
            time.sleep(0.01)
        assert store.sweep() == 0
        assert store.head("key") == before
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        thread.join()
        assert store.head("key") == before
        assert [info.key for info in store.list()] == ["key"]
        assert store.sweep() == 1
        (tmp_path / "file").write_bytes(data)
        store.upload(tmp_path / "file", "key", sha256=sha256(data))
        assert b"".join(store.read("key")) == data
