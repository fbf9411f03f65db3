"""Finds what a corpus keeps of retracted documents outside its plan: shards and joins that nothing reads any more.

A shard of token bins says by its index whether it holds one. What is made of shards (combined bins, npy shards, views)
says by the shards of its receipt, as far as these are still there with the same content. What cannot say it, because it
is not whole, is of shards that are gone, or has another kind of index, may hold one: it is derived and in no plan, so
it is counted with them.

Entry point: `retracted_left`.
"""

from collections.abc import Iterable
from functools import cache

from dataprep_assets.curation.retractions import are_listed, retracted_ids
from dataprep_assets.engine.checks.check import ledger_of
from dataprep_assets.errors import DataprepError
from dataprep_assets.formats.document_index import IDS, open_ids
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.combined_bins import COMBINED_BINS
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.snapshot import SNAPSHOT
from dataprep_assets.stream.token_shard import TOKEN_BINS, TokenBinsFacts


def retracted_left(corpus: CorpusDeclaration, store: ArtifactStore, unplanned: Iterable[Artifact]) -> list[Artifact]:
    """The unplanned artifacts that hold a retracted document or may hold one.

    What is made of others comes before these: they say what is in it. Errors are those of `read_retractions`.
    """
    if corpus.retractions is None or not corpus.retractions.exists():
        return []
    # a snapshot has names and digests of files, and no document
    every = [one for one in unplanned if one.name != SNAPSHOT]
    if not every:  # then the key of the ids is not asked for
        return []
    ids = corpus.document.ids(sensitive=corpus.sensitive)
    listed = retracted_ids(corpus.retractions, ids)
    if ids is None or not len(listed):
        return []
    kind = (ids.id_field, ids.key_digest)

    # many artifacts are made of the same shard, whose ids are then compared once
    @cache
    def holds(artifact: Artifact) -> bool:
        try:
            receipt = store.receipt(artifact)
            if receipt is None:
                return True
            return shard_holds(artifact, receipt) if artifact.name == TOKEN_BINS else made_of_one(receipt)
        except (DataprepError, OSError):  # a damaged one does not say
            return True

    def shard_holds(artifact: Artifact, receipt: Receipt) -> bool:
        facts = TokenBinsFacts.of(receipt)
        if facts.document_ids is None or (facts.id_field, facts.id_key) != kind:
            return True
        held = open_ids(store.local(artifact, [IDS]) / IDS, ledger_of(receipt).documents)
        return bool(are_listed(held, listed).any())

    def made_of_one(receipt: Receipt) -> bool:
        return any(not is_there(name, content) or holds(source(name)) for name, content in receipt.inputs.items())

    def is_there(name: str, content: str) -> bool:
        found = store.receipt(source(name))
        return found is not None and found.content == content

    def source(name: str) -> Artifact:
        # a view names what it is made of by split, combined bins and others by shard
        return corpus.artifact(COMBINED_BINS if name in corpus.splits else TOKEN_BINS, name)

    return sorted(filter(holds, every), key=lambda artifact: artifact.name == TOKEN_BINS)
