"""Queries of a blend's document table, answered from its finished tables."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from dataprep_assets.curation.benchmarks.columns import BENCHMARK
from dataprep_assets.curation.budgets.budget import find_over_budget
from dataprep_assets.curation.budgets.counts import DropCounts
from dataprep_assets.curation.rules import Rule, find_dropping_rules
from dataprep_assets.curation.selection import DUPLICATE
from dataprep_assets.curation.stored_table import (
    StoredTable,
    add_examples,
    build_drops,
    describe_duplicates,
    format_rule,
)
from dataprep_assets.curation.table import Columns, read_joined_tables
from dataprep_assets.engine.trace.document_table import DroppedSample, Drops
from dataprep_assets.errors import ConfigError, DataprepError, MissingArtifactError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan, has_blend_plan, load_blend_plan
from dataprep_assets.pipelines.blend.screening.reasons import RESERVED
from dataprep_assets.pipelines.blend.sft.shard import QUARANTINE
from dataprep_assets.pipelines.blend.sft.source_rows import read_quarantine
from dataprep_assets.pipelines.blend.stage_shards import SHARDS
from dataprep_assets.pipelines.blend.table.row_table import DOCUMENTS, list_table_columns
from dataprep_assets.pipelines.blend.table.table_spec import build_budgeted_blend


class BlendDocuments(StoredTable):
    """Document table of a blend."""

    reserved: ClassVar[frozenset[str]] = RESERVED
    id_key: ClassVar[str] = "source_key"

    def __init__(self, blend: BlendDeclaration, store: ArtifactStore) -> None:
        """Raise ConfigError if the blend declares no table, MissingArtifactError if the blend is not planned yet."""
        if not blend.has_table:
            raise ConfigError(
                f"{blend.dataset} has no document table. Run `dataprep show {blend.dataset}` to list dropped rows. To "
                "build a table, declare `tag`, `keep`, `drop`, `duplicates` or `keep_fields` in a blend of "
                "conversations, pairs or RL records, and run the dataset"
            )
        if not has_blend_plan(blend, store):
            raise MissingArtifactError(f"{blend.dataset} has no document table yet. Run `dataprep run {blend.dataset}`")
        super().__init__(blend.dataset, store)
        self._blend = blend

    @cached_property
    def _plan(self) -> BlendPlan:
        return load_blend_plan(self._blend, self.store)

    @property
    def types(self) -> Columns:
        return list_table_columns(self._blend)

    @property
    def partitions(self) -> Sequence[str]:
        return self._plan.partitions

    @property
    def splits(self) -> Sequence[str]:
        # Shards that are held out have no split before the run, which chooses them.
        if self._blend.held_out is not None:
            raise ConfigError(
                f"{self.dataset}: --split is not available with `held_out`. Remove it, or select rows of a dataset "
                "with --where, e.g., \"source = 'NAME'\""
            )
        return list(dict.fromkeys(unit.home for unit in self._plan.units))

    @property
    def rules(self) -> Mapping[str, tuple[bool, Rule]]:
        return self._blend.rules

    @property
    def duplicate_rule(self) -> str:
        duplicates = self._blend.duplicates
        return "" if duplicates is None else describe_duplicates(duplicates.similarity, "row")

    @property
    def declared_reasons(self) -> Sequence[str]:
        return self._blend.dropping_names

    def find_split(self, partition: str) -> str:
        return self._plan.find_shard(partition)[0].home

    def locate(self, partition: str) -> Artifact:
        return self._blend.artifact(DOCUMENTS, partition)

    def explain_missing(self, artifact: Artifact) -> str:
        return f"{artifact}: not built yet. Run `dataprep run {self.dataset}`"

    def add_texts(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        # Import the module here, because most queries read no texts.
        from dataprep_assets.pipelines.blend.table.source_texts import add_texts

        return add_texts(self._blend, self.store, rows)

    def sample_drops(self, count: int, seed: int = 0) -> Sequence[DroppedSample]:
        samples = super().sample_drops(count, seed)
        if not any(sample.reason == BENCHMARK for sample in samples):
            return samples
        # The table has no column with the benchmark item, so take it from the quarantine.
        items = self._read_benchmark_items()
        return [
            replace(sample, rows=[{**row, BENCHMARK: items.get((row["file"], row["row"]))} for row in sample.rows])
            if sample.reason == BENCHMARK
            else sample
            for sample in samples
        ]

    def _read_benchmark_items(self) -> Mapping[tuple[str, int], str]:
        """Return file and row → the name of its benchmark item, for the rows that were dropped for one."""
        name, items = SHARDS[self._blend.stage].name, dict[tuple[str, int], str]()
        for partition in self.partitions:
            receipt = self.store.receipt(self.locate(partition))
            if receipt is not None and receipt.facts["reasons"].get(BENCHMARK):
                folder = self.store.local(self._blend.artifact(name, partition), [QUARANTINE])
                rows = read_quarantine(folder / QUARANTINE)
                items |= {(row["file"], row["row"]): row["words"] for row in rows if row["reason"] == BENCHMARK}
        return items

    def find_benchmark_item(self, name: str) -> Mapping[str, str]:
        if self._blend.decontaminate is None:
            return {}
        # Import the module here, because most queries need no benchmark, and its module loads slowly.
        from dataprep_assets.curation.benchmarks.items import find_item

        return find_item(self._blend.decontaminate.build_sets(self._blend.folder, self._blend.rewriting), name)

    def drops(self) -> Drops | None:
        rules = self.rules
        if not self._blend.dropping_names:
            return None
        texts = {name: format_rule(*rule) for name, rule in rules.items()}
        texts |= {DUPLICATE: self.duplicate_rule} if self.duplicate_rule else {}
        texts |= {BENCHMARK: "contains a benchmark item"} if BENCHMARK in self.declared_reasons else {}
        other_reasons = texts.keys() - rules.keys()
        needed = {"file", "row", "source", "bytes", "reason"}
        needed |= {column for _, rule in rules.values() for column in rule.columns}
        counts, untagged = DropCounts(), 0
        examples: dict[str, list[str]] = {name: [] for name in texts}
        for partition in self.partitions:
            try:
                pieces = list(read_joined_tables([self.find_file(partition)], sorted(needed)))
                if any(needed - {*piece.column_names} for piece in pieces):
                    raise MissingArtifactError(self.explain_missing(self.locate(partition)))
            except DataprepError:
                # Count the shard as untagged if its table is missing, unreadable, or without a newly declared column.
                untagged += 1
                continue
            for piece in pieces:
                # Rules apply only to rows with columns.
                piece = piece.filter(piece["bytes"].is_valid())
                names = [*rules]
                rows = piece.to_pydict()
                numbers = find_dropping_rules(piece, rules).tolist() if rules else [-1] * len(piece)
                # Take other reasons from the table, because a change of the rules changes them only in the next run.
                reasons = [
                    names[number] if number >= 0 else reason if reason in other_reasons else None
                    for number, reason in zip(numbers, rows["reason"], strict=True)
                ]
                counts.add(rows, reasons)
                if not self._blend.sensitive:
                    add_examples(examples, rows["file"], rows["row"], reasons)
        excesses = find_over_budget(build_budgeted_blend(self._blend), counts.sources, counts.by_rule)
        return build_drops(
            texts,
            counts,
            examples,
            untagged=untagged,
            over_budget=[sentence for _, sentence in excesses],
        )
