"""Which other datasets are made of the same source files: what a retraction of one dataset leaves in others.

Told by content: the SHA-256 of source files that receipts record, so it holds whatever the files are called, wherever
they lie and whichever pipeline reads them. Only receipts are read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from dataprep_assets.errors import DataprepError
from dataprep_assets.graph.spec import ArtifactSpec
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt

__all__ = ["Sharing", "published_places", "sharing", "source_digests"]


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """Finished partitions of another dataset's artifact that are made of the same source files.

    Attributes:
        dataset: The other dataset.
        artifact: Its artifact: `token_bins`, `packed_sft`.
        partitions: How many of its partitions.
        noun: What a person calls one of them.
        published: Where the dataset was published to.
    """

    dataset: str
    artifact: str
    partitions: int
    noun: str
    published: tuple[str, ...] = ()


def sharing(files: Set[str], others: Iterable[tuple[Sequence[ArtifactSpec], ArtifactStore]]) -> Iterator[Sharing]:
    """Yield what of other datasets is made of these source files, in the order of the datasets and of their graphs.

    Args:
        files: SHA-256 of each file.
        others: The specs of each other dataset, and where its artifacts are. One that cannot be read is left out: its
            own commands tell why.
    """
    for specs, store in others:
        found: dict[str, tuple[ArtifactSpec, int]] = {}
        for spec in specs:
            if spec.partitions is not None and spec.kept:
                held = sum(not files.isdisjoint(source_digests(receipt)) for receipt in _receipts(spec, store))
                found[spec.name] = (spec, found.get(spec.name, (spec, 0))[1] + held)
        published = tuple(published_places(specs, store)) if any(held for _, held in found.values()) else ()
        for name, (spec, held) in found.items():
            if held:
                yield Sharing(
                    dataset=spec.declaration.dataset,
                    artifact=name,
                    partitions=held,
                    noun=spec.noun,
                    published=published,
                )


def source_digests(receipt: Receipt) -> Set[str]:
    """SHA-256 of the source files whose rows are in a finished artifact; none where it only mirrors or lists them."""
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
    """Where a dataset was published to: the places of its finished publications."""
    for spec in specs:
        if spec.published_to is not None and spec.kept:
            yield from (spec.published_to(receipt) for receipt in _receipts(spec, store))
