"""Secret keys for keyed digests of identifiers: always read from the environment, never written or shown."""

import os

from pydantic import Field

from dataprep_assets.engine.yaml.declared_model import Declared
from dataprep_assets.errors import ConfigError, count_of

SHORTEST_KEY = 32
"""Minimum length of a key in characters. `openssl rand -hex 32` prints 64."""


class EnvironmentKey(Declared):
    """The secret key for the hashes of a sensitive dataset's ids and source files."""

    env: str = Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="Environment variable that holds the key, at least 32 characters.",
    )

    def load(self, setting: str) -> bytes:
        """Read the key for the YAML key `setting`.

        Raises ConfigError, without showing the key, if it is not set or too short.
        """
        return key_from_environment(setting, self.env)


def key_from_environment(setting: str, variable: str) -> bytes:
    """Read the key from an environment variable.

    `setting` is the YAML key that names the `variable`. Raises ConfigError, without showing the key, if it is not set
    or too short.
    """
    return checked_key(setting, variable, os.environ.get(variable))


def checked_key(setting: str, where: str, key: str | None) -> bytes:
    """Encode a key as bytes.

    Raises ConfigError with the `setting` and the variable `where` if the key is None, empty or too short.
    """
    if not key:
        raise ConfigError(
            f"{setting}: the environment variable {where} is not set. Run `openssl rand -hex 32` to create a key"
        )
    if len(key) < SHORTEST_KEY:
        raise ConfigError(
            f"{setting}: {where} has {count_of(len(key), 'character')}, but needs at least {SHORTEST_KEY}"
        )
    return key.encode()
