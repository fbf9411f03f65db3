"""Computed ledger of a training run: the documents that a step read, and the steps that read a document.

Training logs nothing. The schedule determines what each step reads, and its artifact keeps the documents of every shard
that it ever listed. So the ledger also covers documents that were retracted later.

Entry points: `documents_of_step`, `find_documents`, `steps_of_document`, `count_tokens_read`, `merge_spans`,
`count_covered_tokens`.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.errors import FormatError
from dataprep_assets.formats.document_index import (
    IDS,
    ROWS,
    FileRows,
    SourceRowIndex,
    build_empty_runs,
    open_ids,
    open_runs,
)
from dataprep_assets.serving.sampler.sampler import Sampler, SampleRead
from dataprep_assets.serving.sampler.training_data import TrainingData, get_documents_folder
from dataprep_assets.serving.sampler.training_schedule import RevisionInterval, SourceShard

SHARD = "shard.json"
_BLOCK = 1 << 18
"""Samples per block."""


@dataclass(frozen=True, kw_only=True)
class SeenDocument:
    """A document, or a part of one, that a step read.

    Attributes:
        step: Number of the step.
        position: Position of the sample in the step's batch.
        source: Name of the source.
        epoch: Number of complete passes over the source before this one.
        shard: Shard of the source's dataset.
        document: Number of the document in the shard.
        file: Source file of the document.
        row: Row of the document in the file, from 1.
        id: Hash of the document in the index, 16 hex digits; None if its dataset has no ids.
        tokens: Number of its tokens that were read.
    """

    step: int
    position: int
    source: str
    epoch: int
    shard: str
    document: int
    file: str
    row: int
    id: str | None
    tokens: int

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dictionary of builtins."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class KeptDocument:
    """A document in a shard of a schedule, with its token range, its source row and its hash in the index.

    `hash` is None if the dataset has no ids.
    """

    dataset: str
    shard: SourceShard
    document: int
    start: int
    stop: int
    file: str
    row: int
    hash: int | None


class SeenLedger:
    """Access to the documents stored in a schedule's artifact."""

    def __init__(self, data: TrainingData) -> None:
        self.data = data
        self._names = {record.path for record in data.handle.files}
        # Cache per object, because a cache on the method would keep every ledger alive.
        self.rows = lru_cache(maxsize=None)(self._read_source_rows)
        # Use the content as the key, so that a shard that several revisions read is one entry unless its content
        # changed in between.
        self.shards = {
            shard.content: (source.dataset, shard)
            for revision in data.schedule.revisions
            for source in revision.sources
            for shard in source.shards
        }

    def get_shard_facts(self, content: str) -> dict[str, Any]:
        """Return the schedule's facts about a shard: dataset, partition, source files and the origin of its ids."""
        name = f"{get_documents_folder(content)}/{SHARD}"
        try:
            facts: dict[str, Any] = load_untrusted_json(self.data.handle.read(name))
        except ValueError as error:
            raise FormatError(
                f"{self.data.handle.location}/{name}: invalid JSON: {error}. Run `dataprep verify` to see the damage"
            ) from error
        return facts

    def ids(self, content: str) -> NDArray[np.uint64] | None:
        """Return the ids of a shard's documents, or None if its dataset has no ids."""
        name = f"{get_documents_folder(content)}/{IDS}"
        if name not in self._names:
            return None
        return open_ids(self.data.handle.path(name), len(self.data.open_document_ends(self.shards[content][1])))

    def _read_source_rows(self, content: str) -> tuple[list[str], SourceRowIndex]:
        """Return the source files of a shard, and the mapping of its documents to their rows."""
        sources = self.get_shard_facts(content)["sources"]
        # Begin at row 1 if the key `rows` is missing, because only files that are divided between shards have this key.
        files = [FileRows(documents=line["documents"], first_row=line.get("rows", [1])[0]) for line in sources]
        name = f"{get_documents_folder(content)}/{ROWS}"
        # Use an empty index if no row was left out, because the file is then missing.
        runs = open_runs(self.data.handle.path(name)) if name in self._names else build_empty_runs()
        return [str(line["file"]) for line in sources], SourceRowIndex(files, runs)

    def get_kept_document(self, content: str, document: int) -> KeptDocument:
        """Return a document of a shard."""
        dataset, shard = self.shards[content]
        ends = self.data.open_document_ends(shard)
        files, rows = self.rows(content)
        file, row = rows.locate(document)
        start = int(ends[document - 1]) if document else 0
        ids = self.ids(content)
        return KeptDocument(
            dataset=dataset, shard=shard, document=document, start=start, stop=int(ends[document]), file=files[file],
            row=row, hash=None if ids is None else int(ids[document]),
        )  # fmt: skip

    def list_documents_within(self, shard: SourceShard, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield each document with tokens in `[start, stop)`, and the number of these tokens."""
        ends = self.data.open_document_ends(shard)
        position = start
        # `side="right"` skips documents that end where the span begins, because they have no tokens in the span. Empty
        # documents have none either.
        for document in range(int(np.searchsorted(ends, np.uint64(start), side="right")), len(ends)):
            to = min(int(ends[document]), stop)
            if to > position:
                yield document, to - position
            if to >= stop:
                return
            position = to


def documents_of_step(ledger: SeenLedger, step: int, *, rank: int = 0, world_size: int = 1) -> list[SeenDocument]:
    """Return the documents that a step, or one of its ranks, read, in the order of the batch."""
    sampler, documents = ledger.data.sampler, []
    positions = sampler.find_positions(step, rank, world_size)
    sources = sampler.find_rule(step).revision.sources
    spans = sampler.find_step_spans(step, positions)
    for row, number, epoch, shard_number, start, stop in zip(*(column.tolist() for column in spans), strict=True):
        source, shard = sources[number], sources[number].shards[shard_number]
        for document, tokens in ledger.list_documents_within(shard, start, stop):
            kept_document = ledger.get_kept_document(shard.content, document)
            documents.append(
                SeenDocument(
                    step=step,
                    position=int(positions[row]),
                    source=source.name,
                    epoch=epoch,
                    shard=shard.name,
                    document=document,
                    file=kept_document.file,
                    row=kept_document.row,
                    id=None if kept_document.hash is None else f"{kept_document.hash:016x}",
                    tokens=tokens,
                )
            )
    return documents


def find_documents(
    ledger: SeenLedger,
    *,
    rows: Mapping[str, Collection[int]] | None = None,
    hashes: Collection[int] = (),
    dataset: str | None = None,
) -> list[KeptDocument]:
    """Return the documents with the given source rows or ids, from every shard that ever contained them.

    Args:
        ledger: Ledger of the schedule.
        rows: Maps source files to rows, from 1.
        hashes: Ids of the index.
        dataset: Restricts the search to one dataset; default: all.
    """
    kept_documents, sorted_hashes = [], np.array(sorted(set(hashes)), np.uint64)
    for content, (shard_dataset, _) in ledger.shards.items():
        if dataset not in (None, shard_dataset):
            continue
        documents: set[int] = set()
        if len(sorted_hashes) and (ids := ledger.ids(content)) is not None:
            documents |= {*np.flatnonzero(np.isin(ids, sorted_hashes)).tolist()}
        if rows:
            files, index = ledger.rows(content)
            for number, name in enumerate(files):
                row_documents = (index.find_document(number, row) for row in rows.get(name, ()))
                documents |= {document for document in row_documents if document is not None}
        kept_documents += [ledger.get_kept_document(content, document) for document in sorted(documents)]
    return kept_documents


@dataclass(kw_only=True)
class ShardReads:
    """Tokens of a shard that the steps read for one source.

    Attributes:
        tokens: Number of tokens read of each document, int64 of shape `(documents,)`; a token read twice counts twice.
        starts, stops: The tokens read at least once, as disjoint spans of the shard in ascending order, int64 of
            shape `(spans,)`.
    """

    tokens: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    def add(self, tokens: NDArray[np.int64], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        """Add tokens of the documents, and the spans that contain them."""
        self.tokens += tokens
        self.starts, self.stops = merge_spans(
            np.concatenate([self.starts, starts]), np.concatenate([self.stops, stops])
        )

    def select(self, first_document: int, document_stop: int, begin: int, end: int) -> "ShardReads":
        """Return the reads of the documents `[first_document, document_stop)`, whose tokens are `[begin, end)`.

        In the result, the first of these tokens has the position 0.
        """
        low, high = np.searchsorted(self.stops, begin, side="right"), np.searchsorted(self.starts, end)
        return ShardReads(
            tokens=self.tokens[first_document:document_stop],
            starts=np.maximum(self.starts[low:high], begin) - begin,
            stops=np.minimum(self.stops[low:high], end) - begin,
        )


def count_tokens_read(ledger: SeenLedger, until: int) -> dict[tuple[str, str], ShardReads]:
    """Return the tokens that the steps before `until` read, by the name of a source and the content of its shard.

    Complete epochs are counted without looking at their samples.
    """
    reads_by_shard: dict[tuple[str, str], ShardReads] = {}
    nothing = np.empty(0, np.int64)
    for rule in ledger.data.sampler.rules:
        stop = min(rule.stop, until)
        if stop <= rule.first:
            continue
        for cursor, count in zip(rule.turns, rule.count_samples(stop), strict=True):
            # At most two epochs are read in part: the one in progress at the beginning of the turn, and the last one.
            epoch = int(cursor.locate(np.array([count]))[0][0])
            complete_epochs = max(epoch - cursor.epoch - 1, 0)
            epoch_start = cursor.left + complete_epochs * cursor.epoch_samples
            parts = [(0, count)] if epoch == cursor.epoch else [(0, cursor.left), (epoch_start, count)]
            for shard in cursor.source.shards:
                # Convert the ends to int64, because NumPy promotes a mix of uint64 and int64 to float64.
                ends = np.asarray(ledger.data.open_document_ends(shard), np.int64)
                reads = reads_by_shard.setdefault(
                    (cursor.source.name, shard.content),
                    ShardReads(tokens=np.zeros(len(ends), np.int64), starts=nothing, stops=nothing),
                )
                if complete_epochs and len(ends):
                    # A complete epoch reads every document once.
                    reads.add(complete_epochs * np.diff(ends, prepend=0), np.array([0]), ends[-1:])
            for part_start, part_stop in parts:
                for block_start in range(part_start, part_stop, _BLOCK):
                    pieces = cursor.find_spans(np.arange(block_start, min(block_start + _BLOCK, part_stop)))[1]
                    for number in np.unique(pieces.shard).tolist():
                        shard, own_pieces = cursor.source.shards[number], pieces.select(pieces.shard == number)
                        ends = np.asarray(ledger.data.open_document_ends(shard), np.int64)
                        reads_by_shard[cursor.source.name, shard.content].add(
                            count_covered_tokens(ends, own_pieces.start, own_pieces.stop),
                            own_pieces.start,
                            own_pieces.stop,
                        )
    return reads_by_shard


def merge_spans(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the tokens that the spans `[starts, stops)` contain, as disjoint spans in ascending order."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(stops[order])
    # A span begins where no earlier span reaches. Spans that touch become one.
    is_first = np.concatenate([np.ones(min(len(starts), 1), np.bool_), starts[1:] > ends[:-1]])
    is_last = np.concatenate([is_first[1:], np.ones(min(len(starts), 1), np.bool_)])
    return starts[is_first], ends[is_last]


def count_covered_tokens(
    ends: NDArray[np.int64], starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return how many tokens of each document the token spans `[starts, stops)` cover; no span may be empty.

    `ends` contains the ends of the documents.
    """
    begins, size = np.concatenate([[0], ends[:-1]]), len(ends)
    first_documents, last_documents = (
        np.searchsorted(ends, starts, side="right"),
        np.searchsorted(ends, stops - 1, side="right"),
    )
    # Count all tokens of the documents that a span touches, minus the tokens before and after the span.
    coverage = (
        np.bincount(first_documents, minlength=size + 1)
        - np.bincount(last_documents + 1, minlength=size + 1)[: size + 1]
    )
    document_tokens = np.cumsum(coverage)[:size] * (ends - begins)
    tokens_before = np.bincount(first_documents, starts - begins[first_documents], size)
    tokens_after = np.bincount(last_documents, ends[last_documents] - stops, size)
    # Convert back to integers, because `bincount` returns float64 if it has weights. The values are exact below 2**53.
    read_tokens: NDArray[np.int64] = (
        document_tokens - tokens_before.astype(np.int64) - tokens_after.astype(np.int64)
    ).astype(np.int64)
    return read_tokens


def steps_of_document(ledger: SeenLedger, document: KeptDocument, *, until: int | None = None) -> list[SampleRead]:
    """Return all readings of a document by steps before `until`, in order."""
    readings = ledger.data.sampler.find_readings(document.shard.content, document.start, document.stop, until=until)
    return sorted(readings, key=lambda reading: (reading.step, reading.position, reading.start))


def find_withdrawn_readings(ledger: SeenLedger, document: KeptDocument) -> list[tuple[RevisionInterval, SampleRead]]:
    """Return the readings of a document by steps that were taken back, each with the interval of its revision."""
    data, samples_read = ledger.data, []
    for interval in data.schedule.withdrawn_intervals:
        # Use the schedule as it was before these steps were taken back, because the current schedule has no rule for
        # them.
        sampler = Sampler(data.schedule.take_first_revisions(interval.revision + 1), data.packs)
        span = (document.start, document.stop)
        readings = sampler.find_readings(document.shard.content, *span, first=interval.first, until=interval.stop)
        samples_read += [(interval, one) for one in sorted(readings, key=lambda one: (one.step, one.position))]
    return samples_read
