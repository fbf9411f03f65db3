"""Counts of the tokens that the steps of a schedule read: in all, and per source, domain and language.

The tokens of each document come from the schedule (`seen.count_tokens_read`). Domains and languages come from the
document tables of the sources (`<dataset>/documents`), which are joined by source file and row. Tokens without a domain
or language are counted under `NO_VALUE` or `NOT_RECORDED`, so the counts of each table sum to the total.

Entry points: `count_reads`, `find_tables`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.table import read_joined_tables, split_by_file
from dataprep_assets.formats.document_index import TOKEN_BINS
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.serving.sampler.seen import (
    SeenLedger,
    ShardReads,
    count_covered_tokens,
    count_tokens_read,
    merge_spans,
)
from dataprep_assets.serving.sampler.training_data import TrainingData
from dataprep_assets.serving.sampler.training_schedule import Source, SourceShard

NO_VALUE, NOT_RECORDED = "no value", "not recorded"
"""Labels of tokens whose row has no value, and of tokens for which no table has the row and the column."""
HOST, LANGUAGE = "host", "language"
# Repeat the names of a corpus's artifact and file, because this package must not import the corpus package.
_DOCUMENTS, _TABLE = "documents", "documents.parquet"


@dataclass(kw_only=True)
class ReadCounts:
    """Counts of data that steps read.

    Attributes:
        tokens: Tokens read; a token that is read twice counts twice.
        distinct_tokens: Tokens read, without repetitions.
        documents: Documents with at least one token that was read.
    """

    tokens: int = 0
    distinct_tokens: int = 0
    documents: int = 0

    def add(self, tokens: int, distinct_tokens: int, documents: int) -> None:
        """Add counts to these counts."""
        self.tokens += tokens
        self.distinct_tokens += distinct_tokens
        self.documents += documents


CountsByLabel = dict[str, ReadCounts]


@dataclass(kw_only=True)
class SourceReads:
    """Counts of a source: in all, and per domain and language."""

    dataset: str
    total: ReadCounts = field(default_factory=ReadCounts)
    domains: CountsByLabel = field(default_factory=dict)
    languages: CountsByLabel = field(default_factory=dict)


@dataclass(kw_only=True)
class ScheduleReads:
    """Counts of a schedule up to a step: in all, and per source. A document of several sources counts once in all."""

    steps: int
    total: ReadCounts = field(default_factory=ReadCounts)
    languages: CountsByLabel = field(default_factory=dict)
    sources: dict[str, SourceReads] = field(default_factory=dict)


def find_tables(data: TrainingData, store: ArtifactStore) -> dict[Artifact, Receipt]:
    """Return the document tables of the schedule's shards, in the order of their names, with their receipts."""
    shards = {
        Artifact(dataset=source.dataset, name=_DOCUMENTS, partition=shard.name) for source, shard in _list_shards(data)
    }
    tables = sorted(shards, key=str)
    receipts = store.receipts(tables)
    return {table: receipt for table, receipt in zip(tables, receipts, strict=True) if receipt is not None}


def _list_shards(data: TrainingData) -> Iterator[tuple[Source, SourceShard]]:
    for revision in data.schedule.revisions:
        for source in revision.sources:
            yield from ((source, shard) for shard in source.shards)


class _Labels:
    """Labels as numbers. Known labels have greater numbers than unknown ones."""

    def __init__(self) -> None:
        self.names = [NOT_RECORDED, NO_VALUE]
        self._numbers: dict[str, int] = {}

    def encode(self, column: Any) -> NDArray[np.int64]:
        """Return the number of each value of an Arrow column of strings."""
        encoded = column.combine_chunks().dictionary_encode()
        numbers = [self._number(str(value)) for value in encoded.dictionary.to_pylist()]
        # Null values have no index in the dictionary.
        indices = encoded.indices.fill_null(len(numbers)).to_numpy()
        return np.array([*numbers, self.names.index(NO_VALUE)], np.int64)[indices]

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self.names)
            self.names.append(name)
        return self._numbers[name]


@dataclass(frozen=True, kw_only=True)
class _FileReads:
    """Documents of a source file, in ascending order of their rows; each array has the shape `(documents,)`.

    Attributes:
        rows: Rows of the documents.
        tokens: Tokens read, at least 1.
        distinct_tokens: Tokens read, without repetitions.
        hosts, languages: Numbers of labels.
    """

    rows: NDArray[np.int64]
    tokens: NDArray[np.int64]
    distinct_tokens: NDArray[np.int64]
    hosts: NDArray[np.int64]
    languages: NDArray[np.int64]

    @classmethod
    def join(cls, parts: "list[_ShardPart]") -> "_FileReads":
        """Return the documents of several shards. A row that is in several shards becomes one document."""
        rows, documents = np.unique(np.concatenate([part.rows for part in parts]), return_inverse=True)
        columns = {"tokens": np.zeros(len(rows), np.int64)}
        np.add.at(columns["tokens"], documents, np.concatenate([part.reads.tokens for part in parts]))
        # Take the maximum, because a label that a table has is greater than the number of an unknown label.
        lengths, columns["hosts"], columns["languages"] = (np.zeros(len(rows), np.int64) for _ in range(3))
        np.maximum.at(lengths, documents, np.concatenate([part.lengths for part in parts]))
        np.maximum.at(columns["hosts"], documents, np.concatenate([part.hosts for part in parts]))
        np.maximum.at(columns["languages"], documents, np.concatenate([part.languages for part in parts]))
        # Move the spans of each shard to the positions that the documents have if all of the file's documents follow
        # each other, so that the spans of several shards can be merged.
        ends = np.cumsum(lengths)
        moved = [part.move_spans((ends - lengths)[np.searchsorted(rows, part.rows)]) for part in parts]
        starts, stops = merge_spans(*(np.concatenate(columns) for columns in zip(*moved, strict=True)))
        columns["distinct_tokens"] = count_covered_tokens(ends, starts, stops)
        read = columns["tokens"] > 0
        return cls(rows=rows[read], **{name: column[read] for name, column in columns.items()})

    def add_to(self, total: ReadCounts) -> None:
        """Add the documents to counts."""
        total.add(int(self.tokens.sum()), int(self.distinct_tokens.sum()), len(self.rows))

    def add_by_label(self, counts: CountsByLabel, numbers: NDArray[np.int64], labels: _Labels) -> None:
        """Add the documents to counts per label."""
        for number in np.unique(numbers).tolist():
            own = numbers == number
            counts.setdefault(labels.names[number], ReadCounts()).add(
                int(self.tokens[own].sum()), int(self.distinct_tokens[own].sum()), int(own.sum())
            )


@dataclass(frozen=True, kw_only=True)
class _ShardPart:
    """The documents of a source file that follow each other in a shard; each array has the shape `(documents,)`.

    Attributes:
        rows: Rows of the documents in the file.
        lengths: Tokens of the documents.
        reads: The tokens that were read, with spans that begin at the first document's first token.
        hosts, languages: Numbers of labels.
    """

    rows: NDArray[np.int64]
    lengths: NDArray[np.int64]
    reads: ShardReads
    hosts: NDArray[np.int64]
    languages: NDArray[np.int64]

    def move_spans(self, targets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the spans that were read, divided at documents, if each document began at its target."""
        starts, stops = self.reads.starts, self.reads.stops
        ends = np.cumsum(self.lengths)
        first_documents = np.searchsorted(ends, starts, side="right")
        counts = np.searchsorted(ends, stops - 1, side="right") - first_documents + 1
        # Number the pieces of each span from 0.
        piece_numbers = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        documents = np.repeat(first_documents, counts) + piece_numbers
        begins = ends - self.lengths
        piece_starts = np.maximum(np.repeat(starts, counts), begins[documents])
        piece_stops = np.minimum(np.repeat(stops, counts), ends[documents])
        shift, has_tokens = (targets - begins)[documents], piece_starts < piece_stops
        return (piece_starts + shift)[has_tokens], (piece_stops + shift)[has_tokens]


class _Tables:
    """Document tables of a schedule's shards."""

    def __init__(self, data: TrainingData, store: ArtifactStore, hosts: _Labels, languages: _Labels) -> None:
        self._store, self._tables, self._labels = store, find_tables(data, store), {HOST: hosts, LANGUAGE: languages}
        # Keep only a few tables, because the documents are counted file by file, and a file is in few shards.
        self._open = lru_cache(maxsize=4)(self._read)

    def find_labels(
        self, dataset: str, shard: SourceShard, file: str, sha256: str, rows: NDArray[np.int64]
    ) -> dict[str, NDArray[np.int64]]:
        """Return the numbers of the labels of some rows of a file, by column."""
        numbers_by_column = {name: np.zeros(len(rows), np.int64) for name in self._labels}
        table = Artifact(dataset=dataset, name=_DOCUMENTS, partition=shard.name)
        if not self._describes(table, shard, file, sha256):
            return numbers_by_column
        table_rows, columns = self._open(table).get(file, (np.empty(0, np.int64), {}))
        positions = np.minimum(np.searchsorted(table_rows, rows), len(table_rows) - 1)
        if len(table_rows):
            is_present = table_rows[positions] == rows
            for name, numbers in columns.items():
                numbers_by_column[name] = np.where(is_present, numbers[positions], 0)
        return numbers_by_column

    def _describes(self, table: Artifact, shard: SourceShard, file: str, sha256: str) -> bool:
        """Return whether a table describes the file as the schedule read it.

        The table may be of a later version of the shard, for example after a retraction, if the file is the same.
        """
        if (receipt := self._tables.get(table)) is None:
            return False
        content = receipt.inputs.get(f"{TOKEN_BINS}/{table.partition}")
        if content == shard.content:
            return True
        bins = self._store.receipt(Artifact(dataset=table.dataset, name=TOKEN_BINS, partition=table.partition))
        if bins is None or bins.content != content:
            return False
        return any((line["file"], line.get("sha256")) == (file, sha256) for line in bins.sources)

    def _read(self, table: Artifact) -> dict[str, tuple[NDArray[np.int64], dict[str, NDArray[np.int64]]]]:
        """Return file → its rows, ascending, and the numbers of their labels by column."""
        path = self._store.local(table, [_TABLE]) / _TABLE
        parts: dict[str, list[Any]] = {}
        for piece in read_joined_tables([path], ["file", "row", *self._labels]):
            for file, run in split_by_file(piece):
                columns = {n: labels.encode(run[n]) for n, labels in self._labels.items() if n in run.column_names}
                parts.setdefault(file, []).append((run["row"].to_numpy().astype(np.int64), columns))
        return {
            file: (
                np.concatenate([rows for rows, _ in runs]),
                {name: np.concatenate([columns[name] for _, columns in runs]) for name in runs[0][1]},
            )
            for file, runs in parts.items()
        }


def count_reads(data: TrainingData, store: ArtifactStore, until: int) -> ScheduleReads:
    """Count the data that the steps before `until` read.

    Args:
        data: The schedule.
        store: Where the document tables of its sources are stored.
        until: The first step that is not counted.
    """
    ledger, hosts, languages = SeenLedger(data), _Labels(), _Labels()
    tables, counts = _Tables(data, store, hosts, languages), ScheduleReads(steps=until)
    reads_by_shard = count_tokens_read(ledger, until)
    for (dataset, file, sha256), uses in sorted(_list_files(ledger, reads_by_shard).items()):
        parts_by_source: dict[str, list[_ShardPart]] = {}
        for source, content, number, start, stop in uses:
            if start == stop:
                continue
            shard = ledger.shards[content][1]
            rows = np.asarray(ledger.rows(content)[1].find_rows(number, start, stop)).astype(np.int64)
            all_ends = data.open_document_ends(shard)
            ends = np.asarray(all_ends[start:stop], np.int64)
            first_token = int(all_ends[start - 1]) if start else 0
            labels = tables.find_labels(dataset, shard, file, sha256, rows)
            parts_by_source.setdefault(source, []).append(
                _ShardPart(
                    rows=rows,
                    lengths=np.diff(ends, prepend=first_token),
                    reads=reads_by_shard[source, content].select(start, stop, first_token, int(ends[-1])),
                    hosts=labels[HOST],
                    languages=labels[LANGUAGE],
                )
            )
        for source, parts in parts_by_source.items():
            reads = _FileReads.join(parts)
            own = counts.sources.setdefault(source, SourceReads(dataset=dataset))
            reads.add_to(own.total)
            reads.add_by_label(own.domains, reads.hosts, hosts)
            reads.add_by_label(own.languages, reads.languages, languages)
        if not parts_by_source:
            continue
        reads = _FileReads.join([part for parts in parts_by_source.values() for part in parts])
        reads.add_to(counts.total)
        reads.add_by_label(counts.languages, reads.languages, languages)
    return counts


def _list_files(
    ledger: SeenLedger, shards_by_source: Iterable[tuple[str, str]]
) -> dict[tuple[str, str, str], list[tuple[str, str, int, int, int]]]:
    """Return (dataset, file, SHA-256) → its documents: source, shard, number of the file, first document and stop."""
    uses: dict[tuple[str, str, str], list[tuple[str, str, int, int, int]]] = {}
    for source, content in shards_by_source:
        lines = ledger.get_shard_facts(content)["sources"]
        stops = list(accumulate(int(line["documents"]) for line in lines))
        for number, (line, stop) in enumerate(zip(lines, stops, strict=True)):
            key = (ledger.shards[content][0], str(line["file"]), str(line.get("sha256")))
            uses.setdefault(key, []).append((source, content, number, stop - int(line["documents"]), stop))
    return uses
