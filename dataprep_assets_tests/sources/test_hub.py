"""Tests of the hub mirror, with a real HTTP server that injects faults."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from dataprep_assets.errors import ConfigError, SourceError, TransferError
from dataprep_assets.sources.hub import HubRepo
from dataprep_assets.sources.hub_cache import HubFile, find_cached_snapshot
from dataprep_assets.stores.files import check_headroom
from dataprep_assets_tests.fakes.hub_server import HubServer
from dataprep_assets_tests.fakes.nobody import refused_url
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.sources.hub_mirror import (
    BIG,
    FAST,
    PART,
    RUN,
    SMALL,
    TREE,
    content,
    etag,
    everything,
    mirror,
    repo,
)


def test_the_fake_hub_serves_the_hub_s_own_client(hub: HubServer, tmp_path: Path) -> None:
    from huggingface_hub import HfApi, snapshot_download

    folder = snapshot_download("org/data", repo_type="dataset", cache_dir=tmp_path, endpoint=hub.endpoint)
    assert {name: (Path(folder) / name).read_bytes() for name in TREE} == TREE
    tree = HfApi(endpoint=hub.endpoint).list_repo_tree("org/data", recursive=True, repo_type="dataset")
    assert {entry.path for entry in tree} >= set(TREE)


def test_the_file_list_follows_every_page(tmp_path: Path) -> None:
    tree = {f"d{n % 7}/f{n:03}": b"x" * n for n in range(120)}
    with HubServer(tree, page_size=10, lfs_bytes=100) as hub:
        hub.fail("tree", "status", status=429, retry_after="0", first=5, times=2)
        hub.fail("tree", "reset", first=9)
        files = repo(hub, tmp_path).list_files(hub.commit)
        assert [file.relpath for file in files] == sorted(tree)
        assert {file.relpath: file.size for file in files} == {name: len(body) for name, body in tree.items()}
        assert sum(file.sha256 is not None for file in files) == 20
        # The list has 13 pages for 127 entries, including folders. Only the three failed pages are requested again.
        assert hub.count("tree") == 13 + 3


def test_an_endless_file_list_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataprep_assets.sources.hub._MAX_PAGES", 3)
    tree = {f"f{n:03}": b"x" for n in range(40)}
    with HubServer(tree, page_size=10) as hub:
        with raises(SourceError, 3):
            repo(hub, tmp_path).list_files(hub.commit)
        assert hub.count("tree") == 3


def test_a_file_list_that_continues_on_another_host_is_refused(tmp_path: Path) -> None:
    with HubServer(TREE, page_size=2) as hub:
        source = repo(hub, tmp_path, endpoint=hub.endpoint.replace("127.0.0.1", "localhost"), token="hf_secret")
        with raises(SourceError, "host"):
            source.list_files(hub.commit)


def test_a_missing_revision_or_repository_is_reported_at_once(hub: HubServer, tmp_path: Path) -> None:
    with raises(SourceError, "org/data", "other"):
        repo(hub, tmp_path, revision="other").resolve_commit()
    with raises(SourceError, "org/none", "main"):
        repo(hub, tmp_path, repo_id="org/none").resolve_commit()
    assert len(hub.log) == 2


def test_a_missing_server_uses_up_the_attempts(hub: HubServer, tmp_path: Path) -> None:
    with refused_url() as url:
        source = repo(hub, tmp_path, endpoint=url)
        with raises(TransferError, "org/data", "main", "ConnectError", 4):
            source.resolve_commit()


def test_an_unreachable_hub_is_reported_soon_with_the_remedy(hub: HubServer, tmp_path: Path) -> None:
    with refused_url() as url:
        source = repo(hub, tmp_path, endpoint=url, retry=replace(FAST, attempts=8))
        with raises(TransferError, 5, "HF_ENDPOINT", "hf_cache"):
            source.resolve_commit()


def test_a_branch_that_moves_meanwhile_does_not_mix_two_commits(hub: HubServer, tmp_path: Path) -> None:
    source = repo(hub, tmp_path)
    commit = source.resolve_commit()
    files = source.list_files(commit)
    hub.move_branch({**TREE, BIG: content("new", 2 * PART)})
    source.mirror(commit, files)
    assert (source.get_snapshot_dir(commit) / BIG).read_bytes() == TREE[BIG]
    assert find_cached_snapshot(source.repo_dir)[0] == commit
    # The next run reads the new commit and downloads only the changes.
    start = len(hub.log)
    paths = source.mirror(hub.commit, source.list_files(hub.commit))
    assert {entry.name for entry in hub.log[start:]} == {"tree", BIG}
    assert paths[-1].parent.parent.name == hub.commit
    assert find_cached_snapshot(source.repo_dir) == (hub.commit, source.get_snapshot_dir(hub.commit))


@pytest.mark.parametrize("name", [BIG, SMALL])
def test_only_a_flipped_blob_is_downloaded_again(hub: HubServer, tmp_path: Path, name: str) -> None:
    snapshot = mirror(hub, tmp_path)
    blob = (snapshot / name).resolve()
    body = bytearray(blob.read_bytes())
    body[len(body) // 2] ^= 1
    blob.write_bytes(body)
    start = len(hub.log)
    mirror(hub, tmp_path)
    assert {entry.name for entry in hub.log[start:]} == {"revision", "tree", name}


def test_two_processes_that_mirror_the_same_repository_both_succeed(tmp_path: Path) -> None:
    with HubServer(TREE, seconds_per_chunk=0.02) as hub:
        arguments = [sys.executable, "-c", RUN, hub.endpoint, str(tmp_path), "0"]
        processes = [subprocess.Popen(arguments) for _ in range(3)]
        assert [process.wait(30) for process in processes] == [0, 0, 0]
        mirror(hub, tmp_path)


def test_a_complete_mirror_requests_no_bytes(hub: HubServer, tmp_path: Path) -> None:
    snapshot = mirror(hub, tmp_path)
    start = len(hub.log)
    mirror(hub, tmp_path)
    (snapshot / BIG).resolve().write_bytes(b"too short")
    assert {entry.name for entry in hub.log[start:]} == {"revision", "tree"}
    mirror(hub, tmp_path)
    assert hub.spans(BIG, since=start)


def test_progress_counts_every_byte_once(hub: HubServer, tmp_path: Path) -> None:
    source = repo(hub, tmp_path)
    files = source.list_files(hub.commit)
    hub.fail(BIG, "flip")
    for _ in range(2):
        seen: list[int] = []
        source.mirror(hub.commit, files, part_bytes=PART, progress=seen.append)
        assert sum(seen) == sum(map(len, set(TREE.values())))


def test_a_commit_as_the_revision_writes_no_ref(hub: HubServer, tmp_path: Path) -> None:
    source = repo(hub, tmp_path, revision=hub.commit)
    source.mirror(source.resolve_commit(), source.list_files(hub.commit))
    assert not (source.repo_dir / "refs").exists()
    assert find_cached_snapshot(source.repo_dir, hub.commit) == (hub.commit, source.get_snapshot_dir(hub.commit))


def whole_blobs(folder: Path) -> list[str]:
    return [name for name in everything(folder) if "/blobs/" in name and not name.endswith(".part")]


def test_after_kill_9_only_the_active_file_is_downloaded_again(tmp_path: Path) -> None:
    tree = {"a.zst": content("a", 20 * PART), "b.zst": content("b", 7 * PART + 5)}
    with HubServer(tree) as hub:
        # Stall the download, so that the file is incomplete however late the kill happens.
        hub.fail("a.zst", "stall", first=12, times=None)
        arguments = [sys.executable, "-c", RUN, hub.endpoint, str(tmp_path), "0"]
        process = subprocess.Popen(arguments)
        while len(hub.spans("a.zst")) < 12 or not whole_blobs(tmp_path):
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        process.wait(10)
        hub.heal()
        cut = len(hub.log)
        assert not [name for name in everything(tmp_path) if "snapshots" in name or "refs" in name]
        mirror(hub, tmp_path, workers=3)
        assert {entry.name for entry in hub.log[cut:] if entry.span is not None} == {"a.zst"}


def test_twenty_interrupted_runs_leave_no_leftovers_once_complete(tmp_path: Path) -> None:
    with HubServer(TREE, seconds_per_chunk=0.05) as hub:
        arguments = [sys.executable, "-c", RUN, hub.endpoint, str(tmp_path), "20"]
        run = subprocess.run(arguments, capture_output=True, text=True, timeout=200, check=False)
        assert run.returncode == 0, run.stderr
        codes = run.stdout.split()
        assert len(codes) == 20
        # Some runs must be killed before their work is complete; the others may finish first.
        assert sum(code != "0" for code in codes) >= 5
        assert set(codes) <= {"0", "130", str(-signal.SIGINT)}
        hub.seconds_per_chunk = 0
        # `mirror` also compares the names of all files in the folder with the names of an uninterrupted mirror.
        mirror(hub, tmp_path)


def test_leftovers_of_a_late_kill_are_removed(hub: HubServer, tmp_path: Path) -> None:
    snapshot = mirror(hub, tmp_path)
    base = tmp_path / "datasets--org--data"
    drafts = (".ref-main.new", f".tree-{hub.commit}.new")
    for name in drafts:
        (base / name).write_text("{")
    (snapshot / SMALL).unlink()
    (snapshot / SMALL).write_bytes(b"a copy by a client without links")
    mirror(hub, tmp_path)
    assert (snapshot / SMALL).is_symlink()


@pytest.mark.parametrize("folder", ["trees", "refs"])
def test_a_draft_left_by_a_kill_is_reused(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    replace = os.replace

    def killed(source: Path, target: Path) -> None:
        if target.parent.name == folder:
            raise KeyboardInterrupt
        replace(source, target)

    # Run on a different thread, because the next run could not reuse a draft whose name contained the id of the thread
    # that wrote it.
    with monkeypatch.context() as patched, ThreadPoolExecutor(1) as other:
        patched.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            other.submit(mirror, hub, tmp_path).result()
    # `mirror` also compares the names of all files in the folder with the names of an uninterrupted mirror.
    mirror(hub, tmp_path)


def test_a_full_disk_is_reported_before_any_download(hub: HubServer, tmp_path: Path) -> None:
    source = repo(hub, tmp_path / "new")
    huge = HubFile(relpath=BIG, size=1 << 60, sha256=etag(BIG), etag=etag(BIG))
    with raises(SourceError, 1 << 60):
        source.mirror(hub.commit, [huge])
    assert hub.log == []
    assert not (tmp_path / "new").exists()
    check_headroom(tmp_path, 1000)
    with raises(SourceError, "headroom"):
        check_headroom(tmp_path, 1000, headroom=1e15)


def test_needed_disk_space_counts_each_missing_blob_once(hub: HubServer, tmp_path: Path) -> None:
    source = repo(hub, tmp_path)
    files = source.list_files(hub.commit)
    assert source.compute_disk_needed(files) == sum(map(len, set(TREE.values())))
    source.mirror(hub.commit, [file for file in files if file.relpath != BIG])
    assert source.compute_disk_needed(files) == len(TREE[BIG])


@pytest.mark.parametrize("relpath", ["../../x", "/etc/x", "a//b", "a/./b", ""])
def test_a_path_that_leaves_the_snapshot_is_refused(hub: HubServer, tmp_path: Path, relpath: str) -> None:
    file = HubFile(relpath=relpath, size=1, sha256=etag(BIG), etag=etag(BIG))
    with raises(SourceError, relpath):
        repo(hub, tmp_path).mirror(hub.commit, [file])


def test_an_etag_that_is_not_a_digest_is_refused(hub: HubServer, tmp_path: Path) -> None:
    file = HubFile(relpath="x", size=1, sha256=None, etag="../x")
    with raises(SourceError, "x"):
        repo(hub, tmp_path).mirror(hub.commit, [file])


@pytest.mark.parametrize(
    "bad",
    [
        *({"repo_id": name} for name in ("../x", "org/a--b", "org/a..b", "org/-a", "org/a.", "org/a.git", "org/a/b")),
        {"repo_id": f"org/{'a' * 97}"},
        {"revision": "../x"},
    ],
    ids=str,
)
def test_an_impossible_declaration_is_refused(bad: dict[str, str]) -> None:
    with raises(ConfigError, repr(next(iter(bad.values())))):
        HubRepo(**{"repo_id": "org/data", **bad})  # type: ignore[arg-type]
