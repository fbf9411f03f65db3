"""Artifacts are removed completely, in a folder and in buckets; no kill leaves one that looks finished."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dataprep_assets.errors import IntegrityError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore, LocalArtifacts
from dataprep_assets.integrity.bucket import BucketArtifacts
from dataprep_assets.integrity.commit import open_staging
from dataprep_assets.integrity.scratch import OverlayArtifacts
from dataprep_assets_tests.fakes.places import Places
from dataprep_assets_tests.integrity.builds import ARTIFACT, NEW, OLD, KillingPlace, build, open_store
from dataprep_assets_tests.messages import raises

OTHER = Artifact(dataset="ds", name="thing", partition="p-1")
KINDS = ("plain folder", "folder", "moto", "gcs")


def open_test_store(kind: str, servers: Places, folder: Path) -> ArtifactStore:
    return LocalArtifacts(folder) if kind == "plain folder" else open_store(servers.new(kind), folder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_removed_artifact_leaves_nothing_and_its_neighbor_stays(kind: str, servers: Places, tmp_path: Path) -> None:
    store = open_test_store(kind, servers, tmp_path)
    build(store, OLD, "k1")
    kept, _ = build(store, NEW, "k1", OTHER)
    assert store.partitions("ds", "thing") == ["p-0", "p-1"]
    store.local(ARTIFACT)
    assert store.remove(ARTIFACT)
    copies = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert not any("/p-0/" in path.as_posix() for path in copies), "neither here nor in the cache of a bucket"
    assert store.receipt(ARTIFACT) is None
    assert store.partitions("ds", "thing") == ["p-1"]
    assert store.damage(OTHER, kept) == []
    assert store.find_current(ARTIFACT, "k1") is None, "nothing is left from which it could come back"
    assert store.remove(ARTIFACT), "removing what is gone is no error"
    receipt, reused = build(store, OLD, "k1")
    assert (reused, store.damage(ARTIFACT, receipt)) == (False, [])


@pytest.mark.parametrize("kind", KINDS)
def test_an_artifact_that_is_being_built_stays(kind: str, servers: Places, tmp_path: Path) -> None:
    store = open_test_store(kind, servers, tmp_path)
    receipt, _ = build(store, OLD, "k1")
    with open_staging(store.directory(ARTIFACT), "k2"):
        assert not store.remove(ARTIFACT)
    assert store.damage(ARTIFACT, receipt) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_contains_other_artifacts_is_not_removed(kind: str, servers: Places, tmp_path: Path) -> None:
    store = open_test_store(kind, servers, tmp_path)
    receipt, _ = build(store, OLD, "k1")
    with raises(IntegrityError, "ds/thing"):
        store.remove(Artifact(dataset="ds", name="thing"))
    assert store.damage(ARTIFACT, receipt) == []


def run_in_process(program: str, *arguments: str) -> int:
    """Run a program in a process, and return its exit code."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=Path(__file__).parents[2], check=False, timeout=200).returncode


def remove_and_die(root: str) -> None:
    """Remove an artifact, and be killed once the receipt is deleted and all other files still exist."""
    import shutil

    shutil.rmtree = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    LocalArtifacts(Path(root)).remove(ARTIFACT)


def remove_from_bucket(bucket: str, cache: str, at: str) -> None:
    """Remove an artifact from a bucket, and be killed before the delete with this number."""
    BucketArtifacts(Path(cache), KillingPlace(Path(bucket), int(at)), "file://bucket").remove(ARTIFACT)


def test_a_kill_in_a_folder_leaves_no_finished_artifact_and_the_next_call_removes_the_rest(tmp_path: Path) -> None:
    store = LocalArtifacts(tmp_path)
    build(store, OLD, "k1")
    program = f"from {__name__} import remove_and_die; import sys; remove_and_die(*sys.argv[1:])"
    assert run_in_process(program, str(tmp_path)) == -signal.SIGKILL
    assert (store.directory(ARTIFACT) / "a.bin").exists()
    assert store.receipt(ARTIFACT) is None
    assert store.partitions("ds", "thing") == ["p-0"], "it is found again"
    assert store.remove(ARTIFACT)
    assert store.partitions("ds", "thing") == []


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_kill_in_a_bucket_leaves_the_finished_artifact_or_none(at: int, servers: Places, tmp_path: Path) -> None:
    place = servers.new("folder")
    receipt, _ = build(open_store(place, tmp_path / "builder"), OLD, "k1")
    bucket = Path(place.url.removeprefix("file://"))
    program = f"from {__name__} import remove_from_bucket; import sys; remove_from_bucket(*sys.argv[1:])"
    assert run_in_process(program, str(bucket), str(tmp_path / "cache"), str(at)) == -signal.SIGKILL
    store = open_store(place, tmp_path / "other")
    if at == 1:
        assert store.damage(ARTIFACT, receipt) == []
    else:
        assert store.receipt(ARTIFACT) is None
        assert store.find_current(ARTIFACT, "k1") is None
    assert store.partitions("ds", "thing") == ["p-0"]
    assert store.remove(ARTIFACT)
    assert [info.key for info in store.store.list()] == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_version_of_a_receipt_changes_when_it_is_replaced_and_is_none_if_missing(
    kind: str, servers: Places, tmp_path: Path
) -> None:
    store = open_test_store(kind, servers, tmp_path)
    assert store.receipt_versions([ARTIFACT, OTHER]) == [None, None]
    build(store, OLD, "k1")
    build(store, OLD, "k1", OTHER)
    first, other = store.receipt_versions([ARTIFACT, OTHER])
    assert None not in (first, other)
    build(store, NEW, "k2")
    again, same = store.receipt_versions([ARTIFACT, OTHER])
    assert (again != first, same) == (True, other)
    assert OverlayArtifacts(tmp_path / "scratch", store).receipt_versions([ARTIFACT, OTHER]) == [again, same]
    assert store.remove(ARTIFACT)
    assert store.receipt_versions([ARTIFACT, OTHER]) == [None, other]
