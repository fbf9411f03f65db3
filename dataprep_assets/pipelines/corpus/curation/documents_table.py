"""The document table (`<dataset>/documents_<split>`, one partition per shard): `documents.parquet`.

It has one row per source row, in source order. The columns are the row's origin, the taggers' values, whether the row
was kept or the reason for the drop, and its number of tokens. `dataprep documents`, `trace` and `retract --where` query
the table. Any Parquet reader can do so as well.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.dropped_rows import DroppedFileRows
from dataprep_assets.curation.selection import DUPLICATE, NO_TOKENS
from dataprep_assets.curation.table import DECIDED, ColumnType, ParquetRowWriter, read_joined_tables, split_by_file
from dataprep_assets.curation.table_sums import FILE, TableSums, count_values
from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.metadata_values import ShownValue, Table
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest, Partitions
from dataprep_assets.engine.checks.check import (
    FILES_INTACT,
    REBUILD,
    SHOWN,
    Check,
    Finding,
    OpenedArtifact,
    build_verdict,
)
from dataprep_assets.engine.checks.comparison import compare_rebuild
from dataprep_assets.engine.checks.verdicts import PartitionChecks
from dataprep_assets.errors import DataprepError, IntegrityError, count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.formats import document_ends
from dataprep_assets.formats.document_index import IDS, open_ids
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import RETRACTED, Receipt
from dataprep_assets.pipelines.corpus.curation.selection import find_ruled_out_rows
from dataprep_assets.pipelines.corpus.curation.selection_counts import SELECTION
from dataprep_assets.pipelines.corpus.curation.tagged_shard import ROWS, TAGS, name_tagger_file
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates.removed_duplicates import load_removed_rows
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stream.token_shard import ENDS, TOKEN_BINS, TokenBinsFacts, build_document_rows

if TYPE_CHECKING:
    import pyarrow as pa

DOCUMENTS = "documents"
VERSION = 3


class DocumentsFacts(Facts):
    """Facts of a table: all rows, kept rows, dropped rows by reason, and counts by source.

    The counts of a source are its rows, kept documents, and the bytes and tokens of the kept documents.
    """

    rows: int
    kept: int
    reasons: dict[str, int]
    sources: dict[str, tuple[int, int, int, int]]


def list_table_columns(corpus: CorpusDeclaration) -> dict[str, ColumnType]:
    """Return the columns of the table, in order."""
    source_columns = {name: kind for name, kind in corpus.carried.columns.items() if name != "bad"}
    tag_columns = {name: kind for tagger in corpus.taggers for name, kind in tagger.columns.items()}
    return {**source_columns, **tag_columns, **list_outcome_columns(corpus)}


def list_outcome_columns(corpus: CorpusDeclaration) -> dict[str, ColumnType]:
    """Return the columns with the outcome of each row."""
    return dict(DECIDED) if corpus.duplicates is None else {**DECIDED, "similarity": "number"}


def build_documents_spec(
    corpus: CorpusDeclaration,
    split: str,
    *,
    partitions: Partitions,
    tags: ArtifactSpec,
    selection: ArtifactSpec | None,
    token_bins: ArtifactSpec,
) -> ArtifactSpec:
    """Return the spec of a split's document table.

    Args:
        corpus: The dataset.
        split: One of its splits.
        partitions: The split's shards.
        tags: The tags of the shards.
        selection: The selection of the shards; None if the dataset declares no rules.
        token_bins: The token bins of the shards.
    """
    return ArtifactSpec(
        declaration=corpus,
        name=DOCUMENTS,
        split=split,
        version=VERSION,
        description="The document table: every source row with its tags, and the reason if it was dropped.",
        kinds={"parquet", "table"},
        inputs=(tags, *(() if selection is None else (selection,)), token_bins),
        partitions=partitions,
        recipes=partial(_build_recipes, corpus),
        build=partial(_build_tables, corpus),
        metadata=_build_metadata,
        rows=lambda receipt: DocumentsFacts.from_receipt(receipt).rows,
        columns={**corpus.columns, **list_outcome_columns(corpus)},
        column_descriptions=corpus.column_descriptions,
        check_groups=(PartitionChecks(checks=_CHECKS, planned=partial(_plan_shards, corpus)),),
    )


def _build_recipe(corpus: CorpusDeclaration, store: ArtifactStore, partition: str) -> Recipe:
    names = [TAGS, *([SELECTION] if corpus.selects else []), TOKEN_BINS]
    upstream = {f"{name}/{partition}": store.require(corpus.artifact(name, partition)).content for name in names}
    taggers = [tagger.name for tagger in corpus.taggers]
    return Recipe(
        artifact=corpus.artifact(DOCUMENTS, partition),
        # Include the taggers in the key, because their order determines the order of the columns, but the digests of
        # the tags do not depend on the order.
        key=digest_value([DOCUMENTS, VERSION, upstream, list(taggers)]),
        version=VERSION,
        settings={"taggers": taggers},
        upstream=upstream,
    )


def _build_recipes(
    corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str | None]
) -> Iterator[Recipe]:
    for partition in partitions:
        yield _build_recipe(corpus, store, partition or "")


def _build_tables(corpus: CorpusDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    for partition in request.partitions:
        try:
            recipe = _build_recipe(corpus, request.store, partition)
            write = partial(_write, corpus, request.store, partition, recipe)
            receipt, reused = ensure_built(recipe, request.store, write, corpus.verify)
        # Continue with the other shards, because they do not depend on the failed shard.
        except DataprepError as error:
            yield Outcome(partition=partition, error=error)
        else:
            yield Outcome.from_receipt(receipt, reused)


def _write(
    corpus: CorpusDeclaration, store: ArtifactStore, partition: str, recipe: Recipe, staged: Path
) -> WrittenFiles:
    reasons: Counter[str] = Counter()
    sources: dict[str, tuple[int, int, int, int]] = {}
    rows = kept_rows = 0
    with ParquetRowWriter(staged / FILE, list_table_columns(corpus)) as writer:
        for piece in _join_outcomes(corpus, store, partition):
            writer.add_table(piece.select(writer.schema.names).cast(writer.schema))
            rows += piece.num_rows
            reasons += count_values(piece["reason"])
            kept_rows += _add_sources(sources, piece)
    return WrittenFiles(
        inputs=dict(recipe.upstream),
        facts=DocumentsFacts(rows=rows, kept=kept_rows, reasons=dict(sorted(reasons.items())), sources=sources),
    )


def _add_sources(sources: dict[str, tuple[int, int, int, int]], piece: "pa.Table") -> int:
    """Add the rows of a piece to the counts of their sources; return the number of kept rows."""
    encoded = piece["source"].combine_chunks().dictionary_encode()
    # A rejected record has no source, so count it in the last row of `sums`, which is left out below.
    numbers = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy()
    kept_mask = piece["kept"].to_numpy()
    sums = np.zeros((len(encoded.dictionary) + 1, 4), np.int64)
    # Use `np.add.at`, because `sums[numbers, 0] += 1` would count a repeated index only once.
    np.add.at(sums[:, 0], numbers, 1)
    np.add.at(sums[:, 1], numbers[kept_mask], 1)
    for column, name in enumerate(("bytes", "tokens"), 2):
        np.add.at(sums[:, column], numbers[kept_mask], piece[name].fill_null(0).to_numpy()[kept_mask])
    for source, added in zip(encoded.dictionary.to_pylist(), sums[:-1].tolist(), strict=True):
        rows, documents, size, tokens = sources.get(source, (0, 0, 0, 0))
        sources[source] = (rows + added[0], documents + added[1], size + added[2], tokens + added[3])
    return int(kept_mask.sum())


def _join_outcomes(corpus: CorpusDeclaration, store: ArtifactStore, partition: str) -> Iterator["pa.Table"]:
    """Yield the tags of a shard, in pieces, with columns for the outcome of each row."""
    import pyarrow as pa

    directory = store.local(corpus.artifact(TAGS, partition))
    shard = _TokenizedDocuments(corpus, store, partition)
    ruled_out, removed_ids, start = (
        find_ruled_out_rows(corpus, store, partition),
        load_removed_rows(corpus, store, partition),
        0,
    )
    files = [directory / name for name in (ROWS, *map(name_tagger_file, corpus.taggers))]
    for piece in read_joined_tables(files):
        reasons: list[str | None] = []
        tokens = []
        for file, run in split_by_file(piece):
            is_document, lengths = shard.count_tokens(file, run["row"].to_numpy().astype(np.uint64))
            selected = None if ruled_out is None else ruled_out.select_file(file)
            reasons += _find_reasons(run, is_document, selected, shard.retracted)
            # Mask the rows that are not documents, because their values in `lengths` are meaningless.
            tokens.append(pa.array(lengths, mask=~is_document))
        # Select duplicates by position in the shard, because they are listed by position, whereas rows dropped by rules
        # are listed by file and row.
        by_duplicate = removed_ids.select_rows(start, start + len(reasons))
        # Name the kept document only for rows whose reason is `duplicate`, because a duplicate that was retracted later
        # has the reason `retracted`.
        representatives = [
            by_duplicate.get(position, (None, None)) if reason == DUPLICATE else (None, None)
            for position, reason in enumerate(reasons)
        ]
        start += len(reasons)
        similar = (
            ()
            if corpus.duplicates is None
            else (("similarity", pa.array([n for _, n in representatives], pa.float64())),)
        )
        for name, values in (
            ("kept", pa.array([reason is None for reason in reasons], pa.bool_())),
            ("reason", pa.array(reasons, pa.string())),
            ("representative", pa.array([one for one, _ in representatives], pa.string())),
            ("tokens", pa.chunked_array(tokens, pa.int64())),
            *similar,
        ):
            piece = piece.append_column(name, values)
        yield piece


def _find_reasons(
    run: "pa.Table", is_present: NDArray[np.bool_], selected: DroppedFileRows | None, retracted_ids: frozenset[str]
) -> list[str | None]:
    """Return the drop reason of each row of a file, None for documents; reasons rank as in `curation.selection`."""
    # Assign the reasons in ascending rank, so that a higher-ranking reason overwrites a lower-ranking one.
    reasons: list[str | None] = [None if kept else NO_TOKENS for kept in is_present.tolist()]
    if retracted_ids and "id" in run.column_names:
        ids = run["id"].to_pylist()
        reasons = [RETRACTED if one in retracted_ids else reason for reason, one in zip(reasons, ids, strict=True)]
    if selected is not None and len(selected.rows):
        dropped_reasons = selected.find_reasons(run["row"].to_numpy().astype(np.uint64))
        reasons = [reason if one is None else one for reason, one in zip(reasons, dropped_reasons, strict=True)]
    if run["bad"].null_count < run.num_rows:
        bad_reasons = run["bad"].to_pylist()
        reasons = [reason if one is None else one for reason, one in zip(reasons, bad_reasons, strict=True)]
    return reasons


@dataclass(frozen=True)
class _TokenizedDocuments:
    """Documents in a shard's token bins, by file and row."""

    corpus: CorpusDeclaration
    store: ArtifactStore
    partition: str

    @cached_property
    def receipt(self) -> Receipt:
        """Receipt of the token bins."""
        return self.store.require(self.artifact)

    @cached_property
    def directory(self) -> Path:
        """Local directory of the token bins."""
        return self.store.local(self.artifact)

    @property
    def artifact(self) -> Artifact:
        """Artifact of the token bins."""
        return self.corpus.artifact(TOKEN_BINS, self.partition)

    @cached_property
    def retracted(self) -> frozenset[str]:
        """Retracted ids (16 hex digits) whose documents the token bins dropped, in addition to the selection."""
        return frozenset(TokenBinsFacts.from_receipt(self.receipt).retracted)

    @cached_property
    def _files(self) -> Mapping[str, tuple[NDArray[np.uint64], NDArray[np.int64]]]:
        """Source file → the rows and the token counts of its documents."""
        index = build_document_rows(self.directory, self.receipt)
        ends = document_ends.open_ends(self.directory / ENDS)
        documents, start = {}, 0
        for number, line in enumerate(self.receipt.sources):
            # The shard's documents are in the order of its files, so the documents of a file are one range of the index
            # and of the ends.
            stop = start + int(line["documents"])
            rows = np.asarray(index.find_rows(number, start, stop)).astype(np.uint64)
            begin = int(ends[start - 1]) if start else 0
            lengths = np.diff(np.asarray(ends[start:stop]).astype(np.int64), prepend=begin)
            documents[str(line["file"])] = (rows, lengths.astype(np.int64))
            start = stop
        return documents

    def count_tokens(self, file: str, rows: NDArray[np.uint64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return whether each row of a file is a document, and its number of tokens: two arrays of shape `(rows,)`."""
        if file not in self._files:
            raise IntegrityError(f"{self.artifact}: built without {file}. Rebuild this artifact")
        document_numbers, lengths = self._files[file]
        if not len(document_numbers):
            return np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.int64)
        # Clip the positions, because a row after the last document would be out of range. Such a row is then compared
        # with the last document's row, which it never equals.
        positions = np.minimum(np.searchsorted(document_numbers, rows), len(document_numbers) - 1)
        return document_numbers[positions] == rows, lengths[positions]

    def read_ids(self) -> NDArray[np.uint64] | None:
        """Return the ids of the documents, in order; None if documents have no ids."""
        if TokenBinsFacts.from_receipt(self.receipt).document_ids is None:
            return None
        documents = self.receipt.ledger.documents if self.receipt.ledger else 0
        return np.asarray(open_ids(self.directory / IDS, documents))


def _build_metadata(_: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    facts = DocumentsFacts.from_receipt(receipt)
    tokens = sum(counts[3] for counts in facts.sources.values())
    table = [
        {
            "source": source,
            "rows": rows,
            "documents": documents,
            "kept_%": round(100 * documents / rows, 3) if rows else 0.0,
            "tokens": stream,
            "tokens_%": round(100 * stream / tokens, 3) if tokens else 0.0,
        }
        for source, (rows, documents, _, stream) in sorted(facts.sources.items(), key=lambda item: -item[1][3])[:SHOWN]
    ]
    return {
        "rows": facts.rows,
        "kept": facts.kept,
        **{f"dropped_{reason}": count for reason, count in facts.reasons.items()},
        "sources": Table(table),
    }


@dataclass(frozen=True)
class _OpenedDocuments(OpenedArtifact):
    """Document table of a shard, opened for checks."""

    corpus: CorpusDeclaration

    @cached_property
    def facts(self) -> DocumentsFacts:
        """Facts in the receipt; raises IntegrityError if a fact is missing."""
        return DocumentsFacts.from_receipt(self.receipt)


def _plan_shards(corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str]) -> list[_OpenedDocuments]:
    return [_OpenedDocuments(corpus.artifact(DOCUMENTS, partition), store, corpus) for partition in partitions]


def _check_sums(documents: _OpenedDocuments) -> Finding:
    corpus, facts = documents.corpus, documents.facts
    shard = _TokenizedDocuments(corpus, documents.store, documents.artifact.partition or "")
    sums = TableSums(documents.directory, (RETRACTED, DUPLICATE, *corpus.rules) if corpus.selects else ())
    defects = [*sums.find_differences(shard.receipt.sources), *sums.find_id_differences(shard.read_ids())]
    if (facts.rows, facts.kept, facts.reasons) != (sums.rows, sums.kept, dict(sorted(sums.reasons.items()))):
        defects.append("the row counts in the receipt differ from the table")
    return build_verdict(
        (f"{documents.name}: {defect}" for defect in defects),
        f"{count_of(sums.rows, 'row')}: {count_of(sums.kept, 'document')} and "
        f"{count_of(sums.rows - sums.kept, 'dropped row')}, as in the ledger of the token bins for each file.",
        "The tags and the stream were built from different rows, or one of them is damaged. Delete the shards of tags "
        "and documents and rebuild them",
        facts={"rows": sums.rows, "documents": sums.kept, **{f"dropped_{k}": v for k, v in facts.reasons.items()}},
    )


def _check_rebuild(documents: _OpenedDocuments) -> Finding:
    corpus, store, partition = documents.corpus, documents.store, documents.artifact.partition or ""
    recipe = _build_recipe(corpus, store, partition)
    write = partial(_write, corpus, store, partition, recipe)
    defects = compare_rebuild(recipe, store, documents.receipt, documents.directory, write)
    return build_verdict(
        (f"{documents.name}: {defect}" for defect in defects),
        "The table matches its tags, its selection and its stream.",
        REBUILD,
        facts={"rows": documents.facts.rows},
    )


_CHECKS: tuple[Check[_OpenedDocuments], ...] = (
    FILES_INTACT,
    Check(
        "sums_match_ledger",
        "For each file, the row, document, token and dropped-row counts match the shard's ledger. The kept rows "
        "match the stream's documents and ids.",
        _check_sums,
    ),
    Check(
        "rebuild_matches",
        "Joining tags, selection and the stream's index again reproduces the stored table.",
        _check_rebuild,
    ),
)
