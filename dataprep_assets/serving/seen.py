"""The ledger of a training run, computed: which documents a step read, and which steps read a document.

Nothing is logged while training; the schedule says what each step reads, and its artifact keeps the documents of every
shard that it ever named, so it also tells of documents that were retracted since.

Entry points: `documents_of_step`, `find_documents`, `steps_of_document`.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import FormatError, NotFoundError
from dataprep_assets.formats.document_index import IDS, ROWS, DocumentRows, FileRows, no_runs, open_ids, open_runs
from dataprep_assets.serving.sampler import Reading, Sampler
from dataprep_assets.serving.training_data import TrainingData, documents_folder
from dataprep_assets.serving.training_schedule import Reign, SourceShard

SHARD = "shard.json"


@dataclass(frozen=True, kw_only=True)
class SeenDocument:
    """A document, or the part of one, that a step read.

    Attributes:
        step: The step.
        position: Which sample of the step's batch.
        source: The source.
        epoch: How many times all of the source had been read before.
        shard: The shard of the source's dataset.
        document: Number of the document in the shard.
        file: Its source file.
        row: Its row there, from 1.
        id: The hash by which the index knows it, 16 hex digits; None if its dataset has none.
        tokens: How many of its tokens were read.
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
        """Plain builtins."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class KeptDocument:
    """A document that a schedule knows: its shard's name and content, its number there, and its tokens."""

    dataset: str
    shard: SourceShard
    document: int
    start: int
    stop: int
    file: str
    row: int


class Ledger:
    """What the artifact of a schedule knows of documents."""

    def __init__(self, data: TrainingData) -> None:
        self.data = data
        self._names = {record.path for record in data.handle.files}
        self.rows = lru_cache(maxsize=None)(self._rows)
        self.shards = {
            shard.content: (source.dataset, shard)
            for revision in data.schedule.revisions
            for source in revision.sources
            for shard in source.shards
        }

    def told(self, content: str) -> dict[str, Any]:
        """What the schedule says of a shard: dataset, partition, source files, how its ids were made."""
        name = f"{documents_folder(content)}/{SHARD}"
        try:
            found: dict[str, Any] = json.loads(self.data.handle.read(name))
        except ValueError as error:
            raise FormatError(f"{self.data.handle.location}/{name}: not JSON: {error}") from error
        return found

    def ids(self, content: str) -> NDArray[np.uint64] | None:
        """The ids of a shard's documents; None if its dataset has none."""
        name = f"{documents_folder(content)}/{IDS}"
        if name not in self._names:
            return None
        return open_ids(self.data.handle.path(name), len(self.data.ends(self.shards[content][1])))

    def _rows(self, content: str) -> tuple[list[str], DocumentRows]:
        """The source files of a shard, and which rows of them its documents are."""
        sources = self.told(content)["sources"]
        files = [FileRows(documents=line["documents"], first_row=line.get("rows", [1])[0]) for line in sources]
        name = f"{documents_folder(content)}/{ROWS}"
        runs = open_runs(self.data.handle.path(name)) if name in self._names else no_runs()
        return [str(line["file"]) for line in sources], DocumentRows(files, runs)

    def kept(self, content: str, document: int) -> KeptDocument:
        """A document of a shard."""
        dataset, shard = self.shards[content]
        ends = self.data.ends(shard)
        files, rows = self.rows(content)
        file, row = rows.locate(document)
        start = int(ends[document - 1]) if document else 0
        return KeptDocument(
            dataset=dataset, shard=shard, document=document, start=start, stop=int(ends[document]), file=files[file],
            row=row,
        )  # fmt: skip

    def within(self, shard: SourceShard, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """(document, its tokens among `[start, stop)`) of each document that has any."""
        ends = self.data.ends(shard)
        at = start
        for document in range(int(np.searchsorted(ends, start, side="right")), len(ends)):
            to = min(int(ends[document]), stop)
            if to > at:
                yield document, to - at
            if to >= stop:
                return
            at = to


def documents_of_step(ledger: Ledger, step: int, *, rank: int = 0, world_size: int = 1) -> list[SeenDocument]:
    """The documents that a step read, or that one of its ranks did, in the order of the batch."""
    sampler, found = ledger.data.sampler, []
    positions = sampler.positions(step, rank, world_size)
    sources = sampler.rule(step).revision.sources
    spans = sampler.spans(step, positions)
    for row, number, epoch, at, start, stop in zip(*(column.tolist() for column in spans), strict=True):
        source, shard = sources[number], sources[number].shards[at]
        ids = ledger.ids(shard.content)
        for document, tokens in ledger.within(shard, start, stop):
            kept = ledger.kept(shard.content, document)
            found.append(
                SeenDocument(
                    step=step,
                    position=int(positions[row]),
                    source=source.name,
                    epoch=epoch,
                    shard=shard.name,
                    document=document,
                    file=kept.file,
                    row=kept.row,
                    id=None if ids is None else f"{int(ids[document]):016x}",
                    tokens=tokens,
                )
            )
    return found


def find_documents(
    ledger: Ledger, *, file: str | None = None, row: int | None = None, hashes: NDArray[np.uint64] | None = None
) -> list[KeptDocument]:
    """The documents that were a row of a source file, or have one of these hashes, in every shard that ever held them.

    Raises NotFoundError if the schedule never named a shard with such a document.
    """
    found = []
    for content in ledger.shards:
        documents: list[int] = []
        if hashes is not None:
            ids = ledger.ids(content)
            documents = [] if ids is None else np.flatnonzero(np.isin(ids, hashes)).tolist()
        else:
            files, rows = ledger.rows(content)
            for number in (number for number, name in enumerate(files) if name == file):
                if (document := rows.document(number, int(row or 0))) is not None:
                    documents.append(document)
        found += [ledger.kept(content, document) for document in documents]
    if not found:
        what = f"{file}:{row}" if hashes is None else "this id"
        raise NotFoundError(f"seen: no shard that {ledger.data.name} names has a document of {what}")
    return found


def steps_of_document(ledger: Ledger, document: KeptDocument, *, until: int | None = None) -> list[Reading]:
    """Every time that a step before `until` reads a document, in order."""
    readings = ledger.data.sampler.readings(document.shard.content, document.start, document.stop, until=until)
    return sorted(readings, key=lambda one: (one.step, one.position, one.start))


def taken_back(ledger: Ledger, document: KeptDocument) -> list[tuple[Reign, Reading]]:
    """The times that a document was read in steps that were taken back, with the revision of these."""
    data, found = ledger.data, []
    for reign in data.schedule.taken_back:
        sampler = Sampler(data.schedule.upto(reign.revision + 1), data.packs)
        span = (document.start, document.stop)
        readings = sampler.readings(document.shard.content, *span, first=reign.first, until=reign.stop)
        found += [(reign, one) for one in sorted(readings, key=lambda one: (one.step, one.position))]
    return found
