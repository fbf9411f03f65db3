"""The artifact `<dataset>/tags_<split>`, one partition per shard: what is known of each row before any rule decides.

`rows.parquet` has what is carried along of each row of the source; beside it each tagger has a file of its own with the
same rows. Thresholds are no part of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from dataprep_assets.documents.asset_tagger import AssetTagger
from dataprep_assets.graph.finding import Finding
from dataprep_assets.graph.shown import Shown, Table
from dataprep_assets.graph.spec import ArtifactSpec, OtherAsset, Partitions, Proofs
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.manifest import Manifest, load_manifest
from dataprep_assets.pipelines.corpus.shard_tasks import ShardTasks
from dataprep_assets.pipelines.corpus.snapshot import readings
from dataprep_assets.pipelines.corpus.source_parts import source_parts
from dataprep_assets.pipelines.corpus.tagged_shard import TAGS, VERSION, TaggedShard, TagsFacts, ensure_tags
from dataprep_assets.pipelines.corpus.tags_proofs import SHARD_PROOFS, TAGS_PROOFS, planted_found, prove_tags


def tags_spec(corpus: CorpusDeclaration, split: str, *, partitions: Partitions, snapshot: ArtifactSpec) -> ArtifactSpec:
    """The tags of a split.

    Args:
        corpus: The dataset.
        split: One of its splits.
        partitions: The split's shards.
        snapshot: The snapshots of the shards.
    """
    return ArtifactSpec(
        declaration=corpus,
        name=TAGS,
        split=split,
        version=VERSION,
        description="What is known of each row of a shard before rules decide: carried fields and taggers' columns.",
        kinds={"parquet"},
        inputs=(snapshot, *(OtherAsset(key=one.key) for one in corpus.taggers if isinstance(one, AssetTagger))),
        partitions=partitions,
        pool="cpu",
        recipes=partial(_TASKS.recipes, corpus),
        build=partial(_TASKS.build, corpus),
        reads=partial(readings, corpus, tokenized=True),
        metadata=_metadata,
        rows=lambda receipt: TagsFacts.of(receipt).rows,
        columns={**corpus.columns, "bad": "string"},
        proofs=Proofs(proofs=TAGS_PROOFS, examine=partial(_examine, corpus, split)),
    )


def tagged_shards(
    corpus: CorpusDeclaration, store: ArtifactStore, manifest: Manifest, partitions: Sequence[str]
) -> list[TaggedShard]:
    """The tags of the given shards; raises MissingArtifactError where one has no snapshot."""
    fields, taggers, shards = corpus.carried, [one.located() for one in corpus.taggers], []
    for partition in partitions:
        files = source_parts(corpus, store, manifest, partition)
        labels = [file.label for file in files]
        shards.append(
            TaggedShard(
                artifact=corpus.artifact(TAGS, partition),
                store=store,
                files=files,
                fields=fields,
                taggers=tuple(one.of_files(labels) for one in taggers),
                source_bytes=sum(entry.size_bytes for entry in manifest.shard(partition)),
            )
        )
    return shards


def _metadata(_: ArtifactStore, receipt: Receipt) -> Mapping[str, Shown]:
    facts, taggers = TagsFacts.of(receipt), receipt.recipe.get("settings", {}).get("taggers", {})
    listed = [
        {"tagger": name, "version": told["version"][:12], "columns": ", ".join(told["columns"])}
        for name, told in taggers.items()
    ]
    return {"rows": facts.rows, "refused": facts.bad, **({"taggers": Table(listed)} if listed else {})}


def _examine(
    corpus: CorpusDeclaration, split: str, store: ArtifactStore, examined: Sequence[str]
) -> Iterator[tuple[str, Finding]]:
    yield from _TASKS.examine(corpus, split, store, examined)
    first = next(iter(tagged_shards(corpus, store, load_manifest(corpus, store), examined[:1])), None)
    yield "planted_found", planted_found(first, corpus.floors, corpus.with_cases)


_TASKS = ShardTasks(name=TAGS, shards=tagged_shards, ensure=ensure_tags, proofs=SHARD_PROOFS, prove=prove_tags)
