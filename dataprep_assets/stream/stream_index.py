"""Index of finished token bins, which finds the document of a token, of a row or of a hash.

Receipts are read when an index is opened. A shard's files are mapped, or read by ranges, when a search needs them.

Entry points: `StreamIndex`, `IndexedShard`, `read_document_lengths`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.retractions import find_listed, format_ids
from dataprep_assets.engine.artifact.metadata_values import ShownValue
from dataprep_assets.engine.checks.check import require_ledger
from dataprep_assets.engine.trace.place import DocumentSpan
from dataprep_assets.errors import DataprepError, NotFoundError
from dataprep_assets.formats.document_ends import open_ends
from dataprep_assets.formats.document_index import IDS, ROWS, SourceRowIndex, open_ids
from dataprep_assets.integrity.artifacts import Artifact, ArtifactHandle, ArtifactStore, RemoteTokens
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.stream.token_shard import ENDS, TOKENS, TokenBinsFacts, build_document_rows

_PAGE = 1 << 13
"""Numbers read at a time when searching a remote file: 64 KiB."""
_BLOCK = 1 << 20
"""Hashes of a remote file compared at a time: 8 MiB."""

Numbers = NDArray[Any] | RemoteTokens


def count_at_most(numbers: Numbers, value: int) -> int:
    """Return how many of the ascending `numbers` are at most `value`; only a few pages of a remote file are read."""
    if isinstance(numbers, np.ndarray):
        # Use uint64, because NumPy would compare a Python int as float64 and convert the whole memory-mapped file.
        return int(np.searchsorted(numbers, np.uint64(value), side="right"))
    low, high = 0, -(-len(numbers) // _PAGE)
    while low < high:  # binary search for the first page whose last number is above the value
        middle = (low + high) // 2
        page = numbers[middle * _PAGE : (middle + 1) * _PAGE]
        if int(page[-1]) <= value:
            low = middle + 1
        elif int(page[0]) > value and middle > low:
            high = middle
        else:
            # The position is within this page, or at its beginning if no earlier page is left.
            return middle * _PAGE + int(np.searchsorted(page, np.uint64(value), side="right"))
    return min(low * _PAGE, len(numbers))


def read_document_lengths(
    store: ArtifactStore, artifacts: Sequence[Artifact], max_bytes: int
) -> NDArray[np.int64] | None:
    """Return the number of tokens of each document of token bins, int64, shape `(documents,)`.

    Returns None if there are no artifacts, or if their indexes are larger than `max_bytes` together. Raises
    MissingArtifactError if an artifact is missing.
    """
    if not artifacts or not is_within(store, artifacts, ENDS, max_bytes):
        return None
    lengths = [np.diff(open_ends(store.local(artifact, [ENDS]) / ENDS), prepend=0) for artifact in artifacts]
    return np.concatenate(lengths).astype(np.int64)


def is_within(store: ArtifactStore, artifacts: Sequence[Artifact], file: str, max_bytes: int) -> bool:
    """Return whether the files of this name in artifacts have at most `max_bytes` together."""
    records = (record for artifact in artifacts for record in store.require(artifact).files if record.path == file)
    return sum(record.bytes for record in records) <= max_bytes


class IndexedShard:
    """A finished shard of token bins."""

    def __init__(self, store: ArtifactStore, artifact: Artifact, receipt: Receipt) -> None:
        """Open a shard that its receipt describes."""
        self.handle = ArtifactHandle(store, artifact, receipt)
        self.facts = TokenBinsFacts.from_receipt(receipt)
        self.documents, self.tokens = require_ledger(receipt).documents, require_ledger(receipt).tokens

    @property
    def partition(self) -> str:
        """The shard's partition key."""
        return self.handle.artifact.partition or ""

    @property
    def files(self) -> list[str]:
        """The shard's source files, in order."""
        return [line["file"] for line in self.handle.receipt.sources]

    @cached_property
    def ends(self) -> Numbers:
        """The end of each document, in tokens."""
        return self.handle.numbers(ENDS, "uint64")

    @cached_property
    def hashes(self) -> Numbers:
        """The hash of each document."""
        return self.handle.numbers(IDS, "uint64")

    @cached_property
    def _tokens(self) -> Numbers:
        return self.handle.tokens(TOKENS)

    @cached_property
    def rows(self) -> SourceRowIndex:
        """The source row of each document."""
        # If no row was omitted from the shard, the file of rows does not exist, and its folder is not needed.
        has_rows_file = any(record.path == ROWS for record in self.handle.receipt.files)
        return build_document_rows(self.handle.path(ROWS).parent if has_rows_file else Path(), self.handle.receipt)

    def span(self, document: int) -> tuple[int, int]:
        """Return a document's first token and the token after its last; the document must exist."""
        start = int(self.ends[document - 1]) if document else 0
        return start, int(self.ends[document])

    def find_by_hash(self, hash_: int) -> Iterator[int]:
        """Yield the numbers of the documents with this hash."""
        yield from self.find_by_hashes(np.array([hash_], np.uint64)).tolist()

    def find_by_hashes(self, wanted_hashes: NDArray[np.uint64]) -> NDArray[np.intp]:
        """Return the numbers, ascending, of the documents with one of these sorted hashes."""
        hashes = self.hashes
        # Read a remote file in blocks, so that only one block is in memory. `or 1` is needed, because `range` rejects a
        # step of 0.
        step = len(hashes) or 1 if isinstance(hashes, np.ndarray) else _BLOCK
        starts = range(0, len(hashes), step)
        blocks = ((start, np.asarray(hashes[start : start + step])) for start in starts)
        matches = [start + np.flatnonzero(find_listed(block, wanted_hashes)) for start, block in blocks]
        return np.concatenate(matches) if matches else np.empty(0, np.intp)

    def hash_at(self, file: str, row: int) -> int | None:
        """Return the hash of the document from a row of a source file; None if this shard has no such document."""
        if file not in self.files:
            return None
        document = self.rows.find_document(self.files.index(file), row)
        return None if document is None else int(self.hashes[document])

    def tokens_of(self, documents: NDArray[np.intp]) -> int:
        """Return the total number of tokens of these documents."""
        # Use int64, because NumPy would convert uint64 to float64 when it prepends the 0.
        ends = np.asarray(self.ends[:], np.int64)
        return int(np.diff(ends, prepend=0)[documents].sum())

    def sources_of(self, documents: Sequence[int] | NDArray[np.intp]) -> Mapping[str, str]:
        """Return the source files of these documents: name → SHA-256."""
        lines = self.handle.receipt.sources
        stops = np.cumsum([line["documents"] for line in lines])
        # `right` skips a file without documents, because the file ends at the same number as the previous file.
        line_numbers = np.unique(np.searchsorted(stops, np.asarray(documents), side="right"))
        return {str(lines[number]["file"]): str(lines[number]["sha256"]) for number in line_numbers.tolist()}

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the shard's token ids `[start, stop)`."""
        return np.asarray(self._tokens[start:stop])


class StreamIndex:
    """The shards of a dataset by split.

    Each split is a stream whose documents and tokens are numbered across its shards.

    Methods raise NotFoundError for unknown names and numbers out of range; the message lists what is available.
    """

    def __init__(self, splits: Mapping[str, Sequence[IndexedShard]]) -> None:
        """Index the shards of each split, in the order of its stream."""
        self.splits = {split: list(shards) for split, shards in splits.items()}
        # `_home` maps a partition to its split and its position in the split.
        self._home = {
            shard.partition: (split, number)
            for split, split_shards in self.splits.items()
            for number, shard in enumerate(split_shards)
        }
        # `_documents` and `_tokens` have the totals before each shard of a split, and the split's total at the end.
        self._documents = {
            split: _cumulate_counts(shard.documents for shard in split_shards)
            for split, split_shards in self.splits.items()
        }
        self._tokens = {
            split: _cumulate_counts(shard.tokens for shard in split_shards)
            for split, split_shards in self.splits.items()
        }

    @cached_property
    def _files(self) -> dict[str, list[tuple[IndexedShard, int]]]:
        # Collect all shards of a file, because a file that is divided by rows is in several shards.
        shards_by_file: dict[str, list[tuple[IndexedShard, int]]] = {}
        for shard in self.shards():
            for number, file in enumerate(shard.files):
                shards_by_file.setdefault(file, []).append((shard, number))
        return shards_by_file

    def shards(self, split: str | None = None, partition: str | None = None) -> list[IndexedShard]:
        """Return all shards, the shards of a split, or one shard."""
        if partition is not None:
            return [self.shard(partition)]
        self._require_split(split)
        return [shard for name, split_shards in self.splits.items() if split in (None, name) for shard in split_shards]

    def shard(self, partition: str) -> IndexedShard:
        """Return the shard with this partition key."""
        if partition not in self._home:
            raise NotFoundError(f"trace: unknown shard {partition!r}. Available: {_shorten_names(list(self._home))}")
        split, number = self._home[partition]
        return self.splits[split][number]

    def locate_document(self, split: str | None, partition: str | None, document: int) -> tuple[IndexedShard, int]:
        """Return the shard of a document, and the document's number in it.

        `document` is the document's number in the shard `partition` or, if that is None, in the split.
        """
        if partition is not None:
            shard = self.shard(partition)
            _require_within("document", document, shard.documents, partition)
            return shard, document
        split = self.require_one_split(split)
        sums = self._documents[split]
        _require_within("document", document, int(sums[-1]), split)
        # `right` skips an empty shard, because it begins at the same number as the next shard, which contains the
        # document.
        number = int(np.searchsorted(sums, document, side="right")) - 1
        return self.splits[split][number], document - int(sums[number])

    def locate_token(self, split: str | None, partition: str | None, token: int) -> tuple[IndexedShard, int]:
        """Return the shard of a token's document, and the document's number in it.

        `token` is the token's number in the shard `partition` or, if that is None, in the split.
        """
        if partition is not None:
            shard = self.shard(partition)
            _require_within("token", token, shard.tokens, partition)
        else:
            split = self.require_one_split(split)
            sums = self._tokens[split]
            _require_within("token", token, int(sums[-1]), split)
            number = int(np.searchsorted(sums, token, side="right")) - 1
            shard, token = self.splits[split][number], token - int(sums[number])
        return shard, count_at_most(shard.ends, token)

    def find_by_row(self, file: str, row: int) -> Iterator[tuple[IndexedShard, int]]:
        """Yield the shard and the document of a source row; yield nothing if the row was omitted."""
        if file not in self._files:
            raise NotFoundError(f"trace: unknown source file {file!r}. Available: {_shorten_names(list(self._files))}")
        for shard, number in self._files[file]:
            if (document := shard.rows.find_document(number, row)) is not None:
                yield shard, document

    def find_holders(self, file: str) -> list[IndexedShard]:
        """Return the shards that contain rows of a file."""
        return [shard for shard, _ in self._files.get(file, [])]

    def source(self, shard: IndexedShard, document: int) -> tuple[str, int]:
        """Return the source file and row of a shard's document."""
        file, row = shard.rows.locate(document)
        return shard.files[file], row

    def span(self, shard: IndexedShard, document: int) -> DocumentSpan:
        """Return the span of a shard's document, in the shard and in its split."""
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

    def require_one_split(self, split: str | None) -> str:
        """Return the named split, or the only split."""
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


def _cumulate_counts(counts: Iterable[int]) -> NDArray[np.int64]:
    return np.array([0, *accumulate(counts)], np.int64)


def _require_within(noun: str, number: int, count: int, location: str) -> None:
    if not 0 <= number < count:
        raise NotFoundError(f"trace: {noun} {number} is out of range: {location} has {count}, counted from 0")


def _shorten_names(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def describe_index(_: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    """Return metadata that describes how a shard's documents can be found."""
    facts = TokenBinsFacts.from_receipt(receipt)
    if facts.document_ids is None:
        return {"document_index": "rows only, because the dataset is sensitive and has no `document.id_key`"}
    hashed_value = "text" if facts.id_field is None else f"the field {facts.id_field!r}"
    return {"document_index": f"rows and {'keyed ' if facts.id_key else ''}hashes of {hashed_value}"}


def list_current_retractions(
    store: ArtifactStore, shard: Artifact, listed_hashes: NDArray[np.uint64]
) -> tuple[str, ...]:
    """Return the listed ids that apply to a shard: ids of documents that the current shard contains or has dropped.

    The result is empty if the shard is missing or unreadable: it is built anyway, and its new receipt will list the
    ids that applied.

    Args:
        store: The store of the shard.
        shard: The shard's artifact.
        listed_hashes: The ids on the list, sorted.
    """
    if not len(listed_hashes):
        return ()
    try:
        receipt = store.receipt(shard)
        if receipt is None:
            return ()
        facts = TokenBinsFacts.from_receipt(receipt)
        documents = receipt.ledger.documents if receipt.ledger else 0
        shard_ids = open_ids(store.local(shard, [IDS]) / IDS, documents)
    except (DataprepError, OSError):
        return ()
    # Include the listed ids of dropped documents, because the finished shard's key contains these ids.
    dropped_ids = np.array([int(hex_id, 16) for hex_id in facts.retracted], np.uint64)
    return format_ids(
        np.union1d(shard_ids[find_listed(shard_ids, listed_hashes)], np.intersect1d(listed_hashes, dropped_ids))
    )
