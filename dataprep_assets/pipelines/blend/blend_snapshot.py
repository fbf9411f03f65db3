"""Builds the snapshot of a blend's shard: its source files, present and digested, as `files.jsonl`.

Local files were read in full for the plan and are not read again here: whatever encodes them compares the digest.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dataprep_assets.errors import CorruptSourceError, SourceError
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.graph.facts import Facts
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import canonical_json, digest_value, sha256_file
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.discovery import open_place
from dataprep_assets.pipelines.blend.plan import BlendPlan, PlannedPart
from dataprep_assets.pipelines.corpus.token_stream import SourcePart
from dataprep_assets.sources.access import SourceAccess

VERSION = 1
FILES = "files.jsonl"


class BlendSnapshotFacts(Facts):
    """The source files of a shard, and their bytes in the source."""

    files: int
    source_bytes: int


def build_blend_snapshot(
    blend: BlendDeclaration,
    store: ArtifactStore,
    plan: BlendPlan,
    partition: str,
    progress: Callable[[int], None] | None = None,
) -> tuple[Receipt, bool]:
    """Fetch or verify the source files of one shard and commit their digests.

    `blend` is the declaration, `store` gets the snapshot, `partition` names a shard of `plan`; `progress` is called
    with the bytes of each piece that was fetched. Returns the receipt and whether it was reused. Raises SourceError,
    TransferError or CorruptSourceError, naming the file.
    """
    unit, shard = plan.find(partition)
    access = open_place(unit.dataset, blend.sources).access
    access.fetch([part.entry for part in shard.parts], progress)
    lines = list(_lines(access, shard.parts))

    def write(staged: Path) -> Written:
        (staged / FILES).write_bytes(b"".join(canonical_json(line) + b"\n" for line in lines))
        return Written(
            inputs={"plan": unit.plan_hash},
            facts=BlendSnapshotFacts(files=len(lines), source_bytes=sum(line["size_bytes"] for line in lines)),
        )

    return ensure(blend.artifact("blend_snapshot", partition), store, _key(lines), write)


def _key(lines: list[dict[str, Any]]) -> str:
    return digest_value(["blend_snapshot", VERSION, lines])


def _lines(access: SourceAccess, parts: tuple[PlannedPart, ...]) -> Iterator[dict[str, Any]]:
    for part in parts:
        entry = part.entry
        digest = entry.sha256
        if digest is None:
            try:
                digest = sha256_file(access.path(entry))
            except OSError as error:
                raise SourceError(f"{entry.relpath}: cannot be read: {error.strerror or error}") from error
        yield {"relpath": entry.relpath, "size_bytes": entry.size_bytes, "etag": entry.etag, "sha256": digest}


def launches(blend: BlendDeclaration, plan: BlendPlan, at_once: int) -> list[list[str]]:
    """The partitions of `plan` in runs, in order, as the `execution_mode` of `blend` asks.

    A run fetches all its sources before it builds a shard. So one run of all shards (`batch`) builds nothing before
    everything is fetched, while runs of `at_once` shards each (`streaming`) build the first with the last still remote.
    """
    partitions = plan.partitions
    mode = blend.execution_mode
    if mode == "auto":
        remote = any(open_place(unit.dataset, blend.sources).access.mirrored for unit in plan.units)
        mode = "streaming" if remote else "batch"
    size = len(partitions) if mode == "batch" else at_once
    return [partitions[first : first + size] for first in range(0, len(partitions), size)]


def snapshot_is_current(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, partition: str) -> bool:
    """Whether the committed snapshot of the shard `partition` lists the files that `plan` names. Fetches nothing.

    `blend` is the declaration, `store` holds the snapshots.
    """
    artifact = blend.artifact("blend_snapshot", partition)
    if store.whole(artifact) is None:
        return False
    _, shard = plan.find(partition)
    known = _read(blend, store, partition)
    wanted = [(p.entry.relpath, p.entry.size_bytes, p.entry.etag) for p in shard.parts]
    if [(line["relpath"], line["size_bytes"], line["etag"]) for line in known] != wanted:
        return False
    return all(p.entry.sha256 in (None, line["sha256"]) for p, line in zip(shard.parts, known, strict=True))


def _read(blend: BlendDeclaration, store: ArtifactStore, partition: str) -> list[dict[str, Any]]:
    directory = store.local(blend.artifact("blend_snapshot", partition))
    with open(directory / FILES, "rb") as file:
        return [json.loads(line) for line in file]


def shard_parts(
    blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, partition: str
) -> tuple[SourcePart, ...]:
    """The source files of the shard `partition` of `plan`, with digests and rows, ready to be encoded.

    `blend` is the declaration, `store` holds the snapshots. Raises MissingArtifactError without a snapshot and
    CorruptSourceError when it lists other files than the plan.
    """
    unit, shard = plan.find(partition)
    access = open_place(unit.dataset, blend.sources).access
    known = {line["relpath"]: line["sha256"] for line in _read(blend, store, partition)}
    if set(known) != {part.entry.relpath for part in shard.parts}:
        raise CorruptSourceError(f"{partition}: its snapshot lists other files than the plan; materialize it again")
    return tuple(
        SourcePart(
            label=part.entry.relpath,
            path=access.path(part.entry),
            format=part.entry.format,
            compression=part.entry.compression,
            sha256=known[part.entry.relpath],
            ordinal=part.entry.ordinal,
            rows=part.rows,
        )
        for part in shard.parts
    )
