"""Secret keys for keyed digests of identifiers: always read from the environment, never written or shown."""

import os

from pydantic import Field

from dataprep_assets.engine.yaml.declaration_model import DeclarationModel
from dataprep_assets.errors import ConfigError, count_of

MIN_KEY_LENGTH = 32
"""Minimum length of a key in characters. `openssl rand -hex 32` prints 64."""


class EnvironmentKey(DeclarationModel):
    """The secret key for hashes of a sensitive dataset's ids and source files."""

    env: str = Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="Name of the environment variable with the key, which must have at least 32 characters.",
    )

    def load(self, setting: str) -> bytes:
        """Read the key for the YAML key `setting`.

        Raises ConfigError, without showing the key, if it is not set or too short.
        """
        return read_key(setting, self.env)


def read_key(setting: str, variable: str) -> bytes:
    """Read the key from an environment variable.

    `setting` is the YAML key that names the `variable`. Raises ConfigError, without showing the key, if it is not set
    or too short.
    """
    return encode_key(setting, variable, os.environ.get(variable))


def encode_key(setting: str, location: str, key: str | None) -> bytes:
    """Encode a key as bytes.

    Raises ConfigError with the `setting` and the variable `location` if the key is None, empty or too short.
    """
    if not key:
        raise ConfigError(
            f"{setting}: the environment variable {location} is not set. Set it to a key, such as the output of "
            "`openssl rand -hex 32`"
        )
    if len(key) < MIN_KEY_LENGTH:
        raise ConfigError(
            f"{setting}: {location} has {count_of(len(key), 'character')}, but a key needs at least {MIN_KEY_LENGTH}. "
            "Set a longer key"
        )
    return key.encode()
