"""Tracing of RL records: from a row of a view or a record of a shard to its source row, and back.

Entry point: `RecordTracer`.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import orjson

from dataprep_assets.engine.trace.place import TokenRange
from dataprep_assets.engine.trace.sample import SampledPart, SampledRow, format_value
from dataprep_assets.engine.trace.trace import Trace
from dataprep_assets.formats.json_columns import ABSENT_VALUE
from dataprep_assets.integrity.artifacts import ArtifactHandle
from dataprep_assets.pipelines.blend.rl.record_parts import PartPaths, remove_paths
from dataprep_assets.pipelines.blend.rl.rl_jsonl import read_lines
from dataprep_assets.pipelines.blend.rl.shard import RlJsonlFacts
from dataprep_assets.pipelines.blend.rl.view import RecordSplit, RecordView
from dataprep_assets.pipelines.blend.shard_tracer import ShardTracer, TracedShard


class _RecordShard(TracedShard):
    """A finished shard of RL records, opened for tracing."""

    def __init__(self, handle: ArtifactHandle, unit: str) -> None:
        self.facts = RlJsonlFacts.from_receipt(handle.receipt)
        super().__init__(handle, unit, self.facts.sources)

    @property
    def count(self) -> int:
        return self.facts.records


class RecordTracer(ShardTracer[_RecordShard, RecordView]):
    """Tracer of RL records. Records have no tokens, so each location is a row of a file."""

    view_kind = RecordView
    field = "row"
    noun = "record"
    subject = "record"
    absence = "the row does not exist, or a transform dropped it"

    def _open(self, handle: ArtifactHandle, unit: str) -> _RecordShard:
        return _RecordShard(handle, unit)

    def _trace_row(self, shard: _RecordShard, number: int, *, is_shown: bool) -> Trace:
        file, row = shard.find_source(number)
        return Trace(
            dataset=self._blend.dataset,
            split=shard.unit,
            document=number,
            file=file,
            row=row,
            tokens=0,
            places=tuple(self._find_places(shard, number)),
            text=self._read_line(shard, number) if is_shown else None,
        )

    def _sample_rows(
        self, split: RecordSplit, shard: _RecordShard, index: int, numbers: Sequence[int]
    ) -> Iterator[SampledRow]:
        # The run's file is the concatenation of the shards' files, so its lines are read from the shard.
        line_numbers, first_line = {*numbers}, sum(used.facts.records for used in split.shards[:index])
        lines = read_lines(split.shards[index].fetch_file(self._store))
        for number, line in enumerate(islice(lines, max(line_numbers, default=-1) + 1)):
            if number not in line_numbers:
                continue
            file, row = shard.find_source(number)
            yield SampledRow(
                split=shard.unit,
                file=file,
                row=row,
                partition=shard.partition,
                locations=(
                    _build_place(str(split.run), split.run_file, {"row": first_line + number}),
                    _build_place(str(shard.handle.artifact), shard.facts.file, {"record": number}),
                ),
                parts=tuple(_divide_record(orjson.loads(line), split.fields)),
            )

    def _find_places(self, shard: _RecordShard, number: int) -> Iterator[TokenRange]:
        yield _build_place(str(shard.handle.artifact), shard.facts.file, {"record": number})
        for view in self._views:
            for file, row, sample in view.find(shard.partition, number):
                yield _build_place(str(view.artifact), file, {"row": row, "sample": sample})

    def _read_line(self, shard: _RecordShard, number: int) -> str:
        path = self._store.local(shard.handle.artifact, [shard.facts.file]) / shard.facts.file
        return next(islice(read_lines(path), number, None)).decode().rstrip("\n")


def _build_place(artifact: str, file: str, position: dict[str, Any]) -> TokenRange:
    return TokenRange(artifact=artifact, file=file, start=0, stop=0, at=position)


def _divide_record(record: dict[str, Any], fields: PartPaths) -> Iterator[SampledPart]:
    """Yield the prompt, the expected answer and the tools of a record, then its other fields, as text."""
    parts = fields.split(record)
    paths = {"prompt": parts.prompt, "expected answer": parts.answer, "tools": parts.tools}
    for name, path in paths.items():
        if (value := parts.get_value(path)) is not ABSENT_VALUE:
            yield SampledPart(name=name, text=format_value(value))
    other_fields = remove_paths(record, [path for path in paths.values() if path is not None])
    if other_fields:
        yield SampledPart(name="environment and other fields", text=format_value(other_fields))
