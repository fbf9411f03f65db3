"""The proof that no two documents have the same declared id, by the index of the shards.

A removal by an id takes out every document that has it, which surprises whoever takes an id for one document's. It
warns: a crawl that has an address twice is no defect of the stream.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.graph.finding import Finding, Row, judged, verdict
from dataprep_assets.graph.spec import Proof
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.manifest import Manifest
from dataprep_assets.plural import count_of
from dataprep_assets.stream.stream_index import IndexedShard
from dataprep_assets.stream.token_shard import TOKEN_BINS

DOCUMENT_IDS_UNIQUE = Proof(
    "document_ids_unique",
    "No document has the declared id of another one of its split, or of a split that is declared before.",
    blocking=False,
)
_AT_ONCE = 1 << 24
"""Ids that are sorted at a time: 128 MiB."""
_SHOWN = 3
"""Repeated ids of which the documents are named."""


@judged
def document_ids_unique(corpus: CorpusDeclaration, split: str, store: ArtifactStore, manifest: Manifest) -> Finding:
    """The proof itself, of the shards that are there."""
    splits = list(corpus.splits)
    before = [one for name in splits[: splits.index(split)] for one in manifest.partitions(name)]
    own = _shards(corpus, store, manifest.partitions(split))
    others = _shards(corpus, store, before)
    repeated = _repeated([one.hashes[:] for one in own], [one.hashes[:] for one in others])
    documents = sum(len(one.with_hashes(repeated)) for one in own)
    named = [*_named(others, repeated[:_SHOWN]), *_named(own, repeated[:_SHOWN])]
    rows: list[Row] = [{"file": file, "row": row} for _, file, row in sorted(named)]
    shown = ", ".join([f"{file}: row {row}" for _, file, row in sorted(named)[:_SHOWN]])
    told = f"{count_of(documents, 'document')} of {split} have an id that another document has, such as {shown}"
    return verdict(
        [told] if len(repeated) else [],
        f"Each of the {sum(one.documents for one in own):,} documents of {split} has an id of its own.",
        "A removal by such an id takes out all of them. Give each document its own id, or accept the check",
        facts={"documents": sum(one.documents for one in own), "repeated_ids": len(repeated)},
        table=rows,
        warning=True,
    )


def _shards(corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str]) -> list[IndexedShard]:
    artifacts = [corpus.artifact(TOKEN_BINS, partition) for partition in partitions]
    found = zip(artifacts, store.receipts(artifacts), strict=True)
    shards = [IndexedShard(store, artifact, receipt) for artifact, receipt in found if receipt is not None]
    return [one for one in shards if one.facts.document_ids is not None]


def _repeated(own: Sequence[NDArray[Any]], others: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
    """The ids of documents of `own` that another document has: sorted, uint64."""
    passes = max(1, -(-sum(map(len, [*own, *others])) // _AT_ONCE))
    # ids are hashes, so equal ranges of numbers hold about as many
    bounds = [(1 << 64) * number // passes for number in range(1, passes)]
    found = []
    for low, high in zip([0, *bounds], [*bounds, 1 << 64], strict=True):
        mine = np.concatenate([np.empty(0, np.uint64), *_between(own, low, high)])
        every = np.concatenate([mine, *_between(others, low, high)])
        ids, counts = np.unique(every, return_counts=True)
        twice = ids[counts > 1]
        found.append(twice[np.isin(twice, mine)])
    return np.concatenate(found)


def _between(every: Sequence[NDArray[Any]], low: int, high: int) -> Iterator[NDArray[np.uint64]]:
    for ids in every:
        yield ids[(ids >= np.uint64(low)) & (ids <= np.uint64(high - 1))]


def _named(shards: Sequence[IndexedShard], ids: NDArray[np.uint64]) -> Iterator[tuple[int, str, int]]:
    """The first documents that have one of some ids: the id, and the file and row of each."""
    for shard in shards:
        for document in shard.with_hashes(ids)[:_SHOWN].tolist():
            file, row = shard.rows.locate(document)
            yield int(shard.hashes[document]), shard.files[file], row
