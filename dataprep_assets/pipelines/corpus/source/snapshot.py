"""Snapshot (`<dataset>/snapshot_<split>`, one partition per shard): the source files on this machine, with digests.

Files of a Hub repository are mirrored into the standard cache and verified against the Hub's digests. Local files are
verified in place. The artifact has no copy of the files, only `files.jsonl` with path, size and SHA-256. The keys of
token bins depend on these digests. Therefore a changed byte in a source file is detected here, and only the shard with
that file is rebuilt.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest, Partitions, ReadCost
from dataprep_assets.engine.checks.check import Check, Finding, OpenedArtifact
from dataprep_assets.engine.checks.verdicts import CheckGroup, PartitionChecks, WholeArtifactChecks
from dataprep_assets.errors import CorruptSourceError, SourceError, combine_errors
from dataprep_assets.execution.jobs import Outcome, run_fetches
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest import Manifest, load_manifest
from dataprep_assets.planning.manifest import ManifestEntry
from dataprep_assets.sources.access import SourceAccess, compute_source_digest
from dataprep_assets.stores.files import check_headroom, digest_value
from dataprep_assets.stream.source import (
    FILES,
    digests_match,
    disk_headroom,
    encode_snapshot,
    open_source,
    read_snapshot,
)

VERSION = 2
SNAPSHOT = "snapshot"
TOKEN_BYTES_PER_SOURCE_BYTE = 3.0
"""Estimated token bytes per byte of compressed source: about 0.7 tokens of four bytes per byte of zstd text."""


class SnapshotFacts(Facts):
    """Facts of a snapshot: the number of files, and their bytes as stored."""

    files: int
    source_bytes: int


def count_bytes_to_add(corpus: CorpusDeclaration, manifest: Manifest, partitions: Sequence[str]) -> int:
    """Return the number of bytes that fetching the shards' files adds to the disk.

    Raises SourceError, before anything is fetched, if the disk has too little space for them and the headroom.
    """
    access = open_source(corpus.source)
    needed_bytes = access.bytes_to_fetch([entry for partition in partitions for entry in manifest.shard(partition)])
    check_headroom(access.storage, needed_bytes)
    return needed_bytes


def build_snapshot(
    corpus: CorpusDeclaration,
    store: ArtifactStore,
    manifest: Manifest,
    partition: str,
    progress: Callable[[int], None] | None = None,
) -> tuple[Receipt, bool]:
    """Fetch or verify the files of one shard and commit their digests.

    Returns the receipt, and whether the snapshot was reused because it is unchanged. Raises SourceError,
    TransferError or CorruptSourceError with the file's name.
    """
    access = open_source(corpus.source)
    entries = manifest.shard(partition)
    access.fetch(entries, progress)
    lines = _build_lines(corpus, access, entries)
    # If the source is mirrored, compute the snapshot's key from the listing, so that `status` does not have to download
    # the files.
    recipe = _build_recipe(corpus, partition, _list_lines(entries) if access.mirrored else lines)
    return _ensure_snapshot(recipe, store, entries, lines)


def refetch_shards(corpus: CorpusDeclaration, manifest: Manifest, partitions: Iterable[str]) -> None:
    """Fetch the files of these shards to this machine, if the source is mirrored.

    The files may be missing although the snapshot is reused: the Hub's cache has a folder per commit, and a new commit
    may leave the files unchanged.
    """
    access = open_source(corpus.source)
    if access.mirrored:
        access.fetch([entry for partition in partitions for entry in manifest.shard(partition)])


def _ensure_snapshot(
    recipe: Recipe, store: ArtifactStore, entries: Sequence[ManifestEntry], lines: Sequence[Mapping[str, str | int]]
) -> tuple[Receipt, bool]:
    """Build the snapshot of these entries with the digests in `lines`; return its receipt and whether it was reused."""

    def write(staged: Path) -> WrittenFiles:
        (staged / FILES).write_bytes(encode_snapshot(lines))
        return WrittenFiles(
            inputs={"manifest": _digest_listing(entries)},
            facts=SnapshotFacts(files=len(entries), source_bytes=sum(e.size_bytes for e in entries)),
        )

    return ensure_built(recipe, store, write)


def _digest_listing(entries: Sequence[ManifestEntry]) -> str:
    # Leave out `path`, because it contains the commit, which is not part of the key. Otherwise, the snapshot would stay
    # up to date after a new commit, but its check would fail.
    return digest_value([entry.relpath for entry in entries])


def _build_recipe(corpus: CorpusDeclaration, partition: str, lines: Sequence[Mapping[str, str | int]]) -> Recipe:
    """Return the recipe of a snapshot with these lines in `files.jsonl`."""
    return Recipe(
        artifact=corpus.artifact(SNAPSHOT, partition),
        key=digest_value(["snapshot", VERSION, lines]),
        version=VERSION,
        sources={str(line["relpath"]): str(line.get("sha256", line.get("etag", ""))) for line in lines},
    )


def _list_lines(entries: Sequence[ManifestEntry]) -> list[dict[str, str | int]]:
    """Return the lines for files of a mirrored source: with the listed SHA-256 or, without it, the listed version."""
    lines: list[dict[str, str | int]] = []
    for entry in entries:
        name, version = ("etag", entry.etag or "") if entry.sha256 is None else ("sha256", entry.sha256)
        lines.append({"relpath": entry.relpath, "size_bytes": entry.size_bytes, name: version})
    return lines


def _build_recipes(
    corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str | None]
) -> Iterator[Recipe]:
    """Yield the recipes for the current files; local files are read completely, mirrored files are not read."""
    manifest, access = load_manifest(corpus, store), open_source(corpus.source)
    for partition in partitions:
        assert partition is not None
        entries = manifest.shard(partition)
        yield _build_recipe(
            corpus, partition, _list_lines(entries) if access.mirrored else _build_lines(corpus, access, entries)
        )


def _build_lines(
    corpus: CorpusDeclaration, access: SourceAccess, entries: Sequence[ManifestEntry]
) -> list[dict[str, str | int]]:
    # Read all digests before using them, because `_read_digests` leaves out damaged files and raises an error for them
    # only at the end.
    digests = list(_read_digests(access, entries))
    source_digests = corpus.source_digests()
    return [
        {"relpath": entry.relpath, "size_bytes": entry.size_bytes, "sha256": source_digests.digest_of(digest)}
        for entry, digest in zip(entries, digests, strict=True)
    ]


def _read_digests(access: SourceAccess, entries: Sequence[ManifestEntry]) -> Iterator[str]:
    """Yield the SHA-256 of each file, in order; at the end, raise a single error for all damaged files.

    Threads are sufficient, because hashing releases the interpreter lock.
    """
    errors: list[SourceError] = []
    with ThreadPoolExecutor(max_workers=4) as threads:
        for entry, actual in zip(entries, threads.map(partial(_read_digest_or_error, access), entries), strict=True):
            if isinstance(actual, SourceError):
                errors.append(actual)
            elif entry.sha256 is not None and actual != entry.sha256:
                message = (
                    f"{entry.relpath}: has sha256 {actual}, but the source has {entry.sha256}. Download this file again"
                )
                errors.append(CorruptSourceError(message))
            else:
                yield actual
    if errors:
        raise combine_errors(errors)


def _read_digest_or_error(access: SourceAccess, entry: ManifestEntry) -> str | SourceError:
    try:
        return compute_source_digest(access, entry)
    except SourceError as error:
        return error


def read_snapshot_digests(corpus: CorpusDeclaration, store: ArtifactStore, partition: str) -> dict[str, str]:
    """Return path → digest (`CorpusDeclaration.source_digests`) for the files of a committed snapshot.

    Raises MissingArtifactError if the snapshot is missing.
    """
    return {
        line["relpath"]: line["sha256"] for line in read_snapshot(store.local(corpus.artifact(SNAPSHOT, partition)))
    }


def estimate_readings(
    corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str], *, tokenized: bool = False
) -> Iterator[ReadCost]:
    """Yield the cost of reading the source for each shard's snapshot.

    If `tokenized`, yield the cost for the shard's token bins instead, which fetch no files.
    """
    from dataprep_assets.planning.cost import measure_density

    manifest, access = load_manifest(corpus, store), open_source(corpus.source)
    for partition in partitions:
        entries = manifest.shard(partition)
        yield ReadCost(
            source_bytes=sum(entry.size_bytes for entry in entries),
            density=measure_density(entries),
            fetch_bytes=0 if tokenized else access.bytes_to_fetch(entries),
            tokenized=tokenized,
        )


def build_snapshot_spec(
    corpus: CorpusDeclaration, split: str, *, partitions: Partitions, manifest: ArtifactSpec
) -> ArtifactSpec:
    """Return the spec of a split's snapshot.

    Args:
        corpus: The dataset.
        split: One of its splits.
        partitions: The split's shards.
        manifest: The manifest, which lists the files of each shard.
    """
    mirrors = {"hub": "downloaded from the Hub", "object_store": "downloaded from object storage"}
    handling = mirrors.get(corpus.source.kind, "verified in place")
    return ArtifactSpec(
        declaration=corpus,
        name=SNAPSHOT,
        split=split,
        version=VERSION,
        description=f"Source files of each shard, {handling}, with their SHA-256.",
        kinds={corpus.source.kind, "file"},
        inputs=(manifest,),
        partitions=partitions,
        pool="network",
        verification="full",
        records_source=True,
        recipes=partial(_build_recipes, corpus),
        build=partial(_build_snapshots, corpus),
        foresee=partial(_predict_snapshots, corpus),
        reads=partial(estimate_readings, corpus),
        check_groups=_build_check_groups(corpus),
    )


def _build_snapshots(corpus: CorpusDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    manifest = load_manifest(corpus, request.store)
    # Add up the bytes of all shards first, because the disk must have space for all of them.
    needed_bytes = count_bytes_to_add(corpus, manifest, request.partitions)

    def fetch(partition: str, report_bytes: Callable[[int], None]) -> tuple[Receipt, bool]:
        return build_snapshot(corpus, request.store, manifest, partition, report_bytes)

    yield from run_fetches(request.partitions, fetch, needed_bytes, request.progress)


def _predict_snapshots(corpus: CorpusDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    """Yield the snapshots that a build would give; omit shards if a mirrored source lists no digests of their files."""
    if not open_source(corpus.source).mirrored:
        yield from _build_snapshots(corpus, request)
        return
    manifest = load_manifest(corpus, request.store)
    for partition in request.partitions:
        entries = manifest.shard(partition)
        lines = _list_lines(entries)
        # Predict a snapshot only if all digests are known, because the keys of token bins contain digests, not etags or
        # versions.
        if all("sha256" in line for line in lines):
            yield Outcome.from_receipt(
                *_ensure_snapshot(_build_recipe(corpus, partition, lines), request.store, entries, lines)
            )


def _find_false_claims(
    corpus: CorpusDeclaration, store: ArtifactStore, partition: str, entries: Sequence[ManifestEntry]
) -> Iterator[str]:
    """Yield a sentence for each claim of a snapshot or its receipt that the manifest contradicts."""
    artifact = corpus.artifact(SNAPSHOT, partition)
    receipt = store.require(artifact)
    directory = store.local(artifact)
    lines = read_snapshot(directory)
    if (directory / FILES).read_bytes() != encode_snapshot(lines):
        yield f"{artifact}: {FILES} is not in canonical form"
    file_sizes = [(line["relpath"], line.get("size_bytes")) for line in lines]
    if file_sizes != [(entry.relpath, entry.size_bytes) for entry in entries]:
        yield f"{artifact}: the files, sizes or order differ from the manifest"
    expected_facts = SnapshotFacts(files=len(entries), source_bytes=sum(entry.size_bytes for entry in entries))
    if SnapshotFacts.from_receipt(receipt) != expected_facts:
        yield f"{artifact}: the file or byte count in the receipt differs from the manifest"
    if receipt.inputs != {"manifest": _digest_listing(entries)}:
        yield f"{artifact}: the inputs in the receipt differ from the files of the manifest"


@dataclass(frozen=True)
class _OpenedSnapshot(OpenedArtifact):
    """Snapshot of a shard, opened for checks, and the manifest's entries for the shard."""

    corpus: CorpusDeclaration
    access: SourceAccess
    entries: Sequence[ManifestEntry]


def _check_digests(snapshot: _OpenedSnapshot) -> Finding:
    corpus, store, entries = snapshot.corpus, snapshot.store, snapshot.entries
    partition = snapshot.artifact.partition or ""
    expected_digests = read_snapshot_digests(corpus, store, partition)
    claims = list(_find_false_claims(corpus, store, partition, entries))
    paths = {entry.relpath: snapshot.access.path(entry) for entry in entries}
    return digests_match(expected_digests, paths, claims, corpus.source_digests())


_CHECKS = (Check("digests_match", "The source files have the SHA-256 digests listed in the snapshot.", _check_digests),)
# Check the free disk space for all partitions together, because a run reuses the verdicts on unchanged partitions, but
# the free disk space changes between runs.
_HEADROOM: Check[tuple[Path, int]] = Check(
    "disk_headroom",
    "The free disk space is at least 120% of the estimated size of the token bins.",
    lambda room: disk_headroom(*room),
    blocking=False,
)


def _build_check_groups(corpus: CorpusDeclaration) -> tuple[CheckGroup, ...]:
    def plan_shards(store: ArtifactStore, partitions: Sequence[str]) -> Iterator[_OpenedSnapshot]:
        manifest, access = load_manifest(corpus, store), open_source(corpus.source)
        for partition in partitions:
            yield _OpenedSnapshot(
                corpus.artifact(SNAPSHOT, partition), store, corpus, access, manifest.shard(partition)
            )

    def needed_bytes(store: ArtifactStore, partitions: Sequence[str]) -> tuple[Path, int]:
        manifest = load_manifest(corpus, store)
        size = sum(entry.size_bytes for partition in partitions for entry in manifest.shard(partition))
        return store.root, int(size * TOKEN_BYTES_PER_SOURCE_BYTE)

    shard_checks: PartitionChecks[_OpenedSnapshot, _OpenedSnapshot] = PartitionChecks(
        checks=_CHECKS, planned=plan_shards
    )
    return shard_checks, WholeArtifactChecks(checks=(_HEADROOM,), open=needed_bytes)
