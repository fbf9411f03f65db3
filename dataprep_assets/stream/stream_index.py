"""Finished shards of token bins as one searchable stream: finds the document of a token, a row or a hash.

Receipts are read when an index is opened; files of a shard are mapped, or read by ranges, when a question needs them.

Entry points: `StreamIndex`, `IndexedShard`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.retractions import are_listed, hex_ids
from dataprep_assets.engine.artifact.metadata_values import Shown
from dataprep_assets.engine.checks.check import ledger_of
from dataprep_assets.engine.trace.place import DocumentSpan
from dataprep_assets.errors import DataprepError, NotFoundError
from dataprep_assets.formats.document_index import IDS, ROWS, DocumentRows, open_ids
from dataprep_assets.integrity.artifacts import Artifact, ArtifactHandle, ArtifactStore, RemoteTokens
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.stream.token_shard import ENDS, TOKENS, TokenBinsFacts, document_rows

_PAGE = 1 << 13
"""Numbers read at a time when searching a remote file: 64 KiB."""
_BLOCK = 1 << 20
"""Hashes of a remote file compared at a time: 8 MiB."""

Numbers = NDArray[Any] | RemoteTokens


def search(numbers: Numbers, value: int) -> int:
    """How many of the increasing `numbers` are at most `value`; of a remote file a few pages are read."""
    if isinstance(numbers, np.ndarray):
        # as uint64: given a Python int, NumPy compares as float64 and converts the whole mapped file to it
        return int(np.searchsorted(numbers, np.uint64(value), side="right"))
    low, high = 0, -(-len(numbers) // _PAGE)
    while low < high:  # the first page whose last number is above the value
        middle = (low + high) // 2
        page = numbers[middle * _PAGE : (middle + 1) * _PAGE]
        if int(page[-1]) <= value:
            low = middle + 1
        elif int(page[0]) > value and middle > low:
            high = middle
        else:
            # within this page, or at its beginning where no page is left before it
            return middle * _PAGE + int(np.searchsorted(page, np.uint64(value), side="right"))
    return min(low * _PAGE, len(numbers))


class IndexedShard:
    """One finished shard."""

    def __init__(self, store: ArtifactStore, artifact: Artifact, receipt: Receipt) -> None:
        """Take a shard as its receipt describes it."""
        self.handle = ArtifactHandle(store, artifact, receipt)
        self.facts = TokenBinsFacts.of(receipt)
        self.documents, self.tokens = ledger_of(receipt).documents, ledger_of(receipt).tokens

    @property
    def partition(self) -> str:
        """Its partition key."""
        return self.handle.artifact.partition or ""

    @property
    def files(self) -> list[str]:
        """Its source files, in order."""
        return [line["file"] for line in self.handle.receipt.sources]

    @cached_property
    def ends(self) -> Numbers:
        """Where its documents end."""
        return self.handle.numbers(ENDS, "uint64")

    @cached_property
    def hashes(self) -> Numbers:
        """The hash of each of its documents."""
        return self.handle.numbers(IDS, "uint64")

    @cached_property
    def _tokens(self) -> Numbers:
        return self.handle.tokens(TOKENS)

    @cached_property
    def rows(self) -> DocumentRows:
        """Which rows its documents were."""
        # a shard of which no row was left out has no such file; then no folder is looked at
        has_rows_file = any(record.path == ROWS for record in self.handle.receipt.files)
        return document_rows(self.handle.path(ROWS).parent if has_rows_file else Path(), self.handle.receipt)

    def span(self, document: int) -> tuple[int, int]:
        """First token and token after the last of a document of the shard, which must exist."""
        start = int(self.ends[document - 1]) if document else 0
        return start, int(self.ends[document])

    def with_hash(self, wanted: int) -> Iterator[int]:
        """Numbers of its documents with this hash."""
        yield from self.with_hashes(np.array([wanted], np.uint64)).tolist()

    def with_hashes(self, wanted: NDArray[np.uint64]) -> NDArray[np.intp]:
        """Numbers of its documents, ascending, whose hash is one of these, which are sorted."""
        hashes = self.hashes
        # a remote file block by block, so that one is in memory at a time; `or 1`: `range` refuses a step of 0
        step = len(hashes) or 1 if isinstance(hashes, np.ndarray) else _BLOCK
        starts = range(0, len(hashes), step)
        blocks = ((start, np.asarray(hashes[start : start + step])) for start in starts)
        matches = [start + np.flatnonzero(are_listed(block, wanted)) for start, block in blocks]
        return np.concatenate(matches) if matches else np.empty(0, np.intp)

    def hash_at(self, file: str, row: int) -> int | None:
        """The hash of the document that a row of a source file became; None if it became none in this shard."""
        if file not in self.files:
            return None
        document = self.rows.document(self.files.index(file), row)
        return None if document is None else int(self.hashes[document])

    def tokens_of(self, documents: NDArray[np.intp]) -> int:
        """Number of tokens of some of its documents, together."""
        # as int64: with the 0 that is put before them NumPy would make float64 of uint64
        ends = np.asarray(self.ends[:], np.int64)
        return int(np.diff(ends, prepend=0)[documents].sum())

    def sources_of(self, documents: Sequence[int] | NDArray[np.intp]) -> Mapping[str, str]:
        """The source files that some of its documents came from: name → SHA-256."""
        lines = self.handle.receipt.sources
        stops = np.cumsum([line["documents"] for line in lines])
        # `right`: a file that gave no document stops where the one before it does, and is passed over
        line_numbers = np.unique(np.searchsorted(stops, np.asarray(documents), side="right"))
        return {str(lines[number]["file"]): str(lines[number]["sha256"]) for number in line_numbers.tolist()}

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The shard's token ids `[start, stop)`."""
        return np.asarray(self._tokens[start:stop])


class StreamIndex:
    """The shards of a dataset by split.

    Each split is a stream whose documents and tokens are numbered across its shards.

    Methods raise NotFoundError, which says what there is, for anything that is not in it.
    """

    def __init__(self, splits: Mapping[str, Sequence[IndexedShard]]) -> None:
        """Index the shards of each split, in the order of its stream."""
        self.splits = {split: list(shards) for split, shards in splits.items()}
        # partition → its split, and its place in it
        self._home = {
            shard.partition: (split, number)
            for split, split_shards in self.splits.items()
            for number, shard in enumerate(split_shards)
        }
        # what lies before each shard of a split, and the total at the end
        self._documents = {
            split: _sums(shard.documents for shard in split_shards) for split, split_shards in self.splits.items()
        }
        self._tokens = {
            split: _sums(shard.tokens for shard in split_shards) for split, split_shards in self.splits.items()
        }

    @cached_property
    def _files(self) -> dict[str, list[tuple[IndexedShard, int]]]:
        # a file that is cut by rows is in several shards
        shards_by_file: dict[str, list[tuple[IndexedShard, int]]] = {}
        for shard in self.shards():
            for number, file in enumerate(shard.files):
                shards_by_file.setdefault(file, []).append((shard, number))
        return shards_by_file

    def shards(self, split: str | None = None, partition: str | None = None) -> list[IndexedShard]:
        """All shards, those of a split, or one."""
        if partition is not None:
            return [self.shard(partition)]
        self._require_split(split)
        return [shard for name, split_shards in self.splits.items() if split in (None, name) for shard in split_shards]

    def shard(self, partition: str) -> IndexedShard:
        """One shard."""
        if partition not in self._home:
            raise NotFoundError(f"trace: unknown shard {partition!r}. Available: {_shorten_names(list(self._home))}")
        split, number = self._home[partition]
        return self.splits[split][number]

    def by_document(self, split: str | None, partition: str | None, document: int) -> tuple[IndexedShard, int]:
        """The shard, and the number in it, of a document given by its number in a shard or a split."""
        if partition is not None:
            shard = self.shard(partition)
            _require_within("document", document, shard.documents, partition)
            return shard, document
        split = self.one_split(split)
        sums = self._documents[split]
        _require_within("document", document, int(sums[-1]), split)
        # `right`: an empty shard begins at the number of the next one, which holds the document
        number = int(np.searchsorted(sums, document, side="right")) - 1
        return self.splits[split][number], document - int(sums[number])

    def by_token(self, split: str | None, partition: str | None, token: int) -> tuple[IndexedShard, int]:
        """The shard, and the number in it, of the document that holds a token of a shard or a split."""
        if partition is not None:
            shard = self.shard(partition)
            _require_within("token", token, shard.tokens, partition)
        else:
            split = self.one_split(split)
            sums = self._tokens[split]
            _require_within("token", token, int(sums[-1]), split)
            number = int(np.searchsorted(sums, token, side="right")) - 1
            shard, token = self.splits[split][number], token - int(sums[number])
        return shard, search(shard.ends, token)

    def by_row(self, file: str, row: int) -> Iterator[tuple[IndexedShard, int]]:
        """The shard and document that a source row became; none if it was left out."""
        if file not in self._files:
            raise NotFoundError(f"trace: unknown source file {file!r}. Available: {_shorten_names(list(self._files))}")
        for shard, number in self._files[file]:
            if (document := shard.rows.document(number, row)) is not None:
                yield shard, document

    def holders(self, file: str) -> list[IndexedShard]:
        """The shards that hold rows of a file."""
        return [shard for shard, _ in self._files.get(file, [])]

    def source(self, shard: IndexedShard, document: int) -> tuple[str, int]:
        """The source file and row of a document of a shard."""
        file, row = shard.rows.locate(document)
        return shard.files[file], row

    def span(self, shard: IndexedShard, document: int) -> DocumentSpan:
        """The span of a document of a shard, in the shard and in its split."""
        split, number = self._home[shard.partition]
        start, stop = shard.span(document)
        return DocumentSpan(
            split=split,
            document=int(self._documents[split][number]) + document,
            start=int(self._tokens[split][number]) + start,
            shard=shard.partition,
            shard_document=document,
            shard_start=start,
            tokens=stop - start,
        )

    def one_split(self, split: str | None) -> str:
        """The split that is named, or the only one."""
        self._require_split(split)
        if split is not None:
            return split
        if len(self.splits) > 1:
            raise NotFoundError(
                f"trace: numbers are per split. Set split to one of {_shorten_names(list(self.splits))}, or set shard"
            )
        return next(iter(self.splits))

    def _require_split(self, split: str | None) -> None:
        if split is not None and split not in self.splits:
            raise NotFoundError(f"trace: unknown split {split!r}. Available: {_shorten_names(list(self.splits))}")


def _sums(counts: Iterable[int]) -> NDArray[np.int64]:
    return np.array([0, *accumulate(counts)], np.int64)


def _require_within(what: str, number: int, count: int, where: str) -> None:
    if not 0 <= number < count:
        raise NotFoundError(f"trace: {what} {number} is out of range: {where} has {count}, counted from 0")


def _shorten_names(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def index_metadata(_: ArtifactStore, receipt: Receipt) -> Mapping[str, Shown]:
    """Metadata that says how a shard's documents can be found."""
    facts = TokenBinsFacts.of(receipt)
    if facts.document_ids is None:
        return {"document_index": "rows only, because the dataset is sensitive and has no `document.id_key`"}
    hashed_value = "text" if facts.id_field is None else f"the field {facts.id_field!r}"
    return {"document_index": f"rows and {'keyed ' if facts.id_key else ''}hashes of {hashed_value}"}


def retracted_here(store: ArtifactStore, shard: Artifact, listed: NDArray[np.uint64]) -> tuple[str, ...]:
    """The ids of the list that apply to a shard: those of documents that the present shard holds or has dropped.

    Empty for a shard that is missing or unreadable: it is built anyway, and its receipt will say which ids applied.

    Args:
        store: Where the shard is.
        shard: Its artifact.
        listed: The ids on the list, sorted.
    """
    if not len(listed):
        return ()
    try:
        receipt = store.receipt(shard)
        if receipt is None:
            return ()
        facts = TokenBinsFacts.of(receipt)
        documents = receipt.ledger.documents if receipt.ledger else 0
        shard_ids = open_ids(store.local(shard, [IDS]) / IDS, documents)
    except (DataprepError, OSError):
        return ()
    # what was dropped before still counts while it is listed: it is part of the finished shard's key
    dropped_ids = np.array([int(hex_id, 16) for hex_id in facts.retracted], np.uint64)
    return hex_ids(np.union1d(shard_ids[are_listed(shard_ids, listed)], np.intersect1d(listed, dropped_ids)))
