"""A link at a path that the project writes to is not followed, and none leads out of a source unless declared."""

import ast
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import dataprep_assets
from dataprep_assets import open_project
from dataprep_assets.errors import IntegrityError, SourceError
from dataprep_assets.integrity.commit import hold_alone, open_staging, write_atomically
from dataprep_assets.pipelines.blend.data_blend import BlendDataset, Unit
from dataprep_assets.pipelines.blend.declaration import SourceAccessDeclaration
from dataprep_assets.pipelines.blend.plan.discovery import discover_dataset
from dataprep_assets.pipelines.tasks import migration
from dataprep_assets.serving.window.shared_state import SharedState, replace_file
from dataprep_assets.sources.access import LocalTree
from dataprep_assets.sources.hub_cache import list_cached_files
from dataprep_assets.stores import ranged
from dataprep_assets.stores.files import create_durably
from dataprep_assets_tests.messages import raises


def download(folder: Path) -> None:
    ranged.download(
        lambda start, stop: iter([b"x" * (stop - start)]), size=4, target=folder / "a.bin", sha256=None, label="a"
    )


def durably(folder: Path) -> None:
    with create_durably(folder / "a") as file:
        file.write(b"new")


def staged(folder: Path) -> None:
    with open_staging(folder / "final", "0123456789abcdef") as area:
        (area / "victim").write_bytes(b"new")


def held(folder: Path) -> None:
    with hold_alone(folder / "final"):
        pass


def fetched(folder: Path) -> None:
    state = SharedState(folder, "train")
    with state.claim_download(3):
        pass


def migrated(folder: Path) -> None:
    with migration._lock_partition(folder / "Copa"):
        pass


def opened(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(folder / "home"))
        with open_project().instance():
            pass


WRITERS: dict[str, Callable[[Path], None]] = {
    "a.bin.part": download,
    "a.draft": durably,
    "b.new": lambda folder: replace_file(folder / "b", b"new", 0o666),
    ".c.PID.tmp": lambda folder: write_atomically(folder / "c", b"new"),
    ".staging/final.lock": held,
    ".window/train/fetch/000003": fetched,
    ".staging/Copa.migration.lock": migrated,
    "home/.dataprep.lock": opened,
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe"])
def test_a_planted_link_is_named_and_unchanged(tmp_path: Path, name: str, kind: str) -> None:
    victim = tmp_path / "victim"
    if kind != "dangling":
        victim.write_bytes(b"precious")
    planted = tmp_path / "shared" / name.replace("PID", str(os.getpid()))
    planted.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(planted)
    else:
        planted.symlink_to(victim)
    with raises(IntegrityError, "link", "reserved"):
        WRITERS[name](tmp_path / "shared")
    assert victim.exists() == (kind != "dangling")
    assert kind == "dangling" or victim.read_bytes() == b"precious"


def test_every_locked_file_is_opened_without_following_a_link() -> None:
    """Wherever `flock` is used, the file is opened by `own_file`, is a folder, or was just created."""
    wrong, seen = [], 0
    for path in sorted(Path(dataprep_assets.__file__).parent.rglob("*.py")):
        if "flock" not in (source := path.read_text()) and "try_lock" not in source:
            continue
        for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
            said, name = ast.unparse(call), ast.unparse(call.func)
            if name in ("open", "os.open"):
                seen += 1
                if not any(safe in said for safe in ("own_file", "O_NOFOLLOW", "O_DIRECTORY", "O_EXCL")):
                    wrong.append(f"{path.name}:{call.lineno}: {said}")
    assert seen > 8
    assert wrong == []


def test_a_planted_staging_folder_is_not_used(tmp_path: Path) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (area := tmp_path / "store" / ".staging").mkdir(parents=True)
    (area / "final-0123456789abcdef").symlink_to(elsewhere)
    with raises(IntegrityError, "final-0123456789abcdef"):
        staged(tmp_path / "store")
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_link_may_leave_a_folder_only_if_declared(tmp_path: Path, what: str) -> None:
    (outside := tmp_path / "outside").mkdir()
    (outside / "a.jsonl").write_bytes(b"{}\n")
    (source := tmp_path / "source").mkdir()
    (source / "own.jsonl").write_bytes(b"{}\n")
    (source / "again.jsonl").symlink_to("own.jsonl")  # this link stays within the source
    (source / "link.jsonl" if what == "file" else source / "link").symlink_to(
        outside / "a.jsonl" if what == "file" else outside
    )
    with raises(SourceError, "link", "follow_links: true"):
        LocalTree(source).list()
    found = {file.relpath for file in LocalTree(source, follow_links=True).list().files}
    assert found == {"own.jsonl", "again.jsonl", "link.jsonl" if what == "file" else "link/a.jsonl"}
    (tmp_path / "by_link").symlink_to(source)  # the source itself may be a link
    assert len(LocalTree(tmp_path / "by_link", follow_links=True).list().files) == 3
    (source / "loop").symlink_to(".")
    with raises(SourceError, "loop"):
        LocalTree(source, follow_links=True).list()


def test_a_link_may_leave_a_hub_cache_only_if_declared(tmp_path: Path) -> None:
    repo = tmp_path / "hub" / "datasets--org--data"
    snapshot = repo / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    (repo / "blobs" / ("b" * 40)).write_bytes(b"x")
    (snapshot / "good").symlink_to(f"../../blobs/{'b' * 40}")
    (tmp_path / "secret").write_bytes(b"secret")
    assert [file.relpath for file in list_cached_files(repo, "a" * 40)] == ["good"]
    (snapshot / "evil").symlink_to(tmp_path / "secret")
    with raises(SourceError, "evil"):
        list_cached_files(repo, "a" * 40)
    assert len(list_cached_files(repo, "a" * 40, follow_links=True)) == 2


def test_a_fifo_in_a_source_is_named_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    with raises(SourceError, "a.jsonl", "FIFO"):
        LocalTree(tmp_path).list()
    with raises(SourceError, "a.jsonl", "FIFO"):
        LocalTree(tmp_path, only="a.jsonl").list()
    unit = Unit(name="a", dataset=BlendDataset(name="a", path=str(tmp_path / "a.jsonl")), split=None)
    with raises(SourceError, "a.jsonl", "FIFO"):
        discover_dataset(unit, SourceAccessDeclaration())
