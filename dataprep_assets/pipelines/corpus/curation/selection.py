"""Selection (`<dataset>/selection_<split>`, one partition per shard): the dropped rows and the reasons.

The reason is the first that applies: `retracted`, the name of a rule, `duplicate`. A duplicate also has the document
that represents it and their similarity.

The selection is built from tags, without texts, so a changed threshold costs little. Token bins depend only on the
dropped rows, so only shards whose dropped rows changed are rebuilt. Dropped rows are counted by source before
tokenization, and exceeding the declared budget fails a blocking check.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.curation.benchmarks.columns import BENCHMARK
from dataprep_assets.curation.budgets.counts import (
    LANGUAGE,
    NOTHING,
    DropCounts,
    build_source_rows,
    compute_percent,
    sum_counts,
    sum_totals,
)
from dataprep_assets.curation.dropped_rows import (
    COLUMNS,
    DROPPED,
    DroppedRows,
    digest_dropped_rows,
    group_by_file,
)
from dataprep_assets.curation.duplicates.removed_file import DUPLICATES
from dataprep_assets.curation.retractions import describe_ids
from dataprep_assets.curation.selection import DUPLICATE
from dataprep_assets.curation.table import COLUMN_DESCRIPTIONS, Columns, ParquetRowWriter
from dataprep_assets.engine.artifact.build import WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.losses import RULE, Loss, count_by_file
from dataprep_assets.engine.artifact.metadata_values import ShownValue, Table
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest, Partitions
from dataprep_assets.engine.checks.check import FILES_INTACT, REBUILD, Check, Finding, OpenedArtifact, build_verdict
from dataprep_assets.engine.checks.comparison import compare_rebuild
from dataprep_assets.engine.checks.verdicts import CheckGroup, PartitionChecks, WholeArtifactChecks
from dataprep_assets.errors import DataprepError, count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import RETRACTED, Receipt
from dataprep_assets.pipelines.corpus.curation.benchmark_checks import check_contamination
from dataprep_assets.pipelines.corpus.curation.file_ages import read_shard_ages
from dataprep_assets.pipelines.corpus.curation.ruled_rows import read_ruled_rows
from dataprep_assets.pipelines.corpus.curation.selection_budget import (
    check_budget,
    check_kept_sources,
    check_rule_sources,
)
from dataprep_assets.pipelines.corpus.curation.selection_counts import SELECTION, SelectionFacts
from dataprep_assets.pipelines.corpus.curation.tagged_shard import TAGS
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates.removed_duplicates import digest_removed_rows, load_removed_rows
from dataprep_assets.pipelines.corpus.source.listed_rows import find_listed_ids
from dataprep_assets.pipelines.corpus.source.manifest import load_manifest
from dataprep_assets.stores.files import digest_value

VERSION = 3


def find_ruled_out_rows(corpus: CorpusDeclaration, store: ArtifactStore, partition: str) -> DroppedRows | None:
    """Return the rows of a shard that the selection drops; None if neither rules nor duplicates are declared.

    Raises MissingArtifactError if the selection is missing.
    """
    if not corpus.selects:
        return None
    artifact = corpus.artifact(SELECTION, partition)
    receipt = store.require(artifact)
    dropped_documents = sum_counts(sum_totals([receipt])[1].values())[0]
    return DroppedRows(
        store, artifact, receipt.content, SelectionFacts.from_receipt(receipt).dropped, dropped_documents
    )


def list_dropped_columns(corpus: CorpusDeclaration) -> Columns:
    """Return the columns of `dropped.parquet`."""
    return COLUMNS if corpus.duplicates is None else {**COLUMNS, "representative": "string", "similarity": "number"}


def build_selection_spec(
    corpus: CorpusDeclaration,
    split: str,
    *,
    partitions: Partitions,
    tags: ArtifactSpec,
    duplicates: ArtifactSpec | None = None,
) -> ArtifactSpec:
    """Return the spec of a split's selection.

    Args:
        corpus: The dataset.
        split: One of its splits.
        partitions: The split's shards.
        tags: The tags of the shards.
        duplicates: The duplicates of the dataset; None if there is no deduplication.
    """
    return ArtifactSpec(
        declaration=corpus,
        name=SELECTION,
        split=split,
        version=VERSION,
        description="The dropped rows of each shard, with the reason: retracted, a rule, or a duplicate.",
        kinds={"parquet"},
        inputs=(tags, *(() if duplicates is None else (duplicates,))),
        partitions=partitions,
        recipes=partial(_build_recipes, corpus),
        build=partial(_build_selections, corpus),
        foresee=partial(_build_selections, corpus),
        metadata=partial(_build_metadata, corpus),
        rows=lambda receipt: sum_counts(sum_totals([receipt])[1].values())[0],
        columns=list_dropped_columns(corpus),
        column_descriptions=COLUMN_DESCRIPTIONS,
        losses=lambda _, receipts: _find_losses(receipts, split),
        check_groups=_build_check_groups(corpus, split),
    )


def _build_recipe(corpus: CorpusDeclaration, store: ArtifactStore, partition: str) -> Recipe:
    tags = store.require(corpus.artifact(TAGS, partition))
    rules = {name: f"{'keep' if keeps else 'drop'}: {rule.text}" for name, (keeps, rule) in corpus.rules.items()}
    # Use only the shard's own duplicates, because a change in another shard's duplicates does not affect this
    # selection.
    duplicates = digest_removed_rows(corpus, store, partition)
    duplicate_inputs = {} if duplicates is None else {DUPLICATES: duplicates}
    # Include the ages of the shard's files, because the receipt lists them.
    ages, retracted_rows = read_shard_ages(corpus, store, partition), find_listed_ids(corpus, store, partition)
    extra_settings = {"retracted": describe_ids(retracted_rows)} if retracted_rows else {}
    extra_settings |= {"ages": digest_value(ages)} if ages else {}
    count_columns = _list_grouping_columns(corpus)
    extra_settings |= {"counted_by": ", ".join(count_columns)} if count_columns else {}
    return Recipe(
        artifact=corpus.artifact(SELECTION, partition),
        # Use a list instead of a mapping, because the digest of a mapping ignores the order, which decides the reason
        # of a row that several rules drop.
        key=digest_value(
            [
                *(SELECTION, VERSION, tags.content, dict(tags.inputs), list(rules.items())),
                *(*duplicate_inputs.values(), ages, retracted_rows, *count_columns),
            ]
        ),
        version=VERSION,
        settings={"rules": rules, "order": list(rules), **extra_settings},
        # Include the digests of the shard's files, because the receipt lists them, so a recompressed file requires a
        # new receipt.
        sources={**duplicate_inputs, **tags.inputs},
        upstream={f"{TAGS}/{partition}": tags.content},
    )


def _list_grouping_columns(corpus: CorpusDeclaration) -> list[str]:
    """Return the columns that group the counts of dropped documents, in addition to the source."""
    return [LANGUAGE] if corpus.columns.get(LANGUAGE) == "string" else []


def _build_recipes(
    corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str | None]
) -> Iterator[Recipe]:
    for partition in partitions:
        yield _build_recipe(corpus, store, partition or "")


def _build_selections(corpus: CorpusDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    for partition in request.partitions:
        try:
            recipe = _build_recipe(corpus, request.store, partition)
            receipt, reused = ensure_built(recipe, request.store, partial(_write, corpus, request.store, partition))
        # Continue with the other shards, because they do not depend on the failed shard.
        except DataprepError as error:
            yield Outcome(partition=partition, error=error)
        else:
            yield Outcome.from_receipt(receipt, reused)


def _write(corpus: CorpusDeclaration, store: ArtifactStore, partition: str, staged: Path) -> WrittenFiles:
    tags = store.require(corpus.artifact(TAGS, partition))
    counts = DropCounts()
    with ParquetRowWriter(staged / DROPPED, list_dropped_columns(corpus)) as writer:

        def write_rows() -> Iterator[dict[str, list[Any]]]:
            for rows in _iterate_dropped_rows(corpus, store, partition, counts):
                writer.add(rows)
                yield rows

        # Group the rows while they are written, so that the tags are read only once.
        rows_by_file = group_by_file(write_rows())
    ages = read_shard_ages(corpus, store, partition)
    return WrittenFiles(
        inputs={str(corpus.artifact(TAGS, partition)): tags.content},
        facts=SelectionFacts(
            dropped=digest_dropped_rows(rows_by_file),
            **counts.facts,
            ages=ages,
        ),
        sources=tuple(
            {
                "file": file,
                "sha256": digest,
                "dropped": dict(Counter(rows_by_file[file].why)) if file in rows_by_file else {},
            }
            for file, digest in tags.inputs.items()
        ),
    )


def _iterate_dropped_rows(
    corpus: CorpusDeclaration, store: ArtifactStore, partition: str, counts: DropCounts
) -> Iterator[dict[str, list[Any]]]:
    """Yield the dropped rows of a shard in blocks (column → values); count all documents in `counts`."""
    tags = store.local(corpus.artifact(TAGS, partition))
    removed_ids = load_removed_rows(corpus, store, partition)
    for piece in read_ruled_rows(
        corpus, tags, ("file", "row", "source", "bytes", *_list_grouping_columns(corpus)), removed_ids
    ):
        counts.add(piece.counted_columns, piece.good_reasons)
        positions = [position for position, reason in enumerate(piece.reasons) if reason]
        names = piece.table.select(["file", "row"]).take(np.array(positions, np.int64))
        by_duplicate = [piece.representatives.get(one, (None, None)) for one in positions]
        yield {
            "file": names["file"].to_pylist(),
            "row": names["row"].to_pylist(),
            "reason": [piece.reasons[one] for one in positions],
            "representative": [one for one, _ in by_duplicate],
            "similarity": [similar for _, similar in by_duplicate],
        }


def _build_metadata(corpus: CorpusDeclaration, _: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    totals, by_rule = sum_totals([receipt])
    dropped_counts: dict[str, ShownValue] = {f"dropped_{rule}": counts[0] for rule, counts in sorted(by_rule.items())}
    return {
        "documents": totals[0],
        "dropped": sum_counts(by_rule.values())[0],
        **dropped_counts,
        "rules": Table(_build_rule_rows(corpus, [receipt])),
        "sources": Table(build_source_rows([receipt])),
    }


def _find_losses(receipts: Sequence[Receipt], split: str) -> Iterator[Loss]:
    """Yield the dropped rows of a split, by reason and file."""
    documents = sum_totals(receipts)[0][0]
    for reason, files in count_by_file(receipts).items():
        yield Loss(
            action="dropped",
            reason=reason,
            count=files.total(),
            of=documents,
            unit="row",
            part=split,
            kind="" if reason in (RETRACTED, DUPLICATE, BENCHMARK) else RULE,
            files=dict(files.most_common()),
        )


def _build_rule_rows(corpus: CorpusDeclaration, receipts: Sequence[Receipt]) -> list[dict[str, Any]]:
    """Return a row for each rule: its condition, and the documents and bytes that it drops."""
    totals, by_rule = sum_totals(receipts)
    rows = []
    for name, (keeps, rule) in corpus.rules.items():
        documents, size = by_rule.get(name, NOTHING)
        rows.append(
            {
                "rule": name,
                "drops": f"{'not ' if keeps else ''}({rule.text})" if keeps else rule.text,
                "documents": documents,
                "documents_%": compute_percent(documents, totals[0]),
                "bytes": size,
                "bytes_%": compute_percent(size, totals[1]),
            }
        )
    return rows


@dataclass(frozen=True)
class _OpenedSelection(OpenedArtifact):
    """Selection of a shard, opened for checks."""

    corpus: CorpusDeclaration


def _plan_shards(corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str]) -> list[_OpenedSelection]:
    return [_OpenedSelection(corpus.artifact(SELECTION, partition), store, corpus) for partition in partitions]


def _check_rebuild(selection: _OpenedSelection) -> Finding:
    corpus, store, receipt, partition = (
        selection.corpus,
        selection.store,
        selection.receipt,
        selection.artifact.partition or "",
    )
    recipe, dropped_documents = (
        _build_recipe(corpus, store, partition),
        sum_counts(sum_totals([receipt])[1].values())[0],
    )
    defects = compare_rebuild(recipe, store, receipt, selection.directory, partial(_write, corpus, store, partition))
    return build_verdict(
        (f"{selection.name}: {defect}" for defect in defects),
        f"Selecting again drops the same {count_of(dropped_documents, 'row')} ({count_of(len(corpus.rules), 'rule')}).",
        REBUILD,
        facts={"dropped": dropped_documents},
    )


SHARD_CHECKS: tuple[Check[_OpenedSelection], ...] = (
    FILES_INTACT,
    Check(
        "rebuild_matches",
        "Applying tags, rules, duplicates and removals again reproduces the dropped rows.",
        _check_rebuild,
    ),
)
_Split = tuple[CorpusDeclaration, str, ArtifactStore, Sequence[str]]
"""Arguments of checks that always read all selections of a split, even if only some shards are being checked."""
SPLIT_CHECKS: tuple[Check[_Split], ...] = (
    Check(
        "within_budget",
        "Every split keeps at least one document, and the dropped shares per source and per rule are within `budget`.",
        lambda split: check_budget(*split),
    ),
    Check(
        "sources_kept",
        "No rule without a budget drops 95% or more of a source, language or split.",
        lambda split: check_kept_sources(*split),
        blocking=False,
    ),
)
RULE_SOURCES_EXIST: Check[_Split] = Check(
    "rule_sources_exist",
    "Every source that `keep` or `drop` lists has documents in a split.",
    lambda split: check_rule_sources(split[0], split[2], _list_all_partitions(split[0], split[2])),
)
NO_BENCHMARK_CONTAMINATION: Check[_Split] = Check(
    "no_benchmark_contamination",
    "No kept document contains a benchmark item. At least `coverage` of the items are searched for. "
    "Planted items are found in every form, and look-alikes are not reported.",
    lambda split: check_contamination(split[0], split[2], split[3]),
)


def _list_all_partitions(corpus: CorpusDeclaration, store: ArtifactStore) -> list[str]:
    manifest = load_manifest(corpus, store)
    return [partition for split in corpus.splits for partition in manifest.partitions(split)]


def _build_check_groups(corpus: CorpusDeclaration, split: str) -> tuple[CheckGroup, ...]:
    def open_split(store: ArtifactStore, _: Sequence[str]) -> _Split:
        return corpus, split, store, load_manifest(corpus, store).partitions(split)

    decontamination = corpus.decontaminate
    split_checks = SPLIT_CHECKS
    if not all(isinstance(text, str) for text in (*corpus.keep.values(), *corpus.drop.values())):
        split_checks = (*split_checks, RULE_SOURCES_EXIST)
    if decontamination is not None and decontamination.action != "tag":
        split_checks = (*split_checks, NO_BENCHMARK_CONTAMINATION)
    shard_checks: PartitionChecks[_OpenedSelection, _OpenedSelection] = PartitionChecks(
        checks=SHARD_CHECKS, planned=partial(_plan_shards, corpus)
    )
    return shard_checks, WholeArtifactChecks(checks=split_checks, open=open_split)
