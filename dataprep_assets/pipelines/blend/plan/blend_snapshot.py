"""The blend snapshot (`<dataset>/blend_snapshot`, one partition per shard): the digests of downloaded source files.

A snapshot contains only `files.jsonl`, not a copy of the files. Local files were read completely for the plan and are
not read again here, because the build of the shards compares their digests.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest, Partitions, ReadCost
from dataprep_assets.engine.checks.check import Check, Finding, OpenedArtifact
from dataprep_assets.engine.checks.verdicts import PartitionChecks
from dataprep_assets.errors import CorruptSourceError
from dataprep_assets.execution.jobs import Outcome, run_fetches
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.discovery import open_place
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan, load_blend_plan
from dataprep_assets.planning.cost import measure_density
from dataprep_assets.planning.manifest import ManifestEntry
from dataprep_assets.sources.access import compute_source_digest
from dataprep_assets.stores.files import PLAIN, digest_value
from dataprep_assets.stream.source import FILES, digests_match, encode_snapshot, read_snapshot
from dataprep_assets.stream.token_stream import Fetch, SourcePart

VERSION = 2
BLEND_SNAPSHOT = "blend_snapshot"
_PLAN_HASH = re.compile(r"[0-9a-f]{16}")
"""Form of a dataset's `plan_hash`."""


class BlendSnapshotFacts(Facts):
    """Facts of a snapshot: the number of the shard's source files, and their size in the source in bytes."""

    files: int
    source_bytes: int


def build_blend_snapshot_spec(
    blend: BlendDeclaration, *, partitions: Partitions, preview: ArtifactSpec
) -> ArtifactSpec:
    """Return the spec of the snapshots of a blend's shards.

    Args:
        blend: The declaration.
        partitions: The partitions of the shards.
        preview: The spec of the preview, which is built first because its check may stop the run before any download.
    """
    return ArtifactSpec(
        declaration=blend,
        name=BLEND_SNAPSHOT,
        version=VERSION,
        description="Source files of each shard, downloaded if remote, with their SHA-256.",
        kinds={"file"},
        inputs=(preview,),
        partitions=partitions,
        pool="network",
        verification="full",
        records_source=True,
        recipes=partial(_build_recipes, blend),
        build=partial(_build_snapshots, blend),
        reads=partial(estimate_readings, blend),
        check_groups=(PartitionChecks(checks=_CHECKS, planned=partial(_open_planned_snapshots, blend)),),
    )


def estimate_readings(
    blend: BlendDeclaration, store: ArtifactStore, partitions: Sequence[str], *, tokenized: bool = False
) -> Iterator[ReadCost]:
    """Yield the reading cost of each snapshot. If `tokenized`, yield the cost of each shard from downloaded files."""
    plan = load_blend_plan(blend, store)
    mirrored = {unit.name: open_place(unit.dataset, blend.sources).access.mirrored for unit in plan.units}
    for partition in partitions:
        unit, shard = plan.find_shard(partition)
        is_mirrored = mirrored[unit.name] and not tokenized
        yield ReadCost(
            source_bytes=shard.total_bytes,
            density=measure_density(part.entry for part in shard.parts),
            fetch_bytes=shard.total_bytes if is_mirrored else 0,
            tokenized=tokenized,
        )


def _build_snapshots(blend: BlendDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    plan = load_blend_plan(blend, request.store)
    shards = [plan.find_shard(partition) for partition in request.partitions]
    # Count each file once and whole, because shards with ranges of its rows download it together.
    sizes = {(unit.name, part.entry.relpath): part.entry.size_bytes for unit, shard in shards for part in shard.parts}

    def fetch(partition: str, report_bytes: Callable[[int], None]) -> tuple[Receipt, bool]:
        return build_blend_snapshot(blend, request.store, plan, partition, report_bytes)

    yield from run_fetches(request.partitions, fetch, sum(sizes.values()), request.progress)


def build_blend_snapshot(
    blend: BlendDeclaration,
    store: ArtifactStore,
    plan: BlendPlan,
    partition: str,
    progress: Callable[[int], None] | None = None,
) -> tuple[Receipt, bool]:
    """Download or verify the source files of one shard and commit their digests.

    `blend` is the declaration, `store` receives the snapshot, and `partition` is the key of a shard of `plan`.
    `progress` is called with the number of bytes of each downloaded piece. Returns the receipt, and whether the
    snapshot was reused. Raises SourceError, TransferError or CorruptSourceError, with the name of the file.
    """
    unit, shard = plan.find_shard(partition)
    access = open_place(unit.dataset, blend.sources).access
    access.fetch([part.entry for part in shard.parts], progress)
    # If the listing has only a git blob id or an ETag, hash the downloaded file, because neither is a SHA-256.
    lines = [
        _build_line(part.entry, part.entry.sha256 or compute_source_digest(access, part.entry)) for part in shard.parts
    ]

    def write(staged: Path) -> WrittenFiles:
        (staged / FILES).write_bytes(encode_snapshot(lines))
        return WrittenFiles(
            inputs={"plan": unit.plan_hash},
            facts=BlendSnapshotFacts(files=len(lines), source_bytes=sum(line["size_bytes"] for line in lines)),
        )

    return ensure_built(_build_recipe(blend, partition, lines), store, write)


def _build_line(entry: ManifestEntry, digest: str) -> dict[str, Any]:
    """Return the snapshot's line for a file whose SHA-256 is `digest`."""
    return {"relpath": entry.relpath, "size_bytes": entry.size_bytes, "etag": entry.etag, "sha256": digest}


def _build_recipe(blend: BlendDeclaration, partition: str, lines: Sequence[Mapping[str, Any]]) -> Recipe:
    """Return the recipe of a snapshot with these lines."""
    return Recipe(
        artifact=blend.artifact(BLEND_SNAPSHOT, partition),
        # The key covers only files, so that a new tokenizer, template or weight does not trigger another download.
        key=digest_value(["blend_snapshot", VERSION, lines]),
        version=VERSION,
        sources={line["relpath"]: digest_value(line) for line in lines},
    )


def _build_recipes(blend: BlendDeclaration, store: ArtifactStore, partitions: Sequence[str | None]) -> Iterator[Recipe]:
    """Yield the recipes for the plan's files without downloads; mirrored files are assumed to be unchanged."""
    plan = load_blend_plan(blend, store)
    for partition in partitions:
        assert partition is not None
        is_kept = store.intact_receipt(blend.artifact(BLEND_SNAPSHOT, partition)) is not None
        line_of_file = {line["relpath"]: line for line in _read_lines(blend, store, partition)} if is_kept else {}
        entries = [part.entry for part in plan.find_shard(partition)[1].parts]
        yield _build_recipe(
            blend, partition, [_build_expected_line(entry, line_of_file.get(entry.relpath)) for entry in entries]
        )


def _build_expected_line(entry: ManifestEntry, known_line: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the expected line of a file. If the plan has no digest, use the digest in `known_line`."""
    if entry.sha256 is not None or known_line is None:
        return _build_line(entry, entry.sha256 or "")
    return _build_line(entry, known_line["sha256"])


def _read_lines(blend: BlendDeclaration, store: ArtifactStore, partition: str) -> list[dict[str, Any]]:
    return read_snapshot(store.local(blend.artifact(BLEND_SNAPSHOT, partition)))


def load_shard_parts(
    blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, partition: str
) -> tuple[SourcePart, ...]:
    """Return the source files of the shard `partition` of `plan`, with their digests and row ranges.

    `blend` is the declaration, and `store` contains the snapshots. Raises MissingArtifactError if the snapshot is
    missing, and CorruptSourceError if the snapshot and the plan list different files.
    """
    unit, shard = plan.find_shard(partition)
    access = open_place(unit.dataset, blend.sources).access
    digest_of_file = {line["relpath"]: line["sha256"] for line in _read_lines(blend, store, partition)}
    if set(digest_of_file) != {part.entry.relpath for part in shard.parts}:
        raise CorruptSourceError(f"{partition}: the snapshot and the plan list different files. Rebuild the snapshot")
    limit = blend.bad_records.max_record_bytes
    # Use plain digests for downloaded files, because hubs and buckets list plain digests, not keyed ones.
    digests = PLAIN if access.mirrored else blend.source_digests()
    return tuple(
        SourcePart.from_entry(
            part.entry,
            access.path(part.entry),
            digest_of_file[part.entry.relpath],
            part.rows,
            digests=digests,
            max_record_bytes=limit,
            reading=unit.dataset.reading,
        )
        for part in shard.parts
    )


def build_shard_fetches(blend: BlendDeclaration, plan: BlendPlan, partitions: Sequence[str]) -> dict[str, Fetch]:
    """Return, by partition, a function that downloads the shard's sources to a machine that does not have them.

    Args:
        blend: The declaration.
        plan: The committed plan.
        partitions: The partition keys of the shards.
    """
    fetches = dict[str, Fetch]()
    for partition in partitions:
        unit, shard = plan.find_shard(partition)
        access = open_place(unit.dataset, blend.sources).access
        fetches[partition] = partial(access.fetch, [part.entry for part in shard.parts])
    return fetches


def prepare_fetches(blend: BlendDeclaration, plan: BlendPlan, partitions: Sequence[str]) -> dict[str, Fetch] | None:
    """Return the functions of `build_shard_fetches` for workers on other machines; None if all are on this machine.

    Workers on other machines may have no access to the files that were downloaded to this machine.
    """
    return None if blend.engine.is_this_machine else build_shard_fetches(blend, plan, partitions)


@dataclass(frozen=True)
class _OpenedBlendSnapshot(OpenedArtifact):
    """The snapshot of a shard that is opened for checks."""

    blend: BlendDeclaration
    plan: BlendPlan


def _open_planned_snapshots(
    blend: BlendDeclaration, store: ArtifactStore, partitions: Sequence[str]
) -> list[_OpenedBlendSnapshot]:
    plan = load_blend_plan(blend, store)
    return [
        _OpenedBlendSnapshot(blend.artifact(BLEND_SNAPSHOT, partition), store, blend, plan) for partition in partitions
    ]


def _digests_match(snapshot: _OpenedBlendSnapshot) -> Finding:
    position = snapshot.blend, snapshot.store, snapshot.plan, snapshot.artifact.partition or ""
    parts, defects = load_shard_parts(*position), list(_find_false_claims(*position))
    # A shard may have no file, because files are distributed by size, which puts all empty files into one shard.
    digests = parts[0].digests if parts else PLAIN
    return digests_match({p.label: p.sha256 for p in parts}, {p.label: p.path for p in parts}, defects, digests)


_CHECKS = (
    Check(
        "digests_match",
        (
            "The source files have the SHA-256 digests listed in the snapshot. The snapshot lists every planned "
            "file once and matches its receipt."
        ),
        _digests_match,
    ),
)


def _find_false_claims(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, partition: str) -> Iterator[str]:
    """Yield a sentence for each claim of a snapshot or its receipt that contradicts its lines or the plan."""
    artifact = blend.artifact(BLEND_SNAPSHOT, partition)
    entries = [part.entry for part in plan.find_shard(partition)[1].parts]
    lines, receipt = _read_lines(blend, store, partition), store.receipt(artifact)
    if (store.local(artifact) / FILES).read_bytes() != encode_snapshot(lines):
        yield f"{partition}: {FILES} of the snapshot is not in canonical form"
    if [line["relpath"] for line in lines] != [entry.relpath for entry in entries]:
        yield f"{partition}: the snapshot must list each file of the plan exactly once, in the plan's order"
    elif lines != [_build_expected_line(entry, line) for entry, line in zip(entries, lines, strict=True)]:
        yield (
            f"{partition}: a line of the snapshot differs from the plan in its size, digest or etag, or has different "
            "keys"
        )
    expected_facts = BlendSnapshotFacts(files=len(entries), source_bytes=sum(entry.size_bytes for entry in entries))
    if receipt is not None and BlendSnapshotFacts.from_receipt(receipt) != expected_facts:
        yield f"{partition}: the file or byte count in the snapshot's receipt differs from the plan"
    # Check only the form of the plan hash, because a snapshot stays valid when other settings change the plan hash.
    inputs = receipt.inputs if receipt is not None else None
    if inputs is not None and not (inputs.keys() == {"plan"} and _PLAN_HASH.fullmatch(str(inputs["plan"]))):
        yield f"{partition}: the snapshot's receipt does not name its plan"
