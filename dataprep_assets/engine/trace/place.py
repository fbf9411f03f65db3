"""Positions of a document's tokens: its span in the token stream, and its places in the artifacts that contain it.

An artifact that contains documents declares this in its spec (`ArtifactSpec.places`); `trace` searches all of them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt


@dataclass(frozen=True, kw_only=True)
class DocumentSpan:
    """A document's position in the token stream of a split and in its shard. All numbers count from 0.

    Attributes:
        split: The split (in a blend, the dataset) of the stream.
        document: Its number in the split's stream.
        start: Its first token in the split's stream.
        shard: The partition that contains it.
        shard_document: Its number in that shard.
        shard_start: Its first token in that shard.
        tokens: Number of its tokens, BOS and separator included.
    """

    split: str
    document: int
    start: int
    shard: str
    shard_document: int
    shard_start: int
    tokens: int

    @property
    def stop(self) -> int:
        """Position in the split's stream after its last token."""
        return self.start + self.tokens


@dataclass(frozen=True, kw_only=True)
class TokenRange:
    """The token range `[start, stop)` of a document, or of a part of it, in a file; empty in a file of messages.

    Attributes:
        artifact: The artifact's name: `sample_corpus/megatron_bins`.
        file: The file in the artifact.
        start: First token of the part in the file.
        stop: The token after the last one.
        itemsize: Bytes per token if the file is a flat array of tokens, to compute byte offsets; otherwise None.
        at: The position in the terms of the file's format: a sequence, samples or a row.
    """

    artifact: str
    file: str
    start: int
    stop: int
    itemsize: int | None = None
    at: Mapping[str, int | list[int]] = field(default_factory=dict)


Locate = Callable[[DocumentSpan], Iterable[TokenRange]]
"""Function that finds the places of a document in one artifact; none if the artifact contains no part of it."""

OpenPlaces = Callable[[ArtifactStore, Mapping[str, Receipt]], Locate]
"""Function that opens an artifact for `Locate`, given the store and the receipts of the token bins' shards.

The receipts are by partition and in stream order, and documents are numbered in these shards. Raises
MissingArtifactError if the artifact does not exist, and IntegrityError if it was built from different shards.
"""
