"""Duplicates (`<dataset>/duplicates`): groups of similar documents in the dataset, and the kept document of each group.

The artifact joins the stored signatures of all shards of all splits, without any text. Appended files are compared with
earlier files through the tables of their shards. Pairs that were already compared are not compared again. Each shard
has a file of its removed rows, `<shard>.parquet`. The shard's selection depends on that file, so only shards whose
removed rows change are rebuilt.

- `<shard>.parquet`: `position` (the row of the shard's table, from 0), the kept `representative` (`file:row`), and
  their `similarity`
- `<shard>.kept.bin`: one bit per row, whether it is kept; other datasets compare their documents with kept rows
- `pairs.bin`, `clusters.parquet` and `across.parquet` (`curation.duplicates.duplicates_files`)
- `ages.json`: source file → number of the build that first saw it; empty if a column is the priority
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.curation.duplicates.candidates import Nodes
from dataprep_assets.curation.duplicates.duplicates_checks import (
    MIN_WORDS,
    SAMPLED_SHARDS,
    SAMPLED_TEXTS,
    SearchedTexts,
    list_duplicates_checks,
)
from dataprep_assets.curation.duplicates.duplicates_files import (
    DuplicatesFacts,
    NodeNames,
    find_named_nodes,
    read_clusters,
    read_known_pairs,
    write_common_files,
)
from dataprep_assets.curation.duplicates.kept_set import ComparedPairs, DuplicateDecisions
from dataprep_assets.curation.duplicates.removed_file import DUPLICATES, SIGNATURES, name_removed_file
from dataprep_assets.curation.table import ParquetRowWriter
from dataprep_assets.engine.artifact.build import WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.metadata_values import ShownValue, Table
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest, DatasetInput
from dataprep_assets.engine.checks.comparison import compare_rebuild
from dataprep_assets.engine.checks.verdicts import WholeArtifactChecks
from dataprep_assets.errors import count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.curation.excerpts import Excerpts
from dataprep_assets.pipelines.corpus.curation.file_ages import compute_ages, write_ages
from dataprep_assets.pipelines.corpus.curation.kept_documents import (
    KeptDocuments,
    count_changes,
    decide_kept_documents,
    read_current_duplicates,
)
from dataprep_assets.pipelines.corpus.curation.tagged_shard import ROWS, TAGS, read_part_batches
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates.joined_documents import JoinedDocuments
from dataprep_assets.pipelines.corpus.duplicates.other_datasets import open_other_documents
from dataprep_assets.pipelines.corpus.duplicates.removed_duplicates import (
    REMOVED,
    REMOVED_DESCRIPTIONS,
    name_kept_file,
)
from dataprep_assets.pipelines.corpus.duplicates.row_names import RowNames
from dataprep_assets.pipelines.corpus.duplicates.signatures import plan_signature_shards
from dataprep_assets.pipelines.corpus.source.listed_rows import read_listed_ids
from dataprep_assets.pipelines.corpus.source.manifest import Manifest, load_manifest
from dataprep_assets.pipelines.corpus.source.snapshot import refetch_shards
from dataprep_assets.planning.manifest import split_name
from dataprep_assets.stores.files import digest_value


def read_largest_clusters(corpus: CorpusDeclaration, store: ArtifactStore) -> Sequence[dict[str, Any]]:
    """Return a row for each of the largest clusters.

    In addition to the values of `read_clusters`, `text` and `example_text` are the beginnings of the kept and the least
    similar document, if their files are readable and small enough. The list is empty for a sensitive dataset.

    Args:
        corpus: The dataset.
        store: The store of its duplicates.
    """
    if corpus.sensitive:
        return []
    excerpts = Excerpts(corpus, store)
    return [
        {
            **row,
            "text": excerpts.read_excerpt(row["representative"]),
            "example_text": excerpts.read_excerpt(row["example"]),
        }
        for row in read_clusters(store, corpus.artifact(DUPLICATES))
    ]


VERSION = 4
_ADVICE = "Declare `duplicates` with the same settings in it"


def build_duplicates_spec(
    corpus: CorpusDeclaration, *, tags: Sequence[ArtifactSpec], signatures: Sequence[ArtifactSpec]
) -> ArtifactSpec:
    """Return the spec of a dataset's duplicates.

    Args:
        corpus: The dataset.
        tags: The tags of each split.
        signatures: The signatures of each split.
    """
    assert corpus.duplicates is not None
    return ArtifactSpec(
        declaration=corpus,
        name=DUPLICATES,
        version=VERSION,
        description="Near-duplicates in all shards and splits: every dropped document, and the document kept instead.",
        kinds={"parquet", "numpy"},
        inputs=(
            *signatures,
            *tags,
            *(
                DatasetInput(dataset=dataset, name=DUPLICATES, keys=("duplicates", "against"), advice=_ADVICE)
                for dataset in corpus.duplicates.against
            ),
        ),
        pool="cpu",
        recipes=lambda store, _: [_build_recipe(corpus, store)],
        build=partial(_build_duplicates, corpus),
        foresee=partial(_build_duplicates, corpus),
        metadata=partial(_build_metadata, corpus),
        rows=lambda receipt: sum(DuplicatesFacts.from_receipt(receipt).removed.values()),
        columns=REMOVED,
        column_descriptions=REMOVED_DESCRIPTIONS,
        check_groups=(_build_checks(corpus),),
    )


def _build_recipe(corpus: CorpusDeclaration, store: ArtifactStore) -> Recipe:
    duplicates, manifest = corpus.duplicates, load_manifest(corpus, store)
    assert duplicates is not None
    upstream = {}
    for name in (SIGNATURES, TAGS):
        for partition in manifest.plan:
            upstream[f"{name}/{partition}"] = store.require(corpus.artifact(name, partition)).content
    other_documents = open_other_documents(corpus, store)
    upstream |= other_documents.upstream
    priority = duplicates.priority
    settings = {
        **corpus.signing.key_parts,
        "threshold": duplicates.similarity,
        "priority": priority if isinstance(priority, str) else priority.model_dump(mode="json"),
        "across_splits": duplicates.across_splits,
        # List the splits in order, because their order decides which documents `across_splits: drop` keeps.
        "splits": list(corpus.splits),
        "rules": {name: f"{'keep' if keeps else 'drop'}: {rule.text}" for name, (keeps, rule) in corpus.rules.items()},
    }
    # Add `against` only if it is set, so that the keys of datasets without it do not change.
    if duplicates.against:
        settings["against"] = list(duplicates.against)
    ages = compute_ages(corpus, store, manifest)
    retracted_ids = read_listed_ids(corpus)
    # Include the file names, which identify kept documents, and the ages, which decide which documents are kept.
    sources = {"files": digest_value(_list_file_ages(manifest, ages)), **other_documents.sources}
    if len(retracted_ids):
        sources["retractions"] = digest_value([f"{hashed:016x}" for hashed in retracted_ids.tolist()])
    return Recipe(
        artifact=corpus.artifact(DUPLICATES),
        key=digest_value([DUPLICATES, VERSION, settings, sources, upstream]),
        version=VERSION,
        settings=settings,
        sources=sources,
        upstream=upstream,
    )


def _list_file_ages(manifest: Manifest, ages: Mapping[str, int]) -> list[Any]:
    return [
        [key, [[entry.relpath, ages.get(entry.relpath, 0)] for entry in manifest.shard(key)]] for key in manifest.plan
    ]


def _build_duplicates(corpus: CorpusDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    store, artifact = request.store, corpus.artifact(DUPLICATES)
    recipe = _build_recipe(corpus, store)
    # Read the current duplicates first, because `ensure_built` replaces them.
    previous_receipt = read_current_duplicates(corpus, store)
    kept_sets: list[KeptDocuments] = []
    write = partial(_write, corpus, store, recipe, kept_sets, read_known_pairs(store, artifact, corpus.signing))
    receipt, reused = ensure_built(recipe, store, write, corpus.verify)
    restored_documents = count_changes(corpus, store, previous_receipt, kept_sets[0]).back if kept_sets else 0
    if restored_documents:
        cause = "its kept duplicate was" if restored_documents == 1 else "their kept duplicates were"
        request.warn(
            f"{artifact}: {count_of(restored_documents, 'document was', 'documents were')} restored, because {cause} "
            "removed"
        )
    outcome = Outcome.from_receipt(receipt, reused)
    yield (
        outcome
        if not restored_documents
        else Outcome(partition="", receipt=receipt, metadata={"restored_documents": restored_documents})
    )


def _compare_rebuilt_duplicates(corpus: CorpusDeclaration, store: ArtifactStore, pairs: ComparedPairs) -> Iterator[str]:
    """Compare all pairs except `pairs` again; return a sentence for each file and claim that differs."""
    recipe, artifact = _build_recipe(corpus, store), corpus.artifact(DUPLICATES)
    write = partial(_write, corpus, store, recipe, [], pairs)
    return compare_rebuild(recipe, store, store.require(artifact), store.local(artifact), write)


def _write(
    corpus: CorpusDeclaration,
    store: ArtifactStore,
    recipe: Recipe,
    compared_documents: list[KeptDocuments],
    pairs: ComparedPairs,
    staged: Path,
) -> WrittenFiles:
    """Write the files of the duplicates into `staged`; append the compared documents to `compared_documents`."""
    duplicates = corpus.duplicates
    assert duplicates is not None
    ages = compute_ages(corpus, store, load_manifest(corpus, store))
    # Append the decision to the caller's list, because `_build_duplicates` compares it with the previous duplicates.
    compared_documents.append(decide_kept_documents(corpus, store, ages, pairs=pairs))
    all_documents, kept_set = compared_documents[0].joined, compared_documents[0].kept
    documents = all_documents.documents
    # Read only the names of documents that the written files contain, because a dataset may have millions of rows.
    names = _read_names(corpus, store, all_documents, find_named_nodes(kept_set))
    removed_counts: dict[str, int] = dict.fromkeys(corpus.splits, 0)
    start = 0
    for partition, positions, is_kept in compared_documents[0].iterate_shards():
        part = slice(start, start := start + len(positions))
        removed_counts[split_name(partition)] += len(positions)
        with ParquetRowWriter(staged / name_removed_file(partition), REMOVED) as rows:
            rows.add(
                {
                    "position": positions.tolist(),
                    "representative": names.get_names(kept_set.representatives[part]),
                    "similarity": kept_set.similarities[part].tolist(),
                }
            )
        np.packbits(is_kept).tofile(staged / name_kept_file(partition))
    write_common_files(staged, kept_set, names, _list_across_splits(kept_set, all_documents))
    write_ages(staged, ages)
    return WrittenFiles(
        inputs=dict(recipe.upstream),
        facts=DuplicatesFacts(
            # Count only the dataset's own rows, which come before the rows of other datasets.
            documents=int(np.count_nonzero(documents.taken[: all_documents.own_rows])),
            removed=removed_counts,
            equal=int(np.count_nonzero(kept_set.similarities == 1)),
            candidates=kept_set.candidates,
            compared=len(kept_set.compared.pairs),
            across=len(kept_set.across),
            **{"against": _count_removed_by_dataset(all_documents, kept_set)} if duplicates.against else {},
        ),
    )


def _count_removed_by_dataset(documents: JoinedDocuments, kept_set: DuplicateDecisions) -> dict[str, int]:
    """Count, per other dataset, the documents removed because that dataset keeps a similar document."""
    # Subtract the number of the dataset's own shards, which come first, so that the shards of other datasets are
    # counted from 0.
    shards = documents.documents.find_shards(kept_set.representatives) - len(documents.partitions)
    counts: dict[str, int] = {}
    for number, dataset in enumerate(documents.others):
        counts[dataset.dataset] = counts.get(dataset.dataset, 0) + int(np.count_nonzero(shards == number))
    return counts


def _read_names(corpus: CorpusDeclaration, store: ArtifactStore, documents: JoinedDocuments, nodes: Nodes) -> NodeNames:
    """Return the names of documents: `file:row`, or `dataset:file:row` for rows of another dataset.

    The numbers in `nodes` must be ascending.
    """
    row_names = list[str]()
    for number, partition in enumerate(documents.partitions):
        begin, end = documents.documents.first[number : number + 2].tolist()
        start, stop = np.searchsorted(nodes, [begin, end]).tolist()
        if start != stop:
            names_of_shard = RowNames(rows=store.local(corpus.artifact(TAGS, partition)) / ROWS)
            row_names += names_of_shard.read_names(nodes[start:stop] - begin)
    for dataset, begin, end in documents.iterate_other_shards():
        rows = nodes[slice(*np.searchsorted(nodes, [begin, end]).tolist())] - begin
        if len(rows):
            row_names += dataset.open_names(store).read_names(rows)
    return NodeNames(nodes=nodes, names=row_names)


def _list_across_splits(kept_set: DuplicateDecisions, documents: JoinedDocuments) -> list[tuple[str, str]]:
    """Return the splits of each pair of kept documents of different splits."""
    shards = documents.documents.find_shards(kept_set.across.ravel()).reshape(-1, 2)
    first, second = ([split_name(documents.partitions[shard]) for shard in column] for column in shards.T.tolist())
    return list(zip(first, second, strict=True))


def _build_metadata(corpus: CorpusDeclaration, store: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    metadata = DuplicatesFacts.from_receipt(receipt).metadata
    if clusters := read_largest_clusters(corpus, store):
        metadata["largest_clusters"] = Table(clusters)
    return metadata


def _build_checks(corpus: CorpusDeclaration) -> WholeArtifactChecks[SearchedTexts]:
    """Return the checks that apply to a dataset's duplicates."""
    assert corpus.duplicates is not None
    return WholeArtifactChecks(
        checks=list_duplicates_checks(corpus.duplicates, list(corpus.splits), corpus.prove.level),
        open=lambda store, _: _open_duplicates(corpus, store).with_local_files(),
    )


def _open_duplicates(corpus: CorpusDeclaration, store: ArtifactStore) -> SearchedTexts:
    """Return a dataset's duplicates, opened for checks."""
    assert corpus.duplicates is not None
    return SearchedTexts(
        corpus.artifact(DUPLICATES),
        store,
        search=corpus.duplicates,
        signing=corpus.signing,
        splits=list(corpus.splits),
        level=corpus.prove.level,
        sensitive=corpus.sensitive,
        noun="document",
        sample=partial(_draw_sample, corpus, store),
        compare=partial(_compare_rebuilt_duplicates, corpus, store),
    )


def _draw_sample(corpus: CorpusDeclaration, store: ArtifactStore) -> Iterator[str]:
    manifest = load_manifest(corpus, store)
    keys = list(manifest.plan)
    partitions = keys[:: max(1, len(keys) // SAMPLED_SHARDS)][:SAMPLED_SHARDS]
    refetch_shards(corpus, manifest, partitions)
    for shard in plan_signature_shards(corpus, store, manifest, partitions):
        long = (
            text
            for part in shard.files
            for batch in islice(read_part_batches(part, shard.fields), 1)
            for text in batch.texts
            if len(text.split()) >= MIN_WORDS
        )
        yield from islice(long, SAMPLED_TEXTS)
