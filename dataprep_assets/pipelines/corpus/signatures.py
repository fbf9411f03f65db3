"""The artifact `<dataset>/signatures_<split>`, one partition per shard: what is compared of each text.

It depends on the source and on how texts are compared, not on the threshold within what the same bands find, nor on
rules: so an appended file is signed, and nothing else.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from dataprep_assets.documents.duplicates.signatures import FILES, SignedShard, Signer
from dataprep_assets.documents.table import DocumentBatch
from dataprep_assets.errors import DataprepError
from dataprep_assets.graph.finding import REBUILD, Finding, files_intact, judged, name_of, verdict
from dataprep_assets.graph.shown import Shown
from dataprep_assets.graph.spec import ArtifactSpec, Partitions, Proof, Proofs
from dataprep_assets.graph.verdicts import proven
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.manifest import Manifest
from dataprep_assets.pipelines.corpus.shard_tasks import ShardTasks
from dataprep_assets.pipelines.corpus.signed_shard import (
    SIGNATURES,
    VERSION,
    SignaturesFacts,
    SignatureShard,
    ensure_signatures,
    opened,
)
from dataprep_assets.pipelines.corpus.snapshot import readings
from dataprep_assets.pipelines.corpus.source_parts import source_parts
from dataprep_assets.pipelines.corpus.tagged_shard import batches_of

_SAMPLE = 32
"""Documents that are signed again: any difference shows in a few."""
SIGNATURES_PROOFS = (
    Proof("files_intact", "Every file has the size and digest of the receipt, and no file is unlisted."),
    Proof("signatures_repeat", "A sample of documents, read from the source and signed again, has what is stored."),
)


def signatures_spec(
    corpus: CorpusDeclaration, split: str, *, partitions: Partitions, snapshot: ArtifactSpec
) -> ArtifactSpec:
    """The signatures of a split.

    Args:
        corpus: The dataset.
        split: One of its splits.
        partitions: The split's shards.
        snapshot: The snapshots of the shards.
    """
    return ArtifactSpec(
        declaration=corpus,
        name=SIGNATURES,
        split=split,
        version=VERSION,
        description="What is compared of each text of a shard to find its duplicates: digests, shingles, bands.",
        kinds={"numpy"},
        inputs=(snapshot,),
        partitions=partitions,
        pool="cpu",
        recipes=partial(_TASKS.recipes, corpus),
        build=partial(_TASKS.build, corpus),
        reads=partial(readings, corpus, tokenized=True),
        metadata=_metadata,
        rows=lambda receipt: SignaturesFacts.of(receipt).rows,
        proofs=Proofs(proofs=SIGNATURES_PROOFS, examine=partial(_TASKS.examine, corpus, split)),
    )


def signature_shards(
    corpus: CorpusDeclaration, store: ArtifactStore, manifest: Manifest, partitions: Sequence[str]
) -> list[SignatureShard]:
    """The signatures of the given shards; raises MissingArtifactError where one has no snapshot."""
    assert corpus.duplicates is not None
    settings, fields = corpus.signing, corpus.texts_alone
    return [
        SignatureShard(
            artifact=corpus.artifact(SIGNATURES, partition),
            store=store,
            files=source_parts(corpus, store, manifest, partition),
            fields=fields,
            settings=settings,
            source_bytes=sum(entry.size_bytes for entry in manifest.shard(partition)),
        )
        for partition in partitions
    ]


def _metadata(_: ArtifactStore, receipt: Receipt) -> Mapping[str, Shown]:
    facts = SignaturesFacts.of(receipt)
    size = receipt.total_bytes
    return {
        "rows": facts.rows,
        "compared": facts.documents,
        "blank": facts.blank,
        "bands": facts.bands,
        "bytes_per_document": round(size / facts.documents, 1) if facts.documents else 0,
    }


def _prove(shard: SignatureShard) -> dict[str, Finding]:
    """Every proof of the signatures of one shard; missing ones fail them all."""

    def prove(directory: Path, receipt: Receipt) -> dict[str, Finding]:
        return {
            "files_intact": files_intact(directory, receipt),
            "signatures_repeat": _signatures_repeat(shard, receipt),
        }

    return proven(shard.artifact, shard.store, SIGNATURES_PROOFS, prove)


@judged
def _signatures_repeat(shard: SignatureShard, receipt: Receipt) -> Finding:
    signed = opened(shard.store, shard.artifact)
    defects = []
    if {one.path for one in receipt.files} != set(FILES):
        defects.append(f"{name_of(receipt)}: has other files than {', '.join(FILES)}")
    elif (told := _other(shard, signed)) is not None:
        defects.append(f"{name_of(receipt)}: {told}")
    return verdict(
        defects,
        f"{signed.documents:,} of {signed.rows:,} rows are signed; up to {_SAMPLE} have the same signature again.",
        REBUILD,
        facts={"rows": signed.rows, "documents": signed.documents},
    )


def _other(shard: SignatureShard, signed: SignedShard) -> str | None:
    """How the first documents of the shard differ from what is stored of them."""
    signer = Signer(shard.settings)
    hashes, _ = signed.keys
    if any((one[1:] < one[:-1]).any() for one in hashes):
        return "its keys are not in order"
    try:
        found = _first_texts(shard)
    except DataprepError as error:
        return str(error)
    if found is None:
        return None
    label, first, batch = found
    sample = batch.only(slice(0, _SAMPLE))
    at = np.array([first + row for row in batch.good[:_SAMPLE]])
    texts = [text if text and not text.isspace() else "" for text in sample.texts]
    if at[-1] >= signed.rows:
        return f"has {signed.rows:,} rows, and {label} has more"
    # with `kind: exact` there are no shingles: those of every text end at 0
    made, ends = signer.shingles(texts) if shard.settings.kind == "near" else (np.empty(0, np.uint64), at * 0)
    digests = signer.digests(texts, made, ends)
    # as the writer leaves texts of nothing but white space
    digests[[not text for text in texts]] = 0
    wrong = np.flatnonzero((digests != signed.digests[at]).any(axis=1))
    if len(wrong):
        return f"{label}: row {sample.row(int(wrong[0]))} has another digest than its text"
    return None


def _first_texts(shard: SignatureShard) -> tuple[str, int, DocumentBatch] | None:
    """The first batch of the shard that holds a text: its file, the number of rows before it, and itself."""
    before = 0
    for part in shard.files:
        for batch in batches_of(part, shard.fields):
            if batch.texts:
                return part.label, before, batch
            before += len(batch)
    return None


_TASKS = ShardTasks(
    name=SIGNATURES, shards=signature_shards, ensure=ensure_signatures, proofs=SIGNATURES_PROOFS, prove=_prove
)
