"""Tracing of pretraining documents and chat conversations in a blend; records of `rl` keep no positions.

Entry points: `blend_tracer`, `ChatTracer`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.trace.place import TokenRange
from dataprep_assets.engine.trace.trace import Question, Trace, Tracer
from dataprep_assets.errors import ConfigError, NotFoundError
from dataprep_assets.formats.row_origins import ORIGINS
from dataprep_assets.integrity.artifacts import ArtifactHandle, ArtifactStore
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.indexed_bins import INDEXED_BINS
from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
from dataprep_assets.pipelines.blend.sft.packed_sft import PACKED_SFT
from dataprep_assets.pipelines.blend.sft.shard import PACKED, PackedSftFacts
from dataprep_assets.pipelines.blend.stream import blend_ids
from dataprep_assets.stream.stream_tracer import StreamTracer, find_quarantined, traced_shards
from dataprep_assets.stream.tokenizer import load_bundle
from dataprep_assets.stream.traced_rows import TracedRows, TracedSegment


def blend_tracer(blend: BlendDeclaration, store: ArtifactStore, specs: Sequence[ArtifactSpec]) -> Tracer:
    """Return the tracer of a blend, which treats the blend's datasets as splits.

    Args:
        blend: The blend; raises ConfigError if its stage is `rl`.
        store: The store of its artifacts, with all its shards.
        specs: Its artifacts.
    """
    if blend.stage == "rl":
        raise ConfigError(f"trace: {blend.dataset}: stage rl does not record the source rows")
    plan = load_blend_plan(blend, store)
    if blend.stage == "sft":
        return ChatTracer(blend, store, {unit.name: unit.partitions for unit in plan.units})
    splits = {
        unit.name: traced_shards(store, [blend.artifact(INDEXED_BINS, key) for key in unit.partitions])
        for unit in plan.units
    }
    bundle = partial(load_bundle, blend.required_tokenizer)
    return StreamTracer(blend, store, specs, splits, bundle=bundle, ids=lambda: blend_ids(blend))


class _PackedShard:
    """A shard of packed conversations."""

    def __init__(self, handle: ArtifactHandle, unit: str) -> None:
        self.handle, self.unit = handle, unit
        facts = PackedSftFacts.of(handle.receipt)
        self.files = {source.ordinal: source.file for source in facts.sources}
        self.rows = TracedRows(handle, None if facts.empty else PACKED, ORIGINS, 3)

    def find_sequences(self, file: str, row: int) -> NDArray[np.intp]:
        """Return the sequences of a source row."""
        ordinals, origins = [ordinal for ordinal, name in self.files.items() if name == file], self.rows.origins
        return np.flatnonzero(np.isin(origins[:, 0], ordinals) & (origins[:, 1] == row))

    def source(self, sequence: int) -> tuple[str, int]:
        """Return the file and row of a sequence."""
        ordinal, row, _ = self.rows.origins[sequence].tolist()
        return self.files[ordinal], row

    def locate(self, sequence: TracedSegment) -> TokenRange:
        """Return the location of a sequence."""
        return TokenRange(
            artifact=str(self.handle.artifact),
            file=PACKED,
            start=sequence.start,
            stop=sequence.stop,
            at={"row": sequence.row, "sequence": sequence.number},
        )


class ChatTracer(Tracer):
    """Tracer of packed conversations, from a packed row to its source rows and back."""

    def __init__(self, blend: BlendDeclaration, store: ArtifactStore, units: dict[str, list[str]]) -> None:
        """Open the shards of a blend, given as partitions by dataset."""
        self._blend = blend
        self._shards = {
            key: _PackedShard(ArtifactHandle.of(store, blend.artifact(PACKED_SFT, key)), unit)
            for unit, keys in units.items()
            for key in keys
        }

    def find(self, question: Question, *, decode: bool = True) -> list[Trace]:
        if question.packed_row is not None:
            locations = self._of_packed_row(question.shard, question.packed_row)
        elif question.file is not None and question.row is not None:
            locations = [
                (shard, question.file, question.row)
                for shard in self._choose_shards(question)
                if len(shard.find_sequences(question.file, question.row))
            ]
            if not locations:
                raise NotFoundError(self._describe_absence(question.file, question.row, self._choose_shards(question)))
        else:
            raise ConfigError("trace: set `shard` and `packed_row`, or `file` and `row`, to find a conversation")
        return [self._trace(*location, shown=decode and not self._blend.sensitive) for location in locations]

    def _describe_absence(self, file: str, row: int, shards: Sequence[_PackedShard]) -> str:
        sentence = f"trace: row {row} of {file} is in no packed row"
        entry = next(
            (candidate for shard in shards if (candidate := find_quarantined(shard.handle, file, row)) is not None),
            None,
        )
        if entry is None:
            return f"{sentence}: it does not exist, or was left out to meet the weights"
        suffix = "" if entry.get("message") is None else f" for its message {entry['message']}"
        return f"{sentence}: it was dropped as {entry['reason']}{suffix}"

    def _choose_shards(self, question: Question) -> list[_PackedShard]:
        if question.shard is not None:
            return [self._shard(question.shard)]
        return [shard for shard in self._shards.values() if question.split in (None, shard.unit)]

    def _shard(self, partition: str | None) -> _PackedShard:
        if partition is None:
            raise ConfigError("trace: `packed_row` is counted within a shard. Also set `shard`")
        if partition not in self._shards:
            raise NotFoundError(f"trace: unknown shard {partition!r}. Available: {', '.join(list(self._shards)[:6])}")
        return self._shards[partition]

    def _of_packed_row(self, partition: str | None, row: int) -> list[tuple[_PackedShard, str, int]]:
        shard = self._shard(partition)
        if not 0 <= row < (count := len(shard.rows)):
            raise NotFoundError(f"trace: packed row {row} is out of range: {partition} has {count} (counted from 0)")
        # several turns of a conversation may be in one row, so duplicates are removed
        sources = dict.fromkeys(shard.source(sequence) for sequence in shard.rows.segments(row))
        return [(shard, file, number) for file, number in sources]

    def _trace(self, shard: _PackedShard, file: str, row: int, *, shown: bool) -> Trace:
        sequences = shard.find_sequences(file, row).tolist()
        segments = [shard.rows.segment(sequence) for sequence in sequences]
        return Trace(
            dataset=self._blend.dataset,
            split=shard.unit,
            document=sequences[0],
            file=file,
            row=row,
            tokens=sum(len(sequence.ids) for sequence in segments),
            places=tuple(map(shard.locate, segments)),
            text="\n".join(self._decoded(sequence.ids) for sequence in segments) if shown else None,
        )

    def _decoded(self, ids: NDArray[Any]) -> str:
        return load_bundle(self._blend.required_tokenizer).decode(ids)
