"""Tries a tokenizer in a process of its own, which has limits, before this one loads it.

A `tokenizer.json` is a program: its expressions may take for ever, its normalizers gigabytes, and what a library does
not expect may end the process. Whoever loads one finds out here, once: a tokenizer that has passed is remembered for
the same libraries (`memory.folder_of`).

Entry point: `try_out`.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dataprep_assets.errors import ConfigError, TokenizerError
from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.project import expanded, read_state
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.engines import (
    Engine,
    FastokensEngine,
    ReferenceEngine,
    SpecialTokens,
    installed,
)
from dataprep_assets.tokenization.library_errors import EncodingError, PanicError

# Remembers, for all datasets of a user, what was found out about a tokenizer.
#
# Below `$XDG_CACHE_HOME/dataprep-assets` (`~/.cache/dataprep-assets`), which may be deleted at any time.
#
# Entry points: `recall`, `remember`.

T = TypeVar("T")


def _path(kind: str, key: str) -> Path | None:
    try:
        folder = expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    except ConfigError:  # a user without a home folder, as in a container: nothing is remembered
        return None
    return folder / "dataprep-assets" / kind / f"{key}.json"


def recall(kind: str, key: str, schema: type[T]) -> T | None:
    """Return the value under a key; None if there is none, or one that is not of the type `schema`."""
    path = _path(kind, key)
    return None if path is None else read_state(path, schema)


def remember(kind: str, key: str, value: Any) -> None:
    """Remember a JSON value under a key, where the home folder is writable."""
    if (path := _path(kind, key)) is not None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(value).encode())


VERSION = 1
"""Increase it when a change makes the trial stricter: what has passed is then tried again."""
MEMORY_BYTES = 4 << 30
"""Address space of the process. A vocabulary of a quarter of a million tokens takes a fifth of it."""
CPU_SECONDS = 30
_WALL_SECONDS = 900
MAX_IDS_PER_BYTE = 16
_READINGS: tuple[SpecialTokens, ...] = ("match", "text")
_TEXTS = (
    "".join(map(chr, range(0x20, 0x7F))),
    "The quick brown fox's 42 dogs can't\n\n\tjump; naïve café, Größe, 敏捷的狐狸, быстрая лиса, हिन्दी क्षत्रिय, 👩‍👩‍👧",
    # what expressions that try every way to match look at for ever: runs that do not end as they should
    *(f"{run}{end}" for run in ("a" * 3_000, "1" * 3_000, " " * 3_000, "ab " * 1_000, "-_" * 1_500) for end in "!a"),
    *(character * 500 for character in "qzAZ0é中\n.<▁"),
)


def try_out(bundle: TokenizerBundle, engine: str = ReferenceEngine.name) -> None:
    """Load the tokenizer into an engine and encode some texts, in a process of its own.

    Raises TokenizerError, naming the file and what to do, if the process ends, exceeds a limit, or gives the same text
    other ids the second time. Nothing is done for a tokenizer that has passed with the same library.
    """
    # what the file says is judged first: it is quick, and says more
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
    """What was wrong in the process; None if nothing was. Tried once a process, because it may take a minute."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    given = (str(directory), engine, MEMORY_BYTES, CPU_SECONDS)
    threads = ("RAYON_NUM_THREADS", "FASTOKENS_BPE_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    process = subprocess.Popen(
        [sys.executable, "-c", f"from dataprep_assets.tokenization.trial import main; main{given}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        # a library that panics says so here, and the reason is told below
        stderr=subprocess.DEVNULL,
        env=os.environ | dict.fromkeys(threads, "1") | {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
    )
    try:
        output, _ = process.communicate(timeout=_WALL_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
    told = output.decode(errors="replace").strip()
    if process.returncode == 0:
        return told or None
    if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"takes more than {CPU_SECONDS} seconds for a few short texts"
    if process.returncode == -signal.SIGABRT:
        return f"ends its process, or takes more than {MEMORY_BYTES >> 30} GiB of memory"
    return f"ends its process ({process.returncode})"


def main(directory: str, engine: str, memory_bytes: int, cpu_seconds: int) -> None:
    """The life of the process: print what is wrong with a tokenizer in an engine, if anything is.

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
    """What is wrong with the tokenizer in an engine; None if nothing is."""
    definition = bundle.definition
    readings = _READINGS[:1] if definition.refusal or definition.as_text == definition.text else _READINGS
    try:
        return next(filter(None, (_wrong_ids(_engine(name, bundle, reading)) for reading in readings)), None)
    except PanicError:
        return "panics"
    except MemoryError:
        return f"takes more than {MEMORY_BYTES >> 30} GiB of memory"
    except TokenizerError:  # it does not load it, and will say so to whoever needs it
        return None


def _engine(name: str, bundle: TokenizerBundle, reading: SpecialTokens) -> Engine:
    return ReferenceEngine(bundle, reading) if name == ReferenceEngine.name else FastokensEngine(bundle, reading)


def _wrong_ids(engine: Engine) -> str | None:
    """What is wrong with the ids that an engine gives; None if nothing is."""
    for text in _TEXTS:
        try:
            (ids, _), (again, _) = engine.encode([text]), engine.encode([text])
        except PanicError:
            raise
        except EncodingError:  # the text has a character that it does not know: such a row is named later
            continue
        if not np.array_equal(ids, again):
            return "gives the same text other ids the second time"
        if len(ids) > MAX_IDS_PER_BYTE * len(text.encode()):
            return f"makes {len(ids):,} ids of a text of {len(text):,} characters"
    return None
