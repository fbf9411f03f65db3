"""Tracing of rows of shards that have views: conversations, preference pairs and RL records.

A trace begins at a row of a shard, a view or a source file, or at the id of a row. The tracer of each stage defines how
a row, its tokens and its locations are read.

Entry points: `TracedShard`, `ShardTracer`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from dataprep_assets.curation.benchmarks.columns import BENCHMARK
from dataprep_assets.curation.selection import DUPLICATE
from dataprep_assets.engine.trace.sample import RowSample, SampledRow, draw_by_shard
from dataprep_assets.engine.trace.trace import SourceText, Trace, TraceQuery, Tracer
from dataprep_assets.errors import ConfigError, NotFoundError, count_of
from dataprep_assets.formats.row_origins import ORIGINS, Origins, parse_origins
from dataprep_assets.integrity.artifacts import ArtifactHandle, ArtifactStore
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.removal.row_ids import RowIndex, describe_missing_id_key, has_index, load_blend_ids
from dataprep_assets.pipelines.blend.view import BlendView, ViewRows, load_run_splits
from dataprep_assets.stream.stream_tracer import find_quarantined
from dataprep_assets.tokenization.document_ids import RowIds, hash_id


class TracedShard(ABC):
    """A finished shard, whose `origins.npy` has the source of each row."""

    def __init__(self, handle: ArtifactHandle, unit: str, sources: Sequence[Any]) -> None:
        """Open a shard of the dataset `unit`; `sources` are the facts of the shard's source files."""
        self.handle, self.unit = handle, unit
        self._files = {source.ordinal: source.file for source in sources}

    @property
    def partition(self) -> str:
        """The shard's partition key."""
        return str(self.handle.artifact.partition)

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of rows to which a query can refer: packed rows, pairs or records."""

    @property
    def sampled_count(self) -> int:
        """Number of rows from which a sample is drawn, each with an origin."""
        return self.count

    @cached_property
    def origins(self) -> Origins:
        """The ordinal of the source and the source row, for each row."""
        return parse_origins(self.handle.read(ORIGINS), 2, f"{self.handle.artifact}/{ORIGINS}")

    def find_rows(self, file: str, row: int) -> list[int]:
        """Return the numbers of the shard's rows that are from a source row."""
        ordinals = [ordinal for ordinal, name in self._files.items() if name == file]
        is_match = np.isin(self.origins[:, 0], ordinals) & (self.origins[:, 1] == row)
        return [int(number) for number in np.flatnonzero(is_match)]

    def find_source(self, number: int) -> tuple[str, int]:
        """Return the source file and the source row of a shard's row."""
        ordinal, row = self.origins[number, :2].tolist()
        return self._files[ordinal], row


def _has_removed(file: str, row: int, shard: TracedShard) -> bool:
    """Return whether a shard left out a source row because it was on the retraction list."""
    receipt = shard.handle.receipt
    removed_ids = receipt.facts.get("retracted", ())
    row_hash = RowIndex(receipt, shard.handle.read).hash_at(file, row) if removed_ids else None
    return row_hash is not None and f"{row_hash:016x}" in removed_ids


S = TypeVar("S", bound=TracedShard)
V = TypeVar("V", bound=BlendView[Any])


class ShardTracer(Tracer, ABC, Generic[S, V]):
    """Tracer of one kind of shards, and of their views."""

    view_kind: type[V]
    field: ClassVar[str]
    """Field of a query that refers to a row of a shard."""
    noun: ClassVar[str]
    """Noun for a row of a shard, in messages."""
    subject: ClassVar[str]
    """Noun for the traced object, in messages."""
    absence: ClassVar[str] = "the row does not exist"
    """Reason why a source row is neither in a shard nor in the quarantine, in messages."""

    def __init__(self, blend: BlendDeclaration, store: ArtifactStore, units: dict[str, list[str]]) -> None:
        """Open the shards of a blend; `units` maps datasets to partition keys."""
        self._blend, self._store = blend, store
        name = self.view_kind.split_type.shards_name
        self._shards = {
            key: self._open(ArtifactHandle.from_store(store, blend.artifact(name, key)), unit)
            for unit, keys in units.items()
            for key in keys
        }

    @abstractmethod
    def _open(self, handle: ArtifactHandle, unit: str) -> S:
        """Return a shard of the dataset `unit`, opened for tracing."""

    @abstractmethod
    def _trace_row(self, shard: S, number: int, *, is_shown: bool) -> Trace:
        """Return the trace of a shard's row, with its text if `is_shown`."""

    def _select_shard_rows(self, shard: S, number: int) -> Sequence[int]:
        """Return the shard's rows to trace for a row to which a query refers."""
        return [number]

    def _select_view_rows(self, view: V, shard: S, number: int) -> Sequence[int]:
        """Return the shard's rows to trace for a row of a view, which belongs to the shard's row `number`."""
        return [number]

    def _select_source_rows(self, shard: S, file: str, row: int) -> Sequence[int]:
        """Return the shard's rows to trace for a source row."""
        return shard.find_rows(file, row)

    def find(self, question: TraceQuery, *, decode: bool = True) -> list[Trace]:
        question.refuse_messages()
        is_shown = decode and not self._blend.sensitive
        return [self._trace_row(*row, is_shown=is_shown) for row in self._find_rows(question)]

    def sample(self, count: int, seed: str) -> RowSample:
        if self._blend.sensitive:
            return RowSample()
        splits = [
            split for split in load_run_splits(self._blend, self._store, self.view_kind.split_type) if split.shards
        ]
        # A shard that a split repeats has several uses, and its rows are the same in each.
        uses = [{shard.partition: index for index, shard in enumerate(split.shards)} for split in splits]
        sizes = [{partition: self._shards[partition].sampled_count for partition in indices} for indices in uses]

        def read_rows() -> Iterator[SampledRow]:
            for split, indices, shard_sizes in zip(splits, uses, sizes, strict=True):
                for partition, numbers in draw_by_shard(shard_sizes, max(count // len(splits), 1), seed):
                    yield from self._sample_rows(split, self._shards[partition], indices[partition], numbers)

        return RowSample(total=sum(sum(shard_sizes.values()) for shard_sizes in sizes), rows=read_rows())

    @abstractmethod
    def _sample_rows(self, split: Any, shard: S, index: int, numbers: Sequence[int]) -> Iterator[SampledRow]:
        """Yield rows of a shard, given their ascending numbers, from the run's file of shard `index` of a split."""

    def _find_rows(self, query: TraceQuery) -> list[tuple[S, int]]:
        """Return the rows to trace for a query, each with its shard."""
        number = getattr(query, self.field)
        if query.view is not None and query.sample is not None:
            return self._find_in_view(query.view, query.split, query.sample)
        if query.file is not None and query.row is not None:
            return self._find_in_source(query, query.file, query.row)
        if number is not None:
            return self._find_in_shard(query.shard, number)
        if query.id is not None:
            return self._find_by_id(query, query.id)
        raise ConfigError(
            f"trace: to find a {self.subject}, set `shard` and `{self.field}`; `view`, `split` and `sample`; "
            "`file` and `row`; or `id`"
        )

    def _find_in_shard(self, partition: str | None, number: int) -> list[tuple[S, int]]:
        shard = self._open_shard(partition)
        if not 0 <= number < shard.count:
            raise NotFoundError(
                f"trace: {self.noun} {number} is out of range: {partition} has "
                f"{count_of(shard.count, self.noun)} (counted from 0)"
            )
        return [(shard, row) for row in self._select_shard_rows(shard, number)]

    def _open_shard(self, partition: str | None) -> S:
        if partition is None:
            raise ConfigError(f"trace: `{self.field}` is counted within a shard. Also set `shard`")
        if partition not in self._shards:
            raise NotFoundError(f"trace: unknown shard {partition!r}. Available: {', '.join(list(self._shards)[:6])}")
        return self._shards[partition]

    def _find_in_view(self, name: str, split: str | None, sample: int) -> list[tuple[S, int]]:
        view, partition, number = self._find_view_row(name, split, sample)
        shard = self._shards[partition]
        return [(shard, row) for row in self._select_view_rows(view, shard, number)]

    def _find_view_row(self, name: str, split: str | None, sample: int) -> tuple[V, str, int]:
        """Return a view, and the partition and number of the shard's row for the view's row `sample`."""
        view = next((view for view in self._views if view.view.name == name), None)
        if view is None:
            raise NotFoundError(
                f"trace: {self._blend.dataset} has no view {name!r}. Add it to `views` and run the dataset"
            )
        if split not in view.counts:
            raise ConfigError(
                f"trace: `sample` is counted within a split. Set `split` to one of {', '.join(view.counts)}"
            )
        if not 0 <= sample < (count := view.counts[split]):
            raise NotFoundError(
                f"trace: sample {sample} is out of range: {split} has {count_of(count, 'sample')} (counted from 0)"
            )
        return view.view, *view.find_row(split, sample)

    @cached_property
    def _views(self) -> list[ViewRows[V]]:
        """The declared views that are built."""
        finished = [name for name in self._blend.views if self._store.receipt(self._blend.artifact(name)) is not None]
        return [ViewRows(self._blend, self._store, self.view_kind.load(name)) for name in finished]

    def _select_shards(self, query: TraceQuery) -> list[S]:
        """Return the shards to which a query is restricted."""
        shards = [self._open_shard(query.shard)] if query.shard is not None else list(self._shards.values())
        return [shard for shard in shards if query.split in (None, shard.unit)]

    def _find_in_source(self, query: TraceQuery, file: str, row: int) -> list[tuple[S, int]]:
        shards = self._select_shards(query)
        rows = [(shard, number) for shard in shards for number in self._select_source_rows(shard, file, row)]
        if not rows:
            raise NotFoundError(
                f"trace: row {row} of {file} is in no {self.noun}: {self._describe_absence(shards, file, row)}"
            )
        return rows

    def _find_by_id(self, query: TraceQuery, row_id: str | int) -> list[tuple[S, int]]:
        """Return every row with a declared id. Raises NotFoundError if no shard has one."""
        ids = load_blend_ids(self._blend)
        if ids is None:
            raise ConfigError(f"trace: {describe_missing_id_key(self._blend)}, or use `file` and `row`")
        if ids.id_field is None:
            raise ConfigError("trace: `id` needs `id_field` in the declaration. Use `file` and `row`")
        assert isinstance(ids, RowIds), "documents of a corpus have their own tracer"
        wanted_hash = np.array([hash_id(row_id, ids.key)], np.uint64)
        rows, absences = list[tuple[S, int]](), list[str]()
        for shard in self._select_shards(query):
            if not has_index(shard.handle.receipt, ids):
                raise ConfigError(
                    f"trace: {shard.partition} was built with a different `id_field` or key. Run {self._blend.dataset}"
                )
            index = RowIndex(shard.handle.receipt, shard.handle.read)
            for line in index.find_lines(wanted_hash):
                file, row = index.locate_row(int(line))
                found_rows = [(shard, number) for number in self._select_source_rows(shard, file, row)]
                rows += found_rows
                if not found_rows:
                    absences.append(f"row {row} of {file}: {self._describe_absence([shard], file, row)}")
        if not rows:
            absence = "; ".join(dict.fromkeys(absences)) or "it is not in the index of any shard"
            raise NotFoundError(f"trace: no {self.subject} of {self._blend.dataset} has this id: {absence}")
        return rows

    def source_text(self, trace: Trace) -> SourceText | None:
        if self._blend.rewriting is None or self._blend.sensitive:
            return None
        # Import the module here, because most traced blends rewrite no texts.
        from dataprep_assets.pipelines.blend.table.source_texts import read_source_text

        return read_source_text(self._blend, self._store, trace.file, trace.row, trace.split)

    def _describe_absence(self, shards: Sequence[S], file: str, row: int) -> str:
        if any(map(partial(_has_removed, file, row), shards)):
            return "it was removed, because it is on the retraction list"
        entries: Iterator[Any] = (find_quarantined(shard.handle, file, row) for shard in shards)
        entry = next((candidate for candidate in entries if candidate is not None), None)
        if entry is None:
            return self.absence
        suffix = "" if entry.get("message") is None else f" (message {entry['message']})"
        # Name the benchmark item, which is public, and the kept row, but no other words, which may quote the row.
        suffix += f" ({entry['words']})" if entry["reason"] in (BENCHMARK, DUPLICATE) else ""
        return f"the row was dropped as {entry['reason']}{suffix}"
