"""Queries of a document table: the documents that each rule drops, and the rows that match an expression.

A layer implements `DocumentTable` (`Dataset.documents`). `dataprep documents`, `run --dry-run` and `retract --where`
use it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from dataprep_assets.engine.privacy import Privacy
from dataprep_assets.errors import ConfigError, SourceError, count_of
from dataprep_assets.table import align_rows
from dataprep_assets.tokenization.document_ids import mix_bits

if TYPE_CHECKING:
    import pyarrow as pa

    from dataprep_assets.engine.trace.histogram import ColumnHistogram, ValueCounts


Values = Mapping[str, Any]
"""Column → value, for one row."""


@dataclass(frozen=True, kw_only=True)
class RuleDrops:
    """Documents that are dropped for one reason: a currently declared rule, `duplicate` or `retracted`.

    Attributes:
        rule: The rule's name, `duplicate` (in the last search) or `retracted`.
        drops: The rule's expression.
        documents: Number of dropped documents.
        bytes: Their bytes of text.
        by_source: Source → number of its dropped documents, in descending order.
        examples: Up to ten of these documents, as `file:row`; empty for a sensitive dataset.
    """

    rule: str
    drops: str
    documents: int
    bytes: int
    by_source: Mapping[str, int]
    examples: Sequence[str] = field(default=())


@dataclass(frozen=True, kw_only=True)
class Drops:
    """Documents that are dropped from the tagged shards.

    Attributes:
        documents: Number of documents in these shards.
        bytes: Bytes of text in these shards.
        sources: Source → number of its documents.
        rules: The documents that each rule drops.
        untagged: Number of shards that are not tagged yet.
        over_budget: A sentence for each rule and source that drops more than the declared budget.
    """

    documents: int
    bytes: int
    sources: Mapping[str, int]
    rules: Sequence[RuleDrops]
    untagged: int = 0
    over_budget: Sequence[str] = ()

    def lines(self, privacy: Privacy) -> Iterator[str]:
        """Yield a table of the rules, then each rule's drops by source, with counts in their public form."""
        head = ("rule", "documents", "", "bytes", "", "drops")
        rows = [
            (
                rule_drops.rule,
                privacy.public_count(rule_drops.documents),
                privacy.public_share(rule_drops.documents, self.documents),
                *(
                    # Omit the number of bytes, because it would reveal how few documents the rule drops.
                    ("", "")
                    if privacy.hides(rule_drops.documents)
                    else (privacy.public_count(rule_drops.bytes), privacy.public_share(rule_drops.bytes, self.bytes))
                ),
                rule_drops.drops,
            )
            for rule_drops in self.rules
        ]
        yield from align_rows([head, *rows], right=range(1, 5))
        for rule in self.rules:
            shares, counts = [], privacy.public_counts(list(rule.by_source.values()))
            for (source, number), count in list(zip(rule.by_source.items(), counts, strict=True))[:8]:
                share = privacy.public_share(number, self.sources[source])
                text = f"{count:,}" if isinstance(count, int) else count
                shares.append(f"{source} {text}" + (f" ({share})" if share else ""))
            # Omit the sources if all files are directly in the source folder, because their only source is then the
            # nameless `.`.
            if shares and list(self.sources) != ["."]:
                hidden_count = len(rule.by_source) - len(shares)
                yield f"{rule.rule}: by source: {', '.join(shares)}" + (
                    f" and {count_of(hidden_count, 'more source')}" if hidden_count > 0 else ""
                )
            if rule.examples:
                yield f"{rule.rule}: for example, {', '.join(rule.examples)}"
        for text in self.over_budget:
            blocked = "over the budget, so the check `within_budget` will fail"
            yield privacy.public_text(f"{blocked}: {text}", blocked)
        if self.untagged and not privacy.closed:
            singular = "shard is not counted until `dataprep run` computes its columns"
            plural = "shards are not counted until `dataprep run` computes their columns"
            yield count_of(self.untagged, singular, plural)

    def to_json(self, privacy: Privacy) -> dict[str, Any]:
        """Return the drops as plain builtins, with counts in their public form."""
        rules = []
        for rule in self.rules:
            counts = privacy.public_row({"documents": rule.documents, "bytes": rule.bytes})
            by_source = _format_counts(privacy, rule.by_source)
            rules.append({**vars(rule), **counts, "by_source": by_source, "examples": list(rule.examples)})
        totals = privacy.public_row({"documents": self.documents, "bytes": self.bytes})
        return {
            **totals,
            "sources": _format_counts(privacy, self.sources),
            "rules": rules,
            "untagged": privacy.public_value(self.untagged),
        } | {"over_budget": [privacy.public_text(text, "over the budget") for text in self.over_budget]}


def _format_counts(privacy: Privacy, counts: Mapping[str, int]) -> dict[str, int | str]:
    return dict(zip(counts, privacy.public_counts(list(counts.values())), strict=True))


@dataclass(frozen=True, kw_only=True)
class DocumentRows:
    """Some rows of a document table, in the order of the source. Files are read during iteration.

    Attributes:
        columns: Their columns, in order; None for all columns of each table.
        read: Yields the rows with the given columns, in tables of at most one row group.
    """

    columns: Sequence[str] | None
    read: "Callable[[Sequence[str] | None], Iterator[pa.Table]]" = field(repr=False)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each row: column → value."""
        for table in self.tables():
            yield from table.to_pylist()

    def tables(self) -> "Iterator[pa.Table]":
        """Yield the rows as Arrow tables of at most 65,536 rows."""
        return self.read(self.columns)

    def count(self) -> int:
        """Return the number of rows. Only the columns of the expression are read."""
        return sum(table.num_rows for table in self.read(["row"]))

    def sample(self, count: int, seed: int = 0) -> list[dict[str, Any]]:
        """Return `count` rows drawn at random, or all rows if there are fewer, sorted by file and row.

        The same rows are drawn for the same seed, for any division of the files into shards. Raises ConfigError for a
        count below 1.
        """
        if count < 1:
            raise ConfigError(f"a sample must have at least one row, not {count:,}. Raise `count`")
        # Also read the columns that identify a row, because the drawn rows depend on them.
        columns, draw = self.columns, RowDraw(count, seed)
        for table in self.read(None if columns is None else list(dict.fromkeys([*columns, "file", "row"]))):
            draw.add(table)
        return draw.list_rows(columns)


class RowDraw:
    """A random sample of rows of Arrow tables, which are added one after the other.

    The rows depend on the seed, the file and the row only, so the order and the division of the tables do not matter.
    """

    def __init__(self, count: int, seed: int = 0) -> None:
        self._count, self._seed = count, seed
        self._tables, self._limit = list["pa.Table"](), np.uint64(np.iinfo(np.uint64).max)

    def add(self, table: "pa.Table") -> None:
        """Add rows, which must have the columns `file` and `row`."""
        import pyarrow as pa

        draws = _draw_numbers(table, self._seed)
        positions = np.flatnonzero(draws <= self._limit)
        self._tables.append(table.take(positions).append_column(_DRAW, pa.array(draws[positions])))
        # Keep only the rows with the smallest numbers, so that the memory does not depend on the number of rows.
        if sum(drawn_table.num_rows for drawn_table in self._tables) > self._count:
            order = [(_DRAW, "ascending"), ("file", "ascending"), ("row", "ascending")]
            self._tables = [_join_tables(self._tables).sort_by(order).slice(0, self._count)]
            self._limit = np.uint64(self._tables[0][_DRAW][-1].as_py())

    def list_rows(self, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Return the drawn rows with these columns, or with all, sorted by file and row."""
        if not self._tables:
            return []
        sample = _join_tables(self._tables).sort_by([("file", "ascending"), ("row", "ascending")])
        sample = sample.drop_columns([_DRAW]) if columns is None else sample.select(list(columns))
        rows: list[dict[str, Any]] = sample.to_pylist()
        return rows


@dataclass(frozen=True, kw_only=True)
class DroppedSample:
    """A sample of the rows that were dropped for one reason.

    Attributes:
        reason: The reason: a rule, `duplicate`, `retracted`, or the defect of a bad record.
        drops: The rule's expression, or a phrase for `duplicate`; empty for other reasons.
        columns: The columns that the rule reads.
        count: Number of all rows that were dropped for this reason.
        rows: The drawn rows, with all columns. Rows of the same file are consecutive.
    """

    reason: str
    drops: str
    columns: Sequence[str]
    count: int
    rows: Sequence[Mapping[str, Any]] = field(repr=False)


_DRAW = "random number"
"""Name of the column with the random numbers; no column of a document table has a space in its name."""


def _join_tables(tables: "Sequence[pa.Table]") -> "pa.Table":
    import pyarrow as pa

    # Fill missing columns with null, because a table built before the declaration's last edit may have other columns.
    return pa.concat_tables(tables, promote_options="default")


def _draw_numbers(table: "pa.Table", seed: int) -> NDArray[np.uint64]:
    """Return a random number for each row, which depends only on the seed, the file and the row: shape `(rows,)`."""
    files = table["file"].combine_chunks().dictionary_encode()
    file_hashes = [xxhash.xxh3_64_intdigest(f"{seed}/{file}".encode()) for file in files.dictionary.to_pylist()]
    numbers: NDArray[np.uint64] = np.array(file_hashes, np.uint64)[files.indices.to_numpy()]
    return mix_bits(numbers + table["row"].to_numpy().astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def build_changed_error(file: str, dataset: str) -> SourceError:
    """Return the error for a source file that differs from the rows of the table."""
    return SourceError(
        f"{file}: changed since the document table was built. Run `dataprep run {dataset}`", relpath=file
    )


@contextmanager
def translate_read_errors(file: str, dataset: str) -> Iterator[None]:
    """Convert an OSError that is raised while a text is read from a source file to SourceError."""
    try:
        yield
    except OSError as error:
        raise SourceError(
            f"{file}: the text cannot be read: {error.strerror or error}. Restore the file, or run `dataprep run "
            f"{dataset}`",
            relpath=file,
        ) from error


class DocumentTable(ABC):
    """The document table of a dataset."""

    id_key: ClassVar[str] = "document.id_key"
    """Key of the declaration that gives ids to the documents of a sensitive dataset."""

    @property
    @abstractmethod
    def columns(self) -> Sequence[str]:
        """Names of its columns, in order."""

    @property
    @abstractmethod
    def numeric_columns(self) -> Sequence[str]:
        """Names of its columns with numbers, in order."""

    @property
    @abstractmethod
    def plotted_columns(self) -> Sequence[str]:
        """Names of the numeric columns that describe the dataset: lengths, and the columns that rules compare."""

    @abstractmethod
    def drops(self) -> Drops | None:
        """Return the documents that the current rules and duplicate detection drop from the tagged shards.

        Returns None if the dataset has neither rules nor duplicate detection.
        """

    def unprotected(self) -> Sequence[str]:
        """Return a sentence for each benchmark with items that decontamination does not search for."""
        return ()

    @abstractmethod
    def reasons(self) -> Mapping[str, int]:
        """Return each reason for dropped rows in the finished tables → number of rows, in descending order."""

    @abstractmethod
    def sample_drops(self, count: int, seed: int = 0) -> Sequence[DroppedSample]:
        """Return about `count` random rows for each reason, the most frequent reason first.

        Rows are drawn from a few shards per reason. Raises MissingArtifactError if a shard has no table yet.
        """

    @abstractmethod
    def read_rule_values(self, partition: str, rows: Collection[tuple[str, int]]) -> Mapping[tuple[str, int], Values]:
        """Return the values that the rules read, for some rows of a shard: file and row → column → value.

        The mapping is empty if there are no rules, or if the shard has no table yet.
        """

    def find_benchmark_item(self, name: str) -> Mapping[str, str]:
        """Return the texts of a benchmark's item by their place in it, given the value of the column `benchmark`.

        The mapping is empty if there is no such item. Raises ConfigError if the benchmark's file cannot be read.
        """
        return {}

    @abstractmethod
    def rows(
        self,
        *,
        where: str | None = None,
        reason: str | None = None,
        kept: bool | None = None,
        splits: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> DocumentRows:
        """Return rows of the finished tables, in the order of the source.

        Args:
            where: An expression over the columns, as in a rule.
            reason: Only rows that were dropped for this reason.
            kept: Only rows that were kept, or only those that were not.
            splits: Only rows of these splits.
            columns: Only these columns, in this order.

        Raises ConfigError for an invalid expression, and for a reason, split or column that the dataset does not have.
        Iteration raises MissingArtifactError if a shard has no table yet.
        """

    @abstractmethod
    def histogram(
        self,
        column: str,
        *,
        where: str | None = None,
        reason: str | None = None,
        splits: Sequence[str] | None = None,
    ) -> "ColumnHistogram":
        """Return the histogram of a numeric column of the rows that `rows` returns, without bad records.

        Reads the whole column into memory. Raises ConfigError for a column without numbers, and the errors of `rows`.
        """

    @abstractmethod
    def count_values(
        self,
        column: str,
        *,
        where: str | None = None,
        reason: str | None = None,
        splits: Sequence[str] | None = None,
    ) -> "ValueCounts":
        """Return how often each value of a column occurs in the rows that `rows` returns, without bad records.

        Reads the whole column into memory. Raises ConfigError for an unknown column, and the errors of `rows`.
        """

    @abstractmethod
    def add_texts(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield rows with all columns, each with its text from the source as `text`.

        Args:
            rows: The rows. Rows of the same file are consecutive and in ascending order.

        Raises SourceError if a source file is missing, or has changed since the table was built.
        """
