"""Queries of the rows of a document table whose shards are Parquet files, for every kind of dataset with such a table.

Entry points: `StoredTable`, `format_rule`, `build_drops`.
"""

import random
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dataprep_assets.curation.budgets.counts import DropCounts, sum_counts
from dataprep_assets.curation.rules import NUMBERS, Rule, find_dropping_rules, match_rules, parse_rule
from dataprep_assets.curation.selection import DUPLICATE, RESERVED
from dataprep_assets.curation.table import Columns, read_joined_tables
from dataprep_assets.curation.table_sums import FILE
from dataprep_assets.engine.trace.document_table import (
    DocumentRows,
    DocumentTable,
    DroppedSample,
    Drops,
    RowDraw,
    RuleDrops,
    Values,
)
from dataprep_assets.engine.trace.histogram import ColumnHistogram, PlottedRule, ValueCounts
from dataprep_assets.engine.yaml.declared_keys import require_known_names
from dataprep_assets.errors import ConfigError, MissingArtifactError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import RETRACTED

if TYPE_CHECKING:
    import pyarrow as pa

_LENGTHS = ("bytes", "tokens")
"""Columns with the length of a row."""
_MAX_EXAMPLES = 10
"""Maximum number of examples of a rule."""
_SAMPLED_SHARDS = 8
"""Maximum number of shards from which the rows of one reason are drawn."""


class StoredTable(DocumentTable):
    """A document table with one Parquet file per partition, whose receipt has the fact `reasons`."""

    reserved: ClassVar[frozenset[str]] = RESERVED
    """Reasons that may drop a row, in addition to the declared ones."""

    def __init__(self, dataset: str, store: ArtifactStore) -> None:
        self.dataset, self.store = dataset, store

    @property
    @abstractmethod
    def types(self) -> Columns:
        """Name → type of its columns, in order."""

    @property
    @abstractmethod
    def partitions(self) -> Sequence[str]:
        """Its partitions, in order."""

    @property
    @abstractmethod
    def splits(self) -> Sequence[str]:
        """The splits that a query may name. Raises ConfigError if no split can be selected."""

    @property
    @abstractmethod
    def rules(self) -> Mapping[str, tuple[bool, Rule]]:
        """Name → whether a rule keeps the matching rows, and the rule."""

    @property
    @abstractmethod
    def duplicate_rule(self) -> str:
        """A phrase about the rows that duplicate detection drops; empty if it is not declared."""

    @property
    @abstractmethod
    def declared_reasons(self) -> Sequence[str]:
        """The reasons that the declaration defines."""

    @abstractmethod
    def find_split(self, partition: str) -> str:
        """Return the split of a partition."""

    @abstractmethod
    def locate(self, partition: str) -> Artifact:
        """Return the artifact of a partition's table."""

    @abstractmethod
    def explain_missing(self, artifact: Artifact) -> str:
        """Return the message for a table that is not built."""

    @property
    def columns(self) -> Sequence[str]:
        return list(self.types)

    @property
    def numeric_columns(self) -> Sequence[str]:
        return [name for name, kind in self.types.items() if kind in NUMBERS]

    @property
    def plotted_columns(self) -> Sequence[str]:
        ruled_columns = {column for _, rule in self.rules.values() for column in rule.thresholds}
        return [name for name in self.numeric_columns if name in {*_LENGTHS, *ruled_columns}]

    def reasons(self) -> Mapping[str, int]:
        counts = Counter[str]()
        for receipt in self.store.receipts([self.locate(partition) for partition in self.partitions]):
            counts.update({} if receipt is None else receipt.facts["reasons"])
        return dict(counts.most_common())

    def sample_drops(self, count: int, seed: int = 0) -> Sequence[DroppedSample]:
        import pyarrow.compute as pc

        draws: dict[str, RowDraw] = {}
        for partition, reasons in self._choose_sampled_shards(count, seed).items():
            for piece in read_joined_tables([self.find_file(partition)]):
                for reason in reasons:
                    if (matches := piece.filter(pc.equal(piece["reason"], reason))).num_rows:
                        draws.setdefault(reason, RowDraw(count, seed)).add(matches)
        rules = self.rules
        phrases = {name: format_rule(*rule) for name, rule in rules.items()} | {DUPLICATE: self.duplicate_rule}
        return [
            DroppedSample(
                reason=reason,
                drops=phrases.get(reason, ""),
                columns=sorted(rules[reason][1].columns) if reason in rules else (),
                count=total,
                rows=draws[reason].list_rows() if reason in draws else (),
            )
            for reason, total in self.reasons().items()
            if total
        ]

    def read_rule_values(self, partition: str, rows: Collection[tuple[str, int]]) -> Mapping[tuple[str, int], Values]:
        import pyarrow as pa
        import pyarrow.compute as pc

        names = sorted({"source"}.union(*(rule.columns for _, rule in self.rules.values())))
        if not self.rules or self.store.receipt(self.locate(partition)) is None:
            return {}
        values, numbers = dict[tuple[str, int], Values](), pa.array([row for _, row in rows], pa.int64())
        for piece in read_joined_tables([self.find_file(partition)], [*names, "file", "row"]):
            # First select by the row only, because most files have different rows in a sample.
            for row in piece.filter(pc.is_in(piece["row"].cast(pa.int64()), numbers)).to_pylist():
                if (location := (row.pop("file"), row.pop("row"))) in rows:
                    values[location] = {name: row[name] for name in names if name in row}
        return values

    def _choose_sampled_shards(self, count: int, seed: int) -> Mapping[str, Sequence[str]]:
        """Return the shards to read, in order, each with the reasons whose rows are drawn from it."""
        partitions = list(self.partitions)
        receipts = self.store.receipts([self.locate(partition) for partition in partitions])
        counts = {
            partition: receipt.facts["reasons"]
            for partition, receipt in zip(partitions, receipts, strict=True)
            if receipt is not None
        }
        shuffled = random.Random(seed).sample(list(counts), len(counts))
        reasons_by_shard = defaultdict[str, list[str]](list)
        for reason in sorted({reason for shard_counts in counts.values() for reason in shard_counts}):
            rows, shards = 0, [partition for partition in shuffled if counts[partition].get(reason)]
            for partition in shards[:_SAMPLED_SHARDS]:
                if rows < count:
                    reasons_by_shard[partition].append(reason)
                    rows += counts[partition][reason]
        return {partition: reasons_by_shard[partition] for partition in partitions if partition in reasons_by_shard}

    def rows(
        self,
        *,
        where: str | None = None,
        reason: str | None = None,
        kept: bool | None = None,
        splits: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> DocumentRows:
        conditions = {} if where is None else {"where": parse_rule(where, self.types, "--where")}
        if reason is not None:
            declared_reasons = self.declared_reasons
            if reason not in (reasons := {*declared_reasons, *self.reserved, *self.reasons()}):
                names = ", ".join([*declared_reasons, *sorted(reasons - set(declared_reasons))])
                raise ConfigError(f"--reason: unknown reason {reason!r}. Available: {names}")
            conditions["reason"] = parse_rule(f"reason == {reason!r}", self.types, "--reason")
        if kept is not None:
            conditions["kept"] = parse_rule("kept" if kept else "not kept", self.types, "kept")
        if splits is not None:
            require_known_names("split", splits, list(self.splits))
        require_known_names("column", columns or (), self.columns)
        partitions = [
            partition for partition in self.partitions if splits is None or self.find_split(partition) in splits
        ]
        return DocumentRows(columns=columns, read=partial(self._read_rows, partitions, conditions))

    def _read_rows(
        self, partitions: Sequence[str], rules: Mapping[str, Rule], columns: Sequence[str] | None
    ) -> "Iterator[pa.Table]":
        """Yield the given columns of the partitions' rows that match every rule, in pieces."""
        needed = {*(columns or ())}.union(*(rule.columns for rule in rules.values()))
        for partition in partitions:
            for piece in read_joined_tables([self.find_file(partition)], None if columns is None else sorted(needed)):
                # A column is missing if it was declared after the table was built.
                if missing_columns := sorted(needed - {*piece.column_names}):
                    raise MissingArtifactError(
                        f"{self.locate(partition)}: no column {missing_columns[0]!r} yet. Run `dataprep run "
                        f"{self.dataset}`"
                    )
                if rules:
                    piece = piece.filter(np.logical_and.reduce(list(match_rules(piece, rules).values())))
                yield piece if columns is None else piece.select(list(columns))

    def histogram(
        self,
        column: str,
        *,
        where: str | None = None,
        reason: str | None = None,
        splits: Sequence[str] | None = None,
    ) -> ColumnHistogram:
        require_known_names("numeric column", [column], self.numeric_columns)
        values, missing = [np.zeros(0)], 0
        pieces, rules = self._read_plotted(column, where=where, reason=reason, splits=splits)
        for piece in pieces:
            numbers = piece.cast("double", safe=False).to_numpy()
            is_finite = np.isfinite(numbers)
            values.append(numbers[is_finite])
            missing += int(np.count_nonzero(~is_finite))
        return ColumnHistogram(column=column, values=np.sort(np.concatenate(values)), missing=missing, rules=rules)

    def count_values(
        self,
        column: str,
        *,
        where: str | None = None,
        reason: str | None = None,
        splits: Sequence[str] | None = None,
    ) -> ValueCounts:
        require_known_names("column", [column], self.columns)
        counts = Counter[Any]()
        pieces, rules = self._read_plotted(column, where=where, reason=reason, splits=splits)
        for piece in pieces:
            counts.update({row["values"]: row["counts"] for row in piece.value_counts().to_pylist()})
        missing = counts.pop(None, 0)
        # Sort by value first, because equal counts keep this order.
        counts_by_value = dict(sorted(sorted(counts.items()), key=lambda item: -item[1]))
        return ValueCounts(column=column, counts=counts_by_value, missing=missing, rules=rules)

    def _read_plotted(
        self, column: str, *, where: str | None, reason: str | None, splits: Sequence[str] | None
    ) -> "tuple[list[pa.ChunkedArray], list[PlottedRule]]":
        """Return the values of a column in pieces, without bad records, and the rules over the column."""
        import pyarrow.compute as pc

        rules = self.rules
        plotted = {name: rule for name, (_, rule) in rules.items() if column in rule.columns}
        columns = {column, "bytes", "reason"}.union(*(rule.columns for _, rule in rules.values()))
        pieces, drop_counts, earlier_counts = list["pa.ChunkedArray"](), Counter[str](), Counter[str]()
        for piece in self.rows(where=where, reason=reason, splits=splits, columns=sorted(columns)).tables():
            # Only rejected records have no size. They are no documents, so no rule drops them.
            piece = piece.filter(piece["bytes"].is_valid())
            pieces.append(piece[column])
            if plotted:
                rule_numbers = find_dropping_rules(piece, rules)
                # Retraction ranks before rules, as when the rules are applied.
                rule_numbers[pc.equal(piece["reason"], RETRACTED).fill_null(False).to_numpy()] = -1
                for name, is_match in match_rules(piece, plotted).items():
                    position = list(rules).index(name)
                    drop_counts[name] += int(np.count_nonzero(rule_numbers == position))
                    is_dropped_earlier = (rule_numbers >= 0) & (rule_numbers < position)
                    earlier_counts[name] += int(np.count_nonzero(is_dropped_earlier & (is_match ^ rules[name][0])))
        return pieces, [
            PlottedRule(
                rule=name,
                drops=format_rule(*rules[name]),
                thresholds=rule.thresholds.get(column, ()),
                documents=drop_counts[name],
                dropped_earlier=earlier_counts[name],
            )
            for name, rule in plotted.items()
        ]

    def find_file(self, partition: str) -> Path:
        """Return the file of a partition's table. Raises MissingArtifactError if it is not built."""
        artifact = self.locate(partition)
        if self.store.receipt(artifact) is None:
            raise MissingArtifactError(self.explain_missing(artifact))
        return self.store.local(artifact) / FILE


def format_rule(keeps: bool, rule: Rule) -> str:
    """Return the expression that is true for the rows that a rule drops."""
    return f"not ({rule.text})" if keeps else rule.text


def describe_duplicates(similarity: float, noun: str) -> str:
    """Return a phrase about the rows that duplicate detection drops; `noun` is the noun for a row."""
    if similarity == 1:
        return f"equal to a kept {noun}"
    return f"near-duplicate of a kept {noun}, with a similarity of at least {similarity:g}"


def add_examples(
    examples: Mapping[str, list[str]], files: Sequence[Any], rows: Sequence[Any], reasons: Sequence[str | None]
) -> None:
    """Add rows that a rule drops to the rule's examples, up to the maximum, as `file:row`."""
    for position, reason in enumerate(reasons):
        if reason is not None and len(examples[reason]) < _MAX_EXAMPLES:
            examples[reason].append(f"{files[position]}:{rows[position]}")


def build_drops(
    rule_texts: Mapping[str, str],
    counts: DropCounts,
    examples: Mapping[str, Sequence[str]],
    *,
    untagged: int,
    over_budget: Sequence[str],
) -> Drops:
    """Return the drops of each rule, in order; `rule_texts` has the rules' expressions."""
    documents, size = sum_counts(counts.sources.values())
    return Drops(
        documents=documents,
        bytes=size,
        sources={source: documents for source, (documents, _) in counts.sources.items()},
        rules=[_count_drops(name, text, counts, examples[name]) for name, text in rule_texts.items()],
        untagged=untagged,
        over_budget=over_budget,
    )


def _count_drops(name: str, drops: str, counts: DropCounts, examples: Sequence[str]) -> RuleDrops:
    counts_by_source = {source: by_rule[name] for source, by_rule in counts.by_rule.items() if name in by_rule}
    documents, size = sum_counts(counts_by_source.values())
    by_source = Counter({source: documents for source, (documents, _) in counts_by_source.items()})
    return RuleDrops(
        rule=name,
        drops=drops,
        documents=documents,
        bytes=size,
        by_source=dict(by_source.most_common()),
        examples=examples,
    )
