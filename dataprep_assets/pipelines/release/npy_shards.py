"""Npy shards (`<dataset>/npy_shards`, one partition per shard): `<split>_<iiiiii>.npy` and its sample ids.

Shards are written from the token bins, in parallel and without tokenizing again. The checks compare shards with the
token bins in blocks, so memory use does not grow with the shard.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.retractions import read_retracted_ids
from dataprep_assets.engine.artifact.losses import Loss
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest, Partitions
from dataprep_assets.engine.checks.check import (
    FILES_INTACT,
    REBUILD,
    SHOWN,
    Check,
    Finding,
    OpenedPartition,
    Row,
    build_verdict,
    describe_artifact,
    fail_on_errors,
    require_ledger,
)
from dataprep_assets.engine.checks.verdicts import (
    CheckGroup,
    CheckWorkers,
    PartitionChecks,
    WholeArtifactChecks,
    summarize_findings,
)
from dataprep_assets.errors import IntegrityError, count_of
from dataprep_assets.execution.jobs import Outcome, TaskJob, run_tasks
from dataprep_assets.execution.pool import ON_PROCESSES, TaskEngine, choose_worker_count
from dataprep_assets.execution.progress import Progress
from dataprep_assets.formats import npy_shards, sample_ids
from dataprep_assets.formats.document_index import IDS, open_ids
from dataprep_assets.formats.npy_shards import build_ids_key
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Ledger, Receipt
from dataprep_assets.pipelines.corpus.combined_bins import read_shard_receipts
from dataprep_assets.pipelines.corpus.source.manifest import load_manifest
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.pipelines.release.layout import (
    ReleaseLayout,
    SplitLayout,
    compute_release_layout,
    format_partition_key,
)
from dataprep_assets.pipelines.release.npy_shard import (
    NPY_SHARDS,
    VERSION,
    NpyShard,
    NpyShardFacts,
    build_planned,
    build_shard_recipe,
    count_tokens,
    get_shard_artifact,
)
from dataprep_assets.pipelines.release.npy_trace import build_npy_locator
from dataprep_assets.stream.retracted_documents import build_retraction_finding
from dataprep_assets.table import format_share

BLOCK = 1 << 20
"""Number of tokens to process at a time."""
IDS_AT_ONCE = 1 << 26
"""Maximum number of sample ids to sort at a time (512 MiB). More ids are divided into parts by their leading bits."""


def build_shard_partitions(release: ReleaseDeclaration) -> Partitions:
    """Return the partitions of a release's shards (such as `train_000000`), which its plan determines."""
    return Partitions(
        dynamic=f"{release.dataset}_npy_shards",
        keys=lambda store: compute_release_layout(release, store).partitions,
    )


def build_npy_shards_spec(release: ReleaseDeclaration, *, partitions: Partitions, plan: ArtifactSpec) -> ArtifactSpec:
    """Return the spec of the npy shards.

    Args:
        release: The declaration.
        partitions: The partitions of the shards.
        plan: The spec of the release plan, which determines the partitions.
    """
    return ArtifactSpec(
        declaration=release,
        name=NPY_SHARDS,
        version=VERSION,
        description="Shards of complete samples in NumPy's format, and the id of every sample.",
        kinds={"numpy"},
        inputs=(plan,),
        partitions=partitions,
        pool="cpu",
        recipes=partial(_build_recipes, release),
        build=partial(_build_shards, release),
        places=partial(build_npy_locator, release),
        losses=lambda _, receipts: map(_build_tail_loss, receipts),
        check_groups=build_check_groups(release),
    )


def _build_tail_loss(receipt: Receipt) -> Loss:
    """Return the loss of the tokens that were dropped after a shard; 0 tokens unless it is its split's last shard."""
    facts = NpyShardFacts.from_receipt(receipt)
    return Loss(
        action="left out",
        reason="tail",
        count=facts.tail_dropped_tokens,
        of=facts.stream_tokens,
        unit="token",
        part=facts.prefix,
    )


def prepare_npy_shards(
    release: ReleaseDeclaration,
    store: ArtifactStore,
    layout: ReleaseLayout,
    partitions: Sequence[str],
    *,
    workers: int,
) -> list[NpyShard]:
    """Return the shards with these partition keys, ready to build or to check.

    Args:
        release: The declaration.
        store: The store of the release's artifacts.
        layout: The layout of the whole release; each shard gets only the layout of its own split.
        partitions: The partition keys of the shards.
        workers: Number of processes that share the cores.
    """
    # Count only the cores that this process may use, because the machine may have more.
    threads = max(1, len(os.sched_getaffinity(0)) // max(1, min(workers, len(partitions))))
    shards = []
    for partition in partitions:
        split, _ = layout.find_shard(partition)
        # Omit the other splits, because the layout is pickled for every shard.
        split_layout = replace(layout, splits={split.split: split})
        shards.append(NpyShard(release=release, store=store, layout=split_layout, partition=partition, threads=threads))
    return shards


def build_npy_shards(
    planned_shards: Sequence[NpyShard],
    *,
    workers: int,
    engine: TaskEngine = ON_PROCESSES,
    progress: Progress | None = None,
) -> Iterator[Outcome]:
    """Build the shards that are out of date.

    Args:
        planned_shards: The shards to build.
        workers: Maximum number of workers, which does not affect the bytes.
        engine: The engine that runs the tasks.
        progress: Counts and shows the work; with None, nothing is shown.

    Yields each shard's outcome as soon as it is verified, built or failed. A failed shard does not stop the others. A
    shard whose workers keep dying stops the build (WorkerDiedError); finished shards are kept.
    """
    jobs = [TaskJob(shard, build_planned, find_receipt=partial(_find_receipt, shard)) for shard in planned_shards]
    return run_tasks(jobs, workers=workers, engine=engine, progress=progress)


def _find_receipt(shard: NpyShard) -> Receipt | None:
    key = build_shard_recipe(shard.release, shard.layout, shard.partition).key
    return shard.store.find_current_if_cheap(shard.artifact, key, shard.release.verify)


def _build_recipes(
    release: ReleaseDeclaration, store: ArtifactStore, chosen_partitions: Sequence[str | None]
) -> Iterator[Recipe]:
    layout = compute_release_layout(release, store)
    for partition in chosen_partitions:
        yield build_shard_recipe(release, layout, partition or "")


def _build_shards(release: ReleaseDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    layout = compute_release_layout(release, request.store)
    shards = prepare_npy_shards(release, request.store, layout, request.partitions, workers=request.workers)
    yield from build_npy_shards(shards, workers=request.workers, engine=release.engine, progress=request.progress)


def _plan_shards(release: ReleaseDeclaration, store: ArtifactStore, partitions: Sequence[str]) -> list[NpyShard]:
    workers = choose_worker_count(release.workers)
    return prepare_npy_shards(release, store, compute_release_layout(release, store), partitions, workers=workers)


class OpenedNpyShard(OpenedPartition[NpyShard]):
    """A shard that is opened for checks, with its planned range of the stream."""

    @cached_property
    def facts(self) -> NpyShardFacts:
        """Facts in the shard's receipt. Raises IntegrityError if a fact is missing."""
        return NpyShardFacts.from_receipt(self.receipt)

    @property
    def token_path(self) -> Path:
        """Path of the token file."""
        return self.directory / Path(npy_shards.build_token_key(self.facts.prefix, self.facts.index)).name

    @property
    def ids_path(self) -> Path:
        """Path of the file of sample ids."""
        return self.directory / Path(npy_shards.build_ids_key(self.facts.prefix, self.facts.index)).name

    @property
    def expected_facts(self) -> dict[str, Any]:
        """Facts that the receipt must have. Facts about the whole split are omitted, because they may be outdated."""
        layout, (split, shard_cut) = self.planned.layout, self.planned.layout.find_shard(self.planned.partition)
        length = self.planned.release.release.sequence_length
        return {
            **layout.meta,
            "separator_id": layout.separator_id,
            "prefix": split.split,
            "index": shard_cut.index,
            "sequence_length": length,
            "tokens": shard_cut.tokens,
            "samples": shard_cut.tokens // length,
            "stream_start": shard_cut.start,
            "stream_stop": shard_cut.stop,
            "padding_tokens": shard_cut.padding,
            "tail_dropped_tokens": shard_cut.dropped,
        }


def format_valid(shard: OpenedNpyShard) -> Finding:
    """Check that the token file is a valid one-dimensional `.npy` of whole sequences, with one id per sequence.

    Its header must have 128 bytes, NumPy's format version 1.0 and the declared dtype. The facts must match the plan.
    """
    for name, expected_fact in shard.expected_facts.items():
        if (fact := shard.receipt.facts.get(name)) != expected_fact:
            raise IntegrityError(f"{shard.name}: {name}: the receipt has {fact}, expected {expected_fact}. {REBUILD}")
    dtype, tokens, length = shard.facts.dtype, shard.facts.tokens, shard.facts.sequence_length
    npy_shards.validate(shard.token_path, dtype=dtype, tokens=tokens, sequence_length=length)
    ids = sample_ids.open_sample_ids(shard.ids_path, tokens // length)
    return Finding(
        passed=True,
        summary=f"{tokens:,} {dtype} tokens in {count_of(len(ids), 'sample')} of {count_of(length, 'token')}, each "
        "with an id.",
        facts={"tokens": tokens, "samples": len(ids), "bytes": shard.token_path.stat().st_size},
    )


def matches_stream(shard: OpenedNpyShard) -> Finding:
    """Check that the shard equals its range of the token bins in the seeded order, followed by padding.

    Every sample id must also be the hash of its sample, and the ledger must match the shard's tokens.
    """
    length, shard_cut = shard.facts.sequence_length, shard.planned.layout.find_shard(shard.planned.partition)[1]
    tokens = npy_shards.open_shard(shard.token_path, sequence_length=length)
    ids = sample_ids.open_sample_ids(shard.ids_path, len(tokens) // length)
    defects = list(_find_differences(shard, tokens))
    wrong_samples = sample_ids.find_differing(tokens, ids, length, threads=shard.planned.threads)
    defects += [f"the id of sample {k} is not the hash of its {count_of(length, 'token')}" for k in wrong_samples]
    if (ledger := _build_ledger(tokens, shard.facts.separator_id)) != require_ledger(shard.receipt):
        defects.append(f"its ledger does not match its {count_of(ledger.tokens, 'token')}")
    return build_verdict(
        (f"{shard.name}: {defect}" for defect in defects),
        f"The shard has tokens {shard_cut.start} to {shard_cut.stop - 1} of the stream, followed by "
        f"{count_of(shard_cut.padding, 'padding token')}.",
        REBUILD,
        facts={"tokens": len(tokens), "padding": shard_cut.padding, "samples": len(ids)},
    )


def _build_ledger(tokens: NDArray[Any], separator: int) -> Ledger:
    """Return the ledger of a shard's tokens. It has no rows or documents, because shards may divide documents."""
    ledger = Ledger()
    for start in range(0, len(tokens), BLOCK):
        ledger = ledger + count_tokens(tokens[start : start + BLOCK], separator)
    return ledger


def _find_differences(shard: OpenedNpyShard, tokens: NDArray[Any]) -> Iterator[str]:
    split, shard_cut = shard.planned.layout.find_shard(shard.planned.partition)
    if len(tokens) != shard_cut.tokens:
        yield f"has {count_of(len(tokens), 'token')}, but the plan has {shard_cut.tokens:,}"
        return
    position = 0
    for block in split.order.read(shard.planned.store, shard_cut.start, shard_cut.stop):
        shard_block = tokens[position : position + len(block)]
        if not np.array_equal(shard_block, block):
            difference_start = position + int(np.flatnonzero(shard_block != block)[0])
            yield (
                f"token {difference_start} (byte {npy_shards.HEADER_BYTES + difference_start * tokens.itemsize}) "
                "differs from the stream"
            )
            return
        position += len(block)
    if (tokens[position:] != shard.facts.separator_id).any():
        yield f"the padding from token {position} on contains tokens other than the separator"


SHARD_CHECKS: tuple[Check[OpenedNpyShard], ...] = (
    FILES_INTACT,
    Check(
        "format_valid",
        "The token file is a valid one-dimensional `.npy` (version 1.0) of the declared dtype, with complete "
        "sequences. The id file has no header, and one id per sequence.",
        format_valid,
    ),
    Check(
        "matches_stream",
        "The shard equals its range of the token bins in the seeded order. Every sample id is the BLAKE2b "
        "digest of the sample's tokens.",
        matches_stream,
        version=2,
    ),
)
"""Checks of one shard."""


@dataclass(frozen=True)
class OpenedSplit:
    """A split that is opened for checks: the artifacts of its shards in order, their receipts, and its token bins."""

    release: ReleaseDeclaration
    store: ArtifactStore
    layout: SplitLayout
    artifacts: Sequence[Artifact]
    receipts: Sequence[Receipt]

    @cached_property
    def bins(self) -> Sequence[tuple[Artifact, Receipt]]:
        """The token bins of the split, with their receipts."""
        return read_shard_receipts(self.release, self.store, load_manifest(self.release, self.store), self.layout.split)


@dataclass(frozen=True)
class _OpenedSplits:
    """The complete splits of a release, and the number of incomplete splits, which are not checked."""

    complete: Sequence[OpenedSplit]
    incomplete_count: int


def _open_splits(release: ReleaseDeclaration, store: ArtifactStore, _: Sequence[str]) -> _OpenedSplits:
    splits = compute_release_layout(release, store).splits
    complete = []
    for name, layout in splits.items():
        artifacts = [get_shard_artifact(release, format_partition_key(name, cut.index)) for cut in layout.cuts]
        receipts = [receipt for receipt in store.receipts(artifacts) if receipt is not None]
        if len(receipts) == len(artifacts):
            complete.append(OpenedSplit(release, store, layout, artifacts, receipts))
    return _OpenedSplits(complete, len(splits) - len(complete))


def _summarize_splits(find: Callable[[OpenedSplit], Finding], splits: _OpenedSplits) -> Finding:
    findings = {split.layout.split: fail_on_errors(find)(split) for split in splits.complete}
    return summarize_findings(findings, list(findings), splits.incomplete_count, noun="split")


def tokens_accounted(split: OpenedSplit) -> Finding:
    """Check that the shards of a split are consecutive, and contain the whole stream except the dropped tokens."""
    receipts, source_tokens = split.receipts, sum(r.ledger.tokens for _, r in split.bins if r.ledger)
    defects = []
    position = dropped_tokens = padding = 0
    for number, receipt in enumerate(receipts):
        facts = NpyShardFacts.from_receipt(receipt)
        start, stop = facts.stream_start, facts.stream_stop
        if facts.index != number or start != position:
            defects.append(
                f"{describe_artifact(receipt)}: expected shard {number}, beginning at token {position}, but found "
                f"shard {facts.index}, beginning at token {start}"
            )
        if facts.tokens != stop - start + facts.padding_tokens:
            defects.append(
                f"{describe_artifact(receipt)}: the length of the shard does not match its range and its padding"
            )
        position = stop
        dropped_tokens += facts.tail_dropped_tokens
        padding += facts.padding_tokens
    if position + dropped_tokens != source_tokens:
        defects.append(
            f"the last shard ends after {count_of(position, 'token')} of the stream, and "
            f"{count_of(dropped_tokens, 'token was', 'tokens were')} dropped, but the token bins have "
            f"{count_of(source_tokens, 'token')}"
        )
    return build_verdict(
        defects,
        f"All {source_tokens:,} tokens of the stream are accounted for: {position:,} are in "
        f"{count_of(len(receipts), 'shard')}, and {count_of(dropped_tokens, 'was', 'were')} dropped at the end. The "
        "shards also have "
        f"{count_of(padding, 'padding token')}.",
        "Rebuild npy_shards of this split",
        facts={"tokens": position, "dropped": dropped_tokens, "padding": padding, "source_tokens": source_tokens},
    )


def no_retracted_document(split: OpenedSplit) -> Finding:
    """Check that npy shards were cut from the current token bins, which have no documents on the retraction list.

    `matches_stream` verifies that the tokens of a shard equal its range of these token bins.
    """
    removed_ids = read_retracted_ids(
        split.release.retractions, split.release.document.ids(sensitive=split.release.sensitive)
    )
    current_contents = {str(receipt.partition): receipt.content for _, receipt in split.bins}

    def find_defects() -> Iterator[str]:
        for receipt in split.receipts:
            if changed_keys := [key for key, content in receipt.inputs.items() if current_contents.get(key) != content]:
                yield f"{describe_artifact(receipt)}: was not built from the current version of {changed_keys[0]}"
        # Skip this loop if no document is removed, because opening the ids of documents may download them.
        for artifact, receipt in split.bins if len(removed_ids) else ():
            ids = open_ids(split.store.local(artifact, [IDS]) / IDS, require_ledger(receipt).documents)
            if removed_documents := int(np.isin(ids, removed_ids).sum()):
                yield f"{describe_artifact(receipt)}: contains {count_of(removed_documents, 'retracted document')}"

    scope = f"{count_of(len(split.bins), 'shard')} of token bins"
    return build_retraction_finding(find_defects(), scope, len(removed_ids), "Rebuild token_bins, then npy_shards")


def samples_unique(split: OpenedSplit) -> Finding:
    """Check that the share of samples that repeat a different sample of the split does not exceed the declared limit.

    Only the ids are read, because equal ids mean equal tokens. The table lists the most frequent samples.
    """
    expected_share = split.release.release.expected_repeats
    ids = []
    for shard_cut, artifact, receipt in zip(split.layout.cuts, split.artifacts, split.receipts, strict=True):
        name = Path(build_ids_key(split.layout.split, shard_cut.index)).name
        path = split.store.local(artifact, [name]) / name
        ids.append(sample_ids.open_sample_ids(path, NpyShardFacts.from_receipt(receipt).samples))
    total = sum(len(part) for part in ids)
    parts = 1 << max(0, (total // IDS_AT_ONCE).bit_length())
    repeat_count, rows = 0, []
    for number in range(parts):
        # Count the ids in parts, because all ids at once may not fit into memory. The leading bits give parts of about
        # the same size, because ids are hashes.
        bits = parts.bit_length() - 1
        part_ids = [part[part >> np.uint64(64 - bits) == number] if bits else np.asarray(part) for part in ids]
        values, counts = np.unique(np.concatenate(part_ids), return_counts=True)
        repeat_count += int((counts - 1).sum())
        rows += [(int(n), int(value)) for value, n in zip(values[counts > 1], counts[counts > 1], strict=True)]
        # Keep only the most frequent ids so far, because their counts are final: each id occurs in only one part.
        rows = sorted(rows, reverse=True)[:SHOWN]
    share = repeat_count / total if total else 0.0
    repeat = "repeats a different sample" if repeat_count == 1 else "repeat a different sample"
    table: list[Row] = [{"sample_id": f"{value:016x}", "samples": n} for n, value in rows]
    defects = (
        []
        if share <= expected_share
        else [f"{repeat_count} of {count_of(total, 'sample')} ({format_share(share)}) {repeat}"]
    )
    return build_verdict(
        defects,
        f"{repeat_count} of {count_of(total, 'sample')} {repeat} ({format_share(share)}).",
        "Deduplicate the source, or expect the model to read this text more often",
        facts={"samples": total, "repeated": repeat_count, "share": share},
        table=table,
        warning=True,
    )


SPLIT_CHECKS = (
    Check(
        "tokens_accounted",
        "The shards are consecutive, and cover the whole stream except its tail, which the ledger counts.",
        partial(_summarize_splits, tokens_accounted),
    ),
    Check(
        "no_retracted_document",
        "The shards were built from the current token bins, which contain no removed document.",
        partial(_summarize_splits, no_retracted_document),
    ),
    Check(
        "samples_unique",
        "The share of repeated samples (with equal ids) is at most `release.expected_repeats`.",
        partial(_summarize_splits, samples_unique),
        blocking=False,
    ),
)
"""Checks that need all shards of a split."""


def build_check_groups(release: ReleaseDeclaration) -> tuple[CheckGroup, ...]:
    """Return the two groups of checks: checks of the shards, and checks of the splits."""
    shard_checks = PartitionChecks(
        checks=SHARD_CHECKS,
        planned=partial(_plan_shards, release),
        open=OpenedNpyShard.open,
        workers=lambda *_: CheckWorkers(engine=release.engine, declared=release.workers),
    )
    return shard_checks, WholeArtifactChecks(checks=SPLIT_CHECKS, open=partial(_open_splits, release))
