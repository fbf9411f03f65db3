"""Engines: many documents in, one flat array of ids out.

`reference` is the Hugging Face `tokenizers` library, whose ids are right by definition; `fastokens` encodes the same
BPE tokenizers many times faster and is used only under a certificate (`tokenization/certificate.py`). An engine never
adds BOS or EOS: the code that lays out the stream adds separators.
"""

from collections.abc import Sequence
from importlib import metadata
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import TokenizerError
from dataprep_assets.tokenization import reference
from dataprep_assets.tokenization.bundle import TokenizerBundle, reference_tokenizer
from dataprep_assets.tokenization.library_errors import encoding_errors, panics_as_errors

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

    name = reference.NAME

    def __init__(self, bundle: TokenizerBundle, special_tokens: SpecialTokens) -> None:
        self.version = reference.version()
        self._tokenizer = reference_tokenizer(bundle, special_tokens)

    def encode(self, texts: Sequence[str]) -> Encoded:
        with encoding_errors(self.name):
            return reference.flat_ids(self._tokenizer.encode(texts))


class FastokensEngine:
    """`fastokens`: BPE only. Raises TokenizerError if it is not installed, or for a tokenizer that it cannot load.

    Loading takes a second, so the last one stays: certificate and build of a process share it, and its cache of words.
    """

    name = "fastokens"
    # one at most: how special tokens are read is said with every call, so that most tokenizers are one for both
    _kept: ClassVar[dict[str, Any]] = {}

    def __init__(self, bundle: TokenizerBundle, special_tokens: SpecialTokens) -> None:
        if (version := installed(self.name)) is None:
            raise TokenizerError(f"{self.name} is not installed. Run: pip install {self.name}")
        self.version = version
        self._split = special_tokens == "text"
        text = bundle.engine_json(special_tokens)
        if text not in self._kept:
            # loaded before the other is given up: if this fails, that one stays
            loaded = self._load(bundle, text)
            self._kept.clear()
            self._kept[text] = loaded
        self._tokenizer = self._kept[text]

    @staticmethod
    def _load(bundle: TokenizerBundle, text: str) -> Any:
        import fastokens

        try:
            with panics_as_errors("fastokens"):
                return fastokens.Tokenizer.from_json_str(text)
        except Exception as error:  # the extension's error types are not public
            raise TokenizerError(f"{bundle.directory}: fastokens cannot load it: {error}") from error

    def encode(self, texts: Sequence[str]) -> Encoded:
        with encoding_errors(self.name):
            ids, offsets = self._tokenizer.encode_batch_flat(
                texts if isinstance(texts, list) else list(texts),
                add_special_tokens=False,
                split_special_tokens=self._split,
            )
        return np.frombuffer(ids, "<u4"), np.frombuffer(offsets, "<u8")


def installed(name: str) -> str | None:
    """The version of an engine's library; None if it is not installed."""
    try:
        return metadata.version(name)
    except (metadata.PackageNotFoundError, ValueError):  # a certificate may name anything
        return None
