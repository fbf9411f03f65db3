"""Engines, which encode many documents into one flat array of ids, and trials of tokenizers in a separate process.

The `reference` is the Hugging Face `tokenizers` library, whose ids are correct by definition. `fastokens` encodes the
same BPE tokenizers many times faster and is used only under a certificate (`tokenization/certificate.py`). An engine
never adds BOS or EOS, because the code that lays out the stream adds them.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError, TokenizerError, count_of
from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.project import read_state
from dataprep_assets.stores.files import digest_value, expanded
from dataprep_assets.tokenization import reference
from dataprep_assets.tokenization.bundle import (
    EncodingError,
    PanicError,
    TokenizerBundle,
    encoding_errors,
    panics_as_errors,
    reference_tokenizer,
)

SpecialTokens = Literal["text", "match"]
"""Reading of a literal special token in a document: as ordinary `text`, or as a `match` for the special id."""

Encoded = tuple[NDArray[np.uint32], NDArray[np.uint64]]
"""`(ids, offsets)`: flat uint32 ids of n documents, and n + 1 uint64 token offsets, starting with 0."""


class Engine(Protocol):
    """Interface of an engine. `version` is the installed library's, because a certificate is valid for one version."""

    name: str
    version: str

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of the documents, in order, without BOS or EOS."""
        ...


class ReferenceEngine:
    """Hugging Face `tokenizers`. Its tokenizer is cached per process (`reference_tokenizer`)."""

    name = reference.NAME

    def __init__(self, bundle: TokenizerBundle, special_tokens: SpecialTokens) -> None:
        self.version = reference.version()
        self._tokenizer = reference_tokenizer(bundle, special_tokens)

    def encode(self, texts: Sequence[str]) -> Encoded:
        with encoding_errors(self.name):
            return reference.flat_ids(self._tokenizer.encode(texts))


class FastokensEngine:
    """`fastokens`, for BPE only. Raises TokenizerError if it is not installed or cannot load the tokenizer.

    Loading takes a second, so the last tokenizer is cached. The certificate and the build in a process then share it
    and its cache of words.
    """

    name = "fastokens"
    # at most one is cached; it usually serves both readings of special tokens, because each call passes the reading
    _kept: ClassVar[dict[str, Any]] = {}

    def __init__(self, bundle: TokenizerBundle, special_tokens: SpecialTokens) -> None:
        if (version := installed(self.name)) is None:
            raise TokenizerError(f"{self.name} is not installed. Run: pip install {self.name}")
        self.version = version
        self._split = special_tokens == "text"
        text = bundle.engine_json(special_tokens)
        if text not in self._kept:
            # the new one is loaded before the cached one is removed, so that the cached one stays if loading fails
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
    """Return the version of an engine's library; None if it is not installed."""
    try:
        return metadata.version(name)
    except (metadata.PackageNotFoundError, ValueError):  # ValueError, because a certificate may contain any name
        return None


# A cache of results about tokenizers, shared by all datasets of a user.
#
# It is stored below `$XDG_CACHE_HOME/dataprep-assets` (`~/.cache/dataprep-assets`) and may be deleted at any time.

T = TypeVar("T")


def _path(kind: str, key: str) -> Path | None:
    try:
        folder = expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    except ConfigError:  # the user has no home folder, as in some containers, so nothing is cached
        return None
    return folder / "dataprep-assets" / kind / f"{key}.json"


def recall(kind: str, key: str, schema: type[T]) -> T | None:
    """Return the cached value under a key; None if there is none or it does not have the type `schema`."""
    path = _path(kind, key)
    return None if path is None else read_state(path, schema)


def remember(kind: str, key: str, value: Any) -> None:
    """Cache a JSON value under a key, if the home folder is writable."""
    if (path := _path(kind, key)) is not None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(value).encode())


# Trials: a tokenizer is first loaded in a separate process with limits.
#
# A `tokenizer.json` is a program: its expressions may run forever, its normalizers may take gigabytes, and unexpected
# content may crash the process. The trial detects this once; a tokenizer that has passed is remembered for the same
# libraries (`remember`).

VERSION = 1
"""Version of the trial. Increase it if a change makes the trial stricter, so that tokenizers are tried again."""
MEMORY_BYTES = 4 << 30
"""Maximum address space of the process. A vocabulary of 250,000 tokens takes a fifth of it."""
CPU_SECONDS = 30
_WALL_SECONDS = 900
MAX_IDS_PER_BYTE = 16
_READINGS: tuple[SpecialTokens, ...] = ("match", "text")
_TEXTS = (
    "".join(map(chr, range(0x20, 0x7F))),
    "The quick brown fox's 42 dogs can't\n\n\tjump; naïve café, Größe, 敏捷的狐狸, быстрая лиса, हिन्दी क्षत्रिय, 👩‍👩‍👧",
    # runs without the expected end, on which expressions that try every way to match take forever
    *(f"{run}{end}" for run in ("a" * 3_000, "1" * 3_000, " " * 3_000, "ab " * 1_000, "-_" * 1_500) for end in "!a"),
    *(character * 500 for character in "qzAZ0é中\n.<▁"),
)


def try_out(bundle: TokenizerBundle, engine: str = ReferenceEngine.name) -> None:
    """Load the tokenizer into an engine and encode some texts, in a separate process.

    Raises TokenizerError with the file and the remedy if the process crashes, exceeds a limit, or gives different ids
    for the same text the second time. Does nothing for a tokenizer that has passed with the same library.
    """
    # the definition is checked first, because it is fast and its errors are more specific
    _ = bundle.definition
    key = digest_value([VERSION, bundle.digest, engine, installed(engine), MEMORY_BYTES])
    if recall("trials", key, dict[str, str]) is not None:
        return
    if (why := _refusal(bundle.directory, bundle.digest, engine)) is not None:
        raise TokenizerError(
            f"{bundle.directory / 'tokenizer.json'}: {engine} {why}. "
            "Correct its normalizer and pre_tokenizer, or use another tokenizer"
        )
    remember("trials", key, {"passed": engine})


@lru_cache(maxsize=8)
def _refusal(directory: Path, _digest: str, engine: str) -> str | None:
    """Return the defect found in the process; None if there is none. Cached, because it may take a minute."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    arguments = (str(directory), engine, MEMORY_BYTES, CPU_SECONDS)
    threads = ("RAYON_NUM_THREADS", "FASTOKENS_BPE_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    process = subprocess.Popen(
        [sys.executable, "-c", f"from dataprep_assets.tokenization.engines import main; main{arguments}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        # the error output is discarded, because the returned reason describes a panic as well
        stderr=subprocess.DEVNULL,
        env=os.environ | dict.fromkeys(threads, "1") | {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
    )
    try:
        output, _ = process.communicate(timeout=_WALL_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
    reason = output.decode(errors="replace").strip()
    if process.returncode == 0:
        return reason or None
    if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"needs more than {CPU_SECONDS} CPU seconds for a few short texts"
    if process.returncode == -signal.SIGABRT:
        return f"ends its process, or needs more than {MEMORY_BYTES >> 30} GiB of memory"
    return f"ends its process ({process.returncode})"


def main(directory: str, engine: str, memory_bytes: int, cpu_seconds: int) -> None:
    """Run in the separate process: print the defect of a tokenizer in an engine, if there is one.

    Args:
        directory: The tokenizer's folder.
        engine: Name of the engine.
        memory_bytes: Limit of its address space.
        cpu_seconds: Limit of its CPU time.
    """
    limits = ((resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CPU, cpu_seconds), (resource.RLIMIT_CORE, 0))
    for limit, value in limits:
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
    print(_wrong(TokenizerBundle.load(Path(directory)), engine) or "")


def _wrong(bundle: TokenizerBundle, name: str) -> str | None:
    """Return the defect of the tokenizer in an engine; None if there is none."""
    definition = bundle.definition
    readings = _READINGS[:1] if definition.refusal or definition.as_text == definition.text else _READINGS
    try:
        return next(filter(None, (_wrong_ids(_engine(name, bundle, reading)) for reading in readings)), None)
    except PanicError:
        return "panics"
    except MemoryError:
        return f"needs more than {MEMORY_BYTES >> 30} GiB of memory"
    except TokenizerError:  # the engine cannot load it, and raises the same error for its users
        return None


def _engine(name: str, bundle: TokenizerBundle, reading: SpecialTokens) -> Engine:
    return ReferenceEngine(bundle, reading) if name == ReferenceEngine.name else FastokensEngine(bundle, reading)


def _wrong_ids(engine: Engine) -> str | None:
    """Return the defect of an engine's ids; None if there is none."""
    for text in _TEXTS:
        try:
            (ids, _), (second_ids, _) = engine.encode([text]), engine.encode([text])
        except PanicError:
            raise
        except EncodingError:  # the text has a character unknown to the tokenizer; such rows are reported later
            continue
        if not np.array_equal(ids, second_ids):
            return "gives the same text different ids the second time"
        if len(ids) > MAX_IDS_PER_BYTE * len(text.encode()):
            return f"encodes a text of {count_of(len(text), 'character')} as {count_of(len(ids), 'id')}"
    return None
