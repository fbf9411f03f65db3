"""Texts of rows of a blend's document table, read from the source files.

A file is read once for consecutive rows of a shard. A row is compared with its columns in the table and with its id,
because a source file may have been edited since the table was built.

Entry points: `add_texts`, `format_row`.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import Any

import orjson

from dataprep_assets.engine.trace.document_table import build_changed_error, translate_read_errors
from dataprep_assets.engine.trace.trace import SourceText
from dataprep_assets.errors import DataprepError, SourceError
from dataprep_assets.fields import find_strings
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import RETRACTED
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan, format_partition_key, load_blend_plan
from dataprep_assets.pipelines.blend.screening.conversation_columns import measure_rows, select_text
from dataprep_assets.pipelines.blend.table.row_table import (
    TabledShard,
    count_rewritten,
    open_source_reader,
    prepare_row_tables,
)
from dataprep_assets.sources.readers.raw_rows import RawRows
from dataprep_assets.sources.readers.read_options import RowRange
from dataprep_assets.tokenization.chat.messages import REASONING_KEYS, Conversation, Preference
from dataprep_assets.tokenization.document_ids import RowIds

_Messages = Sequence[Mapping[str, Any]]


def add_texts(
    blend: BlendDeclaration, store: ArtifactStore, rows: Iterable[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield rows with their texts, as `DocumentTable.add_texts` describes."""
    plan = load_blend_plan(blend, store)
    ranges = _index_files(plan)

    @lru_cache(maxsize=1)
    def prepare_table(partition: str) -> TabledShard:
        (table,) = prepare_row_tables(blend, store, [partition])
        return table

    for (file, partition), rows_of_file in groupby(rows, key=lambda row: (row["file"], _find_partition(ranges, row))):
        changed = build_changed_error(file, blend.dataset)
        if partition is None:
            raise changed
        sizes = {part.entry.relpath: part.entry.size_bytes for part in plan.find_shard(partition)[1].parts}
        with translate_read_errors(file, blend.dataset):
            yield from _read_texts(prepare_table(partition), rows_of_file, file, sizes[file], changed)


def read_source_text(
    blend: BlendDeclaration, store: ArtifactStore, file: str, number: int, unit: str
) -> SourceText | None:
    """Return the text of a row before rewriting, and the number of characters that each rewriter changed.

    Returns None if the row cannot be read or has changed. `unit` is the dataset, with its split.
    """
    plan, rewriting = load_blend_plan(blend, store), blend.rewriting
    assert rewriting is not None, "only for rewritten texts"
    with suppress(DataprepError, OSError):
        for partition in next(planned_unit.partitions for planned_unit in plan.units if planned_unit.name == unit):
            shard = prepare_row_tables(blend, store, [partition])[0].shard
            for source in shard.sources:
                is_inside = source.label == file and (source.rows or RowRange()).select_rows(number, 1) == slice(0, 1)
                if not is_inside:
                    continue
                for _, row in _iterate_rows(source.read_rows(only={number}, as_json=shard.reads_json)):
                    content = open_source_reader(shard)(row, file)
                    if not isinstance(content, str):
                        return SourceText(text=format_row(content), changes=count_rewritten(content, rewriting))
    return None


_Ranges = Mapping[tuple[str, str], Sequence[tuple[RowRange, str]]]
"""Dataset and file → the ranges of the file's rows, each with the shard that reads it."""


def _index_files(plan: BlendPlan) -> _Ranges:
    ranges = defaultdict[tuple[str, str], list[tuple[RowRange, str]]](list)
    for unit in plan.units:
        for index in unit.chosen:
            for part in unit.shards[index].parts:
                partition = format_partition_key(unit.name, index)
                ranges[unit.dataset.name, part.entry.relpath].append((part.rows or RowRange(), partition))
    return ranges


def _find_partition(ranges: _Ranges, row: Mapping[str, Any]) -> str | None:
    """Return the shard that reads a row of the table; None if the plan does not have the row's file."""
    number = row["row"]
    shards = ranges.get((row["source"], row["file"]), ())
    return next((name for part, name in shards if part.first <= number < (part.stop or number + 1)), None)


def _read_texts(
    table: TabledShard, rows: Iterable[Mapping[str, Any]], file: str, size: int, changed: SourceError
) -> Iterator[dict[str, Any]]:
    """Yield rows of one file of a shard with their texts. Raises `changed` if a row differs from the table."""
    shard, ids = table.shard, table.shard.retractions.ids
    read_row = shard.open_reader()
    source = next(source for source in shard.sources if source.label == file)
    raw_rows: RawRows | None = None
    source_rows: Iterator[tuple[int, Mapping[str, Any]]] | None = None
    for row in rows:
        if row["reason"] == RETRACTED:
            yield {**row, "text": None}
            continue
        if raw_rows is None:
            if source.path.stat().st_size != size:
                raise changed
            raw_rows = source.open_raw_rows(as_json=shard.reads_json)
        # Only rows that are bad or left out before the rules have no size.
        if row["bytes"] is None:
            raw_row = raw_rows.find(row["row"])
            if raw_row is None or (raw_row.reason or row["reason"]) != row["reason"]:
                raise changed
            # Only rows that cannot be read have no id.
            row_id = None if ids is None or raw_row.values is None else _format_id(ids, raw_row.values)
            if row.get("id") != row_id:
                raise changed
            yield {**row, "text": raw_row.text, "text_byte": raw_row.byte}
            continue
        # Start at the first wanted row, and read on from there for the other rows.
        if source_rows is None:
            later_rows = replace(source, rows=RowRange(row["row"]))
            source_rows = _iterate_rows(later_rows.read_rows(as_json=shard.reads_json))
        number, values = next((pair for pair in source_rows if pair[0] >= row["row"]), (0, {}))
        content = read_row(values, f"{file}: row {number}") if number == row["row"] else ""
        if isinstance(content, str):
            raise changed
        conversation = table.columns.read(content)
        columns = measure_rows([conversation], table.columns.dataset)
        properties = {name: column[0] for name, column in columns.items()}
        if ids is not None:
            properties["id"] = _format_id(ids, values)
        # A table built by an earlier version may lack a column.
        if any(row.get(name, value) != value for name, value in properties.items()):
            raise changed
        yield {**row, "text": format_row(conversation)}


def _format_id(ids: RowIds, values: Mapping[str, Any]) -> str:
    return f"{ids.hash_row(values):016x}"


def _iterate_rows(blocks: Iterable[Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the number and the values of each good row."""
    for block in blocks:
        yield from zip(block.numbers, block.rows, strict=True)


def format_row(row: Conversation | Preference) -> str:
    """Return the messages of a row as text, each with its role; the sides of a preference begin with their name."""
    if isinstance(row, Conversation):
        return "\n".join(map(_format_message, row.messages)) or select_text(row, "all")
    parts = [*map(_format_message, row.sides[0].messages[: row.prompt])]
    for name, side in (("chosen", row.chosen_side), ("rejected", row.rejected_side)):
        if side is not None:
            parts += [f"[{name}]", *map(_format_message, side.messages[row.prompt :])]
    return "\n".join(parts)


def _format_message(message: Mapping[str, Any]) -> str:
    reasoning = [f"<think>{text}</think>" for key in REASONING_KEYS for text in find_strings(message.get(key))]
    calls = [orjson.dumps(call, default=str).decode() for call in message.get("tool_calls") or ()]
    return f"{message['role']}: " + "\n".join([*reasoning, *find_strings(message.get("content")), *calls])
