"""Engines: many documents in, one flat array of ids out.

`reference` is the Hugging Face `tokenizers` library, whose ids are right by definition; `fastokens` encodes the
same BPE tokenizers 30-60 times faster and is used only under a certificate (`tokenization/certificate.py`).
An engine never adds BOS or EOS: the code that lays out the stream adds separators.
"""

from collections.abc import Sequence
from functools import lru_cache
from importlib import metadata
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import TokenizerError
from dataprep_assets.tokenization.bundle import TokenizerBundle

SpecialTokens = Literal["text", "match"]
"""How a literal special token inside a document is read: as ordinary `text`, or as a `match` for the special id."""

Encoded = tuple[NDArray[np.uint32], NDArray[np.uint64]]
"""`(ids, offsets)`: flat uint32 ids of n documents, and n + 1 uint64 token offsets, the first 0."""


class Engine(Protocol):
    """The interface of an engine. `version` is the installed library's: a certificate holds for one version only."""

    name: str
    version: str

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Ids of the documents, in order, without BOS or EOS."""
        ...


class ReferenceEngine:
    """Hugging Face `tokenizers`."""

    name = "tokenizers"

    def __init__(self, bundle: TokenizerBundle, special_tokens: SpecialTokens) -> None:
        from tokenizers import Tokenizer

        self.version = metadata.version("tokenizers")
        try:
            self._tokenizer = Tokenizer.from_str(bundle.tokenizer_json)
        except Exception as error:  # the library raises bare Exception for a file it cannot parse
            raise TokenizerError(f"{bundle.directory}: tokenizers cannot load it: {error}") from error
        self._tokenizer.encode_special_tokens = special_tokens == "text"

    def encode(self, texts: Sequence[str]) -> Encoded:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        offsets = np.zeros(len(encodings) + 1, np.uint64)
        np.cumsum([len(e) for e in encodings], out=offsets[1:])
        ids = np.fromiter((i for e in encodings for i in e.ids), np.uint32, int(offsets[-1]))
        return ids, offsets


class FastokensEngine:
    """`fastokens`: BPE only. Raises TokenizerError for a tokenizer that it cannot load."""

    name = "fastokens"

    def __init__(self, bundle: TokenizerBundle, special_tokens: SpecialTokens) -> None:
        import fastokens

        self.version = metadata.version("fastokens")
        self._split = special_tokens == "text"
        try:
            self._tokenizer = fastokens.Tokenizer.from_json_str(bundle.tokenizer_json)
        except Exception as error:  # as above: the extension's error types are not public
            raise TokenizerError(f"{bundle.directory}: fastokens cannot load it: {error}") from error

    def encode(self, texts: Sequence[str]) -> Encoded:
        ids, offsets = self._tokenizer.encode_batch_flat(
            texts if isinstance(texts, list) else list(texts),
            add_special_tokens=False,
            split_special_tokens=self._split,
        )
        return np.frombuffer(ids, "<u4"), np.frombuffer(offsets, "<u8")


def reference_once(bundle: TokenizerBundle, special_tokens: SpecialTokens) -> ReferenceEngine:
    """The reference engine of a tokenizer with these files, made once per process.

    Loading a tokenizer takes longer than the proofs of a small shard.

    Args:
        bundle: The tokenizer.
        special_tokens: How literal special tokens are read.
    """
    return _reference(bundle, bundle.digest, special_tokens)


@lru_cache(maxsize=2)
def _reference(bundle: TokenizerBundle, _digest: str, special_tokens: SpecialTokens) -> ReferenceEngine:
    return ReferenceEngine(bundle, special_tokens)


_FAST: dict[str, type[FastokensEngine]] = {FastokensEngine.name: FastokensEngine}
FAST_ENGINES = tuple(_FAST)
"""Names of the fast engines, in order of preference."""


def fast_engine(name: str, bundle: TokenizerBundle, special_tokens: SpecialTokens) -> Engine:
    """The fast engine called `name`, for the tokenizer of `bundle` and this reading of literal special tokens.

    `special_tokens` is `text` or `match`. Raises TokenizerError for an unknown name, or a tokenizer that the engine
    cannot load.
    """
    if name not in _FAST:
        raise TokenizerError(f"tokenizer.engine: {name!r}: known engines are {['auto', *_FAST, ReferenceEngine.name]}")
    return _FAST[name](bundle, special_tokens)
