"""The document table of a blend (`<dataset>/documents`, one partition per shard): `documents.parquet`.

It has one row per source row of the shard, in source order. The columns are the row's origin and id, its columns for
rules, the taggers' values, and its outcome: whether it was kept or the reason for the drop, and its number of tokens.
The rows are read from the sources again, and their outcomes from the finished shard.

Entry points: `DOCUMENTS`, `TabledShard`, `prepare_row_tables`, `ensure_row_table`.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.budgets.counts import COUNT_COLUMNS, DropCounts, DropFacts
from dataprep_assets.curation.retractions import describe_ids
from dataprep_assets.curation.selection import DUPLICATE
from dataprep_assets.curation.table import (
    Columns,
    ColumnType,
    ParquetRowWriter,
    convert_carried_values,
    describe_carried_columns,
    name_column,
    name_rewritten_column,
)
from dataprep_assets.curation.table_sums import FILE
from dataprep_assets.engine.artifact.build import WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.checks.check import (
    Level,
)
from dataprep_assets.execution.run_task import report_work
from dataprep_assets.fields import value_at
from dataprep_assets.formats.conversations.preference_rows import read_preferences
from dataprep_assets.formats.packed_rows import open_packed_file
from dataprep_assets.formats.row_origins import ORIGINS, read_origins
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import RETRACTED, Content, Receipt, Verification
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.duplicates.duplicate_rows import DuplicateRows
from dataprep_assets.pipelines.blend.pairs.shard import PAIRS_FILE
from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
from dataprep_assets.pipelines.blend.removal.row_ids import RowIndex, RowRetractions
from dataprep_assets.pipelines.blend.screening.conversation_columns import list_messages
from dataprep_assets.pipelines.blend.screening.row_rules import Row, RowColumns, load_row_columns
from dataprep_assets.pipelines.blend.sft.shard import PACKED, QUARANTINE, ChatShard
from dataprep_assets.pipelines.blend.sft.source_rows import read_quarantine
from dataprep_assets.pipelines.blend.stage_shards import SHARDS
from dataprep_assets.sources.readers.read_options import CSV
from dataprep_assets.sources.readers.rows import RowBlock
from dataprep_assets.stores.files import digest_value, require_digest
from dataprep_assets.stream.token_stream import Fetch, ReadBytes, SourcePart, fetch_missing
from dataprep_assets.tokenization.chat.messages import OTHER_FORM, Conversation, Preference
from dataprep_assets.tokenization.chat.rewritten_messages import list_rewritable_texts

# Import the module only for type checking, because most blends rewrite no texts.
if TYPE_CHECKING:
    from dataprep_assets.curation.rewriters.rewriting import Rewriting

DOCUMENTS = "documents"
VERSION = 2
PARTNERS: Columns = {"representative": "string", "similarity": "number"}
"""The columns with the kept row that a duplicate is similar to, and their similarity."""


class RowTableFacts(DropFacts):
    """Facts of a table: all rows, kept rows, dropped rows by reason, and the counts of rows to which rules applied."""

    rows: int
    kept: int
    reasons: dict[str, int]


def list_table_columns(blend: BlendDeclaration) -> Columns:
    """Return the columns of the table, in order."""
    has_tokens = _TOKEN_COUNTERS[blend.stage] is not None
    return _list_columns(
        load_row_columns(blend),
        fields=list_carried_fields(blend),
        rewriters=() if blend.rewriting is None else blend.rewriting.names,
        has_ids=blend.has_row_ids,
        has_partners=blend.duplicates is not None,
        has_tokens=has_tokens,
    )


def describe_table_columns(blend: BlendDeclaration) -> dict[str, str]:
    """Return a sentence about each column of the table."""
    rewriters = () if blend.rewriting is None else blend.rewriting.names
    return {**load_row_columns(blend).descriptions, **describe_carried_columns(blend.keep_fields or (), rewriters)}


CarriedFields = tuple[tuple[str, ColumnType], ...]
"""The fields of the rows that the table contains, each with its type."""


def list_carried_fields(blend: BlendDeclaration) -> CarriedFields:
    """Return the fields of the rows that the table of a blend contains."""
    return tuple((blend.keep_fields or {}).items())


def _list_columns(
    columns: RowColumns,
    *,
    fields: CarriedFields,
    rewriters: Iterable[str],
    has_ids: bool,
    has_partners: bool,
    has_tokens: bool,
) -> Columns:
    ids: Columns = {"id": "string"} if has_ids else {}
    tokens: Columns = {"tokens": "integer"} if has_tokens else {}
    carried: Columns = {name_column(path): kind for path, kind in fields}
    carried = {**carried, **{name_rewritten_column(name): "integer" for name in rewriters}}
    outcome: Columns = {"kept": "boolean", "reason": "string", **(PARTNERS if has_partners else {})}
    return {"file": "string", "row": "integer", **ids, **columns.types, **carried, **outcome, **tokens}


@dataclass(frozen=True, kw_only=True)
class _Outcomes:
    """The outcomes of the rows of a shard, by ordinal of the source and row, or by file and row.

    Attributes:
        tokens: Kept row → its number of tokens.
        reasons: Quarantined row → the reason, by file.
        ids: Row → its id; None if rows have no ids.
        removed_ids: The ids of removed rows.
    """

    tokens: Mapping[tuple[int, int], int]
    reasons: Mapping[tuple[str, int], str]
    ids: Mapping[tuple[int, int], str] | None
    removed_ids: frozenset[str]

    def find_reason(self, source: SourcePart, number: int) -> str | None:
        """Return the reason for dropping a row; None for other rows."""
        if self.ids is not None and self.ids.get((source.ordinal, number)) in self.removed_ids:
            return RETRACTED
        return self.reasons.get((source.label, number))


ReadRow = Callable[[Any, str], Row | str]


class TabledRows(Protocol):
    """A planned shard whose rows a table describes: `SftShard`, `PairsShard` or `RlShard`."""

    @property
    def artifact(self) -> Artifact: ...
    @property
    def store(self) -> ArtifactStore: ...
    @property
    def sources(self) -> Sequence[SourcePart]: ...
    @property
    def source_bytes(self) -> int: ...
    @property
    def level(self) -> Level: ...
    @property
    def retractions(self) -> RowRetractions: ...
    @property
    def duplicates(self) -> DuplicateRows | None: ...
    @property
    def reads_json(self) -> bool: ...
    def open_reader(self) -> ReadRow:
        """Return a function that returns the content of a source row at a location, or the reason for refusing it."""
        ...


@dataclass(frozen=True, kw_only=True)
class TabledShard:
    """The table of a shard, ready to build. Instances are picklable.

    Attributes:
        artifact: The artifact of the table.
        shard: The finished shard, with its sources and its plan.
        content: Digest of the shard's files.
        retracted: The ids of removed rows. The shard's files do not name them, and a row that is left out for another
            reason is in none of these files.
        columns: The columns of the rows.
        fields: The fields of the rows that the table contains.
        rewriting: The rewriters of the rows' texts, if any.
        rule_names: The reasons that count for the budget: the declared rules, `duplicate` and `benchmark`.
        count_tokens: Returns the number of tokens at each origin of the shard, given its folder; None without tokens.
    """

    artifact: Artifact
    shard: TabledRows
    content: Content
    retracted: tuple[str, ...]
    columns: RowColumns
    fields: CarriedFields
    rewriting: "Rewriting | None"
    rule_names: frozenset[str]
    count_tokens: Callable[[Path], NDArray[np.int64]] | None

    @property
    def store(self) -> ArtifactStore:
        """The store of the table and the shard."""
        return self.shard.store

    @property
    def source_bytes(self) -> int:
        """Total size of the sources in bytes."""
        return self.shard.source_bytes

    @property
    def types(self) -> Columns:
        """The columns of the table, in order."""
        return _list_columns(
            self.columns,
            fields=self.fields,
            rewriters=() if self.rewriting is None else self.rewriting.names,
            has_ids=self.shard.retractions.ids is not None,
            has_partners=self.shard.duplicates is not None,
            has_tokens=self.count_tokens is not None,
        )

    @property
    def key(self) -> str:
        """Digest of everything that determines the table's bytes."""
        columns: list[Any] = [self.columns.key_parts(), list(self.types.items())]
        # Add the fields only if there are any, so that other tables keep their keys.
        columns += [self.fields] if self.fields else []
        columns += [] if self.rewriting is None else [self.rewriting.version]
        return digest_value([DOCUMENTS, VERSION, self.content, list(self.retracted), *columns])

    @property
    def recipe(self) -> Recipe:
        """The named values that the key covers."""
        taggers = {tagger.name: tagger.version for tagger in self.columns.taggers}
        return Recipe(
            artifact=self.artifact,
            key=self.key,
            version=VERSION,
            settings={
                "taggers": taggers,
                "tag_text": dict(self.columns.texts),
                **({"keep_fields": dict(self.fields)} if self.fields else {}),
                **({"retracted": describe_ids(self.retracted)} if self.retracted else {}),
            },
            sources={source.label: source.sha256 for source in self.shard.sources},
            upstream={f"{self.shard.artifact.name}/{self.artifact.partition}": self.content},
        )

    def write(self, staged: Path) -> WrittenFiles:
        """Write the table; return the facts for its receipt. Raises CorruptSourceError for a changed source."""
        reasons, kept_count, counts = Counter[str](), 0, DropCounts()
        with ParquetRowWriter(staged / FILE, self.types) as writer:
            for rows in self._read_all_rows():
                writer.add(rows)
                reasons.update(reason for reason in rows["reason"] if reason is not None)
                kept_count += sum(rows["kept"])
                counts.add(*select_ruled_rows(rows, self.rule_names))
        return WrittenFiles(
            inputs={source.label: source.sha256 for source in self.shard.sources},
            facts=RowTableFacts(
                rows=writer.rows, kept=kept_count, reasons=dict(sorted(reasons.items())), **counts.facts
            ),
        )

    def _read_all_rows(self) -> Iterator[dict[str, list[Any]]]:
        """Yield all rows of the sources in blocks: column → values."""
        receipt, folder = self.store.require(self.shard.artifact), self.store.local(self.shard.artifact)
        outcomes = _Outcomes(
            tokens=self._sum_tokens(folder),
            reasons={(row["file"], row["row"]): row["reason"] for row in read_quarantine(folder / QUARANTINE)},
            ids=self._read_ids(folder, receipt),
            removed_ids=frozenset(self.retracted),
        )
        read_row = self.shard.open_reader()
        for source in self.shard.sources:
            reader = source.read_rows(as_json=self.shard.reads_json)
            read_bytes = ReadBytes(source, reader)
            for block in reader:
                rows = self._read_block(source, block, read_row, outcomes)
                yield rows
                report_work(source_bytes=read_bytes.take(), documents=len(rows["row"]))
            require_digest(source.label, source.digests.digest_of(reader.sha256), source.sha256, "its snapshot")

    def _read_block(
        self, source: SourcePart, block: RowBlock, read_row: ReadRow, outcomes: "_Outcomes"
    ) -> dict[str, list[Any]]:
        numbers = sorted([*block.numbers, *(bad_row.row for bad_row in block.bad)])
        origins = [(source.ordinal, number) for number in numbers]
        reasons = {number: outcomes.find_reason(source, number) for number in numbers}
        good_rows: dict[int, Row] = {}
        for number, values in zip(block.numbers, block.rows, strict=True):
            # Leave out removed rows, because the table must not describe them. Leave out rows of a different form,
            # because the build applies no rules to them.
            if reasons[number] in (RETRACTED, OTHER_FORM):
                continue
            row = read_row(values, f"{source.label}: row {number}")
            if not isinstance(row, str):
                good_rows[number] = row
            elif (source.ordinal, number) not in outcomes.tokens:
                # The quarantine does not list the records that a transform left out.
                reasons[number] = reasons[number] or row
        values = self.columns.compute([*good_rows.values()], source.label, [*good_rows]).to_pydict()
        indices = {number: index for index, number in enumerate(good_rows)}
        expanded = {
            name: [column[indices[number]] if number in indices else None for number in numbers]
            for name, column in values.items()
        }
        return {
            "file": [source.label] * len(numbers),
            "row": numbers,
            **({} if outcomes.ids is None else {"id": list(map(outcomes.ids.get, origins))}),
            **expanded,
            **self._carry_fields(source, block, numbers, reasons),
            **self._count_rewritten(source, block, numbers, reasons),
            "source": [self.columns.dataset] * len(numbers),
            "kept": [origin in outcomes.tokens for origin in origins],
            "reason": list(reasons.values()),
            **self._list_partners(source, reasons),
            **({} if self.count_tokens is None else {"tokens": list(map(outcomes.tokens.get, origins))}),
        }

    def _carry_fields(
        self, source: SourcePart, block: RowBlock, numbers: Sequence[int], reasons: Mapping[int, str | None]
    ) -> dict[str, list[Any]]:
        """Return the columns of the fields. Their values are null for bad and removed rows."""
        rows = {
            number: row
            for number, row in zip(block.numbers, block.rows, strict=True)
            if self.fields and reasons[number] != RETRACTED
        }
        return {
            name_column(path): convert_carried_values(
                [value_at(rows.get(number), path) for number in numbers],
                kind,
                [f"{source.label}: row {number}: {path}" for number in numbers],
                keys=("keep_fields", path),
                all_texts=source.format in CSV,
                sensitive=self.columns.sensitive,
            )
            for path, kind in self.fields
        }

    def _count_rewritten(
        self, source: SourcePart, block: RowBlock, numbers: Sequence[int], reasons: Mapping[int, str | None]
    ) -> dict[str, list[int | None]]:
        """Return the columns with the number of characters that each rewriter changed; null for unreadable rows."""
        if self.rewriting is None:
            return {}
        read_row, changes = open_source_reader(self.shard), dict[int, dict[str, int]]()
        for number, values in zip(block.numbers, block.rows, strict=True):
            if reasons[number] not in (RETRACTED, OTHER_FORM):
                row = read_row(values, f"{source.label}: row {number}")
                if not isinstance(row, str):
                    changes[number] = count_rewritten(row, self.rewriting)
        return {
            name_rewritten_column(name): [changes.get(number, {}).get(name) for number in numbers]
            for name in self.rewriting.names
        }

    def _list_partners(self, source: SourcePart, reasons: Mapping[int, str | None]) -> dict[str, list[Any]]:
        """Return the columns with the kept row of each duplicate; empty if the blend has no `duplicates`."""
        if self.shard.duplicates is None:
            return {}
        partners = self.shard.duplicates.find_partners(source.ordinal, [*reasons])
        # Name the kept row only for rows whose reason is `duplicate`, because another reason ranks before it.
        pairs = zip(partners, reasons.values(), strict=True)
        named_rows = [partner if reason == DUPLICATE else None for partner, reason in pairs]
        return {name: [getattr(partner, name, None) for partner in named_rows] for name in PARTNERS}

    def _sum_tokens(self, folder: Path) -> dict[tuple[int, int], int]:
        """Return the ordinal of the source and the row of each kept row, with its number of tokens; 0 without any."""
        if not (folder / ORIGINS).exists():  # the shard is empty
            return {}
        origins = read_origins(folder / ORIGINS, 3 if self.shard.artifact.name == SHARDS["sft"].name else 2)
        rows, positions = np.unique(origins[:, :2], axis=0, return_inverse=True)
        counts = np.zeros(len(rows), np.int64)
        if self.count_tokens is not None:
            np.add.at(counts, positions.reshape(-1), self.count_tokens(folder))
        return dict(zip(map(tuple, rows.tolist()), counts.tolist(), strict=True))

    def _read_ids(self, folder: Path, receipt: Receipt) -> dict[tuple[int, int], str] | None:
        """Return the ordinal of the source and the row → its id; None if rows have no ids."""
        if self.shard.retractions.ids is None:
            return None
        index = RowIndex.from_folder(folder, receipt)
        positions = map(tuple, index.table[:, :2].tolist())
        return {
            position: f"{row_hash:016x}" for position, row_hash in zip(positions, index.hashes.tolist(), strict=True)
        }


def open_source_reader(shard: TabledRows) -> Callable[[Any, str], Conversation | Preference | str]:
    """Return a function that returns the content of a row before rewriting, or the reason for refusing the row."""
    assert isinstance(shard, ChatShard), "only conversations and pairs are rewritten"
    fields = replace(shard.plan.fields, rewriting=None)
    return replace(shard, plan=replace(shard.plan, fields=fields)).open_reader()


def count_rewritten(row: Conversation | Preference, rewriting: "Rewriting") -> dict[str, int]:
    """Return the number of characters that each rewriter changes in a row."""
    from dataprep_assets.curation.rewriters.changes import count_changed_characters

    steps = rewriting.iterate_steps(list_rewritable_texts(list_messages(row)))
    return {name: sum(map(count_changed_characters, before, after)) for name, before, after in steps}


def select_ruled_rows(
    rows: Mapping[str, Sequence[Any]], rule_names: Container[str]
) -> tuple[dict[str, list[Any]], list[str | None]]:
    """Return the counted columns of the rows with a size, to which rules applied, and the rules that drop them."""
    are_ruled = [size is not None for size in rows["bytes"]]
    columns = {name: list(compress(rows[name], are_ruled)) for name in COUNT_COLUMNS if name in rows}
    return columns, [reason if reason in rule_names else None for reason in compress(rows["reason"], are_ruled)]


def _count_packed_tokens(folder: Path) -> NDArray[np.int64]:
    """Return the number of tokens of each packed sequence, without padding."""
    lengths = [np.zeros(0, np.int64)]
    for padded_rows in open_packed_file(folder / PACKED):
        starts, stops = padded_rows.without_padding().bounds()
        lengths.append(stops - starts)
    return np.concatenate(lengths)


def _count_pair_tokens(folder: Path) -> NDArray[np.int64]:
    """Return the number of tokens of each pair."""
    return np.array([row.tokens for rows in read_preferences(folder / PAIRS_FILE) for row in rows], np.int64)


_TOKEN_COUNTERS: Mapping[str, Callable[[Path], NDArray[np.int64]] | None] = {
    "sft": _count_packed_tokens,
    "pairs": _count_pair_tokens,
    "rl": None,
}
"""Stage → `TabledShard.count_tokens`."""


def ensure_row_table(table: TabledShard, verification: Verification, fetch: Fetch | None) -> tuple[Receipt, bool]:
    """Build a table unless it is up to date; return the receipt and whether it was reused. Runs in a worker."""

    def write(staged: Path) -> WrittenFiles:
        fetch_missing(table.shard.sources, fetch)
        return table.write(staged)

    return ensure_built(table.recipe, table.store, write, verification)


def prepare_row_tables(
    blend: BlendDeclaration, store: ArtifactStore, partitions: Iterable[str | None]
) -> list[TabledShard]:
    """Return the tables of some shards, ready to build. Raises MissingArtifactError if a shard is not built."""
    plan, shard_kind = load_blend_plan(blend, store), SHARDS[blend.stage]
    tables = []
    for shard in shard_kind.shards(blend, store, plan, [partition or "" for partition in partitions]):
        partition, receipt = str(shard.artifact.partition), store.require(shard.artifact)
        tables.append(
            TabledShard(
                artifact=blend.artifact(DOCUMENTS, partition),
                shard=shard,
                content=receipt.content,
                retracted=tuple(receipt.facts.get("retracted", ())),
                columns=load_row_columns(blend, plan.find_shard(partition)[0].dataset.name),
                fields=list_carried_fields(blend),
                rewriting=blend.rewriting,
                rule_names=frozenset(blend.dropping_names),
                count_tokens=_TOKEN_COUNTERS[blend.stage],
            )
        )
    return tables
