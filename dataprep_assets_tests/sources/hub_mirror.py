"""A small repository on the fake hub, mirrored and compared name by name, in this process or in one that is killed."""

import hashlib
import textwrap
from pathlib import Path

from dataprep_assets.sources.hub import HubRepo
from dataprep_assets.sources.hub_cache import HubFile
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets_tests.fakes.hub_server import HubServer

PART = 64 * 1024
BIG = "train/chunk1/shard-0.jsonl.zst"
SMALL = "README.md"
FAST = RetryPolicy(attempts=4, base_seconds=0.001, max_seconds=0.002)


# This program mirrors the hub at argv[1] into argv[2]. Before that, it forks argv[3] runs, if given, and interrupts
# them.
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


def repo(hub: HubServer, cache: Path, **options: object) -> HubRepo:
    arguments = {"repo_id": hub.repo_id, "endpoint": hub.endpoint, "cache_dir": cache, "retry": FAST, **options}
    return HubRepo(**arguments)  # type: ignore[arg-type]


def mirror(hub: HubServer, cache: Path, workers: int = 4, **options: object) -> Path:
    """Mirror everything, compare every byte, and return the snapshot's folder."""
    source = repo(hub, cache, **options)
    commit = source.resolve_commit()
    files = source.list_files(commit)
    paths = source.mirror(commit, files, workers=workers, part_bytes=PART)
    tree = {path: blob.content for path, blob in hub.commits[commit].items()}
    assert paths == [source.get_snapshot_dir(commit) / file.relpath for file in files]
    assert {file.relpath: path.read_bytes() for file, path in zip(files, paths, strict=True)} == tree
    assert everything(source.repo_dir) == list_complete(source, commit, files)
    return source.get_snapshot_dir(commit)


def everything(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or path.is_file()}


def list_complete(source: HubRepo, commit: str, files: list[HubFile]) -> set[str]:
    """Return the names in a finished mirror, in which nothing may be missing and nothing else may exist."""
    links = {f"snapshots/{commit}/{file.relpath}" for file in files}
    blobs = {f"blobs/{file.etag}" for file in files}
    return links | blobs | {f"refs/{source.revision}", f"trees/{commit}.json"}


def etag(name: str) -> str:
    return hashlib.sha256(TREE[name]).hexdigest()
