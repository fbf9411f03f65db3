"""Checks of `<dataset>/npy_shards`: every sample is the stream's, and has the id that its tokens have."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg

from dataprep_assets.assets.corpus import CorpusAssets
from dataprep_assets.assets.dataset import partitions_of_run
from dataprep_assets.builds.combined_bins import shard_receipts
from dataprep_assets.builds.manifest import Manifest
from dataprep_assets.builds.release.declaration import ReleaseDeclaration
from dataprep_assets.builds.release.npy_shards import (
    NAME,
    ReleaseLayout,
    partition_key,
    release_layout,
    shard_artifact,
)
from dataprep_assets.checks.findings import checks_of, summarized
from dataprep_assets.errors import DataprepError
from dataprep_assets.formats.npy_shards import ids_key
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.proofs import npy_shards as proofs
from dataprep_assets.proofs.finding import Finding
from dataprep_assets.proofs.verdicts import remember, remembered
from resources import StorageResource

OF_A_SHARD = {
    "files_intact": "Both files have the sizes and digests of the receipt, and no file is unlisted.",
    "format_valid": "A NumPy 1.0 header, one dimension, the declared dtype, whole sequences; as many headerless ids.",
    "sample_ids_recompute": "Every sample id is the BLAKE2b of its sample's tokens.",
    "ids_in_vocabulary": "Every token id is below the vocabulary's size.",
    "equals_stream": "The shard is its stretch of the token bins in the seeded order, token for token.",
}
OF_A_SPLIT = {
    "tokens_accounted": "The shards follow one another and are the whole stream but for the counted tail.",
    "sample_ids_repeat": "Few samples are copies of another: equal ids are repeated text.",
    "order_shuffled": "Documents are far from the neighbours that they have in the source.",
}


def npy_shards_checks(dataset: CorpusAssets, release: ReleaseDeclaration) -> dg.AssetChecksDefinition:
    """All checks of the shards: those of the run are examined, for the others the remembered verdict counts."""

    def findings(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        store, manifest = dataset.store(storage), dataset.manifest(storage)
        layout = release_layout(release, store, manifest)
        examined = partitions_of_run(context.run, layout.partitions)
        found: dict[str, dict[str, Finding]] = {}
        unknown = 0
        for partition in layout.partitions:
            artifact = shard_artifact(release, partition)
            if partition in examined:
                found[partition] = _of_shard(release, store, layout, partition)
                remember(artifact, store, found[partition])
            elif kept := remembered(artifact, store):
                found[partition] = kept
            else:
                unknown += 1
        for name in OF_A_SHARD:
            yield name, summarized({p: found[p][name] for p in found}, examined, unknown)
        yield from _of_splits(release, store, layout, manifest)

    reports = ("sample_ids_repeat", "order_shuffled")
    return checks_of(dataset.key(NAME), OF_A_SHARD | OF_A_SPLIT, findings, reports=reports)


def _of_shard(
    release: ReleaseDeclaration, store: ArtifactStore, layout: ReleaseLayout, partition: str
) -> dict[str, Finding]:
    """Every proof of one shard; a missing shard fails them all, and no other shard's."""
    artifact = shard_artifact(release, partition)
    split, cut = layout.find(partition)
    try:
        receipt, directory = store.require(artifact), store.local(artifact)
    except DataprepError as error:
        return dict.fromkeys(OF_A_SHARD, Finding(passed=False, summary=str(error)))
    return {
        "files_intact": proofs.files_intact(directory, receipt),
        "format_valid": proofs.format_valid(directory, receipt),
        "sample_ids_recompute": proofs.sample_ids_recompute(directory, receipt),
        "ids_in_vocabulary": proofs.ids_in_vocabulary(directory, receipt),
        "equals_stream": proofs.equals_stream(directory, receipt, store, split, cut),
    }


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
        found["tokens_accounted"][name] = proofs.tokens_accounted(receipts, source_tokens=source_tokens)
        ids = [Path(ids_key(name, cut.index)).name for cut in split.cuts]
        folders = [store.local(artifact, [file]) for artifact, file in zip(artifacts, ids, strict=True)]
        found["sample_ids_repeat"][name] = proofs.sample_ids_repeat(
            list(zip(folders, receipts, strict=True)), expected_share=release.release.expected_repeats
        )
        found["order_shuffled"][name] = proofs.order_shuffled(store, split)
    for check, of_split in found.items():
        yield check, summarized(of_split, list(of_split), len(layout.splits) - len(of_split), noun="split")
