"""Checks of `<dataset>/npy_shards`: every sample is the stream's, and has the id that its tokens have."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import dagster as dg

from dataprep_assets.formats.npy_shards import ids_key
from dataprep_assets.graph.finding import Finding
from dataprep_assets.graph.verdicts import Verdicts, prove_all
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.checks import checks_of, of_all_partitions, summarized
from dataprep_assets.orchestration.dataset import worker_count
from dataprep_assets.pipelines.corpus.combined_bins import shard_receipts
from dataprep_assets.pipelines.corpus.corpus_asset import CorpusAssets
from dataprep_assets.pipelines.corpus.manifest import Manifest
from dataprep_assets.pipelines.release import npy_shards_proofs
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.pipelines.release.layout import ReleaseLayout, partition_key, release_layout
from dataprep_assets.pipelines.release.npy_shards import NAME, planned_shards, shard_artifact
from resources import StorageResource

OF_A_SPLIT = {
    "tokens_accounted": "The shards follow one another and are the whole stream but for the counted tail.",
    "sample_ids_repeat": "Few samples are copies of another: equal ids are repeated text.",
    "order_shuffled": "Documents are far from the neighbours that they have in the source.",
}


def npy_shards_checks(dataset: CorpusAssets, release: ReleaseDeclaration) -> dg.AssetChecksDefinition:
    """All checks of the shards, and of what only all shards of a split together can show."""

    def findings(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        store, manifest = dataset.store(storage), dataset.manifest(storage)
        layout = release_layout(release, store, manifest)

        def prove(partitions: Sequence[str]) -> Verdicts:
            workers = worker_count(release.workers)
            planned = planned_shards(release, store, layout, partitions, workers=workers)
            return prove_all(planned, npy_shards_proofs.prove_shard, workers)

        yield from of_all_partitions(
            context.run,
            store,
            layout.partitions,
            npy_shards_proofs.SHARD_PROOFS,
            artifact=partial(shard_artifact, release),
            prove=prove,
        )
        yield from _of_splits(release, store, layout, manifest)

    reports = ("sample_ids_repeat", "order_shuffled")
    return checks_of(dataset.key(NAME), {**npy_shards_proofs.SHARD_PROOFS, **OF_A_SPLIT}, findings, reports=reports)


def _of_splits(
    release: ReleaseDeclaration, store: ArtifactStore, layout: ReleaseLayout, manifest: Manifest
) -> Iterator[tuple[str, Finding]]:
    """What only all shards of a split together can show; a split of which shards are still to come has no verdict."""
    found: dict[str, dict[str, Finding]] = {name: {} for name in OF_A_SPLIT}
    for name, split in layout.splits.items():
        artifacts = [shard_artifact(release, partition_key(name, cut.index)) for cut in split.cuts]
        receipts = [receipt for receipt in store.receipts(artifacts) if receipt is not None]
        if len(receipts) < len(artifacts):
            continue
        bins = [r for _, r in shard_receipts(release, store, manifest, name)]
        source_tokens = sum(r.ledger.tokens for r in bins if r.ledger)
        found["tokens_accounted"][name] = npy_shards_proofs.tokens_accounted(receipts, source_tokens=source_tokens)
        ids = [Path(ids_key(name, cut.index)).name for cut in split.cuts]
        folders = [store.local(artifact, [file]) for artifact, file in zip(artifacts, ids, strict=True)]
        found["sample_ids_repeat"][name] = npy_shards_proofs.sample_ids_repeat(
            list(zip(folders, receipts, strict=True)), expected_share=release.release.expected_repeats
        )
        found["order_shuffled"][name] = npy_shards_proofs.order_shuffled(store, split)
    for check, of_split in found.items():
        yield check, summarized(of_split, list(of_split), len(layout.splits) - len(of_split), noun="split")
