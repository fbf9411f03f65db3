"""The artifact of a blend's document table: its spec and its checks.

Entry point: `build_row_table_spec`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep_assets.curation.budgets.budget import BudgetedPart, check_budget, check_kept_sources
from dataprep_assets.curation.rewriters.declaration import replaces_personal_data
from dataprep_assets.curation.selection import DUPLICATE
from dataprep_assets.curation.table import read_joined_tables
from dataprep_assets.curation.table_sums import FILE, TableSums
from dataprep_assets.engine.artifact.metadata_values import ShownValue
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest, Partitions
from dataprep_assets.engine.checks.check import (
    EVERY_DOCUMENT,
    FILES_INTACT,
    REBUILD,
    SHOWN,
    UNREPEATABLE,
    Check,
    Finding,
    OpenedPartition,
    Row,
    build_verdict,
)
from dataprep_assets.engine.checks.comparison import compare_claims, compare_files, compare_rows
from dataprep_assets.engine.checks.verdicts import CheckGroup, PartitionChecks, WholeArtifactChecks
from dataprep_assets.errors import DataprepError, count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.integrity.scratch import create_scratch
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
from dataprep_assets.pipelines.blend.screening.row_rules import build_row_preparation
from dataprep_assets.pipelines.blend.stage_shards import build_in_tasks, choose_check_workers
from dataprep_assets.pipelines.blend.table.row_table import (
    DOCUMENTS,
    VERSION,
    RowTableFacts,
    TabledShard,
    describe_table_columns,
    ensure_row_table,
    list_table_columns,
    prepare_row_tables,
)
from dataprep_assets.pipelines.blend.table.source_texts import add_texts

# Import the library only for type checking and in the functions that need it, because it loads slowly.
if TYPE_CHECKING:
    import pyarrow as pa


def build_row_table_spec(blend: BlendDeclaration, *, partitions: Partitions, shards: ArtifactSpec) -> ArtifactSpec:
    """Return the spec of a blend's document table, which is built from its `shards`."""
    return ArtifactSpec(
        declaration=blend,
        name=DOCUMENTS,
        version=VERSION,
        description="The document table: every source row with its columns, and the reason if it was dropped.",
        kinds={"parquet", "table"},
        inputs=(shards,),
        partitions=partitions,
        pool="cpu",
        recipes=lambda store, names: (table.recipe for table in prepare_row_tables(blend, store, names)),
        build=partial(_build_tables, blend),
        metadata=_build_metadata,
        rows=lambda receipt: RowTableFacts.from_receipt(receipt).rows,
        columns=dict(list_table_columns(blend)),
        column_descriptions=describe_table_columns(blend),
        check_groups=_build_check_groups(blend),
    )


def _build_check_groups(blend: BlendDeclaration) -> tuple[CheckGroup, ...]:
    shard_checks: PartitionChecks[TabledShard, OpenedRowTable] = PartitionChecks(
        checks=ROW_TABLE_CHECKS,
        planned=partial(prepare_row_tables, blend),
        open=OpenedRowTable.open,
        workers=lambda *_: choose_check_workers(blend),
    )
    groups: list[CheckGroup] = [shard_checks]
    if blend.dropping_names:
        checks = RULE_CHECKS if blend.duplicates is None else (*RULE_CHECKS, DUPLICATE_GROUPS_KEPT)
        groups.append(WholeArtifactChecks(checks=checks, open=lambda store, _: _RuledBlend(blend, store)))
    if replaces_personal_data(blend.rewrite):
        # Import the modules here, because most blends replace no personal data.
        from dataprep_assets.curation.rewriters.recall import PERSONAL_DATA_REPLACED
        from dataprep_assets.pipelines.blend.table.planted_rewriting import open_planted_rewriting

        groups.append(
            WholeArtifactChecks(checks=(PERSONAL_DATA_REPLACED,), open=partial(open_planted_rewriting, blend))
        )
    return tuple(groups)


def _build_tables(blend: BlendDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    tables = prepare_row_tables(blend, request.store, request.partitions)
    yield from build_in_tasks(blend, request, tables, ensure_row_table, build_row_preparation(blend))


def _build_metadata(_: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    facts = RowTableFacts.from_receipt(receipt)
    counts: dict[str, ShownValue] = {f"dropped_{reason}": count for reason, count in facts.reasons.items()}
    return {"rows": facts.rows, "kept": facts.kept, **counts}


class OpenedRowTable(OpenedPartition[TabledShard]):
    """The table of a shard, opened for checks."""

    @property
    def facts(self) -> RowTableFacts:
        """The facts in the receipt. Raises IntegrityError if a fact is missing."""
        return RowTableFacts.from_receipt(self.receipt)


def _check_sums(table: OpenedRowTable) -> Finding:
    sums, facts = TableSums(table.directory, ()), table.facts
    shard_receipt = table.store.require(table.planned.shard.artifact)
    defects = list(sums.find_differences(map(_convert_source_line, shard_receipt.facts["sources"])))
    if (facts.rows, facts.kept, facts.reasons) != (sums.rows, sums.kept, dict(sorted(sums.reasons.items()))):
        defects.append("the row counts in the receipt differ from the table")
    return build_verdict(
        (f"{table.name}: {defect}" for defect in defects),
        f"{count_of(sums.rows, 'row')}: {sums.kept:,} kept and {sums.rows - sums.kept:,} dropped, as in the ledger of "
        "the shard for each file.",
        REBUILD,
        facts={"rows": sums.rows, "kept": sums.kept, **{f"dropped_{k}": v for k, v in facts.reasons.items()}},
    )


def _convert_source_line(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts of a shard's source file under the names of the table's sums."""
    kept_count = next(facts[name] for name in ("conversations", "pairs", "documents") if name in facts)
    # Records have no tokens, and their facts omit `dropped` if no row is dropped.
    optional_counts = {"tokens": facts.get("tokens", 0), "dropped": facts.get("dropped", {})}
    return {"file": facts["file"], "rows_in": facts["rows_in"], "documents": kept_count, **optional_counts}


def _check_rebuild(table: OpenedRowTable) -> Finding:
    receipt = table.receipt
    defects, is_chance = [], False
    if (change := table.planned.recipe.find_change(receipt)) is not None:
        defects.append(f"was not built from its current inputs: {change.reason}")
    else:
        with create_scratch(table.store.root / receipt.dataset) as folder:
            rebuilt_folder, names = folder / "rebuilt", [record.path for record in receipt.files]
            rebuilt_folder.mkdir()
            claims = list(compare_claims(table.planned.write(rebuilt_folder), receipt))
            differences = dict(compare_files(rebuilt_folder, table.directory, names))
            defects += [*differences.values(), *claims]
            if differences.keys() == {FILE} and not claims:
                is_chance = _differs_only_by_chance(table, rebuilt_folder / FILE, folder / "second")
    return build_verdict(
        (f"{table.name}: {defect}" for defect in defects),
        "Reading the sources and the shard again reproduces the stored table.",
        UNREPEATABLE if is_chance else REBUILD,
        facts={"rows": table.facts.rows},
        warning=is_chance,
    )


def _differs_only_by_chance(table: OpenedRowTable, rebuilt_path: Path, second_folder: Path) -> bool:
    """Return whether a table differs from a rebuild only in columns whose taggers may return different values.

    At the level `every document`, these columns must also differ between two rebuilds.
    """
    unstable = table.planned.columns.unrepeatable
    if unstable and table.planned.shard.level == EVERY_DOCUMENT:
        second_folder.mkdir()
        table.planned.write(second_folder)
        unstable = frozenset(
            name for name in unstable if compare_rows(rebuilt_path, second_folder / FILE, columns=[name]) is not None
        )
    other_columns = table.planned.types.keys() - unstable
    return bool(unstable) and compare_rows(rebuilt_path, table.directory / FILE, columns=other_columns) is None


ROW_TABLE_CHECKS: tuple[Check[OpenedRowTable], ...] = (
    FILES_INTACT,
    Check(
        "sums_match_ledger",
        "For each file, the row, token and dropped-row counts match the ledger of the shard.",
        _check_sums,
    ),
    Check(
        "rebuild_matches",
        "Reading the sources and the shard again reproduces the stored table.",
        _check_rebuild,
    ),
)


def build_budgeted_blend(blend: BlendDeclaration) -> BudgetedPart:
    """Return a blend as the rows to which its budget applies together."""
    return BudgetedPart(
        dataset=blend.dataset, name="the blend", title="the blend", budget=blend.budget, rules=blend.dropping_names
    )


@dataclass(frozen=True)
class _RuledBlend:
    """A blend with rules and the store of its tables, opened for the checks of all tables."""

    blend: BlendDeclaration
    store: ArtifactStore

    @property
    def receipts(self) -> list[Receipt]:
        """Receipts of the finished tables."""
        partitions = load_blend_plan(self.blend, self.store).partitions
        receipts = self.store.receipts([self.blend.artifact(DOCUMENTS, partition) for partition in partitions])
        return [receipt for receipt in receipts if receipt is not None]

    def find_examples(self, sources: Sequence[str]) -> list[Row]:
        """Return examples of rows that rules drop from each source, with the beginning of their texts."""
        if self.blend.sensitive or not sources:
            return []
        rows: dict[str, list[dict[str, Any]]] = {source: [] for source in sources}
        for receipt in self.receipts:
            for row in (row for piece in self._read(receipt) for row in piece.to_pylist()):
                examples = rows.get(row["source"], [])
                if (
                    row["reason"] in self.blend.dropping_names
                    and row["source"] in rows
                    and len(examples) < _EXAMPLES_PER_SOURCE
                ):
                    examples.append(row)
            if all(len(examples) == _EXAMPLES_PER_SOURCE for examples in rows.values()):
                break
        return [self._describe_example(row) for examples in rows.values() for row in examples]

    def count_groups(self) -> tuple[int, list[Row]]:
        """Return the number of groups of duplicates, and a row for each group whose chosen row was dropped."""
        import pyarrow.compute as pc

        duplicates, other_reasons = Counter[str](), dict[str, str]()
        has_several = len({unit.dataset.name for unit in load_blend_plan(self.blend, self.store).units}) > 1
        for receipt in self.receipts:
            for piece in self._read(receipt, ["source", "file", "row", "kept", "reason", "representative"]):
                for row in piece.filter(pc.invert(piece["kept"])).to_pylist():
                    if row["reason"] == DUPLICATE:
                        duplicates[row["representative"]] += 1
                    # Skip rows that a rule drops, because they are never the chosen row of a group.
                    elif row["reason"] not in self.blend.dropping_names:
                        prefix = f"{row['source']}/" if has_several else ""
                        other_reasons[f"{prefix}{row['file']}:{row['row']}"] = row["reason"]
        lost_groups: list[Row] = [
            {"representative": name, "dropped_as": other_reasons[name], "duplicates": count}
            for name, count in duplicates.items()
            if name in other_reasons
        ]
        return len(duplicates), lost_groups

    def _read(self, receipt: Receipt, columns: Sequence[str] | None = None) -> "Iterator[pa.Table]":
        path = self.store.local(self.blend.artifact(DOCUMENTS, str(receipt.partition)), [FILE]) / FILE
        return read_joined_tables([path], columns)

    def _describe_example(self, row: dict[str, Any]) -> Row:
        text = ""
        # Show the example without its text if the source is missing or has changed.
        with suppress(DataprepError, OSError):
            text = str(next(iter(add_texts(self.blend, self.store, [row])))["text"])
        return {
            "source": row["source"],
            "dropped_as": row["reason"],
            "example": f"{row['file']}:{row['row']}",
            "example_text": " ".join(text.split())[:_EXCERPT_CHARACTERS],
        }


_EXAMPLES_PER_SOURCE, _EXCERPT_CHARACTERS = 3, 120


def _check_budget(subject: _RuledBlend) -> Finding:
    return check_budget(build_budgeted_blend(subject.blend), subject.receipts, subject.find_examples)


def _check_kept_sources(subject: _RuledBlend) -> Finding:
    return check_kept_sources(build_budgeted_blend(subject.blend), subject.receipts)


def _check_duplicate_groups(subject: _RuledBlend) -> Finding:
    groups, lost_groups = subject.count_groups()
    return build_verdict(
        (
            f"{row['representative']}: dropped as {row['dropped_as']}, but chosen from a group with "
            f"{count_of(int(row['duplicates']), 'duplicate')}, so that no row of the group is left"
            for row in lost_groups
        ),
        f"Each of {count_of(groups, 'group')} of duplicates has a kept row.",
        "To choose a row that fits, set `duplicates.priority`, e.g., `{column: bytes, order: lowest}` for the shortest "
        "row",
        facts={"groups": groups, "lost_groups": len(lost_groups)},
        table=lost_groups[:SHOWN],
        warning=True,
    )


RULE_CHECKS: tuple[Check[_RuledBlend], ...] = (
    Check(
        "within_budget",
        "Rules keep at least one row, and the dropped shares per dataset and per rule are within `budget`.",
        _check_budget,
    ),
    Check(
        "sources_kept",
        "No rule without a budget drops 95% or more of a dataset, a language or the blend.",
        _check_kept_sources,
        blocking=False,
    ),
)
DUPLICATE_GROUPS_KEPT: Check[_RuledBlend] = Check(
    "duplicate_groups_kept",
    "Every group of duplicates has a kept row.",
    _check_duplicate_groups,
    blocking=False,
)
