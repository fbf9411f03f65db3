"""The order of documents in a release, and the resulting stream of tokens.

Without a seed, the stream has the order of the source. With a seed, the source shards are sorted in a seeded order and
divided into groups of `mix` shards. The documents of a group are shuffled together. Memory must hold only one group's
document lengths, tokens are memory-mapped, and any range of the stream can be read without the preceding tokens.

All bytes are verified. When a process first reads a file of a group, it compares the file's digest with the receipt,
through the same memory map. If a group's files fit into memory, they are read from disk only once.

Shards and documents are sorted by hashes of the seed, names and positions. NumPy's generators are not used, because
their streams may change between versions. The same seed therefore produces the same bytes everywhere.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import FormatError, IntegrityError
from dataprep_assets.formats import document_ends
from dataprep_assets.formats.flat_bins import token_dtype
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Content, FileRecord, Receipt
from dataprep_assets.stores.files import canonical_json
from dataprep_assets.stream.token_shard import ENDS, TOKENS, TokenBinsFacts
from dataprep_assets.tokenization.document_ids import mix_bits

BLOCK = 1 << 22
"""Number of tokens to yield at a time."""


@dataclass(frozen=True, kw_only=True)
class ReleaseSourceShard:
    """A shard of token bins from which a release reads; all values are from the shard's receipt."""

    artifact: Artifact
    content: Content
    tokens: int
    dtype: str
    tokens_file: FileRecord
    ends_file: FileRecord

    @classmethod
    def from_receipt(cls, artifact: Artifact, receipt: Receipt) -> Self:
        """Return the shard that a receipt describes."""
        dtype, tokens = TokenBinsFacts.from_receipt(receipt).dtype, receipt.file(TOKENS)
        return cls(
            artifact=artifact,
            content=receipt.content,
            tokens=tokens.bytes // token_dtype(dtype).itemsize,
            dtype=dtype,
            tokens_file=tokens,
            ends_file=receipt.file(ENDS),
        )

    @property
    def partition(self) -> str:
        """The shard's partition key."""
        return self.artifact.partition or ""

    def open_tokens(self, folder: Path) -> NDArray[Any]:
        """Return the shard's tokens, memory-mapped. Raises IntegrityError if the bytes do not match the receipt."""
        return _open_verified_array(self.artifact, folder, self.tokens_file, self.dtype)

    def open_ends(self, folder: Path) -> NDArray[Any]:
        """Return the ends of the shard's documents, memory-mapped.

        Raises IntegrityError if the bytes do not match the receipt, and FormatError if the ends are invalid.
        """
        ends = _open_verified_array(self.artifact, folder, self.ends_file, "uint64")
        document_ends.validate(folder / self.ends_file.path, self.tokens)
        return ends


def _open_verified_array(artifact: Artifact, folder: Path, record: FileRecord, dtype: str) -> NDArray[Any]:
    path = folder / record.path
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise IntegrityError(f"{artifact}/{record.path}: missing. Rebuild {artifact}") from error
    # Pass a stamp that changes if the file is replaced or modified, so that the cached function verifies the file
    # again.
    return _map_file(artifact, path, record, dtype, (status.st_ino, status.st_size, status.st_ctime_ns))


# The cache holds two files (tokens and document ends) of each source shard in a group of up to 32 shards (`mix` is 8 by
# default). The token files of a group must fit, because otherwise every npy shard would read and verify them again.
@lru_cache(maxsize=64)
def _map_file(
    artifact: Artifact, path: Path, record: FileRecord, dtype: str, stamp: tuple[int, int, int]
) -> NDArray[Any]:
    """Return the memory map of a file after verifying its digest.

    The result is cached, because consecutive shards are cut from the same files.
    """
    # Use an array for an empty file, because an empty file cannot be memory-mapped.
    content = np.memmap(path, np.uint8, mode="r") if stamp[1] else np.empty(0, np.uint8)
    digest = hashlib.sha256(content.data).hexdigest()
    if digest != record.sha256:
        raise IntegrityError(
            f"{artifact}/{record.path}: does not match its receipt (sha256 {digest}, receipt {record.sha256}). "
            f"Rebuild {artifact}"
        )
    return content.view(np.dtype(dtype).newbyteorder("<"))


@dataclass(frozen=True, kw_only=True)
class GroupDocuments:
    """The documents of a group in the order of the release, as arrays with one element per document.

    `source` is the number of the document's shard in the group, `first` is the offset of its first token in the shard,
    and `ends` is its end in the ordered stream of the group, in tokens.
    """

    source: NDArray[np.int32]
    first: NDArray[np.int64]
    ends: NDArray[np.int64]


@dataclass(frozen=True)
class StreamOrder:
    """The order of one split's stream: groups of source shards. `seed` is None for the order of the source."""

    groups: tuple[tuple[ReleaseSourceShard, ...], ...]
    seed: int | None

    @classmethod
    def from_shards(cls, shards: Sequence[ReleaseSourceShard], *, seed: int | None, mix: int) -> "StreamOrder":
        """Return the order of the stream of `shards`, which are in manifest order.

        With a `seed`, documents are shuffled within groups of `mix` shards. Otherwise, the stream has the order of the
        source.
        """
        if seed is None:
            return cls(tuple((shard,) for shard in shards), None)
        # Sort by hashes of names, so that shards that are added later do not change the relative order of the other
        # shards.
        ordered = sorted(shards, key=lambda shard: (_hash_names(seed, "shard", shard.partition), shard.partition))
        return cls(tuple(tuple(ordered[i : i + mix]) for i in range(0, len(ordered), mix)), seed)

    @property
    def tokens(self) -> int:
        """Length of the stream in tokens."""
        return sum(shard.tokens for group in self.groups for shard in group)

    def find_groups_between(self, start: int, stop: int) -> list[tuple[tuple[ReleaseSourceShard, ...], int, int]]:
        """Return the groups that contain tokens `[start, stop)`, each with the start and end of its own range."""
        stretches = []
        sizes = [sum(shard.tokens for shard in group) for group in self.groups]
        for group, size, begin in zip(self.groups, sizes, accumulate(sizes, initial=0), strict=False):
            low, high = max(start - begin, 0), min(stop - begin, size)
            if low < high:
                stretches.append((group, low, high))
        return stretches

    def read(self, store: ArtifactStore, start: int, stop: int) -> Iterator[NDArray[Any]]:
        """Yield tokens `[start, stop)` of the stream, in blocks of about `BLOCK` tokens with the token bins' dtype."""
        for group, low, high in self.find_groups_between(start, stop):
            folders = [store.local(shard.artifact, [TOKENS, ENDS]) for shard in group]
            tokens = [shard.open_tokens(folder) for shard, folder in zip(group, folders, strict=True)]
            if self.seed is None:
                yield from (tokens[0][position : min(position + BLOCK, high)] for position in range(low, high, BLOCK))
            else:
                yield from _gather(tokens, shuffle_documents(self.seed, group, tuple(folders)), low, high)


def _gather(tokens: Sequence[NDArray[Any]], documents: GroupDocuments, low: int, high: int) -> Iterator[NDArray[Any]]:
    """Yield the tokens `[low, high)` of a group in the order of its documents."""
    # The range begins in the document that contains token `low`, and ends in the document that contains the token
    # before `high`.
    begin = int(np.searchsorted(documents.ends, low, side="right"))
    end = int(np.searchsorted(documents.ends, high, side="left")) + 1
    position = int(documents.ends[begin - 1]) if begin else 0
    pieces: list[NDArray[Any]] = []
    size = 0
    # Convert only a part of the arrays to lists at a time, because lists of the whole group would need many times the
    # memory of the arrays.
    for step in range(begin, end, 1 << 16):
        part = slice(step, min(step + (1 << 16), end))
        rows = zip(
            documents.source[part].tolist(), documents.first[part].tolist(), documents.ends[part].tolist(), strict=True
        )
        for source, first_token, stop in rows:
            skip, until = max(low - position, 0), min(stop, high) - position
            # Copy a long document in pieces of at most one block, so that the memory use does not depend on its length.
            for offset in range(skip, until, BLOCK):
                piece = tokens[source][first_token + offset : first_token + min(offset + BLOCK, until)]
                pieces.append(piece)
                size += len(piece)
                if size >= BLOCK:
                    yield np.concatenate(pieces)
                    pieces, size = [], 0
            position = stop
    if pieces:
        yield np.concatenate(pieces)


@lru_cache(maxsize=1)
def shuffle_documents(seed: int, group: tuple[ReleaseSourceShard, ...], folders: tuple[Path, ...]) -> GroupDocuments:
    """Return the documents of a `group` in the order of `seed`, read from the `folders` of its shards.

    The last result is cached, because the next shard often begins in the same group. Raises IntegrityError for files
    that do not match their receipts, and FormatError for tokens that belong to no document.
    """
    lengths, firsts, sources = [], [], []
    for number, (shard, folder) in enumerate(zip(group, folders, strict=True)):
        ends = np.asarray(shard.open_ends(folder)).astype(np.int64)
        starts = np.concatenate((np.zeros(1, np.int64), ends))[:-1][: len(ends)]
        lengths.append(ends - starts)
        firsts.append(starts)
        sources.append(np.full(len(ends), number, np.int32))
    length, first_tokens, source = np.concatenate(lengths), np.concatenate(firsts), np.concatenate(sources)
    base = _hash_names(seed, "documents", [shard.partition for shard in group])
    # The order does not depend on NumPy's sorting algorithm, because splitmix64 never returns a number twice.
    order = np.argsort(_generate_splitmix(base, len(length)), kind="stable")
    if not len(length) and any(shard.tokens for shard in group):
        raise FormatError(f"{group[0].artifact}: has tokens that belong to no document. Rebuild token_bins")
    return GroupDocuments(source=source[order], first=first_tokens[order], ends=np.cumsum(length[order]))


def _hash_names(seed: int, label: str, names: object) -> int:
    data = canonical_json([seed, label, names])
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _generate_splitmix(base: int, count: int) -> NDArray[np.uint64]:
    """Return `count` numbers of the splitmix64 sequence from `base` (Steele, Lea and Flood, 2014), vectorized."""
    # The uint64 overflow is intended, because the sequence is defined modulo 2**64.
    return mix_bits(np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(base))
