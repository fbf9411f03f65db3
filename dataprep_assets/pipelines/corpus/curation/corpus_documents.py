"""Queries of a corpus's document table, answered from its finished tags and tables."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from dataprep_assets.curation.budgets.budget import find_over_budget
from dataprep_assets.curation.budgets.counts import DropCounts
from dataprep_assets.curation.duplicates.removed_file import DUPLICATES
from dataprep_assets.curation.rules import Rule
from dataprep_assets.curation.selection import DUPLICATE, describe_bad_reason, describe_reason
from dataprep_assets.curation.stored_table import (
    StoredTable,
    add_examples,
    build_drops,
    describe_duplicates,
    format_rule,
)
from dataprep_assets.curation.table import Columns, read_joined_tables
from dataprep_assets.engine.trace.document_table import Drops
from dataprep_assets.errors import ConfigError, DataprepError, MissingArtifactError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import RETRACTED
from dataprep_assets.pipelines.corpus.curation.benchmark_coverage import describe_coverage
from dataprep_assets.pipelines.corpus.curation.documents_table import DOCUMENTS, list_table_columns
from dataprep_assets.pipelines.corpus.curation.ruled_rows import read_ruled_rows
from dataprep_assets.pipelines.corpus.curation.selection_budget import build_budgeted_split
from dataprep_assets.pipelines.corpus.curation.tagged_shard import TAGS
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates.removed_duplicates import NONE_REMOVED, load_removed_rows
from dataprep_assets.pipelines.corpus.source.listed_rows import read_listed_ids
from dataprep_assets.pipelines.corpus.source.manifest import has_manifest, load_manifest
from dataprep_assets.planning.manifest import split_name
from dataprep_assets.table import format_share


class CorpusDocuments(StoredTable):
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
        super().__init__(corpus.dataset, store)
        self._corpus = corpus

    @property
    def types(self) -> Columns:
        return list_table_columns(self._corpus)

    @property
    def splits(self) -> Sequence[str]:
        return list(self._corpus.splits)

    @property
    def rules(self) -> Mapping[str, tuple[bool, Rule]]:
        return self._corpus.rules

    @property
    def duplicate_rule(self) -> str:
        duplicates = self._corpus.duplicates
        return "" if duplicates is None else describe_duplicates(duplicates.similarity, "document")

    @property
    def declared_reasons(self) -> Sequence[str]:
        return [*self._corpus.rules, *([] if self._corpus.duplicates is None else [DUPLICATE])]

    def find_split(self, partition: str) -> str:
        return split_name(partition)

    def drops(self) -> Drops | None:
        rules, duplicates = self._corpus.rules, self._corpus.duplicates
        if not rules and duplicates is None:
            return None
        rule_texts = {name: format_rule(*rule) for name, rule in rules.items()}
        # List duplicates only if the `duplicates` artifact exists, because the number of duplicates is unknown until it
        # is built.
        if duplicates is not None and self.store.receipt(self._corpus.artifact(DUPLICATES)) is not None:
            rule_texts[DUPLICATE] = self.duplicate_rule
        if len(read_listed_ids(self._corpus)):
            rule_texts[RETRACTED] = "on the retraction list"
        by_split = {split: DropCounts() for split in self._corpus.splits}
        untagged = 0
        examples: dict[str, list[str]] = {name: [] for name in rule_texts}
        for partition in self.partitions:
            try:
                tags = self.store.local(self._corpus.artifact(TAGS, partition))
                removed_ids = (
                    load_removed_rows(self._corpus, self.store, partition) if DUPLICATE in rule_texts else NONE_REMOVED
                )
                for piece in read_ruled_rows(self._corpus, tags, ("file", "row", "source", "bytes"), removed_ids):
                    by_split[split_name(partition)].add(piece.counted_columns, piece.good_reasons)
                    if not self._corpus.sensitive:
                        add_examples(examples, piece.table["file"], piece.table["row"], piece.reasons)
            except DataprepError:
                # Count the shard as untagged if its tags, the file of a newly declared tagger, or its duplicates are
                # missing or unreadable.
                untagged += 1
        split_budgets = (
            find_over_budget(build_budgeted_split(self._corpus, split), counts.sources, counts.by_rule)
            for split, counts in by_split.items()
        )
        return build_drops(
            rule_texts,
            DropCounts.total(by_split.values()),
            examples,
            untagged=untagged,
            over_budget=[sentence for sentences in split_budgets for _, sentence in sentences],
        )

    def add_texts(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        # Import the module here, because most queries read no texts, and the readers load slowly.
        from dataprep_assets.pipelines.corpus.curation.document_texts import add_texts

        return add_texts(self._corpus, self.store, rows)

    def find_benchmark_item(self, name: str) -> Mapping[str, str]:
        # Import the module here, because most queries need no benchmark, and its module loads slowly.
        from dataprep_assets.curation.benchmarks.items import find_item

        return find_item(self._corpus.benchmark_sets, name)

    def explain_drop_of_id(self, hashed: int) -> str | None:
        """Describe the first dropped row with this id, with the reason as in `explain_drop`; None if there is none."""
        import pyarrow.compute as pc

        for partition in self.partitions:
            for piece in read_joined_tables([self.find_file(partition)]):
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

        manifest = load_manifest(self._corpus, self.store)
        for partition in self.partitions:
            if file not in {entry.relpath for entry in manifest.shard(partition)}:
                continue
            for piece in read_joined_tables([self.find_file(partition)]):
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
        return f"{words}: {format_rule(*rule)}{values}"

    @cached_property
    def partitions(self) -> Sequence[str]:
        manifest = load_manifest(self._corpus, self.store)
        return [partition for split in self._corpus.splits for partition in manifest.partitions(split)]

    def unprotected(self) -> Sequence[str]:
        return list(describe_coverage(self._corpus, self.store))

    def locate(self, partition: str) -> Artifact:
        return self._corpus.artifact(DOCUMENTS, partition)

    def explain_missing(self, artifact: Artifact) -> str:
        return (
            f"{artifact}: not built yet. Run the dataset first. If a check of `selection` fails, run `dataprep "
            f"documents {self._corpus.dataset}` without options to see the drops per rule"
        )
