"""Finds other datasets made of the same source files: what a retraction in one dataset leaves in others.

Files are compared by the SHA-256 that receipts record, so their names, their places and the pipeline that reads them do
not matter. Only receipts are read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.ledger import RETRACTED
from dataprep_assets.integrity.receipt import Receipt


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """Finished partitions of another dataset's artifact that are made of the same source files.

    Attributes:
        dataset: The other dataset.
        artifact: Its artifact: `token_bins`, `packed_sft`.
        partitions: Number of these partitions.
        noun: The noun for one partition.
        published: The places to which the dataset was published.
    """

    dataset: str
    artifact: str
    partitions: int
    noun: str
    published: tuple[str, ...] = ()


def sharing(files: Set[str], others: Iterable[tuple[Sequence[ArtifactSpec], ArtifactStore]]) -> Iterator[Sharing]:
    """Yield the artifacts of other datasets that are made of these source files, in the order of datasets and graphs.

    Args:
        files: SHA-256 of each file.
        others: The specs of each other dataset, and its store. A dataset that cannot be read is left out: its own
            commands say why.
    """
    for specs, store in others:
        held_shards = [
            (spec, sum(not files.isdisjoint(source_digests(receipt)) for receipt in receipts))
            for spec, receipts in _by_artifact(specs, store)
        ]
        published = tuple(published_places(specs, store)) if any(held for _, held in held_shards) else ()
        for spec, held in held_shards:
            if held:
                yield Sharing(
                    dataset=spec.declaration.dataset,
                    artifact=spec.name,
                    partitions=held,
                    noun=spec.noun,
                    published=published,
                )


@dataclass(frozen=True, kw_only=True)
class StillHeld:
    """Finished partitions made of source files from which another dataset dropped more retracted documents.

    Attributes:
        dataset: The dataset that still holds them.
        artifact: Its artifact.
        partitions: Number of these partitions.
        noun: The noun for one partition.
        retracted_by: The dataset that dropped the documents.
    """

    dataset: str
    artifact: str
    partitions: int
    noun: str
    retracted_by: str


def retracted_of(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Mapping[str, int]:
    """SHA-256 of a source file → how many of its documents a dataset's finished artifacts dropped as retracted."""
    found: dict[str, int] = {}
    for _, receipts in _by_artifact(specs, store):
        for file, dropped in _count_dropped(receipts).items():
            # several artifacts of a dataset drop the same documents: they are counted once
            found[file] = max(found.get(file, 0), dropped)
    return {file: dropped for file, dropped in found.items() if dropped}


def still_held(
    dataset: str, retracted: Mapping[str, int], others: Iterable[tuple[Sequence[ArtifactSpec], ArtifactStore]]
) -> Iterator[StillHeld]:
    """Yield the artifacts of other datasets that still hold documents which a dataset dropped, by counts in receipts.

    Args:
        dataset: The dataset that retracted them.
        retracted: The result of `retracted_of` for that dataset.
        others: The specs of each other dataset, and its store.
    """
    for specs, store in others if retracted else ():
        # of a dataset with a selection this one's receipts have the counts, not those of what is made of it
        dropped = retracted_of(specs, store)
        for spec, receipts in _by_artifact(specs, store):
            behind = {file for file, count in retracted.items() if dropped.get(file, 0) < count}
            held = sum(not behind.isdisjoint(source_digests(receipt)) for receipt in receipts)
            if held:
                yield StillHeld(
                    dataset=spec.declaration.dataset,
                    artifact=spec.name,
                    partitions=held,
                    noun=spec.noun,
                    retracted_by=dataset,
                )


def _by_artifact(
    specs: Sequence[ArtifactSpec], store: ArtifactStore
) -> Iterator[tuple[ArtifactSpec, Sequence[Receipt]]]:
    """The receipts of each partitioned artifact, with those of all its splits together."""
    found: dict[str, tuple[ArtifactSpec, list[Receipt]]] = {}
    for spec in specs:
        if spec.partitions is not None and spec.kept:
            found.setdefault(spec.name, (spec, []))[1].extend(_receipts(spec, store))
    yield from found.values()


def _count_dropped(receipts: Iterable[Receipt]) -> dict[str, int]:
    """SHA-256 of a source file → documents that were dropped as retracted, summed over partitions."""
    counts: dict[str, int] = {}
    for receipt in receipts:
        lines = [(str(line["sha256"]), line.get("dropped", {})) for line in receipt.sources]
        of_notes = receipt.recipe.get("sources", {}).get("cohort")  # one file
        if not lines and receipt.ledger is not None and of_notes:
            lines = [(str(of_notes), receipt.ledger.dropped)]
        for file, dropped in lines:
            counts[file] = counts.get(file, 0) + int(dropped.get(RETRACTED, 0))
    return counts


def source_digests(receipt: Receipt) -> Set[str]:
    """SHA-256 of the source files whose rows are in a finished artifact; empty if it only mirrors or lists files."""
    if receipt.ledger is None:
        return frozenset()
    recorded: Mapping[str, object] = receipt.recipe.get("sources", {})
    return {str(line["sha256"]) for line in receipt.sources} | {str(value) for value in recorded.values()}


def _receipts(spec: ArtifactSpec, store: ArtifactStore) -> Iterator[Receipt]:
    try:
        yield from (one for one in store.receipts(spec.artifacts(store)) if one is not None)
    except DataprepError:
        return


def published_places(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Iterator[str]:
    """The places to which a dataset was published, from its finished publications."""
    for spec in specs:
        if spec.published_to is not None and spec.kept:
            yield from (spec.published_to(receipt) for receipt in _receipts(spec, store))
