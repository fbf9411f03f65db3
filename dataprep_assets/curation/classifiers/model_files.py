"""Files of the user's model: on this machine, or in a repository of models on the Hugging Face Hub at a commit.

The Hub's files are downloaded to the Hub's cache, as a tokenizer's are.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dataprep_assets.errors import ConfigError
from dataprep_assets.sources.hub_cache import fetch_model_file, is_cached
from dataprep_assets.stores.files import cache_by_file

_HUB = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)@(?P<commit>[0-9a-f]{40})(?:/(?P<path>[^/]+(?:/[^/]+)*))?")


def check_model_location(location: str) -> str:
    """Return the location. Raises ValueError for an address that is not a repository of the Hub at a commit."""
    if "://" in location and not _HUB.fullmatch(location):
        raise ValueError(
            f"{location!r}: unsupported location of a model. Use a path, or hf://organization/name@<40-digit "
            "commit>/path, because branches and tags can change"
        )
    return location


@dataclass(frozen=True)
class ModelFiles:
    """The file or the folder of a model.

    Attributes:
        location: An absolute path, or the address of a file, a folder or a repository on the Hub.
        key: The YAML key, for messages.
    """

    location: str
    key: str

    @property
    def commit(self) -> str:
        """The repository and its commit, as part of a version; empty for a local path."""
        hub = _HUB.fullmatch(self.location)
        return f"{hub['repo']}@{hub['commit']}" if hub else ""

    def find(self, name: str = "") -> Path | None:
        """Return a file of the folder, or the model's file itself; None if it does not exist.

        Raises SourceError if it cannot be downloaded.
        """
        if hub := _HUB.fullmatch(self.location):
            return _fetch(hub["repo"], hub["commit"], _join(hub["path"], name), f"{self.key}: model")
        path = Path(self.location) / name
        return path if path.is_file() else None

    def require(self, name: str = "") -> Path:
        """Return a file of the folder, or the model's file itself. Raises ConfigError if it does not exist."""
        if (path := self.find(name)) is None:
            raise self.build_error(name, "file does not exist. Correct `model`")
        return path

    def read_json(self, name: str) -> Any:
        """Return the content of a file; an empty mapping if it does not exist. Raises ConfigError if it is invalid."""
        if (path := self.find(name)) is None:
            return {}
        try:
            return _read_json(str(path))
        except ValueError as error:
            raise self.build_error(name, f"is not JSON ({error}). Export the model again") from error

    def is_local(self, names: Sequence[str] = ("",)) -> bool:
        """Return whether it is known without a download which of these files exist."""
        hub = _HUB.fullmatch(self.location)
        return hub is None or all(is_cached(hub["repo"], hub["commit"], _join(hub["path"], name)) for name in names)

    def build_error(self, name: str, reason: str) -> ConfigError:
        """Return an error for a file."""
        return ConfigError(f"{self.key}: {_join(self.location, name)}: {reason}")


def _join(folder: str | None, name: str) -> str:
    return "/".join(filter(None, (folder, name)))


@lru_cache(maxsize=256)
def _fetch(repo: str, commit: str, path: str, key: str) -> Path | None:
    """Return a file, and ask the Hub only once per process for a file that does not exist."""
    return fetch_model_file(repo, commit, path, key) if path else None


@cache_by_file
def _read_json(path: str) -> Any:
    return json.loads(Path(path).read_bytes())
