"""Tests of the cache: a mirror has the layout of huggingface_hub, whose own client can read it, and can be read
back.
"""

import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

from dataprep_assets.errors import SourceError
from dataprep_assets.sources.access import HubMirror
from dataprep_assets.sources.hub import HubRepo
from dataprep_assets.sources.hub_cache import find_cached_snapshot, list_cached_files
from dataprep_assets_tests.fakes.hub_server import HubServer
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.sources.hub_mirror import BIG, SMALL, SPACES, TREE, etag, mirror, repo


def test_the_mirror_has_the_hub_s_own_layout(hub: HubServer, tmp_path: Path) -> None:
    snapshot = mirror(hub, tmp_path)
    base = tmp_path / "datasets--org--data"
    assert snapshot == base / "snapshots" / hub.commit
    assert os.readlink(snapshot / BIG) == f"../../../../blobs/{etag(BIG)}"
    assert os.readlink(snapshot / SMALL) == f"../../blobs/{hub.commits[hub.commit][SMALL].git_sha1}"
    assert (base / "refs/main").read_text() == hub.commit


def test_the_hub_s_own_client_loads_the_mirror_offline(hub: HubServer, tmp_path: Path) -> None:
    mirror(hub, tmp_path / "home" / "hub")
    script = textwrap.dedent(
        """
        import sys
        from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download
        for name in sys.argv[1:]:
            print(hf_hub_download("org/data", name, repo_type="dataset"))
        print(snapshot_download("org/data", repo_type="dataset"))
        found = scan_cache_dir()
        assert not found.warnings, found.warnings
        (repo,) = found.repos
        assert repo.repo_id == "org/data" and [sorted(r.refs) for r in repo.revisions] == [["main"]]
        print(repo.nb_files)
        """
    )
    environment = {"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    run = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", script, BIG, SMALL, SPACES],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    *names, folder, blobs = run.stdout.splitlines()
    assert [Path(name).read_bytes() for name in names] == [TREE[BIG], TREE[SMALL], TREE[SPACES]]
    assert Path(folder).name == hub.commit
    assert int(blobs) == len(set(TREE.values()))


def test_the_hub_s_own_client_finds_nothing_to_download_again(hub: HubServer, tmp_path: Path) -> None:
    from huggingface_hub import hf_hub_download

    mirror(hub, tmp_path)
    name = hf_hub_download(
        "org/data", BIG, repo_type="dataset", cache_dir=tmp_path, endpoint=hub.endpoint, local_files_only=True
    )
    assert Path(name).read_bytes() == TREE[BIG]
    start = len(hub.log)
    hf_hub_download("org/data", BIG, repo_type="dataset", cache_dir=tmp_path, endpoint=hub.endpoint)
    assert hub.count(BIG, "GET", since=start) == 0


def test_blobs_fetched_by_the_hub_s_own_client_are_reused(hub: HubServer, tmp_path: Path) -> None:
    from huggingface_hub import snapshot_download

    folder = snapshot_download("org/data", repo_type="dataset", cache_dir=tmp_path, endpoint=hub.endpoint)
    start = len(hub.log)
    source = repo(hub, tmp_path)
    paths = source.mirror(hub.commit, source.list_files(hub.commit))
    assert {str(path) for path in paths} == {f"{folder}/{name}" for name in TREE}
    assert {entry.name for entry in hub.log[start:]} == {"tree"}


def test_cached_snapshot_follows_the_ref_and_not_the_order_of_hashes(tmp_path: Path) -> None:
    low, high = "1" * 40, "f" * 40
    for commit in (low, high):
        (tmp_path / "snapshots" / commit).mkdir(parents=True)
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs" / "main").write_text(low + "\n")
    assert find_cached_snapshot(tmp_path) == (low, tmp_path / "snapshots" / low)
    assert find_cached_snapshot(tmp_path, high) == (high, tmp_path / "snapshots" / high)


def test_a_cache_without_the_ref_lists_its_contents(tmp_path: Path) -> None:
    commit = "a" * 40
    (tmp_path / "snapshots" / commit).mkdir(parents=True)
    with raises(SourceError, "'main'", commit):
        find_cached_snapshot(tmp_path)
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs" / "main").write_text("b" * 40)
    with raises(SourceError, "b" * 40):
        find_cached_snapshot(tmp_path)
    (tmp_path / "refs" / "main").write_text("not a commit")
    with raises(SourceError, 40):
        find_cached_snapshot(tmp_path)


def test_cached_files_have_their_own_names_and_the_digests_of_their_blobs(hub: HubServer, tmp_path: Path) -> None:
    mirror(hub, tmp_path)
    files = list_cached_files(tmp_path / "datasets--org--data")
    assert files == repo(hub, tmp_path).list_files(hub.commit)


def test_a_lost_blob_is_named_by_its_file(hub: HubServer, tmp_path: Path) -> None:
    snapshot = mirror(hub, tmp_path)
    (snapshot / BIG).resolve().unlink()
    with raises(SourceError, BIG):
        list_cached_files(tmp_path / "datasets--org--data")
    mirror(hub, tmp_path)


def test_scanning_the_cache_gives_no_warnings(hub: HubServer, tmp_path: Path) -> None:
    from huggingface_hub import scan_cache_dir

    mirror(hub, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert scan_cache_dir(tmp_path).warnings == []


def test_the_listing_is_stored_like_the_hub_s_client_stores_it(hub: HubServer, tmp_path: Path) -> None:
    from huggingface_hub._tree_cache import read_tree_cache

    source = repo(hub, tmp_path)
    commit = source.resolve_commit()
    listed = {file.relpath: file for file in source.list_files(commit)}
    kept = read_tree_cache(str(source.repo_dir), commit)
    assert kept is not None
    assert kept.keys() == listed.keys()
    for relpath, entry in kept.items():
        assert (entry.lfs_sha256 or entry.blob_id) == listed[relpath].etag
        assert (entry.lfs_size or entry.size) == listed[relpath].size


def test_a_mirror_lists_its_copies_of_a_file_in_every_commit(tmp_path: Path) -> None:
    mirror = HubMirror(HubRepo(repo_id="org/data", cache_dir=tmp_path))
    kept = [tmp_path / "datasets--org--data" / "snapshots" / (digit * 40) / "train" / "a[1].jsonl" for digit in "01"]
    for path in kept:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"{}")
    assert mirror.copies("train/a[1].jsonl") == kept
    assert mirror.copies("train/a1.jsonl") == []
