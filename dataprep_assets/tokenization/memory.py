"""Remembers, for all datasets of a user, what was found out about a tokenizer.

Below `$XDG_CACHE_HOME/dataprep-assets` (`~/.cache/dataprep-assets`), which may be deleted at any time.

Entry points: `recall`, `remember`.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.paths import expanded
from dataprep_assets.state_file import read_state

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
