"""Builds the snapshot of a blend's shard: its source files, present and digested, as `files.jsonl`.

Local files were read whole for the plan and are not read again: who encodes them compares the digest once more.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dataprep_assets.errors import CorruptSourceError, SourceError
from dataprep_assets.graph.build import Written, ensure
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


def build_blend_snapshot(
    blend: BlendDeclaration,
    store: ArtifactStore,
    plan: BlendPlan,
    partition: str,
    progress: Callable[[int], None] | None = None,
) -> tuple[Receipt, bool]:
    """Fetch or verify the files of one shard and commit their digests.

    Returns the receipt, and whether the snapshot that was there already says the same. Raises SourceError,
    TransferError or CorruptSourceError naming the file.
    """
    unit, shard = plan.find(partition)
    access = open_place(unit.dataset, blend.sources).access
    access.fetch([part.entry for part in shard.parts], progress)
    lines = list(_lines(access, shard.parts))

    def write(staged: Path) -> Written:
        (staged / FILES).write_bytes(b"".join(canonical_json(line) + b"\n" for line in lines))
        return Written(
            inputs={"plan": unit.plan_hash},
            facts={"files": len(lines), "source_bytes": sum(line["size_bytes"] for line in lines)},
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
    """The plan's partitions as `execution_mode` cuts them into runs, in order.

    A run makes its sources present before it makes a shard of them. So one run of all (`batch`) makes nothing before
    everything is here, and runs of `at_once` shards (`streaming`) have made the first while the last are still remote.
    """
    partitions = plan.partitions
    mode = blend.execution_mode
    if mode == "auto":
        remote = any(open_place(unit.dataset, blend.sources).access.mirrored for unit in plan.units)
        mode = "streaming" if remote else "batch"
    size = len(partitions) if mode == "batch" else at_once
    return [partitions[first : first + size] for first in range(0, len(partitions), size)]


def snapshot_is_current(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, partition: str) -> bool:
    """Whether a shard's snapshot is of the files that the plan names. Nothing is fetched."""
    artifact = blend.artifact("blend_snapshot", partition)
    if store.intact(artifact) is None:
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
    """The files of one shard, with digests and rows, for whoever encodes them.

    MissingArtifactError when there is no snapshot; CorruptSourceError when it is of other files than the plan's.
    """
    unit, shard = plan.find(partition)
    access = open_place(unit.dataset, blend.sources).access
    known = {line["relpath"]: line["sha256"] for line in _read(blend, store, partition)}
    if set(known) != {part.entry.relpath for part in shard.parts}:
        raise CorruptSourceError(f"{partition}: its snapshot is of other files than the plan's; materialize it again")
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
