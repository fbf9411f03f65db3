"""Builds the snapshot of a shard: its source files, present and digested.

Files of a hub are mirrored into the standard cache and verified against the hub's digests; local files are verified
where they are. The artifact holds no copy of them, only `files.jsonl`: path, size, SHA-256. It is what token bins are
keyed by, so a changed byte in a source file is seen here and rebuilds exactly the shard that holds it.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dataprep_assets.errors import CorruptSourceError, SourceError
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import canonical_json, digest_value, sha256_file
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.manifest import Manifest, open_source
from dataprep_assets.planning.manifest import ManifestEntry
from dataprep_assets.sources.access import HEADROOM, SourceAccess
from dataprep_assets.sources.headroom import check_headroom

VERSION = 1
FILES = "files.jsonl"


def preflight(corpus: CorpusDeclaration, manifest: Manifest, partitions: Sequence[str]) -> int:
    """Bytes that the shards' files will add to the disk.

    Raises SourceError, before anything is fetched, when they would not fit with headroom to spare.
    """
    access = open_source(corpus.source)
    needed = access.bytes_to_fetch([entry for partition in partitions for entry in manifest.shard(partition)])
    check_headroom(access.storage, needed, HEADROOM)
    return needed


def build_snapshot(
    corpus: CorpusDeclaration,
    store: ArtifactStore,
    manifest: Manifest,
    partition: str,
    progress: Callable[[int], None] | None = None,
) -> tuple[Receipt, bool]:
    """Fetch or verify the files of one shard and commit their digests.

    Returns the receipt, and whether the snapshot that was there already says the same. Raises SourceError,
    TransferError or CorruptSourceError naming the file.
    """
    access = open_source(corpus.source)
    entries = manifest.shard(partition)
    access.fetch(entries, progress)
    lines = _lines(access, entries)

    def write(staged: Path) -> Written:
        (staged / FILES).write_bytes(b"".join(canonical_json(line) + b"\n" for line in lines))
        return Written(
            inputs={"manifest": digest_value([e.path for e in entries])},
            facts={"files": len(entries), "source_bytes": sum(e.size_bytes for e in entries)},
        )

    return ensure(corpus.artifact("snapshot", partition), store, snapshot_key(lines), write)


def snapshot_key(lines: Sequence[Mapping[str, str | int]]) -> str:
    """The key of a snapshot with these lines of `files.jsonl`."""
    return digest_value(["snapshot", VERSION, lines])


def planned_lines(corpus: CorpusDeclaration, manifest: Manifest, partition: str) -> list[dict[str, str | int]]:
    """What `files.jsonl` of a shard would hold now, fetching nothing; reads every file."""
    return _lines(open_source(corpus.source), manifest.shard(partition))


def _lines(access: SourceAccess, entries: Sequence[ManifestEntry]) -> list[dict[str, str | int]]:
    return [
        {"relpath": entry.relpath, "size_bytes": entry.size_bytes, "sha256": digest}
        for entry, digest in zip(entries, _digests(access, entries), strict=True)
    ]


def _digests(access: SourceAccess, entries: Sequence[ManifestEntry]) -> Iterator[str]:
    """SHA-256 of each file, in order. Hashing releases the interpreter lock, so threads are enough."""
    with ThreadPoolExecutor(max_workers=4) as threads:
        for entry, actual in zip(entries, threads.map(lambda e: _digest(access, e), entries), strict=True):
            if entry.sha256 is not None and actual != entry.sha256:
                raise CorruptSourceError(
                    f"{entry.relpath}: sha256 {actual}, the source says {entry.sha256}. Fetch this file again"
                )
            yield actual


def _digest(access: SourceAccess, entry: ManifestEntry) -> str:
    try:
        return sha256_file(access.path(entry))
    except OSError as error:
        raise SourceError(f"{entry.relpath}: cannot be read: {error.strerror or error}") from error


def snapshot_digests(corpus: CorpusDeclaration, store: ArtifactStore, partition: str) -> dict[str, str]:
    """Path in the source → SHA-256, of a committed snapshot; MissingArtifactError when it is not there."""
    directory = store.local(corpus.artifact("snapshot", partition))
    with open(directory / FILES, "rb") as file:
        return {line["relpath"]: line["sha256"] for line in map(json.loads, file)}
