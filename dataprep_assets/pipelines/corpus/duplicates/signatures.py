"""Signatures (`<dataset>/signatures_<split>`, one partition per shard): the values by which texts are compared.

Signatures depend on the source and on the settings of the comparison. They do not depend on rules, and on the threshold
only if it changes the bands. Therefore only appended files get new signatures.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from dataprep_assets.curation.duplicates.removed_file import SIGNATURES
from dataprep_assets.curation.duplicates.signatures import FILES, SignedShard
from dataprep_assets.engine.artifact.metadata_values import ShownValue
from dataprep_assets.engine.artifact.spec import ArtifactSpec, Partitions
from dataprep_assets.engine.checks.check import (
    FILES_INTACT,
    REBUILD,
    Check,
    Finding,
    OpenedPartition,
    build_verdict,
    choose_sample_count,
    describe_artifact,
)
from dataprep_assets.engine.checks.comparison import compare_rebuild
from dataprep_assets.errors import count_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.integrity.scratch import create_scratch
from dataprep_assets.pipelines.corpus.curation.shard_tasks import ShardTasks
from dataprep_assets.pipelines.corpus.curation.tagged_shard import draw_rows
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates.signed_shard import (
    VERSION,
    SignaturesFacts,
    SignatureShard,
    ensure_signatures,
    open_signatures,
    write_signatures,
)
from dataprep_assets.pipelines.corpus.source.manifest import Manifest
from dataprep_assets.pipelines.corpus.source.snapshot import estimate_readings
from dataprep_assets.pipelines.corpus.source.source_parts import load_source_parts
from dataprep_assets.sources.readers.read_options import DrawnRows


def build_signatures_spec(
    corpus: CorpusDeclaration, split: str, *, partitions: Partitions, snapshot: ArtifactSpec
) -> ArtifactSpec:
    """Return the spec of a split's signatures.

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
        description="MinHash signatures of a shard's texts, for finding duplicates.",
        kinds={"numpy"},
        inputs=(snapshot,),
        partitions=partitions,
        pool="cpu",
        recipes=partial(_TASKS.recipes, corpus),
        build=partial(_TASKS.build, corpus),
        reads=partial(estimate_readings, corpus, tokenized=True),
        metadata=_build_metadata,
        rows=lambda receipt: SignaturesFacts.from_receipt(receipt).rows,
        check_groups=(_TASKS.group(corpus),),
    )


def plan_signature_shards(
    corpus: CorpusDeclaration, store: ArtifactStore, manifest: Manifest, partitions: Sequence[str]
) -> list[SignatureShard]:
    """Return the signatures of the given shards, to be built or checked.

    Raises MissingArtifactError if a shard has no snapshot.
    """
    assert corpus.duplicates is not None
    settings, fields = corpus.signing, corpus.texts_only
    return [
        SignatureShard(
            artifact=corpus.artifact(SIGNATURES, partition),
            store=store,
            files=load_source_parts(corpus, store, manifest, partition),
            fields=fields,
            settings=settings,
            source_bytes=sum(entry.size_bytes for entry in manifest.shard(partition)),
            samples=choose_sample_count(corpus.prove.level),
        )
        for partition in partitions
    ]


def _build_metadata(_: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    facts = SignaturesFacts.from_receipt(receipt)
    size = receipt.total_bytes
    return {
        "rows": facts.rows,
        "compared": facts.documents,
        "blank_documents": facts.blank,
        "bands": facts.bands,
        "bytes_per_document": round(size / facts.documents, 1) if facts.documents else 0,
    }


class OpenedSignatures(OpenedPartition[SignatureShard]):
    """Signatures of a shard, opened for checks."""


def _check_rebuild(signatures: OpenedSignatures) -> Finding:
    shard, receipt, facts = signatures.planned, signatures.receipt, SignaturesFacts.from_receipt(signatures.receipt)
    rows = draw_rows(receipt, facts.rows, shard.samples)
    if shard.samples is None:
        defects = list(
            compare_rebuild(
                shard.recipe(), shard.store, receipt, signatures.directory, partial(write_signatures, shard)
            )
        )
    else:
        defects = list(_find_drawn_differences(shard, receipt, rows))
    return build_verdict(
        (f"{describe_artifact(receipt)}: {defect}" for defect in defects),
        f"Recomputed the signatures of {len(rows.positions):,} of {count_of(facts.rows, 'row')}: all match.",
        REBUILD,
        facts={"rows_compared": len(rows.positions), "rows": facts.rows, "documents": facts.documents},
    )


def _find_drawn_differences(shard: SignatureShard, receipt: Receipt, drawn_rows: DrawnRows) -> Iterator[str]:
    """Yield a sentence for each array in which drawn rows differ."""
    if {record.path for record in receipt.files} != set(FILES):
        yield f"must have exactly the files {', '.join(FILES)}"
        return
    stored_shard = open_signatures(shard.store, shard.artifact)
    with create_scratch(shard.store.root / receipt.dataset) as folder:
        facts = write_signatures(shard, folder, drawn_rows).facts
        assert isinstance(facts, SignaturesFacts)
        signed_shard = SignedShard(folder, facts.rows, facts.documents, facts.bands)
        # Yield inside the `with` block, because the temporary files are deleted at its end.
        yield from signed_shard.find_differences(stored_shard, drawn_rows.positions)


SIGNATURES_CHECKS: tuple[Check[OpenedSignatures], ...] = (
    FILES_INTACT,
    Check(
        "rebuild_matches",
        (
            "Recomputing the MinHash signatures of a sample of source rows (or all rows) reproduces the stored "
            "signatures."
        ),
        _check_rebuild,
        samples=True,
    ),
)
_TASKS = ShardTasks(
    name=SIGNATURES,
    shards=plan_signature_shards,
    ensure=ensure_signatures,
    checks=SIGNATURES_CHECKS,
    open=OpenedSignatures.open,
)
