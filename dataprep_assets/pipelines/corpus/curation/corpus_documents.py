"""Queries of a corpus's document table, answered from its finished tags and tables."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dataprep_assets.curation.rules import NUMBERS, Rule, find_dropping_rules, match_rules, parse_rule
from dataprep_assets.curation.selection import DUPLICATE, RESERVED, describe_bad_reason, describe_reason
from dataprep_assets.curation.table import read_joined_tables
from dataprep_assets.engine.trace.document_table import DocumentRows, DocumentTable, Drops, RuleDrops
from dataprep_assets.engine.trace.histogram import ColumnHistogram, PlottedRule
from dataprep_assets.engine.yaml.declared_keys import require_known_names
from dataprep_assets.errors import ConfigError, DataprepError, MissingArtifactError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import RETRACTED
from dataprep_assets.pipelines.corpus.curation.benchmark_coverage import describe_coverage
from dataprep_assets.pipelines.corpus.curation.document_texts import add_texts
from dataprep_assets.pipelines.corpus.curation.documents_sums import FILE
from dataprep_assets.pipelines.corpus.curation.documents_table import DOCUMENTS, DocumentsFacts, list_table_columns
from dataprep_assets.pipelines.corpus.curation.ruled_rows import RuledRows, read_ruled_rows
from dataprep_assets.pipelines.corpus.curation.selection_budget import find_over_budget
from dataprep_assets.pipelines.corpus.curation.selection_counts import SelectionCounts, sum_counts
from dataprep_assets.pipelines.corpus.curation.tagged_shard import TAGS
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates.removed_duplicates import DUPLICATES, NONE_REMOVED, load_removed_rows
from dataprep_assets.pipelines.corpus.source.listed_rows import read_listed_ids
from dataprep_assets.pipelines.corpus.source.manifest import has_manifest, load_manifest
from dataprep_assets.planning.manifest import split_name
from dataprep_assets.table import format_share

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_EXAMPLES = 10


class CorpusDocuments(DocumentTable):
    """Document table of a corpus, read from its finished tags and tables."""

    def __init__(self, corpus: CorpusDeclaration, store: ArtifactStore) -> None:
        """Raise ConfigError if the corpus declares no table, MissingArtifactError if the corpus is not planned yet."""
        if not corpus.has_table:
            raise ConfigError(
                f"{corpus.dataset} has no document table. Run `dataprep show {corpus.dataset}` to list dropped rows. "
                "To build a table, declare `tag`, `keep`, `drop` or `document.keep_fields: {}`, and run the dataset"
            )
        if not has_manifest(corpus, store):
            raise MissingArtifactError(
                f"{corpus.dataset} has no document table yet. Run `dataprep run {corpus.dataset}`"
            )
        self._corpus, self._store = corpus, store

    @property
    def columns(self) -> Sequence[str]:
        return list(list_table_columns(self._corpus))

    def drops(self) -> Drops | None:
        rules, duplicates = self._corpus.rules, self._corpus.duplicates
        if not rules and duplicates is None:
            return None
        rule_texts = {name: _format_rule(*rule) for name, rule in rules.items()}
        # List duplicates only if the `duplicates` artifact exists, because the number of duplicates is unknown until it
        # is built.
        if duplicates is not None and self._store.receipt(self._corpus.artifact(DUPLICATES)) is not None:
            least = duplicates.similarity
            rule_texts[DUPLICATE] = (
                "equal to a kept document"
                if least == 1
                else f"near-duplicate of a kept document, with a similarity of at least {least:g}"
            )
        if len(read_listed_ids(self._corpus)):
            rule_texts[RETRACTED] = "on the retraction list"
        by_split = {split: SelectionCounts() for split in self._corpus.splits}
        untagged = 0
        examples: dict[str, list[str]] = {name: [] for name in rule_texts}
        for partition in self._partitions:
            try:
                tags = self._store.local(self._corpus.artifact(TAGS, partition))
                removed_ids = (
                    load_removed_rows(self._corpus, self._store, partition) if DUPLICATE in rule_texts else NONE_REMOVED
                )
                for piece in read_ruled_rows(self._corpus, tags, ("file", "row", "source", "bytes"), removed_ids):
                    by_split[split_name(partition)].add(piece)
                    if not self._corpus.sensitive:
                        _add_examples(examples, piece)
            except DataprepError:
                # Count the shard as untagged if its tags, the file of a newly declared tagger, or its duplicates are
                # missing or unreadable.
                untagged += 1
        total = SelectionCounts.total(by_split.values())
        sums = sum_counts(total.sources.values())
        split_budgets = (
            find_over_budget(self._corpus, split, counts.sources, counts.by_rule) for split, counts in by_split.items()
        )
        return Drops(
            documents=sums[0],
            bytes=sums[1],
            sources={source: documents for source, (documents, _) in total.sources.items()},
            rules=[_count_drops(name, drops, total, examples[name]) for name, drops in rule_texts.items()],
            untagged=untagged,
            over_budget=[sentence for sentences in split_budgets for _, sentence in sentences],
        )

    def rows(
        self,
        *,
        where: str | None = None,
        reason: str | None = None,
        kept: bool | None = None,
        splits: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> DocumentRows:
        table_fields = list_table_columns(self._corpus)
        conditions = {} if where is None else {"where": parse_rule(where, table_fields, "--where")}
        if reason is not None:
            declared_reasons = [*self._corpus.rules, *([] if self._corpus.duplicates is None else [DUPLICATE])]
            if reason not in (reasons := {*declared_reasons, *RESERVED, *self.reasons()}):
                names = ", ".join([*declared_reasons, *sorted(reasons - set(declared_reasons))])
                raise ConfigError(f"--reason: unknown reason {reason!r}. Available: {names}")
            conditions["reason"] = parse_rule(f"reason == {reason!r}", table_fields, "--reason")
        if kept is not None:
            conditions["kept"] = parse_rule("kept" if kept else "not kept", table_fields, "kept")
        require_known_names("split", splits or (), list(self._corpus.splits))
        require_known_names("column", columns or (), list(table_fields))
        partitions = [partition for partition in self._partitions if splits is None or split_name(partition) in splits]
        return DocumentRows(columns=columns, read=partial(self._read_rows, partitions, conditions))

    def _read_rows(
        self, partitions: Sequence[str], rules: Mapping[str, Rule], columns: Sequence[str] | None
    ) -> "Iterator[pa.Table]":
        """Yield the given columns of the partitions' rows that match every rule, in pieces."""
        needed = {*(columns or ())}.union(*(rule.columns for rule in rules.values()))
        for partition in partitions:
            for piece in read_joined_tables([self._find_table(partition)], None if columns is None else sorted(needed)):
                # A column is missing if it was declared after the table was built.
                if missing_columns := sorted(needed - {*piece.column_names}):
                    table = self._corpus.artifact(DOCUMENTS, partition)
                    raise MissingArtifactError(
                        f"{table}: no column {missing_columns[0]!r} yet. Run `dataprep run {self._corpus.dataset}`"
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
        import pyarrow.compute as pc

        numeric_columns = [name for name, kind in list_table_columns(self._corpus).items() if kind in NUMBERS]
        require_known_names("numeric column", [column], numeric_columns)
        rules = self._corpus.rules
        plotted = {name: rule for name, (_, rule) in rules.items() if column in rule.columns}
        columns = {column, "bytes", "reason"}.union(*(rule.columns for _, rule in rules.values()))
        values, missing, drop_counts, earlier_counts = [np.zeros(0)], 0, Counter[str](), Counter[str]()
        for piece in self.rows(where=where, reason=reason, splits=splits, columns=sorted(columns)).tables():
            # Only rejected records have no size. They are no documents, so no rule drops them.
            piece = piece.filter(piece["bytes"].is_valid())
            numbers = piece[column].cast("double", safe=False).to_numpy()
            is_finite = np.isfinite(numbers)
            values.append(numbers[is_finite])
            missing += int(np.count_nonzero(~is_finite))
            if plotted:
                rule_numbers = find_dropping_rules(piece, rules)
                # Retraction ranks before rules, as in `RuledRows`.
                rule_numbers[pc.equal(piece["reason"], RETRACTED).fill_null(False).to_numpy()] = -1
                for name, is_match in match_rules(piece, plotted).items():
                    position = list(rules).index(name)
                    drop_counts[name] += int(np.count_nonzero(rule_numbers == position))
                    is_dropped_earlier = (rule_numbers >= 0) & (rule_numbers < position)
                    earlier_counts[name] += int(np.count_nonzero(is_dropped_earlier & (is_match ^ rules[name][0])))
        return ColumnHistogram(
            column=column,
            values=np.sort(np.concatenate(values)),
            missing=missing,
            rules=[
                PlottedRule(
                    rule=name,
                    drops=_format_rule(*rules[name]),
                    thresholds=rule.thresholds.get(column, ()),
                    documents=drop_counts[name],
                    dropped_earlier=earlier_counts[name],
                )
                for name, rule in plotted.items()
            ],
        )

    def add_texts(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        return add_texts(self._corpus, self._store, rows)

    def explain_drop_of_id(self, hashed: int) -> str | None:
        """Describe the first dropped row with this id, with the reason as in `explain_drop`; None if there is none."""
        import pyarrow.compute as pc

        for partition in self._partitions:
            for piece in read_joined_tables([self._find_table(partition)]):
                if "id" not in piece.column_names:
                    return None
                matches = piece.filter(pc.and_(pc.equal(piece["id"], f"{hashed:016x}"), pc.invert(piece["kept"])))
                if matches.num_rows:
                    row = matches.to_pylist()[0]
                    return f"row {row['row']} of {row['file']} {self._describe_reason(row)}"
        return None

    def explain_drop(self, file: str, row: int) -> str | None:
        """Explain why a row of a file was dropped, with the values that the rule read; return None if unknown."""
        import pyarrow.compute as pc

        manifest = load_manifest(self._corpus, self._store)
        for partition in self._partitions:
            if file not in {entry.relpath for entry in manifest.shard(partition)}:
                continue
            for piece in read_joined_tables([self._find_table(partition)]):
                matches = piece.filter(pc.and_(pc.equal(piece["file"], file), pc.equal(piece["row"], row)))
                if matches.num_rows:
                    return self._describe_reason(matches.to_pylist()[0])
        return None

    def _describe_reason(self, row: Mapping[str, Any]) -> str | None:
        reason = row["reason"]
        if reason is None:
            return None
        # Only rejected records have no size, so describe why the record was rejected.
        if row["bytes"] is None:
            return describe_bad_reason(reason)
        words, rule = describe_reason(reason), self._corpus.rules.get(reason)
        if reason == DUPLICATE and row["representative"] is not None:
            return f"{words} of {row['representative']}, {format_share(row['similarity'])} similar"
        if rule is None:
            return words
        names = sorted(rule[1].columns)
        values = "" if self._corpus.sensitive else "; " + ", ".join(f"{name} is {row[name]!r}" for name in names)
        return f"{words}: {_format_rule(*rule)}{values}"

    @cached_property
    def _partitions(self) -> Sequence[str]:
        manifest = load_manifest(self._corpus, self._store)
        return [partition for split in self._corpus.splits for partition in manifest.partitions(split)]

    def unprotected(self) -> Sequence[str]:
        return list(describe_coverage(self._corpus, self._store))

    def reasons(self) -> Mapping[str, int]:
        counts = Counter[str]()
        for receipt in self._store.receipts(
            [self._corpus.artifact(DOCUMENTS, receipt) for receipt in self._partitions]
        ):
            counts.update({} if receipt is None else DocumentsFacts.from_receipt(receipt).reasons)
        return dict(counts.most_common())

    def _find_table(self, partition: str) -> Path:
        artifact = self._corpus.artifact(DOCUMENTS, partition)
        if self._store.receipt(artifact) is None:
            raise MissingArtifactError(
                f"{artifact}: not built yet. Run the dataset first. If a check of `selection` fails, run `dataprep "
                f"documents {self._corpus.dataset}` without options to see the drops per rule"
            )
        return self._store.local(artifact) / FILE


def _format_rule(keeps: bool, rule: Rule) -> str:
    """Return the expression that is true for the rows that a rule drops."""
    return f"not ({rule.text})" if keeps else rule.text


def _add_examples(examples: Mapping[str, list[str]], rows: RuledRows) -> None:
    """Add rows that a rule drops to the rule's examples, up to the maximum."""
    for position, reason in enumerate(rows.reasons):
        if reason is not None and len(examples[reason]) < _MAX_EXAMPLES:
            examples[reason].append(f"{rows.table['file'][position]}:{rows.table['row'][position]}")


def _count_drops(name: str, drops: str, counts: SelectionCounts, examples: Sequence[str]) -> RuleDrops:
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
