"""Secrets that turn identifiers into keyed digests: always read from the environment, never written or shown."""

import os

from dataprep_assets.errors import ConfigError

__all__ = ["SHORTEST_KEY", "checked_key", "key_from_environment"]

SHORTEST_KEY = 32
"""Characters of a key; `openssl rand -hex 32` prints 64."""


def key_from_environment(setting: str, variable: str) -> bytes:
    """The key in an environment variable.

    `setting` is the YAML's key that names the `variable`. ConfigError, without the key, when it is not set or too
    short.
    """
    return checked_key(setting, variable, os.environ.get(variable))


def checked_key(setting: str, where: str, key: str | None) -> bytes:
    """A key as bytes; ConfigError, naming the `setting` and `where` it was found, when it is none or too short."""
    if not key:
        raise ConfigError(f"{setting}: the environment variable {where} is not set; openssl rand -hex 32 makes one")
    if len(key) < SHORTEST_KEY:
        raise ConfigError(f"{setting}: {where} has {len(key)} characters, at least {SHORTEST_KEY} are needed")
    return key.encode()
