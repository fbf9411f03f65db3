"""Remembers, for all datasets of a user, what was found out about a tokenizer.

Below `$XDG_CACHE_HOME/dataprep-assets` (`~/.cache/dataprep-assets`), which may be deleted at any time.

Entry points: `recall`, `is_known`, `remember`.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from dataprep_assets.bounds import json_of
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.paths import expanded


def _path(kind: str, key: str) -> Path | None:
    try:
        folder = expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    except ConfigError:  # a user without a home folder, as in a container: nothing is remembered
        return None
    return folder / "dataprep-assets" / kind / f"{key}.json"


def recall(kind: str, key: str) -> Any:
    """What is remembered under a key: a JSON value of which nothing is certain; None if nothing is."""
    if (path := _path(kind, key)) is None:
        return None
    try:
        return json_of(path.read_bytes())
    except (OSError, ValueError):
        return None


def is_known(kind: str, key: str) -> bool:
    """Whether something is remembered under a key."""
    return recall(kind, key) is not None


def remember(kind: str, key: str, value: Any) -> None:
    """Remember a JSON value under a key, where the home folder is writable."""
    if (path := _path(kind, key)) is not None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(value).encode())
