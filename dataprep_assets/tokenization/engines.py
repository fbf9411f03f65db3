"""Engines, which encode many documents into one flat array of ids, and tests of tokenizers in a separate process.

The `reference` is the Hugging Face `tokenizers` library, whose ids are correct by definition. `fastokens` encodes with
BPE tokenizers many times faster, and is used only with a certificate (`tokenization/certificate.py`). An engine never
adds BOS or EOS, because the code that lays out the stream adds them.
"""

import signal
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.bounds import limit_process, run_limited
from dataprep_assets.errors import TokenizerError, count_of
from dataprep_assets.integrity.receipt import find_installed_version
from dataprep_assets.stores.files import digest_value
from dataprep_assets.tokenization import reference
from dataprep_assets.tokenization.bundle import TokenizerBundle, load_reference_tokenizer
from dataprep_assets.tokenization.library_errors import (
    EncodingError,
    PanicError,
    convert_encoding_errors,
    convert_panics,
)
from dataprep_assets.tokenization.reference import read_cached, write_cached

SpecialTokens = Literal["text", "match"]
"""Reading of a literal special token in a document: as ordinary `text`, or as a `match` for the special id."""

EncodedTexts = tuple[NDArray[np.uint32], NDArray[np.uint64]]
"""`(ids, offsets)`: flat uint32 ids of n documents, and n + 1 uint64 token offsets, starting with 0."""


class Engine(Protocol):
    """Interface of an engine. `version` is the library's version, because a certificate is valid for one version."""

    name: str
    version: str

    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        """Return the ids of the documents, in order, without BOS or EOS."""
        ...


class ReferenceEngine:
    """Hugging Face `tokenizers`. Its tokenizer is cached per process (`load_reference_tokenizer`)."""

    name = reference.NAME

    def __init__(self, bundle: TokenizerBundle, special_tokens: SpecialTokens) -> None:
        self.version = reference.read_library_version()
        self._tokenizer = load_reference_tokenizer(bundle, special_tokens)
        self._special_as_text = special_tokens == "text"

    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        with convert_encoding_errors(self.name):
            return reference.flatten_ids(self._tokenizer.encode(texts, special_as_text=self._special_as_text))


class FastokensEngine:
    """`fastokens`, for BPE only. Raises TokenizerError if it is not installed or cannot load the tokenizer.

    Loading takes a second, so the last tokenizer is cached. The certificate and the build in a process then share it
    and its cache of words.
    """

    name = "fastokens"
    # Cache only one tokenizer, because most tokenizers serve both readings of special tokens. Each call passes its
    # reading.
    _cache: ClassVar[dict[str, Any]] = {}

    def __init__(self, bundle: TokenizerBundle, special_tokens: SpecialTokens) -> None:
        if (version := find_installed_version(self.name)) is None:
            raise TokenizerError(f"{self.name} is not installed. Run: pip install {self.name}")
        self.version = version
        self._split = special_tokens == "text"
        text = bundle.build_engine_json(special_tokens)
        if text not in self._cache:
            # Load first, so that the cached tokenizer is kept if loading fails.
            loaded = self._load(bundle, text)
            self._cache.clear()
            self._cache[text] = loaded
        self._tokenizer = self._cache[text]

    @staticmethod
    def _load(bundle: TokenizerBundle, text: str) -> Any:
        import fastokens

        try:
            with convert_panics("fastokens"):
                return fastokens.Tokenizer.from_json_str(text)
        except Exception as error:  # the extension's error types are not public
            raise TokenizerError(f"{bundle.directory}: fastokens cannot load it: {error}") from error

    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        with convert_encoding_errors(self.name):
            ids, offsets = self._tokenizer.encode_batch_flat(
                texts if isinstance(texts, list) else list(texts),
                add_special_tokens=False,
                split_special_tokens=self._split,
            )
        return np.frombuffer(ids, "<u4"), np.frombuffer(offsets, "<u8")


# A tokenizer is first tested in a separate process with limits.
#
# The reason is that a `tokenizer.json` is a program. Its expressions may run forever, its normalizers may take
# gigabytes, and unexpected content may crash the process. A tokenizer that passes is not tested again with the same
# version of the engine (`write_cached`).

VERSION = 1
"""Version of the test. Increase it if a change makes the test stricter, so that tokenizers are tested again."""
MEMORY_BYTES = 4 << 30
"""Maximum address space of the process. A vocabulary of 250,000 tokens takes a fifth of it."""
CPU_SECONDS = 30
_WALL_SECONDS = 900
MAX_IDS_PER_BYTE = 16
_READINGS: tuple[SpecialTokens, ...] = ("match", "text")
_TEXTS = (
    "".join(map(chr, range(0x20, 0x7F))),
    "The quick brown fox's 42 dogs can't\n\n\tjump; naïve café, Größe, 敏捷的狐狸, быстрая лиса, हिन्दी क्षत्रिय, 👩‍👩‍👧",
    # Test long runs with different ends, because an expression may backtrack on such texts forever.
    *(f"{run}{end}" for run in ("a" * 3_000, "1" * 3_000, " " * 3_000, "ab " * 1_000, "-_" * 1_500) for end in "!a"),
    *(character * 500 for character in "qzAZ0é中\n.<▁"),
)


def try_in_process(bundle: TokenizerBundle, engine: str = ReferenceEngine.name) -> None:
    """Test a tokenizer with an engine, by encoding some texts in a separate process.

    Raises TokenizerError with the file and the remedy if the process crashes, exceeds a limit, or gives different ids
    for the same text the second time. Does nothing for a tokenizer that has passed with the same library.
    """
    # Check the definition first, because it is fast and its errors are more specific.
    _ = bundle.definition
    key = digest_value([VERSION, bundle.digest, engine, find_installed_version(engine), MEMORY_BYTES])
    if read_cached("trials", key, dict[str, str]) is not None:
        return
    if (reason := _find_refusal(bundle.directory, bundle.digest, engine)) is not None:
        raise TokenizerError(
            f"{bundle.directory / 'tokenizer.json'}: {engine} {reason}. "
            "Correct its normalizer and pre_tokenizer, or use a different tokenizer"
        )
    write_cached("trials", key, {"passed": engine})


@lru_cache(maxsize=8)
def _find_refusal(directory: Path, _digest: str, engine: str) -> str | None:
    """Return the defect that the process finds, or None. Cached, because the process may take a minute."""
    threads = ("RAYON_NUM_THREADS", "FASTOKENS_BPE_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    code, reason = run_limited(
        __name__,
        (str(directory), engine, MEMORY_BYTES, CPU_SECONDS),
        wall_seconds=_WALL_SECONDS,
        environment=dict.fromkeys(threads, "1"),
    )
    if code == 0:
        return reason or None
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"needs more than {CPU_SECONDS} CPU seconds for a few short texts"
    if code == -signal.SIGABRT:
        return f"crashes its process, or needs more than {MEMORY_BYTES >> 30} GiB of memory"
    return f"crashes its process ({code})"


def main(directory: str, engine: str, memory_bytes: int, cpu_seconds: int) -> None:
    """Print the defect of a tokenizer in an engine, if there is one. Runs in the separate process.

    Args:
        directory: The tokenizer's folder.
        engine: Name of the engine.
        memory_bytes: Maximum address space of the process.
        cpu_seconds: Maximum CPU time of the process.
    """
    limit_process(memory_bytes, cpu_seconds)
    print(_find_defect(TokenizerBundle.load(Path(directory)), engine) or "")


def _find_defect(bundle: TokenizerBundle, name: str) -> str | None:
    """Return the first defect of a tokenizer in the engine with this name; None without defects."""
    definition = bundle.definition
    readings = _READINGS[:1] if definition.refusal or definition.as_text == definition.text else _READINGS
    try:
        return next(filter(None, (_find_id_defect(_load_engine(name, bundle, reading)) for reading in readings)), None)
    except PanicError:
        return "panics"
    except MemoryError:
        return f"needs more than {MEMORY_BYTES >> 30} GiB of memory"
    except TokenizerError:  # each use of the engine reports that it cannot load the tokenizer
        return None


def _load_engine(name: str, bundle: TokenizerBundle, reading: SpecialTokens) -> Engine:
    return ReferenceEngine(bundle, reading) if name == ReferenceEngine.name else FastokensEngine(bundle, reading)


def _find_id_defect(engine: Engine) -> str | None:
    """Return the first defect in an engine's ids for `_TEXTS`; None without defects."""
    for text in _TEXTS:
        try:
            (ids, _), (second_ids, _) = engine.encode([text]), engine.encode([text])
        except PanicError:
            raise
        except EncodingError:  # the tokenizer does not know a character; such rows are reported later
            continue
        if not np.array_equal(ids, second_ids):
            return "returns different ids for the same text the second time"
        if len(ids) > MAX_IDS_PER_BYTE * len(text.encode()):
            return f"encodes a text of {count_of(len(text), 'character')} as {count_of(len(ids), 'id')}"
    return None
