"""Engines: many documents in, one flat array of ids out.

`reference` is the Hugging Face `tokenizers` library, whose ids are right by definition; `fastokens` encodes the
same BPE tokenizers 30-60 times faster and is used only under a certificate (`tokenization/certificate.py`).
An engine never adds BOS or EOS: the code that lays out the stream adds separators.
"""

from collections.abc import Sequence
from importlib import metadata
from itertools import chain
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import TokenizerError
from dataprep_assets.tokenization.bundle import TokenizerBundle, reference_tokenizer

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
    """Hugging Face `tokenizers`. Its tokenizer is loaded once a process (`reference_tokenizer`)."""

    name = "tokenizers"

    def __init__(self, bundle: TokenizerBundle, special_tokens: SpecialTokens) -> None:
        self.version = metadata.version("tokenizers")
        self._tokenizer = reference_tokenizer(bundle, special_tokens)

    def encode(self, texts: Sequence[str]) -> Encoded:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        offsets = np.zeros(len(encodings) + 1, np.uint64)
        np.cumsum([len(e) for e in encodings], out=offsets[1:])
        ids = np.fromiter(chain.from_iterable(e.ids for e in encodings), np.uint32, int(offsets[-1]))
        return ids, offsets


class FastokensEngine:
    """`fastokens`: BPE only. Raises TokenizerError for a tokenizer that it cannot load.

    Loading takes a second, so the last one stays: certificate and build of a process share it, and its cache of words.
    """

    name = "fastokens"
    _kept: ClassVar[dict[str, Any]] = {}

    def __init__(self, bundle: TokenizerBundle, special_tokens: SpecialTokens) -> None:
        self.version = metadata.version("fastokens")
        self._split = special_tokens == "text"
        if bundle.digest not in self._kept:
            loaded = self._load(bundle)
            self._kept.clear()
            self._kept[bundle.digest] = loaded
        self._tokenizer = self._kept[bundle.digest]

    @staticmethod
    def _load(bundle: TokenizerBundle) -> Any:
        import fastokens

        try:
            return fastokens.Tokenizer.from_json_str(bundle.tokenizer_json)
        except Exception as error:  # the extension's error types are not public
            raise TokenizerError(f"{bundle.directory}: fastokens cannot load it: {error}") from error

    def encode(self, texts: Sequence[str]) -> Encoded:
        ids, offsets = self._tokenizer.encode_batch_flat(
            texts if isinstance(texts, list) else list(texts),
            add_special_tokens=False,
            split_special_tokens=self._split,
        )
        return np.frombuffer(ids, "<u4"), np.frombuffer(offsets, "<u8")


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
