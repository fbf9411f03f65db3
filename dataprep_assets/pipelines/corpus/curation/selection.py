"""The selection (`<dataset>/selection_<split>`, one partition per shard): the dropped rows and the reasons.

The reason is the first that applies: `retracted`, the name of a rule, `duplicate`. A duplicate also has the document
that represents it and their similarity.

The selection is built from tags, without texts, so a changed threshold costs little. Token bins depend only on the
dropped rows, so only shards with other dropped rows are rebuilt. Dropped rows are counted by source before
tokenization, and exceeding the declared budget fails a blocking check.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.curation.benchmarks.benchmarks import BENCHMARK
from dataprep_assets.curation.dropped_rows import (
    COLUMNS,
    DROPPED,
    RuledOut,
    digest_of,
    group_by_file,
)
from dataprep_assets.curation.retractions import describe_ids
from dataprep_assets.curation.selection import DUPLICATE
from dataprep_assets.curation.table import Columns, ParquetRows
from dataprep_assets.engine.artifact.build import WrittenFiles, ensure
from dataprep_assets.engine.artifact.losses import RULE, Loss, files_of
from dataprep_assets.engine.artifact.metadata_values import Shown, Table
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest, Partitions
from dataprep_assets.engine.checks.check import FILES_INTACT, REBUILD, Check, Finding, OpenedArtifact, verdict
from dataprep_assets.engine.checks.comparison import rebuilt
from dataprep_assets.engine.checks.verdicts import CheckGroup, PartitionChecks, WholeChecks
from dataprep_assets.errors import DataprepError, count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import RETRACTED, Receipt
from dataprep_assets.pipelines.corpus.curation.benchmark_checks import no_benchmark_contamination
from dataprep_assets.pipelines.corpus.curation.file_ages import ages_in_shard
from dataprep_assets.pipelines.corpus.curation.ruled_rows import ruled_rows
from dataprep_assets.pipelines.corpus.curation.selection_budget import sources_kept, within_budget
from dataprep_assets.pipelines.corpus.curation.selection_counts import (
    LANGUAGE,
    NOTHING,
    SELECTION,
    SelectionCounts,
    SelectionFacts,
    percent,
    source_rows,
    sum_counts,
    totals_of,
)
from dataprep_assets.pipelines.corpus.curation.tagged_shard import TAGS
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates.removed_duplicates import DUPLICATES, duplicates_of, removed_rows
from dataprep_assets.pipelines.corpus.source.listed_rows import listed_in
from dataprep_assets.pipelines.corpus.source.manifest import load_manifest
from dataprep_assets.stores.files import digest_value

VERSION = 3


def ruled_out_rows(corpus: CorpusDeclaration, store: ArtifactStore, partition: str) -> RuledOut | None:
    """Return the rows of a shard that the selection drops; None if neither rules nor duplicates are declared.

    Raises MissingArtifactError if the selection is missing.
    """
    if not corpus.selects:
        return None
    artifact = corpus.artifact(SELECTION, partition)
    receipt = store.require(artifact)
    dropped_documents = sum_counts(totals_of([receipt])[1].values())[0]
    return RuledOut(store, artifact, receipt.content, SelectionFacts.of(receipt).dropped, dropped_documents)


def columns_of(corpus: CorpusDeclaration) -> Columns:
    """Return the columns of `dropped.parquet`."""
    return COLUMNS if corpus.duplicates is None else {**COLUMNS, "representative": "string", "similarity": "number"}


def selection_spec(
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
        duplicates: The duplicates of the dataset; None without deduplication.
    """
    return ArtifactSpec(
        declaration=corpus,
        name=SELECTION,
        split=split,
        version=VERSION,
        description="The rows of each shard that are removed, dropped by a rule or duplicates, with the reason.",
        kinds={"parquet"},
        inputs=(tags, *(() if duplicates is None else (duplicates,))),
        partitions=partitions,
        recipes=partial(_recipes, corpus),
        build=partial(_build, corpus),
        foresee=partial(_build, corpus),
        metadata=partial(_metadata, corpus),
        rows=lambda receipt: sum_counts(totals_of([receipt])[1].values())[0],
        columns=columns_of(corpus),
        losses=lambda _, receipts: _losses(receipts, split),
        check_groups=_check_groups(corpus, split),
    )


def _recipe(corpus: CorpusDeclaration, store: ArtifactStore, partition: str) -> Recipe:
    tags = store.require(corpus.artifact(TAGS, partition))
    rules = {name: f"{'keep' if keeps else 'drop'}: {rule.text}" for name, (keeps, rule) in corpus.rules.items()}
    # only the shard's duplicates count, because duplicates of other shards do not change its selection
    removed = duplicates_of(corpus, store, partition)
    of_shard = {} if removed is None else {DUPLICATES: removed}
    # the receipt contains the ages of the shard's files, so they are inputs of the recipe
    ages, retracted = ages_in_shard(corpus, store, partition), listed_in(corpus, store, partition)
    extra_settings = {"retracted": describe_ids(retracted)} if retracted else {}
    extra_settings |= {"ages": digest_value(ages)} if ages else {}
    count_columns = _counted_by(corpus)
    extra_settings |= {"counted_by": ", ".join(count_columns)} if count_columns else {}
    return Recipe(
        artifact=corpus.artifact(SELECTION, partition),
        # a list, because the order of rules determines the reason
        key=digest_value(
            [
                *(SELECTION, VERSION, tags.content, dict(tags.inputs), list(rules.items())),
                *(*of_shard.values(), ages, retracted, *count_columns),
            ]
        ),
        version=VERSION,
        settings={"rules": rules, "order": list(rules), **extra_settings},
        # the receipt lists the shard's files, so a recompressed file needs a new receipt
        sources={**of_shard, **tags.inputs},
        upstream={f"{TAGS}/{partition}": tags.content},
    )


def _counted_by(corpus: CorpusDeclaration) -> list[str]:
    """Return the columns that group the counts of dropped documents, in addition to the source."""
    return [LANGUAGE] if corpus.columns.get(LANGUAGE) == "string" else []


def _recipes(corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str | None]) -> Iterator[Recipe]:
    for partition in partitions:
        yield _recipe(corpus, store, partition or "")


def _build(corpus: CorpusDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    for partition in request.partitions:
        try:
            recipe = _recipe(corpus, request.store, partition)
            receipt, reused = ensure(recipe, request.store, partial(_write, corpus, request.store, partition))
        # a failed shard does not stop the others
        except DataprepError as error:
            yield Outcome(partition=partition, error=error)
        else:
            yield Outcome.from_receipt(receipt, reused)


def _write(corpus: CorpusDeclaration, store: ArtifactStore, partition: str, staged: Path) -> WrittenFiles:
    tags = store.require(corpus.artifact(TAGS, partition))
    counts = SelectionCounts()
    with ParquetRows(staged / DROPPED, columns_of(corpus)) as writer:

        def write_rows() -> Iterator[dict[str, list[Any]]]:
            for rows in _dropped_rows(corpus, store, partition, counts):
                writer.add(rows)
                yield rows

        # rows are written while their digest is computed, so that one pass is enough
        rows_of = group_by_file(write_rows())
    ages = ages_in_shard(corpus, store, partition)
    return WrittenFiles(
        inputs={str(corpus.artifact(TAGS, partition)): tags.content},
        facts=SelectionFacts(
            dropped=digest_of(rows_of),
            **counts.facts,
            ages=ages,
        ),
        sources=tuple(
            {"file": file, "sha256": digest, "dropped": dict(Counter(rows_of[file].why)) if file in rows_of else {}}
            for file, digest in tags.inputs.items()
        ),
    )


def _dropped_rows(
    corpus: CorpusDeclaration, store: ArtifactStore, partition: str, counted: SelectionCounts
) -> Iterator[dict[str, list[Any]]]:
    """Yield the dropped rows of a shard as column of `dropped.parquet` → values; add all documents to `counted`."""
    tags = store.local(corpus.artifact(TAGS, partition))
    removed = removed_rows(corpus, store, partition)
    for piece in ruled_rows(corpus, tags, ("file", "row", "source", "bytes", *_counted_by(corpus)), removed):
        counted.add(piece)
        positions = [position for position, reason in enumerate(piece.reasons) if reason]
        names = piece.table.select(["file", "row"]).take(np.array(positions, np.int64))
        by_duplicate = [piece.alike.get(one, (None, None)) for one in positions]
        yield {
            "file": names["file"].to_pylist(),
            "row": names["row"].to_pylist(),
            "reason": [piece.reasons[one] for one in positions],
            "representative": [one for one, _ in by_duplicate],
            "similarity": [similar for _, similar in by_duplicate],
        }


def _metadata(corpus: CorpusDeclaration, _: ArtifactStore, receipt: Receipt) -> Mapping[str, Shown]:
    totals, by_rule = totals_of([receipt])
    dropped_counts: dict[str, Shown] = {f"dropped_{rule}": counts[0] for rule, counts in sorted(by_rule.items())}
    return {
        "documents": totals[0],
        "dropped": sum_counts(by_rule.values())[0],
        **dropped_counts,
        "rules": Table(_rule_rows(corpus, [receipt])),
        "sources": Table(source_rows([receipt])),
    }


def _losses(receipts: Sequence[Receipt], split: str) -> Iterator[Loss]:
    """Yield the dropped rows of a split, by reason and file."""
    documents = totals_of(receipts)[0][0]
    for reason, files in files_of(receipts).items():
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


def _rule_rows(corpus: CorpusDeclaration, receipts: Sequence[Receipt]) -> list[dict[str, Any]]:
    """Return a row for each rule: its condition, and the documents and bytes that it drops."""
    totals, by_rule = totals_of(receipts)
    rows = []
    for name, (keeps, rule) in corpus.rules.items():
        documents, size = by_rule.get(name, NOTHING)
        rows.append(
            {
                "rule": name,
                "drops": f"{'not ' if keeps else ''}({rule.text})" if keeps else rule.text,
                "documents": documents,
                "documents_%": percent(documents, totals[0]),
                "bytes": size,
                "bytes_%": percent(size, totals[1]),
            }
        )
    return rows


@dataclass(frozen=True)
class _OpenedSelection(OpenedArtifact):
    """The selection of a shard, opened for checks."""

    corpus: CorpusDeclaration


def _plan(corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str]) -> list[_OpenedSelection]:
    return [_OpenedSelection(corpus.artifact(SELECTION, partition), store, corpus) for partition in partitions]


def _rebuild_matches(opened: _OpenedSelection) -> Finding:
    corpus, store, receipt, partition = opened.corpus, opened.store, opened.receipt, opened.artifact.partition or ""
    recipe, dropped_documents = _recipe(corpus, store, partition), sum_counts(totals_of([receipt])[1].values())[0]
    defects = rebuilt(recipe, store, receipt, opened.directory, partial(_write, corpus, store, partition))
    return verdict(
        (f"{opened.name}: {defect}" for defect in defects),
        f"{count_of(dropped_documents, 'row')} dropped by {count_of(len(corpus.rules), 'rule')}.",
        REBUILD,
        facts={"dropped": dropped_documents},
    )


SHARD_CHECKS: tuple[Check[_OpenedSelection], ...] = (
    FILES_INTACT,
    Check(
        "rebuild_matches",
        "Applying tags, rules, duplicates and removals again reproduces the dropped rows.",
        _rebuild_matches,
    ),
)
_Split = tuple[CorpusDeclaration, str, ArtifactStore, Sequence[str]]
"""The arguments of checks that always read all selections of a split, even if only some shards are checked now."""
SPLIT_CHECKS: tuple[Check[_Split], ...] = (
    Check(
        "within_budget",
        "Every split keeps documents, and the drops per source and per rule stay within `budget`.",
        lambda split: within_budget(*split),
    ),
    Check(
        "sources_kept",
        "No rule without a budget drops 95 % or more of a source, language or split.",
        lambda split: sources_kept(*split),
        blocking=False,
    ),
)
NO_BENCHMARK_CONTAMINATION: Check[_Split] = Check(
    "no_benchmark_contamination",
    "No kept document contains a benchmark item. At least `coverage` of the items are searched for, planted items "
    "are found in every form, and look-alikes are not.",
    lambda split: no_benchmark_contamination(split[0], split[2], split[3]),
)


def _check_groups(corpus: CorpusDeclaration, split: str) -> tuple[CheckGroup, ...]:
    def open_split(store: ArtifactStore, _: Sequence[str]) -> _Split:
        return corpus, split, store, load_manifest(corpus, store).partitions(split)

    decontamination = corpus.decontaminate
    split_checks = (
        SPLIT_CHECKS
        if decontamination is None or decontamination.action == "tag"
        else (*SPLIT_CHECKS, NO_BENCHMARK_CONTAMINATION)
    )
    shard_checks: PartitionChecks[_OpenedSelection, _OpenedSelection] = PartitionChecks(
        checks=SHARD_CHECKS, planned=partial(_plan, corpus)
    )
    return shard_checks, WholeChecks(checks=split_checks, open=open_split)
