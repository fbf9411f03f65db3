"""The artifact `<dataset>/npy_shards`, one partition per shard: `<split>_<iiiiii>.npy` and its sample ids.

Each shard is written from the token bins, in parallel over shards: no text is tokenized again.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from dataprep_assets.documents.retractions import retracted_ids
from dataprep_assets.execution.jobs import Outcome, TaskJob, run_tasks
from dataprep_assets.execution.pool import ON_PROCESSES, TaskEngine, worker_count
from dataprep_assets.execution.progress import Progress
from dataprep_assets.formats.document_index import IDS
from dataprep_assets.formats.npy_shards import ids_key
from dataprep_assets.graph.finding import Finding
from dataprep_assets.graph.losses import Loss
from dataprep_assets.graph.recipe import Recipe
from dataprep_assets.graph.spec import ArtifactSpec, BuildRequest, Partitions, Proofs
from dataprep_assets.graph.verdicts import find_in_workers, of_all_partitions, summarized
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.combined_bins import shard_receipts
from dataprep_assets.pipelines.corpus.manifest import load_manifest
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.pipelines.release.layout import ReleaseLayout, partition_key, release_layout
from dataprep_assets.pipelines.release.npy_shard import (
    NPY_SHARDS,
    VERSION,
    NpyShard,
    NpyShardFacts,
    build_planned,
    shard_artifact,
    shard_recipe,
)
from dataprep_assets.pipelines.release.npy_shards_proofs import (
    SHARD_PROOFS,
    SPLIT_PROOFS,
    no_retracted_document,
    order_shuffled,
    prove_shard,
    sample_ids_repeat,
    tokens_accounted,
)
from dataprep_assets.pipelines.release.npy_trace import npy_places


def shard_partitions(release: ReleaseDeclaration) -> Partitions:
    """The shards of a release (`train_000000`), which its plan determines."""
    return Partitions(
        dynamic=f"{release.dataset}_npy_shards",
        keys=lambda store: release_layout(release, store).partitions,
    )


def npy_shards_spec(release: ReleaseDeclaration, *, partitions: Partitions, plan: ArtifactSpec) -> ArtifactSpec:
    """The npy shards.

    Args:
        release: The dataset.
        partitions: The shards.
        plan: The artifact that plans them.
    """
    return ArtifactSpec(
        declaration=release,
        name=NPY_SHARDS,
        version=VERSION,
        description="Shards of whole samples with a NumPy header, and the id of every sample.",
        kinds={"numpy"},
        inputs=(plan,),
        partitions=partitions,
        pool="cpu",
        recipes=partial(_recipes, release),
        build=partial(_build, release),
        places=partial(npy_places, release),
        losses=lambda _, receipts: map(_tail, receipts),
        proofs=Proofs(proofs=SHARD_PROOFS + SPLIT_PROOFS, examine=partial(_examine, release)),
    )


def _tail(receipt: Receipt) -> Loss:
    """The tokens after the last whole sample of a split, which follow its last shard."""
    facts = NpyShardFacts.of(receipt)
    return Loss(
        action="left out",
        reason="tail",
        count=facts.tail_dropped_tokens,
        of=facts.stream_tokens,
        unit="token",
        part=facts.prefix,
    )


def planned_shards(
    release: ReleaseDeclaration,
    store: ArtifactStore,
    layout: ReleaseLayout,
    partitions: Sequence[str],
    *,
    workers: int,
) -> list[NpyShard]:
    """Shards to be built or proven.

    Args:
        release: The dataset.
        store: Where its artifacts are.
        layout: Layout of the whole release; each shard gets that of its own split.
        partitions: The shards.
        workers: Number of processes that will share the cores.
    """
    # the cores that this process may use, not all of the machine, shared by the workers
    threads = max(1, len(os.sched_getaffinity(0)) // max(1, min(workers, len(partitions))))
    planned = []
    for partition in partitions:
        split, _ = layout.find(partition)
        # pickled for every shard, so without the cuts of other splits
        own = replace(layout, splits={split.split: split})
        planned.append(NpyShard(release=release, store=store, layout=own, partition=partition, threads=threads))
    return planned


def build_npy_shards(
    planned: Sequence[NpyShard],
    *,
    workers: int,
    engine: TaskEngine = ON_PROCESSES,
    progress: Progress | None = None,
) -> Iterator[Outcome]:
    """Build the shards that are not current.

    Args:
        planned: The shards to make.
        workers: Largest number of workers, which does not affect the bytes.
        engine: Who does the work.
        progress: Counts and shows the work; None: nothing is shown.

    Yields each shard's outcome as soon as it is verified, built or failed. A failed shard does not stop the others. A
    shard whose workers keep dying does (WorkerDiedError); finished shards stay committed.
    """
    jobs = [TaskJob(shard, build_planned, found=partial(_found, shard)) for shard in planned]
    return run_tasks(jobs, workers=workers, engine=engine, progress=progress)


def _found(shard: NpyShard) -> Receipt | None:
    key = shard_recipe(shard.release, shard.layout, shard.partition).key
    return shard.store.quickly_current(shard.artifact, key, shard.release.verify)


def _recipes(release: ReleaseDeclaration, store: ArtifactStore, chosen: Sequence[str | None]) -> Iterator[Recipe]:
    layout = release_layout(release, store)
    for partition in chosen:
        yield shard_recipe(release, layout, partition or "")


def _build(release: ReleaseDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    layout = release_layout(release, request.store)
    planned = planned_shards(release, request.store, layout, request.partitions, workers=request.workers)
    yield from build_npy_shards(planned, workers=request.workers, engine=release.engine, progress=request.progress)


def _examine(
    release: ReleaseDeclaration, store: ArtifactStore, examined: Sequence[str]
) -> Iterator[tuple[str, Finding]]:
    layout, workers = release_layout(release, store), worker_count(release.workers)
    yield from of_all_partitions(
        store,
        SHARD_PROOFS,
        layout.partitions,
        examined,
        artifact=partial(shard_artifact, release),
        prove=lambda partitions: find_in_workers(
            planned_shards(release, store, layout, partitions, workers=workers),
            prove_shard,
            workers,
            engine=release.engine,
        ),
    )
    yield from _of_splits(release, store, layout)


def _of_splits(
    release: ReleaseDeclaration, store: ArtifactStore, layout: ReleaseLayout
) -> Iterator[tuple[str, Finding]]:
    """The proofs that need all shards of a split; a split with missing shards has no verdict."""
    manifest = load_manifest(release, store)
    listed = retracted_ids(release.retractions, release.document.ids(sensitive=release.sensitive))
    found: dict[str, dict[str, Finding]] = {proof.name: {} for proof in SPLIT_PROOFS}
    for name, split in layout.splits.items():
        artifacts = [shard_artifact(release, partition_key(name, cut.index)) for cut in split.cuts]
        receipts = [receipt for receipt in store.receipts(artifacts) if receipt is not None]
        if len(receipts) < len(artifacts):
            continue
        bins = shard_receipts(release, store, manifest, name)
        source_tokens = sum(r.ledger.tokens for _, r in bins if r.ledger)
        # of a bucket, the index of ids is fetched only if there is a list to look for
        indexes = [(store.local(a, [IDS]) if len(listed) else Path(), r) for a, r in bins]
        found["no_retracted_document"][name] = no_retracted_document(receipts, indexes, listed)
        found["tokens_accounted"][name] = tokens_accounted(receipts, source_tokens=source_tokens)
        ids = [Path(ids_key(name, cut.index)).name for cut in split.cuts]
        folders = [store.local(artifact, [file]) for artifact, file in zip(artifacts, ids, strict=True)]
        found["sample_ids_repeat"][name] = sample_ids_repeat(
            list(zip(folders, receipts, strict=True)), expected_share=release.release.expected_repeats
        )
        found["order_shuffled"][name] = order_shuffled(store, split)
    for check, of_split in found.items():
        yield check, summarized(of_split, list(of_split), len(layout.splits) - len(of_split), noun="split")
