"""Engines: many documents in, one flat array of ids out.

`reference` is the Hugging Face `tokenizers` library, whose ids are right by definition; `fastokens` and `gigatoken`
encode the same BPE tokenizers many times faster and are used only under a certificate
(`tokenization/certificate.py`). An engine never adds BOS or EOS: the code that lays out the stream adds separators.
"""

import json
import os
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
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
    """`fastokens`: BPE only. Raises TokenizerError for a tokenizer that it cannot load.

    Loading takes a second, so the last one stays: certificate and build of a process share it, and its cache of words.
    """

    name = "fastokens"
    # one at most: how special tokens are read is said with every call, so that most tokenizers are one for both
    _kept: ClassVar[dict[str, Any]] = {}

    def __init__(self, bundle: TokenizerBundle, special_tokens: SpecialTokens) -> None:
        self.version = metadata.version("fastokens")
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


class GigatokenEngine:
    """`gigatoken`, an extra: BPE only. Raises TokenizerError for a tokenizer that it cannot load, or if it is absent.

    It matches every added token that it is told of: where literal special tokens are text, it is told of none of
    those. Its cache of words has no bound of its own, so the tokenizer is loaded anew, which takes a second, when the
    process has grown by `_MOST` since.
    """

    name = "gigatoken"
    _MOST = 1 << 30
    # by digest and reading, with what the process had in memory when it was loaded; one at most
    _kept: ClassVar[dict[tuple[str, str], tuple[Any, int]]] = {}

    def __init__(self, bundle: TokenizerBundle, special_tokens: SpecialTokens) -> None:
        if find_spec("gigatoken") is None:
            raise TokenizerError("gigatoken is not installed. Run: pip install 'dataprep-assets[gigatoken]'")
        self.version = metadata.version("gigatoken")
        self._key, self._bundle = (bundle.digest, special_tokens), bundle
        if self._key not in self._kept:
            self._renew()

    def _renew(self) -> None:
        self._kept.clear()  # first: both together would take twice the memory
        self._kept[self._key] = self._load(self._bundle, self._key[1]), _resident_bytes()

    @staticmethod
    def _load(bundle: TokenizerBundle, special_tokens: str) -> Any:
        from gigatoken.gigatoken_rs import load_hf_json

        value = json.loads(bundle.engine_json(special_tokens))
        if special_tokens == "text":
            value["added_tokens"] = [token for token in value.get("added_tokens") or [] if not token.get("special")]
        try:
            with panics_as_errors("gigatoken"):
                return load_hf_json(json.dumps(value))
        except Exception as error:  # the extension's error types are not public
            # its first line: the others name a place in its source
            why = str(error).partition("\n")[0]
            raise TokenizerError(f"{bundle.directory}: gigatoken cannot load it: {why}") from error

    def encode(self, texts: Sequence[str]) -> Encoded:
        if self._key not in self._kept or _resident_bytes() - self._kept[self._key][1] > self._MOST:
            self._renew()
        tokenizer, _ = self._kept[self._key]
        # in this thread: its pool has as many threads as the machine has cores, and none after a fork
        with encoding_errors(self.name):
            found = tokenizer.encode_batch(texts if isinstance(texts, list) else list(texts), parallel=False).layout
        offsets = np.asarray(found.offsets.data).astype(np.uint64, copy=False)
        ids = np.asarray(found.content.data).astype(np.uint32, copy=False)
        # the offsets of an Awkward array need not begin with 0, nor its content end with the last
        return ids[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0]


def _resident_bytes() -> int:
    """What this process has in memory; 0 where the system does not tell."""
    try:
        # the second number: resident pages
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


_FAST: dict[str, type[FastokensEngine] | type[GigatokenEngine]] = {
    engine.name: engine for engine in (FastokensEngine, GigatokenEngine)
}
FAST_ENGINES = tuple(_FAST)
"""Names of the fast engines, in order of preference: on English and code one is as fast as the other, on new text in
many languages `fastokens` is faster (docs/benchmarks.md), and its memory has a bound of its own."""


def installed(name: str) -> str | None:
    """The version of an engine's library; None if it is not installed."""
    try:
        return metadata.version(name)
    except (metadata.PackageNotFoundError, ValueError):  # a certificate may name anything
        return None


def fast_engine(name: str, bundle: TokenizerBundle, special_tokens: SpecialTokens) -> Engine:
    """The fast engine called `name`, for the tokenizer of `bundle` and this reading of literal special tokens.

    `special_tokens` is `text` or `match`. Raises TokenizerError for an unknown name, or a tokenizer that the engine
    cannot load.
    """
    if name not in _FAST:
        raise TokenizerError(f"tokenizer.engine: {name!r}: known engines are {['auto', *_FAST, ReferenceEngine.name]}")
    return _FAST[name](bundle, special_tokens)
