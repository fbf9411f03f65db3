"""What a combination does not have of its sources: splits that it does not declare, rows left out for the weights."""

from collections.abc import Iterator, Sequence

from dataprep_assets.engine.artifact.losses import Loss
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.notes.replay.replay_declaration import ReplayDeclaration
from dataprep_assets.pipelines.notes.tfds.linked_directory import DIRECTORIES, DirectoryFacts
from dataprep_assets.pipelines.notes.tfds.provenance import PROVENANCE, read_provenance


def replay_losses(replay: ReplayDeclaration, store: ArtifactStore, receipts: Sequence[Receipt]) -> Iterator[Loss]:
    """The losses of a combination.

    Args:
        replay: The combination.
        store: Where it and its sources are.
        receipts: That of its directory.
    """
    splits = {source.dataset: directory_splits(replay, store, source.dataset) for source in replay.sources}
    for dataset, rows in splits.items():
        for split, count in rows.items():
            if split not in replay.splits:
                yield Loss(
                    action="left out",
                    reason=f"split {split}",
                    count=count,
                    of=sum(rows.values()),
                    unit="row",
                    part=dataset,
                )
    for receipt in receipts if replay.mode == "weighted" else ():
        yield from _weighed_out(replay, store, receipt, splits)


def directory_splits(replay: ReplayDeclaration, store: ArtifactStore, dataset: str) -> dict[str, int]:
    """Split → rows of the directory that a source gives; empty if it is not there."""
    receipt = store.receipt(Artifact(dataset=dataset, name=DIRECTORIES[replay.format]))
    return {} if receipt is None else {name: of.rows for name, of in DirectoryFacts.of(receipt).splits.items()}


def _weighed_out(
    replay: ReplayDeclaration, store: ArtifactStore, receipt: Receipt, splits: dict[str, dict[str, int]]
) -> Iterator[Loss]:
    """The rows of whole shards that `weighted` left out to meet the weights."""
    provenance = read_provenance(store.local(replay.artifact(receipt.artifact), [PROVENANCE]) / PROVENANCE)
    for split, shards in provenance.items():
        # a source may be a combination itself, whose shards name the datasets that it combined
        own = {source.dataset: _shards(replay, store, source.dataset, split) for source in replay.sources}
        there = {origin.sha256 for _, origin in shards}
        for dataset, rows in own.items():
            lost = sum(count for digest, count in rows.items() if digest not in there)
            of = sum(splits[dataset].values())
            yield Loss(action="left out", reason="weight", count=lost, of=of, unit="row", part=dataset)


def _shards(replay: ReplayDeclaration, store: ArtifactStore, dataset: str, split: str) -> dict[str, int]:
    """Digest → rows of each shard in a split of a source."""
    artifact = Artifact(dataset=dataset, name=DIRECTORIES[replay.format])
    found = read_provenance(store.local(artifact, [PROVENANCE]) / PROVENANCE)
    return {origin.sha256: origin.rows for _, origin in found.get(split, ())}
