"""Where a document's tokens are: its span in the token stream, and its places in the artifacts that hold it.

An artifact that holds documents says so in its spec (`ArtifactSpec.places`); `trace` asks them all.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt


@dataclass(frozen=True, kw_only=True)
class DocumentSpan:
    """A document's position in the token stream of a split, and in the shard that holds it. All numbers count from 0.

    Attributes:
        split: The split (in a blend, the dataset) of the stream.
        document: Its number in the split's stream.
        start: Its first token in the split's stream.
        shard: The partition that holds it.
        shard_document: Its number in that shard.
        shard_start: Its first token in that shard.
        tokens: How many tokens it has, BOS and separator included.
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
    """Where tokens `[start, stop)` of a file hold a document, or a part of it.

    Attributes:
        artifact: The artifact's name: `sample_corpus/megatron_bins`.
        file: The file in the artifact.
        start: First token of the part in the file.
        stop: The token after the last one.
        itemsize: Bytes of a token if the file is a flat array of tokens, so that byte offsets follow; else None.
        at: What a reader of the file calls the place: a sequence, the samples, a row.
    """

    artifact: str
    file: str
    start: int
    stop: int
    itemsize: int | None = None
    at: Mapping[str, int | list[int]] = field(default_factory=dict)


Locate = Callable[[DocumentSpan], Iterable[TokenRange]]
"""Finds the places of a document in one artifact; none if the artifact has no part of it."""

OpenPlaces = Callable[[ArtifactStore, Mapping[str, Receipt]], Locate]
"""Opens an artifact for `Locate`, given the store and the receipts of the shards of token bins in which documents are
numbered, by partition and in stream order. Raises MissingArtifactError if the artifact does not exist, IntegrityError
when it was made of other shards."""
