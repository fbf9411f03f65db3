"""Duplicates (`<dataset>/duplicates`): groups of similar documents in the dataset, and the kept document of each group.

The artifact joins the stored signatures of all shards of all splits, without any text. Appended files are compared with
earlier files through the tables of their shards. Pairs that were already compared are not compared again. Each shard
has a file of its removed rows, `<shard>.parquet`. The shard's selection depends on that file, so only shards whose
removed rows change are rebuilt.

- `<shard>.parquet`: `position` (the row of the shard's table, from 0), the kept `representative` (`file:row`), and
  their `similarity`
- `<shard>.kept.bin`: one bit per row, whether it is kept; other datasets compare their documents with kept rows
- `pairs.bin`, uint64 `(pairs, 4)`: the compared pairs (`curation.duplicates.kept_set.ComparedPairs`)
- `clusters.parquet`: the largest clusters; `across.parquet`: pairs of kept documents of different splits
- `ages.json`: source file → number of the build that first saw it; empty if a column is the priority
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from dataprep_assets.curation.duplicates.candidates import Nodes
from dataprep_assets.curation.duplicates.kept_set import ComparedPairs, DuplicateDecisions
from dataprep_assets.curation.table import Columns, ParquetRowWriter, read_joined_tables
from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.metadata_values import ShownValue, Table
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest, DatasetInput
from dataprep_assets.engine.checks.comparison import compare_rebuild
from dataprep_assets.errors import count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.curation.excerpts import Excerpts
from dataprep_assets.pipelines.corpus.curation.file_ages import compute_ages, write_ages
from dataprep_assets.pipelines.corpus.curation.kept_documents import (
    PAIRS,
    KeptDocuments,
    count_changes,
    decide_kept_documents,
    read_current_duplicates,
    read_known_pairs,
)
from dataprep_assets.pipelines.corpus.curation.tagged_shard import ROWS, TAGS
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates.joined_documents import JoinedDocuments
from dataprep_assets.pipelines.corpus.duplicates.other_datasets import open_other_documents
from dataprep_assets.pipelines.corpus.duplicates.removed_duplicates import (
    DUPLICATES,
    REMOVED,
    REMOVED_DESCRIPTIONS,
    name_kept_file,
    name_removed_file,
)
from dataprep_assets.pipelines.corpus.duplicates.row_names import RowNames
from dataprep_assets.pipelines.corpus.duplicates.signed_shard import SIGNATURES
from dataprep_assets.pipelines.corpus.source.listed_rows import read_listed_ids
from dataprep_assets.pipelines.corpus.source.manifest import Manifest, load_manifest
from dataprep_assets.planning.manifest import split_name
from dataprep_assets.stores.files import digest_value

CLUSTERS = "clusters.parquet"
_MAX_SHOWN_CLUSTERS = 10
"""Maximum number of clusters in the table."""


def read_largest_clusters(corpus: CorpusDeclaration, store: ArtifactStore) -> Sequence[dict[str, Any]]:
    """Return a row for each of the largest clusters.

    A row has the kept document, the number of removed documents, and the least similar removed document. `text` and
    `example_text` are the beginnings of the kept and the least similar document, if their files are readable and small
    enough. The list is empty for a sensitive dataset.

    Args:
        corpus: The dataset.
        store: The store of its duplicates.
    """
    if corpus.sensitive:
        return []
    # Read only the first piece, because it contains all clusters (at most `_MAX_CLUSTERS`). There is no piece if no
    # document was removed.
    clusters = next(read_joined_tables([store.local(corpus.artifact(DUPLICATES), [CLUSTERS]) / CLUSTERS]), None)
    excerpts = Excerpts(corpus, store)
    return [
        {
            **row,
            "text": excerpts.read_excerpt(row["representative"]),
            "example_text": excerpts.read_excerpt(row["example"]),
        }
        for row in ([] if clusters is None else clusters.slice(0, _MAX_SHOWN_CLUSTERS).to_pylist())
    ]


VERSION = 4
ACROSS = "across.parquet"
_CLUSTERS: Columns = {"representative": "string", "removed": "integer", "least_similar": "number", "example": "string"}
_ACROSS: Columns = {
    "split": "string",
    "row": "string",
    "other": "string",
    "other_row": "string",
    "similarity": "number",
}
_ADVICE = "Declare `duplicates` with the same settings in it"
_MAX_CLUSTERS = 1000
"""Maximum number of clusters in `clusters.parquet`."""


class DuplicatesFacts(Facts):
    """Facts of duplicates.

    Attributes:
        documents: Compared documents, i.e., all documents that no rule drops.
        removed: Removed documents, per split.
        equal: Removed documents that are equal to the kept document.
        candidates: Pairs that share a band.
        compared: Pairs whose shingles were compared.
        across: Pairs of similar kept documents in different splits.
        against: Documents removed because another dataset keeps a similar document, per dataset; only if `against` is
            declared.
    """

    documents: int
    removed: dict[str, int]
    equal: int
    candidates: int
    compared: int
    across: int
    against: dict[str, int] = Field(default_factory=dict)


def build_duplicates_spec(
    corpus: CorpusDeclaration, *, tags: Sequence[ArtifactSpec], signatures: Sequence[ArtifactSpec]
) -> ArtifactSpec:
    """Return the spec of a dataset's duplicates.

    Args:
        corpus: The dataset.
        tags: The tags of each split.
        signatures: The signatures of each split.
    """
    from dataprep_assets.pipelines.corpus.duplicates.duplicates_checks import build_duplicates_checks

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
        check_groups=(build_duplicates_checks(corpus),),
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
    write = partial(_write, corpus, store, recipe, kept_sets, read_known_pairs(corpus, store))
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


def compare_rebuilt_duplicates(
    corpus: CorpusDeclaration, store: ArtifactStore, receipt: Receipt, directory: Path, pairs: ComparedPairs
) -> Iterator[str]:
    """Compare all pairs except `pairs` again; return a sentence for each file and claim that differs."""
    recipe = _build_recipe(corpus, store)
    return compare_rebuild(recipe, store, receipt, directory, partial(_write, corpus, store, recipe, [], pairs))


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
    nodes = np.unique(np.concatenate([kept_set.removed, kept_set.representatives, kept_set.across.ravel()]))
    names = _Names(corpus, store, all_documents, nodes)
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
    _write_clusters(staged / CLUSTERS, kept_set, names)
    _write_across(staged / ACROSS, kept_set, names, all_documents)
    (staged / PAIRS).write_bytes(kept_set.compared.pairs.astype("<u8").tobytes())
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


class _Names:
    """Names of rows: `file:row`, or `dataset:file:row` for rows of another dataset."""

    def __init__(
        self, corpus: CorpusDeclaration, store: ArtifactStore, documents: JoinedDocuments, nodes: Nodes
    ) -> None:
        """Read the names of the documents `nodes`, whose numbers must be ascending."""
        self._nodes, self._names = nodes, list[str]()
        for number, partition in enumerate(documents.partitions):
            begin, end = documents.documents.first[number : number + 2].tolist()
            start, stop = np.searchsorted(nodes, [begin, end]).tolist()
            if start != stop:
                row_names = RowNames(rows=store.local(corpus.artifact(TAGS, partition)) / ROWS)
                self._names += row_names.read_names(nodes[start:stop] - begin)
        for dataset, begin, end in documents.iterate_other_shards():
            rows = nodes[slice(*np.searchsorted(nodes, [begin, end]).tolist())] - begin
            if len(rows):
                self._names += dataset.open_names(store).read_names(rows)

    def get_names(self, nodes: Nodes) -> list[str]:
        """Return the names of documents, which must be among the documents whose names were read."""
        return [self._names[position] for position in np.searchsorted(self._nodes, nodes).tolist()]


def _write_clusters(path: Path, kept_set: DuplicateDecisions, names: _Names) -> None:
    """Write the largest clusters: the kept document, the number of removed documents, and the least similar of them."""
    # Sort by cluster, then by similarity, so that each cluster begins with its least similar document.
    order = np.lexsort((kept_set.removed, kept_set.similarities, kept_set.representatives))
    representatives = kept_set.representatives[order]
    starts = (
        np.flatnonzero(np.append(True, representatives[1:] != representatives[:-1]))
        if len(representatives)
        else np.empty(0, np.int64)
    )
    sizes = np.diff(np.append(starts, len(representatives)))
    largest = np.lexsort((starts, -sizes))[:_MAX_CLUSTERS]
    examples = order[starts[largest]]
    with ParquetRowWriter(path, _CLUSTERS) as rows:
        rows.add(
            {
                "representative": names.get_names(kept_set.representatives[examples]),
                "removed": sizes[largest].tolist(),
                "least_similar": kept_set.similarities[examples].tolist(),
                "example": names.get_names(kept_set.removed[examples]),
            }
        )


def _write_across(path: Path, kept_set: DuplicateDecisions, names: _Names, documents: JoinedDocuments) -> None:
    shards = documents.documents.find_shards(kept_set.across.ravel()).reshape(-1, 2)
    splits = [[split_name(documents.partitions[shard]) for shard in pair] for pair in shards.tolist()]
    first_names, second_names = names.get_names(kept_set.across[:, 0]), names.get_names(kept_set.across[:, 1])
    with ParquetRowWriter(path, _ACROSS) as rows:
        rows.add(
            {
                "split": [pair[0] for pair in splits],
                "row": first_names,
                "other": [pair[1] for pair in splits],
                "other_row": second_names,
                "similarity": kept_set.across_similarities.tolist(),
            }
        )


def _build_metadata(corpus: CorpusDeclaration, store: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    facts = DuplicatesFacts.from_receipt(receipt)
    metadata: dict[str, ShownValue] = {
        "documents": facts.documents,
        "removed": sum(facts.removed.values()),
        **{f"removed_{split}": count for split, count in facts.removed.items()},
        "equal_documents": facts.equal,
        "candidate_pairs": facts.candidates,
        "compared_pairs": facts.compared,
        "pairs_across_splits": facts.across,
        **{f"duplicates_of_{name}": count for name, count in facts.against.items()},
    }
    if clusters := read_largest_clusters(corpus, store):
        metadata["largest_clusters"] = Table(clusters)
    return metadata
