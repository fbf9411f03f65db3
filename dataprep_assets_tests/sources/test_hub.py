"""Claims of the hub mirror, against a real HTTP server with faults and huggingface_hub's own client."""

import email.utils
import hashlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dataprep_assets.errors import ConfigError, CorruptSourceError, SourceError, TransferError
from dataprep_assets.sources.hub import (
    HubFile,
    HubRepo,
    cached_snapshot,
    check_headroom,
    list_cached_files,
)
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets_tests.fakes.hub_server import HubServer, Kind
from dataprep_assets_tests.fakes.nobody import nobody_there

PART = 64 * 1024
BIG = "train/chunk1/shard-0.jsonl.zst"
SMALL = "README.md"
FAST = RetryPolicy(attempts=4, base_seconds=0.001, max_seconds=0.002)


# A process that mirrors the hub at argv[1] into argv[2]; with argv[3] it forks that many interrupted runs first.
RUN = textwrap.dedent(
    f"""
    import os, signal, sys
    from pathlib import Path
    import huggingface_hub.hf_api, huggingface_hub.file_download
    from dataprep_assets.sources.hub import HubRepo

    def run():
        source = HubRepo(repo_id="org/data", endpoint=sys.argv[1], cache_dir=Path(sys.argv[2]))
        commit = source.resolve_commit()
        source.mirror(commit, source.list_files(commit), workers=3, part_bytes={PART})

    for n in range(int(sys.argv[3])):
        child = os.fork()
        if child == 0:
            # By itself: a parent that is late would let it end first.
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.03 + 0.013 * n)
            try:
                run()
            except KeyboardInterrupt:
                os._exit(130)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    if sys.argv[3] == "0":
        run()
    """
)


def content(name: str, size: int) -> bytes:
    return hashlib.shake_256(name.encode()).digest(size)


TREE = {
    SMALL: b"# Data\n",
    ".gitattributes": b"*.zst filter=lfs\n",
    BIG: content(BIG, 5 * PART + 123),
    "train/chunk1/shard-1.jsonl.zst": content("1", PART),
    "train/chunk2/a name with spaces %41 \u00e9.jsonl.zst": content("2", 3000),
    "validation/copy.jsonl.zst": content("2", 3000),
    "validation/empty.txt": b"",
}
SPACES = "train/chunk2/a name with spaces %41 \u00e9.jsonl.zst"


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer(TREE) as server:
        yield server


def repo(hub: HubServer, cache: Path, **options: object) -> HubRepo:
    arguments = {"repo_id": hub.repo_id, "endpoint": hub.endpoint, "cache_dir": cache, "retry": FAST, **options}
    return HubRepo(**arguments)  # type: ignore[arg-type]


def mirror(hub: HubServer, cache: Path, workers: int = 4, verify_existing: bool = True, **options: object) -> Path:
    """Mirror everything; returns the snapshot's folder after comparing every byte."""
    source = repo(hub, cache, **options)
    commit = source.resolve_commit()
    files = source.list_files(commit)
    paths = source.mirror(commit, files, workers=workers, part_bytes=PART, verify_existing=verify_existing)
    tree = {path: blob.content for path, blob in hub.commits[commit].items()}
    assert paths == [source.snapshot_dir(commit) / file.relpath for file in files]
    assert {file.relpath: path.read_bytes() for file, path in zip(files, paths, strict=True)} == tree
    assert everything(source.repo_dir) == complete(source, commit, files)
    return source.snapshot_dir(commit)


def everything(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or path.is_file()}


def complete(source: HubRepo, commit: str, files: list[HubFile]) -> set[str]:
    """The names in a finished mirror: nothing may be missing, and nothing more may lie there."""
    links = {f"snapshots/{commit}/{file.relpath}" for file in files}
    blobs = {f"blobs/{file.etag}" for file in files}
    return links | blobs | {f"refs/{source.revision}", f"trees/{commit}.json"}


def etag(name: str) -> str:
    return hashlib.sha256(TREE[name]).hexdigest()


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
        timeout=60,
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


def test_the_fake_hub_serves_the_hub_s_own_client(hub: HubServer, tmp_path: Path) -> None:
    from huggingface_hub import HfApi, snapshot_download

    folder = snapshot_download("org/data", repo_type="dataset", cache_dir=tmp_path, endpoint=hub.endpoint)
    assert {name: (Path(folder) / name).read_bytes() for name in TREE} == TREE
    tree = HfApi(endpoint=hub.endpoint).list_repo_tree("org/data", recursive=True, repo_type="dataset")
    assert {entry.path for entry in tree} >= set(TREE)


def test_blobs_fetched_by_the_hub_s_own_client_are_reused(hub: HubServer, tmp_path: Path) -> None:
    from huggingface_hub import snapshot_download

    folder = snapshot_download("org/data", repo_type="dataset", cache_dir=tmp_path, endpoint=hub.endpoint)
    start = len(hub.log)
    source = repo(hub, tmp_path)
    paths = source.mirror(hub.commit, source.list_files(hub.commit))
    assert {str(path) for path in paths} == {f"{folder}/{name}" for name in TREE}
    assert {entry.name for entry in hub.log[start:]} == {"tree"}


def test_the_file_list_follows_every_page(tmp_path: Path) -> None:
    tree = {f"d{n % 7}/f{n:03}": b"x" * n for n in range(120)}
    with HubServer(tree, page_size=10, lfs_bytes=100) as hub:
        hub.fail("tree", "status", status=429, retry_after="0", first=5, times=2)
        hub.fail("tree", "reset", first=9)
        files = repo(hub, tmp_path).list_files(hub.commit)
        assert [file.relpath for file in files] == sorted(tree)
        assert {file.relpath: file.size for file in files} == {name: len(body) for name, body in tree.items()}
        assert sum(file.sha256 is not None for file in files) == 20
        # 127 entries with the folders, and only the three failed pages are asked for again.
        assert hub.count("tree") == 13 + 3


def test_a_file_list_that_continues_on_another_host_is_refused(tmp_path: Path) -> None:
    with HubServer(TREE, page_size=2) as hub:
        source = repo(hub, tmp_path, endpoint=hub.endpoint.replace("127.0.0.1", "localhost"), token="hf_secret")
        with pytest.raises(SourceError, match="another host"):
            source.list_files(hub.commit)


@pytest.mark.parametrize(
    ("method", "name"),
    [("GET", "revision"), ("GET", "tree"), ("HEAD", BIG), ("GET", BIG), ("HEAD", SMALL), ("GET", SMALL)],
)
@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_waited_for(hub: HubServer, tmp_path: Path, method: str, name: str, status: int) -> None:
    hub.fail(name, "status", method=method, status=status, retry_after="0", times=2)
    mirror(hub, tmp_path)
    assert hub.unspent() == []


@pytest.mark.parametrize("form", ["seconds", "date", "quota"])
def test_retry_after_is_obeyed_for_listing_and_bytes(hub: HubServer, tmp_path: Path, form: str) -> None:
    slept: list[float] = []
    date = email.utils.formatdate(time.time() + 40, usegmt=True)
    wish = {"seconds": "40", "date": date, "quota": '"api";r=0;t=40'}[form]
    for name in ("revision", "tree", BIG):
        hub.fail(name, "status", status=429, retry_after=wish)
    mirror(hub, tmp_path, retry=RetryPolicy(base_seconds=0.5, sleep=slept.append))
    assert len(slept) == 3
    assert all(30 <= seconds <= 40.5 for seconds in slept)


@pytest.mark.parametrize("kind", ["reset", "truncate", "short", "flip"])
@pytest.mark.parametrize(("name", "first"), [(BIG, 1), (BIG, 3), (BIG, 6), (SMALL, 1)])
def test_a_fault_in_the_bytes_is_survived(hub: HubServer, tmp_path: Path, kind: Kind, name: str, first: int) -> None:
    hub.fail(name, kind, first=first)
    mirror(hub, tmp_path)
    assert hub.unspent() == []


def test_a_silent_server_is_given_up_on_and_asked_again(hub: HubServer, tmp_path: Path) -> None:
    hub.fail(BIG, "stall", first=2)
    start = time.monotonic()
    mirror(hub, tmp_path, timeout_seconds=1.0)
    assert hub.unspent() == []
    # The silence itself lasts ten seconds.
    assert time.monotonic() - start < 9


@pytest.mark.parametrize("kind", ["status", "reset", "truncate", "short"])
def test_a_fault_that_stays_fails_with_the_file_s_name_and_no_half_file(
    hub: HubServer, tmp_path: Path, kind: Kind
) -> None:
    hub.fail(BIG, kind, times=None)
    with pytest.raises(TransferError, match=rf"{re.escape(BIG)} of org/data@{hub.commit}.*4 attempts"):
        mirror(hub, tmp_path)
    base = tmp_path / "datasets--org--data"
    assert not (base / "snapshots" / hub.commit / BIG).exists()
    assert not (base / "refs").exists()
    hub.heal()
    mirror(hub, tmp_path)


def test_wrong_bytes_that_stay_are_corrupt_and_never_get_a_name(hub: HubServer, tmp_path: Path) -> None:
    hub.fail(BIG, "flip", times=None)
    with pytest.raises(CorruptSourceError, match=rf"{re.escape(BIG)} of org/data@.*expected sha256 {etag(BIG)}, got"):
        mirror(hub, tmp_path)
    assert not [name for name in everything(tmp_path) if etag(BIG) in name]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_missing_file_is_said_at_once(hub: HubServer, tmp_path: Path, method: str) -> None:
    hub.fail(BIG, "missing", method=method, times=None)
    with pytest.raises(SourceError, match=rf"{re.escape(BIG)} of org/data@{hub.commit}: not found.*404") as caught:
        mirror(hub, tmp_path, workers=1)
    assert not isinstance(caught.value, TransferError)
    assert hub.count(BIG, method) == 1
    assert not [name for name in everything(tmp_path) if ".part" in name]


def test_a_missing_revision_or_repository_is_said_at_once(hub: HubServer, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="revision other of org/data: not found"):
        repo(hub, tmp_path, revision="other").resolve_commit()
    with pytest.raises(SourceError, match="revision main of org/none: not found"):
        repo(hub, tmp_path, repo_id="org/none").resolve_commit()
    assert len(hub.log) == 2


def test_a_server_that_is_not_there_spends_the_budget(hub: HubServer, tmp_path: Path) -> None:
    with nobody_there() as url:
        source = repo(hub, tmp_path, endpoint=url)
        with pytest.raises(TransferError, match=r"revision main of org/data: ConnectError.*4 attempts"):
            source.resolve_commit()


def test_a_branch_that_moves_meanwhile_does_not_mix_two_commits(hub: HubServer, tmp_path: Path) -> None:
    source = repo(hub, tmp_path)
    commit = source.resolve_commit()
    files = source.list_files(commit)
    hub.move_branch({**TREE, BIG: content("new", 2 * PART)})
    source.mirror(commit, files)
    assert (source.snapshot_dir(commit) / BIG).read_bytes() == TREE[BIG]
    assert cached_snapshot(source.repo_dir)[0] == commit
    # The next run sees the new commit and fetches only what changed.
    start = len(hub.log)
    paths = source.mirror(hub.commit, source.list_files(hub.commit))
    assert {entry.name for entry in hub.log[start:]} == {"tree", BIG}
    assert paths[-1].parent.parent.name == hub.commit
    assert cached_snapshot(source.repo_dir) == (hub.commit, source.snapshot_dir(hub.commit))


@pytest.mark.parametrize("name", [BIG, SMALL])
def test_a_flipped_blob_is_fetched_again_and_only_that_one(hub: HubServer, tmp_path: Path, name: str) -> None:
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


def test_a_complete_mirror_asks_for_no_bytes_and_trusts_sizes_only_when_told_to(hub: HubServer, tmp_path: Path) -> None:
    snapshot = mirror(hub, tmp_path)
    start = len(hub.log)
    mirror(hub, tmp_path)
    mirror(hub, tmp_path, verify_existing=False)
    (snapshot / BIG).resolve().write_bytes(b"too short")
    assert {entry.name for entry in hub.log[start:]} == {"revision", "tree"}
    mirror(hub, tmp_path, verify_existing=False)
    assert hub.spans(BIG, since=start)


def test_progress_counts_every_byte_once(hub: HubServer, tmp_path: Path) -> None:
    source = repo(hub, tmp_path)
    files = source.list_files(hub.commit)
    hub.fail(BIG, "flip")
    for _ in range(2):
        seen: list[int] = []
        source.mirror(hub.commit, files, part_bytes=PART, progress=seen.append)
        assert sum(seen) == sum(map(len, set(TREE.values())))


def test_the_token_goes_to_the_hub_and_never_to_the_storage_host(tmp_path: Path) -> None:
    with HubServer(TREE, storage_host=True) as hub:
        hub.fail(BIG, "expired", method="GET")
        source = repo(hub, tmp_path, token="hf_secret")
        assert "hf_secret" not in repr(source)
        mirror(hub, tmp_path, token="hf_secret")
        assert {entry.authorization for entry in hub.log if entry.storage} == {None}
        assert {entry.authorization for entry in hub.log if not entry.storage} == {"Bearer hf_secret"}
        # The refused storage URL cost a second HEAD, and nothing else.
        assert hub.count(BIG, "HEAD") == 2


def test_a_spent_budget_at_the_storage_host_keeps_the_signature_secret(tmp_path: Path) -> None:
    with HubServer(TREE, storage_host=True) as hub:
        hub.fail(BIG, "status", times=None)
        with pytest.raises(TransferError, match=re.escape(BIG)) as caught:
            mirror(hub, tmp_path)
        assert "signature" not in str(caught.value)


def test_a_commit_as_the_revision_writes_no_ref(hub: HubServer, tmp_path: Path) -> None:
    source = repo(hub, tmp_path, revision=hub.commit)
    source.mirror(source.resolve_commit(), source.list_files(hub.commit))
    assert not (source.repo_dir / "refs").exists()
    assert cached_snapshot(source.repo_dir, hub.commit) == (hub.commit, source.snapshot_dir(hub.commit))


def test_a_model_repository_is_mirrored_too(tmp_path: Path) -> None:
    with HubServer({"tokenizer.json": b"{}"}, repo_type="model", repo_id="org/tok") as hub:
        source = repo(hub, tmp_path, repo_type="model")
        (path,) = source.mirror(source.resolve_commit(), source.list_files(hub.commit))
        assert path == tmp_path / "models--org--tok" / "snapshots" / hub.commit / "tokenizer.json"


def test_kill_9_and_resume_fetches_at_most_one_range_per_worker_again(tmp_path: Path) -> None:
    tree = {"a.zst": content("a", 20 * PART), "b.zst": content("b", 7 * PART + 5)}
    with HubServer(tree, seconds_per_chunk=0.03) as hub:
        # However late the kill comes: the file is not complete before it.
        hub.fail("a.zst", "stall", first=12, times=None)
        arguments = [sys.executable, "-c", RUN, hub.endpoint, str(tmp_path), "0"]
        process = subprocess.Popen(arguments)
        while len(hub.spans("a.zst")) < 9:
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        process.wait(10)
        hub.heal()
        time.sleep(0.1)
        cut = len(hub.log)
        assert not [name for name in everything(tmp_path) if "snapshots" in name or "refs" in name]
        hub.seconds_per_chunk = 0
        mirror(hub, tmp_path, workers=3)
        before = {(entry.name, entry.span) for entry in hub.log[:cut] if entry.span is not None}
        after = {(entry.name, entry.span) for entry in hub.log[cut:] if entry.span is not None}
        assert len(before) >= 9
        assert after
        assert len(before & after) <= 3
        # 20 and 8 parts: each was asked for once, but for those that the kill explains.
        assert len(before | after) == 28
        assert sum(entry.span is not None for entry in hub.log) <= 28 + 3


def test_twenty_interrupted_runs_leave_no_debris_once_complete(tmp_path: Path) -> None:
    with HubServer(TREE, seconds_per_chunk=0.05) as hub:
        arguments = [sys.executable, "-c", RUN, hub.endpoint, str(tmp_path), "20"]
        run = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
        assert run.returncode == 0, run.stderr
        codes = run.stdout.split()
        assert len(codes) == 20
        # Most of them at different points of the work, before it was complete.
        assert sum(code != "0" for code in codes) >= 5
        assert set(codes) <= {"0", "130", str(-signal.SIGINT)}
        hub.seconds_per_chunk = 0
        # mirror() compares the folder with what a finished mirror holds, name by name.
        mirror(hub, tmp_path)


def test_debris_of_a_kill_at_the_last_moment_is_cleared(hub: HubServer, tmp_path: Path) -> None:
    snapshot = mirror(hub, tmp_path)
    base = tmp_path / "datasets--org--data"
    drafts = (".ref-main.new", f".tree-{hub.commit}.new")
    for name in (f"blobs/{etag(BIG)}.part.json", f"blobs/{etag(BIG)}.part.json.new", *drafts):
        (base / name).write_text("{")
    (snapshot / SMALL).unlink()
    (snapshot / SMALL).write_bytes(b"a copy by a client without links")
    mirror(hub, tmp_path)
    assert (snapshot / SMALL).is_symlink()


@pytest.mark.parametrize("folder", ["trees", "refs"])
def test_a_draft_that_a_kill_left_is_taken_over(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    replace = os.replace

    def killed(source: Path, target: Path) -> None:
        if target.parent.name == folder:
            raise KeyboardInterrupt
        replace(source, target)

    # On another thread: what is named after its writer has another name the next time.
    with monkeypatch.context() as patched, ThreadPoolExecutor(1) as other:
        patched.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            other.submit(mirror, hub, tmp_path).result()
    # mirror() compares the folder with what a finished mirror holds, name by name.
    mirror(hub, tmp_path)


def test_no_room_is_said_before_anything_is_fetched(hub: HubServer, tmp_path: Path) -> None:
    source = repo(hub, tmp_path / "new")
    huge = HubFile(relpath=BIG, size=1 << 60, sha256=etag(BIG), etag=etag(BIG))
    with pytest.raises(
        SourceError, match=rf"{1 << 60} bytes are to be fetched, .*headroom\), \d+ are\. Free \d+ bytes"
    ):
        source.mirror(hub.commit, [huge])
    assert hub.log == []
    assert not (tmp_path / "new").exists()
    check_headroom(tmp_path, 1000)
    with pytest.raises(SourceError, match="headroom"):
        check_headroom(tmp_path, 1000, headroom=1e15)


def test_disk_needed_counts_each_absent_blob_once(hub: HubServer, tmp_path: Path) -> None:
    source = repo(hub, tmp_path)
    files = source.list_files(hub.commit)
    assert source.disk_needed(files) == sum(map(len, set(TREE.values())))
    source.mirror(hub.commit, [file for file in files if file.relpath != BIG])
    assert source.disk_needed(files) == len(TREE[BIG])


@pytest.mark.parametrize("relpath", ["../../x", "/etc/x", "a//b", "a/./b", ""])
def test_a_path_that_leaves_the_snapshot_is_refused(hub: HubServer, tmp_path: Path, relpath: str) -> None:
    file = HubFile(relpath=relpath, size=1, sha256=etag(BIG), etag=etag(BIG))
    with pytest.raises(SourceError, match="leaves the repository"):
        repo(hub, tmp_path).mirror(hub.commit, [file])


def test_an_etag_that_is_not_a_digest_is_refused(hub: HubServer, tmp_path: Path) -> None:
    file = HubFile(relpath="x", size=1, sha256=None, etag="../x")
    with pytest.raises(SourceError, match="no usable digest"):
        repo(hub, tmp_path).mirror(hub.commit, [file])


@pytest.mark.parametrize("bad", [{"repo_type": "bucket"}, {"repo_id": "../x"}, {"revision": "../x"}], ids=str)
def test_a_declaration_that_cannot_work_is_refused(bad: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(next(iter(bad.values()))))):
        HubRepo(**{"repo_id": "org/data", **bad})  # type: ignore[arg-type]


def test_cached_snapshot_follows_the_ref_and_not_the_order_of_hashes(tmp_path: Path) -> None:
    low, high = "1" * 40, "f" * 40
    for commit in (low, high):
        (tmp_path / "snapshots" / commit).mkdir(parents=True)
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs" / "main").write_text(low + "\n")
    assert cached_snapshot(tmp_path) == (low, tmp_path / "snapshots" / low)
    assert cached_snapshot(tmp_path, high) == (high, tmp_path / "snapshots" / high)


def test_a_cache_without_the_ref_says_what_it_has(tmp_path: Path) -> None:
    commit = "a" * 40
    (tmp_path / "snapshots" / commit).mkdir(parents=True)
    with pytest.raises(SourceError, match=rf"no ref 'main'.*refs there: none; snapshots there: {commit}"):
        cached_snapshot(tmp_path)
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs" / "main").write_text("b" * 40)
    with pytest.raises(SourceError, match=rf"no snapshot of commit {'b' * 40}"):
        cached_snapshot(tmp_path)
    (tmp_path / "refs" / "main").write_text("not a commit")
    with pytest.raises(SourceError, match="should hold a commit"):
        cached_snapshot(tmp_path)


def test_cached_files_keep_their_own_names_and_their_blobs_digests(hub: HubServer, tmp_path: Path) -> None:
    mirror(hub, tmp_path)
    files = list_cached_files(tmp_path / "datasets--org--data")
    assert files == repo(hub, tmp_path).list_files(hub.commit)


def test_a_lost_blob_is_named_by_its_file(hub: HubServer, tmp_path: Path) -> None:
    snapshot = mirror(hub, tmp_path)
    (snapshot / BIG).resolve().unlink()
    with pytest.raises(SourceError, match=rf"1 file\(s\) of .* have lost their blob: {re.escape(BIG)}"):
        list_cached_files(tmp_path / "datasets--org--data")
    mirror(hub, tmp_path)


def test_scanning_the_cache_gives_no_warnings(hub: HubServer, tmp_path: Path) -> None:
    from huggingface_hub import scan_cache_dir

    mirror(hub, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert scan_cache_dir(tmp_path).warnings == []


def test_the_listing_is_kept_as_the_hub_s_client_keeps_it(hub: HubServer, tmp_path: Path) -> None:
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
